"""Q8NX: weights of 8 bits in blocks of 32 out-features x 256 in-features, row-major.

A block of a form (`q4nx.BlockForm`) with S = 32 * 256 / group scales is

    8,192 bytes  codes, uint8, [k // 4][n][k % 4]
    4 S bytes    scales, float32, index (k // group) * 32 + n
    S bytes      zero points, uint8, same index, if they are stored; else each is 128

and weight(n, k) = scale * (code - zero point). N and K are padded with scale 0, zero point 0 and
code 0. Scales and zero points are those of MatMulNBits, unchanged.

This module is the reference, written for clarity, of the C++ in `ort_aie_ep._native`, which the
compiler and the kernels use.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numpy_q4nx import by_group, by_row

from ort_aie_ep.errors import AieError
from ort_aie_ep.formats.q4nx import (
    BLOCK_COLS,
    BLOCK_ROWS,
    BLOCK_WEIGHTS,
    GROUP,
    Array,
    BlockForm,
)

# In-features whose codes of one out-feature are adjacent.
QUAD = 4


def pack(
    codes: Array, scales: Array, zero_points: Array | None, group: int = GROUP
) -> npt.NDArray[np.uint8]:
    """Packs quantised weights.

    Args:
        codes: (N, K) uint8.
        scales: (N, ceil(K / group)) of any float type, stored as float32.
        zero_points: (N, ceil(K / group)) uint8, or None: each is 128, and they are not stored.
        group: in-features that share a scale and a zero point.

    Returns:
        uint8 of `BlockForm(8, group, zero_points is not None).blocks_shape(N, K)`.

    Raises:
        AieError: the shapes do not match, or codes or zero points have the wrong type.
    """
    if codes.ndim != 2 or codes.size == 0:
        raise AieError(f"codes must be (N, K) and not empty, got shape {codes.shape}")
    n, k = codes.shape
    groups = -(-k // group)
    for name, array in (("scales", scales), ("zero_points", zero_points)):
        if array is not None and array.shape != (n, groups):
            raise AieError(f"{name} must be ({n}, {groups}), got {array.shape}")
    for name, array in (("codes", codes), ("zero_points", zero_points)):
        if array is not None and array.dtype != np.uint8:
            raise AieError(f"{name} must be uint8, got {array.dtype}")
    rows, cols, _ = BlockForm(8, group, zero_points is not None).blocks_shape(n, k)
    padded = np.zeros((rows * BLOCK_ROWS, cols * BLOCK_COLS), np.uint8)
    padded[:n, :k] = codes
    # (block row, n, block column, quad, k of it) -> (block row, block column, quad, n, k of it)
    quads = padded.reshape(rows, BLOCK_ROWS, cols, BLOCK_COLS // QUAD, QUAD)
    parts = [
        quads.transpose(0, 2, 3, 1, 4).reshape(rows, cols, -1),
        by_group(scales.astype(np.float32), rows, cols, group).view(np.uint8),
    ]
    if zero_points is not None:
        parts.append(by_group(zero_points, rows, cols, group))
    blocks: npt.NDArray[np.uint8] = np.concatenate(parts, axis=2)
    return blocks


def unpack(
    blocks: Array, n: int, k: int, form: BlockForm | None = None
) -> tuple[Array, Array, Array]:
    """The inverse of `pack`: codes (n, k) uint8, scales (n, ceil(k / group)) float32 and zero
    points (n, ceil(k / group)) uint8. Without a form, groups have 32 in-features and zero points.

    Raises:
        AieError: blocks are not a packed (n, k) matrix.
    """
    form = form or BlockForm(8)
    form.check(blocks, n, k)
    rows, cols, _ = blocks.shape
    groups, after_scales = -(-k // form.group), BLOCK_WEIGHTS + 4 * form.scales
    quads = blocks[:, :, :BLOCK_WEIGHTS].reshape(rows, cols, BLOCK_COLS // QUAD, BLOCK_ROWS, QUAD)
    codes = quads.transpose(0, 3, 1, 2, 4).reshape(rows * BLOCK_ROWS, -1)[:n, :k]
    floats = np.ascontiguousarray(blocks[:, :, BLOCK_WEIGHTS:after_scales]).view(np.float32)
    scales = by_row(floats, form.group)[:n, :groups]
    if not form.minima:
        return codes, scales, np.full((n, groups), 128, np.uint8)
    return codes, scales, by_row(blocks[:, :, after_scales:], form.group)[:n, :groups]


def dequantize(
    blocks: Array, n: int, k: int, form: BlockForm | None = None
) -> npt.NDArray[np.float32]:
    """weights (n, k) float32 = scale * (code - zero point)."""
    codes, scales, zero_points = unpack(blocks, n, k, form)
    group = GROUP if form is None else form.group

    def spread(values: Array) -> Array:
        return np.repeat(values.astype(np.float32), group, axis=1)[:, :k]

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
