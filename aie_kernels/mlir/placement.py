"""Names and places of buffers and locks, as they are printed and as the compiler reports them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ort_aie_ep.npu.terms.configuration import Configuration, Lock
from ort_aie_ep.npu.terms.device import TILES, Kind, Tile
from ort_aie_ep.npu.terms.kernel import Array

# Banks of a data memory (AM020; getNumBanks of mlir-aie's target model).
_BANKS: dict[Kind, int] = {"core": 4, "mem": 8}


@dataclass(frozen=True)
class PlacedBuffer:
    """A buffer of a tile from byte `start` on, in elements as its own tile sees them."""

    tile: Tile
    start: int
    name: str
    content: Array

    @property
    def end(self) -> int:
        """The first byte after it."""
        return self.start + self.content.bytes

    @property
    def bank(self) -> int:
        """The bank of the memory in which it begins."""
        return self.start // (TILES[self.tile.kind].memory // _BANKS[self.tile.kind])


def placed_buffers(plan: Configuration) -> list[PlacedBuffer]:
    """Every buffer of the overlay, by tile and address."""
    return sorted(_buffers(plan), key=lambda buffer: (buffer.tile, buffer.start))


def _buffers(plan: Configuration) -> Iterator[PlacedBuffer]:
    for link in plan.design.links:
        fifo, tile = link.whole, link.tile
        starts = {name: start for name, start, _ in plan.memory_items[tile]}
        for i in range(fifo.end(tile).depth):
            name = f"{fifo.name}_{tile.column}_{tile.row}_buffer_{i}"
            yield PlacedBuffer(tile, starts[f"{fifo.name}[{i}]"], name, fifo.object_at(tile))
    for name, of_worker in plan.workers.items():
        worker, tile = of_worker.worker, of_worker.worker.tile
        for port, pool in of_worker.pools.items():
            if pool.tile != tile:  # a neighbour's, which has it as a port
                continue
            pool_name = f"{worker.port(port).name}_{tile.column}_{tile.row}_buffer"
            for i, start in enumerate(pool.addresses):
                yield PlacedBuffer(tile, start, f"{pool_name}_{i}", worker.object_at(port))
        for buffer in worker.buffers:
            start = of_worker.buffers[buffer.name]
            yield PlacedBuffer(tile, start, f"{name}_{buffer.name}", buffer.array)
        if worker.parameters:
            words = Array("i32", len(worker.parameters))
            yield PlacedBuffer(tile, of_worker.parameters, f"{name}_parameters", words)


def named_locks(plan: Configuration) -> list[tuple[str, Lock]]:
    """Every lock of the overlay with its name, by tile and id."""
    go = {(w.go.tile, w.go.id): f"{name}_go" for name, w in plan.workers.items()}
    named = []
    for lock in sorted(plan.locks, key=lambda lock: (lock.tile, lock.id)):
        fifo, _, state = lock.name.rpartition(" ")
        own = f"{fifo}_{lock.tile.column}_{lock.tile.row}_{state}"
        named.append((go.get((lock.tile, lock.id), own), lock))
    return named
