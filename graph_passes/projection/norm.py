"""RMS norms as ONNX defines them, for the passes."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from ort_aie_ep.graph_passes.walk import constant, fixed_dim, input_at, rank

# ONNX Runtime's, and ONNX's own from opset 23 on.
NORMS = ("SimplifiedLayerNormalization", "RMSNormalization")


def flatten_weights(model: ir.Model) -> None:
    """Constant weights that RMSNormalization broadcasts, (1, K), (1, 1, K) and, where K is known,
    () and (1) -> (K)."""
    for node in model.graph:
        a, weight = input_at(node, 0), input_at(node, 1)
        tensor = constant(weight)
        if node.domain or node.op_type not in NORMS or weight is None or tensor is None:
            continue
        k, shape = fixed_dim(a, (rank(a) or 0) - 1), tuple(tensor.shape.numpy())
        if k is None or shape == (k,) or len(shape) > (rank(a) or 0):
            continue
        if tensor.size not in (1, k) or math.prod(shape[:-1]) != 1:
            continue
        row = np.broadcast_to(tensor.numpy().reshape(-1), (k,)).copy()
        value = _initializer(node, ir.tensor(row, dtype=tensor.dtype, name=f"{weight.name}.{k}"))
        node.replace_input_with(1, value)


def _initializer(node: ir.Node, tensor: ir.TensorProtocol) -> ir.Value:
    """The constant of the node's graph, made once for each name."""
    graph, name = node.graph, tensor.name or ""
    assert isinstance(graph, ir.Graph)
    if name not in graph.initializers:
        graph.register_initializer(ir.val(name, const_value=tensor))
    return graph.initializers[name]
