"""Vectors that a model computes from constants alone.

Before: RMSNormalization(x, Add(w, 1)), w constant
After:  RMSNormalization(x, w + 1)

mobius-onnx writes the norms of Gemma like this. Norms of heads become part of the attention only if
their weights are constant. ONNX Runtime computes such sums once too, when it opens a model.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ort_aie_ep.graph_passes.walk import constant_array, input_at, is_op

OPERATORS = {"Add": np.add, "Mul": np.multiply, "Sub": np.subtract}


def fold_vectors(model: ir.Model) -> None:
    """Folds sums, differences and products of constant vectors and numbers."""
    graph = model.graph
    for node in list(graph):
        if not is_op(node, *OPERATORS) or node.outputs[0].is_graph_output():
            continue
        a, b = (constant_array(input_at(node, i)) for i in (0, 1))
        if a is None or b is None or a.dtype != b.dtype or max(a.ndim, b.ndim) > 1:
            continue
        if a.size != b.size and 1 not in (a.size, b.size):
            continue
        old = node.outputs[0]
        tensor = ir.tensor(OPERATORS[node.op_type](a, b), name=old.name)
        value = ir.val(old.name, const_value=tensor)
        graph.register_initializer(value)
        ir.convenience.replace_all_uses_with(old, value)
        graph.remove(node, safe=True)
