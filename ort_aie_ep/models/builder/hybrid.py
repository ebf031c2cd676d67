"""What hybrids have in place of attention, and beside it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir

from ort_aie_ep.models.builder.graph import MICROSOFT, Graph
from ort_aie_ep.models.shapes import Hybrid, Shape

__all__ = ["State", "biased_router", "linear_attention", "positions", "rotated", "short_conv",
           "states"]  # fmt: skip

State = tuple[ir.Value, ir.Value]
"""A layer's state before and after the tokens."""

Dims = list[int | str]

_FLOAT, _INT64 = ir.DataType.FLOAT, ir.DataType.INT64
# A router's score of experts that it did not choose.
_NOT_CHOSEN = -1e4


def states(shape: Shape, layer: int) -> list[State]:
    """The state of a layer's convolution, and that of its linear attention if it has one."""
    hybrid = _hybrid(shape)
    channels = 2 * hybrid.keys + hybrid.values if hybrid.value_heads else shape.hidden
    sizes = {"conv": [channels, hybrid.taps - 1]}
    if hybrid.value_heads:
        sizes["recurrent"] = [hybrid.value_heads, hybrid.width, hybrid.width]
    return [
        (
            ir.val(f"past.{layer}.{name}", _FLOAT, ["batch_size", *size]),
            ir.val(f"present.{layer}.{name}", _FLOAT, ["batch_size", *size]),
        )
        for name, size in sizes.items()
    ]


def positions(shape: Shape) -> list[ir.Value]:
    """The input for positions, of models that rotate by three of them."""
    if shape.hybrid is None or not shape.hybrid.sections:
        return []
    return [ir.val("position_ids", _INT64, [3, "batch_size", "sequence_length"])]


def _hybrid(shape: Shape) -> Hybrid:
    assert shape.hybrid is not None, shape.family
    return shape.hybrid


def _convolved(
    graph: Graph, path: str, x: ir.Value, channels: int, state: State, silu: bool
) -> ir.Value:
    """(batch, channels, sequence) after a convolution of each channel."""
    taps = _hybrid(graph.shape).taps
    name = f"{path[1:].replace('/', '.')}.{'conv1d' if silu else 'conv'}"
    weight = graph.floats(f"{name}.weight", (channels, 1, taps), 0.0, taps**-0.5)
    bias = graph.vector(f"{name}.bias", channels, 0.0, 0.0) if silu else None
    past, present = state
    output = ir.val(
        f"{path}/CausalConvWithState/output_0", _FLOAT, ["batch_size", channels, "sequence_length"]
    )
    graph.node(
        "CausalConvWithState",
        [x, weight, bias, past],
        [output, present],
        f"{path}/CausalConvWithState",
        MICROSOFT,
        ndim=1,
        activation="silu" if silu else "none",
        state_window=0,
    )
    return output


def short_conv(graph: Graph, layer: int, x: ir.Value, given: Sequence[State]) -> ir.Value:
    """LFM2's: out_proj(c · conv(b · x)), where in_proj gives b, c and x."""
    width, path = graph.shape.hidden, f"/model/layers.{layer}/conv"
    wide: Dims = ["batch_size", width, "sequence_length"]
    x = graph.linear(f"{path}/in_proj", x, 3 * width, width, 1.0)
    dims: Dims = ["batch_size", 3 * width, "sequence_length"]
    x = graph.op("Transpose", [x], f"{path}/Transpose_1", dims, perm=[0, 2, 1])
    sizes = graph.constant([width] * 3, _INT64)
    parts = [ir.val(f"{path}/Split/output_{i}", _FLOAT, wide) for i in range(3)]
    graph.node("Split", [x, sizes], parts, f"{path}/Split", axis=1)
    x = graph.op("Mul", [parts[0], parts[2]], f"{path}/Mul_1", wide)
    x = _convolved(graph, path, x, width, given[0], silu=False)
    x = graph.op("Mul", [parts[1], x], f"{path}/Mul_2", wide)
    x = graph.op("Transpose", [x], f"{path}/Transpose_2", graph.hidden(), perm=[0, 2, 1])
    return graph.linear(f"{path}/out_proj", x, width, width, graph.shape.branch_gain)


