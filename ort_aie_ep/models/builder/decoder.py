"""The decoder of each family: embedding, layers, lm_head."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ort_aie_ep.formats.file_forms import FileForm
from ort_aie_ep.models.builder import hybrid
from ort_aie_ep.models.builder.graph import (
    EMBEDDING,
    MICROSOFT,
    Attributes,
    Codings,
    Graph,
)
from ort_aie_ep.models.builder.hybrid import State
from ort_aie_ep.models.builder.weights import BLOCK, INT4, Weight
from ort_aie_ep.models.shapes import Shape

__all__ = ["build"]


@dataclass(frozen=True)
class _Lengths:
    """What attention needs to know about the tokens: GroupQueryAttention about the attention mask,
    and some hybrids their positions."""

    seqlens_k: ir.Value
    total: ir.Value
    positions: list[ir.Value]


def _mask(graph: Graph, attention_mask: ir.Value, positions: list[ir.Value]) -> _Lengths:
    path = "/model/attn_mask_reformat/attn_mask_subgraph"
    int64, int32 = ir.DataType.INT64, ir.DataType.INT32
    one = graph.constant([1], int64)
    ones = graph.op(
        "ReduceSum", [attention_mask, one], f"{path}/ReduceSum", ["batch_size"], int64, keepdims=0
    )
    less = graph.op("Sub", [ones, one], f"{path}/Sub", ["batch_size"], int64)
    seqlens = graph.op("Cast", [less], f"{path}/Sub/Cast", ["batch_size"], int32, to=int32.value)
    dims = graph.op("Shape", [attention_mask], f"{path}/Shape", [2], int64)
    total = graph.op(
        "Gather", [dims, graph.constant(1, int64)], f"{path}/Gather", [], int64, axis=0
    )
    total = graph.op("Cast", [total], f"{path}/Gather/Cast", None, int32, to=int32.value)
    return _Lengths(seqlens, total, positions)


def _embedding(graph: Graph, input_ids: ir.Value) -> ir.Value:
    """Tied: the rows of the lm_head. Untied: a table of floats or of blocks."""
    shape = graph.shape
    path = "/model/embed_tokens"
    # Small compared to what the layers add, or a tied model would only repeat its input.
    gain = 1.5
    stored = graph.stored("lm_head") if shape.tied else graph.table
    if isinstance(stored, FileForm):
        stem = "lm_head.MatMul.weight" if shape.tied else EMBEDDING
        blocks = graph.blocks(stem, stored, shape.vocab, shape.hidden)
        given: Attributes = {"K": shape.hidden, "N": shape.vocab, "dtype": ir.DataType.FLOAT.value}
        given |= stored.attributes()
        x = graph.aie("Q4NXGather", [blocks, input_ids], f"{path}/Gather", given)
        return _scaled(graph, x)
    if isinstance(stored, ir.DataType):
        deviation = gain / math.sqrt(shape.hidden)
        table = graph.matrix(EMBEDDING, shape.vocab, shape.hidden, deviation, stored)
        x = graph.op("Gather", [table, input_ids], f"{path}/Gather", graph.hidden(), stored)
        if stored != ir.DataType.FLOAT:
            to = ir.DataType.FLOAT.value
            x = graph.op("Cast", [x], f"{path}/Gather/Cast", graph.hidden(), to=to)
        return _scaled(graph, x)
    if stored.is_float:
        head = graph.float_matrix("lm_head", shape.vocab, shape.hidden, gain)
        dims: list[int | str] = [shape.vocab, shape.hidden]
        table = graph.op("Transpose", [head], f"{path}/Transpose", dims, perm=[1, 0])
        x = graph.op("Gather", [table, input_ids], f"{path}/Gather", graph.hidden())
        return _scaled(graph, x)
    codes, *scales = graph.coded("lm_head", stored, shape.vocab, shape.hidden, gain)
    flat = [shape.vocab, shape.hidden * stored.bits // 8]
    rows = graph.op(
        "Reshape",
        [codes, graph.constant(flat, ir.DataType.INT64)],
        f"{path}/Reshape",
        flat,
        ir.DataType.UINT8,
    )
    x = graph.op(
        "GatherBlockQuantized",
        [rows, input_ids, *scales],
        f"{path}/GatherBlockQuantized",
        graph.hidden(),
        domain=MICROSOFT,
        bits=stored.bits,
        block_size=graph.block,
        gather_axis=0,
        quantize_axis=1,
    )
    return _scaled(graph, x)


def _scaled(graph: Graph, x: ir.Value) -> ir.Value:
    """Gemma multiplies embeddings by the root of their width, others by a constant."""
    shape, scale = graph.shape, graph.shape.embedding_scale
    if scale is None and shape.family == "gemma3_text":
        scale = float(np.round(np.sqrt(shape.hidden), 2))
    if scale in (None, 1.0):
        return x
    factor = graph.constant(scale, ir.DataType.FLOAT)
    return graph.op("Mul", [x, factor], "/model/embed_tokens/Mul", graph.hidden())


def _head_norm(graph: Graph, path: str, x: ir.Value, heads: int, dims_name: str) -> ir.Value:
    """Norm of each head of (batch, sequence, heads · head_dim); `path` is like …/attn/q_norm."""
    shape = graph.shape
    width = shape.head_dim
    dims: list[int | str] = ["batch_size", f"sequence_length * {dims_name}", width]
    int64 = ir.DataType.INT64
    weight = graph.vector(f"{path[1:].replace('/', '.')}.layernorm.weight", width, 1.0, 0.1)
    x = graph.op("Reshape", [x, graph.constant([0, -1, width], int64)], f"{path}/Reshape_1", dims)
    x = graph.op(
        "SimplifiedLayerNormalization",
        [x, weight],
        f"{path}/SimplifiedLayerNormalization",
        dims,
        epsilon=shape.epsilon,
        axis=-1,
        stash_type=1,
    )
    return graph.op(
        "Reshape",
        [x, graph.constant([0, -1, heads * width], int64)],
        f"{path}/Reshape_2",
        graph.hidden(heads * width),
    )


def _attention(
    graph: Graph, layer: int, x: ir.Value, lengths: _Lengths, cache: Sequence[State]
) -> ir.Value:
    shape = graph.shape
    path = f"/model/layers.{layer}/attn"
    gated = shape.family == "qwen3_5_text"
    sizes = [(1 + gated) * shape.queries, shape.keys, shape.keys]
    qkv: list[ir.Value | None]
    if graph.codings(f"{path[1:].replace('/', '.')}.qkv_proj") is None:
        parts = zip("qkv", sizes, strict=True)
        q, k, v = (
            graph.linear(f"{path}/{name}_proj", x, n, shape.hidden, 1.0) for name, n in parts
        )
        qkv = [q, k, v]
    else:
        packed = graph.linear(f"{path}/qkv_proj", x, sum(sizes), shape.hidden, 1.0)
        qkv = [packed, None, None]
    if shape.family in ("qwen3", "gemma3_text", "lfm2", "lfm2_moe", "qwen3_5_text"):
        if qkv[1] is None:
            q, k, v = (
                ir.val(f"{path}/qkv_proj/Split/output_{i}", ir.DataType.FLOAT, graph.hidden(size))
                for i, size in enumerate(sizes)
            )
            split = graph.constant(sizes, ir.DataType.INT64)
            graph.node("Split", [packed, split], [q, k, v], f"{path}/qkv_proj/Split", axis=-1)
        if gated:
            q, gate = _query_and_gate(graph, path, q)
        q = _head_norm(graph, f"{path}/q_norm", q, shape.heads, "num_attention_heads")
        k = _head_norm(graph, f"{path}/k_norm", k, shape.kv_heads, "num_key_value_heads")
        for position_ids in lengths.positions:
            q = hybrid.rotated(graph, f"{path}/q_rotary", q, shape.heads, position_ids)
            k = hybrid.rotated(graph, f"{path}/k_rotary", k, shape.kv_heads, position_ids)
        qkv = [q, k, v]

    local = shape.is_local(layer)
    rotary: tuple[ir.Value | None, ir.Value | None]
    unrotated = not shape.is_rotated(layer) or bool(lengths.positions)
    if unrotated:
        rotary = None, None
    elif shape.family != "gemma3_text":
        rotary = graph.rotary("", shape.rope_theta)
    elif local:
        rotary = graph.rotary("_local", shape.local_rope_theta)
    else:
        rotary = graph.rotary("_global", shape.rope_theta)
    output = ir.val(
        f"{path}/GroupQueryAttention/output_0", ir.DataType.FLOAT, graph.hidden(shape.queries)
    )
    (past_key, present_key), (past_value, present_value) = cache
    sinks = None
    if shape.family == "gptoss":
        sinks = graph.vector(f"model.layers.{layer}.attn.sinks", shape.heads, 0.0, 1.0)
    graph.node(
        "GroupQueryAttention",
        # What is left out keeps its position: position ids and attention bias, and perhaps sinks.
        [*qkv, past_key, past_value, lengths.seqlens_k, lengths.total, *rotary, None, None, sinks],
        [output, present_key, present_value],
        f"{path}/GroupQueryAttention",
        MICROSOFT,
        num_heads=shape.heads,
        kv_num_heads=shape.kv_heads,
        scale=shape.attention_scale or shape.head_dim**-0.5,
        local_window_size=shape.window if local and shape.window else -1,
        softcap=0.0,
        do_rotary=int(not unrotated),
        rotary_interleaved=0,
        **({"sliding_window_cache": 1} if local else {}),
    )
    if gated:
        wide = graph.hidden(shape.queries)
        gate = graph.op("Sigmoid", [gate], f"{path}/gate/Sigmoid", wide)
        output = graph.op("Mul", [output, gate], f"{path}/gate/Mul", wide)
    return graph.linear(f"{path}/o_proj", output, shape.hidden, shape.queries, shape.branch_gain)


def _query_and_gate(graph: Graph, path: str, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Queries, and gates of what attention gives, of heads that have both in turn."""
    shape = graph.shape
    dims: list[int | str] = ["batch_size", "sequence_length", shape.heads]
    sizes = graph.constant([0, 0, shape.heads, 2 * shape.head_dim], ir.DataType.INT64)
    x = graph.op("Reshape", [x, sizes], f"{path}/q_gate/Reshape", [*dims, 2 * shape.head_dim])
    halves = [
        ir.val(f"{path}/q_gate/Split/output_{i}", ir.DataType.FLOAT, [*dims, shape.head_dim])
        for i in range(2)
    ]
    split = graph.constant([shape.head_dim] * 2, ir.DataType.INT64)
    graph.node("Split", [x, split], halves, f"{path}/q_gate/Split", axis=-1)
    sizes = graph.constant([0, 0, shape.queries], ir.DataType.INT64)
    query, gate = (
        graph.op("Reshape", [half, sizes], f"{path}/{name}/Reshape", graph.hidden(shape.queries))
        for name, half in zip(("q_proj", "gate"), halves, strict=True)
    )
    return query, gate


