"""The row operators of prompts, on GEMM's cores, as the design and the simulator see them.

Cycles are a model of what the code issues, see `cycles`; never measured.
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

# `mode` says what a worker does. It is a sum: the operation; CORE times the number of the core in
# its column; for a norm, SLABS times the slabs of 256 columns in a row, and MEAN times the columns
# over which the mean is taken; for a rotation, HEAD times 0, 1 or 2 (heads of 64, 128 or 256),
# ROTARY times the rotated dimensions in units of 32, and INTERLEAVED and HEAD_NORM if requested,
# NARROW for rows of 128, IN_BLOCKS for results in the order of a cache.
PRODUCT, SILU_GATE, GELU_GATE, SUM, NORM, ROTATE = range(6)
CORE = 1 << 3
SLABS = 1 << 5
MEAN = 1 << 10
HEAD = 1 << 5
ROTARY = 1 << 7
INTERLEAVED = 1 << 11
HEAD_NORM = 1 << 12
NARROW = 1 << 13
IN_BLOCKS = 1 << 14
CORES = 4
OBJECTS = 8  # of an operand in a result of 512 columns
COUNTS = 8  # words that tell the worker how often its loops turn
OBJECT = 4096  # values of 64 rows x 64 columns
OWN = OBJECT // CORES  # of them a core's
OWN_ROWS = 64 // CORES
STRIP = 512  # of C that leave at once: 8 of the 32 columns of a part


def _operator(mode: int) -> int:
    return mode % CORE


def _slabs(mode: int) -> int:
    return mode // SLABS % (MEAN // SLABS)


def _head_objects(mode: int) -> int:
    return 1 << mode // HEAD % 4


def _rotary(mode: int) -> int:
    """Dimensions that are rotated, in 32."""
    return mode // ROTARY % 16


def _mode_limits(mode: int) -> bool:
    if _operator(mode) == NORM:
        return 0 < _slabs(mode) <= limits.SLABS and 0 < mode // MEAN <= 256 * _slabs(mode)
    if _operator(mode) == ROTATE:
        objects = _head_objects(mode)
        most = 2 if mode // NARROW % 2 else 4
        return 0 <= mode < 2 * IN_BLOCKS and objects <= most and _rotary(mode) <= 2 * objects
    return 0 <= mode < SLABS and _operator(mode) < NORM


# What is kept is two loads and two stores of a vector for each 64 values, a sum four operations
# more, a norm's value ten for 32 as in `rms_finish`.
_KEEP = LOOP + OWN / 64 * 2
_NORMALISE = 8 * LOOP + 3 * LATENCY + OWN / 32 * 10
_SQUARES = 2 * (LOOP + 8 * LATENCY)
_ROOTS = OWN_ROWS * (LOOP + INVERSE_ROOT)


def _take_cycles(arch: str, scalars: tuple[int, ...]) -> float:
    mode, _, _, index = scalars
    operator = _operator(mode)
    if operator == NORM:
        return CALL + _KEEP + _NORMALISE
    if operator == ROTATE:
        return CALL + _rotate_cycles(mode, index)
    if index < OBJECTS:
        return CALL + _KEEP
    if operator == SUM:
        return CALL + LOOP + 3 * LATENCY + OWN / 32 * 4
    issues = SILU_ISSUES if operator == SILU_GATE else GELU_ISSUES
    return CALL + LOOP + 40 * LATENCY + issues * OWN / 32


def _rotate_cycles(mode: int, index: int) -> float:
    """Heads are normalised when their last object is there. A pair of blocks of the table rotates
    32 pairs at a time: four loads, four macs, two conversions and two stores, of which six start
    alone, as in `rope`; ten with shuffles."""
    objects = _head_objects(mode)
    if index < OBJECTS:
        if mode // HEAD_NORM % 2 == 0:
            return _KEEP
        last = index % objects == objects - 1
        return _KEEP + _SQUARES + last * (_ROOTS + objects * _NORMALISE)
    blocks = max(0, min(4, 2 * _rotary(mode) - 4 * (index - OBJECTS)))
    heads = OBJECTS // objects
    pairs = 4 * (10 if mode // INTERLEAVED % 2 else 6)
    return heads * blocks * (LOOP + 3 * LATENCY + pairs)


def _take_limits(scalars: tuple[int, ...]) -> bool:
    mode, _, tile, index = scalars
    operator = _operator(mode)
    if not _mode_limits(mode) or operator == PRODUCT:
        return False
    if operator == NORM:
        return 0 <= tile <= _slabs(mode) // 2 and 0 <= index < OBJECTS
    return tile == 0 and 0 <= index < (OBJECTS + 4 if operator == ROTATE else 2 * OBJECTS)


# Weights: a load and a store of 16 bytes for each eight. Squares: a load of 64 and a mac, one after
# the other. The last object also has an inverse root for each row.
def _prepare_cycles(arch: str, scalars: tuple[int, ...]) -> float:
    mode, _, rows, index = scalars
    if not rows:
        return CALL + (_slabs(mode) if _operator(mode) == NORM else 1) * (LOOP + 8)
    return CALL + _SQUARES + (index == 4 * _slabs(mode) - 1) * _ROOTS


def _prepare_limits(scalars: tuple[int, ...]) -> bool:
    mode, _, rows, index = scalars
    if not _mode_limits(mode) or rows not in (0, 1):
        return False
    if _operator(mode) == ROTATE:
        return not rows and 0 <= index < 4
    return _operator(mode) == NORM and 0 <= index < (4 * _slabs(mode) if rows else 4)


# In the order of a cache, a load and a store of 16 bytes for each eight.
def _store_cycles(arch: str, scalars: tuple[int, ...]) -> float:
    mode, _ = scalars
    if _operator(mode) == ROTATE and mode // IN_BLOCKS % 2:
        return CALL + STRIP / 64 * LOOP + STRIP / 8
    return CALL + LOOP + STRIP / 32


def _store_limits(scalars: tuple[int, ...]) -> bool:
    mode, index = scalars
    return _mode_limits(mode) and _operator(mode) != PRODUCT and 0 <= index < 16


ROWS_BEGIN = Kernel(
    "rows_begin", "gemm/row_operators.cc", (Array("i32", COUNTS), int, int),
    lambda arch, scalars: CALL, ("aie2p",),
    lambda scalars: scalars[0] >= 0 and _mode_limits(scalars[1]),
)  # fmt: skip

ROWS_PREPARE = Kernel(
    "rows_prepare", "gemm/row_operators.cc",
    (Array("bf16", OBJECT), Array("f32", 8192), int, int, int, int), _prepare_cycles, ("aie2p",),
    _prepare_limits,
)  # fmt: skip

ROWS_TAKE = Kernel(
    "rows_take", "gemm/row_operators.cc",
    (Array("bf16", OBJECT), Array("f32", 8192), int, int, int, int), _take_cycles, ("aie2p",),
    _take_limits,
)  # fmt: skip

ROWS_STORE = Kernel(
    "rows_store", "gemm/row_operators.cc", (Array("f32", 8192), Array("bf16", STRIP), int, int),
    _store_cycles, ("aie2p",), _store_limits,
)  # fmt: skip
