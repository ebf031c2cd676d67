"""What an op contains besides its projection: the norm and the residual before it, and the gate.

Compared with numpy in float64. Without a norm, weights and activations are exact in bfloat16; with
one, the reference rounds what the op rounds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from op_models import BFLOAT16, FLOAT16, FLOAT32, one_op_model, open_session, run
from projection_calls import (
    Array,
    Weights,
    activations,
    assert_within,
    float32_sum_error,
    magnitudes,
    make_weights,
)

from ort_aie_ep import _native
from ort_aie_ep.formats import bf16_blocks

# For weights in Q4NX and in bfloat16.
PROJECTIONS, GATED = ["Q4NXMatMul", "GEMM"], ["Q4NXGatedMLP", "GatedGEMM"]
EPSILON = 1e-5
U = 2.0**-24


def rms_norm(x: Array, weight: Array, epsilon: float = EPSILON) -> Array:
    """The norm along the last dimension, in float64."""
    x = x.astype(np.float64)
    normed: Array = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + epsilon)
    return normed * weight.astype(np.float64)


def activate(x: Array, activation: str) -> Array:
    t = x if activation == "silu" else np.sqrt(8 / np.pi) * (x + 0.044715 * x**3)
    y: Array = x / (1 + np.exp(-t))
    return y


def fused(
    op_type: str,
    weights: dict[str, Weights],
    a: Array,
    *,
    bias: Array | None = None,
    norm_weight: Array | None = None,
    skip: Array | None = None,
    with_sum: bool = True,
    **attributes: Any,
) -> dict[str, Array]:
    """Runs one op; inputs in its order, `bias` for projections only."""
    first = next(iter(weights.values()))
    inputs: dict[str, Array | None] = {"A": a}
    for key, w in weights.items():
        quantised = op_type.startswith("Q4NX")
        inputs[key] = w.q4nx if quantised else bf16_blocks.pack(w.dequantised)
    if op_type in PROJECTIONS:
        inputs["bias"] = bias
    inputs |= {"norm_weight": norm_weight, "skip": skip}
    given = {"K": first.k, "N": first.n, "format": _native.FORMAT, "norm_epsilon": EPSILON}
    outputs = {"Y": a.dtype} | ({"sum": a.dtype} if skip is not None and with_sum else {})
    constants = (*weights, "bias", "norm_weight")
    model = one_op_model(op_type, inputs, outputs, given | attributes, constants=constants)
    return run(open_session(model), {"A": a, "skip": skip})


def bfloat16_bound(w: Weights, x: Array) -> Array:
    """The error of a product from rounding x to bfloat16, beside the sum's own error.

    2.01: the reference's x and the op's differ by float32 roundings before they are rounded.
    """
    bound: Array = 2.01 * 2**-9 * magnitudes(w, x) + 2 * float32_sum_error(w, x)
    return bound


@pytest.mark.parametrize("op", PROJECTIONS)
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16, BFLOAT16])
@pytest.mark.parametrize("rows", [1, 2, 40])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize(("n", "k"), [(64, 256), (40, 100)])
def test_a_norm_before_a_projection(
    op: str, dtype: np.dtype[Any], rows: int, with_bias: bool, n: int, k: int
) -> None:
    w = make_weights(n, k, exact=True)
    a, norm_weight = 3 * activations(1, rows, k, dtype=dtype), activations(k, dtype=dtype)
    a = a.astype(dtype)
    bias = activations(n, dtype=dtype) if with_bias else None
    y = fused(op, {"W": w}, a, bias=bias, norm_weight=norm_weight)["Y"]
    x = rms_norm(a, norm_weight)
    expected = x @ w.dequantised.T + (0 if bias is None else bias.astype(np.float64))
    bound = bfloat16_bound(w, x) + (0 if bias is None else 4 * U * np.abs(bias.astype(np.float64)))
    assert_within(y, expected, bound)


@pytest.mark.parametrize("op", PROJECTIONS)
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16, BFLOAT16])
@pytest.mark.parametrize("shape", [(1, 1, 96), (2, 5, 96), (7, 96)])
def test_the_residual_is_added_before_the_norm_and_handed_on(
    op: str, dtype: np.dtype[Any], shape: tuple[int, ...]
) -> None:
    w = make_weights(64, 96, exact=True)
    a, skip = activations(*shape, dtype=dtype), activations(*shape[::-1], dtype=dtype).T
    skip = np.ascontiguousarray(skip.reshape(shape))
    norm_weight = activations(96, dtype=dtype)
    got = fused(op, {"W": w}, a, norm_weight=norm_weight, skip=skip)
    total = a.astype(np.float64) + skip.astype(np.float64)
    # One addition in float32 and one rounding to the type.
    assert_within(got["sum"], total, U * np.abs(total))
    x = rms_norm(total, norm_weight)
    assert_within(got["Y"], x @ w.dequantised.T, bfloat16_bound(w, x))


@pytest.mark.parametrize("op", PROJECTIONS)
@pytest.mark.parametrize("rows", [1, 3, 40])
def test_a_sum_that_nobody_wants_is_not_written(op: str, rows: int) -> None:
    a, skip = activations(rows, 96), activations(96, rows).T.copy()
    given: dict[str, Any] = {"weights": {"W": make_weights(64, 96)}, "a": a, "skip": skip}
    given["norm_weight"] = activations(96)
    alone = fused(op, **given, with_sum=False)
    assert alone.keys() == {"Y"}
    np.testing.assert_array_equal(alone["Y"], fused(op, **given)["Y"])


@pytest.mark.parametrize("op", GATED)
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16, BFLOAT16])
@pytest.mark.parametrize("rows", [1, 3, 40])
@pytest.mark.parametrize(("n", "k"), [(64, 256), (40, 100)])
def test_a_gated_mlp(
    op: str, activation: str, dtype: np.dtype[Any], rows: int, n: int, k: int
) -> None:
    gate_weights, up_weights = (make_weights(n, k, exact=True, seed=seed) for seed in (1, 2))
    a = activations(rows, k, dtype=dtype, exact=True)
    weights = {"W_gate": gate_weights, "W_up": up_weights}
    y = fused(op, weights, a, activation=activation)["Y"]
    gate, up = (a.astype(np.float64) @ w.dequantised.T for w in weights.values())
    expected = activate(gate, activation) * up
    # Both activations have slopes of at most 1.13 and are no larger than their argument; the
    # exponential and the few operations after it add a few roundings. The cubic polynomial's
    # rounding grows with |t| <= 90 where sigmoid(t) is not flat.
    errors = [float32_sum_error(w, a) for w in weights.values()]
    bound = 1.13 * errors[0] * np.abs(up) + np.abs(activate(gate, activation)) * errors[1]
    assert_within(y, expected, bound + 128 * U * np.abs(gate * up))


@pytest.mark.parametrize(("parts", "op"), [("Q4NXMatMul", "Q4NXGatedMLP"), ("GEMM", "GatedGEMM")])
@pytest.mark.parametrize("rows", [1, 9])
@pytest.mark.parametrize("level", [0, 4])
def test_a_gated_mlp_behind_a_norm(parts: str, op: str, rows: int, level: int) -> None:
    """The same numbers as its parts give separately."""
    weights = {f"W_{name}": make_weights(96, 320, seed=i) for i, name in enumerate(["gate", "up"])}
    a, skip, norm_weight = activations(rows, 320), activations(rows + 1, 320)[1:], activations(320)
    got = fused(op, weights, a, norm_weight=norm_weight, skip=skip,
                activation="silu", accuracy_level=level)  # fmt: skip
    gate, up = (
        fused(parts, {"W": w}, a, norm_weight=norm_weight, skip=skip, accuracy_level=level)
        for w in weights.values()
    )
    np.testing.assert_array_equal(got["sum"], gate["sum"])
    expected = activate(gate["Y"].astype(np.float64), "silu") * up["Y"]
    assert_within(got["Y"], expected, 128 * U * np.abs(gate["Y"] * up["Y"].astype(np.float64)))


@pytest.mark.parametrize("rows", [1, 4])
def test_minima_of_symmetric_weights_are_not_needed(rows: int) -> None:
    weights = {f"W_{name}": make_weights(64, 256, seed=i) for i, name in enumerate(["gate", "up"])}
    a = activations(rows, 256)
    plain, symmetric = (
        fused("Q4NXGatedMLP", weights, a, activation="silu", accuracy_level=4, symmetric=s)["Y"]
        for s in (0, 1)
    )
    scale = np.abs(plain).max()
    np.testing.assert_allclose(symmetric, plain, rtol=0, atol=320 * U * scale)


@pytest.mark.parametrize("op", PROJECTIONS)
@pytest.mark.parametrize("shape", [(0, 96), (2, 0, 96)])
def test_no_rows_give_empty_results(op: str, shape: tuple[int, ...]) -> None:
    w, a = make_weights(64, 96), np.zeros(shape, np.float32)
    got = fused(op, {"W": w}, a, norm_weight=activations(96), skip=a)
    assert got["Y"].shape == (*shape[:-1], 64)
    assert got["sum"].shape == shape


@pytest.mark.parametrize("op", GATED)
@pytest.mark.parametrize("rows", [1, 5])
def test_a_nan_stays_in_its_row(op: str, rows: int) -> None:
    weights = {f"W_{name}": make_weights(40, 320, seed=i) for i, name in enumerate(["gate", "up"])}
    a, norm_weight = activations(rows, 320), activations(320)
    clean = fused(op, weights, a, norm_weight=norm_weight, activation="silu")["Y"]
    a[-1, 7] = np.nan
    y = fused(op, weights, a, norm_weight=norm_weight, activation="silu")["Y"]
    assert np.isnan(y[-1]).all()
    np.testing.assert_array_equal(y[:-1], clean[:-1])


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"norm_weight": np.ones(95, np.float32)},
         r"input norm_weight must be float \(96\), got float \(95\)"),
        ({"norm_weight": np.ones(96, np.float16)},
         r"input norm_weight must be float \(96\), got float16 \(96\)"),
        ({"norm_weight": np.ones(96, np.float32), "skip": np.ones((1, 96), np.float32)},
         r"input skip must be float \(2, 96\), got float \(1, 96\)"),
        ({"skip": np.ones((2, 96), np.float32)}, "input skip needs input norm_weight"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("op", PROJECTIONS)
def test_wrong_inputs_are_named(op: str, given: dict[str, Array], message: str) -> None:
    w = make_weights(64, 96)
    with pytest.raises(Exception, match=f"the_node.*{message}"):
        fused(op, {"W": w}, activations(2, 96), **given)


@pytest.mark.parametrize(
    ("op", "blocks"),
    [("Q4NXGatedMLP", r"uint8 \(2, 1, 5120\)"), ("GatedGEMM", r"bfloat16 \(2, 1, 8192\)")],
)
def test_wrong_weights_and_activations_of_a_gated_mlp_are_named(op: str, blocks: str) -> None:
    w, narrow, a = make_weights(64, 96), make_weights(32, 96), activations(2, 96)
    with pytest.raises(Exception, match=rf"the_node': input W_up must be {blocks}"):
        fused(op, {"W_gate": w, "W_up": narrow}, a, activation="silu")
    both = {"W_gate": w, "W_up": w}
    with pytest.raises(Exception, match=r"activation .*silu.*gelu_tanh.*'relu'"):
        fused(op, both, a, activation="relu")
    with pytest.raises(Exception, match=r"activation .*silu.*gelu_tanh.*''"):
        fused(op, both, a)
