"""The stand-in for the AIE API computes what is published about the cores, operation by
operation."""

from __future__ import annotations

import ctypes
import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from standin import (
    BFP16,
    Array,
    aligned,
    bfloat16,
    bits16,
    bits32,
    build_probe,
    f64,
    flush,
    pointer,
    run,
    to_bf16,
    to_bfp16,
)

from ort_aie_ep.formats import bfp16

LANES = 64


@pytest.fixture(scope="module", params=["aie2", "aie2p"])
def arch(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def probe(arch: str, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return build_probe(tmp_path_factory.mktemp("probe"), arch, BFP16)


def wide(rng: np.random.Generator, shape: int | tuple[int, ...], low: int, high: int) -> Array:
    """float32 with exponents low .. high - 1 and random fractions."""
    value = rng.uniform(1, 2, shape) * np.exp2(rng.integers(low, high, shape))
    return (value * rng.choice([-1, 1], shape)).astype(np.float32)


def test_rounding_to_bf16_is_to_nearest_with_ties_to_even(probe: ctypes.CDLL) -> None:
    exponents = [0, 1, 126, 127, 254]
    kept = [0, 1, 0x7E, 0x7F]
    dropped = [0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF]
    cases = [
        (s << 31) | (e << 23) | (m << 16) | d
        for s, e, m, d in itertools.product([0, 1], exponents, kept, dropped)
    ]
    for bits in np.array(cases + cases[: -len(cases) % LANES], np.uint32).reshape(-1, LANES):
        rest = bits & 0xFFFF
        up = (rest > 0x8000) | (rest == 0x8000) & (bits >> 16 & 1 == 1)
        got = run(probe.narrow, bits.view(np.float32), out=np.uint16)
        np.testing.assert_array_equal(got, (bits >> 16) + up)


def test_nan_stays_nan_and_infinity_infinity(probe: ctypes.CDLL) -> None:
    bits = np.resize(
        np.array([0x7F800000, 0xFF800000, 0x7F800001, 0xFF80FFFF, 0x7FFFFFFF], np.uint32), LANES
    )
    got = run(probe.narrow, bits.view(np.float32), out=np.uint16)
    np.testing.assert_array_equal(got[:5], [0x7F80, 0xFF80, 0x7F81, 0xFF81, 0x7FFF])


def test_bf16_widens_exactly_subnormals_included(probe: ctypes.CDLL) -> None:
    bits = np.arange(0x10000, dtype=np.uint16).reshape(-1, LANES)[::7]
    for row in bits:
        got = run(probe.widen, row.view(bfloat16), out=np.uint32)
        np.testing.assert_array_equal(got, row.astype(np.uint32) << 16)


@pytest.mark.parametrize(("low", "high"), [(-6, 6), (-30, 30), (-75, -55), (50, 70)])
def test_bf16_macs_round_an_exact_sum_once(probe: ctypes.CDLL, low: int, high: int) -> None:
    rng = np.random.default_rng(low + 100)
    for _ in range(20):
        a, b = (to_bf16(wide(rng, LANES, low, high)) for _ in range(2))
        c = wide(rng, LANES, max(2 * low, -126), min(2 * high, 127))
        # A double holds the exact sum, or a bit below a tie that decides it.
        exact = f64(a) * f64(b)
        np.testing.assert_array_equal(
            bits32(run(probe.bf16_mac, c, a, b)), bits32(flush(c + exact))
        )
        np.testing.assert_array_equal(
            bits32(run(probe.bf16_msc, c, a, b)), bits32(flush(c - exact))
        )
        got = run(probe.bf16_negmul_lane, a, b)
        np.testing.assert_array_equal(bits32(got), bits32(flush(-f64(a) * f64(b[5]))))


def test_subnormal_sums_become_signed_zeros_and_subnormal_inputs_count(probe: ctypes.CDLL) -> None:
    tiny = np.float32(2.0**-126)
    a = np.resize(np.array([tiny * 1.5, -tiny, tiny / 2, -tiny / 2], np.float32), LANES)
    b = np.resize(np.array([-tiny, tiny * 1.5, tiny / 2, -tiny / 2], np.float32), LANES)
    got = run(probe.float_add, a, b)
    np.testing.assert_array_equal(bits32(got[:4]), bits32(np.array([0.0, 0.0, tiny, -tiny])))
    got = run(probe.float_sub, a, -b)
    np.testing.assert_array_equal(bits32(got[:4]), bits32(np.array([0.0, 0.0, tiny, -tiny])))


def test_bf16_sums_are_rounded_once(probe: ctypes.CDLL) -> None:
    rng = np.random.default_rng(5)
    a, b = (to_bf16(wide(rng, LANES, -4, 4)) for _ in range(2))
    got = run(probe.bf16_add, a, b, out=np.uint16)
    np.testing.assert_array_equal(got, bits16(to_bf16(f64(a) + f64(b))))


def limbs(x: Array) -> list[Array]:
    parts, rest = [], np.asarray(x, np.float32)
    for _ in range(3):
        parts.append(to_bf16(rest))
        rest = rest - parts[-1].astype(np.float32)
    return parts


def test_fp32_products_are_nine_products_of_limbs(probe: ctypes.CDLL) -> None:
    rng = np.random.default_rng(6)
    order = [(0, 0), (0, 1), (1, 0), (0, 2), (1, 1), (2, 0), (1, 2), (2, 1), (2, 2)]
    for _ in range(10):
        a, b, c = (wide(rng, LANES, -10, 10) for _ in range(3))
        for start, got in (
            (np.zeros(LANES), run(probe.float_mul, a, b)),
            (c, run(probe.float_mac, c, a, b)),
        ):
            total = np.asarray(start, np.float32)
            for i, j in order:
                total = flush(f64(total) + f64(limbs(a)[i]) * f64(limbs(b)[j]))
            np.testing.assert_array_equal(bits32(got), bits32(total))
        # Nine roundings, most of them exact: two units in the last place.
        np.testing.assert_allclose(run(probe.float_mul, a, b), a * b, rtol=2 * 2.0**-23)


SPECIAL = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-40], np.float32)


