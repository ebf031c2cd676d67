"""Single-field changes to instruction streams and to designs, for testing the simulator itself.

Changes are made only to fields in use: a stride of a dimension that the transfer has, a wrap that
is not the outermost, a descriptor that is pushed. A field that nothing reads has no effect by
definition. The parameters in `EQUIVALENT` may change without effect for the reason given there. Of
a float only the upper half is changed, because bfloat16 results show only that.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ort_aie_ep.npu.checks.progress import statements
from ort_aie_ep.npu.simulator.registers import (
    ShimDescriptor,
    core_lock_of,
    core_memory_of,
    shim_descriptor_of,
    shim_queue_of,
)
from ort_aie_ep.npu.simulator.txn import AddressPatch, BlockWrite, Wait, Write, decode
from ort_aie_ep.npu.terms.configuration import configure
from ort_aie_ep.npu.terms.design import Design, End, Fifo, Layout
from ort_aie_ep.npu.terms.device import WORD

Words = npt.NDArray[np.uint32]


#: By worker (without its number) and parameter: why another value can mean the same.
EQUIVALENT = {
    ("score", "group"): "scores come in pairs of heads, and surplus heads are not used",
    ("value", "group"): "surplus heads are not sent out",
    ("score", "softcap"): "a cap far above the scores does not change them",
}
FLOATS = {"scale"}


@dataclass(frozen=True)
class Field:
    """Bits `low` .. `low + width - 1` of word `word` of a stream; `kind` is the category."""

    kind: str
    name: str
    word: int
    low: int
    width: int

    def get(self, words: Words) -> int:
        return int(words[self.word]) >> self.low & (1 << self.width) - 1

    def set(self, words: Words, value: int) -> Words:
        mask = ((1 << self.width) - 1) << self.low
        changed = words.copy()
        changed[self.word] = (int(words[self.word]) & ~mask & 0xFFFFFFFF) | value << self.low
        return changed


@dataclass(frozen=True)
class Mutation:
    """A changed stream, and a description of the change."""

    field: Field
    before: int
    after: int
    words: Words

    def __str__(self) -> str:
        return f"{self.field.kind}: {self.field.name} {self.before} -> {self.after}"


def fields(words: Words, design: Design) -> list[Field]:
    """Every field in use: strides, wraps, lengths, locks, addresses, queues and parameters."""
    parameters = {
        (tile.column, tile.row, plan.parameters + WORD * i): (worker.rstrip("0123456789"), name)
        for worker, plan in configure(design).workers.items()
        for tile in [plan.worker.tile]
        for i, name in enumerate(plan.worker.parameters)
    }
    return [f for op in decode(words).operations for f in _fields_of(op, parameters)]


def _fields_of(
    op: object, parameters: Mapping[tuple[int, int, int], tuple[str, str]]
) -> Iterator[Field]:
    match op:
        case BlockWrite() if shim_descriptor_of(op.address) is not None:
            yield from _descriptor_fields(op)
        case AddressPatch():
            # Addresses are words: bits 1:0 do not exist.
            yield Field("address", f"op {op.index} patched offset", op.offset + 10, 2, 30)
            yield Field("address", f"op {op.index} argument", op.offset + 8, 0, 3)
            yield Field("address", f"op {op.index} patched descriptor", op.offset + 6, 5, 4)
        case Write() if shim_queue_of(op.address) is not None:
            yield Field("queue", f"op {op.index} descriptor", op.offset + 4, 0, 4)
            yield Field("queue", f"op {op.index} repeats", op.offset + 4, 16, 8)
            yield Field("queue", f"op {op.index} channel", op.offset + 2, 3, 2)
            yield Field("queue", f"op {op.index} token", op.offset + 4, 31, 1)
        case Write() if core_lock_of(op.address) is not None:
            yield Field("lock", f"op {op.index} value", op.offset + 4, 0, 6)
            yield Field("lock", f"op {op.index} lock", op.offset + 2, 4, 4)
            yield Field("lock", f"op {op.index} row", op.offset + 2, 20, 3)
        case Write() if (place := core_memory_of(op.address)) is not None:
            yield Field("address", f"op {op.index} parameter word", op.offset + 2, 2, 3)
            worker, name = parameters[place]
            if (worker, name) not in EQUIVALENT:
                low = 16 if name in FLOATS else 0
                what = f"op {op.index} value of {name} of a {worker}"
                yield Field("parameter", what, op.offset + 4, low, 32 - low)
        case Wait():
            yield Field("queue", f"op {op.index} waits for channel", op.offset + 3, 24, 1)
            yield Field("queue", f"op {op.index} waits for direction", op.offset + 2, 0, 1)


def _descriptor_fields(op: BlockWrite) -> Iterator[Field]:
    descriptor = ShimDescriptor.from_words(op.words)
    base = op.offset + 4

    def field(kind: str, name: str, word: int, low: int, width: int) -> Field:
        return Field(kind, f"op {op.index} {name}", base + word, low, width)

    yield field("length", "length", 0, 0, 24)
    dimensions = len(descriptor.dimensions)
    linear = dimensions == 1
    for i in range(dimensions):
        if not linear:
            yield field("stride", f"D{i} step", 3 + i, 0, 20)
        if i < dimensions - 1:
            yield field("wrap", f"D{i} wrap", 3 + i, 20, 10)
    if descriptor.iteration_count > 1:
        yield field("stride", "iteration step", 6, 0, 20)
        yield field("wrap", "iteration wrap", 6, 20, 6)
    yield field("lock", "release value", 7, 18, 7)


def stream_mutation(words: Words, choices: list[Field], rng: random.Random) -> Mutation:
    """A random change to one of `choices`: by one, in one bit, or to any value."""
    by_kind: dict[str, list[Field]] = {}
    for f in choices:
        by_kind.setdefault(f.kind, []).append(f)
    field = rng.choice(by_kind[rng.choice(sorted(by_kind))])
    before, limit = field.get(words), 1 << field.width
    while True:
        after = rng.choice(
            [before + 1, before - 1, before ^ 1 << rng.randrange(field.width), rng.randrange(limit)]
        )
        if "iteration wrap" in field.name and after > before:
            continue  # a counter would not reach it before the task ends
        if 0 <= after < limit and after != before:
            return Mutation(field, before, after, field.set(words, after))


# --- designs --------------------------------------------------------------------------------------
DesignMutator = Callable[[Design, random.Random], str | None]


def _replace_end(fifo: Fifo, old: End, new: End) -> None:
    if old is fifo.producer:
        fifo.producer = new
    else:
        fifo.consumers[fifo.consumers.index(old)] = new


def link_order(design: Design, rng: random.Random) -> str | None:
    links = [link for link in design.links if len(link.parts) > 1]
    if not links:
        return None
    link = rng.choice(links)
    if link.whole in link.sources:
        changed = replace(link, destinations=link.destinations[::-1])
    else:
        changed = replace(link, sources=link.sources[::-1])
    design.links[design.links.index(link)] = changed
    return f"the segments of {link.whole.name} change their order"


def layout_order(design: Design, rng: random.Random) -> str | None:
    ends = [
        (fifo, end)
        for fifo in design.fifos.values()
        for end in (fifo.producer, *fifo.consumers)
        if end.layout is not None and len(end.layout.dimensions) > 2
    ]
    if not ends:
        return None
    fifo, end = rng.choice(ends)
    assert end.layout is not None
    first, second, *rest = end.layout.dimensions
    _replace_end(fifo, end, replace(end, layout=Layout((second, first, *rest))))
    return f"fifo {fifo.name} at {end.tile} is walked in another order"


def _some_statement(design: Design, kind: str, rng: random.Random) -> dict[str, Any]:
    sequence = rng.choice(list(design.sequences.values()))
    return rng.choice([s for s in statements(sequence.body) if kind in s])


def transfer_offset(design: Design, rng: random.Random) -> str | None:
    transfer = _some_statement(design, "transfer", rng)
    transfer["offset"] = ["+", transfer["offset"], 4]
    return f"a transfer of {transfer['transfer']} begins 4 bytes later"


def transfer_run(design: Design, rng: random.Random) -> str | None:
    transfer = _some_statement(design, "transfer", rng)
    transfer["run"] = ["-", transfer["run"], 4]
    return f"a transfer of {transfer['transfer']} has runs 4 bytes shorter"


def transfer_stride(design: Design, rng: random.Random) -> str | None:
    transfer = _some_statement(design, "transfer", rng)
    if not transfer["outer"]:
        return None
    outer = [list(dimension) for dimension in transfer["outer"]]
    dimension = rng.choice(outer)
    dimension[1] = ["-", dimension[1], 4]
    transfer["outer"] = outer
    return f"a transfer of {transfer['transfer']} has a stride {dimension[1]}"


def transfer_fifo(design: Design, rng: random.Random) -> str | None:
    transfer = _some_statement(design, "transfer", rng)
    old = transfer["transfer"]
    others = [f for f in design.fifos if f != old and f[0] == old[0] and f in _ports(design)]
    if not others:
        return None
    transfer["transfer"] = rng.choice(others)
    return f"a transfer of {old} goes to {transfer['transfer']}"


def _ports(design: Design) -> list[str]:
    """The fifos that end at a shim."""
    return [
        f.name
        for f in design.fifos.values()
        if "shim" in (f.producer.tile.kind, *(end.tile.kind for end in f.consumers))
    ]


#: Changes that give another valid design: their effect shows in the results.
REWRITING: list[DesignMutator] = [
    layout_order, link_order, transfer_offset, transfer_run, transfer_stride, transfer_fifo,
]  # fmt: skip


def mutate_design(design: Design, rng: random.Random) -> str:
    """Changes one thing of `design` in place; returns a description."""
    while True:
        text = rng.choice(REWRITING)(design, rng)
        if text is not None:
            return text
