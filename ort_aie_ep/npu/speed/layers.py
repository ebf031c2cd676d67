"""A token's decoder layers on the overlay `fused_layer`: an invocation for each layer, and one for
the vocabulary.

It follows src/targets/npu/layers.cc: which plans have such layers, and why others have not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass

from ort_aie_ep import _native
from ort_aie_ep.npu.speed.invocations import (
    ACTIVATIONS,
    CACHES,
    ONE,
    Invocation,
    Weights,
    copy_capacity,
    device_rows,
)
from ort_aie_ep.npu.speed.kernels import Kernels
from ort_aie_ep.npu.speed.layer import Layer, attention, between, head, projections
from ort_aie_ep.npu.speed.steps import (
    OVERLAYS,
    AttentionStep,
    PlanStep,
    ProjectionStep,
    VectorStep,
)

OVERLAY = "fused_layer"
#: The message of the first requirement of a sequence that parameters do not meet, or "".
Unmet = Callable[[str, Mapping[str, int]], str]


@dataclass(frozen=True)
class DecoderLayer:
    """The steps of a layer; both norms of outputs, or none."""

    qkv: ProjectionStep
    attention: AttentionStep
    output: ProjectionStep
    gate: ProjectionStep
    down: ProjectionStep
    output_norms: tuple[VectorStep, ...]

    @property
    def post_norm(self) -> bool:
        """Whether outputs have norms."""
        return bool(self.output_norms)

    @property
    def sizes(self) -> Layer:
        """Those of the closed form."""
        attention = self.attention
        return Layer(
            self.qkv.k, attention.heads, attention.kv_heads, attention.head_dim, attention.rotary,
            self.gate.n, attention.window, self.gate.gelu, attention.query_norm, self.post_norm,
            self.qkv.bias,
        )  # fmt: skip

    def parameters(self, context: int, capacity: int) -> dict[str, int]:
        """Those of the sequence `layer`."""
        attention = self.attention
        return {
            "hidden": self.qkv.k, "heads": attention.heads, "kv_heads": attention.kv_heads,
            "head_dim": attention.head_dim, "rotary_dim": attention.rotary, "interleaved": 0,
            "ffn": self.gate.n, "gelu": int(self.gate.gelu),
            "head_norm": int(attention.query_norm), "post_norm": int(self.post_norm),
            "bias": int(self.qkv.bias), "context": context, "capacity": capacity,
            "window": attention.window, "scale_bits": ONE, "softcap_bits": 0, "eps_bits": ONE,
        }  # fmt: skip


@dataclass(frozen=True)
class Decoder:
    """Steps [first, end) of a plan: all of its layers, then the vocabulary."""

    first: int
    end: int
    layers: tuple[DecoderLayer, ...]
    vocabulary: ProjectionStep

    def invocations(self, weights: Weights, context: int, kernels: Kernels) -> list[Invocation]:
        """Those of a token; `context` counts the cached tokens and the new one."""
        capacity = copy_capacity(context)
        of_layers = [_layer(one, weights, context, capacity, kernels) for one in self.layers]
        return [*of_layers, _head(self.vocabulary, weights, kernels)]


def find_decoder(
    steps: Sequence[PlanStep], unmet: Unmet, overlays: Set[str] = OVERLAYS
) -> tuple[Decoder | None, str]:  # fmt: skip
    """The decoder of a token's plan that the overlay can run, or why it cannot.

    Both are empty for a plan without attention.
    """
    if not any(isinstance(step, AttentionStep) for step in steps):
        return None, ""
    if len(steps) == 1:
        return None, _native.why_not_npu_layer(plan=False)
    decoder = _Reader(steps).decoder()
    if decoder is None:
        return None, _native.why_not_npu_layer(standard=False)
    # Layers that fail need `decode`, as steps between projections do.
    if reason := _native.why_not_npu_vector(rows=1, k=1, overlays=set(overlays)):
        return None, reason
    for step in steps[decoder.first : decoder.end]:
        if reason := step.why_not(1):
            return None, reason
    for layer in decoder.layers:
        if reason := _why_not(layer) or unmet("layer", layer.parameters(1, 4096)):
            return None, reason
    if decoder.vocabulary.bias:
        return None, _native.why_not_npu_layer(other_bias=True)
    if reason := unmet("head", _head_parameters(decoder.vocabulary)):
        return None, reason
    if _reads_inner(steps, decoder):
        return None, _native.why_not_npu_layer(inner_value=True)
    return decoder, ""


def _reads_inner(steps: Sequence[PlanStep], decoder: Decoder) -> bool:
    """Whether anything outside of the decoder reads a value that is only in the array."""
    inner: set[str] = set()
    outside = {value for step in steps[decoder.end :] for value in step.reads}
    for step in steps[decoder.first : decoder.end]:
        if isinstance(step, AttentionStep):
            inner.add(step.output)
        else:
            inner.update(step.writes)
        if isinstance(step, AttentionStep | ProjectionStep | VectorStep):
            outside.update(step.leaves)
    in_memory = {layer.qkv.sum for layer in decoder.layers} | set(decoder.vocabulary.writes)
    return not (inner - in_memory - {""}).isdisjoint(outside)


def _why_not(layer: DecoderLayer) -> str:
    attention = layer.attention
    epsilons = {layer.qkv.epsilon, layer.gate.epsilon}
    epsilons.update(norm.epsilon for norm in layer.output_norms)
    if attention.query_norm or attention.key_norm:
        epsilons.add(attention.epsilon)
    return _native.why_not_npu_layer(
        other_bias=layer.output.bias or layer.down.bias,
        quantised_cache=attention.quantised,
        q_norm=attention.query_norm, k_norm=attention.key_norm, v_norm=attention.value_norm,
        norm_after_rotary=attention.norm_after_rotary,
        one_epsilon=len(epsilons) == 1,
    )  # fmt: skip


class _Reader:
    """Reads the steps of a plan in order."""

    def __init__(self, steps: Sequence[PlanStep]) -> None:
        self._steps = steps
        self._next = self._first_work(0)
        self._sum: set[str] = set()  # the terms of what the layers so far leave

    def decoder(self) -> Decoder | None:
        """None if the plan has anything else between or beside its projections and attentions."""
        first = self._next
        layers: list[DecoderLayer] = []
        while not layers or isinstance(self._peek(1), AttentionStep):
            layer = self._layer(first=not layers)
            if layer is None:
                return None
            layers.append(layer)
        vocabulary = self._peek()
        if not isinstance(vocabulary, ProjectionStep) or vocabulary.gated or not vocabulary.norm:
            return None
        if {vocabulary.a, vocabulary.skip} != self._sum:
            return None
        end = self._next + 1
        if self._first_work(end) < len(self._steps):
            return None
        return Decoder(first, end, tuple(layers), vocabulary)

    def _first_work(self, first: int) -> int:
        work = ProjectionStep | AttentionStep
        found = (i for i in range(first, len(self._steps)) if isinstance(self._steps[i], work))
        return next(found, len(self._steps))

    def _peek(self, ahead: int = 0) -> PlanStep | None:
        at = self._next + ahead
        return self._steps[at] if at < len(self._steps) else None

    def _take(self) -> PlanStep | None:
        step = self._peek()
        self._next += 1
        return step

    def _norm(self, row: str) -> tuple[tuple[VectorStep, ...], str]:
        """Takes a norm of a row, if it is next; also what then takes the place of the row."""
        step = self._peek()
        if not isinstance(step, VectorStep) or step.kind != "norm":
            return (), row
        self._next += 1
        return (step,), step.y if (step.a, step.skip, step.sum) == (row, "", "") else ""

    def _layer(self, *, first: bool) -> DecoderLayer | None:
        qkv, attention, output = self._take(), self._take(), self._take()
        if not (isinstance(qkv, ProjectionStep) and qkv.norm and not qkv.gated):
            return None
        if not isinstance(attention, AttentionStep) or not isinstance(output, ProjectionStep):
            return None
        width = (attention.heads + 2 * attention.kv_heads) * attention.head_dim
        packed = attention.query == qkv.y and not attention.key and qkv.n == width
        if not packed or not _plain(output, attention.output):
            return None
        if not first and {qkv.a, qkv.skip} != self._sum:
            return None
        attention_norm, attended = self._norm(output.y)
        gate, down = self._take(), self._take()
        if not isinstance(gate, ProjectionStep) or not isinstance(down, ProjectionStep):
            return None
        x = qkv.sum if qkv.skip else qkv.a
        if not (gate.norm and gate.gated and gate.sum) or {gate.a, gate.skip} != {x, attended}:
            return None
        if not _plain(down, gate.y):
            return None
        output_norm, written = self._norm(down.y)
        if len(attention_norm) != len(output_norm):
            return None
        self._sum = {gate.sum, written}
        return DecoderLayer(qkv, attention, output, gate, down, attention_norm + output_norm)


def _plain(step: ProjectionStep, a: str) -> bool:
    return (step.a, step.norm, step.skip, step.gated) == (a, "", "", False)


def _layer(
    layer: DecoderLayer, weights: Weights, context: int, capacity: int, kernels: Kernels
) -> Invocation:
    rows = "x input_norm bias q_norm k_norm table attention_norm ffn_norm output_norm y"
    matrices = {
        "w_qkv": (layer.qkv, 0), "w_o": (layer.output, 0), "w_gate": (layer.gate, 0),
        "w_up": (layer.gate, 1), "w_down": (layer.down, 0),
    }  # fmt: skip
    arguments = {
        **dict.fromkeys(rows.split(), ACTIVATIONS), "k": CACHES, "v": CACHES,
        **{name: weights.buffer(step, i) for name, (step, i) in matrices.items()},
    }  # fmt: skip
    sizes = layer.sizes
    cost = (
        *projections(sizes, kernels, weights.form), *attention(sizes, context, kernels),
        *between(sizes),
    )  # fmt: skip
    parameters = layer.parameters(context, capacity)
    return Invocation("layer", parameters, arguments, "layers", cost, OVERLAY)


def _head_parameters(step: ProjectionStep) -> dict[str, int]:
    return {"N": device_rows(step.n), "hidden": step.k, "eps_bits": ONE}


def _head(step: ProjectionStep, weights: Weights, kernels: Kernels) -> Invocation:
    arguments = dict.fromkeys(("x", "norm", "y"), ACTIVATIONS) | {"w": weights.buffer(step, 0)}
    cost = head(device_rows(step.n), step.k, kernels, weights.form)
    return Invocation("head", _head_parameters(step), arguments, "lm_head", cost, OVERLAY)
