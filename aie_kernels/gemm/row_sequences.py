"""The sequences of the row operators; `row_operators` says what they run on.

Rows: any M; below 64, buffers have 64 rows. Columns of the array have bands of 64 rows, and a band
that would pass the end is moved back, as in GEMM: it computes some rows twice, with the same
result, so the output must not be an input. Columns: 512 at a time, of which the last are moved back
likewise; below 512, as two halves of 256 that overlap, and below 256, where whole heads are
rotated, as four quarters of 128.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ort_aie_ep.aie_kernels import limits
from ort_aie_ep.aie_kernels.gemm.row_kernels import (
    CORE,
    CORES,
    GELU_GATE,
    HEAD,
    HEAD_NORM,
    IN_BLOCKS,
    INTERLEAVED,
    MEAN,
    NARROW,
    NORM,
    OBJECTS,
    ROTARY,
    ROTATE,
    ROWS_PREPARE,
    ROWS_STORE,
    ROWS_TAKE,
    SILU_GATE,
    SLABS,
    SUM,
)
from ort_aie_ep.npu.terms.design import Design
from ort_aie_ep.npu.terms.device import TILES, WORD
from ort_aie_ep.npu.terms.kernel import Kernel
from ort_aie_ep.npu.terms.sequence import (
    Expr,
    Sequence,
    Value,
    at_most,
    ceil_div,
    equal,
    expr,
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
MAX_STEP = TILES["shim"].max_step * WORD  # bytes: the largest stride of a shim's descriptor
RUN_RESULTS = 256  # of a column in a run: below 0.1 s, and below 140,000 words


def add_sequences(design: Design) -> None:
    """All sequences of the row operators, for a GEMM design that has them."""
    _add_gate(design)
    _add_add_norm(design)
    _add_rotate(design)
    _add_append_rows(design)


def _add_gate(design: Design) -> None:
    """y = act(gate) * up: silu (kind 0) or gelu in its tanh form (kind 1).

    All are (max(M, 64), N) bf16.
    """
    s = design.sequence("gate", "M", "N", "kind")
    M, N, kind = s.symbols()
    rows = _rows(s, M)
    s.require(
        at_most(HALF, N) * equal(N % 2, 0), f"N={{N}} must be even and at least {HALF} elements"
    )
    s.require(at_most(N, MAX_COLUMNS), f"N={{N}} is above {MAX_COLUMNS}: divide the columns")
    s.require(equal(kind, 0) + equal(kind, 1), "kind={kind} must be 0 (silu) or 1 (gelu)")
    gate, up = (s.argument(name, "in", rows * N * 2) for name in ("gate", "up"))
    y = s.argument("y", "out", rows * N * 2)
    architecture = design.device.architecture
    silu, gelu = (
        _result_cycles(architecture, operator, range(2 * OBJECTS))
        for operator in (SILU_GATE, GELU_GATE)
    )
    _by_results(
        s, design, rows, N, y,
        operands=(gate, up),
        mode=SILU_GATE + kind * (GELU_GATE - SILU_GATE),
        cycles=(1 - kind) * silu + kind * gelu,
    )  # fmt: skip


def _add_add_norm(design: Design) -> None:
    """sum = x + residual, and y = the RMS norm of sum, or of x, times weight.

    All but weight (K) are (max(M, 64), K) bf16. The mean is over `n` elements; the elements beyond
    them are zero in x, residual and weight, and so in sum and y. Without `residual` (0) the buffers
    residual and sum are empty; without `norm` (0) weight and y are empty. `eps_bits`: float32.
    """
    s = design.sequence("add_norm", "M", "K", "n", "residual", "norm", "eps_bits")
    M, K, n, residual, norm, eps = s.symbols()
    rows = _rows(s, M)
    s.require(
        less(0, K) * equal(K % HALF, 0), f"K={{K}} must be a multiple of {HALF}: pad with zeros"
    )
    s.require(
        at_most(K, HALF * limits.SLABS), f"K={{K}} is above {HALF * limits.SLABS}: no room in L1"
    )
    s.require(less(0, n) * at_most(n, K), "n={n} must be at least 1 and at most K={K}")
    s.require(at_most(residual, 1) * at_most(0, residual), "residual={residual} must be 0 or 1")
    s.require(at_most(norm, 1) * at_most(0, norm), "norm={norm} must be 0 or 1")
    s.require(less(0, residual + norm), "residual and norm are both 0: nothing is left to do")
    size = rows * K * 2
    x = s.argument("x", "in", size)
    other = s.argument("residual", "in", residual * size)
    weight = s.argument("weight", "in", norm * K * 2)
    total = s.argument("sum", "inout", residual * size)  # is read back by the norm
    y = s.argument("y", "out", norm * size)
    with s.when(residual):
        _by_results(
            s, design, rows, K, total,
            operands=(x, other),
            mode=expr(SUM),
            cycles=expr(_result_cycles(design.device.architecture, SUM, range(2 * OBJECTS))),
        )  # fmt: skip
    with s.when(norm * residual):
        _norm(s, design, rows, K, n, eps, total, weight, y)
    with s.when(norm * (1 - residual)):
        _norm(s, design, rows, K, n, eps, x, weight, y)


def _norm(
    s: Sequence, design: Design, rows: Expr, K: Expr, n: Expr, eps: Expr, x: str, weight: str,
    y: str,
) -> None:  # fmt: skip
    """For each band of rows all of x, then 512 columns at a time again."""
    columns = design.device.columns
    slabs = K // HALF
    mode = NORM + SLABS * slabs + MEAN * n
    architecture = design.device.architecture
    most = NORM + SLABS * limits.SLABS + MEAN
    look = max(OBJECT_WAY, ROWS_PREPARE.cycles(architecture, (most, 0, 1, 0)))
    roots = ROWS_PREPARE.cycles(architecture, (most, 0, 1, 4 * limits.SLABS - 1))
    result = _result_cycles(architecture, most, range(OBJECTS))

    with _rounds(s, rows, K, columns) as (count, turn, tiles, bands):
        with s.when(equal(turn, 0)):
            _send_weights(s, columns, weight, slabs)
        for column, row in enumerate(bands):
            s.transfer(
                f"a{column}", x, offset=row * K * 2, run=2 * HALF,
                outer=[(slabs, 2 * HALF), (ROWS, K * 2)],
            )  # fmt: skip
        with s.when(equal(turn, 0)):
            _start(s, design, eps, count, mode)
            s.work(count * (slabs * round(4 * look) + round(roots) + tiles * result))
        with s.loop("tile", tiles) as tile:
            for column, row in enumerate(bands):
                _send(s, column, x, row, K, tile, K)
            for column, row in enumerate(bands):
                _receive(s, column, y, row, tile, K)


def _add_rotate(design: Design) -> None:
    """y = x with each head normalised (if `norm`) and rotated by its row's position.

    y is (max(M, 64), heads, head_dim) bf16; rows of x are `x_stride` elements apart, so that x may
    be a part of a product. weight (head_dim), empty if `norm` is 0; table (max(M, 64), rotary_dim):
    rotary_dim/2 cosines of the row's position, then as many sines, empty if rotary_dim is 0.
    `interleaved` rotates neighbours, otherwise the halves of `rotary_dim`; elements beyond
    rotary_dim are copied. `eps_bits`: float32.
    """
    s = design.sequence("rotate", "M", "heads", *_ROTATION)
    M, heads, head_dim = s.symbols()[:3]
    rows = _rows(s, M)
    mode = _require_rotation(s, rows, heads)
    width = heads * head_dim
    y = s.argument("y", "out", rows * width * 2)
    _rotate(
        s, design, rows, mode,
        lambda column, row, tile: _receive(s, column, y, row, tile, width),
    )  # fmt: skip


def _add_append_rows(design: Design) -> None:
    """Write the keys of a prompt's rows, or values with `rotary_dim` 0, into the cache.

    x, weight, table and the first parameters are those of `rotate`; cache is (kv_heads, capacity/8,
    head_dim/8, 8 keys, 8 dimensions) bf16. The rows become its keys from `position` on. Only whole
    groups of 8 keys are written: M, at least 64, and `position` are multiples of 8.
    """
    s = design.sequence("append_rows", "M", "kv_heads", *_ROTATION, "position", "capacity")
    M, heads, head_dim = s.symbols()[:3]
    position, capacity = s.symbols()[-2:]
    s.require(
        at_most(ROWS, M) * equal(M % 8, 0), f"M={{M}} must be a multiple of 8, and at least {ROWS}"
    )
    mode = _require_rotation(s, M, heads)
    head_bytes = capacity * head_dim * 2
    s.require(
        at_most(0, position) * equal(position % 8, 0),
        "position={position} must be a multiple of 8 keys, and not negative",
    )
    s.require(equal(capacity % 8, 0), "capacity={capacity} must be a multiple of 8 keys")
    s.require(at_most(position + M, capacity), "capacity={capacity} has no room for the new keys")
    s.require(
        less(64, head_dim) + at_most(head_bytes, MAX_STEP),
        f"capacity={{capacity}}: heads of 64 that are more than {MAX_STEP} bytes apart",
    )
    cache = s.argument("cache", "inout", heads * head_bytes)

    def keys(column: int, row: Expr, core: Expr, first: Expr, *, quarters: int) -> None:
        """16 rows x 128 columns of a core, `quarters` times, from column `first` of the row on."""
        start = (position + row + core * OWN) * head_dim * 2
        start = start + first // head_dim * head_bytes + first % head_dim * 16
        group = head_dim * 16  # bytes of 8 keys
        around: dict[int, list[tuple[Value, Value]]] = {
            64: [(quarters, head_bytes * 2)],
            128: [(quarters, head_bytes)],
            256: [(quarters // 2, head_bytes), (2, 2048)] if quarters > 1 else [],
        }
        within: dict[int, list[tuple[Value, Value]]] = {
            64: [(2, group), (2, head_bytes)],
            128: [],
            256: [(2, group)],
        }
        for dim, run in ((64, 1024), (128, 4096), (256, 2048)):
            with s.when(equal(head_dim, dim)):
                s.transfer(
                    f"c{column}", cache, offset=start, run=run, outer=[*around[dim], *within[dim]]
                )

    def receive(column: int, row: Expr, tile: Expr) -> None:
        width = heads * head_dim
        with s.loop("core", CORES) as core:
            with s.when(at_most(WIDTH, width)):
                keys(column, row, core, _first_column(tile, width), quarters=4)
            with (
                s.when(less(width, WIDTH)),
                s.loop("half", 2) as half,
                s.loop("quarter", 2) as quarter,
            ):
                first = (_half_step(width) * half + _quarter_step(width) * quarter) // 2
                keys(column, row, core, first, quarters=1)

    _rotate(s, design, M, mode + IN_BLOCKS, receive)


#: The parameters of a rotation, behind the rows and the heads.
_ROTATION = ("head_dim", "rotary_dim", "interleaved", "norm", "eps_bits", "x_stride")


def _require_rotation(s: Sequence, rows: Expr, heads: Expr) -> Expr:
    """What heads must be, and their arguments; gives the mode."""
    head_dim, rotary_dim, interleaved, norm, _, stride = s.symbols()[2:8]
    width, name = heads * head_dim, heads.left
    s.require(
        equal(head_dim, 64) + equal(head_dim, 128) + equal(head_dim, 256),
        "head_dim={head_dim} must be 64, 128 or 256",
    )
    s.require(
        at_most(GROUP, width), f"{name}={{{name}}} x head_dim={{head_dim}} must be at least {GROUP}"
    )
    s.require(at_most(width, MAX_COLUMNS), f"{name}={{{name}}}: above {MAX_COLUMNS} columns")
    s.require(
        at_most(0, rotary_dim) * at_most(rotary_dim, head_dim) * equal(rotary_dim % 32, 0),
        "rotary_dim={rotary_dim} must be a multiple of 32 up to head_dim={head_dim}",
    )
    s.require(
        equal(interleaved, 0) + equal(interleaved, 1), "interleaved={interleaved}: not 0 or 1"
    )
    s.require(equal(norm, 0) + equal(norm, 1), "norm={norm} must be 0 or 1")
    s.require(
        at_most(width, stride) * equal(stride % 2, 0),
        "x_stride={x_stride} must be even, and at least heads x head_dim",
    )
    s.argument("x", "in", ((rows - 1) * stride + width) * 2)
    s.argument("weight", "in", norm * head_dim * 2)
    turned = less(0, rotary_dim)
    # A row of 256 of A's memory tile begins in one row of the table and may end in the next.
    s.argument("table", "in", turned * ((rows - 1) * rotary_dim * 2 + 2 * HALF // 2 + rotary_dim))
    return (
        ROTATE
        + HEAD * (head_dim // 128)
        + ROTARY * (rotary_dim // 32)
        + INTERLEAVED * interleaved
        + HEAD_NORM * norm
        + NARROW * equal(width, GROUP)
    )


def _rotate(
    s: Sequence, design: Design, rows: Expr, mode: Expr,
    receive: Callable[[int, Expr, Expr], None],
) -> None:  # fmt: skip
    """Heads of `rows`, 512 columns at a time; `receive(column, row, tile)` takes a result away."""
    heads, head_dim, rotary_dim, _, norm, eps, stride = s.symbols()[1:8]
    x, weight, table = (argument.name for argument in s.arguments[:3])
    width, turned, columns = heads * head_dim, less(0, rotary_dim), design.device.columns
    with (
        _rounds(s, rows, width, columns) as (count, turn, tiles, bands),
        s.loop("tile", tiles) as tile,
    ):
        with s.when(equal(turn + tile, 0) * norm):
            for column in range(columns):
                s.transfer(
                    f"a{column}", weight, offset=0, run=head_dim * 2,
                    outer=[(ROWS * HALF // head_dim, 0)],
                )  # fmt: skip
        for column, row in enumerate(bands):
            _send(s, column, x, row, stride, tile, width)
        with s.when(turned):
            for column, row in enumerate(bands):
                s.transfer(
                    f"a{column}", table, offset=row * rotary_dim * 2, run=64,
                    outer=[(ROWS, rotary_dim * 2), (4, 64), (2, rotary_dim)],
                )  # fmt: skip
        with s.when(equal(turn + tile, 0)):
            _start(s, design, eps, count * tiles, mode)
            s.work(count * tiles * _rotation_cycles(design, head_dim, turned, norm))
        for column, row in enumerate(bands):
            receive(column, row, tile)


def _rotation_cycles(design: Design, head_dim: Expr, turned: Expr, norm: Expr) -> Expr:
    """Cycles of a result in a core, at full rotary dimensions."""
    cycles = expr(0)
    for code, dim in enumerate((64, 128, 256)):
        mode = ROTATE + HEAD * code + ROTARY * (dim // 32)
        plain, normed, table = (
            _result_cycles(design.device.architecture, mode + more, objects)
            for more, objects in (
                (0, range(OBJECTS)),
                (HEAD_NORM, range(OBJECTS)),
                (0, range(OBJECTS, OBJECTS + 4)),
            )
        )
        table -= _result_cycles(design.device.architecture, mode, range(0))
        here = plain + norm * (normed - plain) + turned * table
        cycles = cycles + equal(head_dim, dim) * here
    return cycles


# --- what they share ------------------------------------------------------------------------------
def _rows(s: Sequence, M: Expr) -> Expr:
    s.require(at_most(1, M), "M={M} must be at least 1")
    return maximum(M, ROWS)


def _result_cycles(architecture: str, mode: int, objects: range) -> int:
    """Cycles of a result in a core: a core takes an object no faster than it arrives, and a part
    that has left makes room for the next."""

    def cycles(kernel: Kernel, *scalars: int) -> float:
        return kernel.cycles(architecture, scalars)

    taken = sum(max(OBJECT_WAY, cycles(ROWS_TAKE, mode, 0, 0, index)) for index in objects)
    return round(taken + PARTS * (PART_WAY + cycles(ROWS_STORE, mode, 0)))


def _by_results(
    s: Sequence, design: Design, rows: Expr, N: Expr, y: str,
    *, operands: tuple[str, ...], mode: Expr, cycles: Expr,
) -> None:  # fmt: skip
    """Element by element: for 512 columns at a time all of `operands`, then the result."""
    columns = design.device.columns
    with _rounds(s, rows, N, columns) as (count, turn, tiles, bands), s.loop("tile", tiles) as tile:
        for argument in operands:
            for column, row in enumerate(bands):
                _send(s, column, argument, row, N, tile, N)
        # Data is on its way while the parameters are written.
        with s.when(equal(turn + tile, 0)):
            _start(s, design, 0, count * tiles, mode)
            s.work(count * tiles * cycles)
        for column, row in enumerate(bands):
            _receive(s, column, y, row, tile, N)


def _send_weights(s: Sequence, columns: int, weight: str, slabs: Expr) -> None:
    """A row of 256 weights for each slab, and more of them up to what the memory tile holds."""
    once = 2 * HALF * slabs
    whole = equal(ROWS % slabs, 0)
    for column in range(columns):
        with s.when(whole):
            s.transfer(f"a{column}", weight, offset=0, run=once, outer=[(ROWS // slabs, 0)])
        with s.when(1 - whole):
            s.transfer(f"a{column}", weight, offset=0, run=once)
            s.transfer(f"a{column}", weight, offset=0, run=2 * HALF, outer=[(ROWS - slabs, 0)])


Round = tuple[Expr, Expr, Expr, list[Expr]]


@contextmanager
def _rounds(s: Sequence, rows: Expr, N: Expr, columns: int) -> Iterator[Round]:
    """Begin a round of bands, one per column of the array. Return the number of rounds in the run,
    the index of the round, the results of 512 columns, and the first row of each band."""
    s.let("rows", rows)
    rounds = s.let("rounds", ceil_div(rows, columns * ROWS))
    tiles = s.let("tiles", ceil_div(N, WIDTH))
    per_run = s.let("per_run", maximum(1, RUN_RESULTS // tiles))
    with s.loop("run", ceil_div(rounds, per_run)) as run:
        count = s.let("count", minimum(per_run, rounds - run * per_run))
        with s.loop("round", count) as turn:
            first = (run * per_run + turn) * columns * ROWS
            bands = [
                s.let(f"row{i}", minimum(first + i * ROWS, rows - ROWS)) for i in range(columns)
            ]
            yield count, turn, tiles, bands
        s.wait(*(f"c{column}" for column in range(columns)))
        s.cut()


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
    with s.when(less(N, WIDTH) * less(GROUP, N)):
        for half in range(2):
            s.transfer(
                f"a{column}", argument, offset=start + _half_step(N) * half, run=2 * GROUP,
                outer=[(ROWS, stride * 2), (2, _quarter_step(N))],
            )  # fmt: skip
    # A step inside a descriptor cannot be 0. Here the cores look only at the first two objects, so
    # each row is read on into the next one; the last is read twice, and then repeated as filler.
    with s.when(equal(N, GROUP)):
        last = start + (ROWS - 1) * stride * 2
        s.transfer(
            f"a{column}", argument, offset=start, run=2 * HALF, outer=[(ROWS - 1, stride * 2)]
        )
        s.transfer(f"a{column}", argument, offset=last, run=2 * GROUP, outer=[(2, 0)])
        s.transfer(f"a{column}", argument, offset=last, run=2 * GROUP, outer=[(2 * ROWS, 0)])


def _half_step(N: Expr) -> Expr:
    """Bytes from the first half of fewer than 512 columns to the second."""
    return maximum(N - HALF, 0) * 2


def _quarter_step(N: Expr) -> Expr:
    """Bytes from the first quarter of a half to the second."""
    return minimum(N - GROUP, GROUP) * 2


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
            outer=[(2, _half_step(N)), (2, _quarter_step(N)), (OWN, line)],
        )  # fmt: skip


def _first_column(tile: Expr, N: Expr) -> Expr:
    return minimum(tile * WIDTH, N - WIDTH)
