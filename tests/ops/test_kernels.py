"""The host kernels of every instruction set that this CPU has, without ONNX Runtime."""

from __future__ import annotations

from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import numpy_q4nx as q4nx
import pytest
import q8nx

from ort_aie_ep import _native

Array = npt.NDArray[Any]

ISAS = _native.available_isas()
ROWS = [1, 2, 3, 13, 40]
# (N, K): whole blocks, padded out-features, padded in-features, less than one group.
SHAPES = [(64, 512), (100, 256), (33, 320), (5, 40), (32, 7)]
U = 2.0**-24  # unit roundoff of float32


def to_bfloat16(x: Array) -> Array:
    rounded: Array = x.astype(ml_dtypes.bfloat16).astype(np.float32)
    return rounded


def random_blocks(
    rng: np.random.Generator, n: int, k: int, bits: int = 4, symmetric: bool = False
) -> Array:
    """Of 4 bits, quantised; of 8 bits, codes and zero points of the whole range."""
    if bits == 4:
        return q4nx.quantize(rng.standard_normal((n, k)).astype(np.float32))
    groups = -(-k // 32)
    points = rng.integers(0, 256, (n, groups), dtype=np.uint8)
    return q8nx.pack(
        rng.integers(0, 256, (n, k), dtype=np.uint8),
        rng.uniform(-0.1, 0.1, (n, groups)).astype(np.float32),
        np.full_like(points, 128) if symmetric else points,
    )


def dequantised(blocks: Array, n: int, k: int, bits: int = 4) -> Array:
    """(n, k) float64."""
    weights: Array = (q4nx if bits == 4 else q8nx).dequantize(blocks, n, k).astype(np.float64)
    return weights


def accumulation_bound(a: Array, blocks: Array, n: int, k: int, bits: int = 4) -> Array:
    """Worst rounding error of a float32 sum of scale * code * a + min * a over k, in any order; of
    8 bits, with zero points subtracted before or after.

    Every term passes through at most k additions and four products (five of 8 bits), each wrong by
    2^-24 of the sum of magnitudes.
    """
    codes, scales, others = (q4nx if bits == 4 else q8nx).unpack(blocks, n, k)
    scale, other = (
        np.repeat(np.abs(x.astype(np.float64)), 32, axis=1)[:, :k] for x in (scales, others)
    )
    magnitude = scale * codes + other if bits == 4 else scale * (codes + other)
    bound: Array = (k + 4 + (bits == 8)) * U * (np.abs(a).astype(np.float64) @ magnitude.T)
    return bound


def quantise_activations(a: Array) -> Array:
    """The values of int8 codes: for each group of 32, the nearest of 255 steps, ties to even."""
    rows, k = a.shape
    padded = np.zeros((rows, -(-k // 32) * 32), np.float32)
    padded[:, :k] = a
    groups = padded.reshape(rows, -1, 32)
    scale = np.abs(groups).max(axis=2, keepdims=True) / np.float32(127)
    inverse = np.where(scale == 0, 0, np.float32(1) / np.where(scale == 0, 1, scale))
    codes = np.rint(groups * inverse.astype(np.float32)).astype(np.float64)
    values: Array = (codes * scale).reshape(rows, -1)[:, :k]
    return values


# Loops are inside tests: each product takes less time than pytest does for a test.


def check_product(
    isa: str, bits: int, numerics: str, gemm: bool, shape: tuple[int, int, int], symmetric: bool
) -> None:
    rows, n, k = shape
    rng = np.random.default_rng(shape)
    a = rng.standard_normal((rows, k)).astype(np.float32)
    blocks = random_blocks(rng, n, k, bits, symmetric)
    weights = dequantised(blocks, n, k, bits)
    y = _native.project(a, blocks, n, numerics, isa, symmetric, gemm=gemm)
    assert y.shape == (rows, n)
    prompt = gemm or rows > _native.most_streamed_rows(bits, numerics, isa)
    if numerics == "int8":
        if prompt and _native.prompts_in_bf16(isa):
            in_bf16 = _native.project(a, blocks, n, "bf16", isa, symmetric, gemm=True)
            np.testing.assert_array_equal(y, in_bf16, str(shape))
            return
        seen = quantise_activations(a)
    else:
        seen = to_bfloat16(a)
        # The GEMM's panel holds bfloat16 weights, FusedDQP never stores them. Before rounding those
        # of 4 bits do not depend on fused multiply-add: scale * code has 8 + 4 bits and is exact.
        weights = to_bfloat16(weights) if prompt else weights
    error = np.abs(y - seen.astype(np.float64) @ weights.astype(np.float64).T)
    bound = accumulation_bound(seen, blocks, n, k, bits)
    assert (error <= bound).all(), (shape, (error / bound).max())


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("numerics", ["bf16", "int8"])
@pytest.mark.parametrize("gemm", [False, True])
def test_products_are_exact_up_to_what_is_rounded(
    isa: str, bits: int, numerics: str, gemm: bool
) -> None:
    for rows, (n, k), symmetric in product(ROWS, SHAPES, {False, bits == 8}):
        check_product(isa, bits, numerics, gemm, (rows, n, k), symmetric)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("numerics", ["bf16", "int8"])
@pytest.mark.parametrize(
    ("bits", "code", "point"), [(4, 15, 0), (8, 255, 0), (8, 0, 255), (8, 255, 255), (8, 0, 128)]
)
def test_extreme_codes_and_activations_do_not_overflow(
    isa: str, numerics: str, bits: int, code: int, point: int
) -> None:
    """The largest integer sums: activations are at an end of their group's range."""
    n, k = 64, 256
    ones, others = np.ones((n, 8), np.float32), np.full((n, 8), point)
    pack, kind = (q4nx.pack, np.float32) if bits == 4 else (q8nx.pack, np.uint8)
    blocks = pack(np.full((n, k), code, np.uint8), ones, others.astype(kind))
    for rows, gemm in product(ROWS, (False, True)):
        a = np.full((rows, k), 127.0, np.float32)
        a[::2] *= -1
        y = _native.project(a, blocks, n, numerics, isa, point == 128, gemm=gemm)
        # Exact in float32, and so are the weights in bfloat16.
        expected = np.broadcast_to((code - point) * a.sum(axis=1, keepdims=True), (rows, n))
        np.testing.assert_array_equal(y, expected, f"{rows} rows, gemm={gemm}")


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("numerics", ["bf16", "int8"])
def test_nan_and_infinity_reach_exactly_their_rows(isa: str, bits: int, numerics: str) -> None:
    n, k = 100, 320
    blocks = random_blocks(np.random.default_rng(0), n, k, bits)
    for rows, gemm in product(ROWS, (False, True)):
        rng = np.random.default_rng([rows, 3])
        a = rng.standard_normal((rows, k)).astype(np.float32)
        clean = _native.project(a, blocks, n, numerics, isa, gemm=gemm)
        hit = rng.choice(rows, size=max(1, rows // 3), replace=False)
        places = hit, rng.integers(0, k, hit.size)
        others = np.setdiff1d(np.arange(rows), hit)
        for poison in (np.nan, np.inf, -np.inf):
            a[places] = poison
            y = _native.project(a, blocks, n, numerics, isa, gemm=gemm)
            case = f"{poison} in {rows} rows, gemm={gemm}"
            assert not np.isfinite(y[hit]).any(), case
            np.testing.assert_array_equal(y[others], clean[others], case)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("numerics", ["bf16", "int8"])
def test_zero_and_tiny_activations_give_zero_and_tiny_results(isa: str, numerics: str) -> None:
    n, k = 32, 256
    blocks = random_blocks(np.random.default_rng(4), n, k)
    for rows in (1, 5):
        zero = _native.project(np.zeros((rows, k), np.float32), blocks, n, numerics, isa)
        np.testing.assert_array_equal(zero, 0)
        tiny = np.full((rows, k), np.float32(1e-44))  # subnormal: may be flushed, must not explode
        y = _native.project(tiny, blocks, n, numerics, isa)
        assert (np.abs(y) <= 1e-40).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("numerics", ["bf16", "int8"])
def test_symmetric_weights_give_the_same_without_their_minima(isa: str, numerics: str) -> None:
    for rows, (n, k) in product(ROWS, SHAPES):
        rng = np.random.default_rng([rows, n, k, 9])
        a = rng.standard_normal((rows, k)).astype(np.float32)
        codes, scales, _ = q4nx.unpack(random_blocks(rng, n, k), n, k)
        blocks = q4nx.pack(codes, scales, -8 * scales.astype(np.float32))
        # Each is within the bound of the exact result for the activations that the kernel sees.
        seen = quantise_activations(a) if numerics == "int8" else a
        bound = 2 * accumulation_bound(seen, blocks, n, k)
        for gemm in (False, True):
            y = _native.project(a, blocks, n, numerics, isa, symmetric=True, gemm=gemm)
            with_minima = _native.project(a, blocks, n, numerics, isa, gemm=gemm)
            error = np.abs(y - with_minima)
            assert (error <= bound).all(), ((rows, n, k, gemm), (error / bound).max())


def test_project_refuses_what_does_not_fit() -> None:
    blocks = random_blocks(np.random.default_rng(5), 32, 256)
    a = np.zeros((1, 256), np.float32)
    with pytest.raises(ValueError, match=r"blocks .*\(2, 1, 5120\).*\(1, 1, 5120\)"):
        _native.project(a, blocks, 33, "bf16", "portable")
    with pytest.raises(ValueError, match=r"numerics .*fp4"):
        _native.project(a, blocks, 32, "fp4", "portable")
    with pytest.raises(ValueError, match="sse9"):
        _native.project(a, blocks, 32, "bf16", "sse9")


def exp_error(x: Array) -> Array:
    """Bound of the relative error of exp(x) for float32 x <= 0 that is wrong by 2^-24 |x| itself.

    The polynomial is good to 1.2e-7 (two units of 2^-24), its evaluation and the reduction of x
    add less than four more.
    """
    return (6 + np.abs(x)) * U


# (instruction set, kernels, type of the cache): few rows read the cache as it is; many rows read a
# float32 copy, or a bfloat16 copy on CPUs with dot products for it.
ATTENTION_PATHS = [
    (isa, path, cache)
    for isa in ISAS
    for path, cache in [
        ("few", "float32"), ("few", "float16"), ("few", "bfloat16"), ("many", "float32"),
        ("few", "int8"), ("few", "int4"),
        ("bf16", "float16"), ("bf16", "bfloat16"), ("bf16", "int8"), ("bf16", "int4"),
    ]
    if path != "bf16" or _native.has_bf16_attention(isa)
]  # fmt: skip


FLOAT_PATHS = [path for path in ATTENTION_PATHS if not path[2].startswith("int")]
ON_AVX512 = ("avx512", "avx512_bf16", "amx")  # AMX does not have kernels for few rows
# The largest code of an integer cache, which kernels use unscaled (a scale of 1).
LARGEST_CODE = {"int8": 127, "int4": 7}


def to_cache(x: Array, cache: str) -> Array:
    if cache in LARGEST_CODE:
        most = LARGEST_CODE[cache]
        codes: Array = np.clip(np.rint(x), -most - 1, most)
        return codes
    rounded: Array = x.astype(ml_dtypes.bfloat16 if cache == "bfloat16" else cache)
    return rounded.astype(np.float32)


@pytest.mark.parametrize(("isa", "path", "cache"), ATTENTION_PATHS)
def test_attention_chunk_matches_equations(isa: str, path: str, cache: str) -> None:
    sizes = [(1, 64), (3, 1), (4, 17), (9, 33), (18, 64), (13, 255), (29, 256)]
    dims = [8, 16, 24, 32, 64, 80, 96, 128, 256]
    for i, (dim, (rows, keys)) in enumerate(product(dims, sizes)):
        # The number of sizes is odd: each size and each number of channels has both caps.
        check_attention_chunk(isa, path, cache, 20.0 * (i % 2), dim, rows, keys)


def check_attention_chunk(
    isa: str, path: str, cache: str, softcap: float, dim: int, rows: int, keys: int
) -> None:
    rng = np.random.default_rng([dim, rows, keys])
    q = 3 * rng.standard_normal((rows, dim)).astype(np.float32)
    k = rng.standard_normal((keys, dim)).astype(np.float32)
    v = rng.standard_normal((keys, dim)).astype(np.float32)
    if cache in LARGEST_CODE:  # a few are clamped
        k, v = (x * np.float32(LARGEST_CODE[cache] / 2) for x in (k, v))
        q /= LARGEST_CODE[cache] / 2
    scale = float(np.float32(dim**-0.5))
    scores, numerators, sums, y = _native.attention_chunk(q, k, v, scale, softcap, path, cache, isa)

    k, v = to_cache(k, cache), to_cache(v, cache)
    if path == "bf16":
        q, k, v = to_bfloat16(q), to_bfloat16(k), to_bfloat16(v)
    q64, k64, v64 = (x.astype(np.float64) for x in (q, k, v))
    expected = scale * (q64 @ k64.T)
    bound = (dim + 2) * U * scale * (np.abs(q64) @ np.abs(k64).T)
    # AVX-512 multiplies codes of int8 as integers: by queries in steps of 1 / 16,256 of
    # the row's largest element, and by numerators in steps of 1 / 65,535. Half a step each,
    # and a hundredth for the roundings on the way to it.
    integers = path == "few" and cache == "int8" and isa in ON_AVX512
    if integers:
        half_step = 0.505 * np.abs(q64).max(axis=1, keepdims=True) / 16256
        bound += scale * half_step * np.abs(k64).sum(axis=1)
    if softcap:
        expected = softcap * np.tanh(expected / softcap)
        # tanh's slope is at most 1; 1 - 2 / (exp(2t) + 1) adds the error of exp and two roundings.
        bound += softcap * (exp_error(2 * expected / softcap) + 4 * U)
    case = (softcap, dim, rows, keys)
    assert (np.abs(scores - expected) <= bound).all(), case

    # From here on, compare with the kernel's own scores, so that each bound covers one step.
    shifted = scores.astype(np.float64) - scores.max(axis=1, keepdims=True)
    exps = np.exp(shifted)
    error = exp_error(shifted)
    if path == "bf16":
        # A polynomial good to 7.5e-5, x log2(e) instead of a split ln2, and rounding to bfloat16.
        error = 7.5e-5 + error + np.abs(shifted) * U
        error = error + 2.0**-8 * (1 + error)
        np.testing.assert_array_equal(numerators, to_bfloat16(numerators), str(case))
    assert (np.abs(numerators - exps) <= exps * error + 2.0**-126).all(), case
    n64 = numerators.astype(np.float64)
    assert (np.abs(sums - n64.sum(axis=1)) <= keys * U * n64.sum(axis=1)).all(), case
    bound = (keys + 1) * U * (n64 @ np.abs(v64))
    if integers:
        half_step = 0.505 * n64.max(axis=1, keepdims=True) / 65535
        bound += half_step * np.abs(v64).sum(axis=0)
    assert (np.abs(y - n64 @ v64) <= bound).all(), case


@pytest.mark.parametrize(("isa", "path", "cache"), FLOAT_PATHS)
def test_attention_chunk_with_far_scores_saturates(isa: str, path: str, cache: str) -> None:
    # Scores 0, -48, ..., -3024: exp underflows to exact zeros instead of wrapping around.
    q = np.full((2, 8), 1.0, np.float32)
    k = np.repeat(np.arange(64)[:, None] * -48 / 8, 8, axis=1).astype(np.float32)
    v = np.ones((64, 8), np.float32)
    _, numerators, sums, y = _native.attention_chunk(q, k, v, 1.0, 0.0, path, cache, isa)
    np.testing.assert_array_equal(numerators[:, 0], 1)
    np.testing.assert_array_equal(numerators[:, 2:], 0)
    np.testing.assert_allclose(sums, 1, rtol=4 * U)
    np.testing.assert_allclose(y, 1, rtol=4 * U)
    scores, *_ = _native.attention_chunk(100 * q, k, v, 1.0, 30.0, path, cache, isa)
    np.testing.assert_allclose(scores[:, 1:], -30, rtol=4 * U)


@pytest.mark.parametrize(("isa", "path", "cache"), ATTENTION_PATHS)
@pytest.mark.parametrize("softcap", [0.0, 20.0])
def test_attention_chunk_propagates_nan_to_its_row(
    isa: str, path: str, cache: str, softcap: float
) -> None:
    rng = np.random.default_rng(6)
    q, k, v = (rng.standard_normal((n, 32)).astype(np.float32) for n in (9, 40, 40))
    clean = _native.attention_chunk(q, k, v, 0.2, softcap, path, cache, isa)
    q[4, 5] = np.nan
    poisoned = _native.attention_chunk(q, k, v, 0.2, softcap, path, cache, isa)
    for before, after in zip(clean, poisoned, strict=True):
        assert np.isnan(after[4]).all()
        np.testing.assert_array_equal(np.delete(after, 4, 0), np.delete(before, 4, 0))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("code", [-128, 127])
@pytest.mark.parametrize("sign", [-1, 1])
def test_extreme_codes_and_queries_do_not_overflow(isa: str, code: int, sign: int) -> None:
    # Integers of 16 bits, or their sums, would wrap around. All numbers are powers of two or steps
    # of a query's largest element, so results are exact except for float32's rounding.
    keys, dim = 256, 512
    q = np.full((3, dim), sign * 2.0**20, np.float32)
    k = np.full((keys, dim), code, np.float32)
    scores, numerators, sums, y = _native.attention_chunk(
        q, k, k, 2.0**-30, 0.0, "few", "int8", isa
    )
    np.testing.assert_allclose(scores, sign * code * dim * 2.0**-10, rtol=(dim + 2) * U)
    np.testing.assert_allclose(numerators, 1, rtol=0, atol=(dim + 2) * U * 64)
    np.testing.assert_allclose(y, code * sums[:, None] * np.ones(dim), rtol=2 * keys * U)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("per_channel", [False, True])
def test_codes_of_a_cache_are_rounded_to_even_and_clamped(
    isa: str, bits: int, per_channel: bool
) -> None:
    rng = np.random.default_rng(bits)
    most = 2 ** (bits - 1) - 1
    n = 1000 + 24
    scales = np.full(1, 0.25, np.float32)
    if per_channel:
        scales = rng.uniform(0.01, 4, n).astype(np.float32) * rng.choice([-1, 1], n)
        scales = scales.astype(np.float32)
        scales[5:9] = 0  # counts as 1
    inverse = np.float32(1) / np.where(scales == 0, np.float32(1), scales)
    x = (rng.uniform(-1.5 * most, 1.5 * most, n) / inverse).astype(np.float32)
    x[::3] = ((rng.integers(-most, most, n) + 0.5) / inverse).astype(np.float32)[::3]  # ties
    x[[20, 21, 22, 23]] = [np.inf, -np.inf, 3e38, -3e38]
    with np.errstate(over="ignore"):
        expected = np.clip(np.rint(x * inverse), -most - 1, most)
    x[24] = np.nan
    expected[24] = most
    cache, codes = _native.cache_codes(x, scales, bits, isa)
    np.testing.assert_array_equal(codes, expected)
    if bits == 8:
        np.testing.assert_array_equal(cache.view(np.int8), expected)
    else:
        np.testing.assert_array_equal(cache, (expected[0::2] + 8) + 16 * (expected[1::2] + 8))


@pytest.mark.parametrize(("isa", "path", "cache"), FLOAT_PATHS)
def test_attention_reads_every_cache_value(isa: str, path: str, cache: str) -> None:
    # One key of one channel set at a time, powers of two down to float16's subnormals and up to
    # its limits: the score is the value itself, which is exact in all types.
    values = np.float32(2.0) ** np.arange(-24, 16)
    k = np.zeros((values.size, 8), np.float32)
    k[np.arange(values.size), np.arange(values.size) % 8] = values
    scores, *_ = _native.attention_chunk(
        np.ones((3, 8), np.float32), k, k, 1.0, 0.0, path, cache, isa
    )
    np.testing.assert_array_equal(scores, np.broadcast_to(values, scores.shape))
    k[:, :] = 0
    k[2, 1], k[3, 4] = np.inf, np.nan
    scores, *_ = _native.attention_chunk(
        np.ones((3, 8), np.float32), k, k, 1.0, 0.0, path, cache, isa
    )
    assert (scores[:, 2] == np.inf).all()
    assert np.isnan(scores[:, 3]).all()
    np.testing.assert_array_equal(np.delete(scores, [2, 3], axis=1), 0)


def round_trip(x: Array, isa: str) -> Array:
    y: Array = _native.float16_round_trip(np.ascontiguousarray(x, np.float32), isa)
    return y


def numpy_round_trip(x: Array) -> Array:
    with np.errstate(over="ignore", invalid="ignore"):
        return x.astype(np.float16).astype(np.float32)


def assert_same_floats(actual: Array, expected: Array) -> None:
    """Equal bit for bit, so that zeros keep their signs; NaN only has to be NaN."""
    nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(actual), nan)
    np.testing.assert_array_equal(actual[~nan].view(np.uint32), expected[~nan].view(np.uint32))


@pytest.mark.parametrize("isa", ISAS)
def test_every_float16_survives_the_round_trip(isa: str) -> None:
    halves = np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float32)
    assert_same_floats(round_trip(halves, isa), halves)


@pytest.mark.parametrize("isa", ISAS)
def test_float16_rounds_to_nearest_even(isa: str) -> None:
    # For each two neighbours: the tie, and one float32 step to either side of it.
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    ties = ((halves[:-1].astype(np.float64) + halves[1:]) / 2).astype(np.float32)
    x = np.concatenate([ties, np.nextafter(ties, np.float32(0)), np.nextafter(ties, np.inf)])
    x = np.concatenate([x, -x]).astype(np.float32)
    assert_same_floats(round_trip(x, isa), numpy_round_trip(x))


@pytest.mark.parametrize("isa", ISAS)
def test_float16_limits(isa: str) -> None:
    x = np.array(
        [
            # The largest number, and numbers that overflow.
            *(65504, 65519.996, 65520, 65536, 1e30, np.inf, np.nan),
            *(2.0**-14, 2.0**-24, 2.0**-25, 2.0**-25 * 1.0001, 2.0**-26, 1e-45, 0.0),  # subnormals
        ],
        np.float32,
    )
    x = np.concatenate([x, -x])
    assert_same_floats(round_trip(x, isa), numpy_round_trip(x))


@pytest.mark.parametrize("isa", ISAS)
def test_float16_of_arbitrary_bits_and_lengths(isa: str) -> None:
    for count in (1, 3, 7, 8, 9, 15, 31, 65536):
        bits = np.random.default_rng(count).integers(0, 2**32, count, dtype=np.uint32)
        x = bits.view(np.float32)
        assert_same_floats(round_trip(x, isa), numpy_round_trip(x))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("rows", [1, 4])
def test_bfloat16_activations_round_to_nearest_even(isa: str, rows: int) -> None:
    # A weight of 1 for only the first in-feature makes the projection show the rounded activation.
    codes = np.zeros((1, 32), np.uint8)
    codes[0, 0] = 1
    blocks = q4nx.pack(codes, np.ones((1, 1), np.float32), np.zeros((1, 1), np.float32))
    step = 2.0**-7
    for value in (1 + step / 2, 1 + 3 * step / 2, 1 + step / 2 + 2.0**-23, -1 - step / 2, 3e38):
        a = np.zeros((rows, 32), np.float32)
        a[:, 0] = value
        y = _native.project(a, blocks, 1, "bf16", isa)
        np.testing.assert_array_equal(y, to_bfloat16(a)[:, :1])
