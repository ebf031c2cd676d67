"""A stand-in of mlir-aie's Python that records a program and enforces the rules stated of it.

`install(monkeypatch)` puts it in the place of the package `aie`. It emits no MLIR: a program is
kept as objects (`Recording`), a core's code as a tree that `execute` can run on numbers. Every rule
raises `Violation`; its source stands beside it. Signatures are those of `iron_signatures`.
"""

from __future__ import annotations

import sys
import types
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, get_args

import pytest
from iron_objects import (
    Buffer,
    Do,
    Kernel,
    Lock,
    Loop,
    ObjectFifo,
    ObjectFifoHandle,
    ObjectFifoLink,
    Value,
)
from iron_rules import (
    STATE,
    AIETileType,
    Bound,
    Device,
    State,
    TensorAccessPattern,
    Tile,
    array,
    check_tiles,
    check_walk,
    forget,
    in_core,
    in_sequence,
    make_device,
    rule,
)
from iron_signatures import bind, signature


# --- workers --------------------------------------------------------------------------------------
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
        return recording


# Dimensions, wrap and step in words (AM020, aie-rt's headers), count in elements (mlir-aie's
# verifier).
_LIMITS = {
    AIETileType.CoreTile: (3, 255, 1 << 13, 255),
    AIETileType.MemTile: (4, 1023, 1 << 17, 512),
}


def _check_fifo(fifo: ObjectFifo) -> None:
    rule(fifo.producer is not None, f"fifo {fifo.name} has no producer")
    rule(fifo.consumers, f"fifo {fifo.name} has no consumer")
    assert fifo.producer is not None
    for handle in (fifo.producer, *fifo.consumers):
        rule(handle.endpoint is not None, f"the {handle} is bound to nothing")
        if handle.at_shim:
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
            count, dtype = array(buffer.array_type)
            element = {"bfloat16": "bf16", "float32": "f32"}.get(
                dtype.name, f"i{8 * dtype.itemsize}"
            )
            lines.append(
                f"%{buffer.name} = aie.buffer({at(buffer.tile)}) "
                f'{{{address}sym_name = "{buffer.name}"}} : memref<{count}x{element}>'
            )
        for lock in self.locks:
            lines.append(
                f"%{lock.name} = aie.lock({at(lock.tile)}, {lock.id}) "
                f'{{init = {lock.init} : i32, sym_name = "{lock.name}"}}'
            )
        for fifo in self.fifos:
            for handle in (fifo.producer, *fifo.consumers):
                assert handle is not None
                if handle.at_shim:
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
