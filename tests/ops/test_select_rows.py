"""aie.SelectRows, which takes a row from each batch row, compared with numpy and ONNX's
GatherND."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from op_models import BFLOAT16, FLOAT16, FLOAT32, Array, one_op_model, open_session, run

from ort_aie_ep import _native

DTYPES = [FLOAT32, FLOAT16, BFLOAT16]


def select(a: Array, indices: Array) -> Array:
    """The node's Y."""
    feeds = {"A": a, "indices": indices}
    model = one_op_model("SelectRows", feeds, {"Y": a.dtype}, {"format": _native.FORMAT})
    return run(open_session(model), feeds)["Y"]


def rows(dtype: np.dtype[Any], *shape: int) -> Array:
    y: Array = np.random.default_rng(shape).standard_normal(shape).astype(dtype)
    return y


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("last", [[0, 3, 4], [-1, -5, 2]])
def test_each_batch_row_gives_the_one_asked_for(dtype: np.dtype[Any], last: list[int]) -> None:
    a, indices = rows(dtype, 3, 5, 97), np.array(last, np.int64).reshape(3, 1, 1)
    y = select(a, indices)
    assert y.shape == (3, 1, 97)
    np.testing.assert_array_equal(y, np.stack([a[b, [row]] for b, row in enumerate(last)]))


@pytest.mark.parametrize("batch", [0, 1, 4])
def test_of_one_row_that_row_is_given(batch: int) -> None:
    a = rows(FLOAT32, batch, 1, 33)
    np.testing.assert_array_equal(select(a, np.zeros((batch, 1, 1), np.int64)), a)


@pytest.mark.parametrize(
    ("shape", "indices", "message"),
    [
        ((2, 5, 8), [[[4]], [[5]]], "input indices has 5 for batch row 1, expected -5 to 4"),
        ((2, 5, 8), [[[-6]], [[0]]], "input indices has -6 for batch row 0, expected -5 to 4"),
        ((1, 1, 8), [[[1]]], "input indices has 1 for batch row 0, expected -1 to 0"),
        ((1, 0, 8), [[[0]]], "A has 0 rows"),
        ((2, 5, 8), [[[0]]], "input indices must be int64 (2, 1, 1), got int64 (1, 1, 1)"),
        ((5, 8), [[[0]]], "input A must be (batch, rows, K), got (5, 8)"),
    ],
)
def test_bad_input_is_named(shape: tuple[int, ...], indices: list[Any], message: str) -> None:
    with pytest.raises(Exception, match=re.escape(message)):
        select(rows(FLOAT32, *shape), np.array(indices, np.int64))