def linear_attention(graph: Graph, layer: int, x: ir.Value, given: Sequence[State]) -> ir.Value:
    """Qwen3.5's: a gated delta rule on what a convolution gives."""
    shape, hybrid, path = graph.shape, _hybrid(graph.shape), f"/model/layers.{layer}/linear_attn"
    base, heads, width = path[1:].replace("/", "."), hybrid.value_heads, hybrid.width
    sizes = [hybrid.keys, hybrid.keys, hybrid.values]
    qkv = graph.linear(f"{path}/qkv_proj", x, sum(sizes), shape.hidden, 1.0)
    z = graph.linear(f"{path}/z_proj", x, hybrid.values, shape.hidden, 1.0)
    b, a = (graph.linear(f"{path}/{each}_proj", x, heads, shape.hidden, 1.0) for each in "ba")

    dims: Dims = ["batch_size", sum(sizes), "sequence_length"]
    qkv = graph.op("Transpose", [qkv], f"{path}/qkv_proj/Transpose", dims, perm=[0, 2, 1])
    qkv = _convolved(graph, path, qkv, sum(sizes), given[0], silu=True)
    qkv = graph.op(
        "Transpose", [qkv], f"{path}/conv_out/Transpose", graph.hidden(sum(sizes)), perm=[0, 2, 1]
    )
    q, k, v = (
        ir.val(f"{path}/split_qkv/Split/output_{i}", _FLOAT, graph.hidden(size))
        for i, size in enumerate(sizes)
    )
    split = graph.constant(sizes, _INT64)
    graph.node("Split", [qkv, split], [q, k, v], f"{path}/split_qkv/Split", axis=-1)
    q, k = (_unit(graph, f"{path}/{name}_l2norm", each) for name, each in (("q", q), ("k", k)))
    scale = graph.constant(1 / math.sqrt(width), _FLOAT)
    q = graph.op("Mul", [q, scale], f"{path}/q_scaled/Mul", graph.hidden(hybrid.keys))

    gates = [
        ir.val(f"{path}/LinearAttentionGate/output_{i}", _FLOAT, graph.hidden(heads))
        for i in range(2)
    ]
    bias = graph.vector(f"{base}.dt_bias", heads, 0.0, 0.5)
    decay = graph.vector(f"{base}.neg_exp_A", heads, -0.5, 0.1)
    graph.node("LinearAttentionGate", [a, bias, decay, b], gates, f"{path}/LinearAttentionGate",
               MICROSOFT)  # fmt: skip
    past, present = given[1]
    output = ir.val(f"{path}/LinearAttention/output_0", _FLOAT, graph.hidden(hybrid.values))
    graph.node(
        "LinearAttention",
        [q, k, v, past, *gates],
        [output, present],
        f"{path}/LinearAttention",
        MICROSOFT,
        q_num_heads=hybrid.key_heads,
        kv_num_heads=heads,
        update_rule="gated_delta",
        scale=1.0,
        state_window=0,
    )
    norm = graph.vector(f"{base}.norm.weight", width, 1.0, 0.1)
    x = graph.op("GatedRMSNorm", [output, norm, z], f"{path}/GatedRMSNorm",
                 graph.hidden(hybrid.values), domain=MICROSOFT, epsilon=shape.epsilon)  # fmt: skip
    if hybrid.alternate:
        x = _alternating(graph, path, x)
    return graph.linear(f"{path}/out_proj", x, shape.hidden, hybrid.values, shape.branch_gain)


def _alternating(graph: Graph, path: str, x: ir.Value) -> ir.Value:
    """Value heads in the order that `Hybrid.alternate` says."""
    hybrid, dims = _hybrid(graph.shape), ["batch_size", "sequence_length"]
    shared, width = hybrid.value_heads // hybrid.key_heads, hybrid.width
    sizes = graph.constant([0, 0, hybrid.key_heads, shared, width], _INT64)
    x = graph.op("Reshape", [x, sizes], f"{path}/heads/Reshape",
                 [*dims, hybrid.key_heads, shared, width])  # fmt: skip
    x = graph.op("Transpose", [x], f"{path}/heads/Transpose",
                 [*dims, shared, hybrid.key_heads, width], perm=[0, 1, 3, 2, 4])  # fmt: skip
    sizes = graph.constant([0, 0, hybrid.values], _INT64)
    return graph.op("Reshape", [x, sizes], f"{path}/heads/Reshape_2", graph.hidden(hybrid.values))


