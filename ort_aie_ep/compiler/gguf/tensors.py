"""Rows of GGUF tensors as blocks of their own form, or for `.q4nx` files' form as codes, scales and
zero points of MatMulNBits, or as floats.

Q4NX_COMPATIBLE says what of a type is kept if weights must be codes:

    type                 becomes   weight
    Q4_0                 4 bits    scale · (code − 8)
    Q4_1, Q4_K           4 bits    scale · code + min, a zero point of −min / scale
    Q5_0, Q8_0, MXFP4    8 bits    scale · (code − 128), exactly
    others in blocks     8 bits    requantised, with zero points

A group has 32 in-features in all of them. Q4NX stores scales and minima in bfloat16.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from ort_aie_ep import _native
from ort_aie_ep.compiler.gguf.file import Tensor
from ort_aie_ep.errors import AieError
from ort_aie_ep.formats.file_forms import FILE_FORMS, OF_GGML_TYPE
from ort_aie_ep.formats.q4nx import BLOCK_ROWS
from ort_aie_ep.models.builder.weights import BLOCK, FLOATS, INT4, Coding, Stored

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Indices = npt.NDArray[np.int64]
Unpacked = tuple[Bytes, Floats, Floats | None]
"""Codes (rows, k) and scales (rows, k/32); and minima, if the type has them."""

MINIMA = Coding(4, ir.DataType.FLOAT)
EXACT = Coding(8)
REQUANTISED = Coding(8, ir.DataType.UINT8)

# In place of a scale of 0, where a group is its minimum: a power of two keeps that exact.
_NO_SCALE = np.float32(2.0**-100)


def _halves(data: Bytes) -> Floats:
    """float16 values in (..., 2 · n) bytes."""
    return np.ascontiguousarray(data).view(np.float16).astype(np.float32)


def _nibbles(data: Bytes) -> Bytes:
    """(..., 2 · n) codes: all low ones, then all high ones."""
    return np.concatenate([data & 15, data >> 4], axis=-1)


def _q4_0(blocks: Bytes) -> Unpacked:
    return _nibbles(blocks[..., 2:]), _halves(blocks[..., :2]), None


def _q4_1(blocks: Bytes) -> Unpacked:
    return _nibbles(blocks[..., 4:]), _halves(blocks[..., :2]), _halves(blocks[..., 2:4])


def _q4_k(blocks: Bytes) -> Unpacked:
    """Eight groups, whose factors of 6 bits are in 12 bytes: the first four of scales and of
    minima whole, and their upper bits the upper bits of the others."""
    scale, least = _halves(blocks[..., :2]), _halves(blocks[..., 2:4])
    first, second, rest = blocks[..., 4:8], blocks[..., 8:12], blocks[..., 12:16]
    scales = np.concatenate([first & 63, rest & 15 | first >> 6 << 4], axis=-1)
    minima = np.concatenate([second & 63, rest >> 4 | second >> 6 << 4], axis=-1)
    pairs = blocks[..., 16:].reshape(*blocks.shape[:-1], 4, 32)
    return _nibbles(pairs), scale * scales, -least * minima


def _q5_0(blocks: Bytes) -> Unpacked:
    fifth = np.unpackbits(blocks[..., 2:6], axis=-1, bitorder="little")
    codes = (_nibbles(blocks[..., 6:]) | fifth << np.uint8(4)) + np.uint8(112)
    return codes, _halves(blocks[..., :2]), None


def _q8_0(blocks: Bytes) -> Unpacked:
    return blocks[..., 2:] ^ np.uint8(128), _halves(blocks[..., :2]), None


# Twice the values of a code in MXFP4 (OCP Microscaling Formats, E2M1): sign, exponent, mantissa.
_E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12], np.uint8)
_MXFP4 = np.concatenate([128 + _E2M1, 128 - _E2M1])


def _mxfp4(blocks: Bytes) -> Unpacked:
    scales = np.ldexp(np.float32(1), blocks[..., :1].astype(np.int32) - 128)
    return _MXFP4[_nibbles(blocks[..., 1:])], scales, None


_TYPE = GGMLQuantizationType
Q4NX_COMPATIBLE: dict[GGMLQuantizationType, tuple[Coding, Callable[[Bytes], Unpacked]]] = {
    _TYPE.Q4_0: (INT4, _q4_0),
    _TYPE.Q4_1: (MINIMA, _q4_1),
    _TYPE.Q4_K: (MINIMA, _q4_k),
    _TYPE.Q5_0: (EXACT, _q5_0),
    _TYPE.Q8_0: (EXACT, _q8_0),
    _TYPE.MXFP4: (EXACT, _mxfp4),
}
"""Types whose codes stay, and codes, scales and minima of (rows, blocks, bytes)."""

_FLOAT_TYPES = {
    _TYPE.F32: ir.DataType.FLOAT,
    _TYPE.F16: ir.DataType.FLOAT16,
    _TYPE.BF16: ir.DataType.BFLOAT16,
}
KNOWN = [*(kind.name for kind in _FLOAT_TYPES), *(name.upper() for name in FILE_FORMS)]
"""The names of types that are read."""


def stored_as(kind: GGMLQuantizationType, *, q4nx_compatible: bool = False) -> Stored:
    """What a type becomes."""
    if kind in _FLOAT_TYPES:
        return FLOATS
    if not q4nx_compatible:
        return OF_GGML_TYPE[kind]
    return Q4NX_COMPATIBLE[kind][0] if kind in Q4NX_COMPATIBLE else REQUANTISED


def table_type(tensor: Tensor) -> ir.DataType:
    """The type of a table of embeddings: the tensor's own if it has floats, else bfloat16."""
    return _FLOAT_TYPES.get(tensor.kind, ir.DataType.BFLOAT16)


