"""The row operators of a prompt, on GEMM's cores (`gemm`) on AIE2P.

README.md has the order of objects, and what bounds them.
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
from ort_aie_ep.npu.terms.design import (
    Acquire,
    Buffer,
    Core,
    Parameters,
    Read,
    Release,
    Steps,
    call,
)
from ort_aie_ep.npu.terms.kernel import Array

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
