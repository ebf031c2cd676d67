"""Fills the table of doors (`make doors`): one cell after the other, and what fails below it.

`make doors OPTIONS=--write` writes it to docs/status.md; OPTIONS="GGUF Phi" fills rows of these
names alone. Ends with 1 if a cell fails, or is not what the page says.
"""

from __future__ import annotations

import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path

import pytest
from cells import DOORS, PAGE, TABLE, Door, as_markdown, missing, on_the_page, why_not
from op_models import ORT_VERSION
from provider_calls import registered
from rich.console import Console
from rich.table import Table
from rows import ROWS, Made


def fill(made: Made, door: Door) -> tuple[str, str]:
    """A cell's text, and what failed."""
    try:
        return door.fill(made), ""
    except pytest.skip.Exception as reason:
        return "?", f"not run: {reason}"
    except Exception as error:
        return "✗", f"{type(error).__name__}: {error}"


def main(words: list[str]) -> int:
    console, wrong, failed = Console(width=200), [], False
    said = {} if "--write" in words else on_the_page()
    names = [word for word in words if word != "--write"]
    rows = [row for row in ROWS if not names or any(name in str(row) for name in names)]
    shown, table = Table("model", "made by", *(door.name for door in DOORS)), {}
    with (
        tempfile.TemporaryDirectory() as work,
        registered() if ORT_VERSION >= (1, 24) else nullcontext(),
        console.status("") as status,
    ):
        for row in rows:
            made = Made(row, Path(work, str(row)))
            made.work.mkdir()
            cells = []
            for i, door in enumerate(DOORS):
                status.update(f"{row}, {door}")
                text, note = why_not(row, door), ""
                if not text and (note := missing(row, door)):
                    text, note = "?", f"not run: {note}"
                elif not text:
                    text, note = fill(made, door)
                expected = said[row.model, row.maker][i] if said else text
                if text != expected and text not in "✗?":
                    note = f"{text}, but the page says {expected}"
                failed |= text == "✗" or "but the page" in note
                wrong += [f"{row}, {door}: {note}"] * bool(note)
                cells.append(text)
            table[row.model, row.maker] = cells
            shown.add_row(row.model, row.maker, *cells)
    console.print(shown, *wrong, sep="\n", markup=False)
    if "--write" in words and not wrong:
        PAGE.write_text(TABLE.sub(lambda _: as_markdown(table), PAGE.read_text()))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