def floats(tensor: Tensor, rows: Indices | slice) -> Floats:
    """Rows of a tensor, (rows, in-features) float32.

    Raises:
        AieError: one is not finite.
    """
    if tensor.kind in _FLOAT_TYPES:
        return _finite(tensor, _values(tensor)[rows].astype(np.float32))
    data = tensor.matrix[rows]
    form, k = OF_GGML_TYPE[tensor.kind], tensor.shape[-1]
    return _finite(tensor, form.dequantize(_packed(tensor, data), len(data), k))


def _packed(tensor: Tensor, rows: Bytes) -> Bytes:
    """Blocks of rows as the file has them."""
    form, k = OF_GGML_TYPE[tensor.kind], tensor.shape[-1]
    try:
        return form.pack(np.ascontiguousarray(rows), k, f"tensor '{tensor.name}'")
    except AieError as error:
        raise AieError(f"{error}; expected numbers: download the file again") from error


def _values(tensor: Tensor) -> npt.NDArray[np.generic]:
    """A matrix of floats; the package reads bfloat16 as bytes."""
    return tensor.matrix.view(ml_dtypes.bfloat16) if tensor.kind == _TYPE.BF16 else tensor.matrix


def _finite(tensor: Tensor, values: Floats) -> Floats:
    if not np.isfinite(values).all():
        raise AieError(f"tensor '{tensor.name}' holds NaN, infinities or values too large")
    return values


@dataclass(frozen=True)
class Part:
    """Some rows of a tensor."""

    tensor: Tensor
    rows: Indices


@dataclass(frozen=True)
class Coded:
    """Rows as MatMulNBits has them.

    Attributes:
        codes: (rows, k · bits/8) uint8.
        scales: (rows, k/32) float32.
        zero_points: (rows, k/32), float32 or uint8, if there are any.
        errors: squared error, squared weights, and the largest error, beside the file's weights.
    """

    codes: Bytes
    scales: Floats
    zero_points: npt.NDArray[np.generic] | None
    errors: tuple[float, float, float]


