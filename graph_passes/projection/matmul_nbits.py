"""com.microsoft.MatMulNBits (bits 2, 4 or 8) -> aie.Q4NXMatMul.

Before: MatMulNBits(A, B, scales, zero_points?, "", bias?)
After:  Q4NXMatMul(A, W, bias?) with W blocks of a form (`formats.q4nx.BlockForm`), uint8
"""

from __future__ import annotations

import onnx_ir as ir

from ort_aie_ep import _native
from ort_aie_ep.errors import AieError
from ort_aie_ep.graph_passes.base import Attribute, NodeRule, Report
from ort_aie_ep.graph_passes.walk import attribute, input_at, is_fixed, known_dims, type_name
from ort_aie_ep.graph_passes.weights.packed import MatMulNBitsWeights, PackedWeights


def why_not_matmul(node: ir.Node, *, with_shapes: bool = False) -> str:
    """The reason why a MatMulNBits node cannot become Q4NXMatMul, or an empty string.

    `with_shapes`: also the reason why its tensors are not those of a MatMulNBits.
    """
    weights = [input_at(node, 1), input_at(node, 2)]
    zero_points = input_at(node, 3)
    if zero_points is not None:
        weights.append(zero_points)
    return _native.why_not_q4nx(
        k=attribute(node, "K", 0),
        n=attribute(node, "N", 0),
        bits=attribute(node, "bits", 4),
        block_size=attribute(node, "block_size", 0),
        weight_prepacked=attribute(node, "weight_prepacked", 0),
        constant_weights=all(map(is_fixed, weights)),
        has_g_idx=input_at(node, 4) is not None,
        # By the op's schema, A and the scales have the same type.
        type=type_name(input_at(node, 0), input_at(node, 2)),
        zero_point_type="" if zero_points is None else type_name(zero_points),
        b_type=type_name(input_at(node, 1)) if with_shapes else "",
        scale_type=type_name(input_at(node, 2)) if with_shapes else "",
        shapes={i: known_dims(v) for i, v in enumerate(node.inputs) if v is not None}
        if with_shapes
        else {},
    )


def matmul_weights(node: ir.Node) -> MatMulNBitsWeights:
    """The weights of a node that `why_not_matmul` has nothing against."""
    b, scales = node.inputs[1], node.inputs[2]
    assert b is not None
    assert scales is not None
    return MatMulNBitsWeights(
        attribute(node, "N", 0),
        attribute(node, "K", 0),
        attribute(node, "block_size", 0),
        b,
        scales,
        input_at(node, 3),
        bits=attribute(node, "bits", 4),
    )


class MatMulNBitsToQ4NX(NodeRule):
    """Replaces each eligible MatMulNBits."""

    op_type = "MatMulNBits"
    becomes = "Q4NXMatMul"

    def __init__(self, report: Report, packed: PackedWeights) -> None:
        super().__init__(report)
        self.packed = packed

    def why_not(self, node: ir.Node) -> str:  # noqa: D102
        return why_not_matmul(node)

    def replacement(self, node: ir.Node) -> tuple[list[ir.Value | None], dict[str, Attribute]]:  # noqa: D102
        malformed = why_not_matmul(node, with_shapes=True)
        if malformed:
            raise AieError(f"node '{node.name}': {malformed}")
        weights = matmul_weights(node)
        inputs = [node.inputs[0], self.packed.value(node, weights)]
        bias = input_at(node, 5)
        if bias is not None:
            inputs.append(bias)
        return inputs, {
            **self.packed.attributes(weights),
            "accuracy_level": attribute(node, "accuracy_level", 0),
            # Each zero point is then 2^(bits - 1), and kernels need not read minima.
            "symmetric": int(weights.symmetric),
        }
