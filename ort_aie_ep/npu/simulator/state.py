"""The state of the simulated array that its processes share: cores, DMA channels, commands.

It finds memories, locks and the shims' descriptors by address or number; `parts` defines them.
"""

from __future__ import annotations

import numpy as np
import simpy

from ort_aie_ep.npu.kernels import Kernels
from ort_aie_ep.npu.simulator.parts import Clock, Ddr, HostMemory, LockCell, aligned_bytes
from ort_aie_ep.npu.simulator.registers import ShimDescriptor
from ort_aie_ep.npu.simulator.trace import Trace
from ort_aie_ep.npu.terms import costs
from ort_aie_ep.npu.terms.configuration import Configuration, Lock, configure
from ort_aie_ep.npu.terms.design import Design
from ort_aie_ep.npu.terms.device import TILES, Tile
from ort_aie_ep.npu.terms.errors import SimulationError


class ArrayState:
    """The view that a design's processes have of the array, and of the host's memory behind it.

    Raises DesignError for a design that `configure` refuses.
    """

    def __init__(self, design: Design, trace: bool, kernels: Kernels | None = None) -> None:
        self.design = design
        self.configuration: Configuration = configure(design)
        self.env = simpy.Environment()
        self.clock = Clock(costs.clock_hz(design.device))
        self.trace = Trace(trace)
        self.kernels = kernels or Kernels(design.device.architecture)
        self.host = HostMemory([])
        read, write = costs.ddr(design.device.architecture)
        self.shim_rate = costs.shim_rate(design.device)
        self.ddr_read = Ddr(self.env, read.value)
        self.ddr_write = Ddr(self.env, write.value)
        self._memory: dict[Tile, np.ndarray] = {}
        self._locks = {(k.tile, k.id): LockCell(self.env, k) for k in self.configuration.locks}
        self._shim_words: dict[tuple[Tile, int], np.ndarray] = {}
        self._iterations: dict[tuple[Tile, int], int] = {}
        self._written: set[tuple[Tile, int]] = set()  # words that streams have stored

    def memory(self, tile: Tile) -> np.ndarray:
        """Data memory of a tile, uint8."""
        if tile not in self._memory:
            self._memory[tile] = aligned_bytes(TILES[tile.kind].memory)
        return self._memory[tile]

    def written(self, tile: Tile, address: int) -> bool:
        """Whether a stream has stored the word at a byte address of a tile."""
        return (tile, address) in self._written

    def lock(self, lock: Lock) -> LockCell:
        """The cell of a lock of the configuration."""
        return self._locks[lock.tile, lock.id]

    def lock_by_id(self, tile: Tile, number: int) -> LockCell:
        """A lock by its number; those that the design does not use start at 0."""
        key = (tile, number)
        if key not in self._locks:
            self._locks[key] = LockCell(self.env, Lock(tile, number, 0, "unused by the design"))
        return self._locks[key]

    def shim_descriptor(self, tile: Tile, number: int) -> ShimDescriptor:
        """Descriptor `number` of a shim as the stream has written it."""
        words = self._shim_words.get((tile, number))
        if words is None:
            raise SimulationError(f"descriptor {number} of {tile} was pushed but never written")
        return ShimDescriptor.from_words(words)

    def advance_iteration(self, tile: Tile, number: int, descriptor: ShimDescriptor) -> int:
        """The iteration counter of a descriptor, which then advances and wraps."""
        current = self._iterations.get((tile, number), descriptor.iteration_current)
        self._iterations[tile, number] = (current + 1) % descriptor.iteration_count
        return current