def _gated_ffn(graph: Graph, layer: int, x: ir.Value) -> ir.Value:
    """down(act(gate(x)) · up(x)), with SiLU or Gemma's tanh-approximated GELU."""
    shape = graph.shape
    path = f"/model/layers.{layer}/mlp"
    ffn = shape.ffn_of(layer)
    wide = graph.hidden(ffn)
    gate = graph.linear(f"{path}/gate_proj", x, ffn, shape.hidden, 1.0)
    up = graph.linear(f"{path}/up_proj", x, ffn, shape.hidden, 1.0)
    if shape.family == "gemma3_text":
        gate = graph.op("Gelu", [gate], f"{path}/act_fn/FastGelu", wide, approximate="tanh")
    else:
        sigmoid = graph.op("Sigmoid", [gate], f"{path}/act_fn/Sigmoid", wide)
        gate = graph.op("Mul", [gate, sigmoid], f"{path}/act_fn/Mul", wide)
    product = graph.op("Mul", [gate, up], f"{path}/Mul", wide)
    return graph.linear(f"{path}/down_proj", product, shape.hidden, ffn, shape.branch_gain)


def _experts(graph: Graph, layer: int, x: ir.Value) -> ir.Value:
    """A router, and the weighted sum of the chosen experts' SwiGLU, in one node."""
    shape, base = graph.shape, f"model.layers.{layer}.moe.experts"
    if isinstance(graph.stored(f"{base}.down_proj"), FileForm):
        return _experts_in_blocks(graph, layer, x)
    # Each token adds experts with weights that sum to one.
    gain = shape.branch_gain * math.sqrt(shape.experts_per_token)
    weights = graph.experts(base, gain)
    codings = [graph.coding(f"{base}.{name}") for name in ("gate_up_proj", "down_proj")]
    op_type, quantised = "MoE", Attributes()
    if not codings[0].is_float:
        op_type = "QMoE"
        quantised = {"block_size": graph.block, "expert_weight_bits": codings[0].bits}
        if codings[1].bits != codings[0].bits:
            quantised["fc2_expert_weight_bits"] = codings[1].bits
        # The third matrix of each expert is left out, but keeps its positions.
        weights = [*weights[:-2], *[None] * 3, *weights[-2:], None]
    probabilities, scale = _router(graph, layer, x)
    # SwiGLU is gate · sigmoid(alpha · gate) · (up + beta).
    swiglu = {"activation_alpha": 1.0, "activation_beta": 0.0}
    if shape.family == "gptoss":
        swiglu = {"activation_alpha": 1.702, "activation_beta": 1.0, "swiglu_limit": 7.0}
    y = graph.op(
        op_type,
        [x, probabilities, *weights],
        f"/model/layers.{layer}/moe/{op_type}",
        graph.hidden(),
        ir.DataType.FLOAT,
        MICROSOFT,
        activation_type="swiglu",
        k=shape.experts_per_token,
        normalize_routing_weights=1,
        swiglu_fusion=1,
        use_sparse_mixer=0,
        **quantised,
        **swiglu,
    )
    return _times(graph, layer, y, scale)


