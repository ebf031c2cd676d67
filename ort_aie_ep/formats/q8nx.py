"""Q8NX: weights of 8 bits in blocks of 32 out-features x 256 in-features, row-major.

A block has 9,472 bytes:

    bytes    0 .. 8191   codes, uint8, [k // 4][n][k % 4]
    bytes 8192 .. 9215   256 scales, float32, index (k // 32) * 32 + n
    bytes 9216 .. 9471   256 zero points, uint8, same index

and weight(n, k) = scale * (code - zero point). N and K are padded with scale 0, zero point 0 and
code 0. Scales and zero points are those of MatMulNBits, unchanged.

This module is the definition, written for clarity; the compiler and the kernels use its C++ twin in
`ort_aie_ep._native`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ort_aie_ep.errors import AieError
from ort_aie_ep.formats.q4nx import BLOCK_COLS, BLOCK_ROWS, GROUP, Array, blocks_shape

BLOCK_BYTES = 9472
SCALES_OFFSET = 8192
ZERO_POINTS_OFFSET = 9216
# In-features whose codes of one out-feature are adjacent.
QUAD = 4


def pack(codes: Array, scales: Array, zero_points: Array) -> npt.NDArray[np.uint8]:
    """Packs quantised weights.

    Args:
        codes: (N, K) uint8.
        scales: (N, ceil(K / 32)) of any float type, stored as float32.
        zero_points: (N, ceil(K / 32)) uint8.

    Returns:
        uint8 of `blocks_shape(N, K, 8)`.

    Raises:
        AieError: the shapes do not match, or codes or zero points have the wrong type.
    """
    if codes.ndim != 2 or codes.size == 0:
        raise AieError(f"codes must be (N, K) and not empty, got shape {codes.shape}")
    n, k = codes.shape
    groups = -(-k // GROUP)
    for name, array in (("scales", scales), ("zero_points", zero_points)):
        if array.shape != (n, groups):
            raise AieError(f"{name} must be ({n}, {groups}), got {array.shape}")
    for name, array in (("codes", codes), ("zero_points", zero_points)):
        if array.dtype != np.uint8:
            raise AieError(f"{name} must be uint8, got {array.dtype}")
    rows, cols, _ = shape = blocks_shape(n, k, 8)
    padded = np.zeros((rows * BLOCK_ROWS, cols * BLOCK_COLS), np.uint8)
    padded[:n, :k] = codes
    # (block row, n, block column, quad, k of it) -> (block row, block column, quad, n, k of it)
    parts = padded.reshape(rows, BLOCK_ROWS, cols, BLOCK_COLS // QUAD, QUAD)
    blocks: npt.NDArray[np.uint8] = np.empty(shape, np.uint8)
    blocks[:, :, :SCALES_OFFSET] = parts.transpose(0, 2, 3, 1, 4).reshape(rows, cols, -1)
    blocks[:, :, SCALES_OFFSET:ZERO_POINTS_OFFSET] = _by_group(
        scales.astype(np.float32), rows, cols
    ).view(np.uint8)
    blocks[:, :, ZERO_POINTS_OFFSET:] = _by_group(zero_points, rows, cols)
    return blocks


def unpack(blocks: Array, n: int, k: int) -> tuple[Array, Array, Array]:
    """The inverse of `pack`: codes (n, k) uint8, scales (n, ceil(k / 32)) float32 and zero points
    (n, ceil(k / 32)) uint8.

    Raises:
        AieError: blocks are not a packed (n, k) matrix.
    """
    rows, cols, _ = shape = blocks_shape(n, k, 8)
    if blocks.dtype != np.uint8 or blocks.shape != shape:
        raise AieError(
            f"blocks of a ({n}, {k}) matrix must be uint8 {shape}, got {blocks.dtype} "
            f"{blocks.shape}"
        )
    groups = -(-k // GROUP)

    def by_row(values: Array) -> Array:
        values = values.reshape(rows, cols, BLOCK_COLS // GROUP, BLOCK_ROWS)
        return values.transpose(0, 3, 1, 2).reshape(rows * BLOCK_ROWS, -1)[:n, :groups]

    parts = blocks[:, :, :SCALES_OFFSET].reshape(rows, cols, BLOCK_COLS // QUAD, BLOCK_ROWS, QUAD)
    codes = parts.transpose(0, 3, 1, 2, 4).reshape(rows * BLOCK_ROWS, -1)[:n, :k]
    scales = np.ascontiguousarray(blocks[:, :, SCALES_OFFSET:ZERO_POINTS_OFFSET]).view(np.float32)
    return codes, by_row(scales), by_row(blocks[:, :, ZERO_POINTS_OFFSET:])


def dequantize(blocks: Array, n: int, k: int) -> npt.NDArray[np.float32]:
    """weights (n, k) float32 = scale * (code - zero point)."""
    codes, scales, zero_points = unpack(blocks, n, k)

    def spread(values: Array) -> Array:
        return np.repeat(values.astype(np.float32), GROUP, axis=1)[:, :k]

    weights: npt.NDArray[np.float32] = spread(scales) * (
        codes.astype(np.float32) - spread(zero_points)
    )
    return weights


def quantize(weights: Array) -> npt.NDArray[np.uint8]:
    """Quantises (N, K) float weights, round to nearest, and packs.

    Each group of 32 is stored in one of two ways, by the smaller squared error: with zero point 128
    and a scale for its largest magnitude, or with a scale for its range (which includes 0) and the
    nearest integer zero point.

    Raises:
        AieError: weights are not 2-D, are empty, or hold NaN or infinities.
    """
    if weights.ndim != 2 or weights.size == 0:
        raise AieError(f"weights must be (N, K) and not empty, got shape {weights.shape}")
    n, k = weights.shape
    groups = -(-k // GROUP)
    values = np.asarray(weights, np.float32)
    if not np.isfinite(values).all():
        raise AieError("weights hold NaN or infinities")
    padded = np.pad(values, ((0, 0), (0, groups * GROUP - k))).reshape(n, groups, GROUP)
    low, high = padded.min(axis=2).clip(max=0), padded.max(axis=2).clip(min=0)

    def rounded(scales: Array, points: Array) -> tuple[Array, Array]:
        """Codes, and the squared error of each group."""
        scale, point = scales[:, :, None], points[:, :, None]
        codes = (np.round(padded / np.where(scale == 0, 1, scale)) + point).clip(0, 255)
        return codes, ((padded - scale * (codes - point)) ** 2).sum(axis=2)

    of_range = (high - low) / np.float32(255)
    ways = (
        (np.maximum(high, -low) / np.float32(127), np.full_like(low, 128)),
        (of_range, np.round(-low / np.where(of_range == 0, 1, of_range))),
    )
    (symmetric, first_error), (ranged, second_error) = (rounded(*way) for way in ways)
    second = second_error < first_error
    scales, points = (np.where(second, b, a) for a, b in zip(*ways, strict=True))
    codes = np.where(second[:, :, None], ranged, symmetric).reshape(n, -1)[:, :k]
    return pack(codes.astype(np.uint8), scales, points.astype(np.uint8))


def _by_group(values: Array, rows: int, cols: int) -> Array:
    """(N, groups) -> (block rows, block columns, 256), groups major, out-features minor."""
    groups = BLOCK_COLS // GROUP
    padded = np.zeros((rows * BLOCK_ROWS, cols * groups), values.dtype)
    padded[: values.shape[0], : values.shape[1]] = values
    ordered = padded.reshape(rows, BLOCK_ROWS, cols, groups).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(ordered).reshape(rows, cols, -1)
