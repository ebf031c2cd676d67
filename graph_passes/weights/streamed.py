"""Tensors that are made while they are written or packed, a part at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ort_aie_ep.models.builder.weights import Weight, rotary_rows

Chunks = Callable[[], Iterator[npt.NDArray[Any]]]
Rows = Callable[[int, int], npt.NDArray[Any]]
"""(first row, number of rows) → those rows of a tensor."""

# Bytes of a tensor of rows that are written at a time.
_CHUNK_BYTES = 16 << 20


class StreamedTensor(ir.LazyTensor):
    """A tensor whose bytes come in pieces, so that only one is in memory while it is written."""

    def __init__(self, name: str, dtype: ir.DataType, shape: Sequence[int], chunks: Chunks) -> None:
        dims = ir.Shape(shape)
        super().__init__(self._whole, dtype=dtype, shape=dims, name=name)
        self._chunks = chunks

    def tofile(self, file: BinaryIO) -> None:
        """Writes it piece by piece."""
        for chunk in self._chunks():
            file.write(chunk.view(np.uint8).data)

    def _whole(self) -> ir.TensorProtocol:
        data = b"".join(chunk.tobytes() for chunk in self._chunks())
        values = np.frombuffer(data, self.dtype.numpy()).reshape(self.shape.numpy())
        return ir.tensor(values, dtype=self.dtype, name=self.name)


class RotaryTable(StreamedTensor):
    """The table of cosines or sines that a weight of the builder stands for, which an
    aie.FlowAttention computes by itself.

    Attributes:
        frequencies: (rotary/2) float32, radians a position.
        magnitude: what cos and sin are times.
    """

    def __init__(
        self, weight: Weight, frequencies: npt.NDArray[np.float32], magnitude: float = 1.0
    ) -> None:
        function = np.cos if weight.name.startswith("cos") else np.sin
        filled = replace(weight, fill=rotary_rows(function, frequencies, magnitude))
        super().__init__(weight.name, weight.dtype, weight.shape, lambda: filled.chunks(0))
        self.frequencies, self.magnitude = frequencies, magnitude


class RowTensor(StreamedTensor):
    """A tensor of which any rows can be made."""

    def __init__(self, name: str, dtype: ir.DataType, shape: Sequence[int], rows: Rows) -> None:
        super().__init__(name, dtype, shape, self._in_steps)
        self._rows = rows

    def rows(self, first: int, count: int) -> npt.NDArray[np.uint8]:
        """Bytes of rows [first, first + count)."""
        made = np.ascontiguousarray(self._rows(first, count), self.dtype.numpy())
        return made.reshape(-1).view(np.uint8)

    def _in_steps(self) -> Iterator[npt.NDArray[np.uint8]]:
        rows, *columns = self.shape.numpy()
        step = max(1, _CHUNK_BYTES // max(1, math.prod(columns) * self.dtype.numpy().itemsize))
        for first in range(0, rows, step):
            yield self.rows(first, min(step, rows - first))
