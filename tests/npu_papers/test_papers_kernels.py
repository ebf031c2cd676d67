"""This project's kernels beside published ones: verdicts, and which rows there are."""

from __future__ import annotations

from dataclasses import replace

import pytest
from npu_papers.attention import decoder_attention
from npu_papers.kernels import Beside, beside
from npu_papers.tables import CONTEXTS, FASTFLOWLM_2026_PROMPTS, FLASH_ATTENTION, MLIR_AIR_TOKENS

from ort_aie_ep.prediction.unconfirmed import UNCONFIRMED

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
    assert set(compared.unconfirmed) == doubtful == UNCONFIRMED


def test_every_published_call_and_unit_of_attention_is_there() -> None:
    rows = [(row.design, row.what) for row in beside().rows]
    assert len(set(rows)) == len(rows)
    for call in FLASH_ATTENTION:
        assert ("flow_qkv", call.name) in rows
    units = [(one.kv_heads, one.queries, one.head_dim) for one in decoder_attention()]
    assert sum(design == "flow_kv" for design, _ in rows) == len(units)
    # Models of the sweep with the same heads share a row: 3B and phi4, both 8B.
    assert len(units) == len(MLIR_AIR_TOKENS) - 2


def test_what_grows_with_the_square_of_a_measured_prompt_is_less_than_the_prompt() -> None:
    for one in beside().prompts:
        speed = FASTFLOWLM_2026_PROMPTS[one.model][CONTEXTS.index(one.tokens)]
        assert 0 < one.fastflowlm < one.tokens / speed
        assert one.fastflowlm < one.mlir_air


def test_scaled_kernels_take_what_was_published() -> None:
    scaled = [row for row in beside().rows if row.scaled]
    assert [row.design for row in scaled] == ["fused_dqp", "dequant", "gemm", "gemm, NPU1"]
    assert all(row.ratio == pytest.approx(1) for row in scaled)
