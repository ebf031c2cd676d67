"""Weights as MatMulNBits and as Q4NX, and calls of aie.Q4NXMatMul and of MatMulNBits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import numpy_q4nx as q4nx
from code_bytes import pack_codes
from op_models import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    ONNX_TYPES,
    ROUNDOFF,
    one_op_model,
    open_session,
    run,
)

from ort_aie_ep import _native

Array = npt.NDArray[Any]

TYPE_NAMES = {FLOAT32: "FLOAT", FLOAT16: "FLOAT16", BFLOAT16: "BFLOAT16"}


@dataclass(frozen=True)
class Weights:
    """Inputs of a MatMulNBits with 4, 2 or 8 bits, and the same weights as Q4NX, Q2NX or Q8NX.

    Attributes:
        n: out-features.
        k: in-features.
        block_size: in-features that share a scale.
        bits: bits of a code.
        b: (N, ceil(K / block_size), block_size * bits / 8) uint8.
        scales: (N, ceil(K / block_size)).
        zero_points: packed or of the scales' type, or None.
        dequantised: (N, K) float64, the weights that MatMulNBits stands for.
        q4nx: (ceil(N / 32), ceil(K / 256), 5120, or 3072 for 2 bits, 9472 for 8) uint8.
    """

    n: int
    k: int
    block_size: int
    bits: int
    b: Array
    scales: Array
    zero_points: Array | None
    dequantised: Array
    q4nx: Array


def make_weights(
    n: int,
    k: int,
    *,
    block_size: int = 32,
    dtype: np.dtype[Any] = FLOAT32,
    zero_points: bool | str = False,
    exact: bool = False,
    bits: int = 4,
    seed: int = 0,
) -> Weights:
    """Random weights. `exact` ones have scales that are powers of two, so that Q4NX's bfloat16
    scales and mins, and each weight, are exact. Zero points are packed, or with "float" multiples
    of 1/4 in the scales' type."""
    rng = np.random.default_rng([seed, n, k, block_size])
    blocks = -(-k // block_size)
    codes = rng.integers(0, 2**bits, (n, blocks * block_size), dtype=np.uint8)
    b = pack_codes(codes, bits).reshape(n, blocks, block_size * bits // 8)
    scales: Array = rng.uniform(0.01, 0.1, (n, blocks))
    if exact:
        scales = 2.0 ** rng.integers(-7, -3, (n, blocks))
    scales = scales.astype(np.float32).astype(dtype)
    points: Array = np.full((n, blocks), 2 ** (bits - 1), np.uint8)
    packed: Array | None = None
    if zero_points == "float":
        points = packed = (rng.integers(0, 4 * 2**bits, (n, blocks)) / 4).astype(dtype)
    elif zero_points:
        points = rng.integers(0, 2**bits, (n, blocks), dtype=np.uint8)
        packed = pack_codes(points, bits)
    spread = [np.repeat(x.astype(np.float64), block_size, axis=1) for x in (points, scales)]
    dequantised = ((codes - spread[0]) * spread[1])[:, :k]
    blob = _native.pack_matmulnbits(
        b.reshape(-1),
        scales.reshape(-1).view(np.uint8),
        None if packed is None else packed.reshape(-1).view(np.uint8),
        n,
        k,
        block_size,
        TYPE_NAMES[dtype],
        bits,
        TYPE_NAMES[dtype] if zero_points == "float" else "UINT8",
    )
    return Weights(n, k, block_size, bits, b, scales, packed, dequantised, blob)


def q4nx_model(
    w: Weights,
    a: Array,
    *,
    bias: Array | None = None,
    accuracy_level: int = 0,
    change: dict[str, Any] | None = None,
    constants: tuple[str, ...] = ("W", "bias"),
    **options: Any,
) -> bytes:
    given = {"K": w.k, "N": w.n, "accuracy_level": accuracy_level, "format": _native.FORMAT}
    given |= {"bits": w.bits} if w.bits != 4 else {}
    inputs = {"A": a, "W": w.q4nx, "bias": bias}
    return one_op_model(
        "Q4NXMatMul", inputs, {"Y": a.dtype}, given | (change or {}), constants=constants, **options
    )


def project(w: Weights, a: Array, *, config: dict[str, str] | None = None, **options: Any) -> Array:
    """Y of the custom op."""
    session = open_session(q4nx_model(w, a, **options), config=config)
    return run(session, {"A": a, "W": w.q4nx})["Y"]


def matmul_nbits(
    w: Weights, a: Array, *, bias: Array | None = None, accuracy_level: int = 0
) -> Array:
    """Y of ONNX Runtime's operator."""
    inputs = {
        "A": a, "B": w.b, "scales": w.scales, "zero_points": w.zero_points, "g_idx": None,
        "bias": bias,
    }  # fmt: skip
    given = {"K": w.k, "N": w.n, "bits": w.bits, "block_size": w.block_size}
    if accuracy_level:
        given["accuracy_level"] = accuracy_level
    constants = ("B", "scales", "zero_points", "bias")
    model = one_op_model(
        "MatMulNBits", inputs, {"Y": a.dtype}, given, domain="com.microsoft", constants=constants
    )
    return run(open_session(model), {"A": a})["Y"]


def gated_model(gate: Weights, up: Weights, a: Array, *, level: int = 0) -> bytes:
    given = {"K": gate.k, "N": gate.n, "bits": gate.bits, "accuracy_level": level}
    given |= {"activation": "silu", "format": _native.FORMAT}
    inputs = {"A": a, "W_gate": gate.q4nx, "W_up": up.q4nx}
    return one_op_model("Q4NXGatedMLP", inputs, {"Y": a.dtype}, given, constants=("W_gate", "W_up"))


def gather(w: Weights, indices: Array, dtype: np.dtype[Any]) -> Array:
    """Y of Q4NXGather."""
    given = {"K": w.k, "N": w.n, "bits": w.bits, "dtype": ONNX_TYPES[dtype]}
    given |= {"format": _native.FORMAT}
    inputs = {"W": w.q4nx, "indices": indices}
    model = one_op_model("Q4NXGather", inputs, {"Y": dtype}, given, constants=["W"])
    return run(open_session(model), {"indices": indices})["Y"]


def gather_block_quantized(w: Weights, indices: Array) -> Array:
    """Y of ONNX Runtime's operator."""
    inputs = {"data": w.b.reshape(w.n, -1), "indices": indices, "scales": w.scales,
              "zero_points": w.zero_points}  # fmt: skip
    given = {"bits": w.bits, "block_size": w.block_size, "gather_axis": 0, "quantize_axis": 1}
    model = one_op_model("GatherBlockQuantized", inputs, {"Y": FLOAT32}, given,
                         domain="com.microsoft",
                         constants=("data", "scales", "zero_points"))  # fmt: skip
    return run(open_session(model), {"indices": indices})["Y"]


def activations(*shape: int, dtype: np.dtype[Any] = FLOAT32, exact: bool = False) -> Array:
    """Random activations; `exact` ones are bfloat16 values."""
    a = np.random.default_rng(shape).standard_normal(shape).astype(np.float32)
    return (a.astype(ml_dtypes.bfloat16) if exact else a).astype(np.float32).astype(dtype)


def magnitudes(w: Weights, a: Array) -> Array:
    """Sums of |a| (|scale| code + |min|): rounding errors of a float32 sum are relative to
    these."""
    codes, scales, mins = q4nx.unpack(w.q4nx, w.n, w.k)
    scale, low = (
        np.repeat(np.abs(x.astype(np.float64)), 32, axis=1)[:, : w.k] for x in (scales, mins)
    )
    sums: Array = np.abs(a.astype(np.float64)) @ (scale * codes + low).T
    return sums


def float32_sum_error(w: Weights, a: Array) -> Array:
    """The worst error of K additions and a few products in float32, in any order."""
    return (w.k + 8) * 2**-24 * magnitudes(w, a)


def assert_within(actual: Array, expected: Array, bound: Array | float) -> None:
    """|actual - expected| <= bound + one rounding of each to their type."""
    roundoff = 2 * ROUNDOFF[actual.dtype]
    y, x = actual.astype(np.float64), expected.astype(np.float64)
    assert y.shape == x.shape
    error, allowed = np.abs(y - x), bound + roundoff * np.abs(x)
    # Subnormal float16 results have a fixed step.
    allowed = allowed + (2.0**-24 if actual.dtype == FLOAT16 else 0)
    assert (error <= allowed).all(), (error - allowed).max()
