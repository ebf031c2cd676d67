"""Codes of a quantised KV cache: a channel of a key-value head is scale · code, symmetric.

As com.microsoft.GroupQueryAttention defines them: codes of 8 bits are int8, of 4 bits two in a
byte; both round to nearest even. Here: which scales keys and values get, and what that costs.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

BITS = {"int8": 8, "int4": 4}
"""Bits of a code by the name that `compile --kv` gives it."""

# Of the largest number seen. Text that was not seen goes beyond it, and 8 bits have digits to
# spare. 4 bits have none, and clipping a few large numbers makes all others more exact: the range
# with the least squared error is searched. docs/kv-cache.md has the errors of other rules.
_MARGIN = 1.25
_SEARCHED = np.linspace(0.4, 1, 13, dtype=np.float32)
# A channel that is silent in a text may speak in another: its scale is no smaller than this part
# of the head's largest.
_QUIET = np.float32(2**-10)


def largest_code(bits: int) -> int:
    """The largest code; the least is one further from zero."""
    return (1 << bits - 1) - 1


def channel_scales(rows: Floats, bits: int) -> Floats:
    """(1, heads, 1, channels) scales for (1, heads, tokens, channels) keys or values."""
    largest = np.abs(rows).max(axis=2, keepdims=True)
    of_head = largest.max(axis=3, keepdims=True)
    # A head that is always zero takes any scale.
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
    """Root mean square error of the coded `rows` over their root mean square; 0 of zeros."""
    squares = float(np.sum(np.square(rows), dtype=np.float64))
    error = float(np.sum(_squared_error(rows, scales, bits), dtype=np.float64))
    return (error / squares) ** 0.5 if squares else 0.0


def _squared_error(rows: Floats, scales: Floats, bits: int) -> Floats:
    top = largest_code(bits)
    error: Floats = np.rint(rows / scales).clip(-top - 1, top) * scales - rows
    return np.square(error, out=error)
