"""A token whose layers run on one overlay: its plan as invocations of `layer` and `head`.

It follows src/targets/npu/layers.cc: a plan is such a decoder if all that it does between the
embedding and the logits are layers that the overlay takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ort_aie_ep.npu.speed import layer as closed
from ort_aie_ep.npu.speed import mlir_air
from ort_aie_ep.npu.speed.invocations import (
    ACTIVATIONS,
    BUFFER_BYTES,
    CACHES,
    LEAST_CAPACITY,
    ONE,
    WEIGHTS,
    Invocation,
)
from ort_aie_ep.npu.speed.kernels import OURS, PUBLISHED
from ort_aie_ep.npu.speed.layer import Layer
from ort_aie_ep.npu.speed.models import MODELS, shape_of, steps_of
from ort_aie_ep.npu.speed.operators import Machine
from ort_aie_ep.npu.speed.papers import CONTEXTS
from ort_aie_ep.npu.speed.plans import runs_of
from ort_aie_ep.npu.speed.steps import (
    AttentionStep,
    CastStep,
    GatherStep,
    Plans,
    PlanStep,
    ProjectionStep,
    SelectionStep,
    VectorStep,
)
from ort_aie_ep.npu.speed.tally import Tally, Timing
from ort_aie_ep.npu.vocabulary.eras import MLIR_AIR
from ort_aie_ep.npu.vocabulary.errors import DesignError

OVERLAY = "fused_layer"
_VECTORS = ("input_norm", "bias", "q_norm", "k_norm", "attention_norm", "ffn_norm", "output_norm")
_MATRICES = ("w_qkv", "w_o", "w_gate", "w_up", "w_down")


@dataclass(frozen=True)
class Decoder:
    """The layers of a token, and the matrix of its logits."""

    layers: tuple[Layer, ...]
    vocabulary: int

    @property
    def hidden(self) -> int:
        """Width of the residual stream."""
        return self.layers[0].hidden


def decoder_of(plans: Plans) -> Decoder:
    """The decoder of a plan. Raises DesignError for a plan that is not layers and a vocabulary."""
    steps = [
        step
        for plan in plans
        for step in plan
        if not isinstance(step, GatherStep | SelectionStep | CastStep)
    ]
    if steps and isinstance(steps[0], VectorStep):  # Gemma scales the embedding
        del steps[0]
    layers = []
    at = 0
    while at < len(steps) - 1:
        found, at = _layer(steps, at)
        layers.append(found)
    if not layers or not isinstance(last := steps[-1], ProjectionStep) or not last.norm:
        raise DesignError("the plan does not end with a norm and the vocabulary")
    return Decoder(tuple(layers), last.n)


def _layer(steps: Sequence[PlanStep], at: int) -> tuple[Layer, int]:
    """The layer that begins with step `at`, and the step behind it."""

    def take(kind: type, what: str) -> PlanStep:
        nonlocal at
        if at >= len(steps) or not isinstance(steps[at], kind):
            raise DesignError(f"step {at} of the plan is not {what}")
        at += 1
        return steps[at - 1]

    def norms() -> bool:
        nonlocal at
        there = at < len(steps) and isinstance(steps[at], VectorStep)
        at += there
        return there

    qkv = take(ProjectionStep, "the projection of queries, keys and values")
    attention = take(AttentionStep, "attention")
    take(ProjectionStep, "the projection of attention's output")
    post = norms()
    gated = take(ProjectionStep, "gate and up")
    take(ProjectionStep, "down")
    if norms() != post:
        raise DesignError("one of a layer's outputs has a norm, the other has not")
    assert isinstance(qkv, ProjectionStep)
    assert isinstance(attention, AttentionStep)
    assert isinstance(gated, ProjectionStep)
    if not gated.gated or attention.key:
        raise DesignError(f"{gated.name}: gate and up, or queries, keys and values, are apart")
    sizes = Layer(
        qkv.k, attention.heads, attention.kv_heads, attention.head_dim, attention.rotary, gated.n,
        attention.window, gated.gelu, attention.query_norm, post, qkv.bias,
    )  # fmt: skip
    return sizes, at


def token(decoder: Decoder, context: int, machine: Machine) -> Timing:
    """A token with `context` keys, its own included, in as few runs as the streams allow.

    Raises DesignError for sizes that the overlay does not take.
    """
    tally = Tally(machine)
    kernels = machine.kernels
    for layer in decoder.layers:
        tally.add("projections", closed.projections(layer, kernels))
        tally.add("attention", closed.attention(layer, context, kernels))
        tally.add("vector", closed.between(layer))
    tally.add("lm_head", closed.head(decoder.vocabulary, decoder.hidden, kernels))
    return tally.timing(runs_of(OVERLAY, invocations(decoder, context)), 0)


@dataclass(frozen=True)
class BesideAmd:
    """A token of this project beside AMD's measured one, in tokens per second.

    `predicted` has the cycles of this project's kernels, `with_published` those of published ones.
    `with_their_attention` has mlir-air's measured cycles of attention instead. All use the era of
    the measurement.
    """

    model: str
    context: int
    measured: float
    predicted: float
    with_published: float
    with_their_attention: float


#: The longest context of the comparison: beyond it, mlir-air's own offsets wrap.
LONGEST = 32768


def beside_amd() -> Iterator[BesideAmd]:
    """Every cell of mlir-air's sweep up to 32k for a model that this project has a plan of."""
    machines = [
        replace(Machine.of(MLIR_AIR), kernels=kernels)
        for kernels in (OURS, PUBLISHED, mlir_air.KERNELS)
    ]
    for model in MODELS:
        decoder = decoder_of(steps_of(shape_of(model)))
        for context, measured in zip(CONTEXTS, mlir_air.MEASURED.get(model, ()), strict=False):
            if context <= LONGEST:
                speeds = (1 / token(decoder, context, machine).seconds for machine in machines)
                yield BesideAmd(model, context, measured, *speeds)


