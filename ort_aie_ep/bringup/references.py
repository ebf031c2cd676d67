"""The results of the designs' sequences, in numpy and float64, and how far a device may be off.

The kernels' tests, the designs' tests and `ort-aie validate` all compare with these. A tolerance is
derived from the roundings of a kernel, never tuned; each function names these roundings. Operands
are float64 arrays of values that bfloat16 can represent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
# Of exp2_coarse (float_math.h), relative.
COARSE_EXPONENTIAL = 0.003
# The sum of squares in fp32, the root's Newton step, two products of limbs (norm.h).
NORM = 2.0**-20 + 2 * U_LIMBS
# sigmoid and tanh, two products of limbs, and three in an argument of at most 16 (float_math.h).
ACTIVATION = 2.0**-13 + 2 * U_LIMBS + 16 * 3 * U_LIMBS
# Below the smallest normal bfloat16 relative errors mean nothing.
TINY = 2.0**-120

Doubles = NDArray[np.float64]


@dataclass(frozen=True)
class Reference:
    """`exact`, and for each element how far a result may be from it; arrays of the same shape."""

    exact: Doubles
    tolerance: Doubles


# --- numbers and layouts --------------------------------------------------------------------------
def bits(value: float) -> int:
    """The bit pattern of an fp32 scalar, as a kernel takes it."""
    return int(np.float32(value).view(np.int32))


def bf16(values: NDArray[Any] | float) -> Doubles:
    """Rounded to bfloat16."""
    narrowed: Doubles = np.asarray(values, np.float32).astype(BF16).astype(np.float64)
    return narrowed


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


def in_cache(rows: Doubles, capacity: int, first: int = 0, fill: float = 0.0) -> NDArray[Any]:
    """(heads, keys, head_dim) in the layout of the cache, bfloat16.

    `fill` is in the places before key `first` and after the last key.
    """
    heads, keys, head_dim = rows.shape
    full = np.full((heads, capacity, head_dim), fill)
    full[:, first:keys] = rows[:, first:]
    return np.stack([to_cache_blocks(head) for head in full]).astype(BF16)


def gemm_order(weights: NDArray[Any]) -> NDArray[Any]:
    """(N, K) as [N/32][K/256][4 steps of 64][8 kb][4 nb][8 k][8 n] bfloat16: B of the GEMM."""
    n, k = weights.shape
    blocks = weights.reshape(n // 32, 4, 8, k // 256, 4, 8, 8)  # [N][nb][n][K][step][kb][k]
    return np.ascontiguousarray(blocks.transpose(0, 3, 4, 5, 1, 6, 2)).astype(BF16)


def rotation_table(positions: int, rotary_dim: int) -> Doubles:
    """(positions, 256): cosines, then sines, of the usual angles."""
    half = rotary_dim // 2
    angles = np.arange(positions)[:, None] * 10000.0 ** (-np.arange(half) / max(1, half))
    table = np.zeros((positions, 256))
    table[:, :half], table[:, half:rotary_dim] = np.cos(angles), np.sin(angles)
    return bf16(table)


# --- projections ----------------------------------------------------------------------------------
def matvec(weights: Doubles, x: Doubles, bias: Doubles | float, activation: int) -> Reference:
    """y = W x + bias, W (N, K), with no activation (0) or SiLU (1).

    The tolerance is half a unit of bfloat16 for the output. The sums are fp32, so K roundings of
    2^-24 of the mass are added; a value that the kernel narrows once per group is split into two
    limbs (2^-17 of its group). SiLU's slope is at most 1.1, and its own error is a few units of
    bfloat16.
    """
    exact = weights @ x + bias
    mass = np.abs(weights) @ np.abs(x)
    if activation:
        exact = exact / (1 + np.exp(-exact))
    tolerance = np.abs(exact) * U_BF16 + mass * (len(x) * 2.0**-24 + 2.0**-16)
    return Reference(exact, 2 * tolerance + 0.02 if activation else tolerance)


def product(a: Doubles, weights: Doubles, architecture: str, output: str) -> Reference:
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
    if output == "bf16":
        tolerance = tolerance + U_BF16 * (np.abs(exact) + tolerance)
    return Reference(exact, tolerance)


# --- attention ------------------------------------------------------------------------------------
def scores(q: Doubles, k: Doubles, scale: float, softcap: float = 0.0) -> Doubles:
    """(queries, keys) scores; with a cap, cap * tanh(score / cap)."""
    s = q @ k.T * scale
    return softcap * np.tanh(s / softcap) if softcap else s


def weights(s: Doubles, attended: NDArray[np.bool_] | None = None) -> Doubles:
    """Softmax over the keys attended to; rows without any are zero."""
    if attended is None:
        attended = np.ones(s.shape, bool)
    s = np.where(attended, s, -np.inf)
    largest = s.max(-1, keepdims=True)
    f = np.exp(s - np.where(np.isfinite(largest), largest, 0.0))
    total = f.sum(-1, keepdims=True)
    return f / np.where(total > 0, total, 1.0)


def flow_kv(q: Doubles, k: Doubles, v: Doubles, softcap: float = 0.0) -> Reference:
    """One head of one query: q (head_dim), k and v (keys, head_dim), all keys seen.

    The error of a weight is the rounding of F, the exponential's 2^-15 and the error of its score,
    which an exponential makes relative: products of limbs, fp32 sums of up to 256 products of
    normal values (below 1e-4), and 2^-12 of a capped score. Normalising adds at most the same
    again; O is rounded once.
    """
    s = scores(q[None], k, len(q) ** -0.5, softcap)
    p = weights(s)
    exact = (p @ v)[0]
    score_error = np.abs(s).max() * (U_LIMBS + (2.0**-12 if softcap else 0)) + 1e-4
    per_weight = U_BF16 + 2.0**-15 + score_error
    return Reference(exact, 2 * per_weight * (p @ np.abs(v))[0] + U_BF16 * np.abs(exact))


def attended(prompt: int, past: int, window: int, causal: bool) -> NDArray[np.bool_]:
    """(prompt, past + prompt): the keys that each query sees."""
    query, key = past + np.arange(prompt)[:, None], np.arange(past + prompt)[None, :]
    seen = np.ones((prompt, past + prompt), bool)
    if causal:
        seen &= key <= query
    if window:
        seen &= key > query - window
    return seen


def flow_qkv(
    q: Doubles, k: Doubles, v: Doubles, seen: NDArray[np.bool_], softcap: float = 0.0
) -> Reference:
    """One head of a prompt: q (prompt, head_dim), k and v (keys, head_dim), `seen` (prompt, keys).

    The matrix unit rounds both operands to bfp16, over 8 dimensions of a query or key and over 8
    keys of v. This is part of the expected result, except for F. The error of F is the
    exponential's, a rounding to bfloat16, its score's, and 2^-7 of the largest of its 8 keys.
    Normalising adds at most the same again. O is rounded once.
    """
    total = len(k)
    keys = -(-total // 8) * 8
    v_seen = bfp16(np.pad(v, ((0, keys - total), (0, 0))), 0)[:total]
    s = scores(bfp16(q, -1), bfp16(k, -1), q.shape[-1] ** -0.5, softcap)
    p = weights(s, seen)
    exact = p @ v_seen
    blocks = np.pad(p, ((0, 0), (0, keys - total))).reshape(len(p), -1, 8)
    shared = np.repeat(blocks.max(-1), 8, axis=1)[:, :total]
    score_error = np.abs(s).max() * (U_LIMBS + (2.0**-12 if softcap else 0))
    per_weight = (COARSE_EXPONENTIAL + U_BF16 + score_error) * p + U_BFP16 * shared
    error = per_weight @ np.abs(v_seen) + per_weight.sum(-1)[:, None] * np.abs(exact)
    # Errors multiply: 2 % for products of those above, each below 1 %.
    return Reference(exact, 1.02 * error + U_BF16 * np.abs(exact))


# --- vector operators -----------------------------------------------------------------------------
def rounded(exact: Doubles, relative: float, mass: Doubles | None = None) -> Reference:
    """One rounding to bfloat16 of a value whose error is `relative` of its `mass` (itself)."""
    mass = np.abs(exact) if mass is None else mass
    return Reference(exact, U_BF16 * np.abs(exact) + relative * mass + TINY)


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


def softcap(x: Doubles, cap: float) -> Reference:
    """cap * tanh(x / cap)."""
    return rounded(cap * np.tanh(x / cap), ACTIVATION)
