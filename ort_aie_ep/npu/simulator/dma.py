"""DMA channels and streams of the simulated array.

A stream is one process. It takes a transfer of its source, waits until every destination has a
descriptor that can receive data, and moves as many bytes as the shortest of them allows: one event
per descriptor, not per beat. A destination that is not ready holds back the source and so all other
destinations, as a circuit-switched multicast does. Switch FIFOs (4 to 16 words) and hops (2 cycles)
are not modelled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import simpy

from ort_aie_ep.npu.simulator.parts import LockCell, Process, furthest, word_indices
from ort_aie_ep.npu.simulator.registers import ShimDescriptor
from ort_aie_ep.npu.simulator.state import ArrayState
from ort_aie_ep.npu.terms import costs
from ort_aie_ep.npu.terms.configuration import Channel, Descriptor, Port, Stream
from ort_aie_ep.npu.terms.device import MAX_QUEUED_TASKS, WORD
from ort_aie_ep.npu.terms.errors import SimulationError

#: The largest piece of a transfer that occupies DDR at once, so that shims share it fairly (bytes).
PIECE = 8192


@dataclass
class Transfer:
    """An active descriptor: `offsets` are the indices of its words in `memory` from `base` on.

    `memory` is (n,) uint32, and `position` counts the completed words. `run` is the contiguous run
    in bytes, for the cost in DDR.
    """

    memory: np.ndarray
    base: int  # in words
    offsets: np.ndarray | None  # None: linear
    words: int
    run: int
    packet: int | None
    position: int = 0
    finish: Callable[[], None] = lambda: None

    @property
    def remaining(self) -> int:
        """Words still to be moved."""
        return self.words - self.position

    def _index(self, words: int) -> np.ndarray | slice:
        if self.offsets is None:
            start = self.base + self.position
            return slice(start, start + words)
        at: np.ndarray = self.offsets[self.position : self.position + words] + self.base
        return at

    def read(self, words: int) -> np.ndarray:
        """The next `words` words."""
        data: np.ndarray = self.memory[self._index(words)]
        return data

    def write(self, data: np.ndarray) -> None:
        """Store the next words, and advance."""
        self.memory[self._index(data.size)] = data


class Endpoint(Protocol):
    """One end of a stream: yields transfers one after another."""

    port: Port

    @property
    def waiting(self) -> str:
        """What it waits for, or ''."""

    def next(self) -> Process:
        """Wait for the next transfer and return it."""


class RingEndpoint:
    """A channel of a compute or memory tile: an endless ring of descriptors with locks."""

    def __init__(self, array: ArrayState, channel: Channel) -> None:
        self.port = Port(channel.tile, channel.direction, channel.index)
        self._array = array
        self._who = f"{self.port} ({channel.fifo})"
        self._setup = array.clock.cost(costs.BD_SETUP)
        self._memory = array.memory(channel.tile).view(np.uint32)
        self._ring = [
            (descriptor, array.lock(descriptor.acquire), array.lock(descriptor.release))
            for descriptor in channel.ring
        ]
        self._next = 0
        self._waits: tuple[LockCell, int] | None = None

    @property
    def waiting(self) -> str:
        """What it waits for, or ''."""
        return _waits_for(*self._waits) if self._waits is not None else ""

    def next(self) -> Process:
        """Acquire the lock of the next descriptor in the ring."""
        descriptor, acquire, release = self._ring[self._next]
        self._next = (self._next + 1) % len(self._ring)
        self._waits = acquire, acquire.value
        yield acquire.acquire(1, self._who)
        self._waits = None
        yield self._array.env.timeout(self._setup)
        return self._transfer(descriptor, release)

    def _transfer(self, descriptor: Descriptor, release: LockCell) -> Transfer:
        offsets = None
        if descriptor.layout is not None:
            offsets = word_indices(descriptor.layout.dimensions, descriptor.words)
        return Transfer(
            self._memory, descriptor.address // WORD, offsets, descriptor.words,
            descriptor.words * WORD, None, finish=lambda: release.release(1),
        )  # fmt: skip


@dataclass
class Task:
    """An entry of a shim channel's queue: start descriptor, runs, and whether it issues a token."""

    descriptor: int
    runs: int
    token: bool
    source: str  # the operation that pushed it, for reports


