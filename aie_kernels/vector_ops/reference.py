"""Norms, rotations and gates in float64: problems of `vector_ops` in numpy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ort_aie_ep.aie_kernels.flow_kv.reference import in_cache
from ort_aie_ep.aie_kernels.reference import (
    BF16,
    U_BF16,
    U_LIMBS,
    Context,
    Doubles,
    Output,
    Problem,
    Reference,
    bf16,
    doubles,
    exactly,
    generator,
    nan,
    rounded,
    value,
)

# The sum of squares in fp32, the root's Newton step, two products of limbs (norm.h).
NORM = 2.0**-20 + 2 * U_LIMBS
# sigmoid and tanh, two products of limbs, and three in an argument of at most 16 (float_math.h).
ACTIVATION = 2.0**-13 + 2 * U_LIMBS + 16 * 3 * U_LIMBS


def rotation_table(positions: int, rotary_dim: int) -> Doubles:
    """(positions, 256): cosines, then sines, of the usual angles."""
    half = rotary_dim // 2
    angles = np.arange(positions)[:, None] * 10000.0 ** (-np.arange(half) / max(1, half))
    table = np.zeros((positions, 256))
    table[:, :half], table[:, half:rotary_dim] = np.cos(angles), np.sin(angles)
    return bf16(table)


def normalised(x: Doubles, weight: Doubles, n: int, eps: float) -> Doubles:
    """RMS normalisation of rows whose first `n` elements count."""
    root: Doubles = np.sqrt((x**2).sum(-1, keepdims=True) / n + eps)
    return x / root * weight


def rotated(x: Doubles, table: Doubles, rotary_dim: int, interleaved: int) -> Doubles:
    """x (tokens, heads, head_dim) by the rows of `table` (tokens, 256)."""
    half = rotary_dim // 2
    cosine, sine = table[:, None, :half], table[:, None, half:rotary_dim]
    first = np.arange(half) * (2 if interleaved else 1)
    second = first + (1 if interleaved else half)
    out, a, b = x.copy(), x[..., first], x[..., second]
    out[..., first], out[..., second] = a * cosine - b * sine, b * cosine + a * sine
    return out


def rope(seen: Doubles, table: Doubles, rotary_dim: int, interleaved: int, norm: int) -> Reference:
    """Heads (tokens, heads, head_dim) as the rotation sees them, rotated.

    In addition to the rounding of y, a normalised head is rounded before it is rotated, and a
    rotation adds two products in fp32.
    """
    half = rotary_dim // 2
    first = np.arange(half) * (2 if interleaved else 1)
    second = first + (1 if interleaved else half)
    cosine, sine = np.abs(table[:, None, :half]), np.abs(table[:, None, half:rotary_dim])
    mass = np.abs(seen)
    a, b = mass[..., first], mass[..., second]
    mass[..., first], mass[..., second] = a * cosine + b * sine, b * cosine + a * sine
    error = norm * (U_BF16 + NORM) * 1.01 + 2.0**-22
    return rounded(rotated(seen, table, rotary_dim, interleaved), error, mass)


def glu(gate: Doubles, up: Doubles, kind: int) -> Reference:
    """act(gate) * up with SiLU (kind 0) or GELU in its tanh form (kind 1)."""
    argument = 2 * np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3) if kind else gate
    return rounded(gate / (1 + np.exp(-argument)) * up, ACTIVATION)


def rms_norm_problem(context: Context, p: dict[str, int]) -> Problem:
    """A problem of `rms_norm`."""
    n, residual, rng = p["n"], p["residual"], generator(p)
    padded = -(-n // 128) * 128
    x, other, weight = np.zeros((3, padded))
    x[:n], other[:n] = bf16(rng.standard_normal((2, n)))
    weight[:n] = bf16(rng.uniform(0.5, 1.5, n))
    total = bf16(x + residual * other)

    def judge(after: Mapping[str, NDArray[Any]]) -> list[Output]:
        outputs = [
            Output("y", doubles(after["y"]),
                   rounded(normalised(total, weight, n, value(p["eps_bits"])), NORM)),
        ]  # fmt: skip
        if residual:
            outputs.append(Output("sum", doubles(after["sum"]), exactly(total)))
        return outputs

    buffers = {
        "x": x.astype(BF16), "residual": other[: padded * residual].astype(BF16),
        "weight": weight.astype(BF16), "sum": nan(padded * residual), "y": nan(padded),
    }  # fmt: skip
    return Problem("rms_norm", p, buffers, judge)


def rope_problem(context: Context, p: dict[str, int]) -> Problem:
    """A problem of `rope`."""
    rng, head_dim = generator(p), p["head_dim"]
    x = bf16(rng.standard_normal((1, p["heads"], head_dim)))
    weight = bf16(rng.uniform(0.5, 1.5, head_dim))
    table = rotation_table(1001, p["rotary_dim"])[1000:]
    seen = normalised(x, weight, head_dim, value(p["eps_bits"])) if p["norm"] else x

    def judge(after: Mapping[str, NDArray[Any]]) -> list[Output]:
        expected = rope(seen, table, p["rotary_dim"], p["interleaved"], p["norm"])
        return [Output("y", doubles(after["y"]), expected)]

    buffers = {
        "x": x.astype(BF16), "weight": weight[: head_dim * p["norm"]].astype(BF16),
        "table": table.astype(BF16), "y": nan(*x.shape),
    }  # fmt: skip
    return Problem("rope", p, buffers, judge)


def append_problem(context: Context, p: dict[str, int]) -> Problem:
    """A problem of `append`: the new keys are in their place, and the others unchanged."""
    rng, heads, head_dim = generator(p), p["kv_heads"], p["head_dim"]
    x = bf16(rng.standard_normal((heads, head_dim)))
    before = bf16(rng.standard_normal((heads, p["capacity"], head_dim)))
    expected = before.copy()
    expected[:, p["position"]] = x

    def judge(after: Mapping[str, NDArray[Any]]) -> list[Output]:
        rows = doubles(after["cache"]).transpose(0, 1, 3, 2, 4).reshape(before.shape)
        return [Output("cache", rows, exactly(expected))]

    cache = in_cache(before, p["capacity"])
    return Problem("append", p, {"x": x.astype(BF16), "table": nan(256), "cache": cache}, judge)


def move_heads_problem(context: Context, p: dict[str, int]) -> Problem:
    """A problem of `move_heads`: what is between the heads stays."""
    heads, dim = p["heads"], p["dim"]
    x = bf16(generator(p).standard_normal((heads, p["x_stride"])))
    before = bf16(generator(p).standard_normal((heads, p["y_stride"])))
    expected = np.concatenate([x[:, :dim], before[:, dim:]], axis=1)

    def judge(after: Mapping[str, NDArray[Any]]) -> list[Output]:
        return [Output("y", doubles(after["y"]), exactly(expected))]

    return Problem("move_heads", p, {"x": x.astype(BF16), "y": before.astype(BF16)}, judge)


def glu_problem(context: Context, p: dict[str, int]) -> Problem:
    """A problem of `glu`."""
    gate_up = bf16(generator(p).standard_normal((2, p["n"])))
    expected = glu(gate_up[0], gate_up[1], p["kind"])

    def judge(after: Mapping[str, NDArray[Any]]) -> list[Output]:
        return [Output("y", doubles(after["y"]), expected)]

    return Problem("glu", p, {"gate_up": gate_up.astype(BF16), "y": nan(p["n"])}, judge)
