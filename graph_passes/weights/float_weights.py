"""Float weights as Q4NX or as bfloat16 blocks, packed only when they are written.

A matrix is packed once, however many nodes multiply by it. Its packing error is noted then.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ort_aie_ep import _native
from ort_aie_ep.errors import AieError
from ort_aie_ep.formats import bf16_blocks, q4nx
from ort_aie_ep.graph_passes.walk import node_label
from ort_aie_ep.graph_passes.weights.packed import tensor_rows
from ort_aie_ep.graph_passes.weights.shared_initializers import SharedInitializers

# Source bytes per step of packing, of which several temporary copies are made.
PIECE_BYTES = 16 << 20

Floats = npt.NDArray[np.float32]


class WeightForm(StrEnum):
    """The format that float weights get."""

    Q4NX = "q4nx"
    BF16 = "bf16"


@dataclass(frozen=True)
class LayerError:
    """The error of a layer's packed weights.

    Attributes:
        node: the (first) node that multiplies by them.
        nodes: how many do.
        k: in-features.
        n: out-features.
        relative: root mean square error over root mean square weight.
        largest: largest error of a weight.
    """

    node: str
    nodes: int
    k: int
    n: int
    relative: float
    largest: float


@dataclass(frozen=True)
class FloatWeights:
    """A constant matrix, (K, N) as MatMul has it or (N, K) where `rows_are_outputs`."""

    value: ir.Value
    rows_are_outputs: bool

    @property
    def tensor(self) -> ir.TensorProtocol:
        """The matrix as it is stored."""
        assert self.value.const_value is not None
        return self.value.const_value

    @property
    def shape(self) -> tuple[int, ...]:
        """(K, N), if it has two dimensions."""
        dims = tuple(self.tensor.shape.numpy())
        return dims[::-1] if self.rows_are_outputs else dims

    def pieces(self) -> Iterator[tuple[slice, slice, Floats]]:
        """(rows of blocks, columns of blocks, those weights as (N, K)), whole blocks at a time."""
        rows, cols = self.tensor.shape.numpy()
        unit = q4nx.BLOCK_ROWS if self.rows_are_outputs else q4nx.BLOCK_COLS
        dtype = self.tensor.dtype.numpy()
        step = max(1, PIECE_BYTES // (cols * dtype.itemsize) // unit) * unit
        for first in range(0, rows, step):
            count = min(step, rows - first)
            raw = tensor_rows(self.value, rows, first, count)
            piece = raw.view(dtype).reshape(count, cols).astype(np.float32, copy=False)
            part = slice(first // unit, -(-(first + count) // unit))
            if self.rows_are_outputs:
                yield part, slice(None), piece
            else:
                yield slice(None), part, piece.T


class FloatLayers:
    """The packed initializers of a model, one for each matrix, and their errors once packed."""

    def __init__(self, form: WeightForm) -> None:
        self.form = form
        # Called with the bytes of blocks that were packed, a part of a matrix at a time.
        self.packed: Callable[[int], None] = lambda size: None
        self.errors: dict[str, LayerError] = {}
        self._shared = SharedInitializers()
        self._layers: dict[str, LayerError] = {}

    def value(self, node: ir.Node, weights: FloatWeights) -> ir.Value:
        """The initializer of `weights` in the graph of `node`, made and registered on first use."""
        key = (weights.value.name, weights.rows_are_outputs)
        name = f"{weights.value.name}_{'nk_' if weights.rows_are_outputs else ''}{self.form}"
        layer = self._layers.get(name)
        if layer is None:
            k, n = weights.shape
            layer = LayerError(node_label(node), 0, k, n, math.nan, math.nan)
        self._layers[name] = replace(layer, nodes=layer.nodes + 1)
        return self._shared.value(node, key, lambda: self._make(name, weights))

    def _make(self, name: str, weights: FloatWeights) -> ir.Value:
        k, n = weights.shape
        if self.form is WeightForm.Q4NX:
            dtype, shape = ir.DataType.UINT8, ir.Shape(q4nx.blocks_shape(n, k))
        else:
            dtype, shape = ir.DataType.BFLOAT16, ir.Shape(bf16_blocks.blocks_shape(n, k))
        value = ir.Value(name=name, shape=shape, type=ir.TensorType(dtype))
        value.const_value = ir.LazyTensor(
            lambda: ir.tensor(self._pack(name, weights, shape.numpy()), name=name, dtype=dtype),
            dtype=dtype,
            shape=shape,
            name=name,
        )
        return value

    def _pack(
        self, name: str, weights: FloatWeights, shape: tuple[int, ...]
    ) -> npt.NDArray[np.uint8] | npt.NDArray[np.generic]:
        quantised = self.form is WeightForm.Q4NX
        blocks = np.empty(shape, np.uint8 if quantised else bf16_blocks.bfloat16)
        squared_error = squared_weights = largest = 0.0
        for rows, cols, piece in weights.pieces():
            try:
                part, *error = (_native.quantize if quantised else _round)(piece)
            except ValueError as problem:
                raise AieError(
                    f"node '{self._layers[name].node}': weights '{weights.value.name}': {problem}; "
                    "--keep leaves a node as it is"
                ) from problem
            blocks[rows, cols] = part
            self.packed(part.nbytes)
            squared_error += error[0]
            squared_weights += error[1]
            largest = max(largest, error[2])
        relative = math.sqrt(squared_error / squared_weights) if squared_weights else 0.0
        self.errors[name] = replace(self._layers[name], relative=relative, largest=largest)
        return blocks


def _round(weights: Floats) -> tuple[npt.NDArray[np.generic], float, float, float]:
    """As `_native.quantize`, to bfloat16 blocks."""
    rounded = weights.astype(bf16_blocks.bfloat16)
    error = rounded.astype(np.float32)
    error -= weights
    if not np.isfinite(error).all():
        raise ValueError("weights hold NaN, infinities or values that bfloat16 cannot represent")
    sums = [float(np.sum(np.square(x), dtype=np.float64)) for x in (error, weights)]
    return bf16_blocks.pack(rounded), sums[0], sums[1], float(np.abs(error).max())
