"""AVX512_BF16: what its instructions compute is what the stand-in for them computes, bit by bit.

test_kernels.py and others test the kernels of both.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from test_amx import as_float, bf16_weights, random_bits

from ort_aie_ep import _native

Array = npt.NDArray[Any]

REAL, STANDIN = "avx512_bf16", "avx512_bf16_standin"
pytestmark = pytest.mark.skipif(
    not {REAL, STANDIN} <= set(_native.available_isas()), reason="the stand-in alone, or not built"
)


def assert_same_bits(real: Array, standin: Array) -> None:
    np.testing.assert_array_equal(real.view(np.uint32), standin.view(np.uint32))


# Tiles of 12, 4 and 1 row; denormals, products of them, ordinary numbers.
@pytest.mark.parametrize("rows", [1, 5, 12, 16, 29])
@pytest.mark.parametrize("lowest", [1, 60, 110])
def test_products_with_weights_in_bfloat16(rows: int, lowest: int) -> None:
    rng = np.random.default_rng([rows, lowest])
    k, n = 700, 40
    a = as_float(random_bits(rng, rows, k, lowest=lowest, exponents=20))
    a[:, ::50] = as_float(random_bits(rng, rows, 14, lowest=0, exponents=1))  # denormals, zeros
    blocks = bf16_weights(random_bits(rng, n, k, lowest=lowest, exponents=20))
    assert_same_bits(*(_native.project(a, blocks, n, "bf16", isa) for isa in (REAL, STANDIN)))


@pytest.mark.parametrize("minima", [True, False])
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 41])
def test_products_with_weights_of_four_bits(rows: int, minima: bool) -> None:
    rng = np.random.default_rng([rows, minima])
    k, n = 512, 64
    blocks = rng.integers(0, 256, (2, 2, 5120), np.uint8)
    fields = blocks[:, :, :1024].view(np.uint16)  # scales and minima
    fields[...] = random_bits(rng, *fields.shape, lowest=118, exponents=4)
    a = rng.standard_normal((rows, k)).astype(np.float32)
    assert_same_bits(
        *(_native.project(a, blocks, n, "bf16", isa, not minima) for isa in (REAL, STANDIN))
    )


@pytest.mark.parametrize("cache", ["float16", "bfloat16", "int8", "int4"])
@pytest.mark.parametrize("dim", [8, 24, 64, 80, 128])
def test_attention_of_prompts(dim: int, cache: str) -> None:
    for rows, keys in ((1, 64), (3, 1), (13, 255), (16, 33), (29, 256)):
        rng = np.random.default_rng([dim, rows, keys])
        q, k, v = (rng.standard_normal((n, dim)).astype(np.float32) for n in (rows, keys, keys))
        real, standin = (
            _native.attention_chunk(q, 7 * k, 7 * v, 0.125, 0.0, "bf16", cache, isa)
            for isa in (REAL, STANDIN)
        )
        for of_real, of_standin in zip(real, standin, strict=True):
            assert_same_bits(of_real, of_standin)
