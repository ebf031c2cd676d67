"""Products of many rows in bfloat16: problems of `gemm` in numpy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ort_aie_ep.aie_kernels.gemm.design import pack_b_bfp16
from ort_aie_ep.aie_kernels.reference import (
    BF16,
    U_BF16,
    Context,
    Doubles,
    Output,
    Problem,
    Reference,
    bfp16,
    doubles,
    generator,
    nan,
)
from ort_aie_ep.formats import bf16_blocks


def product(a: Doubles, weights: Doubles, architecture: str) -> Reference:
    """C = A W^T, A (M, K), W (N, K); aie2p multiplies the operands rounded to bfp16.

    Errors are relative to the mass of a sum, S = sum over k of |a||b|. The matrix units add eight
    products to the sum at a time, K/8 times. Each time, nine terms are aligned to the largest of
    them and rounded 23 bits below it, and so is the result: ten errors of at most 2^-24 S, because
    no product and no partial sum is above S.
    """
    if architecture == "aie2p":
        a, weights = bfp16(a, 1), bfp16(weights, 1)
    exact = a @ weights.T
    tolerance = a.shape[1] / 8 * 10 * 2.0**-24 * (np.abs(a) @ np.abs(weights).T)
    return Reference(exact, tolerance + U_BF16 * (np.abs(exact) + tolerance))


def problem(context: Context, p: dict[str, int]) -> Problem:
    """A problem of `gemm` or of `gemm_bfp16`."""
    m, k, n, rng = p["M"], p["K"], p["N"], generator(p)
    rows = max(m, 64)
    a = rng.standard_normal((rows, k)).astype(BF16)
    w = rng.standard_normal((n, k)).astype(BF16)

    def judge(after: Mapping[str, NDArray[Any]]) -> list[Output]:
        expected = product(doubles(a[:m]), doubles(w), context.device.architecture)
        return [Output("c", doubles(after["c"][:m]), expected)]

    b = bf16_blocks.pack(w) if context.size("b", p) == w.nbytes else pack_b_bfp16(w)
    return Problem("gemm", p, {"a": a, "b": b, "c": nan(rows, n)}, judge)
