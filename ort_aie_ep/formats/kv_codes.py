"""Codes of a quantised KV cache: a channel of a key-value head is scale · code, symmetric.

As com.microsoft.GroupQueryAttention defines them: 8-bit codes are int8, 4-bit codes are packed two
in a byte; both round to nearest even. This module finds the scales of keys and values, and the
error that they cause.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

BITS = {"int8": 8, "int4": 4}
"""Bits of a code, by its name in `compile --kv`."""

# The code range, relative to the largest number seen. Other text exceeds that number, and 8 bits
# have digits to spare. 4 bits have none, and clipping a few large numbers makes all others more
# exact, so the code searches for the range with the least squared error.
_MARGIN = 1.25
_SEARCHED = np.linspace(0.4, 1, 13, dtype=np.float32)
# A channel that is silent in one text may be active in another: its scale is at least this fraction
# of the head's largest.
_QUIET = np.float32(2**-10)


def largest_code(bits: int) -> int:
    """The largest code; the smallest is one further from zero."""
    return (1 << bits - 1) - 1


def channel_scales(rows: Floats, bits: int) -> Floats:
    """(1, heads, 1, channels) scales for (1, heads, tokens, channels) keys or values."""
    largest = np.abs(rows).max(axis=2, keepdims=True)
    of_head = largest.max(axis=3, keepdims=True)
    # For a head that is always zero, any scale works.
    largest = np.maximum(largest, np.where(of_head > 0, of_head * _QUIET, np.float32(1)))
    widest: Floats = largest / np.float32(largest_code(bits))
    if bits == 8:
        return widest * np.float32(_MARGIN)
    best, least = widest, np.full_like(widest, np.inf)
    for part in _SEARCHED:
        scales = widest * part
        error = _squared_error(rows, scales, bits).sum(axis=2, keepdims=True)
        best, least = np.where(error < least, scales, best), np.minimum(error, least)
    return best


def relative_error(rows: Floats, scales: Floats, bits: int) -> float:
    """Root mean square error of the coded `rows` over their root mean square; 0 for zeros."""
    squares = float(np.sum(np.square(rows), dtype=np.float64))
    error = float(np.sum(_squared_error(rows, scales, bits), dtype=np.float64))
    return (error / squares) ** 0.5 if squares else 0.0


def _squared_error(rows: Floats, scales: Floats, bits: int) -> Floats:
    top = largest_code(bits)
    error: Floats = np.rint(rows / scales).clip(-top - 1, top) * scales - rows
    return np.square(error, out=error)
