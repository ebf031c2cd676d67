"""Codes of a few bits in bytes, as MatMulNBits and GatherBlockQuantized store them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def pack_codes(x: Array, bits: int) -> Array:
    """(N, M) values of 4 or 2 bits -> (N, ceil(M * bits / 8)) bytes, low bits first."""
    in_byte = 8 // bits
    padded: Array = np.pad(x, ((0, 0), (0, -x.shape[1] % in_byte)))
    parts = padded.reshape(len(x), -1, in_byte) << (bits * np.arange(in_byte, dtype=np.uint8))
    packed: Array = np.bitwise_or.reduce(parts, axis=2)
    return packed
