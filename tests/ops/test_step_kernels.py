"""Norms, functions, sums and products in the kernels of every instruction set that this CPU has."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from op_models import BFLOAT16, FLOAT16, Array
from projection_calls import assert_within, make_weights
from vector_calls import FUNCTIONS, U, reference

from ort_aie_ep import _native

ISAS = _native.available_isas()
# Less than a vector of any width, whole vectors, and a remainder; less and more than a piece.
LENGTHS = [1, 3, 16, 37, 256, 1024, 1100]


def numbers(*shape: int) -> Array:
    y: Array = 3 * np.random.default_rng(shape).standard_normal(shape).astype(np.float32)
    return y


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("k", LENGTHS)
def test_sums_and_products(isa: str, k: int) -> None:
    a, b = numbers(2, k), numbers(3, k)[1:]
    np.testing.assert_array_equal(_native.elementwise("add", a, b, isa), a + b)
    np.testing.assert_array_equal(_native.elementwise("multiply", a, b, isa), a * b)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("k", LENGTHS)
def test_functions(isa: str, function: str, k: int) -> None:
    a = numbers(2, k)
    y, bound = reference(function, a)
    assert_within(_native.elementwise(function, a, None, isa), y, bound)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_functions_everywhere(isa: str, function: str) -> None:
    a = np.linspace(-12, 12, 100001, dtype=np.float32)[None]
    y, bound = reference(function, a)
    assert_within(_native.elementwise(function, a, None, isa), y, bound)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_functions_of_the_largest_numbers(isa: str, function: str) -> None:
    a = np.array([[20, 89, 1e4, 1e20, 3e38, np.inf, np.nan]], np.float32)
    y = _native.elementwise(function, a, None, isa)
    np.testing.assert_array_equal(y, np.sign(a) if function == "sigmoid" else a)
    negative = -a[:, :5]
    y, bound = reference(function, negative)
    assert_within(_native.elementwise(function, negative, None, isa), y, bound)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16])
def test_functions_of_all_numbers_of_16_bits(isa: str, function: str, dtype: np.dtype[Any]) -> None:
    every = np.arange(2**16, dtype=np.uint16).view(dtype).astype(np.float32)
    a = every[np.isfinite(every)][None]
    actual = _native.elementwise(function, a, None, isa)
    assert_within(actual, *reference(function, a))
    below = a < -89  # e^-89 times it is below the smallest float, or close to it
    assert np.all(np.abs(actual[below]) < 1e-35)
    np.testing.assert_array_equal(np.signbit(actual), np.signbit(a) & (function != "sigmoid"))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("k", LENGTHS)
def test_norms(isa: str, rows: int, k: int) -> None:
    a, weight = numbers(rows, k), numbers(k)
    x = a.astype(np.float64)
    expected = x / np.sqrt((x**2).mean(axis=1, keepdims=True) + 1e-5) * weight
    # As in test_rms_norm.py, without a residual.
    bound = ((k + 1) / 2 + 6) * U * np.abs(expected)
    assert_within(_native.rms_norm(a, weight, isa), expected, bound)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("numerics", ["bf16", "int8"])
@pytest.mark.parametrize("bits", [4, 2, 8])
@pytest.mark.parametrize("rows", [1, 3, 90])
@pytest.mark.parametrize("k", [96, 320, 37])
def test_a_norm_before_a_projection_has_the_same_bits(
    isa: str, numerics: str, bits: int, rows: int, k: int
) -> None:
    w, a, weight = make_weights(64, k, bits=bits), numbers(rows, k), numbers(k)
    fused = _native.project(a, w.q4nx, 64, numerics, isa, norm_weight=weight)
    normed = _native.rms_norm(a, weight, isa)
    np.testing.assert_array_equal(_native.project(normed, w.q4nx, 64, numerics, isa), fused)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("numerics", ["bf16", "int8"])
@pytest.mark.parametrize("bits", [4, 2, 8])
@pytest.mark.parametrize("function", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("rows", [1, 3, 90])
@pytest.mark.parametrize("n", [96, 37])
def test_a_gate_behind_two_projections_has_the_same_bits(
    isa: str, numerics: str, bits: int, function: str, rows: int, n: int
) -> None:
    gate, up = (make_weights(n, 320, seed=seed, bits=bits).q4nx for seed in (1, 2))
    a, gelu = 4 * numbers(rows, 320), function == "gelu_tanh"
    fused = _native.project(a, gate, n, numerics, isa, up=up, gelu=gelu)
    x, y = (_native.project(a, blocks, n, numerics, isa) for blocks in (gate, up))
    activated = _native.elementwise(function, x, None, isa)
    np.testing.assert_array_equal(_native.elementwise("multiply", activated, y, isa), fused)
