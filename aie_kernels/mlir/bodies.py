"""The code of a worker: its body runs once, and its steps are printed as a core's region.

A body is first traced into a tree of steps (`trace`), because a loop must declare its carried
values before its body is printed. Loops carry the turns of the rings: which buffer of a port is
next. Turns stay in registers, as arguments of the loops, and select among the buffers. Counters are
32 bits wide, as the cores are, except the one of the endless loop around a body.

The rules of mlir-aie's lowering of object fifos apply: a loop holds the same objects at its end as
at its beginning, and nothing is used after it has been released.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ort_aie_ep.aie_kernels.mlir.attributes import ACQUIRE_GREATER_EQUAL, RELEASE
from ort_aie_ep.aie_kernels.mlir.text import Text, Value, array, i64
from ort_aie_ep.npu.terms import design as steps
from ort_aie_ep.npu.terms.design import Worker
from ort_aie_ep.npu.terms.errors import DesignError
from ort_aie_ep.npu.terms.kernel import Array, Kernel

_UGE = 9  # arith.cmpi: unsigned greater or equal


def memref(content: Array) -> str:
    """MLIR's type of a buffer."""
    element = {"u8": "i8", "bf16": "bf16", "i32": "i32", "f32": "f32"}[content.element]
    return f"memref<{content.count}x{element}>"


# --- the tree -------------------------------------------------------------------------------------
@dataclass(eq=False)
class Number:
    """An i32 that is known when the worker runs: a parameter, an index, a word that was read."""

    def __add__(self, other: Number | int) -> Number:
        return Result("arith.addi", self, other)

    def __and__(self, other: Number | int) -> Number:
        return Result("arith.andi", self, other)

    def __rshift__(self, other: Number | int) -> Number:
        return Result("arith.shrui", self, other)


@dataclass(eq=False)
class Result(Number):
    """An operation of MLIR on two numbers."""

    operation: str
    left: Number | int
    right: Number | int


@dataclass(eq=False)
class Memory:
    """A buffer in a body; `port` is None for the worker's own, whose name is `buffer`."""

    array: Array
    port: str | None = None
    buffer: str = ""
    released: bool = False


@dataclass(eq=False)
class Take:
    """Take `objects` more of a port, after the `held` objects that the worker already has."""

    port: str
    held: int
    objects: list[Memory]


@dataclass(eq=False)
class Give:
    """Release the oldest `count` objects of a port to the other side."""

    port: str
    count: int


@dataclass(eq=False)
class Invoke:
    """Call a kernel."""

    kernel: Kernel
    arguments: tuple[Memory | Number | int, ...]


@dataclass(eq=False)
class Start:
    """Wait for the go lock and read the parameters."""

    numbers: tuple[Number, ...]


@dataclass(eq=False)
class Word:
    """Read an i32 of one of the worker's own buffers."""

    buffer: str
    index: int
    number: Number


@dataclass(eq=False)
class Loop:
    """Repeat `body` `count` times."""

    count: Number | int
    index: Number
    body: list[Node] = field(default_factory=list)


Node = Take | Give | Invoke | Start | Word | Loop


def trace(worker: Worker) -> list[Node]:
    """The steps of the body of `worker`. Raises DesignError that names a rule it breaks."""
    return _Tracer(worker).run()


