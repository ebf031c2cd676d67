"""Shapes of hidden states, which exporters leave out and ONNX's inference loses at each attention.

Before: values (batch, sequence, width) without a shape
After:  with one, from the embedding on; so that a residual is known to be of the other term's shape
"""

from __future__ import annotations

import onnx_ir as ir

from ort_aie_ep.graph_passes.base import DOMAIN
from ort_aie_ep.graph_passes.projection.width import PROJECTIONS, projected_width
from ort_aie_ep.graph_passes.walk import attribute, constant, fixed_dim, input_at

ROWWISE = {
    ("", "Cast"),
    ("", "Clip"),
    ("", "LayerNormalization"),
    ("", "Sigmoid"),
    ("", "SimplifiedLayerNormalization"),
    ("com.microsoft", "FastGelu"),
}


def spread_hidden_shapes(model: ir.Model) -> None:
    """Goes through the graph once, in its order."""
    for node in model.graph:
        value = node.outputs[0] if node.outputs else None
        if value is not None and value.shape is None:
            dims = _dims(node)
            value.shape = None if dims is None else ir.Shape(dims)


def _dims(node: ir.Node) -> list[int | ir.SymbolicDim] | None:
    """The dimensions of a node's first output, where it is a hidden state of a known shape."""
    kind, source = (node.domain, node.op_type), input_at(node, 0)
    if kind == ("", "Gather"):
        table, tokens = constant(source), input_at(node, 1)
        if table is None or len(table.shape) != 2 or attribute(node, "axis", 0):
            return None
        if tokens is None or tokens.shape is None:
            return None
        return [*tokens.shape, table.shape.numpy()[1]]
    if kind in PROJECTIONS:
        width = projected_width(node.outputs[0])
        if source is None or source.shape is None or width is None:
            return None
        return [*source.shape[:-1], width]
    if kind == (DOMAIN, "FlowAttention"):
        size = fixed_dim(input_at(node, 3), 3)
        if size is None or source is None or source.shape is None:
            return None
        return [*source.shape[:-1], attribute(node, "num_heads", 0) * size]
    if kind in ROWWISE:
        return None if source is None or source.shape is None else list(source.shape)
    if kind in (("", "Add"), ("", "Mul")):
        return _broadcast(node)
    return None


def _broadcast(node: ir.Node) -> list[int | ir.SymbolicDim] | None:
    """Of two hidden states, or one and a constant vector or number."""
    left, right = (input_at(node, i) for i in (0, 1))
    if left is None or right is None:
        return None
    for state, other in ((left, right), (right, left)):
        if state.shape is None or len(state.shape) < 2 or state.shape.has_unknown_dim():
            continue
        tensor = constant(other)
        if tensor is not None and tensor.size in (1, state.shape[-1]) and len(tensor.shape) < 2:
            return list(state.shape)
        if other.shape == state.shape:
            return list(state.shape)
    return None
