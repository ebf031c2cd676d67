"""The row operators of a prompt, on GEMM's cores (`gemm`) with bf16 output on AIE2P.

The operators between two projections of a prompt run on the overlay that multiplies, because
switching to another overlay would cost 1.9 ms each way. Tiles, fifos and buffers are GEMM's. A
worker has one extra parameter, `mode`: 0 is GEMM, anything else a row operator.

Operands enter as A: bands of 64 rows, 512 columns at a time, in objects of 64 x 64 that all cores
of a column see. Each core takes 16 rows of every object. A result of 16 x 512 bf16 is kept in the
accumulator, in blocks of 8 x 8, and leaves as C: rows of 512 columns are four of C's rows of 128.

The cores divide the rows, not the columns: then all four cores work on every object, and each row
is complete in one core. B is idle. A result of 64 x 512 takes these objects, in this order:

| sequence | first | for each band of rows | for each result |
|---|---|---|---|
| `gate` | | | 8 of the gate, 8 of up |
| `add_norm`: the sum | | | 8 of x, 8 of the residual |
| `add_norm`: the norm | 4 with all weights | all of x, for the sums of squares | 8 of x |
| `rotate`, `append_rows` | 4 with the weights of heads | | 8 of x, 4 of the table |

The norm waits, then reads the sum back from memory. That costs as many bytes as adding twice, and
no core has to keep a row. Weights arrive once, a row of 64 x 256 in A's memory tile for each 256 of
them, and stay in the accumulator behind the result.

An object of the table has 32 cosines next to their 32 sines, for all heads of a result. Both values
of a pair are in the core of their row, however far apart; heads are normalised when their last
object has arrived.

`append_rows` stores a core's 16 keys in the order of the cache, so that they leave in runs of at
least 1,024 bytes; a token's `append` has runs of 16.

L1 holds GEMM's buffers and `counts`, 32 bytes: 62,796 of 65,536 with alignment. Program memory: two
activations of some 90 vector operations, the inverse root with five emulated products, two
rotations, and copies take about 6 KB; with GEMM's own kernels 11 KB of 16.

Bottlenecks: A's channel takes 2,048 cycles an object. Meanwhile eight columns read 512 KB per
operand and result from memory, 21,000 cycles at 45 GB/s and 1.8 GHz. `gate` takes 25,000 cycles of
the core for the objects of up, and stalls while a part leaves: core and memory are nearly balanced
when rows fill the columns. Sums, norms and rotations wait only for memory, except norms of heads of
64, whose inverse roots take 26,000 cycles. As in GEMM, a prompt of 64 rows takes as long as 512.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ort_aie_ep.aie_kernels.gemm.row_kernels import (
    COUNTS,
    ROWS_BEGIN,
    ROWS_PREPARE,
    ROWS_STORE,
    ROWS_TAKE,
)
from ort_aie_ep.npu.vocabulary.design import (
    Acquire,
    Buffer,
    Core,
    Parameters,
    Read,
    Release,
    Steps,
    call,
)
from ort_aie_ep.npu.vocabulary.kernel import Array

#: What a core needs beside GEMM's parameters, buffers and kernels.
PARAMETERS = ("mode",)
BUFFERS = (Buffer("counts", Array("i32", COUNTS)),)
KERNELS = (ROWS_BEGIN, ROWS_PREPARE, ROWS_TAKE, ROWS_STORE)
STRIPS = 16  # of a result, as C leaves


def body(core: Core, products: Callable[[Core, Any, Any], Steps]) -> Steps:
    """A worker's body: `products(core, k_steps, blocks)` gives GEMM's steps.

    For a row operator, `k_steps` holds the bits of a norm's epsilon, and `count` the turns.
    """
    k_steps, count, mode = yield Parameters()
    acc, counts = core.buffer("acc"), core.buffer("counts")
    yield call(ROWS_BEGIN, counts, count, mode)
    blocks = yield Read("counts", 0)
    turns = yield Read("counts", 1)
    weights = yield Read("counts", 2)
    rows = yield Read("counts", 3)
    results = yield Read("counts", 4)
    objects = yield Read("counts", 5)
    yield from products(core, k_steps, blocks)
    for index in core.loop(weights):
        a = yield Acquire("a")
        yield call(ROWS_PREPARE, a, acc, mode, k_steps, 0, index)
        yield Release("a")
    for _ in core.loop(turns):
        for index in core.loop(rows):
            a = yield Acquire("a")
            yield call(ROWS_PREPARE, a, acc, mode, k_steps, 1, index)
            yield Release("a")
        for tile in core.loop(results):
            for index in core.loop(objects):
                a = yield Acquire("a")
                yield call(ROWS_TAKE, a, acc, mode, k_steps, tile, index)
                yield Release("a")
            for index in core.loop(STRIPS):
                c = yield Acquire("c")
                yield call(ROWS_STORE, acc, c, mode, index)
                yield Release("c")
