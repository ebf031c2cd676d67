"""ONNX's Attention (opset 23 to 25) -> aie.FlowAttention.

Before: Y, present_key, present_value = Attention(Q, K, V, attn_mask, past_key, past_value,
        nonpad_kv_seqlen), of tensors (B, T, H * D) or (B, H, T, D), Q and K perhaps rotated by a
        RotaryEmbedding, K and V perhaps appended to the cache by a Concat and repeated for the
        query heads of their group
After:  output, present_key, present_value = FlowAttention(q, k, v, past_key, past_value, , ,
        cos, sin, position_ids, attention_bias, ..., attention_mask), of tensors (B, T, H * D)

Tokens are positioned by index, as FlowAttention does without seqlens_k. The pass removes or adds
Transposes between the two layouts as needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir
from onnx_ir.passes import common as common_passes

from ort_aie_ep.graph_passes.attention.builder import BuilderRule, GraphBuilder
from ort_aie_ep.graph_passes.attention.mask import MaskReader
from ort_aie_ep.graph_passes.attention.node import (
    Layout,
    angle_inputs,
    flow_attention,
    why_not_flow_attention,
)
from ort_aie_ep.graph_passes.attention.rotary import read_rotations
from ort_aie_ep.graph_passes.base import Attribute
from ort_aie_ep.graph_passes.walk import (
    attribute,
    fixed_dim,
    input_at,
    made_by,
    rank,
    type_name,
    used_output,
)

MASK, PAST_KEY, PAST_VALUE, NONPAD = 3, 4, 5, 6
OUTPUT_QK = 3
SEQUENCE = 2  # axis of (B, H, T, D)


@dataclass(frozen=True)
class Cache:
    """Keys and values of one call: those before it, its own, and the values that hold both."""

    past_key: ir.Value | None
    past_value: ir.Value | None
    key: ir.Value
    value: ir.Value
    present_key: ir.Value | None
    present_value: ir.Value | None


class AttentionToFlow(BuilderRule):
    """Replaces each eligible Attention."""

    op_type = "Attention"
    domain = ""
    masks: MaskReader

    def prepare(self, model: ir.Model) -> None:  # noqa: D102
        # Exporters compute the same cosines and sines for queries and for keys.
        common_passes.CommonSubexpressionEliminationPass()(model)
        self.masks = MaskReader(model)

    def why_not(self, node: ir.Node) -> str:  # noqa: D102
        layout = _layout(node)
        return layout if isinstance(layout, str) else _why_not(node, layout)

    def replace(self, node: ir.Node) -> Sequence[ir.Node]:  # noqa: D102
        layout, query, cache = _layout(node), node.inputs[0], _cache(node)
        assert isinstance(layout, Layout)
        assert query is not None
        key, angles = cache.key, None
        causal, window = _order(node)
        attributes: dict[str, Attribute] = {
            "num_heads": layout.heads,
            "kv_num_heads": layout.kv_heads,
            "causal": causal,
            "local_window_size": -1 if window is None else window,
            "softcap": attribute(node, "softcap", 0.0),
            "scale": attribute(node, "scale", 0.0),
        }
        rotations = read_rotations(query, key, layout, self.report)
        if rotations is not None:
            query, key, turn = rotations.query, rotations.key, rotations.rotation
            angles = self.builder.angles(turn.cos, turn.sin, turn.positions)
            attributes |= {"do_rotary": 1, "rotary_interleaved": turn.interleaved}
            if turn.positions is not None:  # of each batch row, as RotaryEmbedding has them
                attributes["position_axes"] = 1
        mask = input_at(node, MASK)
        read = None
        if mask is not None and not causal:
            read = self.masks.read(mask, with_past=cache.past_key is not None)
        if read is None:
            bias, key_mask = _masks(node, self.builder)
        else:
            bias, key_mask = None, read.shown
            attributes |= {"causal": 1, "local_window_size": read.window}
        inputs = {
            "query": self.builder.rows(query, layout, layout.heads),
            "key": self.builder.rows(key, layout, layout.kv_heads),
            "value": self.builder.rows(cache.value, layout, layout.kv_heads),
            "past_key": cache.past_key,
            "past_value": cache.past_value,
            **angle_inputs(angles),
            "attention_bias": bias,
            "attention_mask": key_mask,
        }
        attention = flow_attention(node, inputs, attributes)
        self.builder.put_in_place(node, attention, layout, (cache.present_key, cache.present_value))
        return () if rotations is None else rotations.nodes


def _layout(node: ir.Node) -> Layout | str:
    """Heads and their dimension, or the reason why they are unknown or differ."""
    query, (key, value) = node.inputs[0], _keys_values(node)
    past = input_at(node, PAST_KEY)
    if rank(query) == 4:
        heads = fixed_dim(query, 1)
        kv_heads = fixed_dim(key, 1) or fixed_dim(past, 1)
        dims = [fixed_dim(v, 3) for v in (query, value)]
    elif rank(query) == 3:
        heads, kv_heads = attribute(node, "q_num_heads", 0), attribute(node, "kv_num_heads", 0)
        channels = [fixed_dim(v, 2) for v in (query, value)]
        dims = [
            c // h if c and h else None for c, h in zip(channels, (heads, kv_heads), strict=True)
        ]
    else:
        return "the rank of Q is not known"
    if not heads or not kv_heads or dims[0] is None or dims[1] is None:
        return "the number of heads or their dimension is not known before it runs"
    if dims[0] != dims[1]:
        return f"heads of V have {dims[1]} channels, those of Q {dims[0]}; expected as many"
    return Layout(heads, kv_heads, dims[0], split=rank(query) == 4)


def _why_not(node: ir.Node, layout: Layout) -> str:
    query, (key, value) = node.inputs[0], _keys_values(node)
    assert query is not None
    causal, window = _order(node)
    if window is None:
        return "a window that reaches later keys, or without causality"
    for name, past in (("K", key), ("V", value), ("past_key", input_at(node, PAST_KEY))):
        if past is not None and past.dtype != query.dtype:
            return f"{name} is {type_name(past)} and Q {type_name(query)}; expected one type"
    if attribute(node, "softmax_precision", 1) == ir.DataType.DOUBLE:
        return "softmax_precision is DOUBLE; FlowAttention's is FLOAT"
    mask, nonpad = input_at(node, MASK), input_at(node, NONPAD)
    if nonpad is not None and causal:
        return "nonpad_kv_seqlen with is_causal=1 places the queries of each batch row elsewhere"
    if nonpad is not None and mask is not None:
        return "with nonpad_kv_seqlen, attn_mask may be shorter than the keys"
    if mask is not None and rank(mask) is None:
        return "the rank of attn_mask is not known"
    if mask is not None and rank(mask) not in (2, 3, 4):
        return f"attn_mask has {rank(mask)} dimensions; expected 2 to 4"
    if mask is not None and mask.dtype not in (ir.DataType.BOOL, query.dtype):
        return f"attn_mask is {type_name(mask)}; expected BOOL or {type_name(query)}"
    return why_not_flow_attention(
        layout,
        causal=causal,
        window=window,
        type=type_name(query),
        cache_type=type_name(query),
        output_qk=used_output(node, OUTPUT_QK) is not None,
    )


def _order(node: ir.Node) -> tuple[int, int | None]:
    """causal and local_window_size (-1: none), or None for another kind of window.

    Opset 25 counts the keys besides a query's own; a window without later keys is causal.
    """
    left, right = attribute(node, "left_window_size", -1), attribute(node, "right_window_size", -1)
    causal = int(attribute(node, "is_causal", 0) == 1 or right == 0)
    if left < 0 and (right < 0 or causal):
        return causal, -1
    return causal, left + 1 if causal and left >= 0 else None


def _keys_values(node: ir.Node) -> tuple[ir.Value, ir.Value]:
    """K and V before they were repeated for the query heads of their group."""
    key, value = node.inputs[1:3]
    assert key is not None
    assert value is not None
    sources = [_before_repetition(v) for v in (key, value)]
    if sources[0] is None or sources[1] is None or input_at(node, PAST_KEY) is not None:
        return key, value
    return sources[0], sources[1]


def _before_repetition(value: ir.Value) -> ir.Value | None:
    """x (B, KV, T, D), where `value` is Reshape(Expand(Unsqueeze(x))), each head G times."""
    steps: list[list[int | str | None]] = []
    for op_type in ("Reshape", "Expand", "Unsqueeze"):
        node = made_by(value, op_type)
        if node is None or value.shape is None:
            return None
        steps.append([d if isinstance(d, int) else d.value for d in value.shape])
        source = node.inputs[0]
        if source is None or source.shape is None:
            return None
        value = source
    repeated, expanded, single = steps
    if [len(repeated), len(expanded)] != [4, 5] or value.shape is None:
        return None
    batch, heads, group, tokens, dim = expanded
    if not isinstance(heads, int) or not isinstance(group, int) or None in expanded:
        return None
    alike = list(value.shape) == [batch, heads, tokens, dim]
    # Batch and tokens follow from each other.
    in_order = repeated[1::2] == [heads * group, dim] and (
        repeated[0] == batch or repeated[2] == tokens
    )
    return value if alike and in_order and single == [batch, heads, 1, tokens, dim] else None


def _cache(node: ir.Node) -> Cache:
    key, value = _keys_values(node)
    past_key, past_value = input_at(node, PAST_KEY), input_at(node, PAST_VALUE)
    appended = [_appended(v) for v in (key, value)]
    keys, values = appended
    # Without causality, it makes no difference which of the keys are old.
    if past_key is None and _order(node)[0] == 0 and keys is not None and values is not None:
        return Cache(keys[0], values[0], keys[1], values[1], key, value)
    return Cache(past_key, past_value, key, value, used_output(node, 1), used_output(node, 2))


def _appended(value: ir.Value) -> tuple[ir.Value, ir.Value] | None:
    """The past and the new part of a Concat along the tokens of (B, H, T, D)."""
    node = made_by(value, "Concat")
    if node is None or rank(value) != 4:
        return None
    if len(node.inputs) != 2 or attribute(node, "axis", 0) not in (SEQUENCE, SEQUENCE - 4):
        return None
    past, new = node.inputs
    # A FlowAttention reads its past from a cache; a constant prefix is not one.
    return (past, new) if past is not None and new is not None and past.is_graph_input() else None


def _masks(node: ir.Node, builder: GraphBuilder) -> tuple[ir.Value | None, ir.Value | None]:
    """attention_bias and attention_mask; a mask that depends only on keys becomes the latter."""
    query, key = node.inputs[:2]
    mask, nonpad = input_at(node, MASK), input_at(node, NONPAD)
    assert query is not None
    assert key is not None
    if nonpad is not None:
        return None, builder.valid_keys(nonpad, key)
    if mask is None:
        return None, None
    if mask.dtype == ir.DataType.BOOL and mask.shape is not None and query.shape is not None:
        of_keys = list(mask.shape[:3]) == [query.shape[0], 1, 1]
        if of_keys and not mask.shape.is_unknown_dim(0):  # unknown dimensions count as equal
            return None, builder.key_mask(mask)
    return builder.bias(mask, query.dtype), None
