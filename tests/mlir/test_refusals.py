"""Designs that the dialect cannot express, and wrong bodies, are refused with the part's name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ort_aie_ep.aie_kernels.mlir.module import print_module
from ort_aie_ep.aie_kernels.mlir.sequences import ShapeError, shim_pattern
from ort_aie_ep.npu.terms.design import (
    Acquire,
    Body,
    Buffer,
    Call,
    Core,
    Design,
    Layout,
    Parameters,
    Release,
    call,
)
from ort_aie_ep.npu.terms.device import device
from ort_aie_ep.npu.terms.errors import DesignError
from ort_aie_ep.npu.terms.kernel import Array, Kernel
from ort_aie_ep.npu.terms.sequence import Transfer

COPY = Kernel("copy", "copy.cc", (Array("i32", 16), Array("i32", 16), int), lambda *_: 1.0)


def forwarding(body: Body, kernel: Kernel = COPY) -> Design:
    """Shim, memory tile, core, shim: 16 words per object."""
    design = Design("forwarding", device("npu2_1col"))
    fin = design.fifo("in", "i32", 16, design.shim(0), design.mem(0))
    own = design.fifo("own", "i32", 16, design.mem(0), design.core(0, 0))
    design.forward(fin, own)
    out = design.fifo("out", "i32", 16, design.core(0, 0), design.shim(0))
    design.worker(
        "w", design.core(0, 0), body, inputs={"x": own}, outputs={"y": out}, kernels=[kernel],
        buffers=[Buffer("acc", Array("f32", 4)), Buffer("plan", Array("i32", 4))],
        parameters=["n"],
    )  # fmt: skip
    return design


def copy(core: Core) -> Any:
    (n,) = yield Parameters()
    for i in core.loop(n):
        x, y = (yield Acquire("x")), (yield Acquire("y"))
        yield call(COPY, x, y, i)
        yield Release("x")
        yield Release("y")


def test_a_design_without_fault_is_printed() -> None:
    assert '"aie.core"' in print_module(forwarding(copy))


@pytest.mark.parametrize(
    ("steps", "match"),
    [
        ([Release("x"), call(COPY, "x", "x", 1)], "object of port x has been released"),
        ([Acquire("x", 3)], r"worker w: Acquire\('x', 3\): fifo own has depth 2 here"),
        ([], "worker w: it ends while it holds 1 objects of port x"),
    ],
)
def test_a_wrong_body_is_refused(steps: list[Any], match: str) -> None:
    """`check`, which a build runs first, refuses these and others (tests/npu/test_dry_run.py)."""

    def body(core: Core) -> Any:
        x = yield Acquire("x")
        for step in steps:
            named = isinstance(step, Call)
            yield Call(step.kernel, (x, x, 1)) if named else step

    with pytest.raises(DesignError, match=match):
        print_module(forwarding(body))


@pytest.mark.parametrize("back", [False, True])
def test_a_loop_ends_with_the_objects_with_which_it_began(back: bool) -> None:
    def body(core: Core) -> Any:
        yield Acquire("x")
        for _ in core.loop(2):
            yield Release("x")
            if back:
                yield Acquire("x")

    with pytest.raises(DesignError, match="holds other objects of port x at the end of a loop"):
        print_module(forwarding(body))


def test_a_fifo_that_ends_at_a_core_without_a_worker_is_refused() -> None:
    design = Design("nobody", device("npu2_1col"))
    design.fifo("in", "i32", 16, design.shim(0), design.core(0, 0))
    with pytest.raises(DesignError, match=r"core tile \(0, 2\)"):
        print_module(design)


@pytest.mark.parametrize("name", ["a-b", 'a"b', "1st", "a b"])
def test_a_name_that_is_not_a_symbol_is_refused(name: str) -> None:
    design = Design("named", device("npu2_1col"))
    design.forward(
        design.fifo(name, "i32", 16, design.shim(0), design.mem(0)),
        design.fifo("back", "i32", 16, design.mem(0), design.shim(0)),
    )
    with pytest.raises(DesignError, match=r"design named"):
        print_module(design)


def test_an_order_at_a_shim_is_the_sequences() -> None:
    design = Design("order", device("npu2_1col"))
    end = replace(design.shim(0), layout=Layout(((4, 16), (4, 4))))
    design.fifo("in", "i32", 16, end, design.core(0, 0))
    with pytest.raises(DesignError, match="fifo in at shim"):
        print_module(design)


@pytest.mark.parametrize("strides", [(2, 4), (8, 8)])
def test_a_layout_that_is_not_in_words_is_refused(strides: tuple[int, int]) -> None:
    design = Design("halves", device("npu2_1col"))
    layout = Layout(((4, strides[0]), (2, strides[1])))
    fin = design.fifo("in", "bf16", 16, design.shim(0), design.core(0, 0, layout=layout))
    design.worker("w", design.core(0, 0), lambda core: iter(()), inputs={"x": fin}, outputs={})
    with pytest.raises(DesignError, match=r"fifo in .*words"):
        print_module(design)


def test_a_symbol_has_one_signature_in_an_overlay() -> None:
    design = forwarding(copy)
    other = replace(COPY, arguments=(Array("i32", 8), Array("i32", 8), int))
    more = design.fifo("more", "i32", 8, design.shim(0), design.core(0, 1))
    design.worker(
        "v", design.core(0, 1), lambda core: iter(()), inputs={"x": more}, outputs={},
        kernels=[other],
    )  # fmt: skip
    with pytest.raises(DesignError, match="kernel copy"):
        print_module(design)


# --- patterns of a shim ---------------------------------------------------------------------------
def transfer(dimensions: tuple[tuple[int, int], ...]) -> Transfer:
    *outer, (words, _) = dimensions
    return Transfer("f", "a", 0, 4 * words, tuple(outer))


@pytest.mark.parametrize(
    ("dimensions", "sizes", "strides"),
    [
        (((64, 4),), [64], [1]),
        (((8, 256), (64, 4)), [512], [1]),  # contiguous dimensions fold
        (((8, 512), (64, 4)), [8, 64], [128, 1]),
        (((1, 0), (8, 512), (1, 4)), [8], [128]),  # dimensions of one element disappear
        (((2, 16384), (2048, 4)), [2, 4, 512], [4096, 512, 1]),  # 2,048 words in two
        (((5, 0), (64, 4)), [5, 1, 1, 64], [0, 0, 0, 1]),  # a repetition is the iteration
        (((1, 4),), [1], [1]),
    ],
)
def test_a_transfer_in_the_fewest_dimensions(
    dimensions: tuple[tuple[int, int], ...], sizes: list[int], strides: list[int]
) -> None:
    assert shim_pattern(transfer(dimensions)) == (sizes, strides)


@pytest.mark.parametrize(
    "dimensions",
    [
        ((2, 40000), (2, 10000), (2, 2000), (2, 400), (8, 4)),  # five dimensions
        ((65, 100000), (2, 10000), (2, 2000), (8, 4)),  # 65 iterations
        ((257, 0), (8, 4)),  # 257 repetitions
        ((2, 40000), (1100, 32), (4, 4)),  # a wrap has 10 bits
        ((2, 40000), (1031, 4)),  # a prime above it
    ],
)
def test_a_transfer_beyond_one_task_is_refused(dimensions: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(ShapeError, match="fifo f"):
        shim_pattern(transfer(dimensions))
