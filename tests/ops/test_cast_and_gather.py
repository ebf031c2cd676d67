"""aie.Cast and aie.Gather, which move numbers, compared with numpy and ONNX Runtime's operators."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from op_models import BFLOAT16, FLOAT16, FLOAT32, ONNX_TYPES, Array, open_session
from vector_calls import cast, cast_model, rows_of, standard, table_model

TYPES = [FLOAT32, FLOAT16, BFLOAT16]
N, K = 70, 97


def numbers(dtype: np.dtype[Any], *shape: int) -> Array:
    """Numbers of all magnitudes, also between two 16-bit numbers."""
    rng = np.random.default_rng([*shape, dtype.itemsize])
    x = rng.standard_normal(shape) * 10.0 ** rng.integers(-9, 6, shape)
    with np.errstate(over="ignore"):
        y: Array = x.astype(dtype)
    return y


# --- casts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("to", TYPES)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(1, 1, 1100), (2, 5, 97), (5000,), (1,), (), (0, 96), (3, 0)])
def test_casts(dtype: np.dtype[Any], to: np.dtype[Any], shape: tuple[int, ...]) -> None:
    a = numbers(dtype, *shape)
    with np.errstate(over="ignore"):
        expected = a.astype(np.float32).astype(to)
    y = cast(a, to)
    assert y.dtype == to
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("to", TYPES)
@pytest.mark.parametrize("dtype", TYPES)
def test_casts_as_onnx_runtime_does(dtype: np.dtype[Any], to: np.dtype[Any]) -> None:
    a = np.concatenate([numbers(dtype, 500), np.array([np.inf, -np.inf, np.nan, -0.0], dtype)])
    theirs = standard("Cast", {"A": a}, {"Y": to}, to=ONNX_TYPES[to])["Y"]
    # As float32, because numpy never considers two bfloat16 NaNs equal.
    ours = cast(a, to)
    np.testing.assert_array_equal(ours.astype(np.float32), theirs.astype(np.float32))


def test_casts_infer_shape_and_type() -> None:
    a = np.zeros((1, 1, 96), np.float32)
    model = cast_model(a, FLOAT16, dims={"A": ["batch", "sequence", 96]})
    (output,) = open_session(model).get_outputs()
    assert (output.shape, output.type) == (["batch", "sequence", 96], "tensor(float16)")


def test_a_cast_to_another_type_is_refused() -> None:
    a = np.zeros(3, np.float32)
    models = [cast_model(a, FLOAT32, change={"dtype": n}) for n in (-1, 0, 99, 2**32 + 1)]
    for model in (*models, cast_model(a, np.dtype(np.int32))):
        with pytest.raises(Exception, match="'the_node': attribute dtype"):
            open_session(model)


def test_a_cast_of_another_type_is_named() -> None:
    message = "the_node.*input A must be float, float16 or bfloat16, got int64"
    with pytest.raises(Exception, match=message):
        cast(np.zeros(3, np.int64), FLOAT32)


# --- rows of a table ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("index_type", [np.int32, np.int64])
@pytest.mark.parametrize("shape", [(), (1000,), (2, 5), (2, 3, 4), (0,), (2, 0)])
def test_rows_of_any_shape_of_indices(
    dtype: np.dtype[Any], index_type: npt.DTypeLike, shape: tuple[int, ...]
) -> None:
    table = numbers(dtype, N, K)
    indices = np.asarray(np.random.default_rng(1).integers(-N, N, shape), index_type)
    y = rows_of(table, indices)
    assert (y.dtype, y.shape) == (dtype, (*shape, K))
    np.testing.assert_array_equal(y, table[indices])


@pytest.mark.parametrize("index_type", [np.int32, np.int64])
@pytest.mark.parametrize("wrong", ["n", "below", "most", "least"])
def test_indices_out_of_range_are_an_error_as_in_onnx_runtime(
    index_type: npt.DTypeLike, wrong: str
) -> None:
    limits = np.iinfo(index_type)
    index = {"n": N, "below": -N - 1, "most": limits.max, "least": limits.min}[wrong]
    table, indices = numbers(FLOAT32, N, K), np.array([3, index, 5], index_type)
    expected = f"the_node.*input indices has {index} as element 1, expected -70 to 69: W has 70"
    with pytest.raises(Exception, match=expected):
        rows_of(table, indices)
    with pytest.raises(Exception, match="out of data bounds"):
        standard("Gather", {"W": table, "indices": indices}, {"Y": FLOAT32})


def test_gathers_infer_shape_and_type() -> None:
    table, indices = numbers(BFLOAT16, N, K), np.zeros((1, 1), np.int64)
    model = table_model(table, indices, dims={"indices": ["batch", "sequence"]})
    (output,) = open_session(model).get_outputs()
    assert (output.shape, output.type) == (["batch", "sequence", K], "tensor(bfloat16)")


@pytest.mark.parametrize(
    ("table", "constants", "message"),
    [
        (np.zeros((N, K), np.float32), (), "must be a constant initializer"),
        (np.zeros((N, K), np.int8), ("W",), "must be float, float16 or bfloat16, got int8"),
        (np.zeros(N, np.float32), ("W",), r"must be \(N, K\), got \(70\)"),
        (np.zeros((2, N, K), np.float32), ("W",), r"must be \(N, K\), got \(2, 70, 97\)"),
        (np.zeros((N, 0), np.float32), ("W",), r"must be \(N, K\), got \(70, 0\)"),
    ],
)
def test_a_wrong_table_is_named(table: Array, constants: tuple[str, ...], message: str) -> None:
    model = table_model(table, np.zeros(1, np.int64), constants=constants)
    with pytest.raises(Exception, match=f"aie.Gather node 'the_node': input W {message}"):
        open_session(model)


def test_an_empty_table_has_no_rows_to_give() -> None:
    table = np.zeros((0, K), np.float32)
    assert rows_of(table, np.zeros((2, 0), np.int64)).shape == (2, 0, K)
    with pytest.raises(Exception, match=r"indices .*element 0"):
        rows_of(table, np.zeros(1, np.int64))


def test_wrong_indices_are_named() -> None:
    with pytest.raises(Exception, match=r"the_node.*indices .*int32.*int64.*float"):
        rows_of(numbers(FLOAT32, N, K), np.zeros(3, np.float32))
