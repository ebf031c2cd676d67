"""Closed forms of GEMM, and of the row operators of prompts on its cores."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

from ort_aie_ep.aie_kernels.cycles import of_call
from ort_aie_ep.aie_kernels.gemm import row_kernels as rows
from ort_aie_ep.aie_kernels.gemm.kernels import GEMM_STORE_BF16, GEMM_TILE_BFP16, GEMM_ZERO
from ort_aie_ep.aie_kernels.invocation import Costs
from ort_aie_ep.aie_kernels.machine import (
    ALL_COLUMNS,
    BF16,
    CORE_ROWS,
    TASK,
    Step,
    control,
    stream,
    weights_bytes,
)
from ort_aie_ep.aie_kernels.vector_ops.cost import norm_cycles
from ort_aie_ep.formats.q4nx import BlockForm

GEMM_ROWS, GEMM_COLUMNS, GEMM_DEPTH = 64, 128, 64  # of a core's block, and of a step of K
SUPERTILE = 512  # rows, and columns, of C on 8 x 4 cores
OWN_ROWS = 16  # the rows of a band of 64 that each core processes between products
GEMM_SLAB = 256  # of K in a memory tile: K is padded to it
GEMM_ITERATIONS = 64  # megatiles of a task of A
ROW_OBJECTS = 8  # of 64 x 64 of an operand, in a result of 64 x 512
ROW_TABLES = 4  # of those of a table
ROW_WEIGHTS = 4  # objects that hold all weights of a norm
ROW_STRIPS = 16  # of a core's part of a result; two have room in it
ROW_RESULTS = 256  # of a column in a run

# Cycles of 64 x 64 x 128 products. With both operands in bf16 107.5 of them a cycle: a core's
# products in the line through 34 published products of mlir-air, 194 a nanosecond, at 1.8 GHz.
# Steps of K, ends of blocks and launches come on top there.
STEP = GEMM_ROWS * GEMM_COLUMNS * GEMM_DEPTH / 107.5
STEP_BFP16 = GEMM_COLUMNS / 32 * of_call(GEMM_TILE_BFP16, GEMM_ROWS // 8, GEMM_DEPTH // 8, 32 // 8)
# What is done once for each block of C.
BLOCK = of_call(GEMM_ZERO, GEMM_ROWS * GEMM_COLUMNS) + of_call(GEMM_STORE_BF16)


def gemm(m: int, k: int, n: int, *, bfp16: bool = False) -> tuple[Step, ...]:
    """C (m, n) = A (m, k) B (k, n) in bf16, or with B in bfp16, on 8 x 4 cores with megatiles of
    512 x 512.

    A core keeps 64 x 128 of C. It receives A and B by a channel each, 64 deep, and sends C into its
    memory tile: half of it during products, half of it before it goes on; beside a B in bfp16 there
    is room for a whole part of C, so no core waits. From there C goes to DDR during the next
    block's reads. A is read once for each 512 columns of C, B once for each 512
    rows. K is padded to 256. Bands of C that would pass its end are moved back and compute some of
    it twice, so every pass is whole. The first slab of B fills its memory tile before the
    computation begins; the last C, of the same size, leaves its memory tile after the computation
    ends.
    """
    passes_m, passes_n = ceil(m / SUPERTILE), ceil(n / SUPERTILE)
    depth = ceil(k / GEMM_SLAB) * GEMM_SLAB
    megatiles = passes_m * passes_n
    steps = megatiles * depth // GEMM_DEPTH
    tasks_a_and_c = passes_m * 2 * ALL_COLUMNS * ceil(passes_n / GEMM_ITERATIONS)
    return (
        Step(
            streams=steps * stream(weights_bytes(GEMM_DEPTH * GEMM_COLUMNS, bfp16=bfp16)),
            kernels=steps * (STEP_BFP16 if bfp16 else STEP),
            commands=(tasks_a_and_c + megatiles * CORE_ROWS) * TASK,
            read=megatiles * SUPERTILE * (depth * BF16 + weights_bytes(depth, bfp16=bfp16)),
            write=megatiles * SUPERTILE * SUPERTILE * BF16,
        ),
        Step(
            streams=0 if bfp16 else megatiles * stream(BF16 * GEMM_ROWS * GEMM_COLUMNS // 2),
            control=control(tasks=20, words=3 * 32) + megatiles * BLOCK,
            idle=1,
        ),
        Step(
            shim=BF16 * GEMM_SLAB * GEMM_COLUMNS
            + weights_bytes(GEMM_SLAB * GEMM_COLUMNS, bfp16=bfp16)
        ),
    )


def row_gate(m: int, n: int, gelu: bool) -> tuple[Step, ...]:
    """SiLU (or GELU) of the gate times up, for the rows of a prompt, on the cores of GEMM."""
    gate = rows.GELU_GATE if gelu else rows.SILU_GATE
    cycles = of_call(rows.ROWS_TAKE, gate, 0, 0, rows.OBJECTS)  # the first object of up
    return _of_rows(m, n, kept=ROW_OBJECTS, taken=ROW_OBJECTS, cycles=cycles)


def row_norm(m: int, k: int, residual: bool, norm: bool) -> tuple[Step, ...]:
    """A residual sum and its RMSNorm, or one of the two, for the rows of a prompt, likewise.

    A norm receives all weights, then its rows twice: for the sums of squares, then for the results.
    """
    steps: tuple[Step, ...] = ()
    cycles = norm_cycles(OWN_ROWS * GEMM_DEPTH, residual=True) / 2
    if residual:
        steps += _of_rows(m, k, kept=ROW_OBJECTS, taken=ROW_OBJECTS, cycles=cycles)
    if norm:
        ahead = ceil(k / GEMM_SLAB) * GEMM_SLAB // GEMM_DEPTH
        steps += _of_rows(m, k, taken=ROW_OBJECTS, cycles=cycles, ahead=ahead, weights=ROW_WEIGHTS)
    return steps


def row_rotation(
    m: int, heads: int, head_dim: int, rotary_dim: int, *, interleaved: bool = False,
    norm: bool = False, append: bool = False,
) -> tuple[Step, ...]:  # fmt: skip
    """Heads of a prompt's rows, normalised and rotated, or copied (`rotary_dim` 0), likewise; with
    `append` into a cache, which a core's part of a result reaches by a task of its own.

    While a core processes the last object of heads, one of the table arrives.
    """
    rotated = _table_cycles(head_dim, rotary_dim, interleaved)
    waited = (ROW_TABLES - 1) * stream(BF16 * GEMM_ROWS * GEMM_DEPTH)
    return _of_rows(
        m, heads * head_dim, kept=ROW_OBJECTS,
        taken=ROW_TABLES if rotary_dim else 0, cycles=max(rotated, waited) / ROW_TABLES,
        storing=_norm_cycles(head_dim) if norm else 0,
        weights=ROW_WEIGHTS if norm else 0,
        leaves=CORE_ROWS if append else 1,
    )  # fmt: skip


def _mode(head_dim: int, rotary_dim: int) -> int:
    return rows.ROTATE + rows.HEAD * (head_dim // 128) + rows.ROTARY * (rotary_dim // 32)


def _table_cycles(head_dim: int, rotary_dim: int, interleaved: bool) -> float:
    """The objects of the table."""
    mode = _mode(head_dim, rotary_dim) + rows.INTERLEAVED * interleaved
    objects = range(rows.OBJECTS, rows.OBJECTS + 4) if rotary_dim else ()
    return sum(of_call(rows.ROWS_TAKE, mode, 0, 0, index) for index in objects)


def _norm_cycles(head_dim: int) -> float:
    """The objects of the heads."""
    mode = _mode(head_dim, 0) + rows.HEAD_NORM
    return sum(of_call(rows.ROWS_TAKE, mode, 0, 0, index) for index in range(rows.OBJECTS))


def _of_rows(
    m: int, n: int, *, taken: int, cycles: float, kept: int = 0, storing: float = 0,
    ahead: int = 0, weights: int = 0, leaves: int = 1,
) -> tuple[Step, ...]:  # fmt: skip
    """Results of 64 x 512 for each column of the array, from objects of 64 x 64.

    All cores of a column receive every object by one channel. For each result they store `kept`
    objects, with `storing` cycles for what they do to them, and process `taken`, `cycles` each;
    `ahead` objects come for each band of rows, and `weights` for each run. A result leaves by
    `leaves` tasks. The first data comes while the parameters are written.

    The channel is at most two objects ahead of its cores. So they wait for weights, for all that
    they store but the first, and again while their result leaves: all of it but the two strips that
    have room. The last result leaves its memory tile when nothing else moves.
    """
    bands, tiles = ceil(m / SUPERTILE), ceil(n / SUPERTILE)
    results = bands * tiles
    runs = ceil(bands / max(1, ROW_RESULTS // tiles))
    objects = results * (kept + taken) + bands * ahead + runs * weights
    size = BF16 * GEMM_ROWS * GEMM_DEPTH
    leaving = stream(BF16 * OWN_ROWS * SUPERTILE) * (1 - 2 / ROW_STRIPS)
    waiting = max(max(0, kept - 1) * stream(size), storing)
    last = BF16 * GEMM_ROWS * SUPERTILE
    first_tasks = 2 * ALL_COLUMNS
    tasks = results * (ceil((kept + taken) / ROW_OBJECTS) + leaves) + bands * bool(ahead)
    return (
        Step(
            shim=objects * size,
            streams=objects * stream(size),
            kernels=runs * weights * stream(size) + results * (waiting + taken * cycles + leaving),
            commands=(tasks * ALL_COLUMNS - first_tasks) * TASK,
            read=objects * size * ALL_COLUMNS,
            write=(results - runs) * last * ALL_COLUMNS,
            control=runs * control(first_tasks, words=4 * CORE_ROWS * ALL_COLUMNS),
        ),
        Step(shim=runs * last, write=runs * last * ALL_COLUMNS),
    )


def _rotation(p: Mapping[str, int], _: BlockForm) -> tuple[Step, ...]:
    append = "kv_heads" in p
    return row_rotation(
        p["M"], p["kv_heads" if append else "heads"], p["head_dim"], p["rotary_dim"],
        interleaved=bool(p["interleaved"]), norm=bool(p["norm"]), append=append,
    )  # fmt: skip


SEQUENCES: Costs = {
    "gemm": ("gemm", lambda p, _: gemm(p["M"], p["K"], p["N"])),
    "gate": ("vector", lambda p, _: row_gate(p["M"], p["N"], bool(p["kind"]))),
    "add_norm": (
        "vector", lambda p, _: row_norm(p["M"], p["n"], bool(p["residual"]), bool(p["norm"]))
    ),
    "rotate": ("vector", _rotation),
    "append_rows": ("vector", _rotation),
}  # fmt: skip
SEQUENCES_BFP16: Costs = {
    **SEQUENCES, "gemm": ("gemm", lambda p, _: gemm(p["M"], p["K"], p["N"], bfp16=True)),
}  # fmt: skip
