"""Q8NX: the Python definition, its C++ counterpart, and the quantiser of float weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import q8nx
from hypothesis import given
from hypothesis import strategies as st

from ort_aie_ep import _native
from ort_aie_ep.errors import AieError
from ort_aie_ep.formats import q4nx

Array = npt.NDArray[Any]

SHAPES = st.tuples(st.integers(1, 100), st.integers(1, 600))


def random_parts(n: int, k: int, seed: int = 0) -> tuple[Array, Array, Array]:
    """Codes (n, k) uint8, scales (n, ceil(k / 32)) float32 and zero points uint8."""
    rng = np.random.default_rng([seed, n, k])
    groups = -(-k // 32)
    codes = rng.integers(0, 256, (n, k), dtype=np.uint8)
    points = rng.integers(0, 256, (n, groups), dtype=np.uint8)
    return codes, rng.standard_normal((n, groups)).astype(np.float32), points


def test_places_of_single_values() -> None:
    """The layout as the format's description has it, one code and one group at a time."""
    n, k = 64, 512
    zeros = np.zeros((n, k), np.uint8)
    groups, points = np.zeros((n, k // 32), np.float32), np.zeros((n, k // 32), np.uint8)
    for row, col in [(0, 0), (1, 0), (15, 31), (16, 2), (31, 255), (32, 256), (63, 511), (40, 301)]:
        r, c = row % 32, col % 256
        group = c // 32 * 32 + r

        codes = zeros.copy()
        codes[row, col] = 211
        expected = np.zeros((2, 2, 9472), np.uint8)
        expected[row // 32, col // 256, c // 4 * 128 + r * 4 + c % 4] = 211
        np.testing.assert_array_equal(q8nx.pack(codes, groups, points), expected)

        scales = groups.copy()
        scales[row, col // 32] = 1.0  # float32 0x3f800000
        expected[...] = 0
        place = 8192 + 4 * group
        expected[row // 32, col // 256, place : place + 4] = [0, 0, 0x80, 0x3F]
        np.testing.assert_array_equal(q8nx.pack(zeros, scales, points), expected)

        zero_points = points.copy()
        zero_points[row, col // 32] = 128
        expected[...] = 0
        expected[row // 32, col // 256, 9216 + group] = 128
        np.testing.assert_array_equal(q8nx.pack(zeros, groups, zero_points), expected)


@given(SHAPES)
def test_dequantising_is_scale_times_code_less_zero_point(shape: tuple[int, int]) -> None:
    n, k = shape
    codes, scales, points = random_parts(n, k)
    blocks = q8nx.pack(codes, scales, points)
    scale, point = (np.repeat(x, 32, axis=1)[:, :k] for x in (scales, points))
    # One rounding: the difference of two codes is exact.
    expected = (scale.astype(np.float64) * (codes.astype(int) - point)).astype(np.float32)
    for weights in (q8nx.dequantize(blocks, n, k), _native.dequantize(blocks, n, k)):
        np.testing.assert_array_equal(weights, expected)


@pytest.mark.parametrize("block_size", [32, 64, 128, 256])
@pytest.mark.parametrize("k", [256, 300, 33])
@pytest.mark.parametrize("with_points", [False, True])
@pytest.mark.parametrize("scale_type", ["FLOAT", "FLOAT16", "BFLOAT16"])
def test_weights_of_matmulnbits_are_kept_as_they_are(
    block_size: int, k: int, with_points: bool, scale_type: str
) -> None:
    n, blocks = 40, -(-k // block_size)
    rng = np.random.default_rng([block_size, k])
    codes = rng.integers(0, 256, (n, blocks * block_size), dtype=np.uint8)
    dtype = {"FLOAT": np.float32, "FLOAT16": np.float16, "BFLOAT16": q4nx.bfloat16}[scale_type]
    scales = rng.uniform(0.001, 0.1, (n, blocks)).astype(dtype)
    points = rng.integers(0, 256, (n, blocks), dtype=np.uint8)
    packed = _native.pack_matmulnbits(
        codes, scales.view(np.uint8), points if with_points else None, n, k, block_size,
        scale_type, 8,
    )  # fmt: skip
    groups = np.arange(-(-k // 32)) * 32 // block_size
    expected_points = points if with_points else np.full_like(points, 128)
    np.testing.assert_array_equal(
        packed,
        q8nx.pack(codes[:, :k], scales[:, groups].astype(np.float32), expected_points[:, groups]),
    )


# --- float weights ----------------------------------------------------------------------------

DISTRIBUTIONS = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "heavy-tailed": lambda rng, shape: rng.standard_t(3, shape),
    "shifted": lambda rng, shape: 3 + 0.1 * rng.standard_normal(shape),
    "positive": lambda rng, shape: rng.uniform(0, 1, shape),
    "below the normal range": lambda rng, shape: 1e-40 * rng.standard_normal(shape),
    "zero": lambda rng, shape: np.zeros(shape),
}


@pytest.mark.parametrize(("n", "k"), [(64, 512), (33, 320), (17, 40), (1, 7)])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_stored_weights_are_within_half_a_step(name: str, n: int, k: int) -> None:
    weights = DISTRIBUTIONS[name](np.random.default_rng([n, k]), (n, k)).astype(np.float32)
    blocks, squared_error, squared_weights, largest, weighted = _native.quantize(weights, 8)
    _, scales, points = q8nx.unpack(blocks, n, k)
    step = np.repeat(scales, 32, axis=1)[:, :k]
    error = q8nx.dequantize(blocks, n, k).astype(np.float64) - weights
    # Half a step from the code, and half from a zero point between two integers at the range's end,
    # where codes are clamped. A subnormal group has no scale and becomes zeros.
    bound = np.where(step > 0, step * (1 + 2.0**-15), 2.0**-126 * 127)
    assert (np.abs(error) <= bound).all()
    assert squared_error == pytest.approx(np.square(error).sum(), rel=1e-4)
    assert squared_weights == pytest.approx(np.square(weights.astype(np.float64)).sum(), rel=1e-4)
    assert weighted == squared_error
    assert largest == pytest.approx(np.abs(error).max(), rel=1e-4)
    # No group is worse than rounded with a zero point of 128.
    padded = np.pad(weights, ((0, 0), (0, -k % 32))).reshape(n, -1, 32)
    scale = np.abs(padded).max(2, keepdims=True) / np.float32(127)
    plain = np.round(padded / np.where(scale > 0, scale, 1)) * scale - padded
    ours = np.square(np.pad(error, ((0, 0), (0, -k % 32))).reshape(n, -1, 32)).sum(2)
    assert (ours <= np.square(plain.astype(np.float64)).sum(2) * (1 + 1e-4) + 1e-70).all()
    assert set(np.unique(points)) <= ({128} if name == "zero" else set(range(256)))


def test_both_zero_points_are_used() -> None:
    rng = np.random.default_rng(1)
    _, _, points = q8nx.unpack(
        _native.quantize(rng.uniform(0, 1, (32, 64)).astype(np.float32), 8)[0], 32, 64
    )
    assert not points.any()  # weights of one sign: all codes on their side
    symmetric = np.tile(np.array([-127, 1, 127, 0], np.float32), (32, 16))
    _, scales, points = q8nx.unpack(_native.quantize(symmetric, 8)[0], 32, 64)
    np.testing.assert_array_equal(points, 128)
    np.testing.assert_array_equal(scales, 1)


def test_importance_decides_between_the_zero_points() -> None:
    rng = np.random.default_rng(3)
    weights = rng.standard_normal((64, 64)).astype(np.float32)
    importance = rng.uniform(0, 1, 64).astype(np.float32) ** 8
    errors = []
    for given_importance in (None, importance):
        blocks, *_, weighted = _native.quantize(weights, 8, given_importance)
        error = q8nx.dequantize(blocks, 64, 64).astype(np.float64) - weights
        errors.append((np.square(error) * importance).sum())
    assert weighted == pytest.approx(errors[1], rel=1e-4)
    assert errors[1] < errors[0]


def test_what_cannot_be_stored_is_refused() -> None:
    weights = np.ones((33, 40), np.float32)
    weights[32, 39] = np.nan
    with pytest.raises(ValueError, match=r"weights .*NaN"):
        _native.quantize(weights, 8)
    with pytest.raises(AieError, match=r"weights .*NaN"):
        q8nx.quantize(weights)
    with pytest.raises(ValueError, match=r"bits .*3"):
        _native.quantize(np.ones((4, 4), np.float32), 3)


@pytest.mark.parametrize(
    ("codes", "scales", "points", "message"),
    [
        ((4,), (4, 1), (4, 1), r"codes must be \(N, K\) and not empty"),
        ((4, 40), (4, 1), (4, 2), r"scales must be \(4, 2\), got \(4, 1\)"),
        ((4, 40), (4, 2), (4, 1), r"zero_points must be \(4, 2\), got \(4, 1\)"),
    ],
)
def test_pack_refuses_what_does_not_fit(
    codes: tuple[int, ...], scales: tuple[int, ...], points: tuple[int, ...], message: str
) -> None:
    parts = np.zeros(codes, np.uint8), np.zeros(scales, np.float32), np.zeros(points, np.uint8)
    with pytest.raises(AieError, match=message):
        q8nx.pack(*parts)
    with pytest.raises(ValueError, match=message):
        _native.pack_q8nx(*parts)


def test_unpack_refuses_what_does_not_fit() -> None:
    blocks = np.zeros((2, 1, 9472), np.uint8)
    with pytest.raises(AieError, match=r"\(32, 256\) .*uint8 \(1, 1, 9472\)"):
        q8nx.unpack(blocks, 32, 256)
    with pytest.raises(ValueError, match=r"blocks .*\(1, 1, 9472\).*\(2, 1, 9472\)"):
        _native.unpack_q8nx(blocks, 32, 256)
    with pytest.raises(AieError, match=r"codes .*uint8.*int8"):
        q8nx.pack(np.zeros((4, 32), np.int8), np.zeros((4, 1)), np.zeros((4, 1), np.uint8))
