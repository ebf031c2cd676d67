"""Workers of the simulated array: a process drives the generator of a body step by step."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

import numpy as np

from ort_aie_ep.npu.simulator.parts import LockCell, Process
from ort_aie_ep.npu.simulator.state import ArrayState
from ort_aie_ep.npu.vocabulary import costs
from ort_aie_ep.npu.vocabulary.configuration import Pool, WorkerPlan
from ort_aie_ep.npu.vocabulary.design import Acquire, Call, Core, Parameters, Read, Release
from ort_aie_ep.npu.vocabulary.device import WORD
from ort_aie_ep.npu.vocabulary.errors import SimulationError
from ort_aie_ep.npu.vocabulary.kernel import DTYPES, Array


class CoreProcess(Core):
    """A running worker: drives the generator of its body."""

    def __init__(self, array: ArrayState, plan: WorkerPlan) -> None:
        self.plan = plan
        self.kernel_seconds = 0.0
        self.wait_seconds = 0.0
        self.waits_for = ""
        self.idle = True
        self._array = array
        self._held: dict[str, deque[np.ndarray]] = {p: deque() for p in plan.pools}
        self._turn: dict[str, int] = dict.fromkeys(plan.pools, 0)
        self._buffers = {
            b.name: _view(array.memory(plan.worker.tile), plan.buffers[b.name], b.array)
            for b in plan.worker.buffers
        }

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
                value = yield from self._step(step)
                self.idle = False

    def _step(self, step: Any) -> Process:
        match step:
            case Acquire():
                return (yield from self._acquire(step))
            case Release():
                self._release(step)
                return None
            case Call():
                return (yield from self._call(step))
            case Parameters():
                return (yield from self._parameters())
            case Read():
                return int(self._buffers[step.buffer].view(np.int32)[step.index])
        raise SimulationError(f"worker {self.plan.worker.name} yields {step!r}, not a step")

    def _pool(self, port: str) -> tuple[Pool, LockCell, LockCell]:
        """The pool of a port, the lock to acquire from and the lock to release to."""
        pool = self.plan.pools[port]
        free, filled = self._array.lock(pool.produce), self._array.lock(pool.consume)
        return (pool, filled, free) if port in self.plan.worker.inputs else (pool, free, filled)

    def _acquire(self, step: Acquire) -> Process:
        pool, take, _ = self._pool(step.port)
        held = self._held[step.port]
        if step.count > len(held):
            need = step.count - len(held)
            lock = take.lock
            self.waits_for = f"lock {lock.id} of {lock.tile} ({lock.name}), now {take.value}"
            start = self._array.env.now
            yield take.acquire(need, f"worker {self.plan.worker.name}")
            self.wait_seconds += self._array.env.now - start
            self.waits_for = ""
            yield self._array.env.timeout(self._array.clock.cost(costs.LOCK_ACQUIRE))
            array = self.plan.worker.object_at(step.port)
            memory = self._array.memory(pool.tile)
            for _ in range(need):
                held.append(_view(memory, pool.addresses[self._turn[step.port]], array))
                self._turn[step.port] = (self._turn[step.port] + 1) % len(pool.addresses)
        views = [held[i] for i in range(step.count)]
        return views[0] if step.count == 1 else views

    def _release(self, step: Release) -> None:
        _, _, give = self._pool(step.port)
        for _ in range(step.count):
            self._held[step.port].popleft()
        give.release(step.count)

    def _call(self, step: Call) -> Process:
        array, kernel = self._array, step.kernel
        scalars = tuple(int(a) for a in step.arguments if not isinstance(a, np.ndarray))
        what = f"worker {self.plan.worker.name} calls {kernel.name} with {scalars}"
        try:
            cycles = kernel.cycles(array.design.device.architecture, scalars)
        except (ArithmeticError, LookupError) as error:
            raise SimulationError(f"{what}, which the kernel does not define ({error})") from error
        if cycles < 0:
            raise SimulationError(f"{what}, which the kernel does not define ({cycles} cycles)")
        seconds = array.clock.seconds(cycles)
        start = array.env.now
        yield array.env.timeout(seconds)
        try:
            array.kernels.call(kernel, *step.arguments)
        except SimulationError as error:
            raise SimulationError(f"{what}: {error}") from error
        self.kernel_seconds += seconds
        array.trace.span(str(self.plan.worker.tile), kernel.name, start, array.env.now)

    def _parameters(self) -> Process:
        self.waits_for = f"lock {self.plan.go.id} of {self.plan.worker.tile}, which starts it"
        yield self._array.lock(self.plan.go).acquire(1, f"worker {self.plan.worker.name}")
        self.waits_for = ""
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
