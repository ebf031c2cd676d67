"""The models that the performance model knows, and the sizes that it counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ort_aie_ep.formats.q4nx import SHIPPING, BlockForm
from ort_aie_ep.models.shapes import SHAPES, Shape
from ort_aie_ep.npu.speed.steps import (
    AttentionStep,
    GatherStep,
    Plans,
    PlanStep,
    ProjectionStep,
    SelectionStep,
    VectorStep,
)
from ort_aie_ep.npu.vocabulary.errors import DesignError

#: Names in `SHAPES` with a graph that the designs cover. Windows are those of the published
#: config.json (Gemma3-1B: 512); paper 2 writes 1024 for both sizes.
MODELS = (
    "llama-3.2-1b", "llama-3.2-3b", "llama-3.1-8b",
    "qwen3-0.6b", "qwen3-1.7b", "qwen3-4b", "qwen3-8b",
    "gemma3-1b", "gemma3-4b",
)  # fmt: skip


def shape_of(model: str) -> Shape:
    """Sizes of `model`. Raises DesignError, which lists the known models."""
    if model not in MODELS:
        raise DesignError(f"unknown model {model!r}; known: {', '.join(MODELS)}")
    return SHAPES[model]


def steps_of(shape: Shape, form: BlockForm = SHIPPING) -> Plans:
    """The plan that `ort-aie compile --last-logits` makes of the onnxruntime-genai builder's model,
    with weights in a form.

    Queries, keys and values are one projection. Gemma 3 also normalises the outputs of attention
    and MLP.
    """
    gemma = shape.family == "gemma3_text"
    steps: list[PlanStep] = [GatherStep("embedding", "ids", "x0")]
    stream, add = "x0", ""  # the residual, and the value still to be added to it
    if gemma:
        steps.append(
            VectorStep("scale", "multiply", shape.hidden, "x0", "scaled", b="root", scalar=True)
        )
        stream = "scaled"
    for layer in range(shape.layers):
        own = _layer(shape, layer, stream, add, form)
        steps += own.steps
        stream, add = own.stream, own.add
    steps += [
        SelectionStep("last_sum", stream, "last_sum"),
        SelectionStep("last_down", add, "last_down"),
        ProjectionStep(
            "lm_head", shape.vocab, shape.hidden, "last_sum", "logits", norm="norm",
            form=form, skip="last_down", one_row=True,
        ),
    ]  # fmt: skip
    return (tuple(steps),)


@dataclass(frozen=True)
class _Layer:
    steps: tuple[PlanStep, ...]
    stream: str
    add: str


def _layer(shape: Shape, layer: int, stream: str, add: str, form: BlockForm) -> _Layer:
    """A layer; `stream` + `add` is its input."""
    hidden, behind = shape.hidden, shape.family == "gemma3_text"
    normed = shape.family in ("qwen3", "gemma3_text")
    name = f"layer{layer}/"
    first_sum = name + "in" if add else ""

    def projection(what: str, n: int, k: int, a: str, **more: Any) -> ProjectionStep:
        return ProjectionStep(name + what, n, k, a, name + what, form, **more)

    steps: list[PlanStep] = [
        projection("qkv", shape.queries + 2 * shape.keys, hidden, stream, norm=name + "norm",
                   skip=add, sum=first_sum)
    ]  # fmt: skip
    window = (shape.window or 0) if shape.is_local(layer) else 0
    steps += [
        AttentionStep(
            name + "attention", shape.heads, shape.kv_heads, shape.head_dim, name + "qkv", "", "",
            (name + "past_key", name + "past_value"), name + "context",
            (name + "present_key", name + "present_value"), window=window,
            rotary=shape.rotary or shape.head_dim, query_norm=normed, key_norm=normed,
        ),
        projection("o", hidden, shape.queries, name + "context"),
    ]  # fmt: skip
    if add:
        stream = first_sum
    attended = name + "o"
    if behind:
        steps.append(VectorStep(name + "o_norm", "norm", hidden, attended, name + "o_norm",
                                weight=name + "o_weight"))  # fmt: skip
        attended = name + "o_norm"
    middle = name + "middle"
    steps += [
        projection("gated", shape.ffn, hidden, stream, gated=True, gelu=behind,
                   norm=name + "mlp_norm", skip=attended, sum=middle),
        projection("down", hidden, shape.ffn, name + "gated"),
    ]  # fmt: skip
    out = name + "down"
    if behind:
        steps.append(VectorStep(name + "down_norm", "norm", hidden, out, name + "down_norm",
                                weight=name + "down_weight"))  # fmt: skip
        out = name + "down_norm"
    return _Layer(tuple(steps), middle, out)
