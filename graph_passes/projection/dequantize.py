"""4-bit weights in blocks (DequantizeLinear) -> aie.Q4NXMatMul and aie.Q4NXGather.

Before: MatMul(A, W), Gemm(A, W, C?) or Gather(W, indices), with W = DequantizeLinear(x, scale,
        zero_point?) of int4 or uint4 in blocks along the in-features, perhaps transposed
After:  Q4NXMatMul(A, W, C?) or Q4NXGather(W, indices)

As onnxruntime-genai's builder (`use_qdq`), ONNX Runtime's quantiser and others write them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from onnx_ir.passes import common as common_passes

from ort_aie_ep import _native
from ort_aie_ep.errors import AieError
from ort_aie_ep.formats import q4nx
from ort_aie_ep.graph_passes.base import DOMAIN, Attribute, NodeRule, Report
from ort_aie_ep.graph_passes.walk import (
    attribute,
    before_transpose,
    input_at,
    is_fixed,
    is_op,
    made_by,
    node_label,
    type_name,
)
from ort_aie_ep.graph_passes.weights.packed import (
    CHUNK_BYTES,
    MatMulNBitsWeights,
    PackedWeights,
    tensor_rows,
)

Codes = npt.NDArray[np.uint8]
FOUR_BITS = (ir.DataType.INT4, ir.DataType.UINT4)
SCALE_TYPES = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
BECOMES = {"MatMul": "Q4NXMatMul", "Gemm": "Q4NXMatMul", "Gather": "Q4NXGather"}
# Blocks of Q4NX repeat the single scale of an out-feature, or of all out-features.
NO_BLOCKS = q4nx.BLOCK_COLS


@dataclass(frozen=True)
class DequantizedWeights(MatMulNBitsWeights):
    """Weights as DequantizeLinear has them: b is (K, N), scales and zero points (K / block, N), or
    with `rows_are_outputs` their transposes; not `in_blocks`, both are (N) or one.
    """

    rows_are_outputs: bool = False
    in_blocks: bool = True

    @property
    def orientation(self) -> str:
        """Says "_kn" unless `rows_are_outputs`."""
        return "" if self.rows_are_outputs else "_kn"

    def check(self, node: str) -> None:
        """Raises AieError when scales or zero points do not fit the codes."""
        dtype = self.scales.dtype
        if dtype not in SCALE_TYPES:
            raise AieError(
                f"node '{node}': scales '{self.scales.name}' are {type_name(self.scales)}; "
                "expected FLOAT, FLOAT16 or BFLOAT16"
            )
        blocks = -(-self.k // self.block_size)
        shape = (self.n, blocks) if self.rows_are_outputs else (blocks, self.n)
        allowed: tuple[tuple[int, ...], ...] = (shape,)
        if not self.in_blocks:
            allowed = ((self.n,),) if _dims(self.scales) == (self.n,) else ((), (1,))
        for name, value in (("scales", self.scales), ("zero points", self.zero_points)):
            if value is not None and _dims(value) not in allowed:
                raise AieError(
                    f"node '{node}': {name} '{value.name}' are {_dims(value)}, expected "
                    f"{' or '.join(map(str, allowed))} for K={self.k} N={self.n} "
                    f"block_size={self.block_size if self.in_blocks else 0}"
                )

    @property
    def symmetric(self) -> bool:
        """Whether code 8 stands for zero everywhere."""
        return bool((self._zero_points() == 8).all())

    def pack(self, form: q4nx.BlockForm) -> npt.NDArray[np.uint8]:
        """Q4NX blocks, some rows of x at a time."""
        blocks = np.empty(form.blocks_shape(self.n, self.k), np.uint8)
        scales, zero_points = self._each_block(_array(self.scales)), self._zero_points()
        per_column = q4nx.BLOCK_COLS // self.block_size
        for rows, cols, codes in self._pieces():
            n = slice(rows.start * q4nx.BLOCK_ROWS, rows.stop * q4nx.BLOCK_ROWS)
            groups = slice(cols.start * per_column, cols.stop * per_column)
            padding = -codes.shape[1] % self.block_size
            blocks[rows, cols] = _native.pack_matmulnbits(
                _nibbles(np.pad(codes, ((0, 0), (0, padding)))),
                np.ascontiguousarray(scales[n, groups]).view(np.uint8).reshape(-1),
                _nibbles(zero_points[n, groups]) if form.minima else None,
                codes.shape[0],
                codes.shape[1],
                self.block_size,
                type_name(self.scales),
                group=form.group,
                minima=form.minima,
            )
        return blocks

    def _pieces(self) -> Iterator[tuple[slice, slice, Codes]]:
        """(rows of blocks, columns of blocks, those codes as (N, K)), whole blocks at a time."""
        row_blocks, col_blocks, _ = q4nx.blocks_shape(self.n, self.k)
        length, width, unit = self.k, self.n, q4nx.BLOCK_COLS
        if self.rows_are_outputs:
            length, width, unit = self.n, self.k, q4nx.BLOCK_ROWS
        tensor = self.b.const_value
        assert tensor is not None
        # Codes take a byte each while they are moved.
        step = max(1, CHUNK_BYTES // width // unit) * unit
        for first in range(0, length, step):
            count = min(step, length - first)
            packed = tensor_rows(self.b, tensor.nbytes, first * width // 2, -(-count * width // 2))
            codes = np.stack([packed & 15, packed >> 4], axis=1).reshape(-1)
            codes = codes[: count * width].reshape(count, width) ^ self._sign
            part = slice(first // unit, -(-(first + count) // unit))
            if self.rows_are_outputs:
                yield part, slice(0, col_blocks), codes
            else:
                yield slice(0, row_blocks), part, codes.T

    @property
    def _sign(self) -> np.uint8:
        """What turns a nibble into a code of 0 to 15: the sign bit of int4 is a bias of 8."""
        return np.uint8(8 if self.b.dtype == ir.DataType.INT4 else 0)

    def _zero_points(self) -> Codes:
        """(N, blocks) codes that stand for zero."""
        given = np.zeros(1) if self.zero_points is None else _array(self.zero_points)
        values: Codes = given.astype(np.int8).view(np.uint8) & np.uint8(15)
        return self._each_block(values ^ self._sign)

    def _each_block(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Values of blocks, values of out-features or one value -> (N, blocks)."""
        if values.ndim == 2:
            return values if self.rows_are_outputs else values.T
        return np.broadcast_to(values.reshape(-1, 1), (self.n, -(-self.k // self.block_size)))


class DequantizedToQ4NX(NodeRule):
    """Replaces each eligible MatMul, Gemm and Gather of dequantised weights."""

    def __init__(self, report: Report, packed: PackedWeights) -> None:
        super().__init__(report)
        self.packed = packed
        self.read: dict[ir.Node, str] = {}

    def apply(self, model: ir.Model) -> None:  # noqa: D102
        self.read.clear()
        super().apply(model)
        if self.read:
            common_passes.RemoveUnusedNodesPass()(model)
        for dequantize, becomes in self.read.items():
            if dequantize.graph is None:  # others may still read it
                self.report.fused(dequantize, f"{DOMAIN}.{becomes}")

    def takes(self, node: ir.Node) -> bool:  # noqa: D102
        return is_op(node, *BECOMES) and _dequantized(node) is not None

    def becomes_of(self, node: ir.Node) -> str:  # noqa: D102
        return BECOMES[node.op_type]

    def why_not(self, node: ir.Node) -> str:  # noqa: D102
        return _why_not(node, *_source(node))

    def replacement(self, node: ir.Node) -> tuple[list[ir.Value | None], dict[str, Attribute]]:  # noqa: D102
        dequantize, rows_are_outputs = _source(node)
        weights = _weights(dequantize, rows_are_outputs)
        weights.check(node_label(node))
        self.read[dequantize] = BECOMES[node.op_type]
        value = self.packed.value(node, weights)
        sizes: dict[str, Attribute] = {**self.packed.attributes(weights)}
        if node.op_type == "Gather":
            assert weights.scales.dtype is not None
            return [value, node.inputs[1]], sizes | {"dtype": int(weights.scales.dtype)}
        bias = input_at(node, 2)
        inputs = [node.inputs[0], value, *([bias] if bias is not None else [])]
        return inputs, sizes | {"symmetric": int(weights.symmetric)}


def _source(node: ir.Node) -> tuple[ir.Node, bool]:
    """The result of `_dequantized` for a node that the rule accepts."""
    source = _dequantized(node)
    assert source is not None
    return source


def _dequantized(node: ir.Node) -> tuple[ir.Node, bool] | None:
    """The DequantizeLinear of a node's weights, and whether its rows are their out-features."""
    value = input_at(node, 0 if node.op_type == "Gather" else 1)
    rows_are_outputs = node.op_type == "Gather" or (
        node.op_type == "Gemm" and attribute(node, "transB", 0) == 1
    )
    source, transposed = before_transpose(value) or (None, False)
    dequantize = made_by(source, "DequantizeLinear")
    x = dequantize.inputs[0] if dequantize is not None else None
    if dequantize is None or x is None or len(_dims(x)) != 2:
        return None
    return dequantize, rows_are_outputs != transposed


def _why_not(node: ir.Node, dequantize: ir.Node, rows_are_outputs: bool) -> str:
    x, scales, zero_points = (input_at(dequantize, i) for i in range(3))
    assert x is not None
    assert scales is not None
    if x.dtype not in FOUR_BITS:
        return f"weights are {type_name(x)}; Q4NX holds INT4 and UINT4"
    made = attribute(dequantize, "output_dtype", 0)
    if made not in (0, scales.dtype):
        return f"its output_dtype is {ir.DataType(made).name} and its scales {type_name(scales)}"
    n, k = _dims(x) if rows_are_outputs else reversed(_dims(x))
    block_size = attribute(dequantize, "block_size", 0)
    axis = attribute(dequantize, "axis", 1) % 2
    along_inputs = axis == int(rows_are_outputs)
    one_scale = len(_dims(scales)) == 0 or _dims(scales) == (1,)
    if block_size and not along_inputs:
        return "its blocks lie along the out-features; Q4NX has them along the in-features"
    if not block_size and along_inputs and not one_scale:
        return "it has a scale for each in-feature; Q4NX has them for out-features"
    if node.op_type == "Gather":
        if attribute(node, "axis", 0) != 0 or not rows_are_outputs:
            return "it gathers columns"
        kind = type_name(scales)
    else:
        kind = type_name(node.inputs[0], scales)
    if node.op_type == "Gemm":
        bias = input_at(node, 2)
        scaled = attribute(node, "alpha", 1.0) != 1.0 or attribute(node, "beta", 1.0) != 1.0
        if scaled or attribute(node, "transA", 0):
            return "alpha, beta or transA is not at its default"
        if bias is not None and (bias.shape is None or _dims(bias) != (n,)):
            return f"C is {bias.shape}, expected ({n})"
    return _native.why_not_q4nx(
        k=k,
        n=n,
        block_size=block_size or NO_BLOCKS,
        constant_weights=all(v is None or is_fixed(v) for v in (x, scales, zero_points)),
        type=kind,
    )


def _weights(dequantize: ir.Node, rows_are_outputs: bool) -> DequantizedWeights:
    x, scales = dequantize.inputs[:2]
    assert x is not None
    assert scales is not None
    n, k = _dims(x) if rows_are_outputs else reversed(_dims(x))
    return DequantizedWeights(
        n=n,
        k=k,
        block_size=attribute(dequantize, "block_size", 0) or NO_BLOCKS,
        b=x,
        scales=scales,
        zero_points=input_at(dequantize, 2),
        rows_are_outputs=rows_are_outputs,
        in_blocks=attribute(dequantize, "block_size", 0) != 0,
    )


def _dims(value: ir.Value) -> tuple[int, ...]:
    """The dimensions of a constant; empty if they are not known."""
    shape = value.const_value.shape if value.const_value is not None else value.shape
    dims = [] if shape is None else [d for d in shape if isinstance(d, int)]
    return tuple(dims) if shape is not None and len(dims) == len(shape) else ()


def _array(value: ir.Value) -> npt.NDArray[Any]:
    assert value.const_value is not None
    array: npt.NDArray[Any] = value.const_value.numpy()
    return array


def _nibbles(codes: Codes) -> Codes:
    """(N, M) codes -> N * ceil(M / 2) bytes, the first in the low half."""
    even = np.pad(codes, ((0, 0), (0, codes.shape[1] % 2)))
    return np.ascontiguousarray(even[:, 0::2] | (even[:, 1::2] << 4)).reshape(-1)
