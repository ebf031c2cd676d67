"""Short GEMM: C = A W for prompts of few rows, from Q4NX weights (paper 2, sections 3.1.1, 3.1.2).

README.md has dataflow, layouts, rules, buffers and what bounds it.
"""

from __future__ import annotations

from ort_aie_ep.aie_kernels import limits
from ort_aie_ep.aie_kernels.cycles import form_scalars
from ort_aie_ep.aie_kernels.dequant.kernels import Q4NX_DEQUANT_STEP, q4nx_dequant_step
from ort_aie_ep.aie_kernels.gemm.design import (
    A_LAYOUT,
    CORES,
    PART,
    ROWS,
    SLAB,
    STACK,
    STEP,
    STRIPS,
    c_layout,
    with_arrays,
)
from ort_aie_ep.aie_kernels.gemm.kernels import GEMM_STORE_BF16, GEMM_STRIP, GEMM_TILE, GEMM_ZERO
from ort_aie_ep.formats.q4nx import SHIPPING, BlockForm
from ort_aie_ep.npu.terms import costs
from ort_aie_ep.npu.terms.design import (
    Acquire,
    Body,
    Buffer,
    Core,
    Design,
    Parameters,
    Release,
    Steps,
    call,
)
from ort_aie_ep.npu.terms.device import Device
from ort_aie_ep.npu.terms.kernel import Array
from ort_aie_ep.npu.terms.sequence import (
    Expr,
    at_most,
    ceil_div,
    equal,
    expr,
    less,
    maximum,
    minimum,
)

PARTS = 2  # of a core's block of C
WIDTH = PARTS * PART  # columns of it
COLUMN = CORES * WIDTH  # columns of C that a column of the array computes in a pass
BLOCKS = COLUMN // PART  # that a column takes for 256 of K
RUN_WORK = 1 << 36  # rows x N x K of one run: below 0.2 s on every device

ACC = Array("f32", ROWS * WIDTH)
X = Array("bf16", ROWS * STEP)
TILE = Array("bf16", STEP * PART)
C = Array("bf16", GEMM_STRIP)

ZERO = with_arrays(GEMM_ZERO, ACC)
MULTIPLY = with_arrays(GEMM_TILE, X, TILE, ACC)
STORE = with_arrays(GEMM_STORE_BF16, ACC, C)


def build(device: Device, form: BlockForm = SHIPPING) -> Design:
    """Short GEMM on all columns of `device`.

    One sequence, `project(M, K, N)`: a (max(M, 64), K) bf16 and w Q4NX (N/32, K/256, block bytes of
    `form`) uint8 in, c (max(M, 64), N) bf16 out.
    """
    design = Design("short_gemm", device, form)
    slab = design.fifo("a", "bf16", ROWS * SLAB, design.shim(0, 1), design.mem(0))
    a = design.fifo(
        "a_cores", "bf16", ROWS * SLAB, design.mem(0, layout=A_LAYOUT),
        [
            design.core(c, r, object=X)
            for c in range(device.columns)
            for r in range(CORES)
        ],
    )  # fmt: skip
    design.forward(slab, a)
    for c in range(device.columns):
        _place_column(design, c)
    _add_sequence(design)
    return design


def _place_column(design: Design, c: int) -> None:
    block = design.form.block_bytes
    blocks = design.fifo(f"w{c}", "u8", BLOCKS * block, design.shim(c, 0), design.mem(c))
    own = [
        design.fifo(f"w{c}_{r}", "u8", PARTS * block, design.mem(c), design.core(c, r))
        for r in range(CORES)
    ]
    design.split(blocks, own)
    outputs = []
    for r in range(CORES):
        out = design.fifo(
            f"c{c}_{r}", "bf16", C.count, design.core(c, r),
            design.mem(c, layout=c_layout(WIDTH), object=Array("bf16", ROWS * WIDTH)),
        )  # fmt: skip
        outputs.append(out)
        design.worker(
            f"gemm{c}_{r}", design.core(c, r), _body(design.form),
            inputs={"a": design.fifos["a_cores"], "w": own[r]}, outputs={"c": out},
            buffers=[Buffer("acc", ACC), Buffer("tile", TILE)],
            parameters=["slabs", "blocks"],
            kernels=[ZERO, q4nx_dequant_step(design.form), MULTIPLY, STORE],
            stack=STACK,
        )  # fmt: skip
    joined = design.fifo(f"c{c}", "bf16", CORES * ROWS * WIDTH, design.mem(c), design.shim(c, 0))
    design.join(outputs, joined)


