"""com.microsoft.MultiHeadAttention without a past -> aie.FlowAttention.

Before: MultiHeadAttention(query, key, value, bias?, , attention_bias?), all of (B, T, H * D)
After:  FlowAttention(query + bias, key + bias, value + bias, ..., attention_bias)

What vision towers are made of: every token sees every other. The additions of a bias become part of
the projections before them, where those are Q4NXMatMul.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common as common_passes

from ort_aie_ep import _native
from ort_aie_ep.graph_passes.attention.node import Layout, Workbench, inferred_shapes
from ort_aie_ep.graph_passes.base import DOMAIN, Report
from ort_aie_ep.graph_passes.walk import (
    attribute,
    fixed_dim,
    input_at,
    is_op,
    rank,
    type_name,
    used_output,
)

BECOMES = "FlowAttention"
BIAS, PADDING, ATTENTION_BIAS, FIRST_OF_CACHE, OUTPUT_QK = 3, 4, 5, 6, 3


def fuse_multi_head_attention(model: ir.Model, report: Report) -> None:
    """Replaces each eligible MultiHeadAttention."""
    nodes = [
        node for node in model.graph if is_op(node, "MultiHeadAttention", domain="com.microsoft")
    ]
    if not nodes:
        return
    with inferred_shapes(model):
        bench = Workbench(model.graph)
        for node in nodes:
            reason = _why_not(node)
            if reason:
                report.left(node, reason)
            else:
                _replace(node, bench)
                report.replaced(node, f"{DOMAIN}.{BECOMES}")
    model.graph.sort()
    common_passes.RemoveUnusedNodesPass()(model)


def _why_not(node: ir.Node) -> str:
    query, key, value = (input_at(node, i) for i in range(3))
    heads, bias = attribute(node, "num_heads", 0), input_at(node, BIAS)
    if any(input_at(node, i) is not None for i in range(FIRST_OF_CACHE, len(node.inputs))):
        return "it has a past"
    if input_at(node, PADDING) is not None:
        return "key_padding_mask adds mask_filter_value, which FlowAttention does not"
    if [rank(v) for v in (query, key, value)] != [3, 3, 3]:
        return "query, key and value are not known to be three tensors (batch, tokens, channels)"
    channels = fixed_dim(query, 2)
    if channels is None or heads <= 0 or channels % heads != 0:
        return "the number of heads or their dimension is not known before it runs"
    if fixed_dim(value, 2) != channels:
        return f"value has {fixed_dim(value, 2)} channels, query {channels}; expected as many"
    tokens = [v.shape[1] for v in (query, key) if v is not None and v.shape is not None]
    known = not any(isinstance(d, ir.SymbolicDim) and d.value is None for d in tokens)
    if attribute(node, "unidirectional", 0) and not (known and tokens[0] == tokens[1]):
        return "unidirectional=1 with keys that may be more or fewer than the queries"
    if bias is not None and (bias.const_value is None or bias.shape != (3 * channels,)):
        return f"its bias is no constant ({3 * channels})"
    return _native.why_not_flow_attention(
        num_heads=heads,
        kv_num_heads=heads,
        head_dim=channels // heads,
        qk_output=0,
        causal=attribute(node, "unidirectional", 0),
        local_window_size=-1,
        k_quant_type="NONE",
        v_quant_type="NONE",
        has_quantised_cache=False,
        has_output_qk=used_output(node, OUTPUT_QK) is not None,
        type=type_name(query),
        cache_type=type_name(query),
    )


def _replace(node: ir.Node, bench: Workbench) -> None:
    heads, bias = attribute(node, "num_heads", 0), input_at(node, BIAS)
    tensors = {}
    for index, name in enumerate(("query", "key", "value")):
        value = node.inputs[index]
        assert value is not None
        if bias is not None:
            assert bias.const_value is not None
            part = np.split(bias.const_value.numpy(), 3)[index]
            added = bench.initializer(part, f"{bias.name}.{name}")
            value = bench.like("Add", value, added, f"{node.outputs[0].name}.{name}")
        tensors[name] = value
    channels = fixed_dim(node.inputs[0], 2)
    assert channels is not None
    bench.flow_attention(
        node,
        Layout(heads, heads, channels // heads, split=False),
        {**tensors, "attention_bias": input_at(node, ATTENTION_BIAS)},
        {
            "num_heads": heads,
            "kv_num_heads": heads,
            "causal": attribute(node, "unidirectional", 0),
            "scale": attribute(node, "scale", 0.0),
        },
        (used_output(node, 1), used_output(node, 2)),
    )
