"""How wide the result of a projection is, even if the graph has no shapes."""

from __future__ import annotations

import onnx_ir as ir

from ort_aie_ep.graph_passes.walk import attribute, constant, input_at, is_op

PROJECTIONS = {("", "MatMul"), ("com.microsoft", "MatMulNBits"), ("aie", "Q4NXMatMul")}


def projected_width(value: ir.Value | None) -> int | None:
    """The last dimension of a projection's result; None for other values.

    A bias, a norm over all of that dimension, as in OLMo 2, and a Clip, as in OLMo, count as part
    of the projection: they stay in the graph.
    """
    node = value.producer() if value is not None else None
    if node is None:
        return None
    if (node.domain, node.op_type) in PROJECTIONS:
        if node.op_type != "MatMul":
            return attribute(node, "N", 0)
        matrix = constant(input_at(node, 1))
        return matrix.shape.numpy()[1] if matrix is not None and len(matrix.shape) == 2 else None
    if is_op(node, "Clip"):
        limits = all(constant(limit) is not None for limit in node.inputs[1:] if limit is not None)
        return projected_width(node.inputs[0]) if limits else None
    if is_op(node, "Add", "SimplifiedLayerNormalization"):
        for operand, vector in (node.inputs[:2], node.inputs[1::-1]):
            width, weights = projected_width(operand), constant(vector)
            if width is not None and weights is not None and weights.shape == (width,):
                return width
    return None
