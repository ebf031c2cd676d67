"""What a design becomes on the device: addresses, locks, DMA channels, descriptors, streams.

`configure(design)` follows the lowering of object fifos in mlir-aie (docs/ObjectFifoLowering.md):
every fifo end on a compute or memory tile gets `depth` buffers, a produce lock that starts at
`depth` and a consume lock that starts at 0, one DMA channel, and a ring of descriptors. On a memory
tile that splits or joins, every segment has its own pair of locks, and its own descriptor in each
ring. `configure` only assigns; `check` says whether everything fits.

The shims' descriptors are not here, because they come with the instruction stream.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Literal

from ort_aie_ep.npu.terms.design import Design, End, Fifo, Layout, Link, Worker
from ort_aie_ep.npu.terms.device import WORD, Tile
from ort_aie_ep.npu.terms.errors import DesignError

Direction = Literal["MM2S", "S2MM"]


@dataclass(frozen=True)
class Lock:
    """A lock of a tile and its initial value."""

    tile: Tile
    id: int
    initial: int
    name: str


@dataclass(frozen=True)
class Descriptor:
    """One entry of a channel's ring: move `words` words between the stream and the memory.

    `address` is in bytes of the tile's data memory; `layout` None is linear. The transfer takes 1
    from `acquire` before it starts and adds 1 to `release` after it ends.
    """

    id: int
    address: int
    words: int
    layout: Layout | None
    acquire: Lock
    release: Lock


_Entry = tuple[int, int, Lock, Lock]  # address, bytes, what is acquired and released


@dataclass(frozen=True)
class Channel:
    """A DMA channel of a compute or memory tile with its endless ring of descriptors."""

    tile: Tile
    direction: Direction
    index: int
    fifo: str
    ring: tuple[Descriptor, ...]


@dataclass(frozen=True)
class Port:
    """A channel as the end of a stream; on a shim, it has no ring behind it."""

    tile: Tile
    direction: Direction
    index: int

    def __str__(self) -> str:
        return f"{self.direction} {self.index} of {self.tile}"


@dataclass(frozen=True)
class Stream:
    """A route: what `source` sends (under `packet`, if it has one) reaches all `destinations`."""

    fifo: str
    source: Port
    packet: int | None
    destinations: tuple[Port, ...]


@dataclass(frozen=True)
class Pool:
    """The buffers of a fifo as a worker sees them: addresses in `tile`, and its two locks."""

    tile: Tile
    addresses: tuple[int, ...]
    bytes: int
    produce: Lock
    consume: Lock


@dataclass(frozen=True)
class WorkerPlan:
    """Where a worker's data is: byte addresses in its own tile unless a pool says otherwise."""

    worker: Worker
    pools: dict[str, Pool]  # by port
    buffers: dict[str, int]
    parameters: int
    go: Lock


@dataclass
class Configuration:
    """The static configuration of one overlay."""

    design: Design
    channels: list[Channel] = field(default_factory=list)
    streams: list[Stream] = field(default_factory=list)
    locks: list[Lock] = field(default_factory=list)
    workers: dict[str, WorkerPlan] = field(default_factory=dict)
    memory: dict[Tile, int] = field(default_factory=dict)  # bytes in use, stack included
    memory_items: dict[Tile, list[tuple[str, int, int]]] = field(default_factory=dict)
    shim_ports: dict[str, Port] = field(default_factory=dict)  # by fifo


def configure(design: Design) -> Configuration:
    """Assign memory, locks, channels, descriptors and streams to everything in `design`.

    Raises DesignError where an assignment has no meaning (two fifos pinned to one channel, a fifo
    end on a memory tile that no link serves). It does not check limits.
    """
    return _Allocator(design).run()


