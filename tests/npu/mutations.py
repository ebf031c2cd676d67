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
from ort_aie_ep.npu.terms.device import (
    CONTROLLER_PACKET_IDS,
    STATIC_BYTES,
    TILES,
    WORD,
    Tile,
)  # fmt: skip
from ort_aie_ep.npu.terms.kernel import Array

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


def _some_fifo(design: Design, rng: random.Random) -> Fifo:
    return rng.choice(list(design.fifos.values()))


def _replace_end(fifo: Fifo, old: End, new: End) -> None:
    if old is fifo.producer:
        fifo.producer = new
    else:
        fifo.consumers[fifo.consumers.index(old)] = new


def drop_consumer(design: Design, rng: random.Random) -> str | None:
    fifo = _some_fifo(design, rng)
    gone = rng.choice(fifo.consumers)
    fifo.consumers.remove(gone)
    return f"fifo {fifo.name} loses its consumer at {gone.tile}"


def move_end(design: Design, rng: random.Random) -> str | None:
    fifo = _some_fifo(design, rng)
    end = rng.choice([fifo.producer, *fifo.consumers])
    tiles = [Tile(end.tile.column, row) for row in range(6) if row != end.tile.row]
    tile = rng.choice(tiles)
    _replace_end(fifo, end, replace(end, tile=tile))
    return f"fifo {fifo.name} ends at {tile} instead of {end.tile}"


def object_size(design: Design, rng: random.Random) -> str | None:
    fifo = _some_fifo(design, rng)
    count = fifo.object.count // 2
    if not fifo.shared:  # more space in shared memory changes nothing
        count = rng.choice([count, fifo.object.count * 2, fifo.object.count + 4])
    fifo.object = Array(fifo.object.element, count)
    return f"objects of fifo {fifo.name} become {count} elements"


