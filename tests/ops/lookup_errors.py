"""How far a projection by table lookups may be from the exact product."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import numpy_q4nx as q4nx

Array = npt.NDArray[Any]

INT8, INT16 = 127, 32767  # steps of an integer table's largest sum
LEAST_STEP = 2.0**-125
U = 2.0**-24  # unit roundoff of float32


def _groups(a: Array) -> Array:
    """(rows, k) -> (rows, groups, 8 quads of in-features): sums of magnitudes."""
    rows, k = a.shape
    padded = np.zeros((rows, -(-k // 32) * 32))
    padded[:, :k] = np.abs(a.astype(np.float64))
    sums: Array = padded.reshape(rows, padded.shape[1] // 32, 8, 4).sum(axis=3)
    return sums


def lookup_error(a: Array, blocks: Array, n: int, largest: int | None) -> Array:
    """Bound (rows, n) for weights of two bits and rows of activations, each row separately.

    A code is 3/2 + (s0 + 2 s1) / 2, so a group adds its scale times 3/2 X, half a lookup in plane 0
    and a whole one in plane 1 for 8 quads, and its minimum times X. Their magnitudes are at most 3
    |scale| + |min| times the sum of |a|. Float32's roundings are relative to that: one for each of
    k additions, and 8 more.

    An integer table is off by half a step per lookup, 8 * 3/2 lookups per group. The step is the
    largest sum of four magnitudes / `largest`, but at least LEAST_STEP. 2 % cover the rounding of
    step and quotient, each 2^-24 of up to 32767 steps.
    """
    k = a.shape[1]
    _, scales, mins = q4nx.unpack(blocks, n, k)
    scale, low = (np.abs(x.astype(np.float64)) for x in (scales, mins))
    quads = _groups(a)
    bound: Array = (k + 8) * U * (quads.sum(axis=2) @ (3 * scale + low).T)
    if largest is not None:
        steps = np.maximum(quads.max(axis=2) / largest, LEAST_STEP)
        bound = bound + 1.02 * 8 * 1.5 / 2 * (steps @ scale.T)
    return bound
