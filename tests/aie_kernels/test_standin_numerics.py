"""The stand-in for the AIE API computes what is published about the cores, operation by
operation."""

from __future__ import annotations

import ctypes
import itertools
import subprocess
import sys
from fractions import Fraction
from math import floor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from standin import (
    BFP16,
    MODES,
    Array,
    aligned,
    bfloat16,
    bits16,
    bits32,
    build_probe,
    f64,
    flush,
    pointer,
    round_integer,
    rounding_of,
    rounds_up,
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
    return build_probe(tmp_path_factory.mktemp("probe"), arch)


@pytest.fixture(scope="module")
def emulating(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """AIE2P with bfp16 for bfloat16's matrix products."""
    return build_probe(tmp_path_factory.mktemp("probe"), "aie2p", BFP16)


@pytest.fixture
def even(probe: ctypes.CDLL) -> ctypes.CDLL:
    probe.set_mode(MODES["conv_even"])
    return probe


def wide(rng: np.random.Generator, shape: int | tuple[int, ...], low: int, high: int) -> Array:
    """float32 with exponents low .. high - 1 and random fractions."""
    value = rng.uniform(1, 2, shape) * np.exp2(rng.integers(low, high, shape))
    return (value * rng.choice([-1, 1], shape)).astype(np.float32)


def test_power_up_rounds_to_floor_without_saturation(
    arch: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    fresh = build_probe(tmp_path_factory.mktemp("fresh"), arch)
    assert fresh.mode() == MODES["floor"]
    assert run(fresh.pack_bytes, np.full(LANES, 300, np.int16), out=np.int8)[0] == 300 - 256


@pytest.mark.parametrize("mode", MODES)
def test_rounding_to_bf16_follows_the_table_of_modes(probe: ctypes.CDLL, mode: str) -> None:
    exponents = [0, 1, 126, 127, 254]
    kept = [0, 1, 0x7E, 0x7F]
    dropped = [0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF]
    cases = [
        (s << 31) | (e << 23) | (m << 16) | d
        for s, e, m, d in itertools.product([0, 1], exponents, kept, dropped)
    ]
    probe.set_mode(MODES[mode])
    for bits in np.array(cases + cases[: -len(cases) % LANES], np.uint32).reshape(-1, LANES):
        up = rounds_up(mode, bits >> 31, bits >> 15 & 1, bits & 0x7FFF, bits >> 16 & 1)
        got = run(probe.narrow, bits.view(np.float32), out=np.uint16)
        np.testing.assert_array_equal(got, (bits >> 16) + up)


@pytest.mark.parametrize("mode", MODES)
def test_nan_stays_nan_and_infinity_infinity(probe: ctypes.CDLL, mode: str) -> None:
    bits = np.resize(
        np.array([0x7F800000, 0xFF800000, 0x7F800001, 0xFF80FFFF, 0x7FFFFFFF], np.uint32), LANES
    )
    probe.set_mode(MODES[mode])
    got = run(probe.narrow, bits.view(np.float32), out=np.uint16)
    np.testing.assert_array_equal(got[:5], [0x7F80, 0xFF80, 0x7F81, 0xFF81, 0x7FFF])


def test_bf16_widens_exactly_subnormals_included(probe: ctypes.CDLL) -> None:
    bits = np.arange(0x10000, dtype=np.uint16).reshape(-1, LANES)[::7]
    for row in bits:
        got = run(probe.widen, row.view(bfloat16), out=np.uint32)
        np.testing.assert_array_equal(got, row.astype(np.uint32) << 16)


@pytest.mark.parametrize(("low", "high"), [(-6, 6), (-30, 30), (-75, -55), (50, 70)])
def test_bf16_macs_round_an_exact_sum_once(even: ctypes.CDLL, low: int, high: int) -> None:
    rng = np.random.default_rng(low + 100)
    for _ in range(20):
        a, b = (to_bf16(wide(rng, LANES, low, high)) for _ in range(2))
        c = wide(rng, LANES, max(2 * low, -126), min(2 * high, 127))
        # A double holds the exact sum, or a bit below a tie that decides it.
        exact = f64(a) * f64(b)
        np.testing.assert_array_equal(bits32(run(even.bf16_mac, c, a, b)), bits32(flush(c + exact)))
        np.testing.assert_array_equal(bits32(run(even.bf16_msc, c, a, b)), bits32(flush(c - exact)))
        got = run(even.bf16_negmul_lane, a, b)
        np.testing.assert_array_equal(bits32(got), bits32(flush(-f64(a) * f64(b[5]))))


def test_subnormal_sums_become_signed_zeros_and_subnormal_inputs_count(even: ctypes.CDLL) -> None:
    tiny = np.float32(2.0**-126)
    a = np.resize(np.array([tiny * 1.5, -tiny, tiny / 2, -tiny / 2], np.float32), LANES)
    b = np.resize(np.array([-tiny, tiny * 1.5, tiny / 2, -tiny / 2], np.float32), LANES)
    got = run(even.float_add, a, b)
    np.testing.assert_array_equal(bits32(got[:4]), bits32(np.array([0.0, 0.0, tiny, -tiny])))
    got = run(even.float_sub, a, -b)
    np.testing.assert_array_equal(bits32(got[:4]), bits32(np.array([0.0, 0.0, tiny, -tiny])))


@pytest.mark.parametrize("mode", ["floor", "conv_even", "symmetric_ceil"])
def test_bf16_sums_round_in_the_current_mode(probe: ctypes.CDLL, mode: str) -> None:
    rng = np.random.default_rng(5)
    a, b = (to_bf16(wide(rng, LANES, -4, 4)) for _ in range(2))
    probe.set_mode(MODES[mode])
    total = bits32((f64(a) + f64(b)).astype(np.float32))
    up = rounds_up(mode, total >> 31, total >> 15 & 1, total & 0x7FFF, total >> 16 & 1)
    np.testing.assert_array_equal(run(probe.bf16_add, a, b, out=np.uint16), (total >> 16) + up)


def limbs(x: Array) -> list[Array]:
    parts, rest = [], np.asarray(x, np.float32)
    for _ in range(3):
        parts.append(to_bf16(rest))
        rest = rest - parts[-1].astype(np.float32)
    return parts


def test_fp32_products_are_nine_products_of_limbs(even: ctypes.CDLL) -> None:
    rng = np.random.default_rng(6)
    order = [(0, 0), (0, 1), (1, 0), (0, 2), (1, 1), (2, 0), (1, 2), (2, 1), (2, 2)]
    for _ in range(10):
        a, b, c = (wide(rng, LANES, -10, 10) for _ in range(3))
        for start, got in (
            (np.zeros(LANES), run(even.float_mul, a, b)),
            (c, run(even.float_mac, c, a, b)),
        ):
            total = np.asarray(start, np.float32)
            for i, j in order:
                total = flush(f64(total) + f64(limbs(a)[i]) * f64(limbs(b)[j]))
            np.testing.assert_array_equal(bits32(got), bits32(total))
        # Nine roundings, most of them exact: two units in the last place.
        np.testing.assert_allclose(run(even.float_mul, a, b), a * b, rtol=2 * 2.0**-23)


def test_integers_multiply_exactly(probe: ctypes.CDLL) -> None:
    rng = np.random.default_rng(7)
    a, b = (rng.integers(-128, 128, LANES).astype(np.int8) for _ in range(2))
    c = rng.integers(-(2**31), 2**31 - 2**16, LANES).astype(np.int32)
    got = run(probe.int8_mac, c, a, b, out=np.int32)
    np.testing.assert_array_equal(got, c + a.astype(np.int32) * b)


@pytest.mark.parametrize("saturation", [0, 1, 3])
@pytest.mark.parametrize("mode", MODES)
def test_integers_shift_round_and_saturate(probe: ctypes.CDLL, mode: str, saturation: int) -> None:
    values = np.resize(np.arange(-40, 41, dtype=np.int32), (2, LANES))
    values[0, :4] = [-5000, 5000, -(128 << 3), 2**31 - 1]
    probe.set_mode(MODES[mode])
    probe.set_saturation(saturation)
    for row, shift in itertools.product(values, (0, 3)):
        rounded = round_integer(row, np.int64(shift), mode)
        low = {1: -128, 3: -127}.get(saturation)
        want = rounded.astype(np.int8) if low is None else rounded.clip(low, 127)
        x, y = aligned(row), aligned(np.zeros(LANES, np.int8))
        probe.shift_round(pointer(x), pointer(y), shift)
        np.testing.assert_array_equal(y, want)
    probe.set_saturation(0)


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

    x, y = aligned(a), aligned(b)
    probe.bf16_less.restype = probe.bf16_at_least.restype = ctypes.c_uint64
    for function, want in ((probe.bf16_less, less), (probe.bf16_at_least, more | equal)):
        mask = function(pointer(x), pointer(y))
        np.testing.assert_array_equal([mask >> i & 1 for i in range(LANES)], want)
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


def test_reductions_add_in_the_architectures_order(even: ctypes.CDLL, arch: str) -> None:
    even.float_reduce_add.restype = even.float_reduce_max.restype = ctypes.c_float
    rng = np.random.default_rng(8)
    width = 32 if arch == "aie2p" else 16
    for _ in range(20):
        x = wide(rng, LANES, -12, 12)
        total = x[:width]
        for first in range(width, LANES, width):
            total = flush(total + x[first : first + width])
        assert even.float_reduce_add(pointer(aligned(x))) == halved(total)
        assert even.float_reduce_max(pointer(aligned(x))) == x.max()


def test_bf16_reductions_add_in_fp32_and_round_once(even: ctypes.CDLL, arch: str) -> None:
    even.bf16_reduce_add.restype = ctypes.c_float
    rng = np.random.default_rng(9)
    for _ in range(20):
        x = to_bf16(wide(rng, LANES, -6, 6))
        values = x.astype(np.float32)
        if arch == "aie2p":
            total = halved(flush(values[:32] + values[32:]))
        else:
            rows = np.zeros(4, np.float32)
            for part in values.reshape(2, 4, 8):
                rows = np.array(
                    [aligned_sum(r, part[i], np.ones(8)) for i, r in enumerate(rows)], np.float32
                )
            total = flush(flush(rows[0] + rows[2]) + flush(rows[1] + rows[3]))
        assert even.bf16_reduce_add(pointer(aligned(x))) == float(to_bf16(total))


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
    even: ctypes.CDLL, arch: str, low: int, high: int
) -> None:
    rng = np.random.default_rng(abs(low))
    for name, (m, k, n) in {
        "mmul_4x8x4": (4, 8, 4),
        "mmul_8x8x8": (8, 8, 8),
        "mmul_4x16x8": (4, 16, 8),
    }.items():
        a = to_bf16(wide(rng, (m, k), low, high))
        b = to_bf16(wide(rng, (k, n), low, high))
        a[0] = 0
        a[1, 0] = np.float32(1e-40)  # subnormal
        c = wide(rng, (m, n), 2 * low, 2 * high)
        c[:2, 0] = 0
        want = c.copy()
        for step in range(0, k, 8):
            for i, j in np.ndindex(m, n):
                ks = slice(step, step + 8)
                want[i, j] = aligned_sum(want[i, j], a[i, ks], b[ks, j])
        got = aligned(c)
        getattr(even, name)(pointer(aligned(a)), pointer(aligned(b)), pointer(got))
        np.testing.assert_array_equal(bits32(got), bits32(want))


@pytest.mark.parametrize("arch", ["aie2p"], indirect=True)  # AIE2 has a matrix unit
def test_aie2p_matrix_products_are_macs_in_order(even: ctypes.CDLL) -> None:
    rng = np.random.default_rng(11)
    for name, (m, k, n) in {"mmul_4x8x4": (4, 8, 4), "mmul_8x8x8": (8, 8, 8)}.items():
        a, b = to_bf16(wide(rng, (m, k), -8, 8)), to_bf16(wide(rng, (k, n), -8, 8))
        c = wide(rng, (m, n), -8, 8)
        want = c
        for i in range(k):
            want = flush(f64(want) + f64(a[:, i : i + 1]) * f64(b[i]))
        got = aligned(c)
        getattr(even, name)(pointer(aligned(a)), pointer(aligned(b)), pointer(got))
        np.testing.assert_array_equal(bits32(got), bits32(want))


def test_an_empty_mmul_has_no_sum_before_its_first_product(even: ctypes.CDLL) -> None:
    a, b = np.eye(4, 8), np.arange(32).reshape(8, 4)  # exact
    c = run(even.mmul_empty, to_bf16(a), to_bf16(b), lanes=32).reshape(2, 4, 4)
    assert np.isnan(c[0]).all()
    np.testing.assert_array_equal(c[1], b[:4])


@pytest.mark.parametrize("mode", MODES)
def test_bfp16_emulation_rounds_blocks_of_eight_along_k(emulating: ctypes.CDLL, mode: str) -> None:
    rng = np.random.default_rng(12)
    emulating.set_mode(MODES[mode])
    for spread in (1, 6, 40):
        a, b = (to_bf16(wide(rng, (8, 8), -spread, spread)) for _ in range(2))
        a[0], a[1, ::2] = 0, 0
        a[2] = np.float32(1.9921875)  # rounds beyond the mantissa's range
        c = wide(rng, (8, 8), -2, 2)
        dot = to_bfp16(a, mode) @ to_bfp16(b.T, mode).T
        got = aligned(c)
        emulating.mmul_8x8x8(pointer(aligned(a)), pointer(aligned(b)), pointer(got))
        np.testing.assert_array_equal(bits32(got), bits32(flush(f64(c) + dot)))


@pytest.mark.parametrize("arch", ["aie2p"], indirect=True)
@pytest.mark.parametrize("mode", MODES)
def test_blocks_of_bfp16_have_the_bytes_of_the_format(probe: ctypes.CDLL, mode: str) -> None:
    probe.set_mode(MODES[mode])
    rng = np.random.default_rng(21)
    for spread in (1, 6, 40, 120):
        x = wide(rng, (8, 8), -spread, spread)
        x[0] = [127.5, -127.5, 127, 63.5, 0.5, -0.5, -1.5, 0]
        x[1] = [np.inf, -np.inf, np.nan, -np.nan, 1, -1, 0, -0.0]
        x[2] = np.ldexp(x[2], -149)  # subnormal values, most of them
        got = run(probe.bfp16_round, x, out=np.uint8, lanes=128)
        want = bfp16.encode(x, rounding_of(mode)).ravel()
        np.testing.assert_array_equal(got, np.pad(want, (0, 56)))


@pytest.mark.parametrize("arch", ["aie2p"], indirect=True)
def test_blocks_of_bfp16_multiply_as_rows_by_rows(even: ctypes.CDLL) -> None:
    rng = np.random.default_rng(22)
    a, b = (bfp16.encode(wide(rng, (2, 8, 8), -4, 4)) for _ in range(2))
    # The matrix unit takes -128 too, which no conversion to nearest gives.
    a[0, 0, 1], b[1, 3, 2] = 0x80, 0x80
    c = wide(rng, (8, 8), -2, 2)
    want = c
    for rows, columns in zip(bfp16.decode(a), bfp16.decode(b), strict=True):
        want = flush(f64(want) + rows @ columns.T)
    got = aligned(c)
    even.bfp16_mac(pointer(aligned(a.ravel())), pointer(aligned(b.ravel())), pointer(got))
    np.testing.assert_array_equal(bits32(got), bits32(want))


def test_inv_and_invsqrt_follow_their_recipes(even: ctypes.CDLL) -> None:
    rng = np.random.default_rng(13)
    x = to_bf16(np.abs(wide(rng, LANES, -30, 30)))

    def bf(value: Array) -> Array:
        """Rounds to fp32, then to bfloat16."""
        return to_bf16(flush(value))

    def product(a: Array, b: Any) -> Array:
        return f64(a) * f64(np.asarray(b, bfloat16))

    y = (0x7EB5 - bits16(x).astype(np.int32)).astype(np.uint16).view(bfloat16)
    t = bf(f64(np.float32(1.436142)) - product(x, y))
    z = bf(-product(bf(product(t, y)), 1.9395974))
    want = bf(-product(z, bf(2 + product(z, x))))
    got = run(even.bf16_inv, x, out=bfloat16)
    np.testing.assert_array_equal(bits16(got), bits16(want))
    # Newton's steps in bfloat16 end within two of its units.
    np.testing.assert_allclose(f64(got), 1 / f64(x), rtol=2 * 2.0**-7)

    c2, c3 = np.float32(0.703952253), np.float32(2.38924456)
    x2 = bf(product(x, c2))
    y = to_bf16((np.uint32(0x5F1FFFF9) - (bits32(x.astype(np.float32)) >> 1)).view(np.float32))
    q = bf(f64(c2 * c3) - product(x2, bf(product(y, y))))
    got = run(even.bf16_invsqrt, x, out=bfloat16)
    np.testing.assert_array_equal(bits16(got), bits16(bf(product(y, q))))
    np.testing.assert_allclose(f64(got), f64(x) ** -0.5, rtol=2 * 2.0**-7)


@pytest.mark.parametrize("arch", ["aie2p"], indirect=True)  # AIE2 has no exp2
def test_exp2_is_a_line_between_powers_of_two(even: ctypes.CDLL, arch: str) -> None:
    x = np.linspace(-20, 20, 20 * LANES).astype(np.float32)
    got = np.concatenate([run(even.bf16_exp2, part, out=bfloat16) for part in x.reshape(-1, LANES)])
    line = np.exp2(np.floor(f64(x))) * (1 + f64(x) - np.floor(f64(x)))
    np.testing.assert_array_equal(bits16(got), bits16(to_bf16(line)))
    # The line is up to 6.15 % high, and bfloat16 rounds by 2^-8 at most.
    error = f64(got) / np.exp2(f64(x)) - 1
    assert error.min() >= -(2.0**-8)
    assert 0.0615 - 2.0**-8 < error.max() < 0.0615 + 1.0615 * 2.0**-8
    edges = np.resize(np.array([-np.inf, -127, 128, np.inf, np.nan], np.float32), LANES)
    np.testing.assert_array_equal(
        f64(run(even.bf16_exp2, edges, out=bfloat16)[:5]), [0, 0, np.inf, np.inf, np.nan]
    )


@pytest.mark.parametrize("arch", ["aie2p"], indirect=True)  # AIE2 has no tanh
def test_tanh_is_worst_near_one_half(even: ctypes.CDLL, arch: str) -> None:
    x = np.linspace(-4, 4, 40 * LANES).astype(np.float32)
    got = f64(
        np.concatenate([run(even.bf16_tanh, part, out=bfloat16) for part in x.reshape(-1, LANES)])
    )
    error = np.abs(got - np.tanh(f64(x)))
    small, large = np.abs(x) <= 0.5, np.abs(x) >= 3
    np.testing.assert_array_equal(got[small], f64(to_bf16(x[small])))
    np.testing.assert_array_equal(got[large], np.sign(x[large]))
    # tanh(0.5) = 0.4621; bfloat16 rounds values from 0.5 to 1 by 2^-9 at most.
    assert 0.0378 <= error.max() <= 0.0379 + 2.0**-9
    assert np.abs(np.abs(x[error.argmax()]) - 0.5) < 0.02


def test_conversions_between_integers_and_floats(even: ctypes.CDLL) -> None:
    rng = np.random.default_rng(14)
    codes = rng.integers(0, 256, 32).astype(np.uint8)
    low_first = np.stack([codes & 15, codes >> 4], axis=1).ravel()
    np.testing.assert_array_equal(run(even.unpack_codes, codes, out=np.uint8), low_first)
    signed = np.where(low_first > 7, low_first.astype(np.int8) - 16, low_first)
    np.testing.assert_array_equal(run(even.unpack_signed_codes, codes, out=np.int8), signed)
    integers = np.arange(LANES, dtype=np.uint8)
    np.testing.assert_array_equal(
        f64(run(even.codes_to_bf16, integers, out=bfloat16)), integers / 2
    )
    quarters = np.linspace(-4, 3.875, LANES).astype(np.float32)
    scaled = f64(quarters) * 4
    toward_zero = np.sign(scaled) * np.ceil(np.abs(scaled) - 0.5)
    np.testing.assert_array_equal(run(even.float_to_fixed, quarters, out=np.int32), toward_zero)
    np.testing.assert_array_equal(
        run(even.bf16_to_fixed, to_bf16(quarters), out=np.int32), [floor(v) for v in scaled]
    )


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
    np.testing.assert_array_equal(moved(probe.rotate_down, a), np.roll(a, -5))
    np.testing.assert_array_equal(moved(probe.fill_up, a, b), np.concatenate([b[-5:], a[:-5]]))
    parts = moved(probe.swap_parts, a)
    np.testing.assert_array_equal(parts[:32], np.concatenate([a[32:48], a[16:32]]))
    np.testing.assert_array_equal(parts[48:], a[:16])
    assert np.isnan(f64(parts[32:48])).all(), "lanes that were never set are undefined: NaN here"
    x, y = aligned(a), aligned(a)
    probe.select_scalar(pointer(x), ctypes.c_uint64(0b1010), pointer(y))
    np.testing.assert_array_equal(f64(y[:4]), [0, -1, 2, -1])


def test_misaligned_access_stops_the_program(arch: str, tmp_path: Path) -> None:
    build_probe(tmp_path, arch)
    script = (
        "import ctypes, numpy as np, sys\n"
        "raw = np.zeros(1024, np.uint8); at = -raw.ctypes.data % 64 + raw.ctypes.data\n"
        "ctypes.CDLL(sys.argv[1]).load_misaligned(ctypes.c_void_p(at), ctypes.c_void_p(at))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / f"probe_{arch}_0.so")],
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    assert "load_v" in done.stderr
