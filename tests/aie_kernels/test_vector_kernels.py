"""Activations over the whole range, compared with numpy in float64; tests/designs has the other
vector operators."""

from __future__ import annotations

import numpy as np
import pytest
from standin import aligned

from ort_aie_ep.aie_kernels.reference import BF16, U_BF16, U_LIMBS, Doubles, bf16
from ort_aie_ep.aie_kernels.vector_ops.kernels import GELU_MUL, SILU_MUL
from ort_aie_ep.npu.kernels import Kernels
from ort_aie_ep.npu.terms.kernel import Kernel

# The relative errors of sigmoid and tanh (float_math.h), and two products of limbs.
ACTIVATION = 2.0**-13 + 2 * U_LIMBS
# Tiny, near zero, where the core's tanh is weak, saturation, huge.
REGIONS = bf16(
    np.concatenate(
        [np.geomspace(1e-30, 1e-3, 20), np.linspace(0.0, 4.0, 60), np.geomspace(4.0, 1e30, 48)]
    )
)


def activated(x: Doubles, z: Doubles) -> tuple[Doubles, Doubles]:
    """x * sigmoid(z), and how far from it a kernel may be before it rounds.

    z is off by three products of limbs; below zero, that makes the sigmoid's error -z times as
    large. Below 2^-126 the sigmoid is zero.
    """
    exact = x * np.exp(np.minimum(z, 0)) / (1 + np.exp(-np.abs(z)))
    relative = ACTIVATION + 3 * U_LIMBS * np.maximum(0, -z)
    return exact, np.where(z > -87, relative * np.abs(exact), np.abs(x) * 2.0**-125)


@pytest.mark.parametrize("kernel", [SILU_MUL, GELU_MUL], ids=lambda k: k.name)
def test_activations_over_the_whole_range(kernel: Kernel) -> None:
    x = np.concatenate([REGIONS, -REGIONS])
    inner = np.clip(x, -100, 100)
    gelu = 2 * np.sqrt(2 / np.pi) * (inner + 0.044715 * inner**3)
    exact, error = activated(x, x if kernel is SILU_MUL else gelu)
    gate, up, y = (aligned(v.astype(BF16)) for v in (x, np.ones(256), np.full(256, np.nan)))
    Kernels("aie2p").call(kernel, gate, up, y, 256)
    got = y.astype(np.float64)
    assert (np.abs(got - exact) <= U_BF16 * np.abs(exact) + error + 2.0**-126).all()
