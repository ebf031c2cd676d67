"""com.microsoft.GroupQueryAttention -> aie.FlowAttention.

Inputs 0 to 15, outputs and attributes are the same; output_qk is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ort_aie_ep.graph_passes.attention.node import (
    INPUTS,
    OP_TYPE,
    Layout,
    Quantisation,
    cached_head_dim,
    flow_attention,
    named_input,
    why_not_flow_attention,
)
from ort_aie_ep.graph_passes.attention.rotary import computed_rotation
from ort_aie_ep.graph_passes.base import NodeRule, put_in_place
from ort_aie_ep.graph_passes.projection.width import projected_width
from ort_aie_ep.graph_passes.walk import attribute, fixed_dim, input_at, known_dims, type_name

QUERY_SEQLENS = 16  # where a FlowAttention has its mask
PRESENT_KEY, PRESENT_VALUE, OUTPUT_QK = 1, 2, 3
OTHER_EPSILONS = ("q_norm_epsilon", "k_norm_epsilon")


class GroupQueryAttentionToFlow(NodeRule):
    """Replaces each eligible GroupQueryAttention that keeps a KV cache, or shares another's."""

    op_type = "GroupQueryAttention"
    becomes = OP_TYPE

    def why_not(self, node: ir.Node) -> str:  # noqa: D102
        past = named_input(node, "past_key")
        query = type_name(node.inputs[0], named_input(node, "cos_cache"), past)
        heads, kv_heads = attribute(node, "num_heads", 0), attribute(node, "kv_num_heads", 0)
        return why_not_flow_attention(
            Layout(heads, kv_heads, _head_dim(node)),
            causal=attribute(node, "causal", 1),
            window=attribute(node, "local_window_size", -1),
            type=query,
            cache_type=type_name(past, *node.outputs[1:2], node.inputs[0]),
            output_qk=_has_output(node, OUTPUT_QK),
            query_seqlens=input_at(node, QUERY_SEQLENS) is not None,
            other_epsilons=not node.attributes.keys().isdisjoint(OTHER_EPSILONS),
            qk_output=attribute(node, "qk_output", 0),
            do_rotary=attribute(node, "do_rotary", 0),
            sliding_window_cache=attribute(node, "sliding_window_cache", 0),
            present=(_has_output(node, PRESENT_KEY), _has_output(node, PRESENT_VALUE)),
            shapes={
                i: known_dims(value) for i, value in enumerate(node.inputs) if value is not None
            },
            quantisation=Quantisation(
                attribute(node, "k_quant_type", "NONE"),
                attribute(node, "v_quant_type", "NONE"),
                attribute(node, "kv_cache_bit_width", 0),
                named_input(node, "k_scale") is not None,
                named_input(node, "v_scale") is not None,
            ),
        )

    def replace(self, node: ir.Node) -> Sequence[ir.Node]:  # noqa: D102
        inputs = dict(zip(INPUTS, node.inputs, strict=False))
        attributes = {name: attr.value for name, attr in node.attributes.items()}
        attributes |= computed_rotation(node, inputs)
        put_in_place(node, flow_attention(node, inputs, attributes))
        return ()


def _has_output(node: ir.Node, position: int) -> bool:
    return position < len(node.outputs) and bool(node.outputs[position].name)


def _head_dim(node: ir.Node) -> int:
    """Channels of a head, or 0 if they are not known."""
    cached = cached_head_dim(node, named_input(node, "past_key"), *node.outputs[1:2])
    if cached is not None:
        return cached
    query = named_input(node, "query")
    heads, kv_heads = attribute(node, "num_heads", 0), attribute(node, "kv_num_heads", 0)
    in_query = heads if named_input(node, "key") is not None else heads + 2 * kv_heads
    channels = fixed_dim(query, 2) or projected_width(query) or 0
    return channels // in_query if in_query > 0 else 0