def _experts_in_blocks(graph: Graph, layer: int, x: ir.Value) -> ir.Value:
    """The same as Q4NXMoE."""
    shape, base = graph.shape, f"model.layers.{layer}.moe.experts"
    forms: dict[str, FileForm] = {}
    for side in ("gate", "up", "down"):
        form = graph.stored(f"{base}.{side}_proj")
        assert isinstance(form, FileForm), base
        forms[side] = form
    weights = graph.expert_blocks(base, forms)
    given: Attributes = {
        "K": shape.hidden,
        "N": shape.ffn,
        "experts": shape.experts,
        "top_k": shape.experts_per_token,
        "down_type": forms["down"].name,
        "activation": "silu",
        "accuracy_level": 4,  # as projections
        **forms["gate"].attributes(),
    }
    if forms["up"] != forms["gate"]:
        given["up_type"] = forms["up"].name
    if shape.family == "gptoss":
        given |= {"activation": "swiglu", "alpha": 1.702, "beta": 1.0, "limit": 7.0}
    path = f"/model/layers.{layer}/moe/Q4NXMoE"
    scores, scale = _router(graph, layer, x)
    return _times(graph, layer, graph.aie("Q4NXMoE", [x, scores, *weights], path, given), scale)


def _times(graph: Graph, layer: int, y: ir.Value, scale: ir.Value | None) -> ir.Value:
    """What experts give, times a factor of each token if there is one."""
    if scale is None:
        return y
    return graph.op("Mul", [y, scale], f"/model/layers.{layer}/moe/Mul", graph.hidden())


