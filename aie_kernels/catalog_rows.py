"""The row operators of prompts, on GEMM's cores, as the design and the simulator see them.

Cycles are a model of what the code issues, as in `catalog_attention`; never measured.
"""

from __future__ import annotations

from ort_aie_ep.npu.vocabulary.kernel import Array, Kernel

from .catalog_attention import CALL, LATENCY, LOOP
from .catalog_vector import GELU_ISSUES, INVERSE_ROOT, SILU_ISSUES

# `mode` of a worker is what it does; times CORE, the number of the core in its column. Of a norm
# also, times SLABS, the columns of a row in slabs of 256, and times MEAN those of which the mean is
# taken.
PRODUCT, SILU_GATE, GELU_GATE, SUM, NORM = range(5)
CORE = 1 << 3
SLABS = 1 << 5
MEAN = 1 << 10
CORES = 4
OBJECTS = 8  # of an operand in a result of 512 columns
MAX_SLABS = 28  # whose weights have room
COUNTS = 8  # words that tell the worker how often its loops turn

OBJECT = 4096  # values of 64 rows x 64 columns
OWN = OBJECT // CORES  # of them a core's
OWN_ROWS = 64 // CORES
PART = 2048  # of a part of C


def _operator(mode: int) -> int:
    return mode % CORE


def _slabs(mode: int) -> int:
    return mode // SLABS % (MEAN // SLABS)


def _mode_limits(mode: int) -> bool:
    if _operator(mode) == NORM:
        return 0 < _slabs(mode) <= MAX_SLABS and 0 < mode // MEAN <= 256 * _slabs(mode)
    return 0 <= mode < SLABS and _operator(mode) < NORM


# What is kept is two loads and two stores of a vector for each 64 values, a sum four operations
# more, a norm's value ten for 32 as in `rms_finish`.
def _take_cycles(arch: str, scalars: tuple[int, ...]) -> float:
    mode, _, index = scalars
    if _operator(mode) == NORM:
        return CALL + 8 * LOOP + 3 * LATENCY + OWN / 32 * 10
    if index < OBJECTS:
        return CALL + LOOP + OWN / 64 * 2
    if _operator(mode) == SUM:
        return CALL + LOOP + 3 * LATENCY + OWN / 32 * 4
    issues = SILU_ISSUES if _operator(mode) == SILU_GATE else GELU_ISSUES
    return CALL + LOOP + 40 * LATENCY + issues * OWN / 32


def _take_limits(scalars: tuple[int, ...]) -> bool:
    mode, tile, index = scalars
    if not _mode_limits(mode) or _operator(mode) == PRODUCT:
        return False
    if _operator(mode) == NORM:
        return 0 <= tile <= _slabs(mode) // 2 and 0 <= index < OBJECTS
    return tile == 0 and 0 <= index < 2 * OBJECTS


# Weights: a load and a store of 16 bytes for each eight. Squares: a load of 64 and a mac, one after
# the other. The last object also has an inverse root for each row.
def _prepare_cycles(arch: str, scalars: tuple[int, ...]) -> float:
    mode, _, weights_or_rows, index = scalars
    if weights_or_rows == 0:
        return CALL + _slabs(mode) * (LOOP + 8)
    squares = CALL + 2 * (LOOP + 8 * LATENCY)
    return squares + (index == 4 * _slabs(mode) - 1) * OWN_ROWS * (LOOP + INVERSE_ROOT)


def _prepare_limits(scalars: tuple[int, ...]) -> bool:
    mode, _, weights_or_rows, index = scalars
    if not _mode_limits(mode) or _operator(mode) != NORM or weights_or_rows not in (0, 1):
        return False
    return 0 <= index < (4 * _slabs(mode) if weights_or_rows else 4)


ROWS_BEGIN = Kernel(
    "rows_begin",
    "row_operators.cc",
    (Array("i32", COUNTS), int, int),
    lambda arch, scalars: CALL,
    ("aie2p",),
    lambda scalars: scalars[0] >= 0 and _mode_limits(scalars[1]),
)
ROWS_PREPARE = Kernel(
    "rows_prepare",
    "row_operators.cc",
    (Array("bf16", OBJECT), Array("f32", 8192), int, int, int, int),
    _prepare_cycles,
    ("aie2p",),
    _prepare_limits,
)
ROWS_TAKE = Kernel(
    "rows_take",
    "row_operators.cc",
    (Array("bf16", OBJECT), Array("f32", 8192), int, int, int),
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
