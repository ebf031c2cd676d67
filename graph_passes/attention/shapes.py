"""Shapes that exporters omit, and that ONNX's inference loses at operators it does not know.

Before: values without a shape
After:  `inferred_shapes`: values have the shapes that ONNX and the types of a few operators imply,
        while a pass reads them; `spread_hidden_shapes`: hidden states have the shape (batch,
        sequence, width) from the embedding on, so that both terms of a residual are known to match
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import onnx_ir as ir
from onnx_ir.passes import common as common_passes

from ort_aie_ep.graph_passes.attention.node import cached_head_dim, is_flow_attention
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


@contextmanager
def inferred_shapes(model: ir.Model) -> Iterator[None]:
    """Gives shapes and types to values that lack them, as far as ONNX knows the operators. Those of
    the model's interface are restored at the end."""
    interface = (model.graph.inputs, model.graph.outputs)
    declared = [[(value.shape, value.type) for value in values] for values in interface]
    infer = common_passes.ShapeInferencePass(check_type=False, strict_mode=False)
    infer(model)
    while _spread_shapes(model.graph):  # from layer to layer
        infer(model)
    yield
    for values, facts in zip(interface, declared, strict=True):
        for value, (shape, kind) in zip(values, facts, strict=True):
            value.shape, value.type = shape, kind


def _spread_shapes(graph: ir.Graph) -> bool:
    """Gives operators of com.microsoft, which ONNX does not know, the shape of their first input if
    their output has that shape. Returns False if nothing changed."""
    found = False
    for node in graph:
        if node.domain != "com.microsoft" or node.outputs[0].shape is not None:
            continue
        source = node.inputs[0] if node.inputs else None
        if source is None or source.shape is None:
            continue
        if node.op_type == "RotaryEmbedding" or (
            node.op_type == "MultiHeadAttention"
            and len(source.shape) == 3
            and fixed_dim(input_at(node, 2), 2) == source.shape[2]
        ):
            node.outputs[0].shape, node.outputs[0].type = source.shape, source.type
            found = True
    return found


def spread_hidden_shapes(model: ir.Model) -> None:
    """Gives hidden states the shape (batch, sequence, width), in one walk in the graph's order."""
    for node in model.graph:
        value = node.outputs[0] if node.outputs else None
        if value is not None and value.shape is None:
            dims = _dims(node)
            value.shape = None if dims is None else ir.Shape(dims)


def _dims(node: ir.Node) -> list[int | ir.SymbolicDim] | None:
    """The dimensions of a node's first output, if it is a hidden state of known shape."""
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
    if is_flow_attention(node):
        size = cached_head_dim(node)
        if size is None or source is None or source.shape is None:
            return None
        return [*source.shape[:-1], attribute(node, "num_heads", 0) * size]
    if kind in ROWWISE:
        return None if source is None or source.shape is None else list(source.shape)
    if kind in (("", "Add"), ("", "Mul")):
        return _broadcast(node)
    return None


def _broadcast(node: ir.Node) -> list[int | ir.SymbolicDim] | None:
    """The dimensions for two hidden states, or for one and a constant vector or number."""
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
