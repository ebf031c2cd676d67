"""The lookup kernels of every instruction set that this CPU has, without ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy_q4nx as q4nx
import pytest
from lookup_errors import INT8, INT16, Array, U, lookup_error

from ort_aie_ep import _native

ISAS = _native.available_isas()
# (N, K): whole blocks, padded out-features, padded in-features, less than one group, of one quad.
SHAPES = [(64, 512), (100, 256), (33, 320), (5, 40), (32, 7), (1, 1)]


def to_bfloat16(x: Array) -> Array:
    rounded: Array = x.astype(q4nx.bfloat16).astype(np.float32)
    return rounded


def random_blocks(rng: np.random.Generator, n: int, k: int) -> Array:
    return q4nx.quantize(rng.standard_normal((n, k)).astype(np.float32), 2)


def symmetric_blocks(rng: np.random.Generator, n: int, k: int) -> Array:
    """With minima of -2 * scale."""
    scales = rng.uniform(0.01, 0.1, (n, -(-k // 32))).astype(q4nx.bfloat16)
    codes = rng.integers(0, 4, (n, k), dtype=np.uint8)
    return q4nx.pack(codes, scales, -2 * scales.astype(np.float32), 2)


def table_of(isa: str, numerics: str) -> int | None:
    """Steps of the largest sum in the tables, or None where they hold floats."""
    if numerics == "int8":
        return INT8
    return INT16 if isa in ("avx2", "avx512_bf16_standin") else None  # which has AVX2's lookups


def product_and_bound(
    a: Array, blocks: Array, n: int, isa: str, numerics: str, symmetric: bool = False
) -> tuple[Array, Array, Array]:
    """The kernel's result, the exact product, and how far apart they may be."""
    x = to_bfloat16(a) if numerics == "bf16" else a
    y = _native.project(a, blocks, n, numerics, isa, symmetric)
    weights = q4nx.dequantize(blocks, n, a.shape[1]).astype(np.float64)
    expected = x.astype(np.float64) @ weights.T
    return y, expected, lookup_error(x, blocks, n, table_of(isa, numerics))


def assert_within(y: Array, expected: Array, bound: Array) -> None:
    error = np.abs(y - expected)
    assert (error <= bound).all(), (error / bound).max()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("numerics", ["bf16", "int8"])
@pytest.mark.parametrize("make", [random_blocks, symmetric_blocks])
@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_lookups_match_the_product(
    isa: str, numerics: str, make: Callable[..., Array], rows: int, n: int, k: int
) -> None:
    rng = np.random.default_rng([n, k])
    blocks, a = make(rng, n, k), rng.standard_normal((rows, k)).astype(np.float32)
    symmetric = make is symmetric_blocks  # whose minima are not needed
    assert_within(*product_and_bound(a, blocks, n, isa, numerics, symmetric))


