"""aie.GatedRMSNorm, compared with ONNX Runtime's GatedRMSNorm and numpy in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from op_models import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    Array,
    one_op_model,
    open_session,
    run,
)
from projection_calls import activations, assert_within
from vector_calls import EPSILON, U

from ort_aie_ep import _native


def gated(a: Array, weight: Array, gate: Array, **change: Any) -> Array:
    given = {"K": weight.size, "epsilon": EPSILON, "activation": "silu", "format": _native.FORMAT}
    feeds = {"A": a, "weight": weight, "gate": gate}
    model = one_op_model(
        "GatedRMSNorm", feeds, {"Y": a.dtype}, given | change, constants=("weight",)
    )
    return run(open_session(model), feeds)["Y"]


def inputs(*shape: int, k: int, dtype: np.dtype[Any] = FLOAT32) -> tuple[Array, Array, Array]:
    a = (3 * activations(*shape, dtype=dtype)).astype(dtype)
    gate = (5 * np.flip(activations(*shape, dtype=dtype), -1)).astype(dtype)
    return a, activations(k, dtype=dtype), np.ascontiguousarray(gate)


def expected(a: Array, weight: Array, gate: Array, activation: str) -> Array:
    heads = a.astype(np.float64).reshape(-1, weight.size)
    norm = heads / np.sqrt((heads**2).mean(-1, keepdims=True) + EPSILON) * weight.astype(float)
    z = gate.astype(np.float64)
    share = 1 / (1 + np.exp(-z))
    y: Array = norm.reshape(a.shape) * (share if activation == "sigmoid" else z * share)
    return y


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16, BFLOAT16])
@pytest.mark.parametrize("activation", ["silu", "sigmoid"])
@pytest.mark.parametrize(
    ("shape", "k"), [((1, 1, 2048), 128), ((2, 5, 96), 32), ((7, 33), 33), ((64, 192), 64)]
)
def test_each_head_has_its_norm(
    dtype: np.dtype[Any], activation: str, shape: tuple[int, ...], k: int
) -> None:
    a, weight, gate = inputs(*shape, k=k, dtype=dtype)
    y = expected(a, weight, gate, activation)
    # The norm's error (test_rms_norm.py), and that of the gate, as of aie.Activation: 16 roundings.
    assert_within(
        gated(a, weight, gate, activation=activation), y, ((k + 1) / 2 + 8 + 16) * U * np.abs(y)
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"K": 0}, "attribute K must be positive, got 0"),
        ({"activation": "gelu"}, "attribute activation must be silu or sigmoid, got 'gelu'"),
        ({"epsilon": -1.0}, "attribute epsilon must be a finite number of 0 or more, got -1"),
    ],
)
def test_wrong_attributes_are_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(Exception, match=message):
        gated(*inputs(2, 64, k=32), **change)


def test_wrong_shapes_are_named() -> None:
    a, weight, gate = inputs(2, 64, k=32)
    with pytest.raises(Exception, match=r"input gate .*\(2, 64\).*\(2, 32\)"):
        gated(a, weight, np.ascontiguousarray(gate[:, :32]))
    a, _, gate = inputs(2, 48, k=32)
    with pytest.raises(Exception, match=r"input A .*32"):
        gated(a, weight, gate)
