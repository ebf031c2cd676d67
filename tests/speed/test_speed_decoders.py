"""A token on the overlay of whole layers, composed from a plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import ort_aie_ep
from ort_aie_ep.explain.plan_steps import read_plans
from ort_aie_ep.models.shapes import SHAPES
from ort_aie_ep.npu.speed import mlir_air
from ort_aie_ep.npu.speed.decoders import beside_amd, decoder_of, token
from ort_aie_ep.npu.speed.models import shape_of, steps_of
from ort_aie_ep.npu.speed.operators import Machine
from ort_aie_ep.npu.speed.plans import compose
from ort_aie_ep.npu.speed.steps import ProjectionStep
from ort_aie_ep.npu.vocabulary.eras import MLIR_AIR
from ort_aie_ep.npu.vocabulary.errors import DesignError
from ort_aie_ep.tools.synth import synth

SMALL = {"hidden": 256, "ffn": 512, "layers": 3, "heads": 4, "kv_heads": 4, "vocab": 512}
MACHINE = Machine.of(MLIR_AIR)


@pytest.mark.parametrize("name", ["llama-3.2-1b", "qwen3-0.6b", "gemma3-1b"])
def test_a_compiled_model_has_the_layers_of_its_shape(name: str, tmp_path: Path) -> None:
    window = 4 if SHAPES[name].window else None
    shape = replace(SHAPES[name], **SMALL, window=window, global_every=2)
    ort_aie_ep.compile(synth(shape, tmp_path / "model"), tmp_path / "compiled", last_logits=True)
    decoder = decoder_of(read_plans(tmp_path / "compiled").plans)
    assert decoder == decoder_of(steps_of(shape))
    assert [layer.window for layer in decoder.layers] == [
        (window or 0) * shape.is_local(index) for index in range(3)
    ]
    first = decoder.layers[0]
    gemma = name.startswith("gemma3")
    assert (first.queries, first.keys, first.ffn) == (shape.queries, shape.keys, 512)
    assert (first.post_norm, first.gelu) == (gemma, gemma)
    assert first.head_norm == (shape.family != "llama")
    assert decoder.vocabulary == 512


def test_a_plan_of_something_else_says_which_step_differs() -> None:
    apart = (ProjectionStep("a", 256, 256, "x", "a"), ProjectionStep("b", 256, 256, "a", "y"))
    with pytest.raises(DesignError, match="step 1 of the plan is not attention"):
        decoder_of((apart,))
    with pytest.raises(DesignError, match="does not end with a norm"):
        decoder_of(())


def test_a_width_that_the_overlay_does_not_take_is_refused() -> None:
    decoder = decoder_of(steps_of(shape_of("gemma3-1b")))
    with pytest.raises(DesignError, match="hidden=1152 must be a multiple of 256"):
        token(decoder, 1024, MACHINE)


@pytest.mark.parametrize("name", ["llama-3.2-1b", "qwen3-8b", "gemma3-4b"])
def test_a_token_reads_what_single_operators_read_and_takes_less_time(name: str) -> None:
    steps = steps_of(shape_of(name))
    layers = token(decoder_of(steps), 1024, MACHINE)
    apart = compose(steps, 1, 1024, MACHINE).timing
    # Vectors of the residual stream and between operators, and rounds of keys that pairs repeat.
    assert layers.read == pytest.approx(apart.read, rel=0.02)
    assert layers.write < 0.6 * apart.write
    assert layers.seconds < apart.seconds
    assert layers.runs <= apart.runs


def test_every_cell_up_to_32k_is_beside_amds() -> None:
    every = list(beside_amd())
    assert len(every) == 5 * 6
    for one in every:
        at = mlir_air.CONTEXTS.index(one.context)
        assert one.measured == mlir_air.MEASURED[one.model][at]
        # Its attention takes longer than a matrix times a vector.
        assert one.with_their_attention <= one.with_published


def test_attention_costs_what_mlir_airs_decoder_was_fitted_to() -> None:
    # Two KV heads of four queries on a unit, in its own decoder and here: the same core cycles,
    # but for what its units do once for both heads.
    shape = shape_of("llama-3.2-1b")
    (step,) = mlir_air.attention(shape, 1024, mlir_air.Constants())
    chunks = 1024 * 64 / 4096
    here = 2 * chunks * mlir_air.KERNELS.flow_kv_chunk(4, 64)
    once = 1024 / 16 * mlir_air.ATTENTION_BLOCK.value
    assert here == pytest.approx(step.kernels + once)
