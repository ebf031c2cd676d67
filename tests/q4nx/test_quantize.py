"""Float weights as Q4NX: what is stored, its error, and a comparison with ONNX Runtime's
quantiser."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import numpy_q4nx as q4nx
import pytest
from onnxruntime.capi._pybind_state import quantize_matmul_4bits

from ort_aie_ep import _native

Array = npt.NDArray[Any]

# Whole blocks, padded out-features, padded in-features, less than a group.
SHAPES = [(64, 512), (100, 256), (33, 320), (17, 40), (1, 7)]
DISTRIBUTIONS = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "heavy-tailed": lambda rng, shape: rng.standard_t(3, shape),
    "Laplace": lambda rng, shape: rng.laplace(size=shape),
    "uniform": lambda rng, shape: rng.uniform(-1, 1, shape),
    "shifted": lambda rng, shape: 3 + 0.1 * rng.standard_normal(shape),
    "one outlier per row": lambda rng, shape: np.where(
        np.arange(shape[1]) == 5, 40, rng.standard_normal(shape)
    ),
}


def random(name: str, n: int, k: int) -> Array:
    rng = np.random.default_rng([n, k])
    weights: Array = DISTRIBUTIONS[name](rng, (n, k)).astype(np.float32)
    return weights


def importance(k: int) -> Array:
    """A mean square for each in-feature, as activations have them: a few are far larger."""
    values: Array = np.random.default_rng(k).lognormal(sigma=1.5, size=k).astype(np.float32)
    return values


def relative(error: Array, weights: Array) -> float:
    return float(np.linalg.norm(error) / np.linalg.norm(weights))


def onnxruntime_rtn(weights: Array) -> Array:
    """MatMulNBitsQuantizer's asymmetric round to nearest with blocks of 32: (N, K) float64."""
    n, k = weights.shape
    groups = k // 32
    codes = np.zeros((n, groups, 16), np.uint8)
    scales = np.zeros((n, groups), np.float32)
    points = np.zeros((n, -(-groups // 2)), np.uint8)
    source = np.ascontiguousarray(weights.T)
    quantize_matmul_4bits(codes, source, scales, points, 32, n, k, False)
    nibbles = np.stack([codes & 15, codes >> 4], axis=-1).reshape(n, groups, 32)
    zero = np.stack([points & 15, points >> 4], axis=-1).reshape(n, -1)[:, :groups, None]
    values: Array = (nibbles.astype(np.float64) - zero) * scales[:, :, None]
    return values.reshape(n, k)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("bits", [4, 2])
@pytest.mark.parametrize(("n", "k"), SHAPES)
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_codes_are_the_nearest_for_the_stored_scales_and_minima(
    name: str, n: int, k: int, bits: int, weighted: bool
) -> None:
    weights = random(name, n, k)
    given = importance(k) if weighted else None
    blocks, squared_error, squared_weights, largest, counted = _native.quantize(
        weights, bits, given
    )
    codes, scales, mins = q4nx.unpack(blocks, n, k)
    spread = [np.repeat(x.astype(np.float64), 32, axis=1)[:, :k] for x in (scales, mins)]
    steps = (weights.astype(np.float64) - spread[1]) / np.where(spread[0] > 0, spread[0], np.inf)
    # Codes are computed in float32: a quotient of at most 15 + 2 may be off by 2^-20.
    assert (np.abs(codes - steps.clip(0, 2**bits - 1)) <= 0.5 + 2.0**-20).all()
    # The reported errors are those of the stored weights, up to float32's rounding.
    error = q4nx.dequantize(blocks, n, k).astype(np.float64) - weights
    assert squared_error == pytest.approx(np.square(error).sum(), rel=1e-4)
    assert squared_weights == pytest.approx(np.square(weights.astype(np.float64)).sum(), rel=1e-6)
    assert largest == pytest.approx(np.abs(error).max(), rel=1e-4)
    each = 1.0 if given is None else given.astype(np.float64)
    assert counted == pytest.approx((np.square(error) * each).sum(), rel=1e-4)


@pytest.mark.parametrize("bits", [4, 2])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_importance_lowers_the_error_of_what_counts(name: str, bits: int) -> None:
    """In every group, because the ranges that are tried are the same with and without it."""
    weights, given = random(name, 96, 512), importance(512)

    def counted(given_to_it: Array | None) -> Array:
        blocks, *_ = _native.quantize(weights, bits, given_to_it)
        error = np.square(q4nx.dequantize(blocks, 96, 512).astype(np.float64) - weights) * given
        sums: Array = error.reshape(96, -1, 32).sum(axis=2)
        return sums

    plain, ours = counted(None), counted(given)
    # Fits to codes start from different ranges, so single groups may be worse.
    assert np.mean(ours <= plain * (1 + 1e-4)) > 0.9
    assert ours.sum() < 0.97 * plain.sum()


@pytest.mark.parametrize("bits", [4, 2])
def test_importance_is_relative_within_a_group(bits: int) -> None:
    weights = random("heavy-tailed", 40, 300)
    given = importance(300)
    blocks, *_ = _native.quantize(weights, bits, given)
    by_group = np.repeat(np.float32(2) ** np.arange(10), 32)[:300].astype(np.float32)
    np.testing.assert_array_equal(_native.quantize(weights, bits, given * by_group)[0], blocks)
    plain, *_ = _native.quantize(weights, bits)
    for same in (np.zeros(300, np.float32), np.full(300, 3e37, np.float32)):
        np.testing.assert_array_equal(_native.quantize(weights, bits, same)[0], plain)


def test_importance_has_a_value_for_each_in_feature() -> None:
    weights = random("normal", 32, 64)
    with pytest.raises(ValueError, match="importance"):
        _native.quantize(weights, 4, np.ones(63, np.float32))
    for bad in (np.nan, np.inf, -1):
        with pytest.raises(ValueError, match=r"importance .*finite"):
            _native.quantize(weights, 4, np.full(64, bad, np.float32))
    with pytest.raises(ValueError, match="bits"):
        _native.quantize(weights, 3)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_the_error_is_below_rounding_to_nearest(name: str) -> None:
    weights = random(name, 96, 1024)
    blocks, *_ = _native.quantize(weights)
    error = relative(q4nx.dequantize(blocks, *weights.shape) - weights, weights)
    plain = q4nx.dequantize(q4nx.quantize(weights), *weights.shape)
    assert error < relative(plain - weights, weights)
    assert error <= relative(onnxruntime_rtn(weights) - weights, weights)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_no_group_is_worse_than_between_its_extremes(name: str) -> None:
    """This range is the search's first, so a group never pays for outliers elsewhere."""
    weights = random(name, 40, 512)
    groups = weights.reshape(40, -1, 32)
    low, high = groups.min(2, keepdims=True), groups.max(2, keepdims=True)
    mins = low.astype(q4nx.bfloat16).astype(np.float32)
    below = np.nextafter(mins.astype(q4nx.bfloat16), q4nx.bfloat16.type(-np.inf))
    mins = np.where(mins > low, below.astype(np.float32), mins)
    scales = ((high - mins) / np.float32(15)).astype(q4nx.bfloat16).astype(np.float32)
    codes = np.round((groups - mins) / scales).clip(0, 15)
    plain = np.square(groups - (scales * codes + mins).astype(np.float64)).sum(2)
    blocks, *_ = _native.quantize(weights)
    ours = np.square(groups - q4nx.dequantize(blocks, 40, 512).reshape(groups.shape)).sum(2)
    # Both sums have float32 roundings.
    assert (ours <= plain * (1 + 1e-4)).all()


def test_out_features_and_orders_in_memory_do_not_matter() -> None:
    weights = random("heavy-tailed", 70, 300)
    blocks, *_ = _native.quantize(weights)
    other, *_ = _native.quantize(np.asfortranarray(weights))
    np.testing.assert_array_equal(other, blocks)
    strided = np.zeros((140, 900), np.float32)
    strided[::2, ::3] = weights
    np.testing.assert_array_equal(_native.quantize(strided[::2, ::3])[0], blocks)
    np.testing.assert_array_equal(_native.quantize(weights[32:])[0], blocks[1:])
    np.testing.assert_array_equal(_native.quantize(weights[:, 256:])[0], blocks[:, 1:])


def test_padding_is_zero() -> None:
    n, k = 33, 300
    blocks, *_ = _native.quantize(random("normal", n, k))
    whole = q4nx.dequantize(blocks, 64, 512)
    assert not whole[n:].any()
    assert not whole[:, 320:].any()
    assert not q4nx.unpack(blocks, 64, 512)[0][:, k:].any()


@pytest.mark.parametrize("value", [0.0, 1.0, -0.1, 1e-30, -3e17, 2.0**60])
def test_a_group_of_one_value_loses_next_to_nothing(value: float) -> None:
    weights = np.full((16, 32), value, np.float32)
    blocks, *_ = _native.quantize(weights)
    # The minimum is within a bfloat16 step of 2^-7; the scale holds the rest up to 2^-8 of it.
    np.testing.assert_allclose(q4nx.dequantize(blocks, 16, 32), weights, rtol=2.0**-15, atol=0)


@pytest.mark.parametrize("value", [2.0**-140, 1e-39])
def test_weights_below_the_normal_range_stay_near(value: float) -> None:
    weights = np.where(np.arange(32) % 2, value, -value).astype(np.float32).reshape(1, 32)
    blocks, *_ = _native.quantize(weights)
    # No scale is subnormal, so every weight of the group becomes the minimum; such bfloat16 numbers
    # are 2^-133 apart.
    bound = 2 * value + 2.0**-133
    np.testing.assert_allclose(q4nx.dequantize(blocks, 1, 32), weights, rtol=0, atol=bound)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, -(2.0**61)])
@pytest.mark.parametrize("place", [(0, 0), (32, 299), (16, 31)])
def test_what_cannot_be_stored_is_refused(value: float, place: tuple[int, int]) -> None:
    weights = random("normal", 33, 300)
    weights[place] = value
    for order in (weights, np.asfortranarray(weights)):
        with pytest.raises(ValueError, match=r"weights .*NaN"):
            _native.quantize(order)


@pytest.mark.parametrize("shape", [(0, 32), (32, 0), (32,), (2, 3, 4)])
def test_only_matrices_are_quantised(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"weights .*\(N, K\)"):
        _native.quantize(np.zeros(shape, np.float32))
