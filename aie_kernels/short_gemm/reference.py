"""Products of many rows with quantised weights: problems of `short_gemm` in numpy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from ort_aie_ep.aie_kernels.gemm.reference import product
from ort_aie_ep.aie_kernels.reference import (
    BF16,
    Context,
    Output,
    Problem,
    dequantized,
    doubles,
    generator,
    nan,
    random_blocks,
)


def problem(context: Context, p: dict[str, int]) -> Problem:
    """A problem of `project`."""
    m, k, n, rng = p["M"], p["K"], p["N"], generator(p)
    rows = max(m, 64)
    a = rng.standard_normal((rows, k)).astype(BF16)
    blocks = random_blocks(rng, n, k, context.form)
    w = dequantized(blocks, n, k, context.form).astype(BF16)

    def judge(after: Mapping[str, NDArray[Any]]) -> list[Output]:
        expected = product(doubles(a[:m]), doubles(w), context.device.architecture)
        return [Output("c", doubles(after["c"][:m]), expected)]

    return Problem("project", p, {"a": a, "w": blocks, "c": nan(rows, n)}, judge)
