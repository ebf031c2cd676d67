"""The command `cache`: shows and clears the models that `ort_aie_ep.session` has compiled."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ort_aie_ep.cli import console
from ort_aie_ep.cli.application import app
from ort_aie_ep.cli.options import Json
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
    remove: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL", help="Remove this model's entries. Name it as the list does."
        ),
    ] = None,
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
    ort-aie cache --remove OWNER/REPO
    ort-aie cache --clear
    ```

    Downloads are in huggingface_hub's cache: `hf cache ls`, `hf cache rm`.
    """
    from ort_aie_ep.cli.tables import cache_table, size_text
    from ort_aie_ep.compiler import cache_entries
    from ort_aie_ep.compiler.cache import cache_folder, code_digest

    folder = cache_folder(cache_dir)
    if clear or remove is not None:
        name = None if remove is None else find_name(remove)
        with console.bar("cache", "bytes") as progress:
            gone = cache_entries.clear(folder, progress, remove)
        if name is not None:
            from ort_aie_ep.hub.folder import forget

            forget(name)
            console.note(f"the download stays: hf cache rm model/{name.repository} removes it")
        kept = f"; kept {gone.in_use} in use" if gone.in_use else ""
        console.note(f"{folder}: removed {_entries(gone.removed)}, {size_text(gone.bytes)}{kept}")
        return
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
