"""The parts of the simulated array: memories, locks, host buffers, time.

Memory is bytes, locks are registers with waiters, and device addresses refer to the host's buffers;
an access outside of them is an error.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
import simpy

from ort_aie_ep.npu.terms import costs
from ort_aie_ep.npu.terms.configuration import Lock
from ort_aie_ep.npu.terms.device import MAX_LOCK_VALUE, WORD
from ort_aie_ep.npu.terms.errors import SimulationError

#: The array sees host memory at the device address plus this (npu.md 3.5: firmware adds it).
ARRAY_BASE = 0x8000_0000
#: Arguments whose addresses the firmware translates; a stream adds ARRAY_BASE to the others itself.
TRANSLATED_ARGUMENTS = 5

Process = Generator[simpy.Event, Any, Any]


def aligned_bytes(size: int, alignment: int = 64) -> np.ndarray:
    """`size` bytes of poison (0xA5), aligned as L1 buffers are."""
    block = np.full(size + alignment, 0xA5, dtype=np.uint8)
    start = -block.ctypes.data % alignment
    return block[start : start + size]


class LockCell:
    """A lock of a tile: a value and its waiters, served in order of arrival."""

    def __init__(self, env: simpy.Environment, lock: Lock) -> None:
        self.lock = lock
        self.value = lock.initial
        self._env = env
        self.waiters: deque[tuple[int, simpy.Event, str]] = deque()

    def acquire(self, count: int, who: str) -> simpy.Event:
        """An event that happens once the value is at least `count`, which is then subtracted."""
        event = self._env.event()
        self.waiters.append((count, event, who))
        self._serve()
        return event

    def release(self, count: int) -> None:
        """Add `count`. Raises SimulationError when the register overflows."""
        self.set(self.value + count)

    def set(self, value: int) -> None:
        """Store a value."""
        if not 0 <= value <= MAX_LOCK_VALUE:
            raise SimulationError(
                f"lock {self.lock.id} of {self.lock.tile} ({self.lock.name}) would be {value}; "
                f"a lock holds 0..{MAX_LOCK_VALUE}"
            )
        self.value = value
        self._serve()

    def _serve(self) -> None:
        while self.waiters and self.waiters[0][0] <= self.value:
            count, event, _ = self.waiters.popleft()
            self.value -= count
            event.succeed()


class Ddr:
    """Bandwidth of one direction of the host's memory, shared by all shims in order of request."""

    #: A shorter contiguous run costs as much as this many bytes (one burst of the smallest size).
    BURST = 64

    def __init__(self, env: simpy.Environment, bytes_per_second: float) -> None:
        self._env = env
        self._rate = bytes_per_second
        self._free = 0.0
        self.bytes = 0

    def transfer(self, size: int, run: int, stream_seconds: float) -> simpy.Event:
        """Move `size` bytes in contiguous runs of `run`, at most as fast as the stream allows."""
        priced = size if run >= self.BURST else size * self.BURST // max(run, WORD)
        self._free = max(self._free, self._env.now) + priced / self._rate
        self.bytes += size
        return self._env.timeout(max(stream_seconds, self._free - self._env.now))


@dataclass(frozen=True)
class HostBuffer:
    """A buffer of the host: `data` (n,) uint8 in the host's memory, `address` as XRT gives it."""

    name: str
    data: np.ndarray
    address: int


class HostMemory:
    """The buffers of a run by address."""

    def __init__(self, buffers: list[tuple[str, np.ndarray]]) -> None:
        self.buffers: list[HostBuffer] = []
        address = 0x1000_0000
        for name, data in buffers:
            self.buffers.append(HostBuffer(name, data, address))
            # An unmapped page between neighbours, so that an overrun is detected.
            address += -(-data.size // 4096) * 4096 + 4096

    def argument_address(self, index: int, what: str) -> int:
        """The value that the firmware adds to a descriptor for argument `index`."""
        if index >= len(self.buffers):
            raise SimulationError(
                f"{what} patches in argument {index}; the run has {len(self.buffers)} buffers"
            )
        base = self.buffers[index].address
        return base + ARRAY_BASE if index < TRANSLATED_ARGUMENTS else base

    def find(self, address: int, low: int, high: int, what: str) -> tuple[np.ndarray, int]:
        """Find the buffer that holds bytes `address + low` up to `address + high`.

        Also returns the offset of `address` in it. Raises SimulationError when no buffer holds
        them.
        """
        at = address - ARRAY_BASE
        for buffer in self.buffers:
            if buffer.address <= at + low and at + high <= buffer.address + buffer.data.size:
                return buffer.data, at - buffer.address
        held = ", ".join(f"{b.name} {b.address:#x} + {b.data.size}" for b in self.buffers)
        raise SimulationError(
            f"{what} touches {at + low:#x} up to {at + high:#x}, outside of the run's buffers "
            f"({held})"
        )


@lru_cache(maxsize=512)
def word_offsets(dimensions: tuple[tuple[int, int], ...], words: int) -> np.ndarray:
    """(words,) int64: byte offsets of the words of an access pattern in the order of the stream.

    `dimensions` are (count, stride in bytes), outermost first. The outermost count follows from the
    length (AM020), so `words` need not fill it.
    """
    total = np.zeros(1, dtype=np.int64)
    for position, (count, stride) in enumerate(dimensions):
        if position == 0:
            inner = int(np.prod([c for c, _ in dimensions[1:]], dtype=np.int64))
            count = -(-words // inner)
        total = (total[:, None] + np.arange(count, dtype=np.int64) * stride).ravel()
    return np.ascontiguousarray(total[:words])


@lru_cache(maxsize=512)
def word_indices(dimensions: tuple[tuple[int, int], ...], words: int) -> np.ndarray:
    """`word_offsets` in words."""
    return word_offsets(dimensions, words) // WORD


def furthest(dimensions: tuple[tuple[int, int], ...], words: int) -> int:
    """The largest of `word_offsets`, which may be too many to list; no stride is negative."""
    (_, stride), *inner = dimensions
    each = prod(count for count, _ in inner)
    whole, rest = divmod(words, each)
    if not inner:
        return (whole - 1) * stride
    last = (whole - 1) * stride + furthest(tuple(inner), each) if whole else 0
    return max(last, whole * stride + furthest(tuple(inner), rest)) if rest else last


class Clock:
    """Converts cycles of the array, and the constants of the model, to seconds."""

    def __init__(self, hz: float) -> None:
        self.hz = hz

    def seconds(self, cycles: float) -> float:
        """The time of `cycles` array cycles."""
        return cycles / self.hz

    def cost(self, cost: costs.Cost) -> float:
        """A constant of `costs` in seconds; its unit is cycles or seconds."""
        return cost.value if cost.unit == "s" else self.seconds(cost.value)
