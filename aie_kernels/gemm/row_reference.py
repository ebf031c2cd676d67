"""The row operators of a prompt in float64: problems of `gemm` on AIE2P in numpy.

Rows after M are in the buffers, up to 64, and hold whatever was there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ort_aie_ep.aie_kernels.flow_kv.reference import in_cache
from ort_aie_ep.aie_kernels.reference import (
    BF16,
    Buffers,
    Context,
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
from ort_aie_ep.aie_kernels.vector_ops.reference import NORM, glu, normalised, rope, rotation_table


def gate(context: Context, p: dict[str, int]) -> Problem:
    """A problem of `gate`."""
    m, shape = p["M"], (max(p["M"], 64), p["N"])
    gates, ups = bf16(generator(p).standard_normal((2, *shape)))
    gates[m:] = ups[m:] = np.nan

    def judge(after: Mapping[str, NDArray[Any]]) -> list[Output]:
        return [Output("y", doubles(after["y"][:m]), glu(gates[:m], ups[:m], p["kind"]))]

    buffers = {"gate": gates.astype(BF16), "up": ups.astype(BF16), "y": nan(*shape)}
    return Problem("gate", p, buffers, judge)


def add_norm(context: Context, p: dict[str, int], size: float = 1.0) -> Problem:
    """A problem of `add_norm`, with values of about `size`."""
    rows, k, n, rng = max(p["M"], 64), p["K"], p["n"], generator(p)
    x, other, weight = np.zeros((rows, k)), np.zeros((rows, k)), np.zeros(k)
    x[:, :n], other[:, :n] = bf16(rng.standard_normal((2, rows, n)) * size)
    weight[:n] = bf16(rng.uniform(0.5, 1.5, n))
    total = bf16(x + p["residual"] * other)[: p["M"]]
    x[p["M"] :] = np.nan

    def judge(after: Mapping[str, NDArray[Any]]) -> list[Output]:
        outputs = []
        if p["residual"]:
            outputs.append(Output("sum", doubles(after["sum"][: p["M"]]), exactly(total)))
        if p["norm"]:
            expected = rounded(normalised(total, weight, n, value(p["eps_bits"])), NORM)
            outputs.append(Output("y", doubles(after["y"][: p["M"]]), expected))
        return outputs

    with_residual, with_norm = rows * p["residual"], rows * p["norm"]
    buffers = {
        "x": x.astype(BF16), "residual": other[:with_residual].astype(BF16),
        "weight": weight[: k * p["norm"]].astype(BF16), "sum": nan(with_residual, k),
        "y": nan(with_norm, k),
    }  # fmt: skip
    return Problem("add_norm", p, buffers, judge)


def _rotation(p: dict[str, int], heads: int) -> tuple[Buffers, Reference]:
    """Inputs of a rotation, and heads (M, heads, head_dim)."""
    rows, head_dim, rotary_dim, rng = max(p["M"], 64), p["head_dim"], p["rotary_dim"], generator(p)
    width = heads * head_dim
    x = bf16(rng.standard_normal((rows, p["x_stride"])))
    x[p["M"] :] = np.nan
    weight = bf16(rng.uniform(0.5, 1.5, head_dim))
    table = rotation_table(1000 + rows, rotary_dim)[1000:]
    behind = (256 - rotary_dim) // 2 if rotary_dim else 0
    buffers = {
        "x": x.astype(BF16).reshape(-1)[: (rows - 1) * p["x_stride"] + width],
        "weight": weight[: head_dim * p["norm"]].astype(BF16),
        "table": np.concatenate([table[:, :rotary_dim].astype(BF16).reshape(-1), nan(behind)]),
    }
    seen = x[: p["M"], :width].reshape(-1, heads, head_dim)
    if p["norm"]:
        seen = normalised(seen, weight, head_dim, value(p["eps_bits"]))
    exact = rope(seen, table[: p["M"]], rotary_dim, p["interleaved"], p["norm"])
    return buffers, exact


def rotate(context: Context, p: dict[str, int]) -> Problem:
    """A problem of `rotate`."""
    buffers, expected = _rotation(p, p["heads"])

    def judge(after: Mapping[str, NDArray[Any]]) -> list[Output]:
        return [Output("y", doubles(after["y"][: p["M"]]), expected)]

    y = nan(max(p["M"], 64), p["heads"], p["head_dim"])
    return Problem("rotate", p, buffers | {"y": y}, judge)


def append_rows(context: Context, p: dict[str, int]) -> Problem:
    """A problem of `append_rows`."""
    buffers, expected = _rotation(p, p["kv_heads"])
    new = slice(p["position"], p["position"] + p["M"])
    before = bf16(generator(p).standard_normal((p["kv_heads"], p["capacity"], p["head_dim"])))

    def judge(after: Mapping[str, NDArray[Any]]) -> list[Output]:
        blocks = doubles(after["cache"])
        rows = blocks.transpose(0, 1, 3, 2, 4).reshape(before.shape)
        untouched = before.copy()
        untouched[:, new] = rows[:, new]
        return [
            Output("new keys", rows[:, new].transpose(1, 0, 2), expected),
            Output("other keys", rows, exactly(untouched)),
        ]

    cache = in_cache(before, p["capacity"])
    return Problem("append_rows", p, buffers | {"cache": cache}, judge)
