"""The host kernels for weights of 8 bits, of every instruction set that this CPU has."""

from __future__ import annotations

from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
import q8nx
from test_kernels import (
    ISAS,
    POISONED,
    ROWS,
    SHAPES,
    U,
    check_poisoned,
    quantise_activations,
    to_bfloat16,
)

from ort_aie_ep import _native

Array = npt.NDArray[Any]


def random_blocks(rng: np.random.Generator, n: int, k: int, symmetric: bool = False) -> Array:
    """Codes and zero points of the whole range."""
    groups = -(-k // 32)
    points = rng.integers(0, 256, (n, groups), dtype=np.uint8)
    return q8nx.pack(
        rng.integers(0, 256, (n, k), dtype=np.uint8),
        rng.uniform(-0.1, 0.1, (n, groups)).astype(np.float32),
        np.full_like(points, 128) if symmetric else points,
    )


def sum_error(a: Array, blocks: Array, n: int, k: int) -> Array:
    """Worst rounding error of a float32 sum over k, in any order, with zero points subtracted
    before or after: each term passes through at most k additions and five products."""
    codes, scales, points = q8nx.unpack(blocks, n, k)
    scale, point = (
        np.repeat(np.abs(x.astype(np.float64)), 32, axis=1)[:, :k] for x in (scales, points)
    )
    sums: Array = np.abs(a.astype(np.float64)) @ (scale * (codes + point)).T
    return (k + 5) * U * sums


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("gemm", [False, True])
def test_bf16_projection_matches_the_dequantised_product(
    isa: str, symmetric: bool, gemm: bool
) -> None:
    for rows, (n, k) in product(ROWS, SHAPES):
        rng = np.random.default_rng([rows, n, k])
        a = rng.standard_normal((rows, k)).astype(np.float32)
        blocks = random_blocks(rng, n, k, symmetric)
        rounded, weights = to_bfloat16(a), q8nx.dequantize(blocks, n, k)
        if gemm or rows > _native.most_streamed_rows(8, "bf16", isa):
            weights = to_bfloat16(weights)  # the panel's
        y = _native.project(a, blocks, n, "bf16", isa, symmetric, gemm=gemm)
        expected = rounded.astype(np.float64) @ weights.astype(np.float64).T
        error = np.abs(y - expected)
        bound = sum_error(rounded, blocks, n, k)
        assert (error <= bound).all(), ((rows, n, k), (error / bound).max())


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("gemm", [False, True])
def test_int8_projection_matches_quantised_activations(
    isa: str, symmetric: bool, gemm: bool
) -> None:
    for rows, (n, k) in product(ROWS, SHAPES):
        rng = np.random.default_rng([rows, n, k, 8])
        a = rng.standard_normal((rows, k)).astype(np.float32)
        blocks = random_blocks(rng, n, k, symmetric)
        y = _native.project(a, blocks, n, "int8", isa, symmetric, gemm=gemm)
        prompt = gemm or rows > _native.most_streamed_rows(8, "int8", isa)
        if _native.prompts_in_bf16(isa) and prompt:
            in_bf16 = _native.project(a, blocks, n, "bf16", isa, symmetric, gemm=True)
            np.testing.assert_array_equal(y, in_bf16, str((rows, n, k)))
            continue
        quantised = quantise_activations(a)
        expected = quantised @ q8nx.dequantize(blocks, n, k).astype(np.float64).T
        error = np.abs(y - expected)
        bound = sum_error(quantised, blocks, n, k)
        assert (error <= bound).all(), ((rows, n, k), (error / bound).max())


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("numerics", ["bf16", "int8"])
def test_a_row_of_a_few_is_bit_for_bit_the_row_alone(
    isa: str, symmetric: bool, numerics: str
) -> None:
    rng = np.random.default_rng(5)
    a = rng.standard_normal((19, 512)).astype(np.float32)
    blocks = random_blocks(rng, 64, 512, symmetric)
    alone = np.concatenate(
        [_native.project(row[None], blocks, 64, numerics, isa, symmetric) for row in a]
    )
    for rows in range(2, 1 + min(19, _native.most_streamed_rows(8, numerics, isa))):
        few = _native.project(a[:rows], blocks, 64, numerics, isa, symmetric)
        np.testing.assert_array_equal(few, alone[:rows])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("numerics", ["bf16", "int8"])
@pytest.mark.parametrize(("code", "point"), [(255, 0), (0, 255), (255, 255), (0, 128)])
def test_extreme_codes_and_activations_do_not_overflow(
    isa: str, numerics: str, code: int, point: int
) -> None:
    """The largest integer sums: activations are at an end of their group's range."""
    n, k = 64, 256
    blocks = q8nx.pack(
        np.full((n, k), code, np.uint8),
        np.ones((n, 8), np.float32),
        np.full((n, 8), point, np.uint8),
    )
    symmetric = point == 128
    for rows, gemm in product(ROWS, (False, True)):
        a = np.full((rows, k), 127.0, np.float32)
        a[::2] *= -1
        y = _native.project(a, blocks, n, numerics, isa, symmetric, gemm=gemm)
        # Exact in float32, and weights of 8 bits are in bfloat16.
        expected = np.broadcast_to((code - point) * a.sum(axis=1, keepdims=True), (rows, n))
        np.testing.assert_array_equal(y, expected, f"{rows} rows, gemm={gemm}")


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("numerics", ["bf16", "int8"])
def test_nan_and_infinity_reach_exactly_their_rows(isa: str, numerics: str) -> None:
    check_poisoned(random_blocks(np.random.default_rng(0), *POISONED), isa, numerics)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("rows", [1, 5])
def test_a_gated_projection_is_the_product_of_its_parts(isa: str, rows: int) -> None:
    rng = np.random.default_rng(rows)
    a = 0.05 * rng.standard_normal((rows, 256)).astype(np.float32)
    gate_blocks, up_blocks = (random_blocks(rng, 33, 256) for _ in range(2))
    gate, up = (
        _native.project(a, blocks, 33, "int8", isa).astype(np.float64)
        for blocks in (gate_blocks, up_blocks)
    )
    expected = gate / (1 + np.exp(-np.clip(gate, -700, None))) * up
    y = _native.project(a, gate_blocks, 33, "int8", isa, up=up_blocks)
    # As for weights of 4 bits: the exponential and four operations.
    assert (np.abs(y - expected) <= 16 * U * np.abs(gate * up)).all()


def test_the_panel_of_a_prompt_holds_rounded_weights() -> None:
    """Through the identity: one in-feature at a time gives a column of the panel, exactly."""
    rng = np.random.default_rng(6)
    blocks = random_blocks(rng, 32, 256)
    rounded = q8nx.dequantize(blocks, 32, 256).astype(ml_dtypes.bfloat16).astype(np.float32)
    for isa in ISAS:
        y = _native.project(np.eye(256, dtype=np.float32), blocks, 32, "bf16", isa, gemm=True)
        np.testing.assert_array_equal(y.T, rounded)
