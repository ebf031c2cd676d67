"""The sequences of the row operators; `row_operators` says what they run on.

Rows: any M; below 64, buffers have 64 rows. Columns of the array have bands of 64 rows, and a band
that would pass the end is moved back, as in GEMM: it computes some rows twice, with the same
result, so the output must not be an input. Columns: 512 at a time, of which the last are moved back
likewise; below 512, as two halves of 256 that overlap.
"""

from __future__ import annotations

from ort_aie_ep.aie_kernels.catalog_rows import (
    CORE,
    CORES,
    GELU_GATE,
    OBJECTS,
    ROWS_STORE,
    ROWS_TAKE,
    SILU_GATE,
)
from ort_aie_ep.npu.vocabulary.design import Design
from ort_aie_ep.npu.vocabulary.kernel import Kernel
from ort_aie_ep.npu.vocabulary.sequence import (
    Expr,
    Sequence,
    Value,
    at_most,
    ceil_div,
    equal,
    less,
    maximum,
    minimum,
)

ROWS = 64  # of a band
OWN = ROWS // CORES  # rows of a core
HALF = 256  # columns that A's memory tiles hold
WIDTH = 512  # columns of a result
GROUP = 128  # of its columns leave together
PARTS = 4
OBJECT_WAY = ROWS * 64 * 2 // 4  # cycles that an object takes, at 4 bytes each
PART_WAY = ROWS * 32 * 2 // 4  # and a part
MAX_COLUMNS = 65536
RUN_RESULTS = 256  # of a column in a run: below 0.1 s, and below 140,000 words


def add_sequences(design: Design) -> None:
    """All sequences of the row operators, for a design of GEMM's that has them."""
    _add_gate(design)


def _add_gate(design: Design) -> None:
    """y = act(gate) * up: silu (kind 0) or gelu in its tanh form (kind 1).

    y is (max(M, 64), N) bf16. Rows of gate are `gate_stride` elements apart, those of up
    `up_stride`, so that both can lie side by side in one product.
    """
    s = design.sequence("gate", "M", "N", "kind", "gate_stride", "up_stride")
    M, N, kind, gate_stride, up_stride = s.symbols()
    rows = _rows(s, M)
    _require_columns(s, N)
    s.require(equal(kind, 0) + equal(kind, 1), "kind={kind} must be 0 (silu) or 1 (gelu)")
    gate = _operand(s, "gate", rows, N, gate_stride)
    up = _operand(s, "up", rows, N, up_stride)
    y = s.argument("y", "out", rows * N * 2)
    architecture = design.device.architecture
    silu, gelu = (
        _result_cycles(architecture, operator, range(2 * OBJECTS))
        for operator in (SILU_GATE, GELU_GATE)
    )
    _by_results(
        s, design, rows, N, y,
        operands=((gate, gate_stride), (up, up_stride)),
        mode=SILU_GATE + kind * (GELU_GATE - SILU_GATE),
        cycles=(1 - kind) * silu + kind * gelu,
    )  # fmt: skip


# --- what they share ------------------------------------------------------------------------------
def _rows(s: Sequence, M: Expr) -> Expr:
    s.require(at_most(1, M), "M={M} must be at least 1")
    return maximum(M, ROWS)


def _require_columns(s: Sequence, N: Expr) -> None:
    s.require(
        at_most(HALF, N) * equal(N % 2, 0), f"N={{N}} must be even and at least {HALF} elements"
    )
    s.require(at_most(N, MAX_COLUMNS), f"N={{N}} is above {MAX_COLUMNS}: divide the columns")


def _operand(s: Sequence, name: str, rows: Expr, N: Expr, stride: Expr) -> str:
    """An input whose rows of N elements are `stride` apart."""
    s.require(
        at_most(N, stride) * equal(stride % 2, 0),
        f"{stride.left}={{{stride.left}}} must be even, and at least N={{N}}",
    )
    return s.argument(name, "in", ((rows - 1) * stride + N) * 2)