class _Tracer(steps.Core):
    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._open: list[list[Node]] = [[]]
        self._held: dict[str, list[Memory]] = {
            port: [] for port in (*worker.inputs, *worker.outputs)
        }
        self._buffers = {b.name: Memory(b.array, buffer=b.name) for b in worker.buffers}
        self._kernels = {kernel.name for kernel in worker.kernels}

    def loop(self, count: Any) -> Iterable[Number]:
        made = Loop(count, Number())
        self._open[-1].append(made)
        self._open.append(made.body)
        before = {port: list(held) for port, held in self._held.items()}
        yield made.index
        for port, held in self._held.items():
            if held != before[port]:
                raise self._error(
                    f"holds other objects of port {port} at the end of a loop than at its "
                    "beginning; take and release them in the same loop"
                )
        self._open.pop()

    def buffer(self, name: str) -> Memory:
        if name not in self._buffers:
            raise self._error(f"has no buffer {name!r}")
        return self._buffers[name]

    def run(self) -> list[Node]:
        body = self._worker.body(self)
        answer = None
        while True:
            try:
                step = body.send(answer)
            except StopIteration:
                break
            answer = self._step(step)
        kept = [port for port, held in self._held.items() if held]
        if kept:
            raise self._error(f"still holds objects of {', '.join(kept)} when its body ends")
        return self._open[0]

    def _error(self, text: str) -> DesignError:
        return DesignError(f"worker {self._worker.name} {text}")

    def _append(self, node: Node) -> None:
        self._open[-1].append(node)

    def _step(self, step: Any) -> Any:
        match step:
            case steps.Acquire(port, count):
                return self._acquire(port, count)
            case steps.Release(port, count):
                held = self._held[port]
                if count > len(held):
                    raise self._error(f"releases {count} objects of {port} and holds {len(held)}")
                for memory in held[:count]:
                    memory.released = True
                del held[:count]
                self._append(Give(port, count))
                return None
            case steps.Call(kernel, arguments):
                self._call(kernel, arguments)
                return None
            case steps.Parameters():
                numbers = tuple(Number() for _ in self._worker.parameters)
                self._append(Start(numbers))
                return numbers
            case steps.Read(buffer, index):
                content = self.buffer(buffer).array
                if content.element != "i32" or not 0 <= index < content.count:
                    raise self._error(
                        f"reads word {index} of buffer {buffer!r}, which holds {content.count} "
                        f"{content.element}; only i32 can be read"
                    )
                number = Number()
                self._append(Word(buffer, index, number))
                return number
        raise self._error(f"yields {step!r}, not a step")

    def _acquire(self, port: str, count: int) -> Memory | list[Memory]:
        fifo, held = self._worker.port(port), self._held[port]
        depth = fifo.end(self._worker.tile).depth if not fifo.shared else fifo.producer.depth
        if count > depth:
            raise self._error(f"acquires {count} objects of {port}, which has {depth} buffers")
        if count > len(held):
            content = self._worker.object_at(port)
            new = [Memory(content, port) for _ in range(count - len(held))]
            self._append(Take(port, len(held), new))
            held.extend(new)
        return held[0] if count == 1 else held[:count]

    def _call(self, kernel: Kernel, arguments: tuple[Any, ...]) -> None:
        if kernel.name not in self._kernels:
            raise self._error(f"calls {kernel.name}, which is not among its kernels")
        for i, (given, wanted) in enumerate(zip(arguments, kernel.arguments, strict=True)):
            is_memory = isinstance(given, Memory)
            if is_memory != isinstance(wanted, Array):
                kind = "an integer" if is_memory else "a buffer"
                raise self._error(f"calls {kernel.name}: argument {i} must be {kind}")
            if not is_memory:
                continue
            if given.array != wanted:
                raise self._error(
                    f"calls {kernel.name}: argument {i} has {given.array.count} "
                    f"{given.array.element}, the kernel takes {wanted}"
                )
            if given.released:
                raise self._error(
                    f"calls {kernel.name}: argument {i} is an object of port {given.port} that "
                    "has been released"
                )
        self._append(Invoke(kernel, arguments))


# --- the region -----------------------------------------------------------------------------------
@dataclass(frozen=True)
class Ring:
    """A port as values: its buffers in their order, the lock to take from and that to give to."""

    buffers: tuple[Value, ...]
    take: Value
    give: Value


@dataclass(frozen=True)
class Resources:
    """The values of one worker, by the names of the design; `words` None without parameters."""

    rings: Mapping[str, Ring]
    buffers: Mapping[str, Value]
    words: Value | None
    go: Value


def write_body(text: Text, worker: Worker, resources: Resources) -> None:
    """Write the body of `worker`, repeated forever, into the open region of `text`."""
    body = Loop(sys.maxsize, Number(), trace(worker))
    _Writer(text, resources).node(body)


