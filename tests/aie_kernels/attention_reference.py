"""Attention in float64, the device's layouts, and roundings: what the kernels are compared with."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

BF16 = np.dtype(ml_dtypes.bfloat16)

# Largest relative error of rounding to bfloat16 (8 significant bits) to nearest.
U_BF16 = 2.0**-8
# Largest error of bfp16 (8 bits with the sign), relative to the largest value of a block of 8.
U_BFP16 = 2.0**-7
# Largest relative error of a product of two limbs each (float_math.h).
U_LIMBS = 2.0**-15

Doubles = NDArray[np.float64]


def aligned(count: int, dtype: str | np.dtype, fill: float = 0) -> NDArray:
    """An L1 buffer: `count` elements at an address that is a multiple of 64."""
    dtype = np.dtype(dtype)
    raw = np.empty(count * dtype.itemsize + 64, np.uint8)
    start = -raw.ctypes.data % 64
    buffer = raw[start : start + count * dtype.itemsize].view(dtype)
    buffer[:] = fill
    return buffer


def in_buffer(values: NDArray, count: int, dtype: str | np.dtype, fill: float = 0) -> NDArray:
    """`values`, row-major, at the head of an L1 buffer of `count` elements."""
    buffer = aligned(count, dtype, fill)
    buffer[: values.size] = values.reshape(-1).astype(dtype)
    return buffer


def bits(value: float) -> int:
    """The bit pattern of an fp32 scalar, as a kernel takes it."""
    return int(np.float32(value).view(np.int32))


def bf16(values: NDArray | float) -> Doubles:
    """Rounded to bfloat16."""
    return np.asarray(values, np.float32).astype(BF16).astype(np.float64)


def bfp16(values: Doubles, axis: int) -> Doubles:
    """Rounded to bfp16: along `axis`, 8 values share the exponent of the largest."""
    blocks = np.moveaxis(values, axis, -1)
    shape = blocks.shape
    blocks = blocks.reshape(*shape[:-1], shape[-1] // 8, 8)
    largest = np.abs(blocks).max(-1, keepdims=True)
    unit = 2.0 ** (np.floor(np.log2(np.where(largest > 0, largest, 1.0))) - 6)
    rounded = np.clip(np.rint(blocks / unit), -128, 127) * unit
    return np.moveaxis(rounded.reshape(shape), -1, axis)


def to_cache_blocks(rows: Doubles) -> Doubles:
    """Keys or values (keys, head_dim) as [keys/8][head_dim/8][8][8]."""
    keys, head_dim = rows.shape
    return rows.reshape(keys // 8, 8, head_dim // 8, 8).transpose(0, 2, 1, 3)


def scores(q: Doubles, k: Doubles, scale: float, softcap: float = 0.0) -> Doubles:
    """(queries, keys) scores; with a cap, cap * tanh(score / cap)."""
    s = q @ k.T * scale
    return softcap * np.tanh(s / softcap) if softcap else s


def weights(s: Doubles, attended: NDArray | None = None) -> Doubles:
    """Softmax over the keys attended to; rows without any are zero."""
    if attended is None:
        attended = np.ones(s.shape, bool)
    s = np.where(attended, s, -np.inf)
    largest = s.max(-1, keepdims=True)
    f = np.exp(s - np.where(np.isfinite(largest), largest, 0.0))
    total = f.sum(-1, keepdims=True)
    return f / np.where(total > 0, total, 1.0)
