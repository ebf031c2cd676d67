"""This project's kernels beside published ones: verdicts, and the table of the docs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ort_aie_ep.npu.speed.beside import Beside, beside
from ort_aie_ep.npu.speed.report import kernel_rows

DOCS = Path(__file__).parents[2] / "docs" / "npu-model.md"
ROW = Beside("gemm", "a tile", "cycles", (100, 200), 150, "a table")


@pytest.mark.parametrize(
    ("model", "ratio", "verdict"),
    [(69, 0.69, "unconfirmed"), (71, 0.71, "within 30 %"), (150, 1, "within 30 %"),
     (259, 1.295, "within 30 %"), (261, 1.305, "slower")],
)  # fmt: skip
def test_a_model_is_judged_by_the_nearest_published_value(
    model: float, ratio: float, verdict: str
) -> None:
    row = replace(ROW, model=model)
    assert row.ratio == pytest.approx(ratio)
    assert row.verdict == verdict


def test_what_is_faster_than_anyone_measured_is_named() -> None:
    compared = beside()
    doubtful = {row.design for row in compared.rows if row.ratio < 0.7 and not row.scaled}
    assert set(compared.unconfirmed) == doubtful


def test_scaled_kernels_take_what_was_published() -> None:
    scaled = [row for row in beside().rows if row.scaled]
    assert [row.design for row in scaled] == ["fused_dqp", "dequant", "gemm", "gemm, NPU1"]
    assert all(row.ratio == pytest.approx(1) for row in scaled)


def test_the_docs_have_the_table_that_the_command_prints() -> None:
    heading, *rows = kernel_rows(beside())
    table = [
        tuple(cell.strip() for cell in line.strip("|").split("|"))
        for line in DOCS.read_text().splitlines()
        if line.startswith("|")
    ]
    start = table.index(heading) + 2
    assert table[start : start + len(rows)] == rows