def test_bf16_is_compared_by_sign_and_magnitude(probe: ctypes.CDLL) -> None:
    a, b = (to_bf16(x.ravel()) for x in np.meshgrid(SPECIAL, SPECIAL, indexing="ij"))
    nan = np.isnan(f64(a)) | np.isnan(f64(b))

    def key(x: Array) -> Array:
        bits = bits16(x).astype(np.int32)
        return np.where(bits & 0x8000, -1 - (bits & 0x7FFF), bits)

    less = ~nan & (key(a) < key(b))
    more = ~nan & (key(b) < key(a))
    equal = ~nan & (key(b) == key(a))

    for function, want in ((probe.bf16_less, less), (probe.bf16_at_least, more | equal)):
        np.testing.assert_array_equal(f64(run(function, a, b, out=bfloat16)), want)
    np.testing.assert_array_equal(
        run(probe.bf16_max, a, b, out=np.uint16), np.where(less, bits16(b), bits16(a))
    )
    np.testing.assert_array_equal(
        run(probe.bf16_min, a, b, out=np.uint16), np.where(more, bits16(b), bits16(a))
    )


def halved(x: Array) -> np.float32:
    while x.size > 1:
        x = flush(x[: x.size // 2] + x[x.size // 2 :])
    return np.float32(x[0])


def test_reductions_add_in_the_architectures_order(probe: ctypes.CDLL, arch: str) -> None:
    probe.float_reduce_add.restype = ctypes.c_float
    rng = np.random.default_rng(8)
    width = 32 if arch == "aie2p" else 16
    for _ in range(20):
        x = wide(rng, LANES, -12, 12)
        total = x[:width]
        for first in range(width, LANES, width):
            total = flush(total + x[first : first + width])
        assert probe.float_reduce_add(pointer(aligned(x))) == halved(total)


def exponent_of(x: float) -> int:
    """The exponent from a float32's bits; subnormals have the smallest normal's."""
    return max(int(np.frexp(x)[1]) - 1, -126)


def aligned_sum(acc: float, a: Array, b: Array) -> np.float32:
    """AIE2's matrix unit in exact arithmetic."""
    terms = [(Fraction(float(acc)), exponent_of(acc))] if acc else []
    terms += [
        (Fraction(float(x)) * Fraction(float(y)), exponent_of(x) + exponent_of(y))
        for x, y in zip(a, b, strict=True)
        if x and y
    ]
    if not terms:
        return np.float32(0)
    unit = Fraction(2) ** (max(e for _, e in terms) - 23)
    total = sum((round(value / unit) for value, _ in terms), 0) * unit  # round: ties to even
    return np.float32(flush(np.float64(total)))


@pytest.mark.parametrize("arch", ["aie2"], indirect=True)  # AIE2P has no bfloat16 matrix unit
@pytest.mark.parametrize(("low", "high"), [(-1, 1), (-14, 14), (-66, -60)])
def test_aie2_matrix_products_align_to_the_largest_exponent(
    probe: ctypes.CDLL, arch: str, low: int, high: int
) -> None:
    rng = np.random.default_rng(abs(low))
    a, b = (to_bf16(wide(rng, (8, 8), low, high)) for _ in range(2))
    a[0] = 0
    a[1, 0] = np.float32(1e-40)  # subnormal
    c = wide(rng, (8, 8), 2 * low, 2 * high)
    c[:2, 0] = 0
    got = aligned(c)
    probe.mmul_8x8x8(pointer(aligned(a)), pointer(aligned(b)), pointer(got))
    want = [aligned_sum(c[i, j], a[i], b[:, j]) for i, j in np.ndindex(8, 8)]
    np.testing.assert_array_equal(bits32(got).ravel(), bits32(np.array(want)))


def test_an_empty_mmul_has_no_sum_before_its_first_product(probe: ctypes.CDLL) -> None:
    a, b = np.eye(8), np.arange(64).reshape(8, 8)  # exact
    c = run(probe.mmul_empty, to_bf16(a), to_bf16(b), lanes=128).reshape(2, 8, 8)
    assert np.isnan(c[0]).all()
    np.testing.assert_array_equal(c[1], b)


@pytest.mark.parametrize("arch", ["aie2p"], indirect=True)
def test_bfp16_emulation_rounds_blocks_of_eight_along_k(probe: ctypes.CDLL) -> None:
    rng = np.random.default_rng(12)
    for spread in (1, 6, 40):
        a, b = (to_bf16(wide(rng, (8, 8), -spread, spread)) for _ in range(2))
        a[0], a[1, ::2] = 0, 0
        a[2] = np.float32(1.9921875)  # rounds beyond the mantissa's range
        c = wide(rng, (8, 8), -2, 2)
        dot = to_bfp16(a) @ to_bfp16(b.T).T
        got = aligned(c)
        probe.mmul_8x8x8(pointer(aligned(a)), pointer(aligned(b)), pointer(got))
        np.testing.assert_array_equal(bits32(got), bits32(flush(f64(c) + dot)))


@pytest.mark.parametrize("arch", ["aie2p"], indirect=True)
def test_blocks_of_bfp16_have_the_bytes_of_the_format(probe: ctypes.CDLL) -> None:
    rng = np.random.default_rng(21)
    for spread in (1, 6, 40, 120):
        x = wide(rng, (8, 8), -spread, spread)
        x[0] = [127.5, -127.5, 127, 63.5, 0.5, -0.5, -1.5, 0]
        x[1] = [np.inf, -np.inf, np.nan, -np.nan, 1, -1, 0, -0.0]
        x[2] = np.ldexp(x[2], -149)  # subnormal values, most of them
        got = run(probe.bfp16_round, x, out=np.uint8, lanes=128)
        want = bfp16.encode(x).ravel()
        np.testing.assert_array_equal(got, np.pad(want, (0, 56)))


@pytest.mark.parametrize("arch", ["aie2p"], indirect=True)
def test_blocks_of_bfp16_multiply_as_rows_by_rows(probe: ctypes.CDLL) -> None:
    rng = np.random.default_rng(22)
    a, b = (bfp16.encode(wide(rng, (2, 8, 8), -4, 4)) for _ in range(2))
    # The matrix unit takes -128 too, which no conversion to nearest gives.
    a[0, 0, 1], b[1, 3, 2] = 0x80, 0x80
    c = wide(rng, (8, 8), -2, 2)
    want = c
    for rows, columns in zip(bfp16.decode(a), bfp16.decode(b), strict=True):
        want = flush(f64(want) + rows @ columns.T)
    got = aligned(c)
    probe.bfp16_mac(pointer(aligned(a.ravel())), pointer(aligned(b.ravel())), pointer(got))
    np.testing.assert_array_equal(bits32(got), bits32(want))


def test_conversions_between_integers_and_floats(probe: ctypes.CDLL) -> None:
    rng = np.random.default_rng(14)
    codes = rng.integers(0, 256, 32).astype(np.uint8)
    low_first = np.stack([codes & 15, codes >> 4], axis=1).ravel()
    np.testing.assert_array_equal(run(probe.unpack_codes, codes, out=np.uint8), low_first)
    integers = np.arange(-LANES // 2, LANES // 2, dtype=np.int32) * 12345
    np.testing.assert_array_equal(run(probe.integers_to_float, integers), integers)


def test_lane_moves_are_numpy_permutations(probe: ctypes.CDLL) -> None:
    a, b = (np.arange(i, i + LANES).astype(bfloat16) for i in (0, 100))

    def moved(function: Any, *inputs: Array, lanes: int = LANES) -> Array:
        return run(function, *inputs, out=bfloat16, lanes=lanes)

    by_four = np.stack([a.reshape(-1, 4), b.reshape(-1, 4)], axis=1).ravel()
    np.testing.assert_array_equal(moved(probe.zip_by_4, a, b, lanes=128), by_four)
    parted = np.concatenate([a, b]).reshape(-1, 2, 4).transpose(1, 0, 2).ravel()
    np.testing.assert_array_equal(moved(probe.unzip_by_4, a, b, lanes=128), parted)
    halves = a.reshape(-1, 2, 8).transpose(1, 0, 2).ravel()
    np.testing.assert_array_equal(moved(probe.halves_by_8, a), halves)
    np.testing.assert_array_equal(moved(probe.transpose_4x16, a), a.reshape(4, 16).T.ravel())
    parts = moved(probe.swap_parts, a)
    np.testing.assert_array_equal(parts[:32], np.concatenate([a[32:48], a[16:32]]))
    np.testing.assert_array_equal(parts[48:], a[:16])
    assert np.isnan(f64(parts[32:48])).all(), "lanes that were never set are undefined: NaN here"
    x, y = aligned(a), aligned(a)
    probe.select_scalar(pointer(x), ctypes.c_uint32(0b1010), pointer(y))
    np.testing.assert_array_equal(f64(y[:4]), [0, -1, 2, -1])
