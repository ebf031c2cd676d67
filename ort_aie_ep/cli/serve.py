"""`ort-aie serve`."""

from __future__ import annotations

import atexit
import copy
import ipaddress
import logging
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ort_aie_ep.cli import console
from ort_aie_ep.cli.application import app
from ort_aie_ep.cli.model import HELP, METAVAR, opened
from ort_aie_ep.cli.options import DraftModelOption, DraftOption, takes_options
from ort_aie_ep.disk import size_of, size_text
from ort_aie_ep.errors import AieError
from ort_aie_ep.requirements import SERVER, require
from ort_aie_ep.runtime.options import Options

if TYPE_CHECKING:
    from ort_aie_ep.running.loop import Loop
    from ort_aie_ep.serving.engine import Facts


@app.command("serve")
@takes_options
def serve_command(
    folder: Annotated[
        Path | None, typer.Argument(metavar=METAVAR, help=f"{HELP} Default: all that are here.")
    ] = None,
    models: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Without MODEL, also offer the models in this folder: folders, .gguf files.",
        ),
    ] = None,
    loaded: Annotated[
        int, typer.Option(min=1, help="Without MODEL, how many models are loaded at a time.")
    ] = 1,
    host: Annotated[
        str, typer.Option(help="Address to listen on. All but loopback need --api-key.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free port.")] = 8000,
    api_key: Annotated[
        str | None,
        typer.Option(
            envvar="ORT_AIE_API_KEY",
            metavar="KEY",
            help="Key that clients must send. Other users of the machine cannot see the variable.",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            help="The model's name in requests. Default: the name of the folder or repository."
        ),
    ] = None,
    parallel: Annotated[
        int,
        typer.Option(min=1, max=64, help="Texts to write at the same time, each with a cache."),
    ] = 4,
    queue: Annotated[
        int, typer.Option(min=0, help="Further requests that may wait; more get status 429.")
    ] = 64,
    context: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="Tokens of the context. Default: the model's, if memory has room.",
        ),
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="New tokens of a request, at most.")
    ] = None,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Another name that clients may use, such as a proxy's. Repeatable.",
        ),
    ] = None,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ORIGIN",
            help="Let web pages of this origin use the server, such as https://chat.example.org "
            "(*: all). Repeatable.",
        ),
    ] = None,
    log_requests: Annotated[
        bool, typer.Option("--log-requests", help="Write a line for each request to stderr.")
    ] = False,
    drain: Annotated[
        float,
        typer.Option(
            min=0, metavar="SECONDS", help="How long running texts may continue after SIGTERM."
        ),
    ] = 30.0,
    cache_memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Memory for conversations that have no slot, such as 8GB. Default: a quarter of "
            "what is free.",
        ),
    ] = None,
    cache_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Keep them in files too, for a later start."),
    ] = None,
    cache_files: Annotated[
        str, typer.Option(metavar="SIZE", help="Size of all these files, at most.")
    ] = "16GB",
    draft: DraftOption = 0,
    draft_model: DraftModelOption = None,
    *,
    options: Options,
) -> None:
    """Serve models to clients of OpenAI, Anthropic and ollama, to agents, and to a browser.

    Without MODEL, serve all that ort-aie list shows by name, and load what a request asks for:

    ```
    ort-aie serve
    ort-aie serve OWNER/REPO
    ort-aie serve MODEL.gguf --log-requests
    curl http://127.0.0.1:8000/v1/completions -d '{"prompt": "def main(argv):"}'
    ORT_AIE_API_KEY=SECRET ort-aie serve COMPILED --host 0.0.0.0
    ```
    """
    require("ort-aie serve", SERVER)
    if not (loopback := _is_loopback(host)) and not api_key:
        raise AieError(f"--host {host} lets other machines in: add --api-key or ORT_AIE_API_KEY")
    if api_key and not api_key.isascii():
        raise AieError("--api-key has characters that HTTP headers do not have: use ASCII")
    import uvicorn
    from uvicorn.config import LOGGING_CONFIG

    from ort_aie_ep.running.loop import open_loop
    from ort_aie_ep.running.prefixes import Keeping
    from ort_aie_ep.serving.app import LOOPBACK, Server, create_app
    from ort_aie_ep.serving.engine import Engine
    from ort_aie_ep.serving.limits import (
        AT_ONCE,
        KEEP_ALIVE,
        FewLines,
        Protocol,
        Stopping,
        allow_descriptors,
    )
    from ort_aie_ep.serving.metrics import Metrics
    from ort_aie_ep.serving.models import Models
    from ort_aie_ep.serving.offers import Offer, offer_of, offered

    if models is not None and not models.is_dir():
        raise AieError(f"--models {models} is not a folder")
    for given, option in ((name, "--name"), (draft_model, "--draft-model")):
        if given is not None and folder is None:
            raise AieError(f"{option} is for one model: give MODEL")
    if folder is not None and models is not None:
        raise AieError("give MODEL, which is then the only one, or --models")
    keeping = Keeping(
        None if cache_memory is None else size_of(cache_memory, "--cache-memory"),
        cache_dir,
        size_of(cache_files, "--cache-files"),
        api_key or "",
    )
    # By itself SIGTERM would end this process alone, and leave the model's to find out.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    with ExitStack() as stack:
        listener = stack.enter_context(_listening(host, port))
        opening = partial(open_loop, options=options, slots=parallel, draft=draft, keeping=keeping)
        if folder is None:

            def of(offer: Offer) -> Callable[[], Loop]:
                return partial(_open, offer.path, opening, context, options.target)

            shelf = Models(partial(offered, models), of, queue, loaded)
            shown = f"{len(offered(models))} models"
        else:
            model, guessing = stack.enter_context(
                opened(folder, draft, draft_model, options.target)
            )
            with console.bar("open the model"):
                one = partial(opening, model.folder, context=context, drafter=guessing)
                engine = Engine(one, queue).open()
            shown = name or (folder.resolve().name if folder.exists() else folder.as_posix())
            offer = offer_of(shown, model.folder.path, model.folder.path)
            shelf = Models.of_one(offer, engine)
            console.note(_size(engine.facts, engine.counts.limit_bytes))
            if engine.facts.note:
                console.note(f"{folder}: {engine.facts.note}")
        stack.callback(shelf.close)
        server = Server(shelf, api_key, max_tokens, int(time.time()), Metrics(shelf))

        async def stopping(terminated: bool, hurry: Callable[[], bool]) -> None:
            if terminated:
                await shelf.drain(drain, hurry)
            shelf.stop()

        hosts = (*LOOPBACK, host, *(allowed_host or ())) if loopback else ("*",)
        address = f"[{host}]" if ":" in host else host
        url = f"http://{address}:{listener.getsockname()[1]}"
        console.note(f"a page for a browser: {url}")
        console.note(f"{shown}: {url}/v1")
        config = uvicorn.Config(
            create_app(server, hosts, cors_origin or ()),
            http=Protocol,
            ws="none",
            loop="asyncio",
            backlog=AT_ONCE,
            log_level="warning",
            access_log=log_requests,
            log_config=_on_stderr(LOGGING_CONFIG),
            timeout_graceful_shutdown=2,
            timeout_keep_alive=KEEP_ALIVE,
        )
        if log_requests:
            logging.getLogger("uvicorn.access").setLevel(logging.INFO)
        for name_of_log in ("uvicorn.error", "asyncio"):
            logging.getLogger(name_of_log).addFilter(FewLines())
        allow_descriptors()
        Stopping(config, stopping).run([listener])


