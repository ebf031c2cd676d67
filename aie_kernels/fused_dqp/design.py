"""FusedDQP: y = W x with W in Q4NX, for decoding (paper 1, section III-A; paper 2, 3.2.1).

README.md has dataflow, rules and what was tried.
"""

from __future__ import annotations

from ort_aie_ep.aie_kernels import limits
from ort_aie_ep.aie_kernels.cycles import form_scalars
from ort_aie_ep.aie_kernels.fused_dqp import kernels
from ort_aie_ep.aie_kernels.fused_dqp.kernels import (
    DQP_FINISH,
    DQP_LOAD_BIAS,
    DQP_LOAD_X,
    DQP_ZERO,
    dqp_block,
)
from ort_aie_ep.formats.q4nx import SHIPPING, BlockForm
from ort_aie_ep.npu.terms import costs
from ort_aie_ep.npu.terms.design import (
    Acquire,
    Body,
    Buffer,
    Core,
    Design,
    End,
    Parameters,
    Release,
    call,
)  # fmt: skip
from ort_aie_ep.npu.terms.device import Device
from ort_aie_ep.npu.terms.errors import DesignError
from ort_aie_ep.npu.terms.kernel import Array
from ort_aie_ep.npu.terms.packet_ids import give_packet_ids
from ort_aie_ep.npu.terms.sequence import (
    Expr,
    at_most,
    ceil_div,
    equal,
    less,
    minimum,
)  # fmt: skip

BLOCK_ROWS = 32
BLOCK_COLUMNS = 256
CORES = 4  # of a column
# Bytes: mlir-air's default since frames of products exceeded 1,024 with LLVM 22 (mlir-air #1980).
STACK = 2048


def build(device: Device, columns: int | None = None, form: BlockForm = SHIPPING) -> Design:
    """FusedDQP on the first `columns` columns (default: 4, or all of a narrower device).

    `matvec(N, K, bias)`: x (K) bf16, w Q4NX (N/32, K/256, block bytes of `form`), bias (N) bf16 if
    `bias` is 1, y (N) bf16.

    `matvec_part(N, K, row_K, bias)` does the same for a part of rows of `row_K` in-features: w
    begins with the part's first block, and its rows of blocks are row_K/256 apart.
    A longer row than MATVEC_K is the sum of parts; each takes the result so far as its bias.
    """
    columns = min(4, device.columns) if columns is None else columns
    if not 1 <= columns <= device.columns:
        raise DesignError(
            f"fused_dqp on {columns} columns: {device.name} has 1 to {device.columns} of them"
        )
    design = Design("fused_dqp", device, form)
    if columns < device.columns:
        place(design, columns, design.shim(columns, 0))
    else:
        place(design, columns, design.shim(0, 0))
    give_packet_ids(design)
    add_sequences(design, columns)
    return design


def place(design: Design, columns: int, x: End) -> None:
    """Put the fifos and workers on columns 0 .. `columns` - 1 of `design`, for weights of its form.

    `x` is the shim end where the activations enter.
    """
    block = design.form.block_bytes
    xs = design.fifo(
        "x", "bf16", BLOCK_COLUMNS, x,
        [design.core(c, r) for c in range(columns) for r in range(CORES)],
    )  # fmt: skip
    for c in range(columns):
        outputs = []
        for half in range(2):
            both = design.fifo(f"w{c}_{half}", "u8", 2 * block, design.shim(c, half), design.mem(c))
            own = [
                design.fifo(
                    f"w{c}_{half}_{r}", "u8", block, design.mem(c), design.core(c, 2 * half + r)
                )
                for r in range(2)
            ]  # fmt: skip
            design.split(both, own)
            for r in range(2):
                row = 2 * half + r
                y = design.fifo(
                    f"y{c}_{row}", "bf16", BLOCK_ROWS, design.core(c, row), design.mem(c)
                )
                outputs.append(y)
                design.worker(
                    f"dqp{c}_{row}", design.core(c, row),
                    _body(CORES * c + row, CORES * columns, design.form),
                    inputs={"x": xs, "w": own[r]}, outputs={"y": y},
                    buffers=[
                        Buffer("x", kernels.X),
                        Buffer("sums", kernels.SUMS),
                        Buffer("acc", Array("f32", BLOCK_ROWS)),
                        Buffer("bias", kernels.BIAS),
                    ],
                    parameters=["slices", "bias_pieces", "blocks", "rounds", "biased"],
                    kernels=[
                        DQP_LOAD_X, DQP_LOAD_BIAS, DQP_ZERO, dqp_block(design.form), DQP_FINISH
                    ],
                    stack=STACK,
                )  # fmt: skip
        joined = design.fifo(f"y{c}", "bf16", CORES * BLOCK_ROWS, design.mem(c), design.shim(c))
        design.join(outputs, joined)


