"""A run of a worker's body without data: what it acquires, releases and calls, and its mistakes.

Run-time parameters and loop indices are `Unknown`, as they are where the body is lowered; a loop
over an unknown count runs twice. So the dry run sees what holds for every shape, but not how often
something happens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ort_aie_ep.npu.terms.design import (
    Acquire,
    Call,
    Core,
    Parameters,
    Read,
    Release,
    Step,
    Worker,
)  # fmt: skip
from ort_aie_ep.npu.terms.errors import DesignError
from ort_aie_ep.npu.terms.kernel import Array, Kernel

_MAX_STEPS = 100_000  # of one pass through a body; real designs need hundreds


class Unknown:
    """An integer that only the device knows. Arithmetic gives another; branching is an error."""

    def _also(self, *_: Any) -> Unknown:
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _also
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __neg__ = _also
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = _also
    __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = _also
    __lt__ = __le__ = __gt__ = __ge__ = _also

    def __eq__(self, other: object) -> Any:
        return self

    def __ne__(self, other: object) -> Any:
        return self

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        raise DesignError(
            "the body branches on a run-time value, which cannot be lowered: pass the value to a "
            "kernel"
        )

    def __index__(self) -> int:
        raise DesignError("the body uses a run-time value as a constant; use core.loop over it")

    __int__ = __index__


@dataclass(eq=False)
class Memory:
    """A buffer as a body holds it: an object of `port`, or a buffer of the worker (port None)."""

    name: str
    array: Array
    port: str | None = None
    held: bool = True


@dataclass
class Trace:
    """One pass through the body: (kind, port, objects) of acquires and releases, and mistakes."""

    events: list[tuple[str, str, int]] = field(default_factory=list)
    calls: list[Kernel] = field(default_factory=list)
    mistakes: list[str] = field(default_factory=list)
    starts: int = 0  # how often it waits for the sequence
    complete: bool = True

    def first(self, what: str, port: str) -> int | None:
        """The position of the first such event, or None."""
        places = (i for i, e in enumerate(self.events) if e[:2] == (what, port))
        return next(places, None)

    def mistake(self, text: str) -> None:
        """Record a mistake once: loops repeat it."""
        if text not in self.mistakes:
            self.mistakes.append(text)


def dry_run(worker: Worker) -> Trace:
    """One pass through the body of `worker`."""
    run = _Run(worker)
    try:
        run.run()
    except _Stopped:
        run.trace.complete = False
    except DesignError as error:
        run.trace.mistake(str(error))
    except Exception as error:  # whatever a body raises is a mistake in that body
        run.trace.mistake(f"the body fails: {type(error).__name__}: {error}")
    return run.trace


class _Stopped(Exception):
    pass


class _DryCore(Core):
    def __init__(self, run: _Run) -> None:
        self._run = run

    def loop(self, count: Any) -> Iterator[Any]:
        number = 2 if isinstance(count, Unknown) else _integer(count, "the count of core.loop")
        for _ in range(number):
            self._run.count_step()
            yield Unknown()

    def buffer(self, name: str) -> Memory:
        for buffer in self._run.worker.buffers:
            if buffer.name == name:
                return Memory(name, buffer.array)
        known = ", ".join(b.name for b in self._run.worker.buffers) or "none"
        raise DesignError(f"no buffer is named {name!r}; the buffers are: {known}")


class _Run:
    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.trace = Trace()
        self._held: dict[str, list[Memory]] = {p: [] for p in (*worker.inputs, *worker.outputs)}
        self._steps = 0

    def run(self) -> None:
        body = self.worker.body(_DryCore(self))
        answer: Any = None
        while True:
            try:
                step = body.send(answer)
            except StopIteration:
                break
            self.count_step()
            answer = self._step(step)
        for port, held in self._held.items():
            if held:
                self.trace.mistake(
                    f"the body ends while it holds {len(held)} objects of port {port}: "
                    "acquire and release do not balance"
                )
            if self.trace.first("acquire", port) is None:
                self.trace.mistake(f"the body never acquires port {port}, so its fifo never moves")

    def count_step(self) -> None:
        self._steps += 1
        if self._steps > _MAX_STEPS:
            raise _Stopped

    def _step(self, step: Step) -> Any:
        match step:
            case Acquire():
                return self._acquire(step)
            case Release():
                return self._release(step)
            case Call():
                return self._call(step)
            case Parameters():
                self.trace.starts += 1
                return tuple(Unknown() for _ in self.worker.parameters)
            case Read():
                return self._read(step)
        raise DesignError(
            f"the body yields {step!r}, which is not a step; steps are Acquire, Release, Call "
            "(made by call), Parameters and Read"
        )

    def _port(self, port: str) -> list[Memory]:
        if port not in self._held:
            raise DesignError(f"no port is named {port!r}; the ports are: {', '.join(self._held)}")
        return self._held[port]

    def _acquire(self, step: Acquire) -> Any:
        held = self._port(step.port)
        count = _integer(step.count, f"the count of Acquire({step.port!r})")
        fifo = self.worker.port(step.port)
        array = fifo.object_at(self.worker.tile)
        # The buffers of a fifo in shared memory are the producer's.
        depth = (fifo.producer if fifo.shared else fifo.end(self.worker.tile)).depth
        if count < 1:
            raise DesignError(f"Acquire({step.port!r}, {count}): the count must be at least 1")
        if count > depth:
            self.trace.mistake(
                f"Acquire({step.port!r}, {count}): fifo {fifo.name} has "
                f"depth {depth} here, so {count} objects can never be held at once"
            )
        # The count is absolute, as in mlir-aie's fifos: objects already held count.
        if count > len(held):
            self.trace.events.append(("acquire", step.port, count - len(held)))
        while len(held) < count:
            held.append(Memory(f"object of port {step.port}", array, step.port))
        return held[0] if count == 1 else list(held[:count])

    def _release(self, step: Release) -> None:
        held = self._port(step.port)
        count = _integer(step.count, f"the count of Release({step.port!r})")
        if not 1 <= count <= len(held):
            raise DesignError(f"Release({step.port!r}, {count}) while {len(held)} objects are held")
        for memory in held[:count]:
            memory.held = False
        del held[:count]
        self.trace.events.append(("release", step.port, count))

    def _call(self, step: Call) -> None:
        kernel = step.kernel
        if kernel not in self.trace.calls:
            self.trace.calls.append(kernel)
        if kernel not in self.worker.kernels:
            self.trace.mistake(
                f"calls kernel {kernel.name}, which is not among the worker's kernels"
            )
        if len(step.arguments) != len(kernel.arguments):
            self.trace.mistake(
                f"kernel {kernel.name} takes {len(kernel.arguments)} arguments, got "
                f"{len(step.arguments)}"
            )
            return
        for i, (given, wanted) in enumerate(zip(step.arguments, kernel.arguments, strict=True)):
            wrong = _argument(given, wanted)
            if wrong:
                self.trace.mistake(f"kernel {kernel.name}, argument {i}: {wrong}")

    def _read(self, step: Read) -> Unknown:
        array = _DryCore(self).buffer(step.buffer).array
        index = _integer(step.index, f"the index of Read({step.buffer!r})")
        if array.element != "i32" or not 0 <= index < array.count:
            raise DesignError(
                f"Read({step.buffer!r}, {index}): the buffer holds {array.count} {array.element}; "
                "the index must be that of one of its i32"
            )
        return Unknown()


def _argument(given: Any, wanted: Array | type[int]) -> str | None:
    """What is wrong with an argument, or None."""
    if not isinstance(wanted, Array):
        if isinstance(given, Unknown):
            return None
        if isinstance(given, bool) or not isinstance(given, int | np.integer):
            return f"expected an integer, got {_kind(given)}"
        if not -(2**31) <= int(given) < 2**31:
            return f"{given} does not fit an int32"
        return None
    if not isinstance(given, Memory):
        return f"expected {wanted.count} {wanted.element}, got {_kind(given)}"
    if not given.held:
        return f"{given.name} has been released"
    if given.array.element != wanted.element:
        return f"expected {wanted.element}, but {given.name} is {given.array.element}"
    if given.array.bytes < wanted.bytes:
        return f"expected at least {wanted.bytes} bytes, but {given.name} has {given.array.bytes}"
    return None


def _kind(value: Any) -> str:
    if isinstance(value, Unknown):
        return "an integer"
    if isinstance(value, list):
        return f"a list of {len(value)} objects"
    return value.name if isinstance(value, Memory) else type(value).__name__


def _integer(value: Any, what: str) -> int:
    if isinstance(value, Unknown):
        raise DesignError(f"{what} is a run-time value; it must be a constant")
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise DesignError(f"{what} must be an integer, got {type(value).__name__}")
    return int(value)
