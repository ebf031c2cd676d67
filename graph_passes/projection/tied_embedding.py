"""A GatherBlockQuantized that reads the lm_head's weights -> aie.Q4NXGather on the same tensor.

Before: GatherBlockQuantized(Reshape(B), indices, scales, zero_points?) and
        MatMulNBits(A, B, scales, zero_points?)
After:  Q4NXGather(W, indices) and, by the pass for MatMulNBits, Q4NXMatMul(A, W)
"""

from __future__ import annotations

import onnx_ir as ir

from ort_aie_ep.graph_passes.base import Attribute, NodeRule, Report
from ort_aie_ep.graph_passes.projection.matmul_nbits import (
    blocked_weights,
    matmul_weights,
    why_not_matmul,
)
from ort_aie_ep.graph_passes.walk import (
    attribute,
    constant_array,
    input_at,
    is_fixed,
    known_dims,
    made_by,
)
from ort_aie_ep.graph_passes.weights.packed import PackedWeights


class TiedEmbedding(NodeRule):
    """Replaces a GatherBlockQuantized; runs before MatMulNBits is replaced."""

    op_type = "GatherBlockQuantized"
    becomes = "Q4NXGather"

    def __init__(self, report: Report, packed: PackedWeights) -> None:
        super().__init__(report)
        self.packed = packed

    def why_not(self, node: ir.Node) -> str:  # noqa: D102
        data = _source(node)
        if data is None or not is_fixed(data):
            return "its data is not constant"
        if data.dtype != ir.DataType.UINT8:
            return f"its data is {data.dtype}; only uint8 with packed codes is shared"
        projection = _projection(node)
        if projection is None:
            return "its weights are not tied to a MatMulNBits; the CPU EP gathers them as they are"
        reason = why_not_matmul(projection)
        if reason:
            return f"the projection that it is tied to stays on the CPU EP: {reason}"
        return blocked_weights(projection).why_not_rows(
            bits=attribute(node, "bits", 4),
            gather_axis=attribute(node, "gather_axis", 0),
            quantize_axis=attribute(node, "quantize_axis", 1),
            data=_rows(node),
        )

    def replacement(self, node: ir.Node) -> tuple[list[ir.Value | None], dict[str, Attribute]]:  # noqa: D102
        projection, scales = _projection(node), node.inputs[2]
        assert projection is not None
        assert scales is not None
        assert scales.dtype is not None
        weights = matmul_weights(projection)
        return [self.packed.value(node, weights), node.inputs[1]], {
            **weights.attributes(),
            "dtype": int(scales.dtype),
        }


def _source(gather: ir.Node) -> ir.Value | None:
    """The initializer behind the gather's data, through the Reshape that the builder writes."""
    data = gather.inputs[0]
    reshape = made_by(data, "Reshape")
    return data if reshape is None else reshape.inputs[0]


def _rows(gather: ir.Node) -> list[int]:
    """The dimensions of the gather's data, as reshaped; -1 for one that is not known."""
    data = gather.inputs[0]
    reshape = made_by(data, "Reshape")
    if reshape is None:
        return known_dims(data) or []
    sizes = constant_array(input_at(reshape, 1))
    if sizes is None or sizes.ndim != 1:  # ONNX Runtime takes a list alone
        return []
    source = known_dims(reshape.inputs[0]) or []
    return [
        source[axis] if size == 0 and axis < len(source) else size
        for axis, size in enumerate(sizes.tolist())
    ]


def _projection(gather: ir.Node) -> ir.Node | None:
    """The MatMulNBits with the same weights, scales and zero points."""
    data, scales, zero_points = _source(gather), gather.inputs[2], input_at(gather, 3)
    if data is None:
        return None
    for user in data.consumers():
        if (
            user.op_type == "MatMulNBits"
            and user.inputs[1] is data
            and user.inputs[2] is scales
            and input_at(user, 3) is zero_points
            and attribute(user, "block_size", 0) == attribute(gather, "block_size", 128)
        ):
            return user
    return None
