"""The code of a worker: its body is driven once, and every step becomes IRON's.

IRON traces Python: a call made while a core's function runs emits an operation where MLIR's
insertion point stands, and `range_` moves that point into a loop for as long as its iteration lasts
(mlir-aie python/helpers/dialects/scf.py). The generator of a body is driven inside of that, so its
loops nest as written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ort_aie_ep.aie_kernels.iron.interface import Iron
from ort_aie_ep.npu.vocabulary.design import (
    Acquire,
    Call,
    Core,
    Parameters,
    Read,
    Release,
    Step,
    Worker,
)
from ort_aie_ep.npu.vocabulary.errors import DesignError
from ort_aie_ep.npu.vocabulary.kernel import Array


@dataclass(frozen=True)
class Memory:
    """A buffer in a body: what IRON calls it, and what it holds."""

    value: Any
    array: Array


@dataclass(frozen=True)
class Resources:
    """IRON's objects of one worker, by the names of the design.

    `words` holds the run-time parameters, None if there are none. `go` is the lock that the
    sequence sets to 1 when they are written.
    """

    ports: Mapping[str, Any]
    kernels: Mapping[str, Any]
    buffers: Mapping[str, Any]
    words: Any
    go: Any


def port_object(worker: Worker, port: str) -> Array:
    """What one object of a port holds: the receiver's own view of it, where it has one."""
    fifo = worker.port(port)
    if port in worker.inputs:
        for end in fifo.consumers:
            if end.tile == worker.tile and end.object is not None:
                return end.object
    return fifo.object


class Tracer(Core):
    """Drives the body of `worker` over IRON's objects. Called from the core's function."""

    def __init__(self, iron: Iron, worker: Worker, resources: Resources) -> None:
        self._iron = iron
        self._worker = worker
        self._resources = resources
        self._arrays = {b.name: b.array for b in worker.buffers}

    def loop(self, count: Any) -> Iterable[Any]:
        """A loop of IRON's; the index comes as i32, like every other integer of a body."""
        for index in self._iron.range_(count):
            yield self._iron.to_i32(index)

    def buffer(self, name: str) -> Memory:
        """A buffer of the worker."""
        if name not in self._arrays:
            raise self._error(f"has no buffer {name!r}")
        return Memory(self._resources.buffers[name], self._arrays[name])

    def run(self) -> None:
        """Emit the body once; IRON's worker repeats it for ever."""
        body = self._worker.body(self)
        answer = None
        while True:
            try:
                step = body.send(answer)
            except StopIteration:
                return
            answer = self._step(step)

    def _error(self, text: str) -> DesignError:
        return DesignError(f"worker {self._worker.name} {text}")

    def _step(self, step: Step) -> Any:
        match step:
            case Acquire(port, count):
                return self._acquire(port, count)
            case Release(port, count):
                self._resources.ports[port].release(count)
                return None
            case Call():
                return self._call(step)
            case Parameters():
                return self._parameters()
            case Read(buffer, index):
                array = self.buffer(buffer).array
                if array.element != "i32" or not 0 <= index < array.count:
                    raise self._error(
                        f"reads word {index} of buffer {buffer!r}, which holds {array.count} "
                        f"{array.element}; only i32 can be read"
                    )
                return self._resources.buffers[buffer][index]
        raise self._error(f"yields {step!r}, which is no step")

    def _acquire(self, port: str, count: int) -> Memory | list[Memory]:
        array = port_object(self._worker, port)
        held = self._resources.ports[port].acquire(count)
        # IRON gives the object itself for 1, else something to be indexed.
        if count == 1:
            return Memory(held, array)
        return [Memory(held[i], array) for i in range(count)]

    def _call(self, step: Call) -> None:
        kernel = step.kernel
        if kernel.name not in self._resources.kernels:
            raise self._error(f"calls {kernel.name}, which is not among its kernels")
        values = []
        for i, (given, wanted) in enumerate(zip(step.arguments, kernel.arguments, strict=True)):
            is_memory = isinstance(given, Memory)
            if is_memory != isinstance(wanted, Array):
                kind = "an integer" if is_memory else "a buffer"
                raise self._error(f"calls {kernel.name}: argument {i} must be {kind}")
            if is_memory and given.array != wanted:
                raise self._error(
                    f"calls {kernel.name}: argument {i} has {given.array.count} "
                    f"{given.array.element}, the kernel takes {wanted}"
                )
            values.append(given.value if is_memory else given)
        self._resources.kernels[kernel.name](*values)

    def _parameters(self) -> tuple[Any, ...]:
        # A lock of IRON's acquires greater-or-equal and takes the value off (python/iron/lock.py),
        # so at its next turn the worker waits until the sequence sets it again. The id of a
        # WorkerRuntimeBarrier cannot be pinned, and it waits for equality, of which it is said in
        # two ways whether that takes anything off (AMD's GEMM for IRON: no; descriptors: yes).
        self._resources.go.acquire(1)
        return tuple(self._resources.words[i] for i in range(len(self._worker.parameters)))
