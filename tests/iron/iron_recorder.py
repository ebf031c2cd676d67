"""A stand-in of mlir-aie's Python that records a program and enforces the rules stated of it.

`install(monkeypatch)` puts it in the place of the package `aie`. It emits no MLIR: a program is
kept as objects (`Recording`), a core's code as a tree that `execute` can run on numbers. Every rule
raises `Violation`; its source stands beside it.
"""

from __future__ import annotations

import math
import sys
import types
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, get_args

import numpy as np
import pytest
from iron_signatures import bind, signature


class Violation(Exception):
    """A rule of the interface or of the hardware is broken."""


def rule(holds: object, text: str) -> None:
    if not holds:
        raise Violation(text)


class AIETileType(Enum):
    CoreTile = 1
    MemTile = 2
    ShimNOCTile = 3


class Bound:
    """Base of the stand-ins: `self.given` has the arguments by name."""

    fact = ""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.given = bind(self.fact or type(self).__name__, args, kwargs)
        self.setup(**self.given)

    def setup(self, **given: Any) -> None:
        raise NotImplementedError


def array(array_type: Any) -> tuple[int, np.dtype[Any]]:
    """(count, dtype) of `np.ndarray[(count,), np.dtype[T]]`."""
    shape, dtype = get_args(array_type)
    return math.prod(shape), np.dtype(get_args(dtype)[0])


def whole_words(array_type: Any, what: str) -> None:
    # Everything that moves is a multiple of 4 bytes (AM020; mlir-aie's DMA verifier).
    count, dtype = array(array_type)
    rule(count > 0 and count * dtype.itemsize % 4 == 0, f"{what}: {count} x {dtype} is not words")


# --- tiles and devices ----------------------------------------------------------------------------
class Tile(Bound):
    def setup(self, col: int | None, row: int | None, tile_type: AIETileType | None) -> None:
        self.col, self.row, self.tile_type = col, row, tile_type
        rule(col is not None and row is not None, "a tile of ours is always placed")
        kind = {0: AIETileType.ShimNOCTile, 1: AIETileType.MemTile}.get(row or 0)
        rule(tile_type == (kind or AIETileType.CoreTile), f"tile ({col}, {row}) is no {tile_type}")
        STATE.tiles.append(self)

    @property
    def place(self) -> tuple[int, int]:
        return (self.col or 0, self.row or 0)


def check_tiles() -> None:
    # Two Tile objects of one place can become two tiles.
    for place, count in Counter(tile.place for tile in STATE.tiles).items():
        rule(count == 1, f"{count} Tile objects at {place}")


@dataclass
class Device:
    name: str


def make_device(name: str) -> Callable[[], Device]:
    # The classes that python/iron/device generates; NPU2Col8 is not among them for certain.
    known = ["NPU1", "NPU2", *(f"NPU1Col{i}" for i in range(1, 5))]
    known += [f"NPU2Col{i}" for i in range(1, 8)]
    if name not in known:
        raise AttributeError(name)
    return lambda: Device(name)


# --- patterns -------------------------------------------------------------------------------------
class TensorAccessPattern(Bound):
    def setup(self, tensor_dims: Any, offset: int, sizes: Any, strides: Any) -> None:
        rule(len(sizes) == len(strides) > 0, f"{len(sizes)} sizes and {len(strides)} strides")
        rule(all(n >= 1 for n in sizes), f"sizes {sizes}")
        rule(all(s >= 0 for s in strides), f"strides {strides}")
        self.numel = math.prod(tensor_dims)
        self.offset, self.sizes, self.strides = offset, list(sizes), list(strides)
        last = offset + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
        rule(offset >= 0 and last < self.numel, f"pattern ends at {last} of {self.numel}")

    @property
    def moved(self) -> int:
        return math.prod(self.sizes)

    def elements(self) -> np.ndarray[Any, Any]:
        """Indices of the elements, in order."""
        total = np.array([self.offset], dtype=np.int64)
        for n, s in zip(self.sizes, self.strides, strict=True):
            total = (total[:, None] + np.arange(n) * s).ravel()
        return total


