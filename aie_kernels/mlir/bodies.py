"""The code of a worker: the steps of its body, printed as a core's region.

The steps come as a tree (`npu.terms.body`), because a loop must declare its carried values before
its body is printed. Loops carry the turns of the rings: which buffer of a port is next. Turns stay
in registers, as arguments of the loops, and select among the buffers. Counters are 32 bits wide, as
the cores are, except the one of the endless loop around a body.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass

from ort_aie_ep.aie_kernels.mlir.attributes import ACQUIRE_GREATER_EQUAL, RELEASE
from ort_aie_ep.aie_kernels.mlir.text import Text, Value, array, i64
from ort_aie_ep.npu.terms.body import (
    Give,
    Invoke,
    Loop,
    Memory,
    Node,
    Number,
    Result,
    Start,
    Take,
    Word,
    trace,
)
from ort_aie_ep.npu.terms.design import Worker
from ort_aie_ep.npu.terms.errors import DesignError
from ort_aie_ep.npu.terms.kernel import Array

_ENDLESS = sys.maxsize  # the count of the loop around a body
_UGE = 9  # arith.cmpi: unsigned greater or equal


def memref(content: Array) -> str:
    """MLIR's type of a buffer."""
    element = {"u8": "i8", "bf16": "bf16", "i32": "i32", "f32": "f32"}[content.element]
    return f"memref<{content.count}x{element}>"


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
    try:
        body = trace(worker)
    except DesignError as error:
        raise DesignError(f"worker {worker.name}: {error}") from None
    _Writer(text, resources).node(Loop(_ENDLESS, Number(), body))


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
        type = "index" if loop.count is _ENDLESS else "i32"
        begin, step = text.constant(0, type), text.constant(1, type)
        end = text.constant(_ENDLESS, type) if type == "index" else self._number(loop.count)
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