def _unit(graph: Graph, path: str, x: ir.Value) -> ir.Value:
    """Each key head with length one."""
    hybrid = _hybrid(graph.shape)
    heads = [hybrid.key_heads, hybrid.width]
    dims: Dims = ["batch_size", "sequence_length", *heads]
    sizes = graph.constant([0, 0, *heads], _INT64)
    x = graph.op("Reshape", [x, sizes], f"{path}/flat/Reshape", dims)
    x = graph.op("LpNormalization", [x], f"{path}/LpNormalization", dims, axis=-1, p=2)
    sizes = graph.constant([0, 0, hybrid.keys], _INT64)
    return graph.op("Reshape", [x, sizes], f"{path}/unflat/Reshape", graph.hidden(hybrid.keys))


def rotated(graph: Graph, path: str, x: ir.Value, heads: int, position_ids: ir.Value) -> ir.Value:
    """Heads rotated by three positions; `path` is like …/attn/q_rotary."""
    shape = graph.shape
    return graph.op(
        "MRotaryEmbedding",
        [x, position_ids, *graph.rotary("", shape.rope_theta)],
        f"{path}/MRotaryEmbedding",
        graph.hidden(heads * shape.head_dim),
        domain=MICROSOFT,
        interleaved=0,
        rotary_embedding_dim=shape.rotary or shape.head_dim,
        num_heads=heads,
        mrope_section=list(_hybrid(shape).sections),
        mrope_layout=1,
        is_packed_batching=0,
    )


def biased_router(graph: Graph, layer: int, x: ir.Value, scores: ir.Value) -> State:
    """LFM2's choice of experts, as scores for experts whose weights are a softmax over the chosen
    ones; and what their sum is to be multiplied by.

    A bias changes which experts are chosen, and not their weights.
    """
    shape, path = graph.shape, f"/model/layers.{layer}/moe/router"
    count, chosen = shape.experts, shape.experts_per_token
    rows = "batch_size * sequence_length"
    all_: Dims = [rows, count]
    best: Dims = [rows, chosen]
    single: Dims = [rows, 1]

    def number(value: float) -> ir.Value:
        return graph.constant(value, _FLOAT)

    def numbers(*values: int) -> ir.Value:
        return graph.constant(list(values), _INT64)

    odds = graph.op("Neg", [scores], f"{path}/sigmoid/Neg", all_)
    odds = graph.op("Exp", [odds], f"{path}/sigmoid/Exp", all_)
    odds = graph.op("Add", [odds, number(1.0)], f"{path}/sigmoid/Add", all_)
    odds = graph.op("Reciprocal", [odds], f"{path}/sigmoid/Reciprocal", all_)
    bias = graph.vector(f"model.layers.{layer}.moe.expert_bias", count, 0.0, 0.1)
    biased = graph.op("Add", [odds, bias], f"{path}/Add", all_)
    top = [
        ir.val(f"{path}/TopK/output_{i}", dtype, best) for i, dtype in enumerate((_FLOAT, _INT64))
    ]
    graph.node("TopK", [biased, numbers(chosen)], top, f"{path}/TopK", axis=-1, largest=1)
    own = graph.op("GatherElements", [odds, top[1]], f"{path}/GatherElements", best, axis=1)

    total = graph.op("ReduceSum", [own, numbers(-1)], f"{path}/scale/ReduceSum", single, keepdims=1)
    more = graph.op("Add", [total, number(1e-6)], f"{path}/scale/Add", single)
    scale = graph.op("Div", [total, more], f"{path}/scale/Div", single)
    dims = graph.op("Shape", [x], f"{path}/scale/Shape", [3], _INT64)
    dims = graph.op("Slice", [dims, numbers(0), numbers(-1)], f"{path}/scale/Slice", [2], _INT64)
    dims = graph.op("Concat", [dims, numbers(1)], f"{path}/scale/Concat", [3], _INT64, axis=0)
    scale = graph.op("Reshape", [scale, dims], f"{path}/scale/Reshape", graph.hidden(1))

    own = graph.op("Clip", [own, number(1e-30), None], f"{path}/Clip", best)
    own = graph.op("Log", [own], f"{path}/Log", best)
    dims = graph.op("Shape", [odds], f"{path}/Shape", [2], _INT64)
    others = ir.val(f"{path}/ConstantOfShape/output_0", _FLOAT, all_)
    value = ir.tensor([_NOT_CHOSEN], dtype=_FLOAT)
    graph.node("ConstantOfShape", [dims], [others], f"{path}/ConstantOfShape", value=value)
    scores = graph.op("ScatterElements", [others, top[1], own], f"{path}/ScatterElements", all_,
                      axis=1)  # fmt: skip
    return scores, scale
