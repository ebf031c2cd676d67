"""Buffers of a core's memory: at multiples of 64 bytes."""

from __future__ import annotations

import numpy as np
import standin
from numpy.typing import NDArray


def aligned(count: int, dtype: str | np.dtype, fill: float = 0) -> NDArray:
    """`count` elements."""
    return standin.aligned(np.full(count, fill, np.dtype(dtype)))


def in_buffer(values: NDArray, count: int, dtype: str | np.dtype, fill: float = 0) -> NDArray:
    """`values`, row-major, at the head of a buffer of `count` elements."""
    buffer = aligned(count, dtype, fill)
    buffer[: values.size] = values.reshape(-1).astype(dtype)
    return buffer