def end_object(design: Design, rng: random.Random) -> str | None:
    fifo = _some_fifo(design, rng)
    end = rng.choice(fifo.consumers)
    size = end.object or fifo.object
    _replace_end(fifo, end, replace(end, object=Array(size.element, size.count // 2), layout=None))
    return f"fifo {fifo.name} is received at {end.tile} in halves"


def layout_stride(design: Design, rng: random.Random) -> str | None:
    fifo = _some_fifo(design, rng)
    end = rng.choice([fifo.producer, *fifo.consumers])
    if end.tile.kind == "shim":
        return None
    if end.layout is None:
        words = (end.object or fifo.object).bytes // 4
        if words % 2:
            return None
        layout = Layout(((2, 4), (words // 2, 8)))
    else:
        dims = [list(d) for d in end.layout.dimensions]
        at = rng.choice([i for i, (count, _) in enumerate(dims) if count > 1])
        dims[at][1] += rng.choice([4, -4]) if dims[at][1] > 4 else 4
        layout = Layout(tuple((c, s) for c, s in dims))
    _replace_end(fifo, end, replace(end, layout=layout))
    return f"fifo {fifo.name} at {end.tile} has the layout {layout.dimensions}"


def depth(design: Design, rng: random.Random) -> str | None:
    fifo = _some_fifo(design, rng)
    end = rng.choice([fifo.producer, *fifo.consumers])
    # At a memory tile, the whole object's fifo decides.
    parts = [part for link in design.links for part in link.parts]
    if end.tile.kind == "shim" or (end.tile.kind == "mem" and fifo in parts):
        return None
    _replace_end(fifo, end, replace(end, depth=rng.choice([0, 1000])))
    return f"fifo {fifo.name} at {end.tile} gets an impossible depth"


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


def link_offset(design: Design, rng: random.Random) -> str | None:
    links = [link for link in design.links if len(link.parts) > 1]
    if not links:
        return None
    link = rng.choice(links)
    offsets = list(link.offsets)
    offsets[rng.randrange(1, len(offsets))] -= 4
    design.links[design.links.index(link)] = replace(link, offsets=tuple(offsets))
    return f"a segment of {link.whole.name} lies 4 bytes lower"


def channel(design: Design, rng: random.Random) -> str | None:
    fifo = _some_fifo(design, rng)
    if fifo.shared:
        return None
    end = rng.choice([fifo.producer, *fifo.consumers])
    beyond = TILES[end.tile.kind].mm2s
    _replace_end(fifo, end, replace(end, channel=beyond))
    return f"fifo {fifo.name} at {end.tile} is pinned to channel {beyond}"


def packet(design: Design, rng: random.Random) -> str | None:
    fifo = _some_fifo(design, rng)
    if fifo.packet is None:  # alone on its channel: an id that the streams follow changes nothing
        return None
    fifo.packet = None
    return f"fifo {fifo.name} loses its packet id"


def packet_of_a_controller(design: Design, rng: random.Random) -> str | None:
    fifo = _some_fifo(design, rng)
    if fifo.packet is None:
        return None
    fifo.packet = rng.choice(sorted(CONTROLLER_PACKET_IDS))
    return f"fifo {fifo.name} gets packet id {fifo.packet}"


def packet_of_another(design: Design, rng: random.Random) -> str | None:
    fifo, other = _some_fifo(design, rng), _some_fifo(design, rng)
    if fifo is other or fifo.packet is None or other.packet is None:
        return None
    fifo.packet = other.packet
    return f"fifo {fifo.name} gets the packet id of {other.name}"


def no_room(design: Design, rng: random.Random) -> str | None:
    """Buffers that fit, but leave the linker too little space."""
    worker = rng.choice(list(design.workers.values()))
    free = TILES["core"].memory - configure(design).memory[worker.tile]
    buffer = rng.choice(worker.buffers)
    words = (free - rng.randrange(64, STATIC_BYTES - 64)) // WORD
    grown = Array(buffer.array.element, buffer.array.count + words * WORD // _size(buffer.array))
    worker.buffers = tuple(replace(b, array=grown) if b is buffer else b for b in worker.buffers)
    return f"buffer {buffer.name} of {worker.name} grows by {words} words"


def _size(array: Array) -> int:
    return array.bytes // array.count


def swap_inputs(design: Design, rng: random.Random) -> str | None:
    worker = rng.choice(list(design.workers.values()))
    if len(worker.inputs) < 2:
        return None
    a, b = rng.sample(sorted(worker.inputs), 2)
    worker.inputs[a], worker.inputs[b] = worker.inputs[b], worker.inputs[a]
    return f"worker {worker.name} takes {a} for {b}"


def buffer_size(design: Design, rng: random.Random) -> str | None:
    worker = rng.choice(list(design.workers.values()))
    buffer = rng.choice(worker.buffers)
    half = replace(buffer, array=Array(buffer.array.element, buffer.array.count // 2))
    worker.buffers = tuple(half if b is buffer else b for b in worker.buffers)
    return f"buffer {buffer.name} of {worker.name} is half as large"


def parameter(design: Design, rng: random.Random) -> str | None:
    worker = rng.choice(list(design.workers.values()))
    worker.parameters = worker.parameters[:-1]
    return f"worker {worker.name} loses a parameter"


def stack(design: Design, rng: random.Random) -> str | None:
    worker = rng.choice(list(design.workers.values()))
    worker.stack = 64 * 1024
    return f"worker {worker.name} has a stack of 64 KiB"


def move_worker(design: Design, rng: random.Random) -> str | None:
    worker = rng.choice(list(design.workers.values()))
    free = [t for t in design.device.cores if t != worker.tile]
    worker.tile = rng.choice(free)
    return f"worker {worker.name} moves to {worker.tile}"


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


#: Changes that break a rule, which `check` should find.
BREAKING: list[DesignMutator] = [
    drop_consumer, move_end, object_size, end_object, layout_stride, depth,
    link_offset, channel, packet, packet_of_a_controller, packet_of_another, no_room, swap_inputs,
    buffer_size, parameter, stack, move_worker,
]  # fmt: skip
#: Changes that give another valid design: their effect shows in the results.
REWRITING: list[DesignMutator] = [
    layout_order, link_order, transfer_offset, transfer_run, transfer_stride, transfer_fifo,
]  # fmt: skip


def mutate_design(design: Design, mutators: list[DesignMutator], rng: random.Random) -> str:
    """Changes one thing of `design` in place; returns a description."""
    while True:
        text = rng.choice(mutators)(design, rng)
        if text is not None:
            return text
