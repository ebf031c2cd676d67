"""Q4NX: 4-bit weights as AMD Ryzen AI NPUs stream them (paper 1, III-A2; bytes of `.q4nx` files).

A weight matrix (N out-features, K in-features) is cut into blocks of 32 x 256, row-major. A block
has 5,120 bytes:

    bytes    0 ..  511   256 scales, bfloat16, index (k // 32) * 32 + n
    bytes  512 .. 1023   256 minima, bfloat16, same index
    bytes 1024 .. 5119   codes: byte (n // 16) * 2048 + k * 8 + (n % 16) // 2, low nibble for even n

and weight(n, k) = scale * code + min. N and K are padded with scale 0, min 0 and code 0.

This module is the definition, written for clarity; `ort_aie_ep._native` has the C++ twin that
compiling and the kernels use.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from ort_aie_ep.errors import AieError

BLOCK_ROWS = 32
BLOCK_COLS = 256
GROUP = 32
BLOCK_BYTES = 5120
MINIMA_BYTES = 512

Array = npt.NDArray[Any]
bfloat16 = np.dtype(ml_dtypes.bfloat16)


def blocks_shape(n: int, k: int) -> tuple[int, int, int]:
    """Shape of the packed tensor: (ceil(n / 32), ceil(k / 256), 5120)."""
    return -(-n // BLOCK_ROWS), -(-k // BLOCK_COLS), BLOCK_BYTES


def pack(codes: Array, scales: Array, mins: Array) -> npt.NDArray[np.uint8]:
    """Packs quantised weights.

    Args:
        codes: (N, K) uint8, each 0..15.
        scales: (N, ceil(K / 32)) of any float type; becomes bfloat16, ties to even.
        mins: likewise.

    Returns:
        (ceil(N / 32), ceil(K / 256), 5120) uint8.

    Raises:
        AieError: shapes, the type or the values of codes do not fit.
    """
    if codes.ndim != 2 or codes.size == 0:
        raise AieError(f"codes must be (N, K) and not empty, got shape {codes.shape}")
    if codes.dtype != np.uint8 or codes.max() > 15:
        raise AieError(f"codes must be uint8 in 0..15, got {codes.dtype} up to {codes.max()}")
    n, k = codes.shape
    groups = -(-k // GROUP)
    for name, array in (("scales", scales), ("mins", mins)):
        if array.shape != (n, groups):
            raise AieError(f"{name} must be ({n}, {groups}), got {array.shape}")
    rows, cols, _ = blocks_shape(n, k)
    blocks: npt.NDArray[np.uint8] = np.empty((rows, cols, BLOCK_BYTES), np.uint8)
    blocks[:, :, :512] = _group_bytes(scales, rows, cols)
    blocks[:, :, 512:1024] = _group_bytes(mins, rows, cols)
    padded = np.zeros((rows * BLOCK_ROWS, cols * BLOCK_COLS), np.uint8)
    padded[:n, :k] = codes
    # (block row, half, pair of n, parity, block column, k) -> (block row, column, half, k, pair)
    parts = padded.reshape(rows, 2, 8, 2, cols, BLOCK_COLS)
    nibbles = parts[:, :, :, 0] | (parts[:, :, :, 1] << 4)
    blocks[:, :, 1024:] = nibbles.transpose(0, 3, 1, 4, 2).reshape(rows, cols, -1)
    return blocks


def unpack(blocks: Array, n: int, k: int) -> tuple[Array, Array, Array]:
    """The inverse of `pack`: codes (n, k) uint8, scales and mins (n, ceil(k / 32)) bfloat16.

    Raises:
        AieError: blocks are not the packing of an (n, k) matrix.
    """
    if blocks.dtype != np.uint8 or blocks.shape != blocks_shape(n, k):
        raise AieError(
            f"blocks of a ({n}, {k}) matrix must be uint8 {blocks_shape(n, k)}, "
            f"got {blocks.dtype} {blocks.shape}"
        )
    rows, cols, _ = blocks.shape
    groups = -(-k // GROUP)

    def group_values(data: Array) -> Array:
        values: Array = np.ascontiguousarray(data).view(bfloat16)
        values = values.reshape(rows, cols, 8, BLOCK_ROWS)
        return values.transpose(0, 3, 1, 2).reshape(rows * BLOCK_ROWS, cols * 8)[:n, :groups]

    nibbles = blocks[:, :, 1024:].reshape(rows, cols, 2, BLOCK_COLS, 8).transpose(0, 2, 4, 1, 3)
    parts = np.stack([nibbles & 15, nibbles >> 4], axis=3)
    codes = parts.reshape(rows * BLOCK_ROWS, cols * BLOCK_COLS)[:n, :k]
    return codes, group_values(blocks[:, :, :512]), group_values(blocks[:, :, 512:1024])


def dequantize(blocks: Array, n: int, k: int) -> npt.NDArray[np.float32]:
    """weights (n, k) float32 = scale * code + min."""
    codes, scales, mins = unpack(blocks, n, k)

    def spread(values: Array) -> Array:
        return np.repeat(values.astype(np.float32), GROUP, axis=1)[:, :k]

    weights: npt.NDArray[np.float32] = spread(scales) * codes.astype(np.float32) + spread(mins)
    return weights


def quantize(weights: Array) -> npt.NDArray[np.uint8]:
    """Quantises (N, K) float weights, round to nearest between each group's extremes, and packs.

    Scale and min are rounded to bfloat16 first, so that codes fit the values that are stored.

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
    # The last value of a row fills its last group: padding must not widen the range.
    padded = np.pad(values, ((0, 0), (0, groups * GROUP - k)), mode="edge")
    padded = padded.reshape(n, groups, GROUP)
    low, high = padded.min(axis=2), padded.max(axis=2)
    mins = low.astype(bfloat16)
    scales = ((high - mins.astype(np.float32)) / 15).astype(bfloat16)
    scale, base = (x.astype(np.float32)[:, :, None] for x in (scales, mins))
    codes = np.round((padded - base) / np.where(scale == 0, 1, scale)).clip(0, 15)
    return pack(codes.astype(np.uint8).reshape(n, -1)[:, :k], scales, mins)


def _group_bytes(values: Array, rows: int, cols: int) -> Array:
    """(N, groups) -> (block rows, block columns, 512) bytes, groups major, out-features minor."""
    padded = np.zeros((rows * BLOCK_ROWS, cols * 8), bfloat16)
    padded[: values.shape[0], : values.shape[1]] = values.astype(bfloat16)
    ordered = padded.reshape(rows, BLOCK_ROWS, cols, 8).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(ordered).reshape(rows, cols, -1).view(np.uint8)
