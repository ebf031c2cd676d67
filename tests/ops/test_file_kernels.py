"""The host kernels for forms of GGUF files, of every instruction set that this CPU has.

Blocks are packed here by what src/q4nx/file_forms.h says of their layout.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from cmake_program import Project
from test_kernels import ISAS, U, to_bfloat16

Array = npt.NDArray[Any]

IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113])
E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12])
# Widths of the planes of a number.
PLANES = {2: [2], 3: [2, 1], 4: [4], 5: [4, 1], 6: [4, 2], 8: [8]}


@dataclass(frozen=True)
class Form:
    name: str
    columns: int
    group: int
    bits: int
    middle: int
    base: str = "float16"
    factor_bits: int = 0
    factor_zero: int = 0
    minima: bool = False
    codebook: Array | None = None

    @property
    def groups(self) -> int:
        return self.columns // self.group


# In the order of FileType.
FORMS = [
    Form("q4_0", 32, 32, 4, 8),
    Form("q4_1", 32, 32, 4, 0, minima=True),
    Form("q5_0", 32, 32, 5, 16),
    Form("q5_1", 32, 32, 5, 0, minima=True),
    Form("q8_0", 32, 32, 8, 128),
    Form("q2_k", 256, 16, 2, 0, factor_bits=4, minima=True),
    Form("q3_k", 256, 16, 3, 4, factor_bits=6, factor_zero=32),
    Form("q4_k", 256, 32, 4, 0, factor_bits=6, minima=True),
    Form("q5_k", 256, 32, 5, 0, factor_bits=6, minima=True),
    Form("q6_k", 256, 16, 6, 32, factor_bits=8, factor_zero=128),
    Form("iq4_nl", 32, 32, 4, 0, codebook=IQ4),
    Form("iq4_xs", 256, 32, 4, 0, factor_bits=6, factor_zero=32, codebook=IQ4),
    Form("mxfp4", 32, 32, 4, 0, base="e8m0", codebook=E2M1),
    Form("nvfp4", 64, 16, 4, 0, base="ue4m3", codebook=E2M1),
]
# AVX-VNNI's kernels are a part of a table only on CPUs that have it.
by_isa = pytest.mark.parametrize("isa", [*ISAS, "avx2_vnni_standin"])
by_form = pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)


def spans_of(form: Form) -> list[int]:
    """One block, some, and numbers that 8 does not divide."""
    return sorted(
        {-(-spans * 32 // form.columns) * form.columns // 32 for spans in (1, 2, 7, 8, 90)}
    )


def in_planes(numbers: Array, bits: int) -> Array:
    """(count, row) -> bytes: neighbours share a byte of a plane."""
    planes, shift = [], 0
    for width in PLANES[bits]:
        in_byte = 8 // width
        field = (numbers >> shift & (1 << width) - 1).reshape(-1, in_byte, numbers.shape[1])
        planes.append((field << width * np.arange(in_byte)[:, None]).sum(axis=1))
        shift += width
    return np.concatenate([plane.astype(np.uint8).ravel() for plane in planes])


def base_values(form: Form, bases: Array) -> Array:
    if form.base == "float16":
        values: Array = bases.view(np.float16).astype(np.float64)
    elif form.base == "e8m0":
        values = np.ldexp(1.0, bases.astype(np.int64) - 128)
    else:
        exponent, mantissa = bases >> 3 & 15, bases & 7
        values = np.where(
            exponent == 0,
            np.ldexp(mantissa.astype(np.float64), -10),
            np.ldexp(1 + mantissa / 8, exponent.astype(np.int64) - 8),
        )
        values[bases == 127] = 0
    return values


@dataclass(frozen=True)
class Weights:
    """32 out-features: codes (32, k), parts of scales (blocks, groups or 1, 32)."""

    form: Form
    codes: Array
    bases: Array
    factors: Array
    minima_bases: Array
    minima_factors: Array

    @property
    def k(self) -> int:
        return int(self.codes.shape[1])

    def packed(self) -> Array:
        form, parts = self.form, []
        for block in range(self.k // form.columns):
            parts.append(self.bases[block].view(np.uint8).ravel())
            if form.minima:
                parts.append(self.minima_bases[block].view(np.uint8).ravel())
            if form.factor_bits:
                parts.append(in_planes(self.factors[block], form.factor_bits))
                if form.minima:
                    parts.append(in_planes(self.minima_factors[block], form.factor_bits))
            for span in range(block * form.columns, (block + 1) * form.columns, 32):
                quads = self.codes[:, span : span + 32].reshape(32, 8, 4).transpose(1, 0, 2)
                parts.append(in_planes(quads.reshape(8, 128), form.bits))
        return np.concatenate(parts)

    def integers(self) -> Array:
        codes = self.codes if self.form.codebook is None else self.form.codebook[self.codes]
        integers: Array = codes.astype(np.int64) - self.form.middle
        return integers

    def _by_group(self, bases: Array, factors: Array, zero: int) -> Array:
        """(32, k / group)."""
        values = base_values(self.form, bases)
        if self.form.factor_bits:
            values = values * (factors.astype(np.int64) - zero)
        by_group: Array = values.reshape(-1, 32).T
        return by_group

    def scales(self) -> Array:
        return self._by_group(self.bases, self.factors, self.form.factor_zero)

    def minima(self) -> Array:
        if not self.form.minima:
            return np.zeros_like(self.scales())
        minima = self._by_group(self.minima_bases, self.minima_factors, 0)
        return -minima if self.form.factor_bits else minima

    def values(self) -> Array:
        """(32, k) float64."""
        scales, minima = (
            np.repeat(x, self.form.group, axis=1) for x in (self.scales(), self.minima())
        )
        values: Array = scales * self.integers() + minima
        return values


def random_bases(form: Form, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Zeros and subnormal numbers too; float16 of either sign."""
    if form.base == "float16":
        bits = rng.integers(0, 0x7C00, shape) | rng.integers(0, 2, shape) << 15
        return np.where(rng.random(shape) < 0.1, bits & 0x83FF, bits).astype(np.uint16)
    # The largest exponents of e8m0 would overflow in sums.
    most = 190 if form.base == "e8m0" else 128
    bits = rng.integers(0, most, shape)
    return np.where(rng.random(shape) < 0.1, bits % 3, bits).astype(np.uint8)