class _Writer:
    def __init__(self, text: Text, resources: Resources) -> None:
        self._text = text
        self._at = resources
        self._numbers: dict[Number, Value] = {}
        self._memories: dict[Memory, Value] = {}
        # The oldest object that a worker holds, or the next that it takes; an int if it is known.
        self._turn: dict[str, Value | int] = dict.fromkeys(resources.rings, 0)

    def node(self, node: Node) -> None:
        match node:
            case Loop():
                self._loop(node)
            case Take(port, held, objects):
                self._use_lock(self._at.rings[port].take, ACQUIRE_GREATER_EQUAL, len(objects))
                for i, memory in enumerate(objects):
                    self._memories[memory] = self._select(port, self._ahead(port, held + i))
            case Give(port, count):
                self._use_lock(self._at.rings[port].give, RELEASE, count)
                self._turn[port] = self._ahead(port, count)
            case Invoke(kernel, arguments):
                operands = [self._operand(a) for a in arguments]
                self._text.op("func.call", operands, {"callee": f"@{kernel.name}"})
            case Start(numbers):
                # The lock counts: acquiring subtracts the 1 that the sequence has set, so that the
                # worker waits here again.
                self._use_lock(self._at.go, ACQUIRE_GREATER_EQUAL, 1)
                for i, number in enumerate(numbers):
                    assert self._at.words is not None
                    self._numbers[number] = self._load(self._at.words, i)
            case Word(buffer, index, number):
                self._numbers[number] = self._load(self._at.buffers[buffer], index)

    def _use_lock(self, lock: Value, action: int, count: int) -> None:
        value = self._text.constant(count, "i32")
        self._text.op("aie.use_lock", [lock, value], {"action": f"{action} : i32"})

    def _load(self, buffer: Value, index: int) -> Value:
        at = self._text.constant(index, "index")
        return self._text.value("i32", "memref.load", [buffer, at], hint="word")

    def _operand(self, given: Memory | Number | int) -> Value:
        if isinstance(given, Memory):
            return self._memories[given] if given.port else self._at.buffers[given.buffer]
        return self._number(given)

    def _number(self, given: Number | int) -> Value:
        if isinstance(given, Result):
            terms = [self._number(given.left), self._number(given.right)]
            return self._text.value("i32", given.operation, terms)
        return (
            self._numbers[given] if isinstance(given, Number) else self._text.constant(given, "i32")
        )

    def _ahead(self, port: str, count: int) -> Value | int:
        """The turn `count` objects after the port's own, `count` up to its depth."""
        turn, depth = self._turn[port], len(self._at.rings[port].buffers)
        if isinstance(turn, int):
            return (turn + count) % depth
        if count % depth == 0:
            return turn
        text = self._text
        there = text.value("i32", "arith.addi", [turn, text.constant(count, "i32")])
        end = text.constant(depth, "i32")
        wraps = text.value("i1", "arith.cmpi", [there, end], {"predicate": i64(_UGE)})
        wrapped = text.value("i32", "arith.subi", [there, end])
        return text.value("i32", "arith.select", [wraps, wrapped, there], hint="turn")

    def _select(self, port: str, turn: Value | int) -> Value:
        buffers, text = self._at.rings[port].buffers, self._text
        if isinstance(turn, int):
            return buffers[turn]
        # The default, which the form has first, is the last of the buffers.
        cases = {"cases": array("i64", range(len(buffers) - 1))}
        type = buffers[0].type
        chosen = text.value("index", "arith.index_cast", [turn])
        with text.nest("scf.index_switch", [chosen], cases, results=[type], hint=port) as switch:
            for buffer in (buffers[-1], *buffers[:-1]):
                with switch.region():
                    text.op("scf.yield", [buffer])
        return switch.results[0]

    def _loop(self, loop: Loop) -> None:
        text = self._text
        carried = [port for port in self._turn if self._moves(loop.body, port)]
        type = "index" if loop.count == sys.maxsize else "i32"
        begin, step = text.constant(0, type), text.constant(1, type)
        end = text.constant(sys.maxsize, type) if type == "index" else self._number(loop.count)
        turns = [self._carried(self._turn[port]) for port in carried]
        types = ["i32"] * len(carried)
        before = dict(self._turn)
        operands = [begin, end, step, *turns]
        with (
            text.nest("scf.for", operands, results=types, hint="turns") as nest,
            nest.region(type, *types) as (index, *inside),
        ):
            self._numbers[loop.index] = index
            self._turn.update(zip(carried, inside, strict=True))
            for node in loop.body:
                self.node(node)
            text.op("scf.yield", [self._carried(self._turn[port]) for port in carried])
        # The turn of a port that is not carried is unchanged: values of the region end with it.
        self._turn = {**before, **dict(zip(carried, nest.results, strict=True))}

    def _carried(self, turn: Value | int) -> Value:
        return self._text.constant(turn, "i32") if isinstance(turn, int) else turn

    def _moves(self, body: list[Node], port: str) -> bool:
        """Whether a pass through `body` can change which buffer of the port is next."""
        given = 0
        for node in body:
            if isinstance(node, Give) and node.port == port:
                given += node.count
            elif isinstance(node, Loop) and self._moves(node.body, port):
                return True
        return given % len(self._at.rings[port].buffers) != 0
