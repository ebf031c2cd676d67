"""Every cell of the table of doors on docs/status.md is what the page says."""

from __future__ import annotations

import pytest
from cells import DOORS, PAGE, Door, as_markdown, check, on_the_page, parameters, why_not
from rows import BUILDER, ROWS, Row

pytestmark = pytest.mark.skipif(not PAGE.is_file(), reason="no docs beside the tests")

# With each change: the first door for all that others wrote, the provider for all of the builder,
# and genai with norms and windows of layers, a plain model, several plans, and states.
ALWAYS = {
    "custom-op library": lambda row: not row.maker.startswith("optimum"),
    "provider": lambda row: row.maker == BUILDER,
    "context file": lambda row: row.maker == BUILDER,
    "genai": lambda row: row.model in ("Llama", "Gemma 3", "Phi-2", "LFM2", "Qwen3.5"),
}


def each_time(row: Row, door: Door) -> bool:
    return door.name in ALWAYS and ALWAYS[door.name](row)


@pytest.mark.usefixtures("provider")
@pytest.mark.parametrize(("row", "door"), parameters("host", each_time))
def test_a_model_by_a_door(row: Row, door: Door, tmp_path_factory: pytest.TempPathFactory) -> None:
    check(row, door, tmp_path_factory)


def test_the_page_has_all_rows_and_says_why_a_cell_is_not_there() -> None:
    table = on_the_page()
    assert sorted(table) == sorted((row.model, row.maker) for row in ROWS)
    for row in ROWS:
        for door, text in zip(DOORS, table[row.model, row.maker], strict=True):
            assert why_not(row, door) in ("", text), (row, door)
    assert as_markdown(table) in PAGE.read_text()
