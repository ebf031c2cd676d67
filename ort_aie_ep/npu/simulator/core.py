"""Workers of the simulated array: a process drives the generator of a body step by step."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import Any

import numpy as np

from ort_aie_ep.npu.simulator.parts import LockCell, Process
from ort_aie_ep.npu.simulator.state import ArrayState
from ort_aie_ep.npu.terms import costs
from ort_aie_ep.npu.terms.configuration import WorkerPlan
from ort_aie_ep.npu.terms.design import Acquire, Call, Core, Parameters, Read, Release
from ort_aie_ep.npu.terms.device import WORD
from ort_aie_ep.npu.terms.errors import SimulationError
from ort_aie_ep.npu.terms.kernel import DTYPES, Array


@dataclass(slots=True)
class _Port:
    """A port of a worker: the locks to acquire from and to release to, and views of its objects."""

    take: LockCell
    give: LockCell
    views: Iterator[np.ndarray]  # of the pool's buffers in turn, for ever
    held: deque[np.ndarray] = field(default_factory=deque)


class CoreProcess(Core):
    """A running worker: drives the generator of its body."""

    def __init__(self, array: ArrayState, plan: WorkerPlan) -> None:
        self.plan = plan
        self.kernel_seconds = 0.0
        self.wait_seconds = 0.0
        self.idle = True
        self._array = array
        self._who = f"worker {plan.worker.name}"
        self._waits: tuple[LockCell, int] | str = ""
        self._ports = {port: self._port(port) for port in plan.pools}
        self._lock_acquire = array.clock.cost(costs.LOCK_ACQUIRE)
        self._buffers = {
            b.name: _view(array.memory(plan.worker.tile), plan.buffers[b.name], b.array)
            for b in plan.worker.buffers
        }

    @property
    def waits_for(self) -> str:
        """What it waits for, or ''."""
        if isinstance(self._waits, str):
            return self._waits
        cell, value = self._waits
        return f"lock {cell.lock.id} of {cell.lock.tile} ({cell.lock.name}), now {value}"

    def loop(self, count: Any) -> Iterable[int]:
        """Python's range."""
        return range(count)

    def buffer(self, name: str) -> np.ndarray:
        """A view of the buffer in the tile's memory."""
        return self._buffers[name]

    def run(self) -> Process:
        """Repeat the body for ever."""
        while True:
            steps = self.plan.worker.body(self)
            value: Any = None
            self.idle = True
            while True:
                try:
                    step = steps.send(value)
                except StopIteration:
                    break
                match step:
                    case Release():
                        self._release(step)
                        value = None
                    case Acquire():
                        value = yield from self._acquire(step)
                    case Call():
                        value = yield from self._call(step)
                    case Parameters():
                        value = yield from self._parameters()
                    case Read():
                        value = int(self._buffers[step.buffer].view(np.int32)[step.index])
                    case _:
                        raise SimulationError(
                            f"worker {self.plan.worker.name} yields {step!r}, not a step"
                        )
                self.idle = False

    def _port(self, name: str) -> _Port:
        pool, array = self.plan.pools[name], self.plan.worker.object_at(name)
        free, filled = self._array.lock(pool.produce), self._array.lock(pool.consume)
        take, give = (filled, free) if name in self.plan.worker.inputs else (free, filled)
        memory = self._array.memory(pool.tile)
        return _Port(take, give, cycle([_view(memory, at, array) for at in pool.addresses]))

    def _acquire(self, step: Acquire) -> Process:
        port = self._ports[step.port]
        need = step.count - len(port.held)
        if need > 0:
            env = self._array.env
            self._waits = port.take, port.take.value
            start = env.now
            yield port.take.acquire(need, self._who)
            self.wait_seconds += env.now - start
            self._waits = ""
            yield env.timeout(self._lock_acquire)
            port.held.extend(islice(port.views, need))
        return port.held[0] if step.count == 1 else list(islice(port.held, step.count))

    def _release(self, step: Release) -> None:
        port = self._ports[step.port]
        for _ in range(step.count):
            port.held.popleft()
        port.give.release(step.count)

    def _call(self, step: Call) -> Process:
        array, kernel = self._array, step.kernel
        scalars = tuple(int(a) for a in step.arguments if not isinstance(a, np.ndarray))

        def what() -> str:
            return f"{self._who} calls {kernel.name} with {scalars}"

        try:
            cycles = kernel.cycles(array.design.device.architecture, scalars)
        except (ArithmeticError, LookupError) as error:
            raise SimulationError(
                f"{what()}, which the kernel does not define ({error})"
            ) from error
        if cycles < 0:
            raise SimulationError(f"{what()}, which the kernel does not define ({cycles} cycles)")
        seconds = array.clock.seconds(cycles)
        start = array.env.now
        yield array.env.timeout(seconds)
        try:
            array.kernels.call(kernel, *step.arguments)
        except SimulationError as error:
            raise SimulationError(f"{what()}: {error}") from error
        self.kernel_seconds += seconds
        if array.trace.enabled:
            array.trace.span(str(self.plan.worker.tile), kernel.name, start, array.env.now)

    def _parameters(self) -> Process:
        self._waits = f"lock {self.plan.go.id} of {self.plan.worker.tile}, which starts it"
        yield self._array.lock(self.plan.go).acquire(1, self._who)
        self._waits = ""
        memory = self._array.memory(self.plan.worker.tile)
        names = self.plan.worker.parameters
        start = self.plan.parameters
        for i, name in enumerate(names):
            if not self._array.written(self.plan.worker.tile, start + WORD * i):
                raise SimulationError(
                    f"worker {self.plan.worker.name} is started before its parameter {name} has "
                    "been written"
                )
        words = memory[start : start + WORD * len(names)].view(np.int32)
        return tuple(int(word) for word in words)


def _view(memory: np.ndarray, address: int, array: Array) -> np.ndarray:
    return memory[address : address + array.bytes].view(DTYPES[array.element])
