"""Calls of the ops between projections."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from op_models import ONNX_TYPES, Array, one_op_model, open_session, run

from ort_aie_ep import _native

U = 2.0**-24  # unit roundoff of float32
EPSILON = 1e-5
FUNCTIONS = ["silu", "gelu", "gelu_tanh", "sigmoid"]  # of aie.Activation


def norm_model(
    a: Array,
    weight: Array,
    skip: Array | None = None,
    *,
    with_sum: bool = True,
    change: dict[str, Any] | None = None,
    constants: tuple[str, ...] = ("weight",),
    **options: Any,
) -> bytes:
    given = {"K": weight.size, "epsilon": EPSILON, "format": _native.FORMAT} | (change or {})
    inputs = {"A": a, "weight": weight, "skip": skip}
    outputs = {"Y": a.dtype} | ({"sum": a.dtype} if skip is not None and with_sum else {})
    return one_op_model("RMSNorm", inputs, outputs, given, constants=constants, **options)


def norm(a: Array, weight: Array, skip: Array | None = None, **options: Any) -> dict[str, Array]:
    feeds = {"A": a, "weight": weight, "skip": skip}
    return run(open_session(norm_model(a, weight, skip, **options)), feeds)


def binary_model(
    op_type: str, a: Array, b: Array, *, change: dict[str, Any] | None = None, **options: Any
) -> bytes:
    given = {"format": _native.FORMAT} | (change or {})
    return one_op_model(op_type, {"A": a, "B": b}, {"Y": a.dtype}, given, **options)


def binary(op_type: str, a: Array, b: Array, **options: Any) -> Array:
    """Y of aie.Add or aie.Mul."""
    session = open_session(binary_model(op_type, a, b, **options))
    return run(session, {"A": a, "B": b})["Y"]


def activation_model(
    function: str, a: Array, *, change: dict[str, Any] | None = None, **options: Any
) -> bytes:
    given = {"function": function, "format": _native.FORMAT} | (change or {})
    return one_op_model("Activation", {"A": a}, {"Y": a.dtype}, given, **options)


def activate(function: str, a: Array, **options: Any) -> Array:
    return run(open_session(activation_model(function, a, **options)), {"A": a})["Y"]


def cast_model(
    a: Array, dtype: np.dtype[Any], *, change: dict[str, Any] | None = None, **options: Any
) -> bytes:
    given = {"dtype": ONNX_TYPES[dtype], "format": _native.FORMAT} | (change or {})
    return one_op_model("Cast", {"A": a}, {"Y": dtype}, given, **options)


def cast(a: Array, dtype: np.dtype[Any], **options: Any) -> Array:
    return run(open_session(cast_model(a, dtype, **options)), {"A": a})["Y"]


def table_model(
    table: Array, indices: Array, *, constants: tuple[str, ...] = ("W",), **options: Any
) -> bytes:
    inputs, given = {"W": table, "indices": indices}, {"format": _native.FORMAT}
    return one_op_model("Gather", inputs, {"Y": table.dtype}, given, constants=constants, **options)


def rows_of(table: Array, indices: Array, **options: Any) -> Array:
    """Y of aie.Gather."""
    session = open_session(table_model(table, indices, **options))
    return run(session, {"W": table, "indices": indices})["Y"]


def standard(
    op_type: str,
    inputs: dict[str, Array | None],
    outputs: dict[str, np.dtype[Any]],
    domain: str = "",
    **attributes: Any,
) -> dict[str, Array]:
    """Outputs of ONNX Runtime's own operator."""
    model = one_op_model(op_type, inputs, outputs, attributes, domain=domain)
    return run(open_session(model), inputs)


def _tail(x: float) -> float:
    """The standard normal distribution up to -|x|."""
    return math.erfc(abs(x) / math.sqrt(2)) / 2


def reference(function: str, a: Array) -> tuple[Array, Array]:
    """The function in float64, and the error that float32 may have.

    exp is off by at most 8 roundings, those of its reduced argument and of a polynomial of degree 6
    whose first terms dominate, and the polynomial's remainder. A rounding of its argument t counts
    |t| times. If the result is x / (1 + e) or 1 - e, errors of e count in proportion to e. And exp
    is 0 or at least e^-87.33, and at most e^88.
    """
    x = a.astype(np.float64)
    least = 1.01 * np.exp(-87.33) * (1 if function == "sigmoid" else np.abs(x))
    with np.errstate(over="ignore"):
        if function == "gelu":
            below = np.vectorize(_tail, otypes=[np.float64])(x)
            y = x * np.where(x < 0, below, 1 - below)
            # A polynomial of degree 9 by Horner, 18 roundings of terms whose magnitudes add up to
            # 2.2 times their sum; its argument, 3 roundings, with a less than proportional effect;
            # its fit, 3.2e-8; the square, and exp.
            error = np.abs(x) * below * (18 * 2.2 + 3 + 1 + x**2 + 8)
            return y, U * (error + 3 * np.abs(y)) + least
        t = x if function != "gelu_tanh" else np.sqrt(8 / np.pi) * (x + 0.044715 * x**3)
        e = np.exp(-t)
        sigmoid = 1 / (1 + e)
        y = sigmoid if function == "sigmoid" else x * sigmoid
        # t of gelu_tanh has 5 roundings, those of its two constants among them.
        of_exp = 8 + (5 * np.abs(t) if function == "gelu_tanh" else 0)
        return y, U * np.abs(y) * (3 + of_exp * (1 - sigmoid)) + least
