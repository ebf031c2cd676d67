"""Normalisation, rotary embedding and activations, compared with numpy in float64."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from attention_reference import BF16, U_BF16, U_LIMBS, Doubles, aligned, bf16, bits, in_buffer

from ort_aie_ep.aie_kernels.vector_ops import kernels as vector_ops
from ort_aie_ep.npu.kernels import Kernels
from ort_aie_ep.npu.terms.kernel import Kernel

PIECE = 128
Argument = Callable[[Doubles], Doubles]
# The relative errors of sigmoid and tanh (float_math.h), and two products of limbs.
ACTIVATION = 2.0**-13 + 2 * U_LIMBS
# Tiny, near zero, where the core's tanh is weak, saturation, huge.
REGIONS = bf16(
    np.concatenate(
        [np.geomspace(1e-30, 1e-3, 20), np.linspace(0.0, 4.0, 60), np.geomspace(4.0, 1e30, 48)]
    )
)
BOTH_SIGNS = np.concatenate([REGIONS, -REGIONS])


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    return Kernels("aie2p")


def normal(seed: int, *shape: int, spread: float = 1.0) -> Doubles:
    return bf16(np.random.default_rng(seed).standard_normal(shape) * spread)


def normalised(x: Doubles, weight: Doubles, eps: float) -> Doubles:
    """RMS normalisation over the last axis."""
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + np.float32(eps)) * weight


class Row:
    """The core that normalises rows."""

    def __init__(self, kernels: Kernels) -> None:
        self.kernels = kernels
        self.row = aligned(16384, BF16, np.nan)
        self.state = aligned(16, np.float32, np.nan)
        kernels.call(vector_ops.RMS_BEGIN, self.state)

    def load(self, x: Doubles) -> None:
        for index, piece in enumerate(x.reshape(-1, PIECE)):
            source = in_buffer(piece, PIECE, BF16)
            self.kernels.call(vector_ops.RMS_LOAD, source, self.row, self.state, index)

    def add(self, x: Doubles, residual: Doubles) -> None:
        pieces = zip(x.reshape(-1, PIECE), residual.reshape(-1, PIECE), strict=True)
        for index, (piece, other) in enumerate(pieces):
            sources = in_buffer(piece, PIECE, BF16), in_buffer(other, PIECE, BF16)
            self.kernels.call(vector_ops.RMS_ADD, *sources, self.row, self.state, index)

    def sum(self, n: int) -> Doubles:
        out = []
        for index in range(n // PIECE):
            piece = aligned(PIECE, BF16)
            self.kernels.call(vector_ops.RMS_SUM, self.row, piece, index)
            out.append(piece.astype(np.float64))
        return np.concatenate(out)

    def finish(self, weight: Doubles, n: int, eps: float) -> Doubles:
        out = []
        self.kernels.call(vector_ops.RMS_SCALE, self.state, n, bits(eps))
        for index, piece in enumerate(weight.reshape(-1, PIECE)):
            y = aligned(PIECE, BF16)
            self.kernels.call(
                vector_ops.RMS_FINISH, self.row, in_buffer(piece, PIECE, BF16), y, self.state, index
            )
            out.append(y.astype(np.float64))
        return np.concatenate(out)


def within_one_rounding(got: Doubles, exact: Doubles, relative: float) -> bool:
    """The bound for one rounding to bfloat16 of a value off by `relative`; below 2^-126, any such
    small value."""
    return bool((np.abs(got - exact) <= (U_BF16 + relative) * np.abs(exact) + 2.0**-126).all())


# The sum of squares in fp32, the root's Newton step, and two products of limbs.
NORM = 2.0**-20 + 2 * U_LIMBS


@pytest.mark.parametrize("n", [128, 896, 2048, 16384])
@pytest.mark.parametrize("spread", [1.0, 300.0, 1e-3])
def test_rms_norm_of_a_row(kernels: Kernels, n: int, spread: float) -> None:
    x, weight = normal(1, n, spread=spread), normal(2, n)
    row = Row(kernels)
    row.load(x)
    assert within_one_rounding(row.finish(weight, n, 1e-6), normalised(x, weight, 1e-6), NORM)
    np.testing.assert_array_equal(row.sum(n), x)


def test_rms_norm_of_a_sum_with_its_residual(kernels: Kernels) -> None:
    n = 1024
    x, residual, weight = normal(3, n), normal(4, n, spread=20.0), normal(5, n)
    row = Row(kernels)
    row.add(x, residual)
    stored = bf16(x + residual)
    np.testing.assert_array_equal(row.sum(n), stored)
    assert within_one_rounding(row.finish(weight, n, 1e-5), normalised(stored, weight, 1e-5), NORM)


def test_eps_keeps_a_row_of_zeros_finite(kernels: Kernels) -> None:
    row = Row(kernels)
    row.load(np.zeros(256))
    assert (row.finish(np.ones(256), 256, 1e-6) == 0).all()


@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_qk_norm_of_each_head(kernels: Kernels, head_dim: int) -> None:
    spreads = np.geomspace(0.1, 10.0, 256 // head_dim)[:, None]
    x, weight = bf16(normal(6, 256 // head_dim, head_dim) * spreads), normal(7, head_dim)
    y = aligned(256, BF16)
    kernels.call(
        vector_ops.QK_NORM,
        *(in_buffer(x, 256, BF16), in_buffer(weight, 256, BF16, np.nan), y, head_dim, bits(1e-6)),
    )
    exact = normalised(x, weight, 1e-6).reshape(-1)
    assert within_one_rounding(y.astype(np.float64), exact, NORM)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize(
    ("head_dim", "rotary_dim"),
    [(64, 64), (64, 32), (128, 128), (128, 96), (128, 32), (256, 256), (256, 64)],
)
def test_rope(kernels: Kernels, head_dim: int, rotary_dim: int, interleaved: int) -> None:
    half = rotary_dim // 2
    x = normal(8, 256 // head_dim, head_dim)
    angle = np.random.default_rng(9).uniform(-np.pi, np.pi, half)
    cosine, sine = bf16(np.cos(angle)), bf16(np.sin(angle))
    y = aligned(256, BF16, np.nan)
    kernels.call(
        vector_ops.ROPE,
        in_buffer(x, 256, BF16),
        in_buffer(np.concatenate([cosine, sine]), 256, BF16, np.nan),
        *(y, head_dim, rotary_dim, interleaved),
    )
    first = np.arange(half) * 2 if interleaved else np.arange(half)
    second = first + 1 if interleaved else first + half
    exact, size = x.copy(), np.zeros_like(x)
    a, b = x[:, first], x[:, second]
    exact[:, first], exact[:, second] = a * cosine - b * sine, b * cosine + a * sine
    size[:, first] = np.abs(a * cosine) + np.abs(b * sine)
    size[:, second] = np.abs(b * cosine) + np.abs(a * sine)
    # Exact products, a sum in fp32, one rounding.
    got = y.astype(np.float64).reshape(x.shape)
    assert (np.abs(got - exact) <= U_BF16 * np.abs(exact) + 2.0**-23 * size).all()


def gated(kernels: Kernels, kernel: Kernel, gate: Doubles, up: Doubles, count: int) -> Doubles:
    y = aligned(256, BF16, np.nan)
    kernels.call(kernel, in_buffer(gate, 256, BF16), in_buffer(up, 256, BF16), y, count)
    assert np.isnan(y[count:].astype(np.float32)).all()
    return y[:count].astype(np.float64)


def silu(x: Doubles) -> Doubles:
    """z of x * sigmoid(z)."""
    return x


def gelu(x: Doubles) -> Doubles:
    """z of x * sigmoid(z), the tanh form of GELU."""
    inner = np.clip(x, -100, 100)
    return 2 * np.sqrt(2 / np.pi) * (inner + 0.044715 * inner**3)


def activated(x: Doubles, z: Doubles) -> tuple[Doubles, Doubles]:
    """x * sigmoid(z), and how far from it a kernel may be before it rounds.

    z is off by three products of limbs; below zero, that makes the sigmoid's error -z times as
    large. Below 2^-126 the sigmoid is zero.
    """
    exact = x * np.exp(np.minimum(z, 0)) / (1 + np.exp(-np.abs(z)))
    relative = ACTIVATION + 3 * U_LIMBS * np.maximum(0, -z)
    return exact, np.where(z > -87, relative * np.abs(exact), np.abs(x) * 2.0**-125)


GATES = [(vector_ops.SILU_MUL, silu), (vector_ops.GELU_MUL, gelu)]


@pytest.mark.parametrize(("kernel", "argument"), GATES)
def test_activations_over_the_whole_range(
    kernels: Kernels, kernel: Kernel, argument: Argument
) -> None:
    exact, error = activated(BOTH_SIGNS, argument(BOTH_SIGNS))
    got = gated(kernels, kernel, BOTH_SIGNS, np.ones(256), 256)
    assert (np.abs(got - exact) <= U_BF16 * np.abs(exact) + error + 2.0**-126).all()


@pytest.mark.parametrize(("kernel", "argument"), GATES)
@pytest.mark.parametrize("count", [32, 96, 256])
def test_gated_products_are_rounded_once(
    kernels: Kernels, kernel: Kernel, argument: Argument, count: int
) -> None:
    x, up = normal(10, 256, spread=2.0), normal(11, 256, spread=3.0)
    exact, error = activated(x, argument(x))
    got = gated(kernels, kernel, x, up, count)
    exact, error = (exact * up)[:count], (error * np.abs(up))[:count]
    assert (np.abs(got - exact) <= U_BF16 * np.abs(exact) + 1.01 * error).all()
