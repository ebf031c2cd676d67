"""Q4NX and Q2NX in numpy: the definition (`ort_aie_ep.formats.q4nx` has the layout), written for
clarity. The compiler and the kernels use C++, which tests/q4nx compares with this."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ort_aie_ep.errors import AieError

# Also for those who import this as q4nx.
from ort_aie_ep.formats.q4nx import (  # noqa: F401
    BLOCK_BYTES,
    BLOCK_COLS,
    BLOCK_ROWS,
    GROUP,
    GROUPS,
    MINIMA_BYTES,
    SHIPPING,
    Array,
    BlockForm,
    bfloat16,
    blocks_shape,
)


def pack(
    codes: Array, scales: Array, mins: Array | None, bits: int = 4, group: int = GROUP
) -> npt.NDArray[np.uint8]:
    """Packs quantised weights.

    Args:
        codes: (N, K) uint8, each below 2^bits.
        scales: (N, ceil(K / group)) of any float type; rounded to bfloat16, ties to even.
        mins: likewise, or None: they are -2^(bits - 1) * scale, and are not stored.
        bits: 4 or 2.
        group: in-features that share a scale and a minimum.

    Returns:
        uint8 of `BlockForm(bits, group, mins is not None).blocks_shape(N, K)`.

    Raises:
        AieError: the shapes do not match, or codes have the wrong type or values.
    """
    if codes.ndim != 2 or codes.size == 0:
        raise AieError(f"codes must be (N, K) and not empty, got shape {codes.shape}")
    if bits not in (2, 4):
        raise AieError(f"bits must be 4 (Q4NX) or 2 (Q2NX), got {bits}")
    n, k = codes.shape
    form, largest = BlockForm(bits, group, mins is not None), 2**bits - 1
    if codes.dtype != np.uint8 or codes.max() > largest:
        raise AieError(
            f"codes must be uint8 in 0..{largest}, got {codes.dtype} up to {codes.max()}"
        )
    rows, cols, _ = form.blocks_shape(n, k)
    parts = []
    for name, array in (("scales", scales), ("mins", mins)):
        if array is None:
            continue
        if array.shape != (n, -(-k // group)):
            raise AieError(f"{name} must be ({n}, {-(-k // group)}), got {array.shape}")
        parts.append(by_group(array.astype(bfloat16), rows, cols, group).view(np.uint8))
    padded = np.zeros((rows * BLOCK_ROWS, cols * BLOCK_COLS), np.uint8)
    padded[:n, :k] = codes
    parts.append((_nibbles if bits == 4 else _planes)(padded, rows, cols))
    blocks: npt.NDArray[np.uint8] = np.concatenate(parts, axis=2)
    return blocks


def unpack(
    blocks: Array, n: int, k: int, form: BlockForm | None = None
) -> tuple[Array, Array, Array]:
    """The inverse of `pack`: codes (n, k) uint8, scales and mins (n, ceil(k / group)) bfloat16.

    Without a form, it is that of groups of 32 with minima, of 4 or 2 bits by the size of blocks.

    Raises:
        AieError: blocks are not a packed (n, k) matrix.
    """
    if form is None:
        two_bits = BlockForm(2)
        form = two_bits if blocks.shape[-1:] == (two_bits.block_bytes,) else SHIPPING
    form.check(blocks, n, k)
    rows, cols, _ = blocks.shape
    groups, size = -(-k // form.group), 2 * form.scales

    def values(data: Array) -> Array:
        floats: Array = np.ascontiguousarray(data).view(bfloat16)
        return by_row(floats, form.group)[:n, :groups]

    header = size * (1 + form.minima)
    data = blocks[:, :, header:]
    codes = (_codes_of_nibbles if form.bits == 4 else _codes_of_planes)(data, rows, cols)[:n, :k]
    scales = values(blocks[:, :, :size])
    if form.minima:
        return codes, scales, values(blocks[:, :, size:header])
    return codes, scales, (scales.astype(np.float32) * -(2 ** (form.bits - 1))).astype(bfloat16)


def dequantize(
    blocks: Array, n: int, k: int, form: BlockForm | None = None
) -> npt.NDArray[np.float32]:
    """weights (n, k) float32 = scale * code + min."""
    codes, scales, mins = unpack(blocks, n, k, form)
    group = GROUP if form is None else form.group

    def spread(values: Array) -> Array:
        return np.repeat(values.astype(np.float32), group, axis=1)[:, :k]

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


def by_group(values: Array, rows: int, cols: int, group: int) -> Array:
    """(N, groups) -> (block rows, block columns, 32 * 256 / group), groups major, out-features
    minor; padded with zeros."""
    in_block = BLOCK_COLS // group
    padded = np.zeros((rows * BLOCK_ROWS, cols * in_block), values.dtype)
    padded[: values.shape[0], : values.shape[1]] = values
    ordered = padded.reshape(rows, BLOCK_ROWS, cols, in_block).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(ordered).reshape(rows, cols, -1)


def by_row(values: Array, group: int) -> Array:
    """The inverse of `by_group`, with the padding."""
    rows, cols, _ = values.shape
    values = values.reshape(rows, cols, BLOCK_COLS // group, BLOCK_ROWS)
    return values.transpose(0, 3, 1, 2).reshape(rows * BLOCK_ROWS, -1)


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
