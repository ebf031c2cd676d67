"""RMS norms, with the residual addition before them -> inputs of the projection that follows.

Before: y = SimplifiedLayerNormalization(A, weight) or RMSNormalization(A, weight), or
        y, _, _, sum = SkipSimplifiedLayerNormalization(A, skip, weight), or either of the first on
        sum = Add(A, skip), and P(y, W ...)
After:  P(A, W ..., norm_weight=weight), or
        Y, sum = P(A, W ..., norm_weight=weight, skip=skip), P being Q4NXMatMul, Q4NXGatedMLP,
        GEMM or GatedGEMM

One node less, and the normalised rows are quantised or rounded as they are made, not stored.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from ort_aie_ep.graph_passes.base import DOMAIN, Report, none_value
from ort_aie_ep.graph_passes.walk import (
    attribute,
    constant,
    fixed_dim,
    input_at,
    is_op,
    is_read,
    made_by,
    only_reader,
    rank,
)

PROJECTIONS = ("Q4NXMatMul", "Q4NXGatedMLP", "GEMM", "GatedGEMM")
NORM_WEIGHT = 3  # the input of each that comes before skip
# ONNX Runtime's, and ONNX's own from opset 23 on.
NORMS = ("SimplifiedLayerNormalization", "RMSNormalization")
BROADCAST = (
    "its scale is {}; a projection takes in a norm whose scale is (K), or a constant like it"
)


@dataclass(frozen=True)
class Norm:
    """A norm that a projection can take in; `total` is a + skip, where somebody wants it."""

    a: ir.Value
    weight: ir.Value
    skip: ir.Value | None
    total: ir.Value | None
    epsilon: float


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


def fuse_norms(model: ir.Model, report: Report) -> None:
    """Fuses each norm whose result one projection alone takes."""
    for node in list(model.graph):
        projection = _only_user(node.outputs[0])
        if projection is None:
            continue
        norm = read_norm(node)
        if norm is None:
            if is_op(node, *NORMS) and not _is_row(input_at(node, 1)):
                report.left(node, BROADCAST.format(_dims(input_at(node, 1))))
            continue
        add = norm.a.producer()
        norm = _with_residual(norm, node)
        _fuse(norm, projection)
        model.graph.remove(node, safe=True)
        report.fused(node, f"{DOMAIN}.{projection.op_type}")
        if add is not None and norm.a in add.inputs:
            model.graph.remove(add, safe=True)
            report.fused(add, f"{DOMAIN}.{projection.op_type}")
    # The sums are computed where the projections stand, which may be after some that take them.
    model.graph.sort()


def read_norm(node: ir.Node) -> Norm | None:
    """The norm that `node` is, or None where it is none or more than an aie operator takes in."""
    a, weight, skip, total = input_at(node, 0), input_at(node, 1), None, None
    rest, epsilon = node.inputs[2:], 1e-5  # each op has a default of its own
    if is_op(node, "SkipSimplifiedLayerNormalization", domain="com.microsoft"):
        skip, weight = weight, input_at(node, 2)
        total = node.outputs[3] if len(node.outputs) > 3 else None
        rest, epsilon = node.inputs[3:], 1e-12
        if a is None or skip is None or a.shape is None or a.shape != skip.shape:
            return None  # a skip of fewer dimensions would be broadcast
    elif not is_op(node, *NORMS):
        return None
    if attribute(node, "axis", -1) != -1 or attribute(node, "stash_type", 1) != 1:
        return None
    if a is None or weight is None or a.dtype is None or a.dtype != weight.dtype:
        return None
    if not _is_row(weight):
        return None  # RMSNormalization broadcasts it
    # A bias; mean or deviation.
    if any(value is not None for value in rest) or any(map(is_read, node.outputs[1:3])):
        return None
    return Norm(a, weight, skip, total, attribute(node, "epsilon", epsilon))


def _is_row(weight: ir.Value | None) -> bool:
    """Whether a norm's weight is (K), and K a number: a dimension that is not known may be 1."""
    shape = weight.shape if weight is not None else None
    return shape is not None and len(shape) == 1 and isinstance(shape[0], int) and shape[0] != 1


def _dims(weight: ir.Value | None) -> str:
    return "of unknown shape" if weight is None or weight.shape is None else str(weight.shape)


def _with_residual(norm: Norm, node: ir.Node) -> Norm:
    """With the addition before it, where its terms are of one shape."""
    add = made_by(norm.a, "Add")
    if norm.skip is not None or add is None:
        return norm
    a, skip = add.inputs
    if a is None or skip is None or a.shape is None or a.shape != skip.shape:
        return norm
    if a.shape.has_unknown_dim():
        return norm  # unknown dimensions count as equal
    if a.dtype is None or a.dtype != skip.dtype:
        return norm
    wanted = norm.a.is_graph_output() or any(user is not node for user in norm.a.consumers())
    return replace(norm, a=a, skip=skip, total=norm.a if wanted else None)


def _only_user(value: ir.Value) -> ir.Node | None:
    """The projection that reads `value` as its activations, where nobody else does."""
    node = only_reader(value)
    return node if is_op(node, *PROJECTIONS, domain=DOMAIN) and node.inputs[0] is value else None


def _initializer(node: ir.Node, tensor: ir.TensorProtocol) -> ir.Value:
    """The constant of the node's graph, made once for each name."""
    graph, name = node.graph, tensor.name or ""
    assert isinstance(graph, ir.Graph)
    if name not in graph.initializers:
        kind, shape = ir.TensorType(tensor.dtype), ir.Shape(tensor.shape.numpy())
        graph.register_initializer(ir.Value(name=name, shape=shape, type=kind, const_value=tensor))
    return graph.initializers[name]


def _fuse(norm: Norm, projection: ir.Node) -> None:
    inputs = [norm.a, *projection.inputs[1:]]
    while len(inputs) < NORM_WEIGHT:
        inputs.append(none_value(projection))
    inputs += [norm.weight] if norm.skip is None else [norm.weight, norm.skip]
    projection.resize_inputs(len(inputs))
    for index, value in enumerate(inputs):
        projection.replace_input_with(index, value)
    projection.attributes.add(ir.AttrFloat32("norm_epsilon", norm.epsilon))
    if norm.skip is None:
        return
    projection.resize_outputs(2)
    total = projection.outputs[1]
    total.type, total.shape = norm.a.type, norm.a.shape
    if norm.total is not None:
        total.name, norm.total.name = norm.total.name, None
        ir.convenience.replace_all_uses_with(norm.total, total, replace_graph_outputs=True)