class _Allocator:
    def __init__(self, design: Design) -> None:
        self._design = design
        self._out = Configuration(design)
        self._lock_ids: dict[Tile, int] = defaultdict(int)
        self._descriptor_ids: dict[tuple[Tile, int], int] = defaultdict(int)
        self._top: dict[Tile, int] = {}
        self._items: dict[Tile, list[tuple[str, int, int]]] = defaultdict(list)
        self._ports: dict[tuple[str, Direction, Tile], Port] = {}  # of the fifo's end
        self._pools: dict[tuple[str, Tile], Pool] = {}

    def run(self) -> Configuration:
        design, out = self._design, self._out
        for worker in design.workers.values():
            self._reserve(worker.tile, "stack", worker.stack)
        self._assign_channels()
        linked: set[tuple[str, Tile]] = set()
        for link in design.links:
            self._link(link)
            linked.update((f.name, link.tile) for f in (*link.sources, *link.destinations))
        for fifo in design.fifos.values():
            for end in (fifo.producer, *fifo.consumers):
                if end.tile.kind == "mem" and (fifo.name, end.tile) not in linked:
                    raise DesignError(
                        f"fifo {fifo.name} ends at {end.tile}, where no forward, split or join "
                        "passes it on"
                    )
            self._core_ends(fifo)
            self._stream(fifo)
        for worker in design.workers.values():
            self._worker(worker)
        out.memory = dict(self._top)
        out.memory_items = dict(self._items)
        return out

    # --- resources ---
    def _reserve(self, tile: Tile, name: str, size: int) -> int:
        start = -(-self._top.get(tile, 0) // 64) * 64
        self._top[tile] = start + size
        self._items[tile].append((name, start, size))
        return start

    def _lock(self, tile: Tile, name: str, initial: int) -> Lock:
        lock = Lock(tile, self._lock_ids[tile], initial, name)
        self._lock_ids[tile] += 1
        self._out.locks.append(lock)
        return lock

    def _port(self, fifo: Fifo, end: End) -> Port:
        return self._ports[fifo.name, "MM2S" if end is fifo.producer else "S2MM", end.tile]

    def _assign_channels(self) -> None:
        taken: dict[tuple[Tile, Direction, int], Fifo] = {}
        ends: list[tuple[Fifo, End, Direction]] = []
        for fifo in self._design.fifos.values():
            if not fifo.shared:
                ends.append((fifo, fifo.producer, "MM2S"))
                ends.extend((fifo, end, "S2MM") for end in fifo.consumers)
        for fifo, end, direction in sorted(ends, key=lambda e: e[1].channel is None):
            index = end.channel
            if index is None:
                index = 0
                while (end.tile, direction, index) in taken:
                    index += 1
            other = taken.get((end.tile, direction, index))
            if other is not None and (other.packet is None or fifo.packet is None):
                raise DesignError(
                    f"fifos {other.name} and {fifo.name} both use {direction} {index} of "
                    f"{end.tile}; only fifos with packet ids can share a channel"
                )
            taken[end.tile, direction, index] = fifo
            port = Port(end.tile, direction, index)
            self._ports[fifo.name, direction, end.tile] = port
            if end.tile.kind == "shim":
                self._out.shim_ports[fifo.name] = port

    def _ring(self, fifo: Fifo, end: End, entries: list[_Entry]) -> None:
        """A channel whose ring visits (address, bytes, acquire, release)."""
        port = self._port(fifo, end)
        # A memory tile's even channels own descriptors 0..23, its odd channels 24..47.
        parity = port.index % 2 if end.tile.kind == "mem" else 0
        ring = []
        for address, size, acquire, release in entries:
            number = 24 * parity + self._descriptor_ids[end.tile, parity]
            self._descriptor_ids[end.tile, parity] += 1
            ring.append(Descriptor(number, address, size // WORD, end.layout, acquire, release))
        self._out.channels.append(
            Channel(end.tile, port.direction, port.index, fifo.name, tuple(ring))
        )

    # --- fifo ends ---
    def _core_ends(self, fifo: Fifo) -> None:
        if fifo.producer.tile.kind == "core":
            pool = self._pool(fifo, fifo.producer, fifo.object.bytes)
            if fifo.shared:
                self._pools[fifo.name, fifo.consumers[0].tile] = pool
                return
            self._ring(
                fifo, fifo.producer,
                [(a, pool.bytes, pool.consume, pool.produce) for a in pool.addresses],
            )  # fmt: skip
        for end in fifo.consumers:
            if end.tile.kind == "core":
                pool = self._pool(fifo, end, (end.object or fifo.object).bytes)
                self._ring(
                    fifo, end,
                    [(a, pool.bytes, pool.produce, pool.consume) for a in pool.addresses],
                )  # fmt: skip

    def _pool(self, fifo: Fifo, end: End, size: int) -> Pool:
        addresses = tuple(
            self._reserve(end.tile, f"{fifo.name}[{i}]", size) for i in range(end.depth)
        )
        pool = Pool(
            end.tile, addresses, size,
            self._lock(end.tile, f"{fifo.name} free", end.depth),
            self._lock(end.tile, f"{fifo.name} filled", 0),
        )  # fmt: skip
        self._pools[fifo.name, end.tile] = pool
        return pool

    def _link(self, link: Link) -> None:
        whole_end = link.whole.end(link.tile)
        parts = [(f.end(link.tile), f) for f in link.parts]
        if len(parts) > 1 and whole_end.layout is not None:
            raise DesignError(
                f"fifo {link.whole.name} at {link.tile}: a layout cannot walk across the segments "
                "of a split or join; put it on the segments' fifos"
            )
        size = link.whole.object_at(link.tile).bytes
        bases = [
            self._reserve(link.tile, f"{link.whole.name}[{i}]", size)
            for i in range(whole_end.depth)
        ]
        locks = [
            (
                self._lock(link.tile, f"{f.name} free", whole_end.depth),
                self._lock(link.tile, f"{f.name} filled", 0),
            )
            for _, f in parts
        ]
        incoming = link.whole in link.sources
        # Of the whole object, a descriptor for every segment of every buffer, in order.
        whole: list[_Entry] = []
        for base in bases:
            for (_, part), offset, (free, filled) in zip(parts, link.offsets, locks, strict=True):
                segment = part.object_at(link.tile).bytes if len(parts) > 1 else size
                taken, given = (free, filled) if incoming else (filled, free)
                whole.append((base + offset, segment, taken, given))
        self._ring(link.whole, whole_end, whole)
        for i, (end, part) in enumerate(parts):
            own = [(at, size, given, taken) for at, size, taken, given in whole[i :: len(parts)]]
            self._ring(part, end, own)

    def _stream(self, fifo: Fifo) -> None:
        if not fifo.shared:
            self._out.streams.append(
                Stream(
                    fifo.name,
                    self._port(fifo, fifo.producer),
                    fifo.packet,
                    tuple(self._port(fifo, end) for end in fifo.consumers),
                )
            )

    def _worker(self, worker: Worker) -> None:
        pools = {}
        for port, fifo in (*worker.inputs.items(), *worker.outputs.items()):
            pool = self._pools.get((fifo.name, worker.tile))
            if pool is None:
                raise DesignError(
                    f"worker {worker.name} on {worker.tile}, port {port}: fifo {fifo.name} has no "
                    "end there"
                )
            pools[port] = pool
        buffers = {
            b.name: self._reserve(worker.tile, f"{worker.name}.{b.name}", b.array.bytes)
            for b in worker.buffers
        }
        parameters = self._reserve(
            worker.tile, f"{worker.name} parameters", WORD * len(worker.parameters)
        )
        go = self._lock(worker.tile, f"{worker.name} go", 0)
        self._out.workers[worker.name] = WorkerPlan(worker, pools, buffers, parameters, go)
