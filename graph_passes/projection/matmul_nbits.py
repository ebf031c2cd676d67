"""com.microsoft.MatMulNBits (bits 2, 4 or 8) -> aie.Q4NXMatMul.

Before: MatMulNBits(A, B, scales, zero_points?, "", bias?)
After:  Q4NXMatMul(A, W, bias?) with W (ceil(N/32), ceil(K/256), 5120; of 2 bits 3072, of 8 bits
        9472) uint8
"""

from __future__ import annotations

import onnx_ir as ir

from ort_aie_ep import _native
from ort_aie_ep.errors import AieError
from ort_aie_ep.graph_passes.base import Attribute, NodeRule, Report
from ort_aie_ep.graph_passes.walk import (
    attribute,
    input_at,
    is_fixed,
    known_dims,
    node_label,
    type_name,
)
from ort_aie_ep.graph_passes.weights.packed import MatMulNBitsWeights, PackedWeights


def why_not_matmul(node: ir.Node) -> str:
    """The reason why a MatMulNBits node cannot become Q4NXMatMul, or an empty string."""
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
    )


def blocked_weights(node: ir.Node) -> _native.BlockedWeights:
    """What is known of the inputs of a node that `why_not_matmul` has nothing against.

    Raises:
        AieError: ONNX Runtime does not take them.
    """

    def known(place: int) -> tuple[str, list[int]] | None:
        value = input_at(node, place)
        dims = known_dims(value)
        return None if dims is None else (type_name(value), dims)

    b, scales = known(1), known(2)
    assert b is not None
    assert scales is not None
    weights = _native.BlockedWeights(
        k=attribute(node, "K", 0),
        n=attribute(node, "N", 0),
        bits=attribute(node, "bits", 4),
        block_size=attribute(node, "block_size", 0),
        b=b,
        scales=scales,
        zero_points=known(3),
        bias=known(5),
    )
    if reason := weights.why_malformed():
        raise AieError(f"node '{node_label(node)}': {reason}")
    return weights


def matmul_weights(node: ir.Node) -> MatMulNBitsWeights:
    """The weights of a node that has `blocked_weights`."""
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
        blocked_weights(node)
        weights = matmul_weights(node)
        inputs = [node.inputs[0], self.packed.value(node, weights)]
        bias = input_at(node, 5)
        if bias is not None:
            inputs.append(bias)
        return inputs, {
            **weights.attributes(),
            "accuracy_level": attribute(node, "accuracy_level", 0),
            # Without zero points each is 2^(bits - 1). That times -scale is exact, so the minima
            # need not be read.
            "symmetric": int(weights.zero_points is None),
        }
