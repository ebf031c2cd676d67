"""aie.Q4NXMatMul, compared with ONNX Runtime's MatMulNBits and the dequantised product."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from op_models import BFLOAT16, FLOAT16, FLOAT32, one_op_model, open_session, run
from projection_calls import (
    Array,
    activations,
    assert_within,
    float32_sum_error,
    magnitudes,
    make_weights,
    matmul_nbits,
    project,
    q4nx_model,
)

from ort_aie_ep import _native


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16])
@pytest.mark.parametrize(("n", "k"), [(64, 256), (100, 512), (33, 320), (32, 100)])
@pytest.mark.parametrize("block_size", [32, 64, 128, 256])
@pytest.mark.parametrize("zero_points", [False, True])
def test_equals_matmul_nbits_where_bfloat16_is_exact(
    dtype: np.dtype[Any], n: int, k: int, block_size: int, zero_points: bool
) -> None:
    w = make_weights(n, k, block_size=block_size, dtype=dtype, zero_points=zero_points, exact=True)
    # Seven bits are exact in float16, too.
    a = activations(33, k, dtype=dtype, exact=True)
    bound = 2 * float32_sum_error(w, a)
    expected = matmul_nbits(w, a)
    session = open_session(q4nx_model(w, a, dims={"A": ["rows", k]}))
    for rows in (1, 2, 5, 33):
        assert_within(run(session, {"A": a[:rows]})["Y"], expected[:rows], bound[:rows])


@pytest.mark.parametrize("rows", [1, 7])
@pytest.mark.parametrize("zero_points", [False, True])
def test_differs_from_matmul_nbits_by_roundings_to_bfloat16_only(
    rows: int, zero_points: bool
) -> None:
    w = make_weights(96, 512, zero_points=zero_points)
    a = activations(rows, 512)
    # Activation, scale, min and, in a GEMM, the weight: each rounded by at most 2^-8 of itself.
    bound = 4 * 2**-8 * magnitudes(w, a)
    assert_within(project(w, a), matmul_nbits(w, a), bound)
    # These are independent and half of them small, so the norm of all errors is far smaller.
    error = project(w, a) - matmul_nbits(w, a)
    assert np.linalg.norm(error) <= 2**-8 * np.linalg.norm(matmul_nbits(w, a)) * 2


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16, BFLOAT16])
@pytest.mark.parametrize("shape", [(64,), (1, 64), (3, 64), (2, 5, 64), (2, 3, 2, 64), (1, 1, 64)])
@pytest.mark.parametrize("with_bias", [False, True])
def test_types_ranks_and_bias_match_the_dequantised_product(
    dtype: np.dtype[Any], shape: tuple[int, ...], with_bias: bool
) -> None:
    w = make_weights(40, 64, dtype=dtype, exact=True)
    a = activations(*shape, dtype=dtype, exact=True)
    bias = activations(40, dtype=dtype) if with_bias else None
    expected = a.astype(np.float64) @ w.dequantised.T
    bound = float32_sum_error(w, a)
    if bias is not None:
        expected = expected + bias.astype(np.float64)
        bound = bound + 2**-23 * np.abs(bias.astype(np.float64))
    assert_within(project(w, a, bias=bias), expected, bound)
    if bias is not None:  # computed by another node, not a constant
        session = open_session(q4nx_model(w, a, bias=bias, constants=("W",)))
        assert_within(run(session, {"A": a, "bias": bias})["Y"], expected, bound)


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16, BFLOAT16])
@pytest.mark.parametrize("rows", [1, 4])
def test_activations_are_rounded_to_bfloat16(dtype: np.dtype[Any], rows: int) -> None:
    w = make_weights(40, 300, dtype=dtype, exact=True)
    a = activations(rows, 300, dtype=dtype)
    rounded = a.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float64)
    assert_within(project(w, a), rounded @ w.dequantised.T, float32_sum_error(w, a) * 1.01)


@pytest.mark.parametrize("shape", [(0, 64), (2, 0, 64), (0, 3, 64)])
def test_no_rows_give_an_empty_result(shape: tuple[int, ...]) -> None:
    w = make_weights(40, 64)
    assert project(w, np.zeros(shape, np.float32)).shape == (*shape[:-1], 40)


@pytest.mark.parametrize("rows", [1, 3, 50])
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16])
def test_int8_agrees_with_accuracy_level_4(rows: int, dtype: np.dtype[Any]) -> None:
    """Both quantise activations to int8 per 32 in-features, so they are at most a step apart."""
    w = make_weights(96, 512, dtype=dtype, exact=True)
    a = activations(rows, 512, dtype=dtype)
    step = np.abs(a.astype(np.float64)).reshape(rows, -1, 32).max(axis=2) / 127
    weight = np.abs(w.dequantised).reshape(96, -1, 32).sum(axis=2)
    bound = step @ weight.T + 2 * float32_sum_error(w, a)
    ours = project(w, a, accuracy_level=4)
    assert_within(ours, matmul_nbits(w, a, accuracy_level=4), bound)
    assert_within(ours, a.astype(np.float64) @ w.dequantised.T, bound / 2 + float32_sum_error(w, a))


@pytest.mark.parametrize("rows", [1, 3])
def test_a_session_survives_many_runs_of_changing_sizes(rows: int) -> None:
    w = make_weights(64, 320, exact=True)
    session = open_session(q4nx_model(w, activations(rows, 320)))
    for count in (rows, 1, 70, 2, 1100, 1):
        a = activations(count, 320, exact=True)
        y = run(session, {"A": a})["Y"]
        assert_within(y, a.astype(np.float64) @ w.dequantised.T, float32_sum_error(w, a))


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("level", [0, 4])
def test_nan_and_infinity_stay_in_their_rows(rows: int, level: int) -> None:
    w = make_weights(40, 320)
    a = activations(rows, 320)
    clean = project(w, a, accuracy_level=level)
    a[-1, 7] = np.nan
    poisoned = project(w, a, accuracy_level=level)
    assert np.isnan(poisoned[-1]).all()
    np.testing.assert_array_equal(poisoned[:-1], clean[:-1])
    a[-1, 7] = np.inf
    assert not np.isfinite(project(w, a, accuracy_level=level)[-1]).any()


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"format": 99},
            "the model has format 99, but this library reads formats 1 to 3; compile the model",
        ),
        ({"format": 0}, "the model has format 0"),
        (
            {"K": 512},
            r"input W must be uint8 \(2, 2, 5120\) for K=512 N=40, got uint8 \(2, 1, 5120",
        ),
        ({"N": 65}, r"input W must be uint8 \(3, 1, 5120\) for K=256 N=65, got uint8 \(2, 1, 5120"),
        ({"K": 0}, "attributes K and N must be positive, got K=0 N=40"),
        ({"N": -3}, "attributes K and N must be positive, got K=256 N=-3"),
    ],
)
def test_wrong_attributes_are_named(change: dict[str, int], message: str) -> None:
    w, a = make_weights(40, 256), activations(1, 256)
    with pytest.raises(Exception, match=f"aie.Q4NXMatMul node 'the_node': {message}"):
        open_session(q4nx_model(w, a, change=change))
    assert np.isfinite(project(w, a)).all()


@pytest.mark.parametrize(
    ("wrong", "got"),
    [
        (np.zeros((2, 1, 5119), np.uint8), r"uint8 \(2, 1, 5119\)"),
        (np.zeros((2, 5120), np.uint8), r"uint8 \(2, 5120\)"),
        (np.zeros((1, 1, 5120), np.uint8), r"uint8 \(1, 1, 5120\)"),
        (np.zeros((2, 1, 5120), np.float32), r"float \(2, 1, 5120\)"),
    ],
)
def test_wrong_weights_are_named(wrong: Array, got: str) -> None:
    a = activations(1, 256)
    given = {"K": 256, "N": 40, "format": _native.FORMAT}
    model = one_op_model("Q4NXMatMul", {"A": a, "W": wrong}, {"Y": FLOAT32}, given, constants=["W"])
    message = rf"'the_node': input W must be uint8 \(2, 1, 5120\) for K=256 N=40, got {got}"
    with pytest.raises(Exception, match=message):
        open_session(model)


def test_weights_that_are_not_an_initializer_are_refused() -> None:
    w, a = make_weights(40, 256), activations(1, 256)
    with pytest.raises(Exception, match=r"'the_node': input W .*constant"):
        open_session(q4nx_model(w, a, constants=()))


@pytest.mark.parametrize(
    ("a", "message"),
    [
        (np.zeros((1, 255), np.float32), r"input A must be \(\.\.\., 256\), got \(1, 255\)"),
        (np.zeros((), np.float32), r"input A must be \(\.\.\., 256\), got \(\)"),
        (np.zeros((1, 256), np.uint8), "input A must be float, float16 or bfloat16, got uint8"),
        (np.zeros((1, 256), np.int64), "input A must be float, float16 or bfloat16, got int64"),
    ],
)
def test_wrong_activations_are_named_and_the_session_lives(a: Array, message: str) -> None:
    w = make_weights(40, 256)
    session = open_session(q4nx_model(w, a))
    with pytest.raises(Exception, match=f"Q4NXMatMul node.*the_node.*{message}"):
        run(session, {"A": a})
    if a.dtype == FLOAT32 and a.ndim:
        assert np.isfinite(run(session, {"A": activations(1, 256)})["Y"]).all()


@pytest.mark.parametrize(
    "bias", [np.zeros(41, np.float32), np.zeros((1, 40), np.float32), np.zeros(40, np.float16)]
)
def test_a_wrong_bias_is_named(bias: Array) -> None:
    w, a = make_weights(40, 256), activations(1, 256)
    with pytest.raises(Exception, match=r"the_node.*input bias .*float \(40\)"):
        project(w, a, bias=bias)


def test_shapes_are_inferred() -> None:
    w, a = make_weights(40, 256), activations(1, 1, 256)
    model = q4nx_model(w, a, dims={"A": ["batch", "sequence", 256]})
    assert open_session(model).get_outputs()[0].shape == ["batch", "sequence", 40]