def _result_cycles(architecture: str, operator: int, objects: range) -> int:
    """Cycles of a result in a core: an object is taken no faster than it comes, and a part that has
    left makes room for the next."""

    def cycles(kernel: Kernel, *scalars: int) -> float:
        return kernel.cycles(architecture, scalars)

    taken = sum(max(OBJECT_WAY, cycles(ROWS_TAKE, operator, index)) for index in objects)
    return round(taken + PARTS * (PART_WAY + cycles(ROWS_STORE, 0)))


def _by_results(
    s: Sequence, design: Design, rows: Expr, N: Expr, y: str,
    *, operands: tuple[tuple[str, Expr], ...], mode: Expr, cycles: Expr,
) -> None:  # fmt: skip
    """Element by element: for 512 columns at a time all of `operands`, then the result.

    `operands` are arguments with their strides, all with N columns.
    """
    columns = design.device.columns
    s.let("rows", rows)
    rounds = s.let("rounds", ceil_div(rows, columns * ROWS))
    tiles = s.let("tiles", ceil_div(N, WIDTH))
    per_run = s.let("per_run", maximum(1, RUN_RESULTS // tiles))

    with s.loop("run", ceil_div(rounds, per_run)) as run:
        count = s.let("count", minimum(per_run, rounds - run * per_run))
        with s.loop("round", count) as turn:
            bands = _bands(s, rows, (run * per_run + turn) * columns * ROWS, columns)
            with s.loop("tile", tiles) as tile:
                for argument, stride in operands:
                    for column, row in enumerate(bands):
                        _send(s, column, argument, row, stride, tile, N)
                # Data is on its way while the parameters are written.
                with s.when(equal(turn + tile, 0)):
                    _start(s, design, 0, count * tiles, mode)
                for column, row in enumerate(bands):
                    _receive(s, column, y, row, tile, N)
        s.work(count * tiles * cycles)
        s.wait(*(f"c{column}" for column in range(columns)))
        s.cut()


def _bands(s: Sequence, rows: Expr, first: Expr, columns: int) -> list[Expr]:
    """The first row that each column of the array has in a round."""
    return [s.let(f"row{i}", minimum(first + i * ROWS, rows - ROWS)) for i in range(columns)]


def _start(s: Sequence, design: Design, k_steps: Value, count: Expr, mode: Expr) -> None:
    for name, worker in design.workers.items():
        s.start(name, k_steps, count, mode + CORE * (worker.tile.row - 2))


def _send(
    s: Sequence, column: int, argument: str, row: Expr, stride: Expr, tile: Expr, N: Expr
) -> None:
    """64 rows x 512 columns of an operand to the cores of a column of the array."""
    start = row * stride * 2
    with s.when(at_most(WIDTH, N)):
        s.transfer(
            f"a{column}", argument, offset=start + _first_column(tile, N) * 2, run=2 * HALF,
            outer=[(2, 2 * HALF), (ROWS, stride * 2)],
        )  # fmt: skip
    with s.when(less(N, WIDTH)):
        for half in range(2):
            s.transfer(
                f"a{column}", argument, offset=start + (N - HALF) * (2 * half), run=2 * HALF,
                outer=[(ROWS, stride * 2)],
            )  # fmt: skip


def _receive(s: Sequence, column: int, y: str, row: Expr, tile: Expr, N: Expr) -> None:
    """A result, whose rows are dense in y."""
    line = N * 2
    with s.when(at_most(WIDTH, N)):
        s.transfer(
            f"c{column}", y, offset=row * line + _first_column(tile, N) * 2, run=2 * GROUP,
            outer=[(CORES, OWN * line), (4, 2 * GROUP), (OWN, line)],
        )  # fmt: skip
    with s.when(less(N, WIDTH)), s.loop("core", CORES) as core:
        s.transfer(
            f"c{column}", y, offset=(row + core * OWN) * line, run=2 * GROUP,
            outer=[(2, (N - HALF) * 2), (2, 2 * GROUP), (OWN, line)],
        )  # fmt: skip


def _first_column(tile: Expr, N: Expr) -> Expr:
    return minimum(tile * WIDTH, N - WIDTH)
