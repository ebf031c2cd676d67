"""Shapes of hidden states are read from the tokens, so that nothing divides a decoder's steps.

Before: Shape(h), h (batch, sequence, K) with the dimensions of input_ids (batch, sequence)
After:  Concat(Shape(input_ids), [K])

Exports read the number of tokens from a hidden state and compute angles and masks from it. These
computations then wait for a step of the decoder, and later steps wait for them: two plans, not one.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ort_aie_ep.graph_passes.base import INPUT_IDS
from ort_aie_ep.graph_passes.walk import input_at, is_op


def read_shapes_off_tokens(model: ir.Model) -> None:
    """Rewrites the main graph only, because bodies have no input input_ids."""
    graph = model.graph
    tokens = next((value for value in graph.inputs if value.name == INPUT_IDS), None)
    if tokens is None or tokens.shape is None or len(tokens.shape) != 2 or not _is_named(tokens):
        return
    for node in list(graph):
        hidden = input_at(node, 0)
        if hidden is None or not is_op(node, "Shape") or node.attributes:
            continue
        if not node.outputs[0].is_graph_output() and _has_tokens_of(hidden, tokens):
            _read_off(graph, node, hidden, tokens)


def _is_named(tokens: ir.Value) -> bool:
    assert tokens.shape is not None
    return all(isinstance(dim, int) or dim.value is not None for dim in tokens.shape)


def _has_tokens_of(hidden: ir.Value, tokens: ir.Value) -> bool:
    if hidden.shape is None or tokens.shape is None or hidden.producer() is None:
        return False
    batch_and_sequence, rest = hidden.shape[:2], hidden.shape[2:]
    known = all(isinstance(dim, int) for dim in rest)
    return bool(rest) and known and tuple(batch_and_sequence) == tuple(tokens.shape)


def _read_off(graph: ir.Graph, node: ir.Node, hidden: ir.Value, tokens: ir.Value) -> None:
    assert hidden.shape is not None
    old = node.outputs[0]
    readers = list(old.uses())
    rest = np.array([int(dim) for dim in hidden.shape[2:]], np.int64)  # type: ignore[arg-type]
    width = ir.Value(name=f"{old.name}.width", const_value=ir.tensor(rest))
    graph.register_initializer(width)
    whole = ir.node("Concat", [old, width], {"axis": 0}, name=f"{node.name}.of_tokens")
    whole.outputs[0].name = f"{old.name}.of_tokens"
    whole.outputs[0].type, whole.outputs[0].shape = old.type, old.shape
    old.shape = ir.Shape([2])
    node.replace_input_with(0, tokens)
    graph.insert_after(node, whole)
    for reader, position in readers:
        reader.replace_input_with(position, whole.outputs[0])
