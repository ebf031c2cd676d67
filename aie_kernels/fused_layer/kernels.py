"""Kernels of the whole decoder layer: vectors that stay on chip, and what is computed on the way.

Cycles are a model of what the code issues, see `cycles`; never measured. Projections
and attention are those of `fused_dqp.cc` and `flow_kv.cc`, with other sizes of buffers.
"""

from __future__ import annotations

from dataclasses import replace

from ort_aie_ep.aie_kernels.cycles import CALL, INVERSE_ROOT, LATENCY, LOOP, copy_cycles
from ort_aie_ep.aie_kernels.fused_dqp.kernels import DQP_FINISH, DQP_LOAD_BIAS, DQP_LOAD_X
from ort_aie_ep.aie_kernels.vector_ops.kernels import GELU_MUL, QK_NORM, RMS_FINISH, ROPE, SILU_MUL
from ort_aie_ep.npu.terms.kernel import Array, Kernel

OBJECT = 256  # elements of a vector on its way
ROUND = 512  # outputs of a round of projections
ROWS = 20480  # elements that a vector core keeps
SECOND = 8192  # where the output of a projection begins, beside the residual stream
MAX_X = 22528  # elements of activations that a projection core keeps
MAX_BIAS = 512  # elements of bias that a projection core keeps
MAX_QUERIES = 4096  # elements of queries that a score core keeps for its sweeps
MAX_Q = 2048  # elements of the queries of a sweep
_ROWS = Array("bf16", ROWS)
_OBJECT = Array("bf16", OBJECT)
_ROUND = Array("bf16", ROUND)
_STATE = Array("f32", 16)
_AIE2P = ("aie2p",)


def _whole(index: int) -> bool:
    """Whether a row has an object of 256 with this index."""
    return 0 <= index < ROWS // OBJECT


def _pieces(kernel: Kernel, *scalars: int) -> float:
    """The cycles of a kernel for a piece of 256."""
    return kernel.cycles("aie2p", scalars)


LAYER_LOAD = Kernel(
    "layer_load", "fused_layer/layer_rows.cc", (_OBJECT, _ROWS, int),
    lambda arch, scalars: copy_cycles(OBJECT), _AIE2P, lambda scalars: _whole(scalars[0]),
)  # fmt: skip

LAYER_COPY = Kernel(
    "layer_copy", "fused_layer/layer_rows.cc", (_ROWS, _OBJECT, int),
    lambda arch, scalars: copy_cycles(OBJECT), _AIE2P, lambda scalars: _whole(scalars[0]),
)  # fmt: skip

LAYER_PASS = Kernel(
    "layer_pass", "fused_layer/layer_rows.cc", (_OBJECT, _OBJECT),
    lambda arch, scalars: copy_cycles(OBJECT), _AIE2P,
)  # fmt: skip

LAYER_HALF = Kernel(
    "layer_half", "fused_layer/layer_rows.cc", (_ROUND, _OBJECT, int),
    lambda arch, scalars: copy_cycles(OBJECT), _AIE2P, lambda scalars: scalars[0] in (0, 1),
)  # fmt: skip

LAYER_PLACE = Kernel(
    "layer_place", "fused_layer/layer_rows.cc", (_ROUND, _ROWS, int, int, int),
    # Four loops, and some scalar work for each.
    lambda arch, scalars: CALL + 4 * (LOOP + 8 + 128 / 32), _AIE2P,
    lambda scalars: (
        0 <= scalars[0] < 1 << 20
        and scalars[1] >= 128 and scalars[2] >= 0 and scalars[1] + scalars[2] <= ROWS
        and (scalars[1] | scalars[2]) % 32 == 0
    ),
)  # fmt: skip


def _row_limits(first: int, n: int) -> bool:
    return first in (0, SECOND) and OBJECT <= n <= SECOND and n % OBJECT == 0


LAYER_SCALE = Kernel(
    "layer_scale", "fused_layer/layer_norm.cc", (_ROWS, _STATE, int, int, int),
    # The squares of two vectors of 64 in each piece, and three adds, one after another.
    lambda arch, scalars: CALL + INVERSE_ROOT + LOOP + scalars[1] / 128 * (2 + 8 * LATENCY), _AIE2P,
    lambda scalars: _row_limits(scalars[0], scalars[1]),
)  # fmt: skip

LAYER_NORM = Kernel(
    "layer_norm", "fused_layer/layer_norm.cc", (_ROWS, _OBJECT, _OBJECT, _STATE, int),
    lambda arch, scalars: 2 * _pieces(RMS_FINISH, 0) - CALL, _AIE2P,
    lambda scalars: _whole(scalars[0]),
)  # fmt: skip

