"""Activations over the whole range, compared with numpy in float64; tests/designs has the other
vector operators."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from l1_buffers import aligned, in_buffer

from ort_aie_ep.aie_kernels.reference import BF16, U_BF16, U_LIMBS, Doubles, bf16
from ort_aie_ep.aie_kernels.vector_ops import kernels as vector_ops
from ort_aie_ep.npu.kernels import Kernels
from ort_aie_ep.npu.terms.kernel import Kernel

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


def within_one_rounding(got: Doubles, exact: Doubles, relative: float) -> bool:
    """The bound for one rounding to bfloat16 of a value off by `relative`; below 2^-126, any such
    small value."""
    return bool((np.abs(got - exact) <= (U_BF16 + relative) * np.abs(exact) + 2.0**-126).all())


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