def invocations(decoder: Decoder, context: int) -> list[Invocation]:
    """The sequences of a token; weights follow each other in buffers of 4 GiB."""
    capacity = max(LEAST_CAPACITY, 1 << (context - 1).bit_length())
    made, placed = [], 0
    for layer in decoder.layers:
        weights = layer.hidden * (2 * layer.queries + 2 * layer.keys + 3 * layer.ffn) * 5 // 8
        buffer = WEIGHTS + (placed + weights) // BUFFER_BYTES
        placed += weights
        parameters = {
            "hidden": layer.hidden, "heads": layer.heads, "kv_heads": layer.kv_heads,
            "head_dim": layer.head_dim, "rotary_dim": layer.rotary, "interleaved": 0,
            "ffn": layer.ffn, "gelu": int(layer.gelu), "head_norm": int(layer.head_norm),
            "post_norm": int(layer.post_norm), "bias": int(layer.bias), "context": context,
            "capacity": capacity, "window": layer.window, "scale_bits": ONE, "softcap_bits": 0,
            "eps_bits": ONE,
        }  # fmt: skip
        arguments = {
            "x": ACTIVATIONS, "y": ACTIVATIONS, "table": ACTIVATIONS, "k": CACHES, "v": CACHES,
            **dict.fromkeys(_VECTORS, ACTIVATIONS), **dict.fromkeys(_MATRICES, buffer),
        }  # fmt: skip
        made.append(Invocation("layer", parameters, arguments, "projections", (), OVERLAY))
    head = {"N": decoder.vocabulary, "hidden": decoder.hidden, "eps_bits": ONE}
    places = {"x": ACTIVATIONS, "norm": ACTIVATIONS, "w": WEIGHTS, "y": ACTIVATIONS}
    return [*made, Invocation("head", head, places, "lm_head", (), OVERLAY)]
