"""The row operators of prompts, on GEMM's cores, as the design and the simulator see them.

Cycles are a model of what the code issues, as in `catalog_attention`; never measured.
"""

from __future__ import annotations

from ort_aie_ep.npu.vocabulary.kernel import Array, Kernel

from .catalog_attention import CALL, LATENCY, LOOP
from .catalog_vector import GELU_ISSUES, SILU_ISSUES

# `mode` of a worker is what it does and, times CORE, the number of the core in its column.
PRODUCT, SILU_GATE, GELU_GATE = range(3)
CORE = 8
CORES = 4
OBJECTS = 8  # of an operand in a result of 512 columns
COUNTS = 4  # words that tell the worker how often its loops turn

OBJECT = 4096  # values of 64 rows x 64 columns
OWN = OBJECT // CORES  # of them a core's
PART = 2048  # of a part of C


def _mode_limits(mode: int) -> bool:
    return 0 <= mode < CORE * CORES and mode % CORE <= GELU_GATE


# What is kept is two loads and two stores of a vector for each 64 values.
def _take_cycles(arch: str, scalars: tuple[int, ...]) -> float:
    mode, index = scalars
    if index < OBJECTS:
        return CALL + LOOP + OWN / 64 * 2
    issues = SILU_ISSUES if mode % CORE == SILU_GATE else GELU_ISSUES
    return CALL + LOOP + 40 * LATENCY + issues * OWN / 32


def _take_limits(scalars: tuple[int, ...]) -> bool:
    mode, index = scalars
    return _mode_limits(mode) and mode % CORE != PRODUCT and 0 <= index < 2 * OBJECTS


ROWS_BEGIN = Kernel(
    "rows_begin",
    "row_operators.cc",
    (Array("i32", COUNTS), int, int),
    lambda arch, scalars: CALL,
    ("aie2p",),
    lambda scalars: scalars[0] >= 0 and _mode_limits(scalars[1]),
)
ROWS_TAKE = Kernel(
    "rows_take",
    "row_operators.cc",
    (Array("bf16", OBJECT), Array("f32", 8192), int, int),
    _take_cycles,
    ("aie2p",),
    _take_limits,
)
ROWS_STORE = Kernel(
    "rows_store",
    "row_operators.cc",
    (Array("f32", 8192), Array("bf16", PART), int),
    lambda arch, scalars: CALL + LOOP + PART / 32,
    ("aie2p",),
    lambda scalars: 0 <= scalars[0] < 4,
)
