"""com.microsoft.GroupQueryAttention -> aie.FlowAttention.

Inputs 0 to 15, outputs and attributes are the same; quantised caches and output_qk stay behind.
"""

from __future__ import annotations

import onnx_ir as ir

from ort_aie_ep import _native
from ort_aie_ep.graph_passes.base import Attribute, NodeRule, Report, none_value
from ort_aie_ep.graph_passes.projection.width import projected_width
from ort_aie_ep.graph_passes.walk import attribute, fixed_dim, input_at, type_name

PAST_KEY, COS_CACHE, K_SCALE, V_SCALE, OUTPUT_QK = 3, 7, 12, 13, 3
PRESENTS_END = 3  # outputs: output, present_key, present_value


class GroupQueryAttentionToFlow(NodeRule):
    """Replaces each eligible GroupQueryAttention that keeps a KV cache."""

    op_type = "GroupQueryAttention"
    becomes = "FlowAttention"

    def __init__(self, report: Report, outputs: int) -> None:
        super().__init__(report)
        self.outputs = outputs

    def why_not(self, node: ir.Node) -> str:  # noqa: D102
        if len(node.outputs) < PRESENTS_END:
            return "outputs present_key and present_value are missing"
        past = input_at(node, PAST_KEY)
        query = type_name(node.inputs[0], input_at(node, COS_CACHE), past)
        return _native.why_not_flow_attention(
            num_heads=attribute(node, "num_heads", 0),
            kv_num_heads=attribute(node, "kv_num_heads", 0),
            head_dim=_head_dim(node),
            qk_output=attribute(node, "qk_output", 0),
            causal=attribute(node, "causal", 1),
            local_window_size=attribute(node, "local_window_size", -1),
            k_quant_type=attribute(node, "k_quant_type", "NONE"),
            v_quant_type=attribute(node, "v_quant_type", "NONE"),
            has_quantised_cache=any(input_at(node, i) is not None for i in (K_SCALE, V_SCALE)),
            has_output_qk=len(node.outputs) > OUTPUT_QK and bool(node.outputs[OUTPUT_QK].name),
            type=query,
            cache_type=query if past is None else type_name(past, node.inputs[0]),
        )

    def replacement(self, node: ir.Node) -> tuple[list[ir.Value | None], dict[str, Attribute]]:  # noqa: D102
        inputs = list(node.inputs)
        while inputs and inputs[-1] is None:
            inputs.pop()
        inputs = [none_value(node) if value is None else value for value in inputs]
        return inputs, {name: attr.value for name, attr in node.attributes.items()}


def _head_dim(node: ir.Node) -> int:
    """Channels of a head, or 0 where they are not known."""
    cached = fixed_dim(input_at(node, PAST_KEY), 3) or fixed_dim(node.outputs[1], 3)
    if cached is not None:
        return cached
    query = input_at(node, 0)
    heads, kv_heads = attribute(node, "num_heads", 0), attribute(node, "kv_num_heads", 0)
    in_query = heads if input_at(node, 1) is not None else heads + 2 * kv_heads
    channels = fixed_dim(query, 2) or projected_width(query) or 0
    return channels // in_query if in_query > 0 else 0
