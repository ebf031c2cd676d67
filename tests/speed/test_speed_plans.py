"""Plans of named shapes, and what the model of speed composes of steps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import ort_aie_ep
from ort_aie_ep.explain.plan_steps import read_plans
from ort_aie_ep.models.shapes import SHAPES
from ort_aie_ep.npu.speed import MODELS
from ort_aie_ep.npu.speed.models import shape_of, steps_of
from ort_aie_ep.npu.speed.operators import Machine
from ort_aie_ep.npu.speed.phases import decode
from ort_aie_ep.npu.speed.plans import compose
from ort_aie_ep.npu.speed.steps import (
    GatherStep,
    Plans,
    ProjectionStep,
    SelectionStep,
    VectorStep,
)
from ort_aie_ep.npu.vocabulary.errors import DesignError
from ort_aie_ep.tools.synth import synth

MACHINE = Machine()
SMALL = {"hidden": 256, "ffn": 512, "layers": 3, "heads": 4, "kv_heads": 2, "vocab": 512}


@pytest.mark.parametrize("name", ["llama-3.2-1b", "qwen3-0.6b", "gemma3-1b"])
@pytest.mark.parametrize("tokens", [1, 5])
def test_a_named_shape_has_the_plan_of_its_compiled_model(
    name: str, tokens: int, tmp_path: Path
) -> None:
    window = 4 if SHAPES[name].window else None
    shape = replace(SHAPES[name], **SMALL, window=window, global_every=2)
    ort_aie_ep.compile(synth(shape, tmp_path / "model"), tmp_path / "compiled", last_logits=True)
    compiled = read_plans(tmp_path / "compiled")
    assert compose(compiled.plans, tokens, 9, MACHINE) == compose(
        steps_of(shape), tokens, 9, MACHINE
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
    assert prompt.host_steps == {"rows of an embedding": 1}


@pytest.mark.parametrize("name", MODELS)
def test_a_token_of_a_named_shape_is_one_submission(name: str) -> None:
    shape = shape_of(name)
    token = compose(steps_of(shape), 1, 1024, MACHINE)
    assert token.submissions == 1
    # As many as a chain has at most.
    assert token.timing.runs <= 24
    # The papers' programs have the same operators, some of them joined: the work is the same but
    # for the commands of those that stand apart here (gate and up, rotations, keys and values:
    # at most 5 a layer, each of less than 30 µs).
    papers = decode(shape, 1024, MACHINE)
    more = token.timing.seconds - token.timing.parts["dispatch"]
    more -= papers.seconds - papers.parts["dispatch"]
    assert 0 < more < 5 * shape.layers * 30e-6


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


def test_what_the_device_has_no_function_for_is_the_hosts() -> None:
    steps = (ProjectionStep("p", 256, 256, "x", "a"), VectorStep("s", "sigmoid", 256, "a", "y"))
    composed = compose((steps,), 1, 1, MACHINE)
    assert composed.host_steps == {"an activation that the overlay does not have": 1}


def test_more_tokens_than_the_context_are_refused() -> None:
    with pytest.raises(DesignError, match="a context of 4 has 1 to 4"):
        compose(two("", host_between=False), 5, 4, MACHINE)