def check_walk(tap: Any, itemsize: int, dimensions: int, wrap: int, step: int) -> None:
    """4-byte granularity, and what a descriptor has room for (field widths: AM020, aie-rt)."""
    words = 4 // itemsize if itemsize < 4 else 1
    sizes, strides = list(tap.sizes), list(tap.strides)
    rule(tap.offset % words == 0, f"offset of {tap.offset * itemsize} bytes")
    rule(
        all(s % words == 0 for s, n in zip(strides[:-1], sizes[:-1], strict=True) if n > 1),
        f"strides {strides} of {itemsize}-byte elements are not words",
    )
    # An innermost stride other than 1 is legal for 4-byte elements only.
    rule(strides[-1] == 1 or itemsize == 4, f"innermost stride {strides[-1]}")
    rule(sizes[-1] % words == 0, f"innermost run of {sizes[-1] * itemsize} bytes")
    rule(len(sizes) <= dimensions, f"{len(sizes)} dimensions, {dimensions} at most")
    inner = [n // words if i == len(sizes) - 1 else n for i, n in enumerate(sizes)]
    rule(all(n <= wrap for n in inner[1:]), f"sizes {inner} in words, {wrap} at most")
    rule(all(s // words <= step for s in strides), f"strides {strides}, {step} words at most")


# --- fifos ----------------------------------------------------------------------------------------
class ObjectFifo(Bound):
    def setup(self, obj_type: Any, depth: Any, name: Any, **options: Any) -> None:
        whole_words(obj_type, f"fifo {name}")
        rule(depth >= 1, f"fifo {name}: depth {depth}")
        for key in ("to_stream", "from_stream_per_cons"):
            tap = options[key]
            rule(tap is None or isinstance(tap, TensorAccessPattern), f"{key} takes a pattern only")
        self.name, self.obj_type, self.options = name, obj_type, options
        self.taken = options["consumer_obj_type"] or obj_type
        (count, dtype), (part, other) = array(obj_type), array(self.taken)
        # A receiver's objects divide the sender's (objectfifo.py, consumer_obj_type).
        rule(dtype == other and count % part == 0, f"fifo {name}: {part} of {count}")
        packet, number = options["packet"], options["packet_id"]
        rule(number is None or packet, f"fifo {name}: a packet id without packet")
        rule(number is None or 0 <= number <= 31, f"fifo {name}: packet id {number}")
        rule(name not in [f.name for f in STATE.fifos], f"two fifos are named {name!r}")
        self.producer: ObjectFifoHandle | None = None
        self.consumers: list[ObjectFifoHandle] = []
        STATE.fifos.append(self)

    def prod(self, *args: Any, **kwargs: Any) -> ObjectFifoHandle:
        given = bind("ObjectFifo.prod", args, kwargs)
        # One producer: a second call gives the same handle and cannot pin it anew.
        if self.producer is None:
            self.producer = ObjectFifoHandle(self, True, given)
        for key in ("channel", "tile"):
            old = self.producer.given[key]
            rule(given[key] in (None, old), f"fifo {self.name}: producer re-pinned")
        return self.producer

    def cons(self, *args: Any, **kwargs: Any) -> ObjectFifoHandle:
        self.consumers.append(ObjectFifoHandle(self, False, bind("ObjectFifo.cons", args, kwargs)))
        return self.consumers[-1]  # each call is a new consumer


class ObjectFifoHandle:
    def __init__(self, fifo: ObjectFifo, producer: bool, given: dict[str, Any]) -> None:
        self.fifo, self.is_producer, self.given = fifo, producer, given
        self.depth = given["depth"] or fifo.given["depth"]
        self.endpoint: Any = None  # a Worker, an ObjectFifoLink or a Runtime

    @property
    def obj_type(self) -> Any:
        return self.fifo.obj_type if self.is_producer else self.fifo.taken

    @property
    def tile(self) -> Tile:
        if isinstance(self.endpoint, Runtime):
            rule(self.given["tile"] is not None, f"{self}: no shim tile is pinned")
            return self.given["tile"]
        return self.endpoint.tile

    @property
    def tap(self) -> Any:
        return self.fifo.options["to_stream"] if self.is_producer else self.given["from_stream"]

    def __str__(self) -> str:
        return f"{'producer' if self.is_producer else 'consumer'} of fifo {self.fifo.name}"

    def bind_to(self, endpoint: Any) -> None:
        rule(self.endpoint in (None, endpoint), f"{self} already has an endpoint")
        self.endpoint = endpoint

    def acquire(self, *args: Any, **kwargs: Any) -> Any:
        count = bind("ObjectFifoHandle.acquire", args, kwargs)["num_elem"]
        rule(1 <= count <= self.depth, f"{self}: acquire({count}) at depth {self.depth}")
        core = in_core()
        core.uses(self)
        # Absolute: it tops what is held up to `count`.
        held = core.held[self] = max(core.held[self], count)
        core.emit(Do("acquire", (self.fifo.name, count)))
        views = [View(self, i) for i in range(held)]
        return views[0] if count == 1 else views[:count]

    def release(self, *args: Any, **kwargs: Any) -> None:
        count = bind("ObjectFifoHandle.release", args, kwargs)["num_elem"]
        core = in_core()
        core.uses(self)
        rule(1 <= count <= core.held[self], f"{self}: release({count}) of {core.held[self]} held")
        core.held[self] -= count
        core.emit(Do("release", (self.fifo.name, count)))

    def fill(self, *args: Any, **kwargs: Any) -> None:
        rule(self.is_producer, f"fill() on the {self}")
        given = bind("ObjectFifoHandle.fill", args, kwargs)
        in_sequence().move(self, given.pop("source"), given)

    def drain(self, *args: Any, **kwargs: Any) -> None:
        rule(not self.is_producer, f"drain() on the {self}")
        given = bind("ObjectFifoHandle.drain", args, kwargs)
        in_sequence().move(self, given.pop("dest"), given)


class ObjectFifoLink(Bound):
    def setup(self, srcs: Any, dsts: Any, tile: Tile, src_offsets: Any, dst_offsets: Any) -> None:
        self.tile, self.sources, self.destinations = tile, srcs, dsts
        rule(tile.tile_type == AIETileType.MemTile, "a link of ours is on a memory tile")
        rule(min(len(srcs), len(dsts)) == 1, "a link is many to one or one to many")
        rule(all(not h.is_producer for h in srcs), "sources of a link are consumers")
        rule(all(h.is_producer for h in dsts), "destinations of a link are producers")
        for handle in (*srcs, *dsts):
            handle.bind_to(self)
        # Offsets belong to the side that has the parts (AIEDialect's verifier of the link).
        join, split = len(srcs) > 1, len(dsts) > 1
        rule(len(src_offsets or []) == (len(srcs) if join else 0), "source offsets")
        rule(len(dst_offsets or []) in ((len(dsts),) if split else (0, int(not join))), "offsets")
        self.segments: dict[ObjectFifo, int] = {}
        whole = (dsts if join else srcs)[0].fifo
        size, dtype = array(whole.obj_type)
        for side, offsets in ((srcs, src_offsets), (dsts, dst_offsets)):
            if not offsets or len(side) == 1:
                continue
            rule(offsets[0] == 0 and sorted(set(offsets)) == offsets, f"offsets {offsets}")
            for handle, start, end in zip(side, offsets, [*offsets[1:], size], strict=True):
                part, other = array(handle.fifo.obj_type)
                rule(dtype == other, f"a link of {dtype} and {other}")
                # A segment holds whole objects of a sender, or is one of a receiver.
                exact = (end - start) % part == 0 if join else end - start == part
                rule(exact, f"segment {start}..{end} of {whole.name}, objects of {part}")
                rule(start * dtype.itemsize % 4 == 0, f"segment at element {start}")
                self.segments[handle.fifo] = end - start
        if not join and not split:
            (a, _), (b, _) = array(srcs[0].fifo.taken), array(dsts[0].fifo.obj_type)
            rule(a == b, f"a forward of {a} elements to {b}")

    def transfer(self, fifo: ObjectFifo) -> int:
        """Elements of a transfer of `fifo` at this link."""
        if self.segments:
            return self.segments.get(fifo, min(self.segments.values()))
        return array(self.destinations[0].fifo.obj_type)[0]


# --- memories, locks, kernels ---------------------------------------------------------------------
@dataclass(frozen=True)
class View:
    """An acquired object."""

    handle: ObjectFifoHandle
    index: int

    @property
    def array_type(self) -> Any:
        return self.handle.obj_type


@dataclass(frozen=True)
class Value:
    """An integer of a core: of MLIR's type `kind`, computed as `how` says."""

    kind: str
    how: tuple[Any, ...]


class Buffer(Bound):
    def setup(self, type: Any, name: Any, tile: Any, address: Any, **options: Any) -> None:
        whole_words(type, f"buffer {name}")
        self.array_type, self.name, self.tile = type, name, tile
        self.address, self.rtp = address, options["use_write_rtp"]
        rule(address is None or (address % 4 == 0 and address < 65536), f"address {address}")
        rule(name not in [b.name for b in STATE.buffers], f"two buffers are named {name!r}")
        STATE.buffers.append(self)

    def _check_index(self, index: int) -> None:
        count, dtype = array(self.array_type)
        rule(dtype == np.int32, f"{self.name}[{index}]: words of run-time parameters are i32")
        rule(0 <= index < count, f"{self.name}[{index}] of {count}")

    def __getitem__(self, index: int) -> Value:
        self._check_index(index)
        core = in_core()
        core.uses(self)
        return core.define("i32", ("read", self.name, index))

    def __setitem__(self, index: int, value: int) -> None:
        self._check_index(index)
        rule(self.rtp, f"{self.name} is written in a sequence and has no use_write_rtp")
        rule(-(2**31) <= value < 2**31, f"{self.name}[{index}] = {value}: i32 only")
        in_sequence().write(self, index, value)


class Lock(Bound):
    def setup(self, tile: Tile, lock_id: Any, init: int, name: Any) -> None:
        rule(lock_id is None or 0 <= lock_id < 16, f"lock {lock_id} of a compute tile")
        rule(0 <= init <= 63, f"lock value {init}")
        self.tile, self.id, self.init, self.name = tile, lock_id, init, name
        taken = [(lock.tile, lock.id) for lock in STATE.locks]
        rule((tile, lock_id) not in taken or lock_id is None, f"lock {lock_id} is taken twice")
        STATE.locks.append(self)

    def acquire(self, *args: Any, **kwargs: Any) -> None:
        value = bind("Lock.acquire", args, kwargs)["value"]
        core = in_core()
        core.uses(self)
        core.emit(Do("lock", (self.name, value)))

    def release(self, *args: Any, **kwargs: Any) -> None:
        raise Violation("a worker of ours never sets its own go lock")

    def set(self, *args: Any, **kwargs: Any) -> None:
        value = bind("Lock.set", args, kwargs)["value"]
        rule(0 <= value <= 63, f"lock value {value}")
        in_sequence().start(self, value)


class Kernel(Bound):
    def setup(self, name: str, object_file_name: str, arg_types: Any) -> None:
        self.name, self.object, self.types = name, object_file_name, arg_types
        rule("/" not in object_file_name, "link_with is relative to the folder of the MLIR")
        rule(name not in [k.name for k in STATE.kernels], f"kernel {name} is declared twice")
        STATE.kernels.append(self)

    def __call__(self, *args: Any) -> None:
        core = in_core()
        core.uses(self)
        rule(len(args) == len(self.types), f"{self.name} takes {len(self.types)} arguments")
        given: list[Any] = []
        for i, (argument, wanted) in enumerate(zip(args, self.types, strict=True)):
            what = f"{self.name}, argument {i}"
            if wanted is np.int32:
                fits = isinstance(argument, int) or getattr(argument, "kind", "") == "i32"
                rule(fits, f"{what}: {argument} is no i32")
                given.append(argument)
                continue
            rule(isinstance(argument, View | Buffer), f"{what}: {argument} is no buffer")
            rule(array(argument.array_type) == array(wanted), f"{what}: {argument.array_type}")
            if isinstance(argument, View):
                rule(argument.index < core.held[argument.handle], f"{what}: already released")
                given.append(("object", argument.handle.fifo.name, argument.index))
            else:
                core.uses(argument)
                given.append(("buffer", argument.name))
        core.emit(Do("call", (self.name, *given)))


# --- workers --------------------------------------------------------------------------------------
@dataclass
class Do:
    what: str
    operands: tuple[Any, ...]


@dataclass
class Loop:
    count: Any
    index: Value
    body: list[Any] = field(default_factory=list)


class Worker(Bound):
    def setup(self, core_fn: Any, fn_args: Any, tile: Tile, **options: Any) -> None:
        rule(tile.tile_type == AIETileType.CoreTile, "a worker is on a compute tile")
        self.core_fn, self.fn_args, self.tile, self.options = core_fn, fn_args, tile, options
        self.leaves = list(flatten(fn_args))
        self.held: Counter[ObjectFifoHandle] = Counter()
        self.code: list[Any] = []
        self._blocks = [self.code]
        self._values = 0
        for leaf in self.leaves:
            # An ObjectFifo itself is refused by worker.py.
            rule(not isinstance(leaf, ObjectFifo), "a fifo is given, not a handle of it")
            if isinstance(leaf, ObjectFifoHandle):
                leaf.bind_to(self)
            elif isinstance(leaf, Buffer | Lock):
                rule(leaf.tile is tile, f"{leaf.name} is on another tile")

    def uses(self, thing: Any) -> None:
        # What a core uses must be among its arguments: that is what binds and resolves it.
        rule(
            any(thing is leaf for leaf in self.leaves),
            f"{getattr(thing, 'name', thing)} is not among the worker's arguments",
        )

    def emit(self, operation: Any) -> None:
        self._blocks[-1].append(operation)

    def define(self, kind: str, how: tuple[Any, ...]) -> Value:
        self._values += 1
        value = Value(kind, (self._values,))
        self.emit(Do("let", (value, how)))
        return value

    def open(self, loop: Loop) -> None:
        self.emit(loop)
        self._blocks.append(loop.body)

    def close(self) -> None:
        self._blocks.pop()

    def trace(self) -> None:
        STATE.core = self
        self.core_fn(*self.fn_args)
        STATE.core = None
        rule(len(self._blocks) == 1, "a loop was left open")
        rule(not +self.held, f"the body ends holding {dict(+self.held)}")


def range_(*args: Any, **kwargs: Any) -> Iterator[Value]:
    given = bind("range_", args, kwargs)
    count = given["start"]
    fits = isinstance(count, int | Value)
    rule(given["stop"] is None and fits, f"range_({count})")
    core = in_core()
    index = Value("index", (object(),))
    before = Counter(core.held)
    core.open(Loop(count, index))
    yield index
    core.close()
    rule(+core.held == +before, "a loop must release what it acquires")


def index_cast(*args: Any, **kwargs: Any) -> Value:
    given = bind("index_cast", args, kwargs)
    rule(given["to"] == "i32" and given["value"].kind == "index", f"index_cast{given}")
    return in_core().define("i32", ("cast", given["value"]))


def flatten(items: Any) -> Iterator[Any]:
    for item in items:
        if isinstance(item, list | tuple):
            yield from flatten(item)
        else:
            yield item


# --- the runtime ----------------------------------------------------------------------------------
@dataclass(frozen=True)
class HostArray:
    number: int
    array_type: Any


class TaskGroup(Bound):
    def setup(self, id: Any) -> None:
        self.finished = False
        in_sequence().groups.append(self)

    def finish(self, *args: Any, **kwargs: Any) -> None:
        bind("TaskGroup.finish", args, kwargs)
        rule(not self.finished, "a group is finished once")
        self.finished = True
        in_sequence().finish(self)


class Runtime(Bound):
    def setup(self, seq_fn: Any, fn_args: Any, **options: Any) -> None:
        self.seq_fn, self.fn_args = seq_fn, list(fn_args)
        self.events: list[tuple[Any, ...]] = []
        self.groups: list[TaskGroup] = []
        self._tasks: list[tuple[TaskGroup, ObjectFifoHandle]] = []
        self._bytes: Counter[ObjectFifoHandle] = Counter()
        self._started: set[Any] = set()
        for leaf in flatten(self.fn_args):
            if isinstance(leaf, ObjectFifoHandle):
                leaf.bind_to(self)
        self.leaves = list(flatten(self.fn_args))

    def run(self) -> None:
        STATE.sequence = self
        arguments, number = [], 0
        for argument in self.fn_args:
            if get_args(argument):  # an array type becomes a host argument, in order
                arguments.append(HostArray(number, argument))
                number += 1
            else:
                arguments.append(argument)
        self.seq_fn(*arguments)
        STATE.sequence = None
        rule(all(g.finished for g in self.groups), "a task group was not finished")

    def uses(self, thing: Any) -> None:
        # A handle that the sequence uses must be in fn_args: that binds a shim tile to it.
        rule(any(thing is leaf for leaf in self.leaves), f"{thing} is not among fn_args")

    def move(self, handle: ObjectFifoHandle, host: HostArray, given: dict[str, Any]) -> None:
        self.uses(handle)
        rule(isinstance(host, HostArray), f"{handle} moves {host}")
        group, tap = given["group"], given["tap"]
        rule(isinstance(group, TaskGroup) and not group.finished, "a transfer without its group")
        count, dtype = array(host.array_type)
        rule(isinstance(tap, TensorAccessPattern) and tap.numel == count, f"{handle}: {tap}")
        # Shim: D0..D2 and the iteration; 10-bit wraps; linear transfers have no limit but 32 bits.
        check_walk(tap, dtype.itemsize, 4, tap.sizes[0] if len(tap.sizes) == 1 else 1023, 1 << 20)
        self._bytes[handle] += tap.moved * dtype.itemsize
        self._tasks.append((group, handle))
        here = [h for _, h in self._tasks if h.tile is handle.tile]
        rule(len(here) <= 16, f"17 descriptors at once on the shim of {handle.tile.place}")
        same = [h for h in here if (h.given["channel"], h.is_producer) ==
                (handle.given["channel"], handle.is_producer)]  # fmt: skip
        rule(len(same) <= 4, f"5 tasks at once on the channel of the {handle}")
        self.events.append(("move", handle.fifo.name, host.number, tap, given["wait"]))

    def write(self, buffer: Buffer, index: int, value: int) -> None:
        self.uses(buffer)
        # Parameters before the lock: what is written after is read too late.
        rule(buffer.tile not in self._started, f"{buffer.name} is written after its start")
        self.events.append(("write", buffer.name, index, value))

    def start(self, lock: Lock, value: int) -> None:
        self.uses(lock)
        self._started.add(lock.tile)
        self.events.append(("set", lock.name, value))

    def finish(self, group: TaskGroup) -> None:
        self._tasks = [task for task in self._tasks if task[0] is not group]
        for handle, moved in self._bytes.items():
            count, dtype = array(handle.obj_type)
            rule(moved % (count * dtype.itemsize) == 0, f"{handle}: {moved} bytes are no objects")
        self._bytes.clear()
        self._started.clear()
        self.events.append(("finish",))


class Program(Bound):
    def setup(self, device: Device, rt: Runtime, workers: Any) -> None:
        self.device, self.runtime, self.workers = device, rt, workers

    def resolve_program(self, *args: Any, **kwargs: Any) -> Recording:
        bind("Program.resolve_program", args, kwargs)
        check_tiles()
        recording = Recording(
            self.device.name, list(STATE.fifos), list(self.workers), self.runtime,
            list(STATE.locks), list(STATE.buffers),
        )  # fmt: skip
        for fifo in recording.fifos:
            _check_fifo(fifo)
        _check_channels(recording.fifos)
        for worker in self.workers:
            worker.trace()
        self.runtime.run()
        STATE.last = recording
        return recording


_LIMITS = {  # dimensions, wrap, step in words (AM020, aie-rt's headers)
    AIETileType.CoreTile: (3, 255, 1 << 13),
    AIETileType.MemTile: (4, 1023, 1 << 17),
}


def _check_fifo(fifo: ObjectFifo) -> None:
    rule(fifo.producer is not None, f"fifo {fifo.name} has no producer")
    rule(fifo.consumers, f"fifo {fifo.name} has no consumer")
    assert fifo.producer is not None
    for handle in (fifo.producer, *fifo.consumers):
        rule(handle.endpoint is not None, f"the {handle} is bound to nothing")
        if isinstance(handle.endpoint, Runtime):
            rule(handle.tile.tile_type == AIETileType.ShimNOCTile, f"{handle} is not at a shim")
            rule(handle.given["channel"] in (0, 1), f"{handle}: shim channel")
            rule(handle.tap is None, f"{handle}: a layout at a shim")
        tap = handle.tap
        if tap is None:
            continue
        # A walk covers what one transfer moves, from its start (_check_walk_sizes).
        count, dtype = array(handle.obj_type)
        if isinstance(handle.endpoint, ObjectFifoLink):
            count = handle.endpoint.transfer(fifo)
        rule(tap.numel == tap.moved == count, f"{handle}: {tap.moved} of {tap.numel}, not {count}")
        rule(tap.offset == 0, f"{handle}: a walk starts at 0")
        check_walk(tap, dtype.itemsize, *_LIMITS[handle.tile.tile_type])
    delegate = fifo.options["delegate_tile"]
    if delegate is not None:
        tile = fifo.consumers[0].tile
        near = abs(tile.place[0] - delegate.place[0]) + abs(tile.place[1] - delegate.place[1])
        # A core reaches its own, south, west and north neighbour's memory, not the east one's.
        east = delegate.place[0] > tile.place[0]
        rule(near <= 1 and not east, f"fifo {fifo.name}: {tile.place} reaches no {delegate.place}")
        rule(len(fifo.consumers) == 1, f"fifo {fifo.name}: shared by more than two")


def _check_channels(fifos: list[ObjectFifo]) -> None:
    used: dict[tuple[Any, ...], ObjectFifo] = {}
    for fifo in fifos:
        for handle in (fifo.producer, *fifo.consumers):
            assert handle is not None
            key = (handle.tile.place, handle.is_producer, handle.given["channel"])
            other = used.setdefault(key, fifo)
            shared = fifo.options["packet"] and other.options["packet"]
            ours = other is fifo or handle.given["channel"] is None
            rule(ours or shared, f"fifos {other.name} and {fifo.name} on one channel {key}")
            ids = fifo.options["packet_id"] != other.options["packet_id"]
            rule(ours or ids, f"fifos {other.name} and {fifo.name} have the same packet id")


# --- a recording ----------------------------------------------------------------------------------
@dataclass
class Recording:
    device: str
    fifos: list[ObjectFifo]
    workers: list[Worker]
    runtime: Runtime
    locks: list[Lock]
    buffers: list[Buffer]

    def __str__(self) -> str:
        """What aiecc would report after it has kept all that was pinned, in its own form."""
        places = {t for f in self.fifos for h in (f.producer, *f.consumers) for t in [h.tile]}
        lines = [f"%tile_{t.col}_{t.row} = aie.tile({t.col}, {t.row})" for t in places]

        def at(tile: Tile) -> str:
            return f"%tile_{tile.col}_{tile.row}"

        for buffer in self.buffers:
            address = f"address = {buffer.address or 0} : i32, "
            lines.append(
                f"%{buffer.name} = aie.buffer({at(buffer.tile)}) "
                f'{{{address}sym_name = "{buffer.name}"}} : memref<1xi32>'
            )
        for lock in self.locks:
            lines.append(
                f"%{lock.name} = aie.lock({at(lock.tile)}, {lock.id}) "
                f'{{init = {lock.init} : i32, sym_name = "{lock.name}"}}'
            )
        for fifo in self.fifos:
            for handle in (fifo.producer, *fifo.consumers):
                assert handle is not None
                if isinstance(handle.endpoint, Runtime):
                    direction = "MM2S" if handle.is_producer else "S2MM"
                    channel, tile = handle.given["channel"], at(handle.tile)
                    lines.append(
                        f"aie.shim_dma_allocation @{fifo.name}_shim_alloc"
                        f"({tile}, {direction}, {channel})"
                    )
                    if fifo.options["packet"] and handle.is_producer:
                        lines.append(
                            f"aie.packet_flow({fifo.options['packet_id']}) {{\n"
                            f"  aie.packet_source<{tile}, DMA : {channel}>\n}}"
                        )
        return "\n".join(lines) + "\n"


def execute(worker: Worker, read: Callable[[str, int], int]) -> list[tuple[Any, ...]]:
    """Run the recorded code of a worker once; `read` gives words of buffers by name and index."""
    done: list[tuple[Any, ...]] = []
    values: dict[Any, int] = {}

    def number(value: Any) -> int:
        return values[value] if isinstance(value, Value) else int(value)

    def block(code: list[Any]) -> None:
        for operation in code:
            if isinstance(operation, Loop):
                for i in range(number(operation.count)):
                    values[operation.index] = i
                    block(operation.body)
            elif operation.what == "let":
                value, how = operation.operands
                values[value] = number(how[1]) if how[0] == "cast" else read(*how[1:])
            elif operation.what == "call":
                name, *arguments = operation.operands
                plain = [a if isinstance(a, tuple) else number(a) for a in arguments]
                done.append(("call", name, *plain))
            else:
                done.append((operation.what, *operation.operands))

    block(worker.code)
    return done


@dataclass
class State:
    tiles: list[Tile] = field(default_factory=list)
    fifos: list[ObjectFifo] = field(default_factory=list)
    buffers: list[Buffer] = field(default_factory=list)
    locks: list[Lock] = field(default_factory=list)
    kernels: list[Kernel] = field(default_factory=list)
    core: Worker | None = None
    sequence: Runtime | None = None
    last: Recording | None = None


STATE = State()


def forget() -> None:
    """Start over: names, tiles and locks of earlier programs no longer count."""
    vars(STATE).update(vars(State()))


def in_core() -> Worker:
    rule(STATE.core is not None, "only inside of a core's function")
    assert STATE.core is not None
    return STATE.core


def in_sequence() -> Runtime:
    rule(STATE.sequence is not None, "only inside of a runtime's sequence")
    assert STATE.sequence is not None
    return STATE.sequence


def install(monkeypatch: pytest.MonkeyPatch, version: str = "1.4.4") -> State:
    """Put the recorder in the place of mlir_aie `version`, with nothing recorded."""
    forget()
    for cls in (ObjectFifo, ObjectFifoLink, Worker, Buffer, Lock, Runtime, Program, Tile):
        cls.__signature__ = signature(cls.__name__)
    for method in ("prod", "cons"):
        made = signature(f"ObjectFifo.{method}")
        monkeypatch.setattr(getattr(ObjectFifo, method), "__signature__", made, raising=False)
    contents: dict[str, dict[str, Any]] = {
        "aie": {},
        "aie.iron": {
            c.__name__: c
            for c in (ObjectFifo, Worker, Kernel, Buffer, Lock, Runtime, Program, TaskGroup)
        },
        "aie.iron.dataflow": {"ObjectFifo": ObjectFifo, "ObjectFifoLink": ObjectFifoLink},
        "aie.iron.device": {"Tile": Tile, "__getattr__": make_device},
        "aie.iron.controlflow": {"range_": range_},
        "aie.helpers": {},
        "aie.helpers.taplib": {"TensorAccessPattern": TensorAccessPattern},
        "aie.dialects": {},
        "aie.dialects._aie_enum_gen": {"AIETileType": AIETileType},
        "aie.extras": {},
        "aie.extras.types": {"i32": lambda: "i32"},
        "aie.extras.dialects": {},
        "aie.extras.dialects.arith": {"index_cast": index_cast},
        "aie.utils": {},
    }
    for name, members in contents.items():
        module = types.ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(
        "ort_aie_ep.aie_kernels.iron.interface.metadata.version", lambda package: version
    )
    return STATE
