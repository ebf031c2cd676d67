"""A GatherBlockQuantized that reads the lm_head's weights -> aie.Q4NXGather on the same tensor.

Before: GatherBlockQuantized(Reshape(B), indices, scales, zero_points?) and
        MatMulNBits(A, B, scales, zero_points?)
After:  Q4NXGather(W, indices) and, by the pass for MatMulNBits, Q4NXMatMul(A, W)
"""

from __future__ import annotations

import onnx_ir as ir

from ort_aie_ep.graph_passes.base import Attribute, NodeRule, Report
from ort_aie_ep.graph_passes.projection.matmul_nbits import matmul_weights, why_not_matmul
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
        weights = matmul_weights(projection)
        bits = attribute(node, "bits", 4)
        if bits != weights.bits:
            return f"its codes have {bits} bits, but those of the projection have {weights.bits}"
        if attribute(node, "gather_axis", 0) != 0:
            return "gather_axis is not 0"
        if weights.k % weights.block_size != 0:
            # The gathered rows would also contain the padding of the last block.
            return f"K={weights.k} is not a multiple of block_size={weights.block_size}"
        if not _is_rows(node, weights.n, weights.k * bits // 8):
            return f"its data is reshaped to something other than {weights.n} rows"
        # A MatMulNBits takes these in one dimension as well.
        for name, value in (("scales", weights.scales), ("zero_points", weights.zero_points)):
            dims = known_dims(value)
            if dims is not None and len(dims) != 2:
                return f"its {name} are ({', '.join(map(str, dims))}); expected two dimensions"
        return ""

    def replacement(self, node: ir.Node) -> tuple[list[ir.Value | None], dict[str, Attribute]]:  # noqa: D102
        projection, scales = _projection(node), node.inputs[2]
        assert projection is not None
        assert scales is not None
        assert scales.dtype is not None
        weights = matmul_weights(projection)
        return [self.packed.value(node, weights), node.inputs[1]], {
            **self.packed.attributes(weights),
            "dtype": int(scales.dtype),
        }


def _source(gather: ir.Node) -> ir.Value | None:
    """The initializer behind the gather's data, through the Reshape that the builder writes."""
    data = gather.inputs[0]
    reshape = made_by(data, "Reshape")
    return data if reshape is None else reshape.inputs[0]


def _is_rows(gather: ir.Node, n: int, row_bytes: int) -> bool:
    """Whether the gather's data, as reshaped, is (n, row_bytes)."""
    data = gather.inputs[0]
    reshape = data.producer() if data is not None else None
    if reshape is None:
        return data is not None and data.shape == (n, row_bytes)
    shape = constant_array(input_at(reshape, 1))
    dims = [] if shape is None or shape.ndim != 1 else shape.tolist()
    return len(dims) == 2 and dims[0] in (n, 0, -1) and dims[1] in (row_bytes, -1)


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
