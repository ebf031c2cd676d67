"""GEMM's kernels: AIE2 exact products, AIE2P operands in blocks of 8 that share an exponent."""

from __future__ import annotations

import numpy as np
import pytest
from linear_kernels import FLOAT_EPSILON
from standin import Array, aligned, bits32, f64, to_bf16, to_bfp16

from ort_aie_ep.aie_kernels.gemm.kernels import (
    GEMM_TILE,
    GEMM_TILE_BFP16,
)
from ort_aie_ep.formats import bfp16
from ort_aie_ep.npu.kernels import Kernels

SHAPES = [(64, 64, 32), (16, 64, 16), (64, 32, 64), (32, 128, 16)]  # m, k, n


@pytest.fixture(scope="module", params=["aie2", "aie2p"])
def kernels(request: pytest.FixtureRequest) -> Kernels:
    return Kernels(request.param)


def padded(values: Array, count: int) -> Array:
    """`values` at the start of an L1 buffer of `count`; the rest must not be read."""
    buffer = np.full(count, np.nan).astype(values.dtype)
    buffer[: values.size] = values.ravel()
    return aligned(buffer)


def blocked_a(a: Array) -> Array:
    """(m, k) as [k / 8][m / 8][8 m][8 k]."""
    m, k = a.shape
    return a.reshape(m // 8, 8, k // 8, 8).transpose(2, 0, 1, 3)


def blocked_b(b: Array) -> Array:
    """(k, n) as [k / 8][n / 8][8 k][8 n]."""
    k, n = b.shape
    return b.reshape(k // 8, 8, n // 8, 8).transpose(0, 2, 1, 3)


def unblocked(c: Array, m: int, n: int) -> Array:
    """[m / 8][n / 8][8][8] as (m, n)."""
    whole: Array = c.reshape(m // 8, n // 8, 8, 8).transpose(0, 2, 1, 3).reshape(m, n)
    return whole


def operands(rng: np.random.Generator, kind: str, m: int, k: int, n: int) -> tuple[Array, Array]:
    a, b = rng.standard_normal((m, k)), rng.standard_normal((k, n))
    if kind == "apart":
        a *= np.exp2(rng.integers(-12, 12, (m, k)))
        b *= np.exp2(rng.integers(-12, 12, (k, n)))
    elif kind == "zeros":
        a[::2], b[:, ::2] = 0, 0
    return to_bf16(a), to_bf16(b)


def blocks_of_8(x: Array, axis: int) -> Array:
    """x as AIE2P's products see it: rounded to the nearest bfp16, in blocks along `axis`."""
    moved = np.moveaxis(x, axis, -1)
    rounded = to_bfp16(moved.reshape(*moved.shape[:-1], -1, 8)).reshape(moved.shape)
    return np.moveaxis(rounded, -1, axis)


def multiply(kernels: Kernels, acc: Array, a: Array, b: Array, part: int = 0) -> None:
    m, k = a.shape
    n = b.shape[1]
    kernels.call(
        GEMM_TILE, padded(blocked_a(a), 4096), padded(blocked_b(b), 2048), acc,
        m // 8, k // 8, n // 8, part,
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["usual", "apart", "zeros"])
@pytest.mark.parametrize(("m", "k", "n"), SHAPES)
def test_tiles_accumulate_over_k(kernels: Kernels, kind: str, m: int, k: int, n: int) -> None:
    rng = np.random.default_rng(1)
    acc = padded(np.zeros(m * n, np.float32), 8192)
    want, magnitude = np.zeros((m, n)), np.zeros((m, n))
    steps = 3
    for _ in range(steps):
        a, b = operands(rng, kind, m, k, n)
        multiply(kernels, acc, a, b)
        seen = (f64(a), f64(b))
        if kernels.architecture == "aie2p":
            seen = (blocks_of_8(a, 1), blocks_of_8(b, 0))
        want += seen[0] @ seen[1]
        magnitude += np.abs(seen[0]) @ np.abs(seen[1])
    # One rounding of the sum for every eight of k. On AIE2 also nine terms aligned to 2^-24 of the
    # largest, which is at most twice its exponent's power of two.
    roundings = steps * (k // 8) * (1 if kernels.architecture == "aie2p" else 19)
    error = np.abs(unblocked(acc[: m * n], m, n) - want)
    assert (error <= roundings * FLOAT_EPSILON * magnitude).all()
    assert np.isnan(acc[m * n :]).all()


def paired_b(b: Array) -> Array:
    """(k, n) as [n / 16][k / 8][2][8 n][9 bytes]: the bfp16 of eight k."""
    k, n = b.shape
    pairs = b.T.reshape(n // 16, 2, 8, k // 8, 8).transpose(0, 3, 1, 2, 4)
    return bfp16.encode(np.ascontiguousarray(pairs))


@pytest.mark.parametrize("kind", ["usual", "apart", "zeros"])
@pytest.mark.parametrize(("m", "k", "n"), SHAPES)
def test_b_in_bfp16_gives_the_bits_of_the_same_b_in_bf16(kind: str, m: int, k: int, n: int) -> None:
    kernels = Kernels("aie2p")
    rng = np.random.default_rng(6)
    start = rng.standard_normal(m * n).astype(np.float32)
    acc, want = padded(start, 8192), padded(start, 8192)
    a, b = operands(rng, kind, m, k, n)
    b[::16] = 255 / 128  # exponents grow
    multiply(kernels, want, a, b)
    packed = aligned(np.pad(paired_b(b).ravel(), (0, 2304 - k * n // 8 * 9), constant_values=255))
    kernels.call(
        GEMM_TILE_BFP16, padded(blocked_a(a), 4096), packed, acc, m // 8, k // 8, n // 8, 0
    )
    np.testing.assert_array_equal(bits32(acc[: m * n]), bits32(want[: m * n]))
    assert np.isnan(acc[m * n :]).all()
