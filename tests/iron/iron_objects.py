"""The recorder's objects: fifos and links, buffers, locks, kernels."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from iron_rules import (
    STATE,
    AIETileType,
    Bound,
    TensorAccessPattern,
    Tile,
    array,
    in_core,
    in_sequence,
    rule,
    whole_words,
)
from iron_signatures import bind


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
    def at_shim(self) -> bool:
        """Bound to a runtime, not to a worker or a link."""
        return hasattr(self.endpoint, "seq_fn")

    @property
    def obj_type(self) -> Any:
        return self.fifo.obj_type if self.is_producer else self.fifo.taken

    @property
    def tile(self) -> Tile:
        if self.at_shim:
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
        rule(False, "a worker of ours never sets its own go lock")

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


# --- operations of a core -------------------------------------------------------------------------
@dataclass
class Do:
    what: str
    operands: tuple[Any, ...]


@dataclass
class Loop:
    count: Any
    index: Value
    body: list[Any] = field(default_factory=list)