def _router(graph: Graph, layer: int, x: ir.Value) -> tuple[ir.Value, ir.Value | None]:
    """Logits of the experts, (tokens, experts), and what their sum is to be multiplied by."""
    path, shape = f"/model/layers.{layer}/moe/router", graph.shape
    scores = graph.op(
        "Reshape",
        [
            graph.linear(path, x, shape.experts, shape.hidden, 1.0),
            graph.constant([-1, shape.experts], ir.DataType.INT64),
        ],
        f"{path}/Reshape",
        ["batch_size * sequence_length", shape.experts],
    )
    if shape.family == "lfm2_moe":
        return hybrid.biased_router(graph, layer, x, scores)
    return scores, None


def _plain_ffn(graph: Graph, layer: int, x: ir.Value) -> ir.Value:
    """fc2(gelu(fc1(x)))."""
    shape = graph.shape
    path = f"/model/layers.{layer}/mlp"
    x = graph.linear(f"{path}/fc1", x, shape.ffn, shape.hidden, 1.0)
    x = graph.op(
        "Gelu", [x], f"{path}/act_fn/FastGelu", graph.hidden(shape.ffn), approximate="tanh"
    )
    return graph.linear(f"{path}/fc2", x, shape.hidden, shape.ffn, shape.branch_gain)


def _kept(shape: Shape, layer: int) -> list[State]:
    """The keys and the values of a layer, or its states."""
    if not shape.has_attention(layer):
        return hybrid.states(shape, layer)

    def cache(role: str, when: str, what: str) -> ir.Value:
        span = "sliding" if shape.is_local(layer) else "sequence"
        # The last dimension has a name, not a size, because quantised caches share the graph.
        width = "kv_cache_dim"
        dims: list[int | str] = ["batch_size", shape.kv_heads, f"{when}_{span}_length", width]
        return ir.val(f"{role}.{layer}.{what}", ir.DataType.FLOAT, dims)

    return [
        (cache("past_key_values", "past", what), cache("present", "total", what))
        for what in ("key", "value")
    ]


