"""Q4NX and Q2NX: weights of 4 and 2 bits in the blocks that AMD Ryzen AI NPUs stream.

A weight matrix (N out-features, K in-features) is cut into blocks of 32 x 256, row-major. A block
has 5,120 bytes with 4 bits, 3,072 with 2:

    bytes    0 ..  511   256 scales, bfloat16, index (k // 32) * 32 + n
    bytes  512 .. 1023   256 minima, bfloat16, same index
    bytes 1024 .. 5119   Q4NX: codes, byte (n // 16) * 2048 + k * 8 + (n % 16) // 2, low nibble for
                         even n
    bytes 1024 .. 3071   Q2NX: two bit planes, byte (k // 4) * 32 + (n // 2) * 2 + plane, low nibble
                         for even n; bit k % 4 of a nibble is bit `plane` of the code

and weight(n, k) = scale * code + min. N and K are padded with scale 0, min 0 and code 0.

Q4NX is the order of `.q4nx` files (paper 1, III-A2). In Q2NX a nibble holds one bit of four codes,
and the nibbles of 32 out-features are adjacent. They are the indices of lookups in a table of 16
sums of four activations, and of the first of two lookups that dequantise (paper 4, 4.1, the unified
layout).

This module is the definition, written for clarity; the compiler and the kernels use its C++ twin in
`ort_aie_ep._native`. The size of blocks tells how many bits they have.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from ort_aie_ep.errors import AieError

BLOCK_ROWS = 32
BLOCK_COLS = 256
BLOCK_WEIGHTS = BLOCK_ROWS * BLOCK_COLS
GROUP = 32
BLOCK_BYTES = 5120
BLOCK_BYTES_2 = 3072
BYTES_OF_BLOCK = {2: BLOCK_BYTES_2, 4: BLOCK_BYTES, 8: 9472}
MINIMA_BYTES = 512
CODES_OFFSET = 1024

Array = npt.NDArray[Any]
bfloat16 = np.dtype(ml_dtypes.bfloat16)


def blocks_shape(n: int, k: int, bits: int = 4) -> tuple[int, int, int]:
    """Shape of the packed tensor: (ceil(n / 32), ceil(k / 256), 5120), or, in place of 5120, 3072
    with 2 bits and 9472 with 8 (`q8nx`).

    Raises:
        AieError: bits are not 2, 4 or 8.
    """
    if bits not in BYTES_OF_BLOCK:
        raise AieError(f"bits must be 2 (Q2NX), 4 (Q4NX) or 8 (Q8NX), got {bits}")
    return -(-n // BLOCK_ROWS), -(-k // BLOCK_COLS), BYTES_OF_BLOCK[bits]


def pack(codes: Array, scales: Array, mins: Array, bits: int = 4) -> npt.NDArray[np.uint8]:
    """Packs quantised weights.

    Args:
        codes: (N, K) uint8, each below 2^bits.
        scales: (N, ceil(K / 32)) of any float type; rounded to bfloat16, ties to even.
        mins: likewise.
        bits: 4 or 2.

    Returns:
        uint8 of `blocks_shape(N, K, bits)`.

    Raises:
        AieError: the shapes do not match, or codes have the wrong type or values.
    """
    if codes.ndim != 2 or codes.size == 0:
        raise AieError(f"codes must be (N, K) and not empty, got shape {codes.shape}")
    if bits not in (2, 4):
        raise AieError(f"bits must be 4 (Q4NX) or 2 (Q2NX), got {bits}")
    n, k = codes.shape
    shape, largest, groups = blocks_shape(n, k, bits), 2**bits - 1, -(-k // GROUP)
    if codes.dtype != np.uint8 or codes.max() > largest:
        raise AieError(
            f"codes must be uint8 in 0..{largest}, got {codes.dtype} up to {codes.max()}"
        )
    for name, array in (("scales", scales), ("mins", mins)):
        if array.shape != (n, groups):
            raise AieError(f"{name} must be ({n}, {groups}), got {array.shape}")
    rows, cols, _ = shape
    blocks: npt.NDArray[np.uint8] = np.empty(shape, np.uint8)
    blocks[:, :, :MINIMA_BYTES] = _group_bytes(scales, rows, cols)
    blocks[:, :, MINIMA_BYTES:CODES_OFFSET] = _group_bytes(mins, rows, cols)
    padded = np.zeros((rows * BLOCK_ROWS, cols * BLOCK_COLS), np.uint8)
    padded[:n, :k] = codes
    blocks[:, :, CODES_OFFSET:] = (_nibbles if bits == 4 else _planes)(padded, rows, cols)
    return blocks


def unpack(blocks: Array, n: int, k: int) -> tuple[Array, Array, Array]:
    """The inverse of `pack`: codes (n, k) uint8, scales and mins (n, ceil(k / 32)) bfloat16.

    Raises:
        AieError: blocks are not a packed (n, k) matrix.
    """
    bits = 2 if blocks.shape[-1:] == (BLOCK_BYTES_2,) else 4
    if blocks.dtype != np.uint8 or blocks.shape != blocks_shape(n, k, bits):
        raise AieError(
            f"blocks of a ({n}, {k}) matrix must be uint8 {blocks_shape(n, k, bits)}, "
            f"got {blocks.dtype} {blocks.shape}"
        )
    rows, cols, _ = blocks.shape
    groups = -(-k // GROUP)

    def group_values(data: Array) -> Array:
        values: Array = np.ascontiguousarray(data).view(bfloat16)
        values = values.reshape(rows, cols, 8, BLOCK_ROWS)
        return values.transpose(0, 3, 1, 2).reshape(rows * BLOCK_ROWS, cols * 8)[:n, :groups]

    data = blocks[:, :, CODES_OFFSET:]
    codes = (_codes_of_nibbles if bits == 4 else _codes_of_planes)(data, rows, cols)[:n, :k]
    scales, mins = blocks[:, :, :MINIMA_BYTES], blocks[:, :, MINIMA_BYTES:CODES_OFFSET]
    return codes, group_values(scales), group_values(mins)


def dequantize(blocks: Array, n: int, k: int) -> npt.NDArray[np.float32]:
    """weights (n, k) float32 = scale * code + min."""
    codes, scales, mins = unpack(blocks, n, k)

    def spread(values: Array) -> Array:
        return np.repeat(values.astype(np.float32), GROUP, axis=1)[:, :k]

    weights: npt.NDArray[np.float32] = spread(scales) * codes.astype(np.float32) + spread(mins)
    return weights


def quantize(weights: Array, bits: int = 4) -> npt.NDArray[np.uint8]:
    """Quantises (N, K) float weights, round to nearest between each group's extremes, and packs.

    Scale and min are rounded to bfloat16 first, so that the codes fit the stored values.

    Raises:
        AieError: weights are not 2-D, are empty, or hold NaN or infinities.
    """
    if weights.ndim != 2 or weights.size == 0:
        raise AieError(f"weights must be (N, K) and not empty, got shape {weights.shape}")
    n, k = weights.shape
    groups, largest = -(-k // GROUP), 2**bits - 1
    values = np.asarray(weights, np.float32)
    if not np.isfinite(values).all():
        raise AieError("weights hold NaN or infinities")
    # Fill a row's last group with its last value: padding must not widen the range.
    padded = np.pad(values, ((0, 0), (0, groups * GROUP - k)), mode="edge")
    padded = padded.reshape(n, groups, GROUP)
    low, high = padded.min(axis=2), padded.max(axis=2)
    mins = low.astype(bfloat16)
    scales = ((high - mins.astype(np.float32)) / largest).astype(bfloat16)
    scale, base = (x.astype(np.float32)[:, :, None] for x in (scales, mins))
    codes = np.round((padded - base) / np.where(scale == 0, 1, scale)).clip(0, largest)
    return pack(codes.astype(np.uint8).reshape(n, -1)[:, :k], scales, mins, bits)


def _group_bytes(values: Array, rows: int, cols: int) -> Array:
    """(N, groups) -> (block rows, block columns, 512) bytes, groups major, out-features minor."""
    padded = np.zeros((rows * BLOCK_ROWS, cols * 8), bfloat16)
    padded[: values.shape[0], : values.shape[1]] = values.astype(bfloat16)
    ordered = padded.reshape(rows, BLOCK_ROWS, cols, 8).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(ordered).reshape(rows, cols, -1).view(np.uint8)


def _nibbles(codes: Array, rows: int, cols: int) -> Array:
    """Padded codes -> (block rows, block columns, 4096) bytes of Q4NX."""
    # (block row, half, pair of n, parity, block column, k) -> (block row, column, half, k, pair)
    parts = codes.reshape(rows, 2, 8, 2, cols, BLOCK_COLS)
    nibbles = parts[:, :, :, 0] | (parts[:, :, :, 1] << 4)
    ordered: Array = nibbles.transpose(0, 3, 1, 4, 2).reshape(rows, cols, -1)
    return ordered


def _codes_of_nibbles(data: Array, rows: int, cols: int) -> Array:
    """The inverse of `_nibbles`."""
    nibbles = data.reshape(rows, cols, 2, BLOCK_COLS, 8).transpose(0, 2, 4, 1, 3)
    parts = np.stack([nibbles & 15, nibbles >> 4], axis=3)
    return parts.reshape(rows * BLOCK_ROWS, cols * BLOCK_COLS)


def _planes(codes: Array, rows: int, cols: int) -> Array:
    """Padded codes -> (block rows, block columns, 2048) bytes of Q2NX."""
    bits = np.stack([codes & 1, codes >> 1])
    # (plane, block row, pair of n, parity, block column, quad, k of it)
    parts = bits.reshape(2, rows, 16, 2, cols, BLOCK_COLS // 4, 4)
    # A byte's bits, lowest first: k of the quad, then parity.
    ordered = parts.transpose(1, 4, 5, 2, 0, 3, 6)
    planes: Array = np.packbits(ordered.reshape(rows, cols, -1), axis=2, bitorder="little")
    return planes


def _codes_of_planes(data: Array, rows: int, cols: int) -> Array:
    """The inverse of `_planes`."""
    bits = np.unpackbits(data, axis=2, bitorder="little")
    parts = bits.reshape(rows, cols, BLOCK_COLS // 4, 16, 2, 2, 4).transpose(4, 0, 3, 5, 1, 2, 6)
    low, high = parts.reshape(2, rows * BLOCK_ROWS, cols * BLOCK_COLS)
    codes: Array = low | (high << 1)
    return codes
