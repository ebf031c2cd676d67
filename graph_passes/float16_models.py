"""A float16 model whose projections stay on the CPU EP keeps the precision that it has there.

Before: SimplifiedLayerNormalization of float16
After:  Cast, SimplifiedLayerNormalization of float32, Cast

ONNX Runtime's CPU EP computes most of such a model in float32: it has no kernels of float16 for
additions and products, and drops the casts between those that it puts in. A norm of float16, for
which it has one, would round the residuals on the way. Attention in such a model multiplies in
float32 (ChooseProducts in src/graph/attention.cc).
"""

from __future__ import annotations

import onnx_ir as ir

from ort_aie_ep.graph_passes.attention.node import is_flow_attention
from ort_aie_ep.graph_passes.base import DOMAIN, put_in_place


def keep_float16_digits(model: ir.Model) -> None:
    """Widens norms, unless a projection became an aie operator, which rounds activations anyway."""
    aie = [node for node in model.graph if node.domain == DOMAIN]
    if not all(is_flow_attention(node) for node in aie):
        return
    for node in list(model.graph):
        if node.op_type == "SimplifiedLayerNormalization" and _is_float16(node.inputs[0]):
            _compute_in_float32(node)


def _is_float16(value: ir.Value | None) -> bool:
    return value is not None and value.dtype == ir.DataType.FLOAT16


def _compute_in_float32(node: ir.Node) -> None:
    widened = [
        _cast(value, ir.DataType.FLOAT, f"{node.name}/widened_{index}")
        for index, value in enumerate(node.inputs)
    ]
    norm = ir.Node(
        node.domain,
        node.op_type,
        [cast.outputs[0] for cast in widened],
        node.attributes.values(),
        name=node.name,
    )
    norm.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
    norm.outputs[0].shape = node.outputs[0].shape
    result = _cast(norm.outputs[0], ir.DataType.FLOAT16, f"{node.name}/narrowed")
    put_in_place(node, *widened, norm, result)


def _cast(value: ir.Value | None, dtype: ir.DataType, name: str) -> ir.Node:
    node = ir.Node("", "Cast", [value], [ir.AttrInt64("to", dtype)], name=name)
    node.outputs[0].type = ir.TensorType(dtype)
    node.outputs[0].shape = value.shape if value is not None else None
    return node
