"""Inputs of the tests in this folder: one matvec of fused_dqp, and a stream that never ends."""

from __future__ import annotations

import struct

import ml_dtypes
import numpy as np
import numpy.typing as npt
import numpy_q4nx as q4nx

from ort_aie_ep.aie_kernels.fused_dqp import design as fused_dqp
from ort_aie_ep.npu.simulator.session import Session
from ort_aie_ep.npu.terms.device import device

N, K = 256, 512
ORDER = ["x", "w", "bias", "y"]
SHAPE = {"N": N, "K": K, "bias": 1}

Array = npt.NDArray[np.generic]


def words(name: str) -> npt.NDArray[np.uint32]:
    """The stream of the matvec, for buffers in the order of `ORDER`."""
    (stream,) = Session(fused_dqp.build(device(name))).build("matvec", SHAPE, ORDER)
    return stream


def matvec(name: str) -> tuple[dict[str, Array], Array, Array, Array]:
    """(buffers before the run, y by the simulator, y by numpy, bound of the error)."""
    rng = np.random.default_rng(7)
    bfloat16 = np.dtype(ml_dtypes.bfloat16)
    codes = rng.integers(0, 16, (N, K), dtype=np.uint8)
    scales = (rng.uniform(0.5, 1.5, (N, K // 32)) * 0.02).astype(bfloat16)
    mins = (-8 * scales.astype(np.float32)).astype(bfloat16)
    weights = codes * np.repeat(scales.astype(np.float64), 32, 1)
    weights += np.repeat(mins.astype(np.float64), 32, 1)
    x = rng.standard_normal(K).astype(bfloat16)
    bias = rng.standard_normal(N).astype(bfloat16)
    # Blocks are 5120 bytes, so the file is padded to whole pages, as the package pads weights.
    packed = q4nx.pack(codes, scales, mins).reshape(-1)
    packed = np.concatenate([packed, np.zeros(-packed.size % 4096, np.uint8)])
    buffers = {"x": x, "w": packed, "bias": bias, "y": np.full(N, np.nan, bfloat16)}
    after = {key: value.copy() for key, value in buffers.items()}
    Session(fused_dqp.build(device(name))).run("matvec", SHAPE, after)

    exact = weights @ x.astype(np.float64) + bias.astype(np.float64)
    # Half a unit of bf16 for the output. The sums are fp32, so K roundings of 2^-24 of the mass,
    # and the kernel splits its once-per-group narrowing into two limbs (2^-17 of the group).
    mass = np.abs(weights) @ np.abs(x.astype(np.float64))
    bound = np.abs(exact) * 2.0**-8 + mass * (K * 2.0**-24 + 2.0**-16)
    return buffers, after["y"], exact, bound


def deadlock() -> npt.NDArray[np.uint32]:
    """A stream for npu2 with one operation: a wait for a token of a transfer that never starts."""
    wait = [0x80, 0x10, 0, 1 << 8 | 1 << 16]  # S2MM 0 of the shim of column 0
    # TXN 0.1, 6 rows, generation 4, one column, one memory tile row; operations, bytes.
    header = [6 << 24 | 4 << 16 | 1 << 8, 1 << 8 | 1, 1, 4 * (4 + len(wait))]
    stream = [*header, *wait]
    return np.frombuffer(struct.pack(f"<{len(stream)}I", *stream), np.uint32)
