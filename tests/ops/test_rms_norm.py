"""aie.RMSNorm, compared with numpy in float64, ONNX Runtime's operators, and a projection's
norm."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from op_models import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    Array,
    open_session,
)
from projection_calls import activations, assert_within
from vector_calls import EPSILON, U, norm, norm_model

TYPES = [FLOAT32, FLOAT16, BFLOAT16]


def expected_norm(x: Array, weight: Array) -> Array:
    x = x.astype(np.float64)
    y: Array = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + EPSILON) * weight
    return y


def bound(y: Array, k: int) -> Array:
    """Worst error in float32. A sum of k squares is wrong by k + 1 roundings of itself, and the
    root by half as much. The rest are an addition, a quotient, two roots' worth and two products,
    and the rounding of each a + skip counts twice."""
    allowed: Array = ((k + 1) / 2 + 8) * U * np.abs(y)
    return allowed


def inputs(*shape: int, dtype: np.dtype[Any]) -> tuple[Array, Array, Array]:
    a = (3 * activations(*shape, dtype=dtype)).astype(dtype)
    skip = np.ascontiguousarray(activations(*shape[::-1], dtype=dtype).T).reshape(shape)
    return a, skip, activations(shape[-1], dtype=dtype)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    "shape", [(1, 1, 2048), (2, 5, 96), (7, 33), (4, 1), (257,), (3, 2, 2, 63), (100, 640)]
)
@pytest.mark.parametrize("with_skip", [False, True])
def test_norms(dtype: np.dtype[Any], shape: tuple[int, ...], with_skip: bool) -> None:
    a, skip, weight = inputs(*shape, dtype=dtype)
    got = norm(a, weight, skip if with_skip else None)
    x = a.astype(np.float32)
    if with_skip:
        x = x + skip.astype(np.float32)
        # One addition, and one rounding to the type.
        np.testing.assert_array_equal(got["sum"], x.astype(dtype))
    y = expected_norm(x, weight)
    assert_within(got["Y"], y, bound(y, shape[-1]))


@pytest.mark.parametrize("dtype", TYPES)
def test_the_sum_may_go_unread(dtype: np.dtype[Any]) -> None:
    a, skip, weight = inputs(2, 3, 96, dtype=dtype)
    got = norm(a, weight, skip, with_sum=False)
    assert got.keys() == {"Y"}
    np.testing.assert_array_equal(got["Y"], norm(a, weight, skip)["Y"])


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(0, 96), (2, 0, 96)])
def test_no_rows_give_empty_results(dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    a = np.zeros(shape, dtype)
    got = norm(a, activations(96, dtype=dtype), a)
    assert got["Y"].shape == got["sum"].shape == shape


@pytest.mark.parametrize("rows", [1, 5])
def test_a_nan_stays_in_its_row(rows: int) -> None:
    a, _, weight = inputs(rows, 320, dtype=FLOAT32)
    clean = norm(a, weight)["Y"]
    a[-1, 7] = np.nan
    y = norm(a, weight)["Y"]
    assert np.isnan(y[-1]).all()
    np.testing.assert_array_equal(y[:-1], clean[:-1])


def test_the_weight_may_come_with_the_call() -> None:
    a, skip, weight = inputs(2, 3, 96, dtype=FLOAT32)
    expected = norm(a, weight, skip)
    got = norm(a, weight, skip, constants=())
    for name, array in expected.items():
        np.testing.assert_array_equal(got[name], array)


def test_shapes_are_inferred() -> None:
    a, _, weight = inputs(1, 1, 96, dtype=FLOAT16)
    model = norm_model(a, weight, dims={"A": ["batch", "sequence", 96]})
    (output,) = open_session(model).get_outputs()
    assert (output.shape, output.type) == (["batch", "sequence", 96], "tensor(float16)")


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "the model has format 2, but this library reads format 1"),
        ({"K": 0}, "attribute K must be positive, got 0"),
        ({"K": -96}, "attribute K must be positive, got -96"),
        ({"epsilon": -1.0}, "attribute epsilon must be a finite number of 0 or more, got -1"),
        ({"epsilon": float("nan")}, "attribute epsilon must be a finite number of 0 or more"),
    ],
)
def test_wrong_attributes_are_named(change: dict[str, Any], message: str) -> None:
    a, _, weight = inputs(2, 96, dtype=FLOAT32)
    with pytest.raises(Exception, match=f"aie.RMSNorm node 'the_node': {message}"):
        open_session(norm_model(a, weight, change=change))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"A": np.zeros((2, 95), np.float32)}, r"input A must be \(..., 96\), got \(2, 95\)"),
        ({"A": np.zeros((2, 96), np.int32)},
         "input A must be float, float16 or bfloat16, got int32"),
        ({"weight": np.zeros(95, np.float32)},
         r"input weight must be float \(96\), got float \(95\)"),
        ({"weight": np.zeros((1, 96), np.float32)},
         r"input weight must be float \(96\), got float \(1, 96\)"),
        ({"weight": np.zeros(96, np.float16)},
         r"input weight must be float \(96\), got float16 \(96\)"),
        ({"skip": np.zeros((1, 96), np.float32)},
         r"input skip must be float \(2, 96\), got float \(1, 96\)"),
        ({"skip": np.zeros((2, 96), np.float16)},
         r"input skip must be float \(2, 96\), got float16 \(2, 96\)"),
    ],
)  # fmt: skip
def test_wrong_inputs_are_named(given: dict[str, Any], message: str) -> None:
    a, skip, weight = inputs(2, 96, dtype=FLOAT32)
    call = {"A": a, "weight": weight, "skip": skip} | given
    # Without the output sum, for which ONNX Runtime infers a type itself.
    options = {"with_sum": False, "change": {"K": 96}}
    with pytest.raises(Exception, match=rf"the_node.*{message}"):
        norm(call["A"], call["weight"], call["skip"], **options)
    assert norm(a, weight, skip)["Y"].shape == (2, 96)