@pytest.mark.parametrize("isa", ISAS)
def test_one_code_and_one_activation_meet(isa: str) -> None:
    """Every kind of place in a block: all weights but one are zero."""
    scales = np.ones((32, 8), np.float32)
    for row, col, code in [(0, 0, 1), (1, 1, 2), (31, 255, 3), (16, 130, 1), (15, 67, 2)]:
        codes = np.zeros((32, 256), np.uint8)
        codes[row, col] = code
        blocks = q4nx.pack(codes, scales, np.zeros_like(scales), 2)
        a = np.zeros((1, 256), np.float32)
        a[0, col] = 4
        expected = np.zeros(32)
        expected[row] = 4 * code
        one = _native.project(a, blocks, 32, "bf16", isa)[0]
        assert_within(one, expected, lookup_error(a, blocks, 32, table_of(isa, "bf16")))
        many = _native.project(np.repeat(a, 2, axis=0), blocks, 32, "bf16", isa, gemm=True)[1]
        np.testing.assert_array_equal(many, expected)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("rows", [2, 13, 40])
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_a_prompt_meets_the_rounded_weights(isa: str, rows: int, n: int, k: int) -> None:
    rng = np.random.default_rng([rows, n, k])
    a, blocks = rng.standard_normal((rows, k)).astype(np.float32), random_blocks(rng, n, k)
    # scale * code has 8 + 2 bits: exact, so that fused or not the sum with min is one rounding.
    weights = to_bfloat16(q4nx.dequantize(blocks, n, k)).astype(np.float64)
    x = to_bfloat16(a).astype(np.float64)
    y = _native.project(a, blocks, n, "bf16", isa, gemm=True)
    bound = (k + 4) * U * (np.abs(x) @ np.abs(weights).T)
    assert_within(y, x @ weights.T, bound)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("rows", [2, 13, 40])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_an_int8_prompt_meets_exact_codes(
    isa: str, rows: int, symmetric: bool, n: int, k: int
) -> None:
    """Activations are whole numbers up to 127, one of them in each group: their own int8 codes."""
    rng = np.random.default_rng([rows, n, k, 8])
    a = rng.integers(-127, 128, (rows, k)).astype(np.float32)
    a[:, ::32] = 127
    blocks = (symmetric_blocks if symmetric else random_blocks)(rng, n, k)
    _, scales, mins = q4nx.unpack(blocks, n, k)
    scale, low = (
        np.repeat(np.abs(x.astype(np.float64)), 32, axis=1)[:, :k] for x in (scales, mins)
    )
    y = _native.project(a, blocks, n, "int8", isa, symmetric, gemm=True)
    if _native.prompts_in_bf16(isa):
        in_bf16 = _native.project(a, blocks, n, "bf16", isa, symmetric, gemm=True)
        np.testing.assert_array_equal(y, in_bf16)
        return
    expected = a.astype(np.float64) @ q4nx.dequantize(blocks, n, k).astype(np.float64).T
    # Codes less 2 with minima to match: magnitudes of 2 |scale| and |min + 2 scale|.
    assert_within(y, expected, (k + 8) * U * (np.abs(a).astype(np.float64) @ (4 * scale + low).T))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("numerics", ["bf16", "int8"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_reaches_every_result(isa: str, numerics: str, bad: float) -> None:
    rng = np.random.default_rng(0)
    blocks, a = random_blocks(rng, 40, 320), rng.standard_normal((1, 320)).astype(np.float32)
    a[0, 77] = bad
    assert not np.isfinite(_native.project(a, blocks, 40, numerics, isa)).any()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("numerics", ["bf16", "int8"])
def test_activations_of_zeros_and_of_any_magnitude(isa: str, numerics: str) -> None:
    rng = np.random.default_rng(0)
    blocks, a = random_blocks(rng, 40, 320), rng.standard_normal((1, 320)).astype(np.float32)
    zeros = _native.project(np.zeros_like(a), blocks, 40, numerics, isa)
    np.testing.assert_array_equal(zeros, 0)
    expected = _native.project(a, blocks, 40, numerics, isa)
    for power in (-60, 60):  # exact: every value and every sum is scaled by a power of two
        y = _native.project(a * np.float32(2.0**power), blocks, 40, numerics, isa)
        np.testing.assert_array_equal(y, expected * np.float32(2.0**power))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("numerics", ["bf16", "int8"])
@pytest.mark.parametrize("magnitude", [1e-30, 1e-33, 1e-35, 1e-37])
def test_tiny_activations_are_off_by_the_least_step_at_most(
    isa: str, numerics: str, magnitude: float
) -> None:
    rng = np.random.default_rng(7)
    blocks = random_blocks(rng, 40, 320)
    a = (magnitude * rng.standard_normal((1, 320))).astype(np.float32)
    assert_within(*product_and_bound(a, blocks, 40, isa, numerics))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("numerics", ["bf16", "int8"])
@pytest.mark.parametrize("signs", ["same", "random"])
def test_huge_activations_are_right_up_to_the_stated_bound_and_never_wrong_above(
    isa: str, numerics: str, signs: str
) -> None:
    rng = np.random.default_rng(8)
    # The weights are so small that the product itself is finite in float32.
    blocks = q4nx.quantize(2.0**-16 * rng.standard_normal((40, 320)).astype(np.float32), 2)
    a = np.full((1, 320), 2.0**121, np.float32)  # 2^126 in a group
    if signs == "random":
        a *= rng.choice([-1, 1], a.shape).astype(np.float32)
    assert_within(*product_and_bound(a, blocks, 40, isa, numerics))
    for factor in (4, 16, 100):  # 100: 2.7e38
        y, expected, bound = product_and_bound(factor * a, blocks, 40, isa, numerics)
        finite = np.isfinite(y)
        assert_within(y[finite], expected[finite], bound[finite])


# --- tables are made once for all projections that share an input ---------------------------------


def made_by(*calls: tuple[Array, Array, str, str]) -> int:
    """For how many rows the projections (a, blocks, numerics, isa) make tables."""
    before = _native.lookup_tables_made()
    for a, blocks, numerics, isa in calls:
        _native.project(a, blocks, 64, numerics, isa)
    return _native.lookup_tables_made() - before


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("numerics", ["bf16", "int8"])
def test_projections_of_one_row_share_its_tables(isa: str, numerics: str) -> None:
    rng = np.random.default_rng(hash((isa, numerics)) % 2**32)
    a = rng.standard_normal((1, 320)).astype(np.float32)
    q, k, v = (random_blocks(rng, 64, 320) for _ in range(3))
    copy = a.copy()
    calls = [(a, q, numerics, isa), (a, k, numerics, isa), (copy, v, numerics, isa)]
    expected = [_native.project(x, w, 64, *rest) for x, w, *rest in calls]
    other = rng.standard_normal((1, 320)).astype(np.float32)
    assert made_by((other, q, numerics, isa)) == 1
    assert made_by(*calls) == 1
    for (x, w, *rest), y in zip(calls, expected, strict=True):
        np.testing.assert_array_equal(_native.project(x, w, 64, *rest), y)


@pytest.mark.parametrize("numerics", ["bf16", "int8"])
def test_what_changes_in_place_is_seen(numerics: str) -> None:
    rng = np.random.default_rng(1)
    isa = ISAS[-1]
    a, blocks = rng.standard_normal((1, 320)).astype(np.float32), random_blocks(rng, 64, 320)
    _native.project(a, blocks, 64, numerics, isa)
    a[0, 319] += 1  # the same address
    assert made_by((a, blocks, numerics, isa)) == 1
    y = _native.project(a, blocks, 64, numerics, isa)
    fresh = _native.project(np.zeros_like(a), blocks, 64, numerics, isa)  # forgets the tables
    assert not fresh.any()
    np.testing.assert_array_equal(_native.project(a, blocks, 64, numerics, isa), y)


def test_tables_of_other_numerics_instruction_sets_and_lengths_are_not_taken() -> None:
    rng = np.random.default_rng(2)
    a, blocks = rng.standard_normal((1, 320)).astype(np.float32), random_blocks(rng, 64, 320)
    isas = [ISAS[0], ISAS[-1]]
    for isa in dict.fromkeys(isas):
        for numerics in ("bf16", "int8", "bf16"):
            assert made_by((a, blocks, numerics, isa)) == 1
    # The same first in-features: padded to the same block, but zeros follow.
    short = np.ascontiguousarray(a[:, :300])
    assert made_by((short, random_blocks(rng, 64, 300), "bf16", ISAS[-1])) == 1
    # More in-features than ever, so that the buffers move.
    wide = rng.standard_normal((1, 4096)).astype(np.float32)
    assert made_by((wide, random_blocks(rng, 64, 4096), "bf16", ISAS[-1])) == 1
    assert made_by((a, blocks, "bf16", ISAS[-1])) == 1


def test_up_of_other_bits_is_refused() -> None:
    blocks, other = np.zeros((2, 1, 3072), np.uint8), np.zeros((2, 1, 5120), np.uint8)
    with pytest.raises(ValueError, match="bits"):
        _native.project(np.zeros((1, 32), np.float32), blocks, 64, "bf16", ISAS[0], up=other)
