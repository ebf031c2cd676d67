"""Attention in float64, the device's layouts and roundings: the kernels' reference.

The package has those that `ort-aie validate` also uses.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ort_aie_ep.aie_kernels.flow_kv.reference import scores, to_cache_blocks, weights
from ort_aie_ep.aie_kernels.reference import (
    BF16,
    U_BF16,
    U_BFP16,
    U_LIMBS,
    Doubles,
    bf16,
    bfp16,
    bits,
)  # fmt: skip

__all__ = [
    "BF16",
    "U_BF16",
    "U_BFP16",
    "U_LIMBS",
    "Doubles",
    "aligned",
    "bf16",
    "bfp16",
    "bits",
    "in_buffer",
    "scores",
    "to_cache_blocks",
    "weights",
]


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
