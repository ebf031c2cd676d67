"""Normalisation, rotary embedding and activations as designs and the simulator see them.

Cycles are a model of what the code issues, see `cycles`; never measured. mlir-aie
publishes for 1024 values on AIE2P 438 cycles for an RMS normalisation, 298 for a rotary embedding,
856 for SwiGLU and 211 to 318 for SiLU and GELU on the core's own tanh. A piece of 256 compares with
a quarter of those: a rotation costs 1.6 to 3 times as much, because its loops are short; a gated
activation 4.5 times, because its sigmoid is accurate to 2^-13 instead of 0.038.

Counts are not multiplied by anything. The same rules, applied to the sources of mlir-aie's kernels,
give 178 cycles for the 150 of its sum of 1024, 114 for the 142 of its product, 306 for the 298 of
its rotation of halves, 618 for the 438 of its norm of 16 lanes and 946 for the 856 of its SwiGLU:
0.8 to 1.4 of what was measured, so the rules are not too fast.
"""

from __future__ import annotations

from ort_aie_ep.aie_kernels import limits
from ort_aie_ep.aie_kernels.cycles import (
    CALL,
    GELU_ISSUES,
    INVERSE_ROOT,
    LATENCY,
    LOOP,
    SILU_ISSUES,
)
from ort_aie_ep.npu.terms.kernel import Array, Kernel

ROW = Array("bf16", limits.VECTOR_ROW)


def _activation(issues: int, scalars: tuple[int, ...]) -> float:
    """`issues` per 32 values, and the latency of the chain once."""
    return CALL + LOOP + 40 * LATENCY + issues * scalars[0] / 32


def _qk_norm(arch: str, scalars: tuple[int, ...]) -> float:
    """Per head: squares, the inverse root, ten issues per 32 values."""
    heads = 256 // scalars[0]
    return CALL + heads * (2 * LOOP + INVERSE_ROOT) + 256 / 64 * 2 + 256 / 32 * 10


def _rope(arch: str, scalars: tuple[int, ...]) -> float:
    """Per 16 pairs: four loads, four macs, two conversions, two stores; shuffles if interleaved."""
    head_dim, rotary_dim, interleaved = scalars
    heads = 256 // head_dim
    pairs = heads * rotary_dim / 32 * (10 if interleaved else 6)
    return CALL + heads * 2 * LOOP + pairs + heads * (head_dim - rotary_dim) / 32


def _rms_piece(scalars: tuple[int, ...]) -> bool:
    """Whether a row has the piece of 128 with this index."""
    return 0 <= scalars[0] < limits.VECTOR_ROW // 128


def _heads(head_dim: int) -> bool:
    """Whether 256 values are whole heads of a size that the kernels know."""
    return head_dim in (64, 128, 256)


def _rope_limits(scalars: tuple[int, ...]) -> bool:
    head_dim, rotary_dim, interleaved = scalars
    rotates = 0 <= rotary_dim <= head_dim and rotary_dim % 32 == 0
    return _heads(head_dim) and rotates and interleaved in (0, 1)


def _values(scalars: tuple[int, ...]) -> bool:
    """Whether this many values fit, in vectors of 32."""
    return 0 < scalars[0] <= 256 and scalars[0] % 32 == 0


RMS_BEGIN = Kernel(
    "rms_begin", "vector_ops/rms_norm.cc", (Array("f32", 16),), lambda arch, scalars: CALL,
    ("aie2p",),
)  # fmt: skip

# A copy, the squares of two vectors of 64, three adds.
RMS_LOAD = Kernel(
    "rms_load", "vector_ops/rms_norm.cc", (Array("bf16", 128), ROW, Array("f32", 16), int),
    lambda arch, scalars: CALL + LOOP + 4 + 8 * LATENCY, ("aie2p",), _rms_piece,
)  # fmt: skip

RMS_ADD = Kernel(
    "rms_add", "vector_ops/rms_norm.cc",
    (Array("bf16", 128), Array("bf16", 128), ROW, Array("f32", 16), int),
    lambda arch, scalars: CALL + 2 * LOOP + 4 * 4 + 8 * LATENCY, ("aie2p",), _rms_piece,
)  # fmt: skip

RMS_SUM = Kernel(
    "rms_sum", "vector_ops/rms_norm.cc", (ROW, Array("bf16", 128), int),
    lambda arch, scalars: CALL + LOOP + 4, ("aie2p",), _rms_piece,
)  # fmt: skip

RMS_SCALE = Kernel(
    "rms_scale", "vector_ops/rms_norm.cc", (Array("f32", 16), int, int),
    lambda arch, scalars: CALL + INVERSE_ROOT, ("aie2p",),
    lambda scalars: 0 < scalars[0] <= limits.VECTOR_ROW,
)  # fmt: skip

# The scale is divided into its limbs first.
RMS_FINISH = Kernel(
    "rms_finish", "vector_ops/rms_norm.cc",
    (ROW, Array("bf16", 128), Array("bf16", 128), Array("f32", 16), int),
    lambda arch, scalars: CALL + LOOP + 3 * LATENCY + 128 / 32 * 10, ("aie2p",), _rms_piece,
)  # fmt: skip

QK_NORM = Kernel(
    "qk_norm", "vector_ops/rope.cc",
    (Array("bf16", 256), Array("bf16", 256), Array("bf16", 256), int, int), _qk_norm, ("aie2p",),
    lambda scalars: _heads(scalars[0]),
)  # fmt: skip

ROPE = Kernel(
    "rope", "vector_ops/rope.cc",
    (Array("bf16", 256), Array("bf16", 256), Array("bf16", 256), int, int, int), _rope, ("aie2p",),
    _rope_limits,
)  # fmt: skip

SILU_MUL = Kernel(
    "silu_mul", "vector_ops/activations.cc",
    (Array("bf16", 256), Array("bf16", 256), Array("bf16", 256), int),
    lambda arch, scalars: _activation(SILU_ISSUES, scalars), ("aie2p",), _values,
)  # fmt: skip

GELU_MUL = Kernel(
    "gelu_mul", "vector_ops/activations.cc",
    (Array("bf16", 256), Array("bf16", 256), Array("bf16", 256), int),
    lambda arch, scalars: _activation(GELU_ISSUES, scalars), ("aie2p",), _values,
)  # fmt: skip
