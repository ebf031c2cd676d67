"""Simulated times of y = W x with two and with four bits (docs/two-bits.md), 8192 x 2048.

PYTHONPATH=lab python -m designs.fused_dqp_two_bits
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import ml_dtypes
import numpy as np

from designs.fused_dqp_two_bits import design as two_bits
from designs.fused_dqp_two_bits.library import kernels
from ort_aie_ep.aie_kernels.fused_dqp import design as four_bits
from ort_aie_ep.npu.kernels import Kernels
from ort_aie_ep.npu.simulator.session import Session
from ort_aie_ep.npu.terms.design import Design
from ort_aie_ep.npu.terms.device import device

N, K = 8192, 2048
SHAPE = {"N": N, "K": K, "bias": 0, "activation": 0}
BF16 = np.dtype(ml_dtypes.bfloat16)


def main() -> None:
    """Print them."""
    with tempfile.TemporaryDirectory() as folder:
        own = {name: kernels(name, Path(folder)) for name in ("aie2", "aie2p")}
    for name, columns in (("npu1", 4), ("npu2", 4), ("npu2", 8)):
        on = device(name)
        four = seconds(four_bits.build(on, columns), "matvec")
        two = seconds(two_bits.build(on, columns), "matvec_two_bits", own[on.architecture])
        print(
            f"{name} {columns} columns: 4 bits {four * 1e6:.1f} µs, 2 bits {two * 1e6:.1f} µs, "
            f"{four / two:.2f} times as fast"
        )


def seconds(design: Design, sequence: str, own: Kernels | None = None) -> float:
    """The time of a product with zeros."""
    buffers = {
        "x": np.zeros(K, BF16),
        "w": np.zeros(N // 32 * K // 256 * design.form.block_bytes, np.uint8),
        "bias": np.zeros(0, BF16),
        "y": np.zeros(N, BF16),
    }
    return sum(r.seconds for r in Session(design, kernels=own).run(sequence, SHAPE, buffers))


if __name__ == "__main__":
    main()
