"""The steps of a worker's body as a tree: the body runs once, without data.

Run-time values are `Number`s here: parameters, indices of loops, words that a kernel has written. A
body may compute with them and pass them on, but not branch on them, as it is lowered once for all
values. The rules of mlir-aie's lowering of object fifos apply: a loop holds the same objects at its
end as at its beginning, and nothing is used after it has been released.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from ort_aie_ep.npu.terms import design as steps
from ort_aie_ep.npu.terms.design import Worker
from ort_aie_ep.npu.terms.errors import DesignError
from ort_aie_ep.npu.terms.kernel import Array, Kernel

_MAX_STEPS = 100_000  # of a body; real ones have hundreds


@dataclass(eq=False)
class Number:
    """An i32 that is known when the worker runs: a parameter, an index, a word that was read."""

    def __add__(self, other: Number | int) -> Number:
        return Result("arith.addi", self, other)

    def __and__(self, other: Number | int) -> Number:
        return Result("arith.andi", self, other)

    def __rshift__(self, other: Number | int) -> Number:
        return Result("arith.shrui", self, other)

    def _refuse(self, *_: object) -> NoReturn:
        raise DesignError(
            "it branches on a run-time value, or uses one as a constant, which cannot be lowered: "
            "pass the value to a kernel, or use core.loop over it"
        )

    __bool__ = __index__ = __int__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse

    def __eq__(self, other: object) -> bool:
        return self is other or self._refuse()

    __hash__ = object.__hash__


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
    """The steps of a body. Raises DesignError, which says what is wrong in it."""
    try:
        return _Tracer(worker).run()
    except DesignError:
        raise
    except Exception as error:  # whatever a body raises is a mistake in that body
        raise DesignError(f"the body fails: {type(error).__name__}: {error}") from error


def nodes(body: Iterable[Node]) -> Iterator[Node]:
    """All steps, those in loops included."""
    for node in body:
        yield node
        if isinstance(node, Loop):
            yield from nodes(node.body)


class _Tracer(steps.Core):
    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._open: list[list[Node]] = [[]]
        self._held: dict[str, list[Memory]] = {p: [] for p in (*worker.inputs, *worker.outputs)}
        self._buffers = {b.name: Memory(b.array, buffer=b.name) for b in worker.buffers}

    def loop(self, count: Any) -> Iterable[Number]:
        if not isinstance(count, Number):
            count = _integer(count, "the count of core.loop")
        made = Loop(count, Number())
        self._append(made)
        self._open.append(made.body)
        before = {port: list(held) for port, held in self._held.items()}
        yield made.index
        for port, held in self._held.items():
            if held != before[port]:
                raise DesignError(
                    f"it holds other objects of port {port} at the end of a loop than at its "
                    "beginning; take and release them in the same loop"
                )
        self._open.pop()

    def buffer(self, name: str) -> Memory:
        if name not in self._buffers:
            known = ", ".join(self._buffers) or "none"
            raise DesignError(f"no buffer is named {name!r}; the buffers are: {known}")
        return self._buffers[name]

    def run(self) -> list[Node]:
        body = self._worker.body(self)
        answer = None
        for _ in range(_MAX_STEPS):
            try:
                step = body.send(answer)
            except StopIteration:
                break
            answer = self._step(step)
        else:
            raise DesignError(f"it takes more than {_MAX_STEPS:,} steps")
        taken = {node.port for node in nodes(self._open[0]) if isinstance(node, Take)}
        for port, held in self._held.items():
            if held:
                raise DesignError(
                    f"it ends while it holds {len(held)} objects of port {port}: acquire and "
                    "release do not balance"
                )
            if port not in taken:
                raise DesignError(f"it never acquires port {port}, so its fifo never moves")
        return self._open[0]

    def _append(self, node: Node) -> None:
        self._open[-1].append(node)

    def _step(self, step: Any) -> Any:
        match step:
            case steps.Acquire(port, count):
                return self._acquire(port, count)
            case steps.Release(port, count):
                held = self._port(port)
                if not 1 <= _integer(count, f"the count of Release({port!r})") <= len(held):
                    raise DesignError(f"Release({port!r}, {count}) while {len(held)} are held")
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
                at = _integer(index, f"the index of Read({buffer!r})")
                if content.element != "i32" or not 0 <= at < content.count:
                    raise DesignError(
                        f"Read({buffer!r}, {index}): the buffer holds {content.count} "
                        f"{content.element}; the index must be that of one of its i32"
                    )
                number = Number()
                self._append(Word(buffer, index, number))
                return number
        raise DesignError(
            f"it yields {step!r}, which is not a step; steps are Acquire, Release, Call (made by "
            "call), Parameters and Read"
        )

    def _port(self, port: str) -> list[Memory]:
        if port not in self._held:
            raise DesignError(f"no port is named {port!r}; the ports are: {', '.join(self._held)}")
        return self._held[port]

    def _acquire(self, port: str, count: int) -> Memory | list[Memory]:
        held, fifo = self._port(port), self._worker.port(port)
        # The buffers of a fifo in shared memory are the producer's.
        depth = (fifo.producer if fifo.shared else fifo.end(self._worker.tile)).depth
        if not 1 <= _integer(count, f"the count of Acquire({port!r})") <= depth:
            raise DesignError(
                f"Acquire({port!r}, {count}): fifo {fifo.name} has depth {depth} here, and the "
                "count must be at least 1"
            )
        # The count is absolute, as in mlir-aie's fifos: objects already held count.
        if count > len(held):
            content = self._worker.object_at(port)
            new = [Memory(content, port) for _ in range(count - len(held))]
            self._append(Take(port, len(held), new))
            held.extend(new)
        return held[0] if count == 1 else held[:count]

    def _call(self, kernel: Kernel, arguments: tuple[Any, ...]) -> None:
        if kernel not in self._worker.kernels:
            raise DesignError(f"it calls {kernel.name}, which is not among the worker's kernels")
        if len(arguments) != len(kernel.arguments):
            raise DesignError(
                f"kernel {kernel.name} takes {len(kernel.arguments)} arguments, got "
                f"{len(arguments)}"
            )
        for i, (given, wanted) in enumerate(zip(arguments, kernel.arguments, strict=True)):
            wrong = _argument(given, wanted)
            if wrong:
                raise DesignError(f"kernel {kernel.name}, argument {i}: {wrong}")
        self._append(Invoke(kernel, arguments))


def _argument(given: Any, wanted: Array | type[int]) -> str | None:
    """What is wrong with an argument, or None."""
    if not isinstance(wanted, Array):
        if isinstance(given, Number):
            return None
        if isinstance(given, bool) or not isinstance(given, int | np.integer):
            return f"expected an integer, got {_kind(given)}"
        if not -(2**31) <= int(given) < 2**31:
            return f"{given} does not fit an int32"
        return None
    if not isinstance(given, Memory):
        return f"expected {wanted}, got {_kind(given)}"
    if given.released:
        return f"{_kind(given)} has been released"
    if given.array != wanted:
        return f"expected {wanted}, but {_kind(given)} has {given.array}"
    return None


def _kind(value: Any) -> str:
    if isinstance(value, Memory):
        return f"an object of port {value.port}" if value.port else f"buffer {value.buffer}"
    return type(value).__name__


def _integer(value: Any, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise DesignError(f"{what} must be a constant integer, got {type(value).__name__}")
    return int(value)
