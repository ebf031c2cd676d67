"""MatMulNBits weights as Q4NX, Q2NX and Q8NX initializers, packed only when they are written.

A tensor is packed once for each (B, scales, zero_points) and way to read them, however many nodes
use it: a tied embedding and the lm_head projection share one copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ort_aie_ep import _native
from ort_aie_ep.errors import AieError
from ort_aie_ep.formats import q4nx
from ort_aie_ep.graph_passes.walk import attribute, input_at
from ort_aie_ep.graph_passes.weights.shared_initializers import SharedInitializers
from ort_aie_ep.graph_passes.weights.streamed import RowTensor

# Source bytes per step of packing: what is resident besides the result.
CHUNK_BYTES = 64 << 20


@dataclass(frozen=True)
class MatMulNBitsWeights:
    """The weight inputs of one MatMulNBits: B (N, ceil(K / block_size), block_size * bits / 8)
    uint8, scales (N, ceil(K / block_size)), zero_points packed or a float for each scale, or None
    (2^(bits - 1) each).

    `rows` are the selected out-features, None for all: two projections may share one tensor.
    """

    n: int
    k: int
    block_size: int
    b: ir.Value
    scales: ir.Value
    zero_points: ir.Value | None
    rows: range | None = None
    bits: int = 4

    @classmethod
    def of(cls, node: ir.Node) -> MatMulNBitsWeights:
        """Those of a well-formed MatMulNBits."""
        b, scales = node.inputs[1], node.inputs[2]
        assert b is not None
        assert scales is not None
        n, k, block_size = (attribute(node, name, 0) for name in ("N", "K", "block_size"))
        bits = attribute(node, "bits", 4)
        return cls(n, k, block_size, b, scales, input_at(node, 3), bits=bits)

    @property
    def out_features(self) -> range:
        """The selected rows of the N rows."""
        return range(self.n) if self.rows is None else self.rows

    @property
    def orientation(self) -> str:
        """The layout in the packed name: empty for (N, K), "_kn" for (K, N)."""
        return ""

    @property
    def symmetric(self) -> bool:
        """Whether each zero point is 2^(bits - 1)."""
        return self.zero_points is None

    def pack(self, form: q4nx.BlockForm) -> npt.NDArray[np.uint8]:
        """Blocks of the rows meant, packed a range of them at a time."""
        begin, n = self.out_features.start, len(self.out_features)
        blocks = np.empty(form.blocks_shape(n, self.k), np.uint8)
        row_bytes = max(1, _tensor(self.b).nbytes // self.n)
        step = max(1, CHUNK_BYTES // row_bytes // q4nx.BLOCK_ROWS) * q4nx.BLOCK_ROWS
        for first in range(0, n, step):
            rows = min(step, n - first)
            zero_points = self.zero_points
            blocks[first // 32 : -(-(first + rows) // 32)] = _native.pack_matmulnbits(
                tensor_rows(self.b, self.n, begin + first, rows),
                tensor_rows(self.scales, self.n, begin + first, rows),
                None
                if zero_points is None
                else tensor_rows(zero_points, self.n, begin + first, rows),
                rows,
                self.k,
                self.block_size,
                _tensor(self.scales).dtype.name,
                self.bits,
                "UINT8" if zero_points is None else _tensor(zero_points).dtype.name,
                form.group,
                form.minima,
            )
        return blocks


class PackedWeights:
    """The Q4NX, Q2NX and Q8NX initializers of a model, one for each set of source tensors.

    They have the smallest form that holds their source; with `q4nx_compatible`, that of `.q4nx`
    files, which NPUs read where it is.
    """

    def __init__(self, *, q4nx_compatible: bool = False) -> None:
        self._shared = SharedInitializers()
        self.q4nx_compatible = q4nx_compatible

    def form(self, weights: MatMulNBitsWeights) -> q4nx.BlockForm:
        """The form of packed weights."""
        if self.q4nx_compatible:
            return q4nx.BlockForm(weights.bits)
        return q4nx.BlockForm.smallest(
            weights.bits, weights.block_size, symmetric=weights.symmetric
        )

    def attributes(self, weights: MatMulNBitsWeights) -> dict[str, int]:
        """The attributes of an op with these weights: K, N and their form."""
        form = self.form(weights).attributes()
        return {"K": weights.k, "N": len(weights.out_features)} | form

    def value(self, node: ir.Node, weights: MatMulNBitsWeights) -> ir.Value:
        """The initializer of `weights`, made and registered in the node's graph on first use."""
        zero_points = weights.zero_points
        rows = weights.out_features
        key = (
            weights.b.name,
            weights.scales.name,
            zero_points.name if zero_points else None,
            str(rows),
            weights.orientation,
            weights.k,
            weights.block_size,
            weights.bits,
        )
        return self._shared.value(node, key, lambda: self._make(weights))

    def _make(self, weights: MatMulNBitsWeights) -> ir.Value:
        rows = weights.out_features
        part = "" if weights.rows is None else f"_{rows.start}"
        name = f"{weights.b.name}{weights.orientation}_q{weights.bits}nx{part}"
        form = self.form(weights)
        shape = ir.Shape(form.blocks_shape(len(rows), weights.k))
        tensor = ir.LazyTensor(
            lambda: ir.tensor(weights.pack(form), name=name),
            dtype=ir.DataType.UINT8, shape=shape, name=name,
        )  # fmt: skip
        return ir.val(name, const_value=tensor)


def _tensor(value: ir.Value) -> ir.TensorProtocol:
    assert value.const_value is not None
    return value.const_value


def tensor_rows(value: ir.Value, n: int, first: int, count: int) -> npt.NDArray[np.uint8]:
    """Bytes of rows [first, first + count) of a tensor with n rows.

    External data is read from the file, not mapped: mapped pages would count as resident until the
    whole model is packed.
    """
    tensor = _tensor(value)
    row_bytes = tensor.nbytes // n
    if isinstance(tensor, RowTensor):
        return tensor.rows(first, count)
    if isinstance(tensor, ir.ExternalTensor):
        offset = (tensor.offset or 0) + first * row_bytes
        data = np.fromfile(Path(tensor.path), np.uint8, count * row_bytes, offset=offset)
        if data.size != count * row_bytes:
            raise AieError(
                f"{tensor.path} ends inside tensor '{value.name}': the external data is truncated"
            )
        return data
    whole = np.frombuffer(tensor.tobytes(), np.uint8)
    return whole[first * row_bytes : (first + count) * row_bytes]