class ShimEndpoint:
    """A channel of a shim: tasks that the instruction stream pushed, descriptors that it wrote."""

    def __init__(self, array: ArrayState, port: Port) -> None:
        self.port = port
        self.waiting = ""
        self.tokens = simpy.Container(array.env)
        self.tasks: deque[Task] = deque()
        self.current: Task | None = None
        self.dropped = 0
        self._array = array
        self._pushed = array.env.event()
        self._left = 0
        self._chain: int | None = None

    @property
    def busy(self) -> list[Task]:
        """Tasks that are not complete."""
        return [*([self.current] if self.current else []), *self.tasks]

    def push(self, task: Task) -> None:
        """Queue a task; if the queue is full, the task is dropped silently, as on the hardware.

        The hardware has room for the running task as well, and sometimes for more, but no stream
        may depend on that (`MAX_QUEUED_TASKS`).
        """
        if len(self.busy) >= MAX_QUEUED_TASKS:
            self.dropped += 1
            return
        self.tasks.append(task)
        self._pushed.succeed()
        self._pushed = self._array.env.event()

    def next(self) -> Process:
        """The transfer of the next run of the current task, or of the next task."""
        array = self._array
        if self._chain is not None:
            number, self._chain = self._chain, None
            return (yield from self._start(number))
        while self.current is None or self._left == 0:
            idle = not self.tasks
            while not self.tasks:
                self.waiting = "a task of the instruction stream"
                yield self._pushed
            self.waiting = ""
            self.current = self.tasks.popleft()
            self._left = self.current.runs
            gate = costs.GATE_IDLE if idle else costs.GATE_PIPELINED
            yield array.env.timeout(array.clock.cost(gate))
        return (yield from self._start(self.current.descriptor))

    def _start(self, number: int) -> Process:
        """The transfer of a descriptor, once it has its lock."""
        array = self._array
        acquire = array.shim_descriptor(self.port.tile, number).acquire
        if acquire is not None:
            if acquire.value >= 0:  # waits until the lock is equal to it
                raise SimulationError(
                    f"{self.port}, descriptor {number}: acquires lock {acquire.id} at exactly "
                    f"{acquire.value}; the simulator supports only at least (negative values)"
                )
            cell = array.lock_by_id(self.port.tile, acquire.id)
            self.waiting = _waits_for(cell, cell.value)
            yield cell.acquire(-acquire.value, str(self.port))
            self.waiting = ""
        return self._transfer(number)

    def _transfer(self, number: int) -> Transfer:
        array, task = self._array, self.current
        assert task is not None
        what = f"{self.port}, descriptor {number} ({task.source})"
        descriptor: ShimDescriptor = array.shim_descriptor(self.port.tile, number)
        if not descriptor.valid:
            raise SimulationError(f"{what}: the descriptor is not marked valid")
        if descriptor.length == 0:
            raise SimulationError(f"{what}: the descriptor has length 0")
        iteration = array.advance_iteration(self.port.tile, number, descriptor)
        dimensions = tuple(descriptor.dimensions)
        high = furthest(dimensions, descriptor.length) + WORD
        data, base = array.host.find(
            descriptor.address + iteration * descriptor.iteration_step, 0, high, what
        )
        packet = descriptor.packet_id if descriptor.packet_enabled else None
        run = contiguous_run(dimensions)

        def finish() -> None:
            if descriptor.release is not None:
                array.lock_by_id(self.port.tile, descriptor.release.id).release(
                    descriptor.release.value
                )
            if descriptor.next is not None:
                self._chain = descriptor.next
                return
            self._left -= 1
            if self._left == 0:
                if task.token:
                    self.tokens.put(1)
                self.current = None

        offsets = None
        if dimensions != ((descriptor.length, WORD),):
            offsets = word_indices(dimensions, descriptor.length)
        # A buffer may end within a word, which no transfer can reach.
        memory = data[: data.size // WORD * WORD].view(np.uint32)
        return Transfer(
            memory, base // WORD, offsets, descriptor.length, run, packet, finish=finish
        )  # fmt: skip


def contiguous_run(dimensions: tuple[tuple[int, int], ...]) -> int:
    """Bytes of the longest run that the innermost dimensions make without a gap."""
    run = WORD
    for count, stride in reversed(dimensions):
        if stride != run:
            break
        run *= count
    return run


def _waits_for(cell: LockCell, value: int) -> str:
    lock = cell.lock
    return f"lock {lock.id} of {lock.tile} ({lock.name}), now {value}"


@dataclass
class StreamState:
    """A source and its destinations, with the transfer under way (for reports and utilisation)."""

    source: Endpoint
    routes: dict[int | None, Stream] = field(default_factory=dict)
    receiving: dict[Port, Transfer] = field(default_factory=dict)
    sending: Transfer | None = None
    busy: float = 0.0


def pump(array: ArrayState, endpoints: Mapping[Port, Endpoint], state: StreamState) -> Process:
    """The process of one source: move its transfers for ever."""
    env, clock = array.env, array.clock
    source_is_shim = state.source.port.tile.kind == "shim"
    while True:
        sending: Transfer = yield from state.source.next()
        state.sending = sending
        if sending.packet not in state.routes:
            known = ", ".join(str(p) for p in state.routes)
            raise SimulationError(
                f"{state.source.port} sends packet id {sending.packet}; its streams have {known}"
            )
        stream = state.routes[sending.packet]
        while sending.remaining:
            receiving = []
            for port in stream.destinations:
                transfer = state.receiving.get(port)
                if transfer is None:
                    transfer = yield from endpoints[port].next()
                    state.receiving[port] = transfer
                receiving.append((port, transfer))
            words = min(sending.remaining, PIECE // WORD)
            for _, transfer in receiving:
                words = min(words, transfer.remaining)
            size = words * WORD
            start = env.now
            if source_is_shim:
                yield array.ddr_read.transfer(size, sending.run, size / array.shim_rate)
            elif receiving[0][0].tile.kind == "shim":
                yield array.ddr_write.transfer(size, receiving[0][1].run, size / array.shim_rate)
            else:
                yield env.timeout(clock.seconds(size / costs.STREAM.value))
            state.busy += env.now - start
            if array.trace.enabled:
                array.trace.span(str(state.source.port), stream.fifo, start, env.now)
            data = sending.read(words)
            sending.position += words
            for port, transfer in receiving:
                transfer.write(data)
                transfer.position += words
                if transfer.remaining == 0:
                    del state.receiving[port]
                    transfer.finish()
        state.sending = None
        sending.finish()
