"""How much of a model's weights a node has, and how much of them a token reads.

The measure is bytes: of the matrices that multiply a token, of the experts that it is sent to, and
of recurrent states. It leaves out rows that are looked up, vectors (norms, biases), and keys and
values of the context, whose number the model does not state.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import onnx_ir as ir

from ort_aie_ep.graph_passes.walk import attribute, before, constant, input_at

# Their results are constant if their inputs are: the weights belong to the node that reads them.
PASSED_ON = {"Cast", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"}
DOMAINS = ("", "com.microsoft")
LOOKED_UP = {
    "EmbedLayerNormalization", "Gather", "GatherBlockQuantized", "GatherElements", "GatherND",
    "Q4NXGather",
}  # fmt: skip
# Tables of angles and masks, and terms that are added, do not multiply a token.
WITHOUT_PRODUCTS = {
    "Add", "And", "Clip", "Concat", "ConstantOfShape", "Cos", "CumSum", "Div", "Equal", "Expand",
    "FlowAttention", "GemmaRotaryEmbedding", "Greater", "GreaterOrEqual", "GroupQueryAttention",
    "LayerNormalization", "Less", "LessOrEqual", "MRotaryEmbedding", "Max", "Min", "Mod", "Mul",
    "MultiHeadAttention", "Neg", "Not", "Or", "Pad", "Pow", "RMSNormalization", "Range", "Resize",
    "RotaryEmbedding", "ScatterElements", "ScatterND", "Shape", "SimplifiedLayerNormalization",
    "Sin", "SkipLayerNormalization", "SkipSimplifiedLayerNormalization", "Slice", "SparseAttention",
    "Split", "Sub", "Tile", "TopK", "Trilu", "Where", "Xor",
}  # fmt: skip
# The attribute that says how many experts a token is sent to.
EXPERTS = {"MoE": "k", "QMoE": "k", "Q4NXMoE": "top_k"}
# Operators of a recurrence, by the place of the state that they read and write.
STATES = {"CausalConvWithState": 3, "GatedDeltaNet": 6, "LinearAttention": 3}


@dataclass(frozen=True)
class Work:
    """Bytes of a node's weights, and bytes of weights and states that one token reads."""

    weight_bytes: int = 0
    token_bytes: int = 0


def work_of(node: ir.Node) -> Work:
    """The work of a node of the source or of a compiled model."""
    if node.op_type in PASSED_ON | WITHOUT_PRODUCTS | {"DequantizeLinear"}:
        return Work()
    tensors = [tensor for value in node.inputs for tensor in _constants(value)]
    if not any(sum(dim > 1 for dim in t.shape.numpy()) > 1 for t in tensors):
        tensors = []
    stored = sum(tensor.nbytes for tensor in tensors)
    if node.op_type in LOOKED_UP:
        return Work(stored)
    read = stored
    if node.op_type in EXPERTS and tensors:
        experts = max(tensors, key=lambda t: t.nbytes).shape.numpy()[0]
        chosen = attribute(node, EXPERTS[node.op_type], 1)
        read = stored * min(chosen, experts) // experts
    return Work(stored, read + _state_bytes(node))


def _constants(value: ir.Value | None) -> list[ir.TensorProtocol]:
    """The tensors that make up a constant: itself, or codes, scales and zero points."""
    source = None if value is None else before(value, *PASSED_ON, domains=DOMAINS)
    tensor = constant(source)
    if tensor is not None:
        return [tensor]
    node = source.producer() if source is not None else None
    if node is None or node.domain not in DOMAINS or node.op_type != "DequantizeLinear":
        return []
    parts = [_constants(part) for part in node.inputs]
    return [tensor for part in parts for tensor in part] if parts[0] else []


def _state_bytes(node: ir.Node) -> int:
    """Bytes of a recurrent state for one sequence; 0 if its size is not known."""
    place = STATES.get(node.op_type)
    state = input_at(node, place) if place is not None else None
    if state is None or state.shape is None or state.dtype is None:
        return 0
    dims = [dim for dim in state.shape[1:] if isinstance(dim, int)]
    known = len(dims) == len(state.shape) - 1
    return int(math.prod(dims) * state.dtype.itemsize) if known else 0