class Matrix:
    """Rows of tensors, one part after the other.

    Args:
        parts: with the same number of in-features.
        stored: how it is stored; None if the parts are not stored alike. What is of another type
            than the codes it becomes is requantised.

    Attributes:
        stored: as given.
        n, k: out-features and in-features.
    """

    def __init__(self, parts: Sequence[Part], stored: Stored | None) -> None:
        self.parts, self.stored = parts, stored
        self.n = sum(len(part.rows) for part in parts)
        self.k = parts[0].tensor.shape[-1]
        self._kept: tuple[tuple[int, int], Coded] | None = None
        self._errors: dict[int, tuple[float, float, float]] = {}

    @property
    def name(self) -> str:
        """The names of its tensors."""
        return ", ".join(dict.fromkeys(part.tensor.name for part in self.parts))

    @property
    def coding(self) -> Coding:
        """How it is stored as codes."""
        assert isinstance(self.stored, Coding), self.name
        return self.stored

    @property
    def relative(self) -> float:
        """Of what became codes so far, root mean square error over root mean square weight."""
        error, square = (sum(each[i] for each in self._errors.values()) for i in (0, 1))
        return math.sqrt(error / square) if square else 0.0

    @property
    def largest(self) -> float:
        """The largest error of a weight."""
        return max((largest for _, _, largest in self._errors.values()), default=0.0)

    def blocks(self, first: int, count: int) -> Bytes:
        """Rows [first, first + count) of blocks, 32 of the matrix each."""
        pieces = self._pieces(first * BLOCK_ROWS, count * BLOCK_ROWS)
        found = [(part.tensor, part.tensor.matrix[rows]) for part, rows in pieces]
        try:
            return _packed(found[0][0], np.concatenate([rows for _, rows in found]))
        except AieError:
            for piece in found:  # which of them is it?
                _packed(*piece)
            raise

    def coded(self, first: int, count: int) -> Coded:
        """Rows [first, first + count): codes, scales and zero points are asked for in turn, so the
        last answer is kept."""
        if self._kept is None or self._kept[0] != (first, count):
            made = [self._code(*piece) for piece in self._pieces(first, count)]
            points = [each.zero_points for each in made if each.zero_points is not None]
            errors = [each.errors for each in made]
            joined = Coded(
                np.concatenate([each.codes for each in made]),
                np.concatenate([each.scales for each in made]),
                np.concatenate(points) if points else None,
                (sum(e[0] for e in errors), sum(e[1] for e in errors), max(e[2] for e in errors)),
            )
            self._kept, self._errors[first] = ((first, count), joined), joined.errors
        return self._kept[1]

    def columns(self, first: int, count: int) -> Floats:
        """In-features [first, first + count) of floats as (count, n) float32."""
        found = []
        for part in self.parts:
            values = _values(part.tensor)[:, first : first + count][part.rows]
            found.append(_finite(part.tensor, values.astype(np.float32)))
        return np.concatenate(found).T

    def _pieces(self, first: int, count: int) -> list[tuple[Part, Indices]]:
        found, begin = [], 0
        for part in self.parts:
            rows = part.rows[max(0, first - begin) : max(0, first + count - begin)]
            if rows.size:
                found.append((part, rows))
            begin += len(part.rows)
        return found

    def _code(self, part: Part, rows: Indices) -> Coded:
        tensor, weights = part.tensor, floats(part.tensor, rows)
        coding, unpack = Q4NX_COMPATIBLE.get(tensor.kind, (None, None))
        if unpack is None or coding != self.coding:
            return _requantised(weights)
        _, size = GGML_QUANT_SIZES[tensor.kind]
        data = np.ascontiguousarray(tensor.matrix[rows])
        n = len(rows)
        codes, scales, minima = unpack(data.reshape(n, -1, size))
        codes, scales = codes.reshape(n, -1, BLOCK), scales.reshape(n, -1)
        points = None
        if minima is not None:
            scales, points = _in_bfloat16(codes, scales, minima.reshape(n, -1))
        errors = _errors(weights, codes, scales, points, coding.bits)
        codes = codes.reshape(n, -1)
        if coding.bits == 4:
            codes = codes[:, ::2] | codes[:, 1::2] << np.uint8(4)
        return Coded(codes, scales, points, errors)


