"""com.microsoft.MultiHeadAttention without a past -> aie.FlowAttention.

Before: MultiHeadAttention(query, key, value, bias?, , attention_bias?), all of (B, T, H * D)
After:  FlowAttention(query + bias, key + bias, value + bias, ..., attention_bias)

Vision towers consist of these: every token sees every other. The additions of a bias become part of
the projections before them, if those are Q4NXMatMul.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ort_aie_ep.graph_passes.attention.builder import BuilderRule
from ort_aie_ep.graph_passes.attention.node import Layout, flow_attention, why_not_flow_attention
from ort_aie_ep.graph_passes.base import Attribute
from ort_aie_ep.graph_passes.walk import (
    attribute,
    fixed_dim,
    input_at,
    is_fixed,
    rank,
    type_name,
    used_output,
)

BIAS, PADDING, ATTENTION_BIAS, FIRST_OF_CACHE, OUTPUT_QK = 3, 4, 5, 6, 3


class MultiHeadAttentionToFlow(BuilderRule):
    """Replaces each eligible MultiHeadAttention."""

    op_type = "MultiHeadAttention"

    def why_not(self, node: ir.Node) -> str:  # noqa: D102
        query, key, value = (input_at(node, i) for i in range(3))
        heads, bias = attribute(node, "num_heads", 0), input_at(node, BIAS)
        if any(input_at(node, i) is not None for i in range(FIRST_OF_CACHE, len(node.inputs))):
            return "it has a past"
        if input_at(node, PADDING) is not None:
            return "key_padding_mask adds mask_filter_value, which FlowAttention does not"
        if [rank(v) for v in (query, key, value)] != [3, 3, 3]:
            return (
                "query, key and value are not known to be three tensors (batch, tokens, channels)"
            )
        channels = fixed_dim(query, 2)
        if channels is None or heads <= 0 or channels % heads != 0:
            return "the number of heads or their dimension is not known before it runs"
        for name, width in (("key", fixed_dim(key, 2)), ("value", fixed_dim(value, 2))):
            if width != channels:
                return f"{name} has {width} channels, query {channels}; expected as many"
        added = input_at(node, ATTENTION_BIAS)
        if added is not None and fixed_dim(added, 2) == 1 != fixed_dim(query, 1):
            return "attention_bias has one query for all"
        tokens = [v.shape[1] for v in (query, key) if v is not None and v.shape is not None]
        known = not any(isinstance(d, ir.SymbolicDim) and d.value is None for d in tokens)
        if attribute(node, "unidirectional", 0) and not (known and tokens[0] == tokens[1]):
            return "unidirectional=1 with keys that may be more or fewer than the queries"
        if bias is not None and (not is_fixed(bias) or bias.shape != (3 * channels,)):
            return f"its bias is not a constant ({3 * channels})"
        return why_not_flow_attention(
            Layout(heads, heads, channels // heads),
            causal=attribute(node, "unidirectional", 0),
            window=-1,
            type=type_name(query),
            cache_type=type_name(query),
            output_qk=used_output(node, OUTPUT_QK) is not None,
        )

    def replace(self, node: ir.Node) -> Sequence[ir.Node]:  # noqa: D102
        heads, bias = attribute(node, "num_heads", 0), input_at(node, BIAS)
        inputs = {"attention_bias": input_at(node, ATTENTION_BIAS)}
        for index, name in enumerate(("query", "key", "value")):
            value = node.inputs[index]
            assert value is not None
            if bias is not None:
                assert bias.const_value is not None
                part = np.split(bias.const_value.numpy(), 3)[index]
                added = self.builder.initializer(part, f"{bias.name}.{name}")
                value = self.builder.like("Add", value, added, f"{node.outputs[0].name}.{name}")
            inputs[name] = value
        channels = fixed_dim(node.inputs[0], 2)
        assert channels is not None
        attributes: dict[str, Attribute] = {
            "num_heads": heads,
            "kv_num_heads": heads,
            "causal": attribute(node, "unidirectional", 0),
            "scale": attribute(node, "scale", 0.0),
        }
        attention = flow_attention(node, inputs, attributes)
        layout = Layout(heads, heads, channels // heads)
        presents = (used_output(node, 1), used_output(node, 2))
        self.builder.put_in_place(node, attention, layout, presents)
        return ()