def _by_kind(shape: Shape, kept: Sequence[Sequence[State]]) -> list[State]:
    """The keys of all layers, then the values, then each kind of states."""
    attention = [each for layer, each in enumerate(kept) if shape.has_attention(layer)]
    others = [each for layer, each in enumerate(kept) if not shape.has_attention(layer)]
    kinds = [*zip(*attention, strict=True), *zip(*others, strict=True)]
    return [state for kind in kinds for state in kind]


def _layer(
    graph: Graph,
    layer: int,
    x: ir.Value,
    branch: ir.Value | None,
    lengths: _Lengths,
    kept: Sequence[State],
) -> tuple[ir.Value, ir.Value]:
    """(residual, branch still to be added to it) after one more layer."""
    lfm2 = graph.shape.family in ("lfm2", "lfm2_moe")
    normed, x = graph.norm(layer, "operator" if lfm2 else "input", x, branch)
    if graph.shape.has_attention(layer):
        attended = _attention(graph, layer, normed, lengths, kept)
    else:
        recurrent = hybrid.short_conv if lfm2 else hybrid.linear_attention
        attended = recurrent(graph, layer, normed, kept)
    if graph.shape.family == "phi":
        ffn = _plain_ffn(graph, layer, normed)
        name = f"/model/layers.{layer}/residual_add/Add"
        return x, graph.op("Add", [attended, ffn], name, graph.hidden())
    if graph.shape.family == "gemma3_text":
        attended, _ = graph.norm(layer, "post_attention", attended)
        normed, x = graph.norm(layer, "pre_feedforward", x, attended)
        ffn, _ = graph.norm(layer, "post_feedforward", _gated_ffn(graph, layer, normed))
        return x, ffn
    normed, x = graph.norm(layer, "ffn" if lfm2 else "post_attention", x, attended)
    if graph.shape.has_experts(layer):
        return x, _experts(graph, layer, normed)
    return x, _gated_ffn(graph, layer, normed)


def build(
    shape: Shape,
    codings: Codings = lambda name: INT4,
    block: int = BLOCK,
    table: ir.DataType | FileForm = ir.DataType.FLOAT,
) -> tuple[ir.Model, list[Weight]]:
    """The model without weights, and the weights in the order of the data file.

    Args:
        shape: its sizes.
        codings: how each matrix is stored, by the name of its projection.
        block: values of K that share a scale.
        table: the type, or the form, of an embedding that is not tied to the lm_head.
    """
    graph = Graph(shape, codings, block, table)
    int64 = ir.DataType.INT64
    input_ids = ir.val("input_ids", int64, ["batch_size", "sequence_length"])
    attention_mask = ir.val("attention_mask", int64, ["batch_size", "total_sequence_length"])
    positions = hybrid.positions(shape)
    kept = [_kept(shape, layer) for layer in range(shape.layers)]
    if shape.family == "gemma3_text":
        graph.rotary("_global", shape.rope_theta)
        graph.rotary("_local", shape.local_rope_theta)

    lengths = _mask(graph, attention_mask, positions)
    x = _embedding(graph, input_ids)
    branch = None
    for layer, states in enumerate(kept):
        x, branch = _layer(graph, layer, x, branch, lengths, states)
    normed, _ = graph.norm(shape.layers, "final_norm", x, branch, last=True)
    logits = graph.linear("/lm_head", normed, shape.vocab, shape.hidden, 1.5, output="logits")

    past, present = zip(*_by_kind(shape, kept), strict=True)
    # The builder quantises matrix products in the graph's order, with the lm_head last.
    weights = graph.first + sorted(graph.last, key=lambda w: w.name.startswith("lm_head."))
    model = ir.Model(
        ir.Graph(
            [input_ids, attention_mask, *positions, *past],
            [logits, *present],
            nodes=graph.nodes,
            initializers=graph.initializers(weights),
            opset_imports={node.domain: 1 for node in graph.nodes} | {"": 22, MICROSOFT: 1},
            name="main_graph",
        ),
        ir_version=10,
        producer_name="ort_aie_ep synth",
    )
    return model, weights
