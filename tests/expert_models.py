"""Models of one com.microsoft.QMoE, and what it computes, in numpy, from the schema's text.

Arithmetic is float64. `rounded` is what the implementation does to activations before it multiplies
by weights: nothing, or rounding to bfloat16, or quantising to int8.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
import pytest
from code_bytes import pack_codes
from onnx import helper
from op_models import FLOAT32, ONNX_TYPES, ORT_VERSION, model_of, onnx_tensor

Array = npt.NDArray[Any]
FC1, FC2, FC3 = "fc1", "fc2", "fc3"
# Positions of QMoE's inputs: weights, scales, bias, zero points.
PLACES = {FC1: (2, 3, 4, 11), FC2: (5, 6, 7, 12), FC3: (8, 9, 10, 13)}
ROUTER_WEIGHTS = 14
GLOBAL_SCALES = {FC1: 15, FC2: 16}
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
needs_qmoe = pytest.mark.skipif(
    ORT_VERSION < (1, 31), reason="earlier ones compute QMoE differently from its text, or less"
)


@dataclass(frozen=True, kw_only=True)
class Experts:
    """A QMoE: sizes and attributes. `bits` is for all of FC1 to FC3, or for each by name."""

    experts: int = 4
    hidden: int = 64
    inter: int = 32
    top_k: int = 2
    bits: int | Mapping[str, int] = 4
    block_size: int = 32  # 0: a scale for each out-feature
    zero_points: bool = False
    biases: bool = False
    fp4: bool = False
    router_weights: bool = False
    activation: str = "swiglu"
    fusion: int = 1
    fc3: bool = False
    dtype: np.dtype[Any] = FLOAT32
    attributes: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0

    @property
    def fused(self) -> bool:
        """Whether FC1 holds gate and up."""
        return self.activation in ("swiglu", "geglu") and self.fusion != 0

    def bits_of(self, name: str) -> int:
        """Bits of FC1, FC2 or FC3."""
        return self.bits if isinstance(self.bits, int) else self.bits[name]

    def shapes(self) -> dict[str, tuple[int, int]]:
        """(out-features, in-features) of each projection."""
        shapes = {
            FC1: (self.inter * (2 if self.fused else 1), self.hidden),
            FC2: (self.hidden, self.inter),
        }
        return shapes | ({FC3: (self.inter, self.hidden)} if self.fc3 else {})


@dataclass(frozen=True)
class Built:
    """The constant inputs of a QMoE by position, and the weights and biases that they mean."""

    inputs: dict[int, tuple[str, Array]]
    weights: dict[str, Array]  # (experts, n, k) float64
    biases: dict[str, Array]  # (experts, n) float64


def build(case: Experts) -> Built:
    """Random weights. Their scales are bfloat16 values with few bits, so that Q4NX's scales and
    minima are exact."""
    rng = np.random.default_rng([case.seed, case.experts, case.hidden, case.inter])
    inputs: dict[int, tuple[str, Array]] = {}
    weights, biases = {}, {}
    for name, (n, k) in case.shapes().items():
        if case.biases:
            bias = rng.integers(-16, 16, (case.experts, n)) / 16
            inputs[PLACES[name][2]] = (
                f"{name}_bias", bias.astype(np.float32).astype(case.dtype)
            )  # fmt: skip
            biases[name] = bias
        if case.fp4:
            weights[name] = _fp4(rng, name, (case.experts, n, k), inputs)
            continue
        bits = case.bits_of(name)
        groups = k // case.block_size if case.block_size else 1
        codes = rng.integers(0, 2**bits, (case.experts, n, k), np.uint8)
        scales = rng.integers(1, 8, (case.experts, n, groups)) * 2.0 ** (-2 - bits)
        points = np.full(scales.shape, 2 ** (bits - 1), np.uint8)
        if case.zero_points:
            points = rng.integers(0, 2**bits, scales.shape, np.uint8)
        given = [pack_codes(c, bits) for c in codes]
        stored = scales if case.block_size else scales[..., 0]
        places = PLACES[name]
        inputs[places[0]] = (name, np.stack(given))
        inputs[places[1]] = (f"{name}_scales", stored.astype(np.float32).astype(case.dtype))
        if case.zero_points:
            packed = (
                np.stack([pack_codes(p, bits) for p in points])
                if case.block_size
                else pack_codes(points[..., 0], bits)
            )
            inputs[places[3]] = (f"{name}_zero_points", packed)
        spread = k // groups
        weights[name] = (codes - np.repeat(points, spread, 2).astype(float)) * np.repeat(
            scales, spread, 2
        )
    return Built(inputs, weights, biases)


def _fp4(
    rng: np.random.Generator,
    name: str,
    shape: tuple[int, int, int],
    inputs: dict[int, tuple[str, Array]],
) -> Array:
    """Weights in the layout of ONNX Runtime's CUDA kernel and the model builder: bytes (experts, k,
    n / 2), in the low half the even out-feature."""
    experts, n, k = shape
    codes = rng.integers(0, 16, shape, np.uint8)
    exponents = rng.integers(-6, -2, (experts, n, k // 32))
    factors = 2.0 ** rng.integers(-2, 3, experts)
    places = PLACES[name]
    inputs[places[0]] = (name, np.stack([pack_codes(each.T, 4) for each in codes]))
    scales = (exponents + 127).astype(np.uint8).view(ml_dtypes.float8_e8m0fnu)
    inputs[places[1]] = (f"{name}_scales", scales)
    inputs[GLOBAL_SCALES[name]] = (f"{name}_global_scale", factors.astype(np.float32))
    values = np.concatenate([E2M1, -E2M1])[codes]
    weights: Array = values * np.repeat(2.0**exponents, 32, 2) * factors[:, None, None]
    return weights


def experts_model(case: Experts, built: Built | None = None) -> onnx.ModelProto:
    """x and router, and perhaps router_weights -> QMoE -> y."""
    built = built or build(case)
    names = ["x", "router", *[""] * 15]
    for place, (name, _) in built.inputs.items():
        names[place] = name
    element = ONNX_TYPES[case.dtype]
    graph_inputs = [
        helper.make_tensor_value_info("x", element, ["batch", "sequence", case.hidden]),
        helper.make_tensor_value_info("router", element, ["tokens", case.experts]),
    ]
    if case.router_weights:
        names[ROUTER_WEIGHTS] = "router_weights"
        graph_inputs.append(
            helper.make_tensor_value_info("router_weights", element, ["tokens", case.experts])
        )
    while not names[-1]:
        names.pop()
    attributes: dict[str, Any] = {
        "k": case.top_k,
        "activation_type": case.activation,
        "swiglu_fusion": case.fusion,
    }
    if isinstance(case.bits, int):
        attributes["expert_weight_bits"] = case.bits
    else:
        attributes |= {f"{fc}_expert_weight_bits": bits for fc, bits in case.bits.items()}
    if case.block_size:
        attributes["block_size"] = case.block_size
    if case.fp4:
        attributes["quant_type"] = "fp4"
    node = helper.make_node(
        "QMoE", names, ["y"], name="experts", domain="com.microsoft",
        **(attributes | dict(case.attributes)),
    )  # fmt: skip
    y = helper.make_tensor_value_info("y", element, ["batch", "sequence", case.hidden])
    initializers = [onnx_tensor(name, array) for name, array in built.inputs.values()]
    return model_of(helper.make_graph([node], "main_graph", graph_inputs, [y], initializers))


def experts_folder(case: Experts, folder: Path) -> Path:
    """A folder with the model of `case`."""
    folder.mkdir()
    onnx.save(experts_model(case), folder / "model.onnx")
    return folder


def feeds_of(case: Experts, rows: int, seed: int = 1) -> dict[str, Array]:
    """Random inputs. Logits of a row differ by enough to be chosen alike in any precision."""
    rng = np.random.default_rng([seed, rows])
    ranks = np.stack([rng.permutation(case.experts) for _ in range(rows)])
    feeds = {
        "x": rng.normal(size=(1, rows, case.hidden)),
        "router": ranks * 0.25 - 1,
    }
    if case.router_weights:
        feeds["router_weights"] = rng.uniform(0.1, 1, (rows, case.experts))
    return {name: x.astype(np.float32).astype(case.dtype) for name, x in feeds.items()}


def exact(x: Array) -> Array:
    """Nothing is rounded."""
    return x


def to_bf16(x: Array) -> Array:
    """Numerics bf16."""
    rounded: Array = x.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float64)
    return rounded


def to_int8(x: Array) -> Array:
    """Numerics int8: a scale for each 32 in-features."""
    padded = np.pad(x.astype(np.float32), (0, -len(x) % 32)).reshape(-1, 32)
    scales = np.abs(padded).max(1, keepdims=True) / np.float32(127)
    scales[scales == 0] = 1
    quantised: Array = (np.rint(padded / scales) * scales).reshape(-1)[: len(x)].astype(float)
    return quantised


def routes(case: Experts, feeds: Mapping[str, Array]) -> list[list[tuple[int, float]]]:
    """The experts of each row and their weights."""
    chosen = []
    for row, logits in enumerate(feeds["router"].astype(np.float64)):
        # Of equal logits, the later expert comes first.
        best = sorted(range(case.experts), key=lambda e: (logits[e], e), reverse=True)
        best = best[: case.top_k]
        if case.router_weights:
            weights = feeds["router_weights"][row].astype(np.float64)[best]
            if case.attributes.get("normalize_routing_weights", 0):
                weights = weights / weights.sum()
        else:
            weights = np.exp(logits[best] - logits[best].max())
            weights = weights / weights.sum()
        chosen.append(list(zip(best, weights.tolist(), strict=True)))
    return chosen


def _sigmoid(x: Array) -> Array:
    result: Array = 1 / (1 + np.exp(-x))
    return result


def _gelu_tanh(x: Array) -> Array:
    result: Array = 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return result


FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "silu": lambda x: x * _sigmoid(x),
    "gelu": _gelu_tanh,
    "geglu": _gelu_tanh,
    "relu": lambda x: np.maximum(x, 0),
    "identity": lambda x: x,
}


def _swiglu(case: Experts, gate: Array, up: Array) -> Array:
    alpha = case.attributes.get("activation_alpha", 1.0)
    beta = case.attributes.get("activation_beta", 0.0)
    limit = case.attributes.get("swiglu_limit", math.inf)
    after = case.attributes.get("swiglu_limit_after_activation", 0)
    up = np.clip(up, -limit, limit) + beta
    if after:
        result: Array = np.minimum(gate * _sigmoid(alpha * gate), limit) * up
    else:
        gate = np.minimum(gate, limit)
        result = gate * _sigmoid(alpha * gate) * up
    return result


def _hidden(case: Experts, built: Built, expert: int, x: Array) -> Array:
    def project(name: str) -> Array:
        result: Array = built.weights[name][expert] @ x
        return result + built.biases[name][expert] if name in built.biases else result

    first = project(FC1)
    if case.fused:
        interleaved = case.fusion == 1
        gate = first[0::2] if interleaved else first[: case.inter]
        up = first[1::2] if interleaved else first[case.inter :]
    elif case.fc3:
        gate, up = first, project(FC3)
    else:
        return FUNCTIONS[case.activation](first)
    if case.activation == "swiglu":
        return _swiglu(case, gate, up)
    return FUNCTIONS[case.activation](gate) * up


def reference(
    case: Experts,
    feeds: Mapping[str, Array],
    rounded: Callable[[Array], Array] = exact,
    built: Built | None = None,
) -> Array:
    """Y (1, rows, hidden) float64."""
    built = built or build(case)
    x = feeds["x"].astype(np.float64)[0]
    y = np.zeros_like(x)
    for row, its in enumerate(routes(case, feeds)):
        for expert, weight in its:
            h = rounded(_hidden(case, built, expert, rounded(x[row])))
            out = built.weights[FC2][expert] @ h
            if FC2 in built.biases:
                out = out + built.biases[FC2][expert]
            y[row] += weight * out
    return y[None]
