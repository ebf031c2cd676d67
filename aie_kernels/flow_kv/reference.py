"""Attention of one query in float64, and the cache's layout: problems of `flow_kv` in numpy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
    generator,
    nan,
    value,
)

GARBAGE = 3.0e30  # in keys that no kernel may read


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
    blocks = np.stack([to_cache_blocks(head) for head in full])
    return np.ascontiguousarray(blocks.astype(BF16))


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


def problem(context: Context, p: dict[str, int]) -> Problem:
    """A problem of `attention` with one query."""
    rng, group = generator(p), p["heads"] // p["kv_heads"]
    keys, head_dim = p["context"], p["head_dim"]
    first = max(0, keys - p["window"]) if p["window"] else 0
    q = bf16(rng.standard_normal((p["heads"], head_dim)) * 2)
    k, v = bf16(rng.standard_normal((2, p["kv_heads"], keys, head_dim)))

    def judge(after: Mapping[str, NDArray[Any]]) -> list[Output]:
        each = [
            flow_kv(q[h], k[h // group, first:], v[h // group, first:], value(p["softcap_bits"]))
            for h in range(p["heads"])
        ]
        return [Output("o", doubles(after["o"]), stacked(each))]

    buffers = {
        "q": q.astype(BF16),
        "k": in_cache(k, p["capacity"], first, GARBAGE),
        "v": in_cache(v, p["capacity"], first, GARBAGE),
        "o": nan(*q.shape),
    }
    return Problem("attention", p, buffers, judge)


def stacked(each: list[Reference], axis: int = 0) -> Reference:
    """The references of heads as one."""
    return Reference(
        np.stack([r.exact for r in each], axis), np.stack([r.tolerance for r in each], axis)
    )
