"""The smallest designs with one feature each, for the tests of the checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ort_aie_ep.npu.checks.check import check
from ort_aie_ep.npu.terms.design import Acquire, Body, Buffer, Core, Design, Fifo, Release
from ort_aie_ep.npu.terms.device import device
from ort_aie_ep.npu.terms.errors import DesignError
from ort_aie_ep.npu.terms.kernel import Array, Kernel

COPY = Kernel("copy", "copy.cc", (Array("u8", 64), Array("u8", 64)), lambda arch, scalars: 10.0)


def move(inputs: list[str], outputs: list[str]) -> Body:
    """A body that takes one object from every input, then gives one to every output."""

    ports = (*inputs, *outputs)
    return steps(*(Acquire(port) for port in ports), *(Release(port) for port in ports))


def empty(name: str = "npu2", title: str = "small") -> Design:
    return Design(title, device(name))


def add_worker(
    design: Design,
    column: int,
    row: int,
    inputs: list[Fifo],
    outputs: list[Fifo],
    body: Callable[[Core], Any] | None = None,
    **options: Any,
) -> None:
    """A worker whose ports have its fifos' names; by default it moves objects."""
    names = [f.name for f in inputs], [f.name for f in outputs]
    design.worker(
        f"worker{column}_{row}", design.core(column, row), body or move(*names),
        inputs=dict(zip(names[0], inputs, strict=True)),
        outputs=dict(zip(names[1], outputs, strict=True)),
        kernels=options.pop("kernels", [COPY] if inputs and outputs else []), **options,
    )  # fmt: skip


def relay(
    *,
    name: str = "npu2",
    size: int = 64,
    depth: int = 2,
    body: Callable[[Core], Any] | None = None,
    column: int = 0,
    row: int = 0,
    buffers: list[Buffer] | None = None,
    **options: Any,
) -> Design:
    """shim -> in -> worker -> out -> shim; `options` are for the end of `in` at the worker."""
    design = empty(name, "relay")
    worker = {k: options.pop(k) for k in ("parameters", "stack", "kernels") if k in options}
    into = design.fifo(
        "in", "u8", size, design.shim(column), design.core(column, row, depth, **options)
    )
    out = design.fifo("out", "u8", size, design.core(column, row, depth), design.shim(column))
    add_worker(design, column, row, [into], [out], body, buffers=buffers or [], **worker)
    return design


def through_memory(
    *, size: int = 64, depth: int = 2, part: int | None = None, **options: Any
) -> Design:
    """shim -> a -> memory tile -> b -> worker -> out -> shim; `options` are for a's end."""
    design = empty(title="through_memory")
    here = Array("u8", part or size)
    a = design.fifo("a", "u8", size, design.shim(0), design.mem(0, depth, **options))
    b = design.fifo("b", "u8", size, design.mem(0, depth), design.core(0, 0, object=here))
    design.forward(a, b)
    out = design.fifo("out", "u8", 64, design.core(0, 0), design.shim(0))
    add_worker(design, 0, 0, [b], [out])
    return design


def steps(*made: Any) -> Callable[[Core], Iterator[Any]]:
    """A body with just these steps."""

    def body(core: Core) -> Iterator[Any]:
        yield from (step for step in made)  # a generator, as a tuple takes no answers

    return body


TAKE, GIVE = (Acquire("in"), Release("in")), (Acquire("out"), Release("out"))


def refusal(design: Design) -> str:
    """The violations that `check` finds in a design."""
    with pytest.raises(DesignError) as caught:
        check(design)
    return str(caught.value)