def _body(form: BlockForm) -> Body:
    dequantise, scalars = q4nx_dequant_step(form), form_scalars(form)

    def body(core: Core) -> Steps:
        slabs, blocks = yield Parameters()
        acc, tile = core.buffer("acc"), core.buffer("tile")
        for _ in core.loop(blocks):
            yield call(ZERO, acc, ACC.count)
            for _ in core.loop(slabs):
                w = yield Acquire("w")
                for step in core.loop(SLAB // STEP):
                    a = yield Acquire("a")
                    for part in range(PARTS):
                        yield call(dequantise, w, tile, part, step, *scalars)
                        yield call(MULTIPLY, a, tile, acc, ROWS // 8, STEP // 8, PART // 8, part)
                    yield Release("a")
                yield Release("w")
            for strip in range(PARTS * STRIPS):
                c = yield Acquire("c")
                yield call(STORE, acc, c, strip)
                yield Release("c")

    return body


def _add_sequence(design: Design) -> None:
    s = design.sequence("project", "M", "K", "N")
    M, K, N = s.symbols()
    s.require(at_most(1, M), "M={M} must be at least 1")
    s.require(
        less(0, K) * equal(K % SLAB, 0), "K={K} must be a multiple of 256: pad A and W with zeros"
    )
    s.require(at_most(K, limits.SHORT_GEMM_K), f"K={{K}} is above {limits.SHORT_GEMM_K}: divide K")
    s.require(equal(N % PART, 0), "N={N} must be a multiple of 32: pad W with zero scales")
    s.require(at_most(COLUMN, N), f"N={{N}} must be at least {COLUMN}: pad W with zero scales")
    rows = maximum(M, ROWS)
    slabs = K // SLAB
    block = design.form.block_bytes
    row_bytes = slabs * block
    a = s.argument("a", "in", rows * K * 2)
    w = s.argument("w", "in", N // PART * row_bytes)
    c = s.argument("c", "out", rows * N * 2)

    columns = range(design.device.columns)
    s.let("rows", rows)
    bands = s.let("bands", ceil_div(rows, ROWS))
    passes = s.let("passes", ceil_div(N, COLUMN * len(columns)))
    per_run = s.let("per_run", maximum(1, expr(RUN_WORK) // (ROWS * N * K)))
    with s.loop("run", ceil_div(bands, per_run)) as run:
        count = s.let("count", minimum(per_run, bands - run * per_run))
        with s.loop("band", count) as band, s.loop("pass", passes) as turn:
            row = s.let("row", minimum((run * per_run + band) * ROWS, rows - ROWS))
            firsts = [
                s.let(f"first{i}", minimum((turn * len(columns) + i) * COLUMN, N - COLUMN))
                for i in columns
            ]
            s.transfer(
                "a", a, offset=row * K * 2, run=2 * SLAB,
                outer=[(slabs, 2 * SLAB), (ROWS, 2 * K)],
            )  # fmt: skip
            for i in columns:
                s.transfer(
                    f"w{i}", w, offset=firsts[i] // PART * row_bytes, run=block,
                    outer=[(slabs, block), (BLOCKS, row_bytes)],
                )  # fmt: skip
            # Data is on its way while the parameters are written.
            with s.when(equal(band + turn, 0)):
                for name in design.workers:
                    s.start(name, slabs, count * passes)
            for i in columns:
                s.transfer(
                    f"c{i}", c, offset=(row * N + firsts[i]) * 2, run=2 * WIDTH,
                    outer=[(CORES, 2 * WIDTH), (ROWS, 2 * N)],
                )  # fmt: skip
        # The memory tile passes on whole slabs of A, and whole blocks of a column's C.
        ends = int(2 * ROWS * (SLAB + CORES * WIDTH) / costs.STREAM.value)
        s.work(ends + count * passes * _block_cycles(design.device, slabs))
        s.wait(*(f"c{i}" for i in columns))
        s.cut()


def _block_cycles(device: Device, slabs: Expr) -> Expr:
    """Core cycles of one block of C, without waiting for data."""
    arch = device.architecture
    tile = MULTIPLY.cycles(arch, (ROWS // 8, STEP // 8, PART // 8, 0))
    step = int(PARTS * (Q4NX_DEQUANT_STEP.cycles(arch, (0, 0)) + tile))
    store = STRIPS * PARTS * STORE.cycles(arch, (0,))
    return slabs * (SLAB // STEP * step) + int(store + ZERO.cycles(arch, (ACC.count,)))
