"""Plans of named shapes, and the time that the performance model composes from steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import ort_aie_ep
from ort_aie_ep.explain.plan_steps import read_plans
from ort_aie_ep.formats.q4nx import SHIPPING, BlockForm
from ort_aie_ep.models.shapes import SHAPES
from ort_aie_ep.npu.simulator.session import Session, random_buffers
from ort_aie_ep.npu.speed import MODELS, plans
from ort_aie_ep.npu.speed import operators as op
from ort_aie_ep.npu.speed.invocations import Invocation
from ort_aie_ep.npu.speed.models import shape_of, steps_of
from ort_aie_ep.npu.speed.operators import Machine
from ort_aie_ep.npu.speed.plans import QUERY_BYTES, compose, design_of
from ort_aie_ep.npu.speed.steps import (
    AttentionStep,
    GatherStep,
    Plans,
    ProjectionStep,
    SelectionStep,
    VectorStep,
)
from ort_aie_ep.npu.vocabulary.eras import MLIR_AIR
from ort_aie_ep.npu.vocabulary.errors import DesignError
from ort_aie_ep.tools.synth import synth

MACHINE = Machine()
SMALL = {"hidden": 256, "ffn": 512, "layers": 3, "heads": 4, "kv_heads": 2, "vocab": 512}


@pytest.mark.parametrize(
    "name",
    [
        "qwen3-0.6b",
        *(pytest.param(n, marks=pytest.mark.in_turn) for n in ("llama-3.2-1b", "gemma3-1b")),
    ],
)
@pytest.mark.parametrize("tokens", [1, 5])
def test_a_named_shape_has_the_plan_of_its_compiled_model(
    name: str, tokens: int, tmp_path: Path
) -> None:
    window = 4 if SHAPES[name].window else None
    shape = replace(SHAPES[name], **SMALL, window=window, global_every=2)
    ort_aie_ep.compile(synth(shape, tmp_path / "model"), tmp_path / "compiled", last_logits=True)
    compiled = read_plans(tmp_path / "compiled")
    assert compose(compiled.plans, tokens, 9, MACHINE) == compose(
        steps_of(shape, BlockForm(minima=False)), tokens, 9, MACHINE
    )


def test_a_selected_row_is_one_step_for_the_array_in_a_prompt() -> None:
    steps = (
        ProjectionStep("a", 256, 256, "x", "a"),
        SelectionStep("last", "a", "b"),
        ProjectionStep("b", 256, 256, "b", "y", one_row=True),
    )
    token, prompt = (compose((steps,), tokens, 9, MACHINE) for tokens in (1, 9))
    assert (token.submissions, token.host_steps) == (1, {})
    assert prompt.overlays == {"dequant": 1, "gemm": 1, "decode": 1}
    assert prompt.host_steps == {}


def test_a_short_prompt_multiplies_quantised_weights_in_one_context_only() -> None:
    steps = (ProjectionStep("a", 512, 256, "x", "a"), ProjectionStep("b", 256, 512, "a", "y"))
    one_context = Machine.of(MLIR_AIR)
    assert compose((steps,), 256, 300, one_context).overlays == {"short_gemm": 1}
    for tokens, machine in ((257, one_context), (256, MACHINE)):
        assert compose((steps,), tokens, 300, machine).overlays == {"dequant": 1, "gemm": 1}


@pytest.mark.parametrize("name", MODELS)
def test_a_token_of_a_named_shape_is_one_submission(name: str) -> None:
    token = compose(steps_of(shape_of(name)), 1, 1024, MACHINE, fused_layers=False)
    assert token.submissions == 1
    # At most as many as fit in a chain.
    assert token.timing.runs <= 24


@pytest.mark.parametrize("name", MODELS)
def test_layers_are_faster_whole_than_by_their_operators(name: str) -> None:
    """The sizes of Gemma 3 1B are the only ones that are not whole objects."""
    steps = steps_of(shape_of(name))
    token = compose(steps, 1, 1024, MACHINE)
    apart = compose(steps, 1, 1024, MACHINE, fused_layers=False)
    assert token.submissions == 1
    assert token.timing.runs <= 24
    if name == "gemma3-1b":
        assert token.layers_refused == "hidden=1152 must be a multiple of 256 up to 8192"
        assert token.timing == apart.timing
    else:
        assert (token.overlays, token.layers_refused) == ({"fused_layer": 1}, "")
        assert token.device_steps == apart.device_steps
        assert token.timing.seconds < apart.timing.seconds


@pytest.mark.parametrize("name", ["llama-3.2-1b", "qwen3-8b", "gemma3-4b"])
def test_whole_layers_read_what_single_operators_read_and_take_less_time(name: str) -> None:
    steps = steps_of(shape_of(name))
    layers = compose(steps, 1, 1024, Machine.of(MLIR_AIR))
    apart = compose(steps, 1, 1024, Machine.of(MLIR_AIR), fused_layers=False)
    assert (layers.overlays, apart.overlays) == ({"fused_layer": 1}, {"decode": 1})
    # Vectors of the residual stream and between operators, and rounds of keys that pairs repeat.
    assert layers.timing.read == pytest.approx(apart.timing.read, rel=0.02)
    assert layers.timing.write < 0.6 * apart.timing.write
    assert layers.timing.seconds < apart.timing.seconds
    assert layers.timing.runs <= apart.timing.runs


def test_every_part_of_the_queries_sees_all_keys_without_causality() -> None:
    heads, dim, tokens = 16, 72, 4096
    most = QUERY_BYTES // (2 * heads * op.padded_head(dim))
    assert tokens == 2 * most
    step = AttentionStep(
        "a", heads, heads, dim, "q", "k", "v", ("", ""), "o", ("", ""), causal=False
    )
    found = compose(((step,),), tokens, tokens, MACHINE)
    part = op.flow_qkv(most, tokens - most, heads, heads, dim, None, False, MACHINE.kernels)
    assert found.submissions == 2
    assert found.timing.parts["attention"] == pytest.approx(2 * MACHINE.seconds(part))
    # A super-chunk reads all keys and values once.
    read = sum(one.read for one in part)
    assert read >= 2 * heads * tokens * op.padded_head(dim) * op.BF16


def two(first_norm: str, *, host_between: bool) -> Plans:
    steps = [
        ProjectionStep("a", 256, 256, "x", "a", norm=first_norm),
        *([GatherStep("rows", "a", "b")] if host_between else []),
        ProjectionStep("b", 256, 256, "b" if host_between else "a", "y"),
    ]
    return (tuple(steps),)


def test_a_step_that_waits_for_the_host_divides_a_plan() -> None:
    assert compose(two("n", host_between=False), 1, 1, MACHINE).submissions == 1
    divided = compose(two("n", host_between=True), 1, 1, MACHINE)
    assert (divided.submissions, divided.timing.runs) == (2, 2)
    assert divided.host_steps == {"rows of an embedding": 1}


def test_each_node_is_a_plan_of_its_own() -> None:
    ((first, second),) = two("n", host_between=False)
    assert compose(((first,), (second,)), 1, 1, MACHINE).submissions == 2


def test_a_row_that_projections_share_is_normalised_once() -> None:
    def vectors(*norms: str) -> float:
        steps = tuple(ProjectionStep(f"p{i}", 256, 256, "x", f"y{i}", norm=norm)
                      for i, norm in enumerate(norms))  # fmt: skip
        return compose((steps,), 1, 1, MACHINE).timing.parts["vector"]

    assert vectors("n", "n") == vectors("n")
    assert vectors("n", "m") == pytest.approx(2 * vectors("n"))


def test_the_host_does_what_the_device_has_no_function_for() -> None:
    steps = (ProjectionStep("p", 256, 256, "x", "a"), VectorStep("s", "sigmoid", 256, "a", "y"))
    composed = compose((steps,), 1, 1, MACHINE)
    assert composed.host_steps == {"an activation that the overlay does not have": 1}


def test_more_tokens_than_the_context_are_refused() -> None:
    with pytest.raises(DesignError, match="1 to 4"):
        compose(two("", host_between=False), 5, 4, MACHINE)


@cache
def session_of(overlay: str, form: BlockForm) -> Session:
    return Session(design_of(overlay, form))


@cache  # models have products of the same shapes
def moved(
    overlay: str, form: BlockForm, sequence: str, parameters: tuple[tuple[str, int], ...]
) -> np.ndarray:
    """Bytes that the simulator reads and writes for an invocation."""
    session = session_of(overlay, form)
    buffers = random_buffers(session.design, sequence, dict(parameters))
    results = session.run(sequence, dict(parameters), buffers)
    return np.array([sum(r.read for r in results), sum(r.written for r in results)])


@pytest.mark.parametrize(
    ("name", "sizes", "form", "read_as"),
    [
        ("llama-3.2-1b", {}, SHIPPING, SHIPPING),
        ("qwen3-0.6b", {}, BlockForm(group=128, minima=False), BlockForm(group=128)),
        ("gemma3-1b", {"window": 4, "global_every": 2}, BlockForm(2), SHIPPING),
        (
            "llama-3.2-1b",
            {"heads": 8, "kv_heads": 8, "head_dim": 96},
            *(BlockForm(minima=False),) * 2,
        ),
    ],
)
@pytest.mark.parametrize(("tokens", "context"), [(1, 5), (3, 3)])
def test_the_array_moves_the_predicted_bytes(
    name: str, sizes: dict[str, int], form: BlockForm, read_as: BlockForm, tokens: int,
    context: int, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """For each invocation, the bytes that the simulator counts when it executes it."""
    invocations: list[tuple[str, Invocation]] = []
    count_runs = plans.runs_of

    def remember(overlay: str, batch: Sequence[Invocation], of: BlockForm) -> int:
        assert of == read_as
        invocations.extend((overlay, one) for one in batch)
        return count_runs(overlay, batch, of)

    monkeypatch.setattr(plans, "runs_of", remember)
    shape = replace(SHAPES[name], **{**SMALL, **sizes})
    timing = compose(steps_of(shape, form), tokens, context, MACHINE).timing
    read, written = sum(
        moved(overlay, read_as, one.sequence, tuple(one.parameters.items()))
        for overlay, one in invocations
    )
    # The closed forms leave out tables and weights of rotations, queries and outputs of attention,
    # and rows without weights. They add a sum and a residual to each norm, and 64 bytes for the 16
    # that a new key or value occupies, because DDR moves 64. All of these are of a token's size,
    # and small beside the weights.
    assert timing.read == pytest.approx(read, rel=0.01)
    assert abs(timing.write - written) <= 0.01 * (read + written)
