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
    Core,
    Design,
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


@pytest.mark.parametrize("name", ["a-b", 'a"b', "1st", "a b"])
def test_a_name_that_is_not_a_symbol_is_refused(name: str) -> None:
    design = Design("named", device("npu2_1col"))
    design.forward(
        design.fifo(name, "i32", 16, design.shim(0), design.mem(0)),
        design.fifo("back", "i32", 16, design.mem(0), design.shim(0)),
    )
    with pytest.raises(DesignError, match=r"design named"):
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
