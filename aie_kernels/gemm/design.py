"""GEMM: C = A B for prefill and training (paper 2, section 3.1.2; paper 5).

README.md has dataflow, layouts, rules, buffers and what bounds it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np

from ort_aie_ep.aie_kernels import limits
from ort_aie_ep.aie_kernels.gemm import row_operators, row_sequences
from ort_aie_ep.aie_kernels.gemm.kernels import (
    GEMM_STORE_BF16,
    GEMM_STRIP,
    GEMM_TILE,
    GEMM_TILE_BFP16,
    GEMM_ZERO,
)
from ort_aie_ep.formats import bf16_blocks, bfp16
from ort_aie_ep.npu.terms.design import (
    Acquire,
    Body,
    Buffer,
    Core,
    Design,
    Layout,
    Parameters,
    Release,
    Steps,
    call,
)
from ort_aie_ep.npu.terms.device import Device
from ort_aie_ep.npu.terms.errors import DesignError
from ort_aie_ep.npu.terms.kernel import Array, Kernel
from ort_aie_ep.npu.terms.sequence import (
    Expr,
    Sequence,
    at_most,
    ceil_div,
    equal,
    expr,
    less,
    maximum,
    minimum,
)

Weights = Literal["bf16", "bfp16"]

ROWS = 64  # m: rows of a core's block
STEP = 64  # k: depth of one object of A and B on a core
PART = 32  # n: columns of a part, and rows of a Q4NX block
STRIPS = 4  # of 8 columns of a part
SLAB = 256  # k of an object of A in the memory tile, and of a Q4NX block
CORES = 4  # of a column
PARTS = 4  # of a core's block
WIDTH = PARTS * PART  # columns of it
ROW = 2 * WIDTH  # bytes of one of its rows
TILE_WIDTH = CORES * WIDTH
STACK = 0xD00  # bytes; AMD's for its GEMM

A_OBJECT = ROWS * STEP  # elements on a core
B_OBJECT = STEP * PART
ACC = Array("f32", ROWS * WIDTH)
#: From 64 rows x 256 k, row-major, to [32 kb][8 mb][8 m][8 k].
A_LAYOUT = Layout(((SLAB // 8, 16), (ROWS, 2 * SLAB), (4, 4)))
MAX_ITERATIONS = 64  # of a shim descriptor
RUN_WORK = 1 << 30  # N * K of the rounds of one run: below 0.4 s on every device


def build(device: Device) -> Design:
    """GEMM on all columns of `device`.

    A sequence `gemm(M, K, N)`: a (max(M, 64), K) bf16, b bf16 as `bf16_blocks.pack` gives it, c
    (max(M, 64), N) bf16; and those of `row_sequences` on AIE2P. Raises DesignError for a number of
    columns over which four rows of cores cannot be divided evenly.
    """
    return make("gemm", device, "bf16")


def make(name: str, device: Device, weights: Weights) -> Design:
    """The design for such weights. Raises DesignError as `build` does."""
    if min(device.columns, CORES) not in (1, 2, 4):
        raise DesignError(
            f"gemm on {device.name}: it has {device.columns} columns; B of the 4 rows of "
            "cores enters through 1, 2 or 4 of them"
        )
    shape, design = Blocking(device, weights), Design(name, device)
    for group in range(shape.groups):
        _place_b(design, shape, group)
    for c in range(device.columns):
        _place_column(design, shape, c)
    _add_sequence(design, shape)
    if shape.row_operators:
        row_sequences.add_sequences(design)
    return design


def pack_b_bfp16(weights: np.ndarray) -> np.ndarray:
    """B in the order in which `gemm_bfp16` reads it, and in which `dequant_bfp16` writes it.

    `weights` is (N, K), i.e. B transposed, as projections store it, N a multiple of 32 and K of
    256; the bfloat16 of 8 in-features share an exponent (`formats.bfp16`).
    Gives (N/32, K/256, 4, 2, 8, 2, 8, 9) uint8: n block, k block, k-step, pair, kb, nb, n, byte.
    """
    # n block, k block, k-step, kb, pair, nb, k, n
    blocks = bf16_blocks.pack(weights).astype(np.float32)
    blocks = blocks.reshape(*blocks.shape[:2], 4, 8, 2, 2, 8, 8).transpose(0, 1, 2, 4, 3, 5, 7, 6)
    return bfp16.encode(np.ascontiguousarray(blocks))


class Blocking:
    """How C is divided over this many columns, and the order of B."""

    def __init__(self, device: Device, weights: Weights) -> None:
        self.columns = columns = device.columns
        self.weights = weights
        self.row_operators = device.architecture == "aie2p"
        self.groups = min(columns, CORES)  # of rows of cores that share a B channel
        self.rows = CORES // self.groups  # of cores in a group
        # A memory tile that feeds four rows has room for half the depth.
        self.b_steps = 2 if self.rows == CORES else 4
        self.depth = self.b_steps * STEP  # k of an object of B in the memory tile
        tile = GEMM_TILE if weights == "bf16" else GEMM_TILE_BFP16
        #: B on a core; eight values have `b_eight` bytes.
        self.b = Array("bf16", B_OBJECT) if weights == "bf16" else Array("u8", B_OBJECT // 8 * 9)
        self.b_eight = 16 if weights == "bf16" else 9
        # A whole part of C has room where B is shorter.
        self.strips = 2 if weights == "bf16" else STRIPS
        self.tile = with_arrays(tile, Array("bf16", A_OBJECT), self.b, ACC)


def with_arrays(kernel: Kernel, *arrays: Array) -> Kernel:
    """The kernel with the sizes that are behind its first pointers in a design."""
    return replace(kernel, arguments=(*arrays, *kernel.arguments[len(arrays) :]))


# --- tiles and fifos ------------------------------------------------------------------------------
def _place_b(design: Design, shape: Blocking, group: int) -> None:
    """B of the rows of cores of a group: in through one memory tile, out to every column."""
    each = PARTS * shape.b_steps * shape.b.count
    slab = design.fifo(
        f"b{group}", shape.b.element, shape.rows * each, design.shim(group, 1), design.mem(group)
    )
    rows = [
        design.fifo(
            f"b_row{row}", shape.b.element, each, design.mem(group, layout=_block_layout(shape)),
            [design.core(c, row, object=shape.b) for c in range(shape.columns)],
        )
        for row in range(group * shape.rows, (group + 1) * shape.rows)
    ]  # fmt: skip
    if len(rows) == 1:
        design.forward(slab, rows[0])
    else:
        design.split(slab, rows)


def _block_layout(shape: Blocking) -> Layout:
    """How B in blocks leaves its memory tile: k-step by k-step, and in a k-step part by part."""
    run = shape.b_steps * shape.b.bytes  # contiguous bytes of one part in the slab
    # An object in pieces, as mlir-aie counts up to 512 elements.
    pieces = 4 if shape.weights == "bf16" else 8
    piece = shape.b.bytes // pieces
    return Layout(((shape.b_steps, shape.b.bytes), (PARTS, run), (pieces, piece), (piece // 4, 4)))


def c_layout(width: int) -> Layout:
    """How strips arrive in the memory tile: as 64 rows of `width` elements."""
    return Layout(((width // 8, 16), (ROWS, 2 * width), (4, 4)))


def _place_column(design: Design, shape: Blocking, c: int) -> None:
    slab = design.fifo(f"a{c}", "bf16", ROWS * SLAB, design.shim(c, 0), design.mem(c))
    a = design.fifo(
        f"a_column{c}", "bf16", ROWS * SLAB,
        design.mem(c, layout=A_LAYOUT),
        [design.core(c, r, object=Array("bf16", A_OBJECT)) for r in range(CORES)],
    )  # fmt: skip
    design.forward(slab, a)
    arrive = c_layout(WIDTH)
    outputs = []
    rows = shape.row_operators
    for r in range(CORES):
        out = design.fifo(
            f"c{c}_{r}", "bf16", GEMM_STRIP,
            design.core(c, r, shape.strips),
            design.mem(c, layout=arrive, object=Array("bf16", ROWS * WIDTH)),
        )  # fmt: skip
        outputs.append(out)
        design.worker(
            f"gemm{c}_{r}", design.core(c, r), _body(shape),
            inputs={"a": a, "b": design.fifos[f"b_row{r}"]}, outputs={"c": out},
            buffers=[Buffer("acc", ACC), *(row_operators.BUFFERS if rows else ())],
            parameters=["k_steps", "blocks", *(row_operators.PARAMETERS if rows else ())],
            kernels=[
                GEMM_ZERO, shape.tile, GEMM_STORE_BF16, *(row_operators.KERNELS if rows else ())
            ],
            stack=STACK,
        )  # fmt: skip
    joined = design.fifo(f"c{c}", "bf16", CORES * ROWS * WIDTH, design.mem(c), design.shim(c, 0))
    design.join(outputs, joined)


def _body(shape: Blocking) -> Body:
    def multiply(a: Any, acc: Any, part: int) -> Steps:
        b = yield Acquire("b")
        yield call(shape.tile, a, b, acc, ROWS // 8, STEP // 8, PART // 8, part)
        yield Release("b")

    def products(core: Core, k_steps: Any, blocks: Any) -> Steps:
        acc = core.buffer("acc")
        for _ in core.loop(blocks):
            yield call(GEMM_ZERO, acc, ACC.count)
            for _ in core.loop(k_steps):
                a = yield Acquire("a")
                for part in range(PARTS):
                    yield from multiply(a, acc, part)
                yield Release("a")
            # A part leaves while the next one is computed.
            a = yield Acquire("a")
            for part in range(PARTS):
                yield from multiply(a, acc, part)
                if part == PARTS - 1:
                    yield Release("a")
                for strip in range(STRIPS):
                    c = yield Acquire("c")
                    yield call(GEMM_STORE_BF16, acc, c, STRIPS * part + strip)
                    yield Release("c")

    def body(core: Core) -> Steps:
        if shape.row_operators:
            yield from row_operators.body(core, products)
        else:
            k_steps, blocks = yield Parameters()
            yield from products(core, k_steps, blocks)

    return body


# --- the sequence ---------------------------------------------------------------------------------
def _add_sequence(design: Design, shape: Blocking) -> Sequence:
    s = design.sequence("gemm", "M", "K", "N")
    M, K, N = s.symbols()
    least = shape.rows * WIDTH
    s.require(at_most(1, M), "M={M} must be at least 1")
    s.require(
        less(0, K) * equal(K % SLAB, 0), "K={K} must be a multiple of 256: pad A and B with zeros"
    )
    s.require(at_most(K, limits.GEMM_K), f"K={{K}} is above {limits.GEMM_K}: divide K")
    s.require(equal(N % PART, 0), f"N={{N}} must be a multiple of {PART}: pad B with zeros")
    s.require(at_most(least, N), f"N={{N}} must be at least {least} here: pad B with zeros")
    rows = maximum(M, ROWS)
    a = s.argument("a", "in", rows * K * 2)
    b = s.argument("b", "in", N * K // 8 * shape.b_eight)
    c = s.argument("c", "out", rows * N * 2)

    s.let("rows", rows)
    band = shape.columns * ROWS
    rounds = s.let("rounds", ceil_div(rows, band))
    full = s.let("full", N // TILE_WIDTH)  # megatiles of a round
    tiles = s.let("tiles", ceil_div(N, TILE_WIDTH))
    # A unit is what one C descriptor can iterate over, or the incomplete last megatile.
    units = s.let("units", ceil_div(full, MAX_ITERATIONS) + tiles - full)
    per_run = s.let("per_run", maximum(1, expr(RUN_WORK) // (N * K)))

    with s.loop("run", ceil_div(rounds, per_run)) as run:
        count = s.let("count", minimum(per_run, rounds - run * per_run))
        with s.loop("round", count) as turn, s.loop("unit", units) as unit:
            first_row = (run * per_run + turn) * band
            starts = [
                s.let(f"row{i}", minimum(first_row + i * ROWS, rows - ROWS))
                for i in range(shape.columns)
            ]
            first = s.let("first", minimum(unit * MAX_ITERATIONS, full))
            whole = s.let("whole", minimum(MAX_ITERATIONS, full - first))
            in_unit = s.let("in_unit", maximum(1, whole))
            for i, row in enumerate(starts):
                _send_a(s, i, a, row, K, in_unit)
            _send_b(s, shape, b, K, N, first)
            # Data is on its way while the parameters are written.
            with s.when(equal(turn + unit, 0)):
                for name in design.workers:
                    s.start(
                        name, K // STEP - 1, count * tiles, *([0] if shape.row_operators else [])
                    )
            # C before the rest of B, whose waits for a free descriptor depend on it.
            for i, row in enumerate(starts):
                _receive_c(s, shape, i, c, row, N, first, whole)
            with s.loop("tile", in_unit - 1) as tile:
                _send_b(s, shape, b, K, N, first + tile + 1)
        s.work(count * tiles * _block_cycles(design.device, shape, K // STEP))
        s.wait(*(f"c{i}" for i in range(shape.columns)))
        s.cut()
    return s


def _send_a(s: Sequence, column: int, a: str, row: Expr, K: Expr, times: Expr) -> None:
    s.transfer(
        f"a{column}", a, offset=row * K * 2, run=2 * SLAB,
        outer=[(times, 0), (K // SLAB, 2 * SLAB), (ROWS, 2 * K)],
    )  # fmt: skip


def _band(shape: Blocking, tile: Expr, group: int, N: Expr) -> Expr:
    """First column of C that the rows of cores of a group compute in a megatile."""
    own = shape.rows * WIDTH
    return minimum(tile * TILE_WIDTH + group * own, N - own)


def _send_b(s: Sequence, shape: Blocking, b: str, K: Expr, N: Expr, tile: Expr) -> None:
    for group in range(shape.groups):
        start = _band(shape, tile, group, N)
        run = shape.b_steps * shape.b.bytes
        line = K * (PART // 8 * shape.b_eight)  # bytes of 32 columns
        s.transfer(
            f"b{group}", b, offset=start // PART * line, run=run,
            outer=[(K // shape.depth, run), (shape.rows * PARTS, line)],
        )  # fmt: skip


def _receive_c(
    s: Sequence, shape: Blocking, column: int, c: str, row: Expr, N: Expr, first: Expr, whole: Expr
) -> None:
    line = N * 2
    s.transfer(
        f"c{column}", c, offset=row * line + first * (CORES * ROW), run=ROW,
        outer=[(whole, CORES * ROW), (CORES, ROW), (ROWS, line)],
    )  # fmt: skip
    with s.when(equal(whole, 0)):
        for group in range(shape.groups):
            start = _band(shape, first, group, N)
            s.transfer(
                f"c{column}", c, offset=row * line + start * 2, run=ROW,
                outer=[(shape.rows, ROW), (ROWS, line)],
            )  # fmt: skip


def _block_cycles(device: Device, shape: Blocking, k_steps: Expr) -> Expr:
    """Core cycles of one block of C, without waiting for data."""

    def cycles(kernel: Kernel, *scalars: int) -> int:
        return int(kernel.cycles(device.architecture, scalars))

    tile = cycles(shape.tile, ROWS // 8, STEP // 8, PART // 8, 0)
    store = STRIPS * cycles(GEMM_STORE_BF16, 0)
    zero = cycles(GEMM_ZERO, ACC.count)
    return k_steps * (PARTS * tile) + PARTS * store + zero
