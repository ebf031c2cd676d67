"""Float weights as Q4NX, Q2NX, Q8NX or bfloat16 blocks, packed only when they are written.

A matrix is packed once, however many nodes multiply by it. Its packing error is noted then.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
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
    Q2NX = "q2nx"
    Q8NX = "q8nx"
    BF16 = "bf16"

    @property
    def bits(self) -> int:
        """Bits of a weight's code; of bfloat16, its own."""
        return _BITS[self]

    def blocks_shape(self, n: int, k: int) -> tuple[int, int, int]:
        """The shape of a packed (n, k) matrix: of bytes, or of bfloat16."""
        if self is WeightForm.BF16:
            return bf16_blocks.blocks_shape(n, k)
        return q4nx.blocks_shape(n, k, self.bits)

    def attributes(self) -> dict[str, int]:
        """What an operator on such weights needs to know of them besides K and N."""
        if self is WeightForm.BF16:
            return {}
        given = {"accuracy_level": 0, "symmetric": 0}
        return given if self is WeightForm.Q4NX else given | {"bits": self.bits}


_BITS = {WeightForm.Q4NX: 4, WeightForm.Q2NX: 2, WeightForm.Q8NX: 8, WeightForm.BF16: 16}


@dataclass(frozen=True)
class LayerError:
    """The error of a layer's packed weights.

    Attributes:
        node: the (first) node that multiplies by them.
        nodes: how many do.
        form: the format of the weights, a WeightForm.
        k: in-features.
        n: out-features.
        relative: root mean square error over root mean square weight.
        largest: largest error of a weight.
    """

    node: str
    nodes: int
    form: str
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
    def key(self) -> str:
        """The name of this matrix among those of its model."""
        return f"{self.value.name}{'_nk' if self.rows_are_outputs else ''}"

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


@dataclass(frozen=True)
class Quantising:
    """What float weights become.

    Attributes:
        form: the format of matrices that `forms` does not name.
        forms: the format of others, by `FloatWeights.key`.
        importance: by the same keys, how much the squared error of each in-feature counts when a
            matrix is rounded, (K); it counts the same in matrices that are not named.
    """

    form: WeightForm
    forms: Mapping[str, WeightForm] = field(default_factory=dict)
    importance: Mapping[str, Floats] = field(default_factory=dict)

    def form_of(self, weights: FloatWeights) -> WeightForm:
        """The format of a matrix."""
        return self.forms.get(weights.key, self.form)


class FloatLayers:
    """The packed initializers of a model, one for each matrix, and their errors once packed."""

    def __init__(self, quantising: Quantising) -> None:
        self.quantising = quantising
        # Called with the bytes of blocks that were packed, a part of a matrix at a time.
        self.packed: Callable[[int], None] = lambda size: None
        self.errors: dict[str, LayerError] = {}
        self._shared = SharedInitializers()
        self._layers: dict[str, LayerError] = {}

    def value(self, node: ir.Node, weights: FloatWeights) -> ir.Value:
        """The initializer of `weights` in the graph of `node`, made and registered on first use."""
        form = self.quantising.form_of(weights)
        key = (weights.value.name, weights.rows_are_outputs)
        name = f"{weights.key}_{form}"
        layer = self._layers.get(name)
        if layer is None:
            k, n = weights.shape
            layer = LayerError(node_label(node), 0, form, k, n, math.nan, math.nan)
        self._layers[name] = replace(layer, nodes=layer.nodes + 1)
        return self._shared.value(node, key, lambda: self._make(name, weights))

    def _make(self, name: str, weights: FloatWeights) -> ir.Value:
        k, n = weights.shape
        form = self.quantising.form_of(weights)
        dtype = ir.DataType.BFLOAT16 if form is WeightForm.BF16 else ir.DataType.UINT8
        shape = ir.Shape(form.blocks_shape(n, k))
        tensor = ir.LazyTensor(
            lambda: ir.tensor(self._pack(name, weights, shape.numpy()), name=name, dtype=dtype),
            dtype=dtype, shape=shape, name=name,
        )  # fmt: skip
        return ir.val(name, const_value=tensor)

    def _pack(
        self, name: str, weights: FloatWeights, shape: tuple[int, ...]
    ) -> npt.NDArray[np.uint8] | npt.NDArray[np.generic]:
        form = self.quantising.form_of(weights)
        importance = self.quantising.importance.get(weights.key)
        blocks = np.empty(shape, bf16_blocks.bfloat16 if form is WeightForm.BF16 else np.uint8)
        squared_error = squared_weights = largest = 0.0
        for rows, cols, piece in weights.pieces():
            try:
                counts = None if importance is None else part_of(importance, cols, piece)
                part, *error = quantised(piece, form, counts)
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


def quantised(
    weights: Floats, form: WeightForm, importance: Floats | None
) -> tuple[npt.NDArray[np.generic], float, float, float, float]:
    """Packs (N, K) weights; see `_native.quantize`, which gives the same of bfloat16 blocks."""
    if form is WeightForm.BF16:
        return _round(weights)
    return _native.quantize(weights, form.bits, importance)


def part_of(importance: Floats, cols: slice, piece: Floats) -> Floats:
    """The importance of a piece's in-features; `cols` are its columns of blocks."""
    first = (cols.start or 0) * q4nx.BLOCK_COLS
    return importance[first : first + piece.shape[1]]


def _round(weights: Floats) -> tuple[npt.NDArray[np.generic], float, float, float, float]:
    """As `_native.quantize` without importance, to bfloat16 blocks."""
    rounded = weights.astype(bf16_blocks.bfloat16)
    error = rounded.astype(np.float32)
    error -= weights
    if not np.isfinite(error).all():
        raise ValueError("weights hold NaN, infinities or values that bfloat16 cannot represent")
    sums = [float(np.sum(np.square(x), dtype=np.float64)) for x in (error, weights)]
    return bf16_blocks.pack(rounded), sums[0], sums[1], float(np.abs(error).max()), sums[0]
