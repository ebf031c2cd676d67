"""Commands for the models that are here: pull, list, show, rm, and cache, which clears all."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ort_aie_ep.cli import console
from ort_aie_ep.cli.application import app
from ort_aie_ep.cli.model import HELP, METAVAR, ready
from ort_aie_ep.cli.options import Json
from ort_aie_ep.disk import size_text
from ort_aie_ep.hub.names import find_name

if TYPE_CHECKING:
    from ort_aie_ep.compiler.cache_entries import Entry


@dataclass(frozen=True)
class _Report:
    """What `--json` prints; `limit` is None if there is no limit."""

    folder: str
    limit: int | None
    code: str
    entries: tuple[Entry, ...]


@app.command("cache")
def cache_command(
    clear: Annotated[
        bool, typer.Option("--clear", help="Remove all entries except those in use.")
    ] = False,
    cache_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Cache folder. Default: ORT_AIE_CACHE, or one in your user cache."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Show or clear the cache of compiled models.

    When the cache grows beyond ORT_AIE_CACHE_LIMIT (a size such as 20GB, or none; 32GB by default),
    the least recently used entries are removed.

    ```
    ort-aie cache
    ort-aie cache --clear
    ```

    Downloads are in huggingface_hub's cache: `hf cache ls`, `hf cache rm`.
    """
    if clear:
        _remove(cache_dir, None)
    else:
        _list(cache_dir, json=json)


@app.command("pull")
def pull_command(
    model: Annotated[Path, typer.Argument(metavar="OWNER/REPO[@REVISION][:FILE]")],
) -> None:
    """Download a model by its name on a hub, and compile it for later.

    ```
    ort-aie pull OWNER/REPO
    ort-aie run OWNER/REPO
    ```
    """
    from ort_aie_ep.runtime.sessions import inspect

    with ready(model) as path:
        inspect(path)
        console.next_command("ort-aie", "run", model)


@app.command("list")
def list_command(json: Json = False) -> None:
    """List the models that are compiled here."""
    _list(None, json=json)


@app.command("rm")
def rm_command(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="As ort-aie list names it.")],
) -> None:
    """Remove what was compiled of a model."""
    _remove(None, str(Path(model).absolute()) if Path(model).exists() else model)


@app.command("show")
def show_command(model: Annotated[Path, typer.Argument(metavar=METAVAR, help=HELP)]) -> None:
    """Show what a model is: its context, its chat template, how tokens are chosen."""
    from ort_aie_ep.cli.tables import facts_table
    from ort_aie_ep.models.folder import section
    from ort_aie_ep.models.interface import context_length
    from ort_aie_ep.running.loop import sampling_of
    from ort_aie_ep.running.prompts import Prompts
    from ort_aie_ep.runtime.sessions import inspect

    with ready(model) as path:
        folder = inspect(path).folder
        prompts, chosen = Prompts(folder), sampling_of(folder)
        form = prompts.format
        size = sum(file.stat().st_size for file in folder.path.rglob("*") if file.is_file())
        facts = {
            "model": str(model),
            "folder": str(folder.path),
            "size": size_text(size),
            "architecture": str(section(folder, "model").get("type", "not known")),
            "context": f"{context_length(folder):,} tokens",
            "vocabulary": f"{prompts.vocabulary:,} tokens",
            "chat template": "yes" if prompts.chat else "no: it continues a text",
            "thoughts": "yes" if form.thought else "no",
            "tools": f"no: {form.why_not}" if form.why_not else "yes",
            "sampling": f"temperature {chosen.temperature:g}, top-p {chosen.top_p:g}, top-k "
            f"{chosen.top_k}, min-p {chosen.min_p:g}, repeat penalty {chosen.repetition_penalty:g}",
        }
    console.out.print(facts_table(facts))


def _remove(cache_dir: Path | None, model: str | None) -> None:
    """Removes the entries of a model, or all."""
    from ort_aie_ep.compiler import cache_entries
    from ort_aie_ep.compiler.cache import cache_folder

    folder = cache_folder(cache_dir)
    name = None if model is None else find_name(model)
    with console.bar("cache", "bytes") as progress:
        gone = cache_entries.clear(folder, progress, str(name) if name else model)
    if name is not None:
        from ort_aie_ep.hub.folder import forget

        forget(name)
        console.note(f"the download stays: hf cache rm model/{name.repository} removes it")
    kept = f"; kept {gone.in_use} in use" if gone.in_use else ""
    console.note(f"{folder}: removed {_entries(gone.removed)}, {size_text(gone.bytes)}{kept}")


def _list(cache_dir: Path | None, *, json: bool) -> None:
    from ort_aie_ep.cli.tables import cache_table
    from ort_aie_ep.compiler import cache_entries
    from ort_aie_ep.compiler.cache import cache_folder, code_digest

    folder = cache_folder(cache_dir)
    limit, entries = cache_entries.cache_limit(), tuple(cache_entries.entries(folder))
    if json:
        console.print_json(_Report(str(folder), limit, code_digest(), entries))
        return
    if entries:
        console.out.print(cache_table(entries, code_digest()))
    total = sum(entry.bytes for entry in entries)
    most = "no limit" if limit is None else f"at most {size_text(limit)}"
    console.heading(f"{folder}: {_entries(len(entries))}, {size_text(total)}; {most}")


def _entries(count: int) -> str:
    return "1 entry" if count == 1 else f"{count} entries"
