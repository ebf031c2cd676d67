"""Random weights of reasonable magnitude, made a few megabytes at a time."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ort_aie_ep.formats.file_forms import FileForm
from ort_aie_ep.models.shapes import Yarn

__all__ = [
    "BLOCK",
    "FLOATS",
    "INT4",
    "Coding",
    "Fill",
    "Stored",
    "Weight",
    "code_rows",
    "normal_rows",
    "rotary_frequencies",
    "rotary_rows",
    "scale_rows",
]

BLOCK = 32
"""Values of K that share a scale, by default."""

# Bytes of one weight made and written at a time.
_CHUNK_BYTES = 16 << 20

# Root mean square of code − 8 for codes drawn uniformly from 0..15.
_CODE_RMS = math.sqrt(sum((code - 8) ** 2 for code in range(16)) / 16)

# YaRN leaves channels alone that turn more often in the original context.
_YARN_TURNS = 32


@dataclass(frozen=True)
class Coding:
    """How a matrix is stored.

    Attributes:
        bits: bits of a code, 4 or 8; 32: the matrix is float32.
        zero_points: their type: FLOAT, or UINT8 (packed like the codes); None: each is
            2^(bits - 1), and they are left out.
    """

    bits: int
    zero_points: ir.DataType | None = None

    @property
    def is_float(self) -> bool:
        """Whether there are no codes."""
        return self.bits == 32


INT4, FLOATS = Coding(4), Coding(32)

Stored = Coding | FileForm
"""How a matrix is stored: for a node of ONNX or of the model builder, or for an aie operator."""

Fill = Callable[[np.random.Generator, int, int], np.ndarray]
"""(generator, first row, number of rows) → those rows of a weight."""


@dataclass(frozen=True)
class Weight:
    """One initializer, and how to make any range of its rows."""

    name: str
    dtype: ir.DataType
    shape: tuple[int, ...]
    fill: Fill

    @property
    def row_bytes(self) -> int:
        """Size of one row."""
        return math.prod(self.shape[1:]) * self.dtype.numpy().itemsize

    @property
    def bytes(self) -> int:
        """Size of all rows."""
        return self.shape[0] * self.row_bytes

    def chunks(self, seed: int) -> Iterator[np.ndarray]:
        """The weight in pieces of at most about `_CHUNK_BYTES`, the same for the same seed."""
        generator = np.random.default_rng([seed, zlib.crc32(self.name.encode())])
        step = max(1, _CHUNK_BYTES // self.row_bytes)
        for first in range(0, self.shape[0], step):
            rows = min(step, self.shape[0] - first)
            numpy_dtype = self.dtype.numpy()
            yield np.ascontiguousarray(self.fill(generator, first, rows), dtype=numpy_dtype)


def normal_rows(columns: tuple[int, ...], mean: float, deviation: float) -> Fill:
    """Normally distributed float32."""

    def fill(generator: np.random.Generator, first: int, rows: int) -> np.ndarray:
        values = generator.standard_normal((rows, *columns), dtype=np.float32)
        return values * np.float32(deviation) + np.float32(mean)

    return fill


def code_rows(columns: tuple[int, ...]) -> Fill:
    """Two codes in a byte, each uniform in 0..15."""

    def fill(generator: np.random.Generator, first: int, rows: int) -> np.ndarray:
        count = rows * math.prod(columns)
        return np.frombuffer(generator.bytes(count), dtype=np.uint8).reshape(rows, *columns)

    return fill


def scale_rows(columns: tuple[int, ...], k: int, gain: float) -> Fill:
    """Scales of weights that turn k values of unit variance into values with deviation `gain`.

    They have either sign, like the builder's: its symmetric quantiser gives the largest value
    code 0 (−8).
    """
    size = gain / (_CODE_RMS * math.sqrt(k))

    def fill(generator: np.random.Generator, first: int, rows: int) -> np.ndarray:
        magnitude = generator.random((rows, *columns), dtype=np.float32) + np.float32(0.5)
        sign = generator.integers(0, 2, (rows, *columns), dtype=np.int8) * 2 - 1
        return magnitude * sign * np.float32(size)

    return fill


def rotary_frequencies(
    rotary: int, theta: float, yarn: Yarn | None = None
) -> npt.NDArray[np.float32]:
    """theta^(−2i/rotary) for i in 0 … rotary/2 − 1, in radians a position, stretched by `yarn`."""
    exponents = np.arange(0, rotary, 2, dtype=np.float32) / np.float32(rotary)
    frequencies: npt.NDArray[np.float32] = np.float32(1.0) / np.float32(theta) ** exponents
    if yarn is None:
        return frequencies

    def channel(turns: float) -> float:
        """The i of the frequency with so many turns in the original context."""
        return rotary / 2 * math.log(yarn.original / (2 * math.pi * turns)) / math.log(theta)

    first, last = channel(_YARN_TURNS), channel(1)
    if yarn.whole:
        first, last = max(0, math.floor(first)), min(rotary - 1, math.ceil(last))
    share = np.clip((np.arange(rotary // 2) - first) / max(last - first, 1e-3), 0, 1).astype(
        np.float32
    )
    frequencies *= 1 - share + share / np.float32(yarn.factor)
    return frequencies


def rotary_rows(
    function: np.ufunc, frequencies: npt.NDArray[np.float32], magnitude: float = 1.0
) -> Fill:
    """cos or sin of position · frequency, times `magnitude`, as (positions, rotary/2) float32."""

    def fill(generator: np.random.Generator, first: int, rows: int) -> np.ndarray:
        positions = np.arange(first, first + rows, dtype=np.float32)
        table: np.ndarray = function(np.outer(positions, frequencies)) * np.float32(magnitude)
        return table

    return fill