def random_weights(form: Form, spans: int, seed: int = 0) -> Weights:
    rng = np.random.default_rng([form.columns, form.bits, spans, seed])
    blocks = spans * 32 // form.columns
    bases = (blocks, 1 if form.factor_bits else form.groups, 32)
    factors = rng.integers(0, 1 << form.factor_bits, (2, blocks, form.groups, 32))
    return Weights(
        form,
        rng.integers(0, 1 << form.bits, (32, spans * 32)),
        random_bases(form, rng, bases),
        factors[0],
        random_bases(form, rng, bases),
        factors[1],
    )


def pointer(array: Array) -> ctypes.c_void_p:
    assert array.flags.c_contiguous
    return array.ctypes.data_as(ctypes.c_void_p)


class Kernels:
    """A table's kernels."""

    def __init__(self, library: ctypes.CDLL, isa: str) -> None:
        self._library = library
        library.KernelsNamed.restype = ctypes.c_void_p
        self._table = ctypes.c_void_p(library.KernelsNamed(isa.encode()))
        if isa not in ISAS and self._table.value is None:
            pytest.skip("this build has no stand-in for AVX-VNNI")
        assert self._table.value is not None

    def call(self, name: str, *arguments: Array | int | None) -> int:
        values = [
            pointer(x)
            if isinstance(x, np.ndarray)
            else ctypes.c_void_p(None)
            if x is None
            else ctypes.c_int64(x)
            for x in arguments
        ]
        return int(getattr(self._library, name)(self._table, *values))

    def rows_int8(self, weights: Weights, q: Array, scales: Array, sums: Array) -> Array:
        y = np.full((len(q), 32), np.nan, np.float32)
        self.call("RowsInt8", FORMS.index(weights.form), weights.packed(), weights.k // 32, q,
                  scales, sums, len(q), y)  # fmt: skip
        return y

    def rows_bf16(self, weights: Weights, a: Array, sums: Array) -> Array:
        y = np.full((len(a), 32), np.nan, np.float32)
        self.call("RowsBf16", FORMS.index(weights.form), weights.packed(), weights.k // 32, a,
                  sums, len(a), y)  # fmt: skip
        return y

    def gemm_int8(self, weights: Weights, q: Array, scales: Array, sums: Array) -> Array:
        form, k = weights.form, weights.k
        codes = np.empty((k // 4, 32, 4), np.int8)
        groups = (k // form.group, 32)
        panel = [np.full(groups, np.nan, np.float32) for _ in range(2)]
        offsets = np.empty(groups, np.int32)
        self.call("Unpack", FORMS.index(form), weights.packed(), k // 32, codes, *panel, offsets)
        y = np.full((len(q), 32), np.nan, np.float32)
        shifted = (q.astype(np.int16) + 128).astype(np.uint8)
        self.call("Gemm", FORMS.index(form), shifted, scales, sums, len(q), codes, panel[0],
                  panel[1] if form.minima else None, offsets, k // 32, y)  # fmt: skip
        return y

    def dequantize(self, weights: Weights) -> Array:
        panel = np.empty((weights.k // 2, 32, 2), np.uint16)
        self.call("Dequantize", FORMS.index(weights.form), weights.packed(), weights.k // 32, panel)
        values: Array = panel.view(ml_dtypes.bfloat16).transpose(1, 0, 2).reshape(32, -1)
        return values.astype(np.float64)


@pytest.fixture(scope="module")
def library(project: Project) -> ctypes.CDLL:
    return ctypes.CDLL(str(project.build("file_kernels")))


@pytest.fixture
def kernels(library: ctypes.CDLL, isa: str) -> Kernels:
    return Kernels(library, isa)


def by_groups(x: Array, group: int) -> Array:
    return x.reshape(len(x), -1, group)


@dataclass(frozen=True)
class Codes:
    """Activations of int8."""

    q: Array
    scales: Array
    sums: Array

    @staticmethod
    def random(rows: int, k: int, group: int) -> Codes:
        rng = np.random.default_rng([rows, k])
        q = rng.integers(-127, 128, (rows, k)).astype(np.int8)
        scales = rng.uniform(0.001, 2, (rows, k // 32)).astype(np.float32)
        return Codes(q, scales, by_groups(q, group).sum(axis=2, dtype=np.int32))

    @property
    def all(self) -> tuple[Array, Array, Array]:
        return self.q, self.scales, self.sums


def check_int8(weights: Weights, codes: Codes, y: Array, shift: int = 0) -> None:
    """Dot products of groups are exact integers, below 2^24. A group's term is the product of such
    an integer, a scale and one of activations; it is rounded at most four times, and then takes
    part in sums of all terms. Factors below float32's normal numbers lose up to 2^-149. `shift` is
    what codes of forms with minima may have been reduced by, and minima raised.
    """
    form = weights.form
    dots = np.einsum(
        "rgi,ngi->rng", by_groups(codes.q, form.group).astype(np.int64),
        by_groups(weights.integers(), form.group),
    )  # fmt: skip
    a_scales = np.repeat(codes.scales.astype(np.float64), 32 // form.group, axis=1)[:, None]
    sums = codes.sums.astype(np.float64)[:, None]
    scales, minima = weights.scales(), weights.minima()
    expected = (dots * scales * a_scales + minima * (a_scales * sums)).sum(axis=2)
    shifted = np.abs(dots) + shift * np.abs(sums)
    magnitudes = shifted * np.abs(scales) * a_scales
    magnitudes = magnitudes + (np.abs(minima) + shift * np.abs(scales)) * a_scales * np.abs(sums)
    terms = 2 * dots.shape[2]
    bound = (terms + 5) * U * magnitudes.sum(axis=2)
    bound = bound + ((shifted + np.abs(sums)) * (a_scales + 1)).sum(axis=2) * 2.0**-149
    error = np.abs(y - expected)
    assert (error <= bound).all(), (weights.k, len(y), np.nanmax(error / bound))


@by_isa
@by_form
def test_rows_of_int8_match_exact_sums(kernels: Kernels, form: Form) -> None:
    for spans in spans_of(form):
        weights = random_weights(form, spans)
        for rows in (*range(1, 18), 40) if spans < 10 else (1, 3, 8):
            codes = Codes.random(rows, weights.k, form.group)
            check_int8(weights, codes, kernels.rows_int8(weights, *codes.all))


@by_isa
@by_form
def test_gemm_of_unpacked_codes_matches_exact_sums(kernels: Kernels, form: Form) -> None:
    for spans in spans_of(form):
        weights = random_weights(form, spans)
        for rows in (*range(1, 14), 40) if spans < 10 else (1, 8):
            codes = Codes.random(rows, weights.k, form.group)
            y = kernels.gemm_int8(weights, *codes.all)
            check_int8(weights, codes, y, shift=1 << (form.bits - 1) if form.minima else 0)


@by_isa
@by_form
def test_rows_of_bf16_match_exact_sums(kernels: Kernels, form: Form) -> None:
    """Codes may be multiplied before or after a zero point is subtracted: each term passes through
    at most k additions, those of a group's sum, and five products."""
    zero = form.middle - (0 if form.codebook is None else form.codebook.min())
    for spans in spans_of(form):
        weights = random_weights(form, spans)
        scales, minima = (
            np.repeat(np.abs(x), form.group, axis=1) for x in (weights.scales(), weights.minima())
        )
        magnitude = scales * (np.abs(weights.integers()) + 2 * zero) + minima
        for rows in (*range(1, 10), 13) if spans < 10 else (1, 4):
            rng = np.random.default_rng([rows, spans])
            a = to_bfloat16(rng.standard_normal((rows, weights.k)).astype(np.float32))
            sums = by_groups(a, form.group).sum(axis=2, dtype=np.float32)
            y = kernels.rows_bf16(weights, a, sums)
            wide = a.astype(np.float64)
            bound = (weights.k + form.group + 6) * U * (np.abs(wide) @ magnitude.T) + 2.0**-149
            error = np.abs(y - wide @ weights.values().T)
            assert (error <= bound).all(), (spans, rows, (error / bound).max())


@by_isa
@by_form
@pytest.mark.parametrize("spans", [8, 16])
def test_a_row_of_a_few_is_bit_for_bit_the_row_alone(
    kernels: Kernels, form: Form, spans: int
) -> None:
    weights = random_weights(form, spans, seed=1)
    codes = Codes.random(19, weights.k, form.group)
    a = to_bfloat16(np.random.default_rng(2).standard_normal((19, weights.k)).astype(np.float32))
    sums = by_groups(a, form.group).sum(axis=2, dtype=np.float32)

    def int8(rows: slice) -> Array:
        return kernels.rows_int8(weights, *(x[rows] for x in codes.all))

    def bf16(rows: slice) -> Array:
        return kernels.rows_bf16(weights, a[rows], sums[rows])

    for multiply in (int8, bf16):
        alone = np.concatenate([multiply(slice(r, r + 1)) for r in range(19)])
        for rows in range(2, 20):
            np.testing.assert_array_equal(multiply(slice(rows)), alone[:rows], str(rows))


@by_isa
@by_form
def test_dequantised_weights_are_the_nearest_of_bfloat16(kernels: Kernels, form: Form) -> None:
    """A weight is a sum and a product of float32, rounded to bfloat16."""
    for spans in spans_of(form):
        weights = random_weights(form, spans)
        values = weights.values()
        scales, minima = (
            np.repeat(np.abs(x), form.group, axis=1) for x in (weights.scales(), weights.minima())
        )
        in_float32 = 2 * U * (scales * np.abs(weights.integers()) + minima)
        bound = in_float32 + 2.0**-8 * (np.abs(values) + in_float32) + 2.0**-134
        error = np.abs(kernels.dequantize(weights) - values)
        assert (error <= bound).all(), (spans, (error / bound).max())


@by_isa
@by_form
def test_extreme_codes_and_activations_do_not_overflow(kernels: Kernels, form: Form) -> None:
    """The largest integer sums, with scales of one: all results are exact."""
    spans = 8
    ones = {"float16": np.float16(1).view(np.uint16), "e8m0": np.uint8(128), "ue4m3": np.uint8(64)}
    blocks = spans * 32 // form.columns
    bases = np.full((blocks, 1 if form.factor_bits else form.groups, 32), ones[form.base])
    factors = np.full((blocks, form.groups, 32), form.factor_zero + 1)
    values = np.arange(1 << form.bits) if form.codebook is None else form.codebook
    for low, high in [
        (values.argmin(),) * 2,
        (values.argmax(),) * 2,
        (values.argmin(), values.argmax()),
    ]:
        codes = np.full((32, spans * 32), low)
        codes[:, ::2] = high
        weights = Weights(form, codes, bases, factors, bases, factors)
        for signs in ((1, 1), (-1, -1), (1, -1)):
            q = np.full((9, spans * 32), 127 * signs[0], np.int8)
            q[:, ::2] = 127 * signs[1]
            scales = np.ones((9, spans), np.float32)
            sums = by_groups(q, form.group).sum(axis=2, dtype=np.int32)
            expected = q.astype(np.int64) @ weights.values().astype(np.int64).T
            for rows in (1, 9):
                y = kernels.rows_int8(weights, q[:rows], scales[:rows], sums[:rows])
                np.testing.assert_array_equal(y, expected[:rows])
            in_bf16 = kernels.rows_bf16(weights, q.astype(np.float32), sums.astype(np.float32))
            np.testing.assert_array_equal(in_bf16, expected)
            np.testing.assert_array_equal(kernels.gemm_int8(weights, q, scales, sums), expected)


@by_isa
@by_form
def test_a_scale_that_is_nan_reaches_its_row_alone(kernels: Kernels, form: Form) -> None:
    weights = random_weights(form, 8)
    codes = Codes.random(5, weights.k, form.group)
    codes.scales[3, 1] = np.nan
    y = kernels.rows_int8(weights, *codes.all)
    np.testing.assert_array_equal(np.isnan(y).all(axis=1), [False, False, False, True, False])
    assert np.isfinite(y[[0, 1, 2, 4]]).all()


@by_isa
def test_activations_have_sums_of_half_groups(kernels: Kernels) -> None:
    x = np.random.default_rng(0).standard_normal(7 * 32).astype(np.float32)
    results = {}
    for group in (16, 32):
        q, scales = np.empty(x.size, np.uint8), np.empty(7, np.float32)
        q_sums = np.empty(x.size // group, np.int32)
        sums = np.empty(x.size // group, np.float32)
        kernels.call("QuantizeInt8", group, x, 7, 128, q, scales, q_sums)
        kernels.call("GroupSums", group, x, 7, sums)
        results[group] = q, scales, q_sums
        np.testing.assert_array_equal(
            q_sums, (q.astype(np.int32) - 128).reshape(-1, group).sum(axis=1)
        )
        exact = x.astype(np.float64).reshape(-1, group)
        bound = group * U * np.abs(exact).sum(axis=1)
        assert (np.abs(sums - exact.sum(axis=1)) <= bound).all()
    np.testing.assert_array_equal(results[16][0], results[32][0])
    np.testing.assert_array_equal(results[16][1], results[32][1])


@by_isa
def test_an_infinite_activation_poisons_its_group(kernels: Kernels) -> None:
    x = np.ones(64, np.float32)
    x[40] = np.inf
    q, scales, q_sums = np.empty(64, np.uint8), np.empty(2, np.float32), np.empty(4, np.int32)
    kernels.call("QuantizeInt8", 16, x, 2, 128, q, scales, q_sums)
    np.testing.assert_array_equal(np.isnan(scales), [False, True])
    np.testing.assert_array_equal(q_sums, [127 * 16, 127 * 16, 0, 0])
