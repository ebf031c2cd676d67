"""Tokens on the overlay of whole layers, beside AMD's open decoder."""

from __future__ import annotations

import pytest
from npu_papers import mlir_air
from npu_papers.goals import beside_amd, beside_paper2
from npu_papers.tables import CONTEXTS, MLIR_AIR_TOKENS

from ort_aie_ep.npu.terms.eras import MLIR_AIR, PAPERS
from ort_aie_ep.prediction.shapes import shape_of
from ort_aie_ep.prediction.simulation import simulate


@pytest.mark.in_turn
def test_every_cell_up_to_32k_is_beside_amds() -> None:
    every = beside_amd()
    assert len(every) == 8 * 6
    for one in every:
        assert one.measured == MLIR_AIR_TOKENS[one.model][CONTEXTS.index(one.context)]
        # Its attention takes longer than a matrix times a vector, and so do its rounds' ends.
        assert one.with_theirs < one.with_published


def test_predict_has_the_same_token() -> None:
    (own,) = (o for o in beside_amd() if (o.model, o.context) == ("llama-3.2-1b", 1024))
    plan = simulate("llama-3.2-1b", contexts=[1024], era=MLIR_AIR)
    assert plan.decode[0].overlays == {"fused_layer": 1}
    assert 1 / plan.decode[0].timing.seconds == own.predicted


@pytest.mark.in_turn  # paper 2's tables take half a minute
def test_predict_has_the_same_prompt() -> None:
    (prompt,) = (p for p in beside_paper2() if (p.model, p.context) == ("gemma3-1b", 1024))
    plan = simulate("gemma3-1b", contexts=[1024], era=PAPERS)
    assert plan.prefill[0].timing.seconds == prompt.predicted


def test_attention_costs_what_mlir_airs_decoder_was_fitted_to() -> None:
    # Two KV heads of four queries on a unit, in its own decoder and here: the same core cycles,
    # but for what its units do once for both heads.
    shape = shape_of("llama-3.2-1b")
    (step,) = mlir_air.attention(shape, 1024, mlir_air.Constants())
    chunks = 1024 * 64 / 4096
    here = 2 * chunks * mlir_air.KERNELS.flow_kv_chunk(4, 64)
    once = 1024 / 16 * mlir_air.ATTENTION_BLOCK.value
    assert here == pytest.approx(step.kernels + once)
