"""Attention of a prompt in float64: problems of `flow_qkv` in numpy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ort_aie_ep.aie_kernels.flow_kv.reference import in_cache, scores, stacked, weights
from ort_aie_ep.aie_kernels.reference import (
    BF16,
    U_BF16,
    U_BFP16,
    U_LIMBS,
    Context,
    Doubles,
    Output,
    Problem,
    Reference,
    bf16,
    bfp16,
    doubles,
    generator,
    nan,
    value,
)
from ort_aie_ep.npu.terms.errors import DesignError

CHUNK = 4096  # elements of K or V that the design fetches at a time
# Of exp2_coarse (float_math.h), relative.
COARSE_EXPONENTIAL = 0.003


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


def problem(context: Context, p: dict[str, int]) -> Problem:
    """A problem of `attention` with the queries of a prompt."""
    rng, group = generator(p), p["heads"] // p["kv_heads"]
    prompt, head_dim, total = p["prompt"], p["head_dim"], p["past"] + p["prompt"]
    # The size of the sequence's argument shows how it rounds the length of prompts.
    tokens = context.size("q", p) // (p["heads"] * head_dim * 2)
    if not prompt <= tokens <= prompt + CHUNK:
        raise DesignError(f"the sequence's argument q has {tokens} tokens for a prompt of {prompt}")
    q = bf16(rng.standard_normal((tokens, p["heads"], head_dim)))
    k, v = bf16(rng.standard_normal((2, p["kv_heads"], total, head_dim)))
    seen = attended(prompt, p["past"], p["window"], bool(p["causal"]))

    def judge(after: Mapping[str, NDArray[Any]]) -> list[Output]:
        each = [
            flow_qkv(q[:prompt, h], k[h // group], v[h // group], seen, value(p["softcap_bits"]))
            for h in range(p["heads"])
        ]
        expected = stacked(each, axis=1)
        return [Output("o", doubles(after["o"][:prompt]), expected)]

    buffers = {
        "q": q.astype(BF16),
        "k": in_cache(k, p["capacity"]),
        "v": in_cache(v, p["capacity"]),
        "o": nan(*q.shape),
    }
    return Problem("attention", p, buffers, judge)
