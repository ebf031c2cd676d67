"""aie.Add, aie.Mul and aie.Activation, compared with numpy and ONNX Runtime's operators."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from op_models import BFLOAT16, FLOAT16, FLOAT32, Array, open_session, run
from projection_calls import assert_within
from vector_calls import (
    FUNCTIONS,
    activate,
    activation_model,
    binary,
    binary_model,
    reference,
    standard,
)

TYPES = [FLOAT32, FLOAT16, BFLOAT16]
NUMPY = {"Add": np.add, "Mul": np.multiply}


def operand(*shape: int, dtype: np.dtype[Any]) -> Array:
    y: Array = np.random.default_rng([*shape, 5]).standard_normal(shape).astype(dtype)
    return y


def exact(op_type: str, a: Array, b: Array) -> Array:
    """The result in float32, rounded once to the type."""
    y: Array = NUMPY[op_type](a.astype(np.float32), b.astype(np.float32)).astype(a.dtype)
    return y


# --- sums and products ----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("op_type", ["Add", "Mul"])
@pytest.mark.parametrize(
    ("shape", "b_shape"),
    [
        ((1, 1, 2048), (1, 1, 2048)),
        ((2, 5, 97), (2, 5, 97)),
        ((3, 1100), (3, 1100)),
        ((), ()),
        # One row.
        ((1, 1, 640), (640,)),
        ((2, 5, 97), (97,)),
        ((4, 1100), (1, 1100)),
        ((2, 3, 33), (1, 1, 33)),
        # One value.
        ((2, 5, 97), ()),
        ((2, 5, 97), (1,)),
        ((3000,), (1,)),
        ((2, 3, 33), (1, 1, 1)),
        ((4, 1), (1,)),
        ((4, 1), (4, 1)),
    ],
)
def test_sums_and_products(
    dtype: np.dtype[Any], op_type: str, shape: tuple[int, ...], b_shape: tuple[int, ...]
) -> None:
    a, b = operand(*shape, dtype=dtype), operand(*b_shape, dtype=dtype)
    y = binary(op_type, a, b)
    assert y.shape == shape
    np.testing.assert_array_equal(y, exact(op_type, a, b))
    if dtype == FLOAT32:
        theirs = standard(op_type, {"A": a, "B": b}, {"Y": dtype})["Y"]
        np.testing.assert_array_equal(y, theirs)


def test_the_operand_may_be_a_constant() -> None:
    a, b = operand(2, 5, 97, dtype=FLOAT16), operand(97, dtype=FLOAT16)
    np.testing.assert_array_equal(binary("Mul", a, b, constants=("B",)), binary("Mul", a, b))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(0, 96), (2, 0, 96), (3, 0)])
def test_no_elements_give_empty_results(dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    a = np.zeros(shape, dtype)
    assert binary("Add", a, a).shape == shape
    assert binary("Mul", a, np.ones((), dtype)).shape == shape
    assert activate("silu", a).shape == shape


def test_infinities_and_nan() -> None:
    a = np.array([np.inf, -np.inf, np.nan, np.inf, 3e38, 0], np.float32)
    b = np.array([-np.inf, 1, 2, 0, 3e38, np.nan], np.float32)
    with np.errstate(all="ignore"):
        for op_type, function in NUMPY.items():
            np.testing.assert_array_equal(binary(op_type, a, b), function(a, b))


def test_float16_overflows_to_infinity() -> None:
    a = np.array([65504, -65504, 1], FLOAT16)
    y = binary("Add", a, a)
    np.testing.assert_array_equal(y, np.array([np.inf, -np.inf, 2], FLOAT16))


# --- functions ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("shape", [(1, 1, 1100), (2, 5, 97), (7,), (3, 1), ()])
def test_functions(dtype: np.dtype[Any], function: str, shape: tuple[int, ...]) -> None:
    a = (3 * operand(*shape, dtype=dtype)).astype(dtype)
    y, bound = reference(function, a)
    assert_within(activate(function, a), y, bound)


# --- shapes and errors ----------------------------------------------------------------------------


def test_shapes_are_inferred() -> None:
    a, b = operand(1, 1, 96, dtype=BFLOAT16), operand(96, dtype=BFLOAT16)
    dims = {"A": ["batch", "sequence", 96]}
    for model in (binary_model("Add", a, b, dims=dims), activation_model("gelu", a, dims=dims)):
        (output,) = open_session(model).get_outputs()
        assert (output.shape, output.type) == (["batch", "sequence", 96], "tensor(bfloat16)")


@pytest.mark.parametrize("op_type", ["Add", "Mul"])
@pytest.mark.parametrize(
    ("b", "got"),
    [
        (np.zeros(95, np.float32), r"float \(95\)"),
        (np.zeros((2, 1), np.float32), r"float \(2, 1\)"),
        (np.zeros((3, 96), np.float32), r"float \(3, 96\)"),
        (np.zeros((1, 2, 96), np.float32), r"float \(1, 2, 96\)"),
        (np.zeros((1, 1, 96), np.float32), r"float \(1, 1, 96\)"),
        (np.zeros((1, 1, 1), np.float32), r"float \(1, 1, 1\)"),
        (np.zeros((0, 96), np.float32), r"float \(0, 96\)"),
        (np.zeros((2, 96), np.float16), r"float16 \(2, 96\)"),
        (np.zeros((), np.float16), r"float16 \(\)"),
    ],
)
def test_a_wrong_operand_is_named(op_type: str, b: Array, got: str) -> None:
    a = np.zeros((2, 96), np.float32)
    expected = r"input B must be float \(2, 96\), \(96\) or one value, got "
    with pytest.raises(Exception, match=f"the_node.*{expected}{got}"):
        binary(op_type, a, b)
    assert binary(op_type, a, a).shape == (2, 96)


def test_an_operand_of_one_value_is_named() -> None:
    with pytest.raises(Exception, match=r"input B .*float \(\).*float \(1\)"):
        binary("Add", np.zeros((), np.float32), np.zeros(1, np.float32))


def test_wrong_types_are_named() -> None:
    a = np.zeros((2, 96), np.int32)
    message = "the_node.*input A must be float, float16 or bfloat16, got int32"
    with pytest.raises(Exception, match=message):
        binary("Add", a, a)
    with pytest.raises(Exception, match=message):
        activate("silu", a)


@pytest.mark.parametrize("function", ["", "relu", "SiLU"])
def test_a_wrong_function_is_named(function: str) -> None:
    message = "must be silu, gelu, gelu_tanh, sigmoid or unit, got '"
    with pytest.raises(Exception, match=f"'the_node': attribute function {message}{function}'"):
        open_session(activation_model(function, np.zeros(3, np.float32)))


def test_a_wrong_format_is_named() -> None:
    a = np.zeros((2, 96), np.float32)
    for model in (
        binary_model("Add", a, a, change={"format": 2}),
        activation_model("silu", a, change={"format": 2}),
    ):
        with pytest.raises(Exception, match=r"format 2.*format 1"):
            run(open_session(model), {"A": a, "B": a})