def _errors(
    weights: Floats, codes: Bytes, scales: Floats, points: Floats | None, bits: int
) -> tuple[float, float, float]:
    """See `Coded`; packing rounds the scales of 4 bits to bfloat16."""
    if bits == 4:
        scales = scales.astype(ml_dtypes.bfloat16).astype(np.float32)
    zeros = np.float32(2 ** (bits - 1)) if points is None else points[..., None]
    error = (scales[..., None] * (codes - zeros)).reshape(weights.shape) - weights
    sums = [float(np.sum(np.square(x), dtype=np.float64)) for x in (error, weights)]
    return sums[0], sums[1], float(np.abs(error).max())


def _in_bfloat16(codes: Bytes, scales: Floats, minima: Floats) -> tuple[Floats, Floats]:
    """Scales and zero points that give weights scale · code + min with a scale and a minimum in
    bfloat16.

    Rounding each by itself adds two errors. Here a scale may also become a neighbour of its nearest
    bfloat16, the minimum is the one that fits the scale, and the pair with the least squared error
    over the group's codes is taken.
    """
    mean = codes.mean(axis=-1, dtype=np.float32)
    spread = codes.var(axis=-1, dtype=np.float32)
    rounded = np.where(scales == 0, _NO_SCALE, scales.astype(ml_dtypes.bfloat16))
    nearest = rounded.astype(np.float32).view(np.int32)
    error = np.full_like(scales, np.inf)
    best, points = scales, minima
    for step in (0, 1 << 16, -1 << 16):
        scale = (nearest + np.int32(step)).view(np.float32)
        fitting = minima + (scales - scale) * mean
        least = fitting.astype(ml_dtypes.bfloat16).astype(np.float32)
        its = (scale - scales) ** 2 * spread + (least - fitting) ** 2
        better = its < error
        error = np.where(better, its, error)
        best, points = np.where(better, scale, best), np.where(better, -least / scale, points)
    return best, points


def _requantised(values: Floats) -> Coded:
    n, k = values.shape
    blocks, error, square, largest, _ = _native.quantize(values, REQUANTISED.bits)
    codes, scales, points = _native.unpack_q8nx(blocks, n, k)
    return Coded(codes, scales, points, (error, square, largest))


class Experts:
    """Matrices of all experts in one: gate and up, or down.

    Attributes:
        matrices: each with the experts' rows one after the other.
        experts: how many there are.
        stored: how each is stored; None if they are not stored alike.
    """

    def __init__(self, matrices: Sequence[Matrix], experts: int, stored: Stored | None) -> None:
        self.matrices, self.experts, self.stored = matrices, experts, stored

    def blocks(self, first: int, count: int) -> Bytes:
        """Blocks of experts [first, first + count) of one matrix."""
        (matrix,) = self.matrices
        (part,) = matrix.parts
        rows = part.tensor.matrix.reshape(self.experts, -1, part.tensor.matrix.shape[-1])
        return np.stack([_packed(part.tensor, rows[first + i]) for i in range(count)])

    def stacked(self, field: str, first: int, count: int) -> npt.NDArray[np.generic]:
        """A field of `Coded` of experts [first, first + count), or "floats": (count, n, ...), with
        the rows of gate and up in turn."""
        parts = []
        for matrix in self.matrices:
            rows = matrix.n // self.experts
            at, size = first * rows, count * rows
            if field == "floats":
                values = floats(matrix.parts[0].tensor, slice(at, at + size))
            else:
                values = getattr(matrix.coded(at, size), field)
            parts.append(values.reshape(count, rows, -1))
        return np.stack(parts, axis=2).reshape(count, -1, parts[0].shape[-1])
