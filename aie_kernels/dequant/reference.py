"""Weights in bfloat16, in the order of GEMM: problems of `dequant` in numpy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ort_aie_ep.aie_kernels.gemm.design import pack_b_bfp16
from ort_aie_ep.aie_kernels.reference import (
    Context,
    Output,
    Problem,
    dequantized,
    doubles,
    exactly,
    generator,
    nan,
    random_blocks,
)
from ort_aie_ep.formats import bf16_blocks


def problem(context: Context, p: dict[str, int]) -> Problem:
    """A problem of `dequant`."""
    count = p["blocks"]
    blocks = random_blocks(generator(p), 32 * count, 256, context.form)
    weights = dequantized(blocks, 32 * count, 256, context.form)

    if context.size("b", p) == 9216 * count:
        return _bfp16_problem(p, blocks, weights)

    def judge(after: Mapping[str, NDArray[Any]]) -> list[Output]:
        # scale * code is exact in float32 (8 and 4 significant bits), so that numpy and the kernel
        # both round the sum to float32 and that to bfloat16: the same bits.
        expected = exactly(bf16_blocks.pack(weights))
        return [Output("b", doubles(after["b"]).reshape(expected.exact.shape), expected)]

    return Problem("dequant", p, {"w": blocks, "b": nan(count, 8192)}, judge)


def _bfp16_problem(p: dict[str, int], blocks: NDArray[Any], weights: NDArray[Any]) -> Problem:
    """A problem of `dequant_bfp16`, all of whose bytes are known."""
    packed = pack_b_bfp16(weights)

    def judge(after: Mapping[str, NDArray[Any]]) -> list[Output]:
        return [Output("b", doubles(after["b"]).reshape(packed.shape), exactly(packed))]

    return Problem("dequant", p, {"w": blocks, "b": np.full(packed.shape, 255, np.uint8)}, judge)