LAYER_NORM_OUTPUT = Kernel(
    "layer_norm_output", "fused_layer/layer_norm.cc", (_ROWS, _OBJECT, _STATE, int),
    lambda arch, scalars: 2 * _pieces(RMS_FINISH, 0) - CALL, _AIE2P,
    lambda scalars: _whole(scalars[0]) and SECOND + OBJECT * (scalars[0] + 1) <= ROWS,
)  # fmt: skip

LAYER_ADD = Kernel(
    "layer_add", "fused_layer/layer_norm.cc", (_ROWS, int),
    lambda arch, scalars: CALL + LOOP + scalars[0] / 32 * 4, _AIE2P,
    lambda scalars: _row_limits(0, scalars[0]),
)  # fmt: skip

LAYER_GATHER = Kernel(
    "layer_gather", "fused_layer/layer_gate.cc", (_OBJECT, _ROWS, int, int, int),
    # The sweep is counted, then four short copies.
    lambda arch, scalars: CALL + 6 * (scalars[0] // max(1, scalars[1])) + 4 * (LOOP + 12), _AIE2P,
    lambda scalars: (
        scalars[1] > 0 and scalars[2] > 0 and scalars[1] * scalars[2] * 64 <= ROWS
        and 0 <= scalars[0] < scalars[1] * -(-scalars[2] // 4)
    ),
)  # fmt: skip

LAYER_GATE = Kernel(
    "layer_gate", "fused_layer/layer_gate.cc", (_ROWS, _ROUND, _OBJECT, int, int, int),
    lambda arch, scalars: _pieces(GELU_MUL if scalars[2] else SILU_MUL, OBJECT), _AIE2P,
    lambda scalars: _whole(2 * scalars[0] + 1) and {*scalars[1:]} <= {0, 1},
)  # fmt: skip


def _rotate(arch: str, scalars: tuple[int, ...]) -> float:
    _index, weight, head_dim, rotary_dim, interleaved, _eps = scalars
    norm = QK_NORM.cycles(arch, (head_dim, 0)) if weight else 0
    return 10 + norm + ROPE.cycles(arch, (head_dim, rotary_dim, interleaved))


def _rotate_limits(scalars: tuple[int, ...]) -> bool:
    index, weight, *rotation, _eps = scalars
    assert ROPE.limits is not None
    return _whole(index) and _whole(weight) and ROPE.limits(tuple(rotation))


LAYER_ROTATE = Kernel(
    "layer_rotate", "vector_ops/rope.cc", (_ROWS, _OBJECT, _OBJECT, _OBJECT, *(int,) * 6),
    _rotate, _AIE2P, _rotate_limits,
)  # fmt: skip

LAYER_PICK = Kernel(
    "layer_pick", "fused_layer/layer_queries.cc",
    (_OBJECT, Array("bf16", MAX_QUERIES), *(int,) * 5),
    lambda arch, scalars: CALL + scalars[2] * 4 * 10 + 4 * (LOOP + 2), _AIE2P,
    lambda scalars: (
        scalars[0] >= 0 <= scalars[1] < 4 and scalars[2] > 0 and scalars[3] > 0 < scalars[4]
        and scalars[3] % 64 == 0 and scalars[2] * scalars[3] <= MAX_QUERIES
    ),
)  # fmt: skip

LAYER_SELECT = Kernel(
    "layer_select", "fused_layer/layer_queries.cc",
    (Array("bf16", MAX_QUERIES), Array("bf16", MAX_Q), int, int),
    lambda arch, scalars: copy_cycles(scalars[1]), _AIE2P,
    lambda scalars: (
        0 < scalars[1] <= MAX_Q and scalars[1] % 64 == 0 <= scalars[0]
        and (scalars[0] + 1) * scalars[1] <= MAX_QUERIES
    ),
)  # fmt: skip

# The projections of a layer: more activations, less bias.
_X, _SUMS, _BIAS = Array("bf16", MAX_X), Array("bf16", MAX_X // 16), Array("bf16", MAX_BIAS)

LAYER_LOAD_X = replace(
    DQP_LOAD_X, arguments=(_OBJECT, _X, _SUMS, int),
    limits=lambda scalars: 0 <= scalars[0] < MAX_X // OBJECT,
)  # fmt: skip

LAYER_LOAD_BIAS = replace(DQP_LOAD_BIAS, arguments=(_OBJECT, _BIAS, int, int, int))

LAYER_FINISH = replace(
    DQP_FINISH, arguments=(Array("f32", 32), _BIAS, Array("bf16", 32), int, int)
)  # fmt: skip
