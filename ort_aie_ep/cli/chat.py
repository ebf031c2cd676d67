"""`ort-aie chat`: a conversation in a terminal, or with the lines of a pipe."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ort_aie_ep import platforms
from ort_aie_ep.cli import console
from ort_aie_ep.cli.application import app, refused
from ort_aie_ep.cli.model import HELP, METAVAR, opened
from ort_aie_ep.cli.options import (
    DraftModelOption,
    DraftOption,
    LogOption,
    NumericsOption,
    OnDeviceErrorOption,
    OverlaysOption,
    PromptChunkOption,
    TargetOption,
    Threads,
    session_options,
)
from ort_aie_ep.errors import AieError
from ort_aie_ep.requirements import require

if TYPE_CHECKING:
    from prompt_toolkit.history import History

    from ort_aie_ep.running.answers import Delta
    from ort_aie_ep.running.conversation import Conversation

# What a line may be besides a message.
_COMMANDS = {
    "/system TEXT": "set the system message; leave empty to remove it",
    "/reset": "forget the messages, but not the system message",
    "/save FILE": "write the messages as JSON",
    "/load FILE": "continue with the messages of a file",
    "/stats": "the speed of the last answer, and how full the context is",
    "/help": "these lines",
}
_MORE_ROOM = "use /reset, or start with a larger --context"


@app.command("chat")
def chat_command(
    folder: Annotated[Path, typer.Argument(metavar=METAVAR, help=HELP)],
    system: Annotated[
        str, typer.Option(metavar="TEXT", help="System message: how the model should answer.")
    ] = "",
    context: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="Tokens of the context. Default: the model's, if memory has room.",
        ),
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="New tokens of an answer, at most.")
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=2,
            help="0: always the most likely token; above 0: sample. Sampling defaults come from "
            "genai_config.json.",
        ),
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(
            min=0, max=1, help="Sample from the most likely tokens whose probabilities sum to P."
        ),
    ] = None,
    top_k: Annotated[
        int | None, typer.Option(min=0, help="Sample from the K most likely tokens (0: all).")
    ] = None,
    min_p: Annotated[
        float | None,
        typer.Option(
            min=0, max=1, help="Sample from tokens at least P times as likely as the most likely."
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed for sampling.")] = None,
    draft: DraftOption = 0,
    draft_model: DraftModelOption = None,
    target: TargetOption = None,
    numerics: NumericsOption = None,
    threads: Threads = None,
    on_device_error: OnDeviceErrorOption = None,
    log: LogOption = None,
    overlays: OverlaysOption = None,
    prompt_chunk: PromptChunkOption = None,
) -> None:
    """Converse with a model that has a chat template.

    In a terminal, Ctrl-C ends an answer, Ctrl-D ends the conversation, and /help lists the
    commands. Without a terminal, each line of stdin is a message or a command, and the answers go
    to stdout:

    ```
    ort-aie chat OWNER/REPO
    ort-aie chat COMPILED --system "Answer in French." --temperature 0.7
    ort-aie chat COMPILED < questions.txt > answers.txt
    ```
    """
    require("ort-aie chat", ("jinja2", "prompt_toolkit"))
    from ort_aie_ep.running.conversation import Conversation
    from ort_aie_ep.running.loop import open_loop
    from ort_aie_ep.running.templates import find_template

    options = session_options(
        target, numerics, threads, on_device_error, log, overlays, prompt_chunk
    )
    given = {
        "temperature": temperature, "top_p": top_p, "top_k": top_k, "min_p": min_p, "seed": seed,
    }  # fmt: skip
    sampling = {name: value for name, value in given.items() if value is not None}
    with opened(folder, draft, draft_model) as (model, guessing):
        if find_template(model.folder) is None:
            raise AieError(
                f"{folder} has no chat template: use ort-aie run, which continues a text"
            )
        with console.bar("open the model"):
            loop = open_loop(model.folder, options, 1, context, draft=draft, drafter=guessing)
        conversation = Conversation(loop, sampling, max_tokens)
        conversation.system(system)
        if sys.stdin.isatty() and sys.stdout.isatty():
            _in_terminal(conversation)
        else:
            for line in sys.stdin:
                if line.strip() and not _obeyed(conversation, line.strip()):
                    _print_answer(conversation, line.rstrip("\r\n"))


def _in_terminal(conversation: Conversation) -> None:
    from prompt_toolkit import PromptSession

    lines: PromptSession[str] = PromptSession("> ", history=_history())
    console.note("/help lists commands, Ctrl-C ends an answer, Ctrl-D leaves")
    # Not KeyboardInterrupt, after which nobody knows what the cache holds. A prompt has its own.
    signal.signal(signal.SIGINT, lambda *_: conversation.stop())
    while True:
        try:
            text = lines.prompt()
        except KeyboardInterrupt:  # what was typed is given up
            continue
        except EOFError:
            return
        try:
            if text.strip() and not _obeyed(conversation, text.strip()):
                _show_answer(conversation, text)
        except (AieError, OSError) as error:
            console.fail(refused(error) if isinstance(error, OSError) else str(error))


def _history() -> History:
    """Earlier lines, of which a user without a home has none."""
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    try:
        file = platforms.state_home() / "ort_aie_ep" / "chat_history"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch(mode=0o600)  # others need not read it
    except (OSError, RuntimeError):
        return InMemoryHistory()
    return FileHistory(file)


def _answer(conversation: Conversation, text: str) -> Iterator[Delta]:
    """The pieces of the answer, with a bar until the first one."""
    from ort_aie_ep.running.turns import PromptTooLongError

    with ExitStack() as bars:
        bar = bars.enter_context(console.bar("read the prompt", "tokens"))
        try:
            for delta in conversation.say(text, bar):
                bars.close()
                yield delta
        except PromptTooLongError as error:
            raise AieError(f"{error}: {_MORE_ROOM}") from error


def _print_answer(conversation: Conversation, text: str) -> None:
    for delta in _answer(conversation, text):
        console.write_text(delta.content)
    console.write_text("\n")
    console.note(_stats(conversation))
    _tell_if_full(conversation)


def _show_answer(conversation: Conversation, text: str) -> None:
    """The answer, with what is thought before it dim."""
    before = ""
    for delta in _answer(conversation, text):
        for piece, style in ((delta.reasoning, "dim"), (delta.content, "none")):
            if piece:
                console.show_text("\n\n" if before not in ("", style) else "")
                console.show_text(piece, style)
                before = style
    console.show_text("\n")
    console.note(_speed(conversation))
    _tell_if_full(conversation)


def _tell_if_full(conversation: Conversation) -> None:
    if conversation.full:
        console.note(f"the context of {conversation.context} tokens is full: {_MORE_ROOM}")


def _obeyed(conversation: Conversation, line: str) -> bool:
    """Whether a line is a command, which is then done. A path is none."""
    found = re.fullmatch(r"/(\w*)(?:\s+(.*))?", line, re.DOTALL)
    if found is None:
        return False
    name, rest = found[1], found[2] or ""
    if name == "system":
        conversation.system(rest)
    elif name == "reset" and not rest:
        conversation.reset()
    elif name == "save" and rest:
        conversation.save(_file(rest))
    elif name == "load" and rest:
        conversation.load(_file(rest))
    elif name == "stats" and not rest:
        console.note(_stats(conversation))
    elif name == "help" and not rest:
        console.note("\n".join(f"{form:<14}{what}" for form, what in _COMMANDS.items()))
    else:
        raise AieError(f"{line.splitlines()[0]!r} is not one of {', '.join(_COMMANDS)}")
    return True


def _file(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise AieError(f"{text}: there is no such user") from error


def _speed(conversation: Conversation) -> str:
    last = conversation.last
    assert last is not None
    speed = "" if last.decode_speed is None else f", {last.decode_speed:.1f} tok/s"
    return f"{last.new_tokens} tokens{speed}"


def _stats(conversation: Conversation) -> str:
    last = conversation.last
    if last is None:
        return "there was no answer yet"
    drafted = (
        "" if last.drafted is None else f", {last.drafted[0]} of {last.drafted[1]} guesses right"
    )
    return (
        f"prompt: {last.prompt_tokens} tokens, {last.cached_tokens} from the cache, first token "
        f"after {last.prefill_seconds:.2f} s · answer: {_speed(conversation)}{drafted} · context: "
        f"{last.prompt_tokens + last.new_tokens} of {conversation.context}"
    )
