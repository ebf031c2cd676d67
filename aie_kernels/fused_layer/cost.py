"""A decoder layer on one overlay (`fused_layer`), and the vocabulary after the last one.

The closed form follows the ring of the design: projections, whose cores, channels or memory are the
limit, and between them what waits for a whole vector. Weights of the next projection are on their
way before the previous one ends, so only the first projection waits for commands.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil

from ort_aie_ep.aie_kernels.cycles import of_call
from ort_aie_ep.aie_kernels.flow_kv import kernels as flow_kv
from ort_aie_ep.aie_kernels.flow_kv.cost import FLOW_KV_CHUNK, PAIRS, chunk_cycles, padded_head
from ort_aie_ep.aie_kernels.fused_dqp import cost as fused_dqp
from ort_aie_ep.aie_kernels.fused_dqp.kernels import DQP_ZERO
from ort_aie_ep.aie_kernels.fused_layer import kernels as fused_layer
from ort_aie_ep.aie_kernels.fused_layer.sequences import query_parts
from ort_aie_ep.aie_kernels.invocation import Costs
from ort_aie_ep.aie_kernels.machine import BF16, SHORT_RUN, TASK, Step
from ort_aie_ep.formats.q4nx import BLOCK_COLS, SHIPPING, BlockForm
from ort_aie_ep.npu.terms import costs
from ort_aie_ep.npu.terms.sequence import evaluate

CORES, CHANNELS = 16, 8  # of projections
ROUND = fused_layer.ROUND
OBJECT = fused_layer.OBJECT
# Parameters and start of each core, and of a pair.
HUB_WORDS, PROJECTION_WORDS, ROPE_WORDS, GATE_WORDS, PAIR_WORDS = 14, 4, 16, 13, 21
OUTPUT = 64  # elements of attention's output that a value core sends at a time
_LOAD_X = of_call(fused_layer.LAYER_LOAD_X)
_COPY = of_call(fused_layer.LAYER_COPY)
_PLACE = of_call(fused_layer.LAYER_PLACE, 0, ROUND)
_NORM = of_call(fused_layer.LAYER_NORM)
_ROUND_END = of_call(DQP_ZERO) + of_call(fused_layer.LAYER_FINISH)


@dataclass(frozen=True)
class Layer:
    """The sizes of a decoder layer: `rotary` dimensions of a head are rotated; no `window` is 0.

    `head_norm`: heads of queries and keys have norms; `post_norm`: so have both outputs before
    their residual sums.
    """

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    rotary: int
    ffn: int
    window: int = 0
    gelu: bool = False
    head_norm: bool = False
    post_norm: bool = False
    bias: bool = False

    @property
    def queries(self) -> int:
        """Width of all query heads together."""
        return self.heads * self.head_dim

    @property
    def keys(self) -> int:
        """Width of all key heads (or value heads) together."""
        return self.kv_heads * self.head_dim


def projections(layer: Layer, form: BlockForm = SHIPPING) -> tuple[Step, ...]:
    """The five projections of a layer, with weights in a form of Q4NX."""
    hidden, ffn = layer.hidden, layer.ffn
    # Before the new keys are awaited: operands of rope, weights of output and gate, parameters.
    words = ROPE_WORDS + PAIRS * PAIR_WORDS + GATE_WORDS
    commands = 19 * TASK + words * costs.RTP_WORD.value
    first = _projection(layer.queries + 2 * layer.keys, hidden, form)
    return (
        replace(first, commands=commands),
        _projection(hidden, layer.queries, form),
        _projection(ffn, hidden, form),
        # The activations of down arrive in the cores between the rounds of up.
        _projection(ffn, hidden, form, arriving=ffn // OBJECT),
        _projection(hidden, ffn, form),
    )


def between(layer: Layer) -> tuple[Step, ...]:
    """What waits for a whole vector, or for commands: the start, norms, sums, forwarding."""
    pieces = layer.hidden // OBJECT
    started = 10 * TASK + (HUB_WORDS + CORES * PROJECTION_WORDS) * costs.RTP_WORD.value
    scale = of_call(fused_layer.LAYER_SCALE, 0, layer.hidden)
    # Gemma 3 normalises what is added.
    post = layer.post_norm * (scale + pieces * _NORM)
    added = _PLACE + post + of_call(fused_layer.LAYER_ADD, layer.hidden)
    # From the gate core through the hub into the projection cores: the last are the slowest.
    forwarded = layer.queries // OBJECT * _LOAD_X + 2 * _COPY
    return (
        Step(control=started + pieces * _LOAD_X),
        Step(control=forwarded),
        Step(control=added + scale + _NORM + pieces * _LOAD_X),
        Step(control=added + pieces * _COPY + costs.TCT_WAIT.value),
    )


def head(vocabulary: int, hidden: int, form: BlockForm = SHIPPING) -> tuple[Step, ...]:
    """The final norm and the logits of a token."""
    words = HUB_WORDS + CORES * PROJECTION_WORDS + ROPE_WORDS + GATE_WORDS
    started = 11 * TASK + words * costs.RTP_WORD.value
    return (
        Step(control=started + hidden // OBJECT * _LOAD_X + costs.TCT_WAIT.value),
        _projection(vocabulary, hidden, form),
    )


def _projection(outputs: int, inputs: int, form: BlockForm, arriving: int = 0) -> Step:
    """Rounds of 512 outputs; each core has 32 of them, and a channel two cores."""
    rounds, depth = ceil(outputs / ROUND), ceil(inputs / BLOCK_COLS)
    blocks = rounds * depth
    return Step(
        shim=blocks * CORES / CHANNELS * form.block_bytes,
        kernels=blocks * fused_dqp.BLOCK + rounds * _ROUND_END + arriving * _LOAD_X,
        read=blocks * CORES * form.block_bytes,
    )


def attention(layer: Layer, context: int) -> tuple[Step, ...]:
    """Attention to `context` keys, the token's own included.

    New keys and values are rotated and go through memory; then four pairs sweep over the keys.
    """
    head_dim = padded_head(layer.head_dim)
    units = layer.kv_heads * evaluate(query_parts(layer.heads, layer.kv_heads), {})
    group = layer.heads // units
    sweeps = ceil(units / PAIRS)
    per_chunk = FLOW_KV_CHUNK // (BF16 * head_dim)
    first = max(0, context - layer.window) if layer.window else 0
    chunks = ceil(context / per_chunk) - first // per_chunk
    chunk = chunk_cycles(group, head_dim)
    rotate = of_call(fused_layer.LAYER_ROTATE, 0, int(layer.head_norm), head_dim, layer.rotary)
    rounds = ceil(layer.queries / ROUND)
    new = rounds * _PLACE + 2 * ceil(layer.keys / OBJECT) * rotate
    outputs = group * head_dim // OUTPUT
    output = of_call(flow_kv.FLOW_KV_OUTPUT, 0, head_dim)
    ends = of_call(flow_kv.FLOW_KV_VALUES_BEGIN) + outputs * output
    return (
        Step(
            control=new + costs.TCT_WAIT.value + 2 * PAIRS * TASK + chunk,
            idle=2,
            write=2 * layer.keys * SHORT_RUN / 8,
        ),
        Step(
            shim=sweeps * chunks * FLOW_KV_CHUNK,
            kernels=sweeps * (chunks * chunk + ends),
            commands=2 * PAIRS * sweeps * TASK,
            # Each pair reads the keys of its own unit, those that repeat the last one too.
            read=2 * PAIRS * sweeps * chunks * FLOW_KV_CHUNK,
        ),
    )


def _layer(p: Mapping[str, int], form: BlockForm) -> tuple[Step, ...]:
    layer = Layer(
        p["hidden"], p["heads"], p["kv_heads"], p["head_dim"], p["rotary_dim"], p["ffn"],
        p["window"], bool(p["gelu"]), bool(p["head_norm"]), bool(p["post_norm"]), bool(p["bias"]),
    )  # fmt: skip
    return (*projections(layer, form), *attention(layer, p["context"]), *between(layer))


SEQUENCES: Costs = {
    "layer": ("layers", _layer),
    "head": ("lm_head", lambda p, form: head(p["N"], p["hidden"], form)),
}