def _open(
    given: Path, opening: Callable[..., Loop], context: int | None, target: str | None
) -> Loop:
    """Opens a model that a request asks for, in its process, which keeps it."""
    from ort_aie_ep.compiler.cache import cache_folder
    from ort_aie_ep.compiler.cache_entries import use
    from ort_aie_ep.models.interface import context_length

    kept = ExitStack()
    atexit.register(kept.close)
    if given.parent == cache_folder() and (lock := use(given)):
        kept.enter_context(lock)  # else the entry could be removed
    model, _ = kept.enter_context(opened(given, 0, None, target))
    longest = context and min(context, context_length(model.folder))
    return opening(model.folder, context=longest)


def _on_stderr(logs: dict[str, Any]) -> dict[str, Any]:
    """uvicorn's logs, of which that of requests is on stdout."""
    logs = copy.deepcopy(logs)
    logs["handlers"]["access"]["stream"] = "ext://sys.stderr"
    return logs


def _size(facts: Facts, limit: int) -> str:
    """What a user should know of memory, with the limit of prefixes."""
    size = facts.context * facts.token_bytes
    caches = f", each with a cache of up to {size_text(size)}" if size else ""
    kept = f"; up to {size_text(limit)} for those without a slot" if limit else ""
    return f"{facts.slots} texts at a time of {facts.context:,} tokens{caches}{kept}"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _listening(host: str, port: int) -> socket.socket:
    """A socket, before the model is opened: a port that is taken is known at once."""
    try:
        return socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET
        )
    except OSError as error:
        raise AieError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
