"""A row of a projection, with weights of 4 or 2 bits: problems of `fused_dqp` in numpy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ort_aie_ep import _native
from ort_aie_ep.aie_kernels.reference import (
    BF16,
    U_BF16,
    Context,
    Doubles,
    Output,
    Problem,
    Reference,
    dequantized,
    doubles,
    generator,
    nan,
)


def matvec(weights: Doubles, x: Doubles, bias: Doubles | float) -> Reference:
    """y = W x + bias, W (N, K).

    The tolerance is half a unit of bfloat16 for the output. The sums are fp32, so K roundings of
    2^-24 of the mass are added; a value that the kernel narrows once per group is split into two
    limbs (2^-17 of its group).
    """
    exact = weights @ x + bias
    mass = np.abs(weights) @ np.abs(x)
    tolerance = np.abs(exact) * U_BF16 + mass * (len(x) * 2.0**-24 + 2.0**-16)
    return Reference(exact, tolerance)


def problem(context: Context, p: dict[str, int]) -> Problem:
    """A problem of `matvec`."""
    n, k, group, rng = p["N"], p["K"], context.form.group, generator(p)
    codes = rng.integers(0, 16, (n, k), dtype=np.uint8)
    scales = (rng.uniform(0.5, 1.5, (n, k // group)) * 0.02).astype(BF16)
    off = rng.uniform(0.8, 1.2, scales.shape) if context.form.minima else 1.0
    mins = (-8 * doubles(scales) * off).astype(BF16)
    x = rng.standard_normal(k).astype(BF16)
    bias = rng.standard_normal(n * p["bias"]).astype(BF16)

    def judge(after: Mapping[str, NDArray[Any]]) -> list[Output]:
        w = doubles(codes) * np.repeat(doubles(scales), group, 1)
        w += np.repeat(doubles(mins), group, 1)
        added = doubles(bias) if p["bias"] else 0.0
        return [Output("y", doubles(after["y"]), matvec(w, doubles(x), added))]

    minima = mins.view(np.uint16) if context.form.minima else None
    blocks = _native.pack(codes, scales.view(np.uint16), minima, 4, group)
    return Problem("matvec", p, {"x": x, "w": blocks, "bias": bias, "y": nan(n)}, judge)


def part_problem(context: Context, p: dict[str, int]) -> Problem:
    """A problem of `matvec_part`: the last K of row_K in-features.

    The codes before them would show in the result.
    """
    whole = problem(context, {**p, "K": p["row_K"]})
    n, k, blocks = p["N"], p["K"], p["K"] // 256
    before = p["row_K"] // 256 - blocks
    rows = whole.buffers["w"].reshape(n // 32, before + blocks, -1)
    weights = dequantized(np.ascontiguousarray(rows[:, before:]), n, k, context.form)
    x, bias = whole.buffers["x"][-k:], whole.buffers["bias"]

    def judge(after: Mapping[str, NDArray[Any]]) -> list[Output]:
        added = doubles(bias) if p["bias"] else 0.0
        wanted = matvec(weights.astype(np.float64), doubles(x), added)
        return [Output("y", doubles(after["y"]), wanted)]

    w = rows.reshape(-1)[before * rows.shape[2] :]
    return Problem("matvec_part", p, {"x": x, "w": w, "bias": bias, "y": nan(n)}, judge)