def _body(tile: int, tiles: int, form: BlockForm) -> Body:
    multiply, scalars = dqp_block(form), form_scalars(form)

    def body(core: Core):  # type: ignore[no-untyped-def]
        slices, bias_pieces, blocks, rounds, biased = yield Parameters()
        kept = core.buffer("x"), core.buffer("sums")
        acc, bias = core.buffer("acc"), core.buffer("bias")
        for i in core.loop(slices):
            piece = yield Acquire("x")
            yield call(DQP_LOAD_X, piece, *kept, i)
            yield Release("x")
        for i in core.loop(bias_pieces):
            piece = yield Acquire("x")
            yield call(DQP_LOAD_BIAS, piece, bias, i, tile, tiles)
            yield Release("x")
        for r in core.loop(rounds):
            yield call(DQP_ZERO, acc)
            for k in core.loop(blocks):
                w = yield Acquire("w")
                yield call(multiply, w, *kept, acc, k, *scalars)
                yield Release("w")
            y = yield Acquire("y")
            yield call(DQP_FINISH, acc, bias, y, r, biased)
            yield Release("y")

    return body


def add_sequences(design: Design, columns: int) -> None:
    """The sequences `matvec` and `matvec_part` for a design that `place` has set up."""
    _add_matvec(design, columns)
    _add_matvec(design, columns, part=True)


def _add_matvec(design: Design, columns: int, *, part: bool = False) -> None:
    block = design.form.block_bytes
    if part:
        s = design.sequence("matvec_part", "N", "K", "row_K", "bias")
        N, K, row_K, bias = s.symbols()
        s.require(
            at_most(K, row_K) * equal(row_K % BLOCK_COLUMNS, 0),
            "row_K={row_K} must be a multiple of 256, and K={K} at most that",
        )
    else:
        s = design.sequence("matvec", "N", "K", "bias")
        N, K, bias = s.symbols()
        row_K = K
    s.require(equal(N % BLOCK_ROWS, 0), "N={N} must be a multiple of 32: pad W with zero scales")
    s.require(at_most(CORES * BLOCK_ROWS, N), "N={N} must be at least 128: pad W with zero scales")
    s.require(
        less(0, K) * equal(K % BLOCK_COLUMNS, 0), "K={K} must be a multiple of 256: pad with zeros"
    )
    s.require(
        at_most(K, limits.MATVEC_K), f"K={{K}} is above {limits.MATVEC_K}: x stays in L1; divide K"
    )
    s.require(equal(bias, 0) + equal(bias, 1), "bias={bias} must be 0 or 1")
    blocks = K // BLOCK_COLUMNS
    row_bytes = row_K // BLOCK_COLUMNS * block
    x = s.argument("x", "in", 2 * K)
    # From the part's first block to its last.
    w = s.argument("w", "in", (N // BLOCK_ROWS - 1) * row_bytes + blocks * block)
    b = s.argument("bias", "in", 2 * N * bias)
    y = s.argument("y", "out", 2 * N)

    rows = s.let("rows", N // BLOCK_ROWS)
    a_round = CORES * columns  # block rows
    full = s.let("full", rows // a_round)
    tail = s.let("tail", less(0, rows % a_round))
    s.require(
        at_most(bias * (full + tail), limits.BIAS_ROUNDS),
        f"N={{N}} with a bias is above {limits.BIAS_ROUNDS * a_round * BLOCK_ROWS}: divide N",
    )

    def base(column: int) -> Expr:
        """First block row of a column in the last, incomplete round."""
        return minimum(full * a_round + CORES * column, rows - CORES)

    def weights(first: Expr, column: int) -> None:
        for half in range(2):
            s.transfer(
                f"w{column}_{half}", w, offset=(first + 2 * half) * row_bytes, run=block,
                outer=[(blocks, block), (2, row_bytes)],
            )  # fmt: skip

    # The data first, so that it is on its way while the parameters are written.
    s.transfer("x", x, offset=0, run=2 * K)
    round_biases = a_round * BLOCK_ROWS
    biases = (full + tail) * round_biases
    pieces = bias * ceil_div(biases, BLOCK_COLUMNS)
    for name in design.workers:
        if name.startswith("dqp"):
            s.start(name, blocks, pieces, blocks, full + tail, bias)
    with s.when(bias):
        s.transfer("x", b, offset=0, run=full * (round_biases * 2))
        with s.when(tail):
            for c in range(columns):
                s.transfer("x", b, offset=base(c) * (BLOCK_ROWS * 2), run=CORES * BLOCK_ROWS * 2)
        with s.when(biases % BLOCK_COLUMNS):  # half a piece, to fill the last one up
            s.transfer("x", b, offset=0, run=BLOCK_COLUMNS)
    column_bytes = CORES * BLOCK_ROWS * 2
    for c in range(columns):
        s.transfer(
            f"y{c}", y, offset=c * column_bytes, run=column_bytes,
            outer=[(full, columns * column_bytes)],
        )  # fmt: skip
        with s.when(tail):
            s.transfer(f"y{c}", y, offset=base(c) * (BLOCK_ROWS * 2), run=column_bytes)
    with s.loop("round", full) as r:
        for c in range(columns):
            weights(r * a_round + CORES * c, c)
    with s.when(tail):
        for c in range(columns):
            weights(base(c), c)
    arch = design.device.architecture
    kernels = DQP_LOAD_X, dqp_block(design.form)
    load, multiply = (int(kernel.cycles(arch, (0,))) for kernel in kernels)
    ends = int(DQP_ZERO.cycles(arch, ()) + DQP_FINISH.cycles(arch, (0, 0)))
    # The memory tile passes on the blocks of two cores at a time.
    first_blocks = int(2 * block / costs.STREAM.value)
    s.work(first_blocks + blocks * load + (full + tail) * (blocks * multiply + ends))
    s.wait(*(f"y{c}" for c in range(columns)))
    s.cut()
