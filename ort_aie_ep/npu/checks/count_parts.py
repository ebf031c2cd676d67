"""The parts of a run with counts (`counts`): rings of descriptors, shims' channels, workers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ort_aie_ep.npu.terms.configuration import Channel, Lock, WorkerPlan
from ort_aie_ep.npu.terms.design import Acquire, Call, Core, Parameters, Read, Release, Worker
from ort_aie_ep.npu.terms.device import MAX_LOCK_VALUE, WORD
from ort_aie_ep.npu.terms.errors import DesignError
from ort_aie_ep.npu.terms.kernel import Array

MAX_STEPS = 400_000  # of one run; about a second
ENDLESS = 1 << 60  # words

#: Calls a kernel with its arguments: integers, and arrays (n,) int32.
Runner = Callable[..., None]


class Unpredictable(Exception):
    """Counts cannot tell: a loop count is data, or the run is too long."""


@dataclass
class Task:
    """A transfer of a shim: `words` are those that remain to be moved."""

    fifo: str
    words: int


@dataclass(eq=False, slots=True)
class Held:
    """A lock and its value."""

    lock: Lock
    value: int

    def release(self, count: int) -> None:
        """Add `count`. Raises DesignError when the register overflows."""
        self.value += count
        if self.value > MAX_LOCK_VALUE:
            lock = self.lock
            raise DesignError(
                f"lock {lock.id} of {lock.tile} ({lock.name}) would be {self.value}; a lock holds "
                f"0..{MAX_LOCK_VALUE}"
            )


#: The values of locks.
Locks = Mapping[Lock, Held]


class Ring:
    """A channel of a compute or memory tile: the descriptor under way, if it has its lock."""

    def __init__(self, channel: Channel, locks: Locks) -> None:
        self.channel = channel
        self._ring = [(d.words, locks[d.acquire], locks[d.release]) for d in channel.ring]
        self._turn = 0
        self.left = 0

    def words(self, fifo: str) -> int:
        """The number of words that it can move now."""
        if self.left == 0:
            words, acquire, _ = self._ring[self._turn]
            if acquire.value < 1:
                return 0
            acquire.value -= 1
            self.left = words
        return self.left

    def move(self, words: int) -> None:
        """Move `words` words."""
        self.left -= words
        if self.left == 0:
            self._ring[self._turn][2].release(1)
            self._turn = (self._turn + 1) % len(self._ring)

    @property
    def partial(self) -> bool:
        """Whether a descriptor has moved some of its words."""
        return 0 < self.left < self.channel.ring[self._turn].words

    @property
    def waits_for(self) -> str:
        """The lock that it waits for, or ''."""
        lock = self.channel.ring[self._turn].acquire
        return "" if self.left else f"lock {lock.id} ({lock.name})"


@dataclass
class Shim:
    """A channel of a shim: its tasks in order; `endless` ones never end."""

    endless: bool
    tasks: deque[Task] = field(default_factory=deque)

    def words(self, fifo: str) -> int:
        """The number of words that it can move now for this fifo."""
        if self.endless:
            return ENDLESS
        return self.tasks[0].words if self.tasks and self.tasks[0].fifo == fifo else 0

    @property
    def waits_for(self) -> str:
        """What it needs to continue."""
        if not self.tasks:
            return "a transfer that was not issued"
        return f"the transfer on fifo {self.tasks[0].fifo} to end"

    def move(self, words: int) -> None:
        """Move `words` words."""
        if not self.endless:
            self.tasks[0].words -= words
            if self.tasks[0].words == 0:
                self.tasks.popleft()


class _CountCore(Core):
    """Data exists only for buffers of integers; the others are only names."""

    def __init__(self, worker: Worker) -> None:
        self.integers = {
            b.name: _aligned(b.array.count) for b in worker.buffers if b.array.element == "i32"
        }

    def loop(self, count: Any) -> Iterable[int]:
        return range(count)

    def buffer(self, name: str) -> Any:
        return self.integers.get(name)


def _aligned(count: int) -> np.ndarray:
    """Zeros (count,) int32 that begin at a multiple of 64 bytes, as buffers in L1 do."""
    block = np.zeros(count + 16, dtype=np.int32)
    start = -block.ctypes.data % 64 // WORD
    return block[start : start + count]


class Process:
    """A worker that runs until a lock or a start is missing."""

    def __init__(self, plan: WorkerPlan, locks: Locks, run: Runner) -> None:
        self.plan = plan
        self._core = _CountCore(plan.worker)
        self._run = run
        self._known: set[str] = set()  # buffers whose last kernel was called
        self.starts: deque[tuple[int, ...]] = deque()
        self.passes = 0
        self.waits_for = ""
        self._held: dict[str, int] = dict.fromkeys(plan.pools, 0)
        self._take: dict[str, Held] = {}  # by port
        self._give: dict[str, Held] = {}
        for port, pool in plan.pools.items():
            free, filled = locks[pool.produce], locks[pool.consume]
            incoming = port in plan.worker.inputs
            self._take[port], self._give[port] = (filled, free) if incoming else (free, filled)
        self._begin()

    def _begin(self) -> None:
        self._body = self.plan.worker.body(self._core)
        self._taken = 0
        self._step: Any = next(self._body, None)

    @property
    def idle(self) -> bool:
        """Whether it is at the start of its body."""
        return self._taken == 0

    def touches(self, fifos: Container[str]) -> bool:
        """Whether one of its ports is one of `fifos`."""
        worker = self.plan.worker
        return any(f.name in fifos for f in (*worker.inputs.values(), *worker.outputs.values()))

    @property
    def rests(self) -> bool:
        """Whether it is at the start of its body and waits for the sequence."""
        return self.idle and isinstance(self._step, Parameters)

    def advance(self) -> int:
        """Continue as far as possible; returns the number of steps and passes through the body."""
        steps = 0
        while True:
            if self._step is None:
                self.passes += 1
                worked = self._taken
                self._begin()
                if not worked or self._step is None:
                    return steps
            answer = self._answer(self._step)
            if answer is None:
                return steps
            steps += 1
            self._taken += 1
            if steps > MAX_STEPS:
                raise Unpredictable(f"worker {self.plan.worker.name} never stops")
            try:
                self._step = self._body.send(answer[0])
            except StopIteration:
                self._step = None

    def _answer(self, step: Any) -> tuple[Any] | None:
        """The body's result of a step, in a tuple; None when it has to wait."""
        name = self.plan.worker.name
        match step:
            case Acquire(port, count):
                need = count - self._held[port]
                if need > 0:
                    lock = self._take[port]
                    if lock.value < need:
                        kind = "filled" if port in self.plan.worker.inputs else "free"
                        self.waits_for = (
                            f"worker {name} waits for {need} {kind} object(s) of fifo "
                            f"{self.plan.worker.port(port).name} (port {port})"
                        )
                        return None
                    lock.value -= need
                    self._held[port] = count
                return (None if count == 1 else [None] * count,)
            case Release(port, count):
                if count > self._held[port]:
                    raise DesignError(
                        f"worker {name} releases {count} objects of port {port} but holds "
                        f"{self._held[port]}"
                    )
                self._held[port] -= count
                self._give[port].release(count)
                return (None,)
            case Call():
                self._call(step)
                return (None,)
            case Parameters():
                if not self.starts:
                    self.waits_for = f"worker {name} waits to be started"
                    return None
                return (self.starts.popleft(),)
            case Read(buffer, index):
                if buffer not in self._known:
                    raise Unpredictable(f"loop counts of worker {name} depend on data")
                return (int(self._core.integers[buffer][index]),)
        raise DesignError(f"worker {name} yields {step!r}, not a step")

    def _call(self, step: Call) -> None:
        """Call a kernel that has integer buffers only; other kernels make their buffers unknown."""
        given = {
            name
            for name, array in self._core.integers.items()
            if any(argument is array for argument in step.arguments)
        }
        arrays = [a for a in step.kernel.arguments if isinstance(a, Array)]
        if given and all(a.element == "i32" for a in arrays) and len(given) == len(arrays):
            self._run(step.kernel, *step.arguments)
            self._known |= given
        else:
            self._known -= given
