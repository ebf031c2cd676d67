"""What IRON cannot express, and bodies that are wrong, are refused with the name of the part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from iron_recorder import install

from ort_aie_ep.aie_kernels.iron.interface import load
from ort_aie_ep.aie_kernels.iron.program import make_program
from ort_aie_ep.aie_kernels.iron.sequences import ShapeError, Transfer, shim_pattern
from ort_aie_ep.npu.vocabulary.design import (
    Acquire,
    Body,
    Buffer,
    Core,
    Design,
    Layout,
    Parameters,
    Read,
    Release,
    call,
)
from ort_aie_ep.npu.vocabulary.device import device
from ort_aie_ep.npu.vocabulary.errors import DesignError
from ort_aie_ep.npu.vocabulary.kernel import Array, Kernel

COPY = Kernel("copy", "copy.cc", (Array("i32", 16), Array("i32", 16), int), lambda *_: 1.0)


def forwarding(body: Body, kernel: Kernel = COPY) -> Design:
    """Shim, memory tile, core, shim: 16 words an object."""
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


@pytest.fixture
def lower(monkeypatch: pytest.MonkeyPatch) -> Callable[[Design], Any]:
    def run(design: Design) -> Any:
        install(monkeypatch)
        return make_program(load(), design).resolve_program()

    return run


def test_a_design_without_fault_is_lowered(lower: Any) -> None:
    assert [f.name for f in lower(forwarding(copy)).fifos] == ["in", "own", "out"]


def wrong(text: str) -> Body:
    def body(core: Core) -> Any:
        x = yield Acquire("x")
        match text:
            case "kernel":
                yield call(replace(COPY, name="other"), x, x, 1)
            case "buffer":
                core.buffer("nothing")
            case "type":
                yield call(COPY, core.buffer("acc"), x, 1)
            case "integer":
                yield call(COPY, x, 1, 1)
            case "pointer":
                yield call(COPY, x, x, x)
            case "read":
                yield Read("acc", 0)
            case "index":
                yield Read("plan", 4)
            case "step":
                yield "nothing"

    return body


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("kernel", r"worker w calls other, which is not among its kernels"),
        ("buffer", r"worker w has no buffer 'nothing'"),
        ("type", r"worker w calls copy: argument 0 has 4 f32"),
        ("integer", r"worker w calls copy: argument 1 must be a buffer"),
        ("pointer", r"worker w calls copy: argument 2 must be an integer"),
        ("read", r"worker w reads word 0 of buffer 'acc', which holds 4 f32"),
        ("index", r"worker w reads word 4 of buffer 'plan', which holds 4 i32"),
        ("step", r"worker w yields 'nothing', which is no step"),
    ],
)
def test_a_wrong_body_is_refused(text: str, match: str, lower: Any) -> None:
    with pytest.raises(DesignError, match=match):
        lower(forwarding(wrong(text)))


def receivers(*objects: Array | None) -> Design:
    design = Design("receivers", device("npu2_1col"))
    fin = design.fifo(
        "in", "i32", 16, design.shim(0),
        [design.core(0, row, object=given) for row, given in enumerate(objects)],
    )  # fmt: skip
    for row in range(len(objects)):
        design.worker(f"w{row}", design.core(0, row), lambda core: iter(()), inputs={"x": fin},
                      outputs={})  # fmt: skip
    return design


@pytest.mark.parametrize(
    ("objects", "match"),
    [
        ((None, Array("i32", 8)), r"fifo in: its receivers take objects of different sizes"),
        ((Array("i32", 32),), r"fifo in: objects of 32 i32 are received from objects of 16 i32"),
        ((Array("bf16", 16),), r"received from objects of 16 i32"),
    ],
)
def test_receivers_that_iron_has_no_words_for(
    objects: tuple[Array | None, ...], match: str, lower: Any
) -> None:
    with pytest.raises(DesignError, match=match):
        lower(receivers(*objects))


def test_a_link_between_types_of_elements_is_refused(lower: Any) -> None:
    design = Design("types", device("npu2_1col"))
    fin = design.fifo("in", "i32", 16, design.shim(0), design.mem(0))
    own = design.fifo("own", "bf16", 32, design.mem(0), design.core(0, 0))
    design.forward(fin, own)
    with pytest.raises(DesignError, match="fifo in holds i32, own holds bf16"):
        lower(design)


def test_an_order_at_a_shim_is_the_sequences(lower: Any) -> None:
    design = Design("order", device("npu2_1col"))
    end = replace(design.shim(0), layout=Layout(((4, 16), (4, 4))))
    design.fifo("in", "i32", 16, end, design.core(0, 0))
    with pytest.raises(DesignError, match="the order at a shim is the sequence's"):
        lower(design)


@pytest.mark.parametrize("strides", [(2, 4), (8, 8)])
def test_a_layout_that_is_not_in_words_is_refused(strides: tuple[int, int], lower: Any) -> None:
    design = Design("halves", device("npu2_1col"))
    layout = Layout(((4, strides[0]), (2, strides[1])))
    design.fifo("in", "bf16", 16, design.shim(0), design.core(0, 0, layout=layout))
    with pytest.raises(DesignError, match=r"fifo in at .*they must be words"):
        lower(design)


def test_a_symbol_has_one_signature_in_an_overlay(lower: Any) -> None:
    design = forwarding(copy)
    other = replace(COPY, arguments=(Array("i32", 8), Array("i32", 8), int))
    more = design.fifo("more", "i32", 8, design.shim(0), design.core(0, 1))
    design.worker(
        "v", design.core(0, 1), lambda core: iter(()), inputs={"x": more}, outputs={},
        kernels=[other],
    )  # fmt: skip
    with pytest.raises(DesignError, match="a symbol has one signature in an overlay"):
        lower(design)


# --- patterns of a shim ---------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("dimensions", "sizes", "strides"),
    [
        (((64, 4),), [64], [1]),
        (((8, 256), (64, 4)), [512], [1]),  # contiguous dimensions fold
        (((8, 512), (64, 4)), [8, 64], [128, 1]),
        (((1, 0), (8, 512), (1, 4)), [8], [128]),  # dimensions of one element go
        (((2, 16384), (2048, 4)), [2, 4, 512], [4096, 512, 1]),  # 2,048 words in two
        (((5, 0), (64, 4)), [5, 1, 1, 64], [0, 0, 0, 1]),  # a repetition is the iteration
        (((1, 4),), [1], [1]),
    ],
)
def test_a_transfer_in_the_fewest_dimensions(
    dimensions: tuple[tuple[int, int], ...], sizes: list[int], strides: list[int]
) -> None:
    assert shim_pattern(Transfer("f", "a", 0, dimensions)) == (sizes, strides)


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
    with pytest.raises(ShapeError, match="give a smaller shape"):
        shim_pattern(Transfer("f", "a", 0, dimensions))
