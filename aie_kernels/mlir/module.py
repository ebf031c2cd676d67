"""A design as a module of the aie dialect: `configure()` printed, nothing left open but routes.

Every buffer has its address and bank, every lock its id and first value, every descriptor its id.
Names are those that `report` looks for: `<worker>_parameters`, `<worker>_go`, and the fifo's own
for where it meets a shim.

The dialect is that of mlir-aie since July 2026 (7e00b579, 1.4.2.dev16): counts of locks are values,
descriptors have `static_offset`, `static_len`, `static_sizes` and `static_strides`, all of them in
elements of the buffer (include/aie/Dialect/AIE/IR/AIEOps.td, AIEAttrs.td). The generic form gives
enumerations as numbers.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import PurePath

from ort_aie_ep.aie_kernels.mlir.bodies import (
    ACQUIRE_GREATER_EQUAL,
    RELEASE,
    Resources,
    Ring,
    memref,
    port_object,
    write_body,
)
from ort_aie_ep.aie_kernels.mlir.text import Text, Value, array, function, i32, i64, string
from ort_aie_ep.npu.vocabulary.configuration import (
    Channel,
    Configuration,
    Descriptor,
    Direction,
    Lock,
    Port,
    WorkerPlan,
    configure,
)
from ort_aie_ep.npu.vocabulary.design import Design, Fifo
from ort_aie_ep.npu.vocabulary.device import TILES, WORD, Kind, Tile
from ort_aie_ep.npu.vocabulary.errors import DesignError
from ort_aie_ep.npu.vocabulary.kernel import DTYPES, Array, Kernel

# AIEAttrs.td: AIEDevice, WireBundle, DMAChannelDir.
_DEVICES = {
    "npu1": 4, "npu1_1col": 5, "npu1_2col": 6, "npu1_3col": 7,
    "npu2": 8, "npu2_1col": 9, "npu2_2col": 10, "npu2_3col": 11, "npu2_4col": 12,
    "npu2_5col": 13, "npu2_6col": 14, "npu2_7col": 15,
}  # fmt: skip
_DMA = 1
DIRECTIONS: dict[Direction, int] = {"S2MM": 0, "MM2S": 1}

# Banks of a data memory (AM020; getNumBanks of mlir-aie's target model).
_BANKS: dict[Kind, int] = {"core": 4, "mem": 8}


def object_file(kernel: Kernel) -> str:
    """The object that a kernel is linked from, relative to the folder of the MLIR."""
    return f"{PurePath(kernel.source).stem}.o"


def packet_info(number: int) -> str:
    """The header of packets of id `number`."""
    return f"#aie.packet_info<pkt_type = 0, pkt_id = {number}>"


def print_module(design: Design) -> str:
    """The module of `design`. Raises DesignError for what the dialect cannot say."""
    return _Printer(design).module()


@dataclass(frozen=True)
class _Buffer:
    value: Value
    start: int
    content: Array

    @property
    def end(self) -> int:
        return self.start + self.content.bytes


class _Printer:
    def __init__(self, design: Design) -> None:
        self._design = design
        self._plan: Configuration = configure(design)
        self._text = Text()
        self._symbols: set[str] = set()
        self._tiles: dict[Tile, Value] = {}
        self._buffers: dict[Tile, list[_Buffer]] = defaultdict(list)
        self._locks: dict[tuple[Tile, int], Value] = {}

    def module(self) -> str:
        text, design = self._text, self._design
        device = {"device": i32(_DEVICES[design.device.name]), "sym_name": string("main")}
        with text.nest("builtin.module") as module, module.region():
            text.comment(f"{design.name} on {design.device.name}")
            with text.nest("aie.device", properties=device) as nest, nest.region():
                self._write_tiles()
                self._write_kernels()
                self._write_locks()
                self._write_buffers()
                for tile in sorted(self._tiles):
                    self._write_channels(tile)
                self._write_streams()
                for plan in self._plan.workers.values():
                    self._write_core(plan)
                self._write_sequence()
                text.op("aie.end")
        return str(text)

    def _symbol(self, name: str) -> str:
        if name in self._symbols:
            raise DesignError(
                f"design {self._design.name}: two things are named {name} in the overlay; rename a "
                "fifo, a worker or a buffer"
            )
        self._symbols.add(name)
        return name

    # --- what there is ---
    def _write_tiles(self) -> None:
        plan = self._plan
        used = {channel.tile for channel in plan.channels} | {lock.tile for lock in plan.locks}
        used |= {port.tile for port in plan.shim_ports.values()}
        used |= {w.worker.tile for w in plan.workers.values()}
        for tile in sorted(used):
            place = {"col": i32(tile.column), "row": i32(tile.row)}
            self._tiles[tile] = self._text.value(
                "index", "aie.tile", properties=place, hint=f"{tile.kind}_{tile.column}_{tile.row}"
            )

    def _write_kernels(self) -> None:
        """One declaration of a symbol serves all workers, so its types must be the same in all."""
        known: dict[str, Kernel] = {}
        for worker in self._design.workers.values():
            for kernel in worker.kernels:
                other = known.setdefault(kernel.name, kernel)
                if other.arguments != kernel.arguments:
                    raise DesignError(
                        f"design {self._design.name}: kernel {kernel.name} is used with the "
                        f"arguments {other.arguments} and {kernel.arguments}; a symbol has one "
                        "signature in an overlay"
                    )
        for name, kernel in sorted(known.items()):
            types = [memref(a) if isinstance(a, Array) else "i32" for a in kernel.arguments]
            properties = {
                "function_type": function(types),
                "sym_name": string(self._symbol(name)),
                "sym_visibility": string("private"),
            }
            link = {"link_with": string(object_file(kernel))}
            with (
                self._text.nest("func.func", properties=properties, attributes=link) as nest,
                nest.region(),
            ):
                pass

    def _write_locks(self) -> None:
        go = {(w.go.tile, w.go.id): f"{name}_go" for name, w in self._plan.workers.items()}
        for lock in sorted(self._plan.locks, key=lambda lock: (lock.tile, lock.id)):
            fifo, _, state = lock.name.rpartition(" ")
            tile = lock.tile
            name = go.get((tile, lock.id), f"{fifo}_{tile.column}_{tile.row}_{state}")
            properties = {
                "lockID": i32(lock.id),
                "init": i32(lock.initial),
                "sym_name": string(self._symbol(name)),
            }
            self._locks[tile, lock.id] = self._text.value(
                "index", "aie.lock", [self._tiles[tile]], properties, hint=name
            )

    def _write_buffers(self) -> None:
        """Every buffer in the type of the elements that its own tile sees in it."""
        design, plan = self._design, self._plan
        found: list[tuple[Tile, int, str, Array]] = []
        for link in design.links:
            content = link.whole.object_at(link.tile)
            found += self._pool(link.whole, link.tile, content)
        for name, worker in plan.workers.items():
            tile = worker.worker.tile
            for port, pool in worker.pools.items():
                fifo = worker.worker.port(port)
                if pool.tile == tile:  # else the neighbour's, who has it as a port of its own
                    found += [
                        (tile, address, f"{fifo.name}_{tile.column}_{tile.row}_buffer_{i}",
                         port_object(worker.worker, port))
                        for i, address in enumerate(pool.addresses)
                    ]  # fmt: skip
            found += [
                (tile, worker.buffers[b.name], f"{name}_{b.name}", b.array)
                for b in worker.worker.buffers
            ]
            if worker.worker.parameters:
                words = Array("i32", len(worker.worker.parameters))
                found.append((tile, worker.parameters, f"{name}_parameters", words))
        for tile, address, name, content in sorted(found, key=lambda f: f[:2]):
            bank = address // (TILES[tile.kind].memory // _BANKS[tile.kind])
            properties = {
                "sym_name": string(self._symbol(name)),
                "address": i32(address),
                "mem_bank": i32(bank),
            }
            value = self._text.value(
                memref(content), "aie.buffer", [self._tiles[tile]], properties, hint=name
            )
            self._buffers[tile].append(_Buffer(value, address, content))

    def _pool(self, fifo: Fifo, tile: Tile, content: Array) -> list[tuple[Tile, int, str, Array]]:
        names = [f"{fifo.name}[{i}]" for i in range(fifo.end(tile).depth)]
        at = {name: start for name, start, _ in self._plan.memory_items[tile]}
        return [
            (tile, at[name], f"{fifo.name}_{tile.column}_{tile.row}_buffer_{i}", content)
            for i, name in enumerate(names)
        ]

    def _buffer_at(self, tile: Tile, address: int) -> _Buffer:
        for buffer in self._buffers[tile]:
            if buffer.start <= address < buffer.end:
                return buffer
        raise DesignError(f"address {address} of {tile} is in none of its buffers")

    # --- DMA ---
    def _write_channels(self, tile: Tile) -> None:
        channels = [c for c in self._plan.channels if c.tile == tile]
        if not channels:
            return
        text = self._text
        name = "aie.mem" if tile.kind == "core" else "aie.memtile_dma"
        hint = f"dma_{tile.column}_{tile.row}"
        with (
            text.nest(name, [self._tiles[tile]], results=["index"], hint=hint) as nest,
            nest.region(),
        ):
            for i, channel in enumerate(channels):
                if i:
                    text.block(_label(channel))
                after = _label(channels[i + 1]) if i + 1 < len(channels) else "end"
                self._write_ring(channel, after)
            text.block("end")
            text.op("aie.end")

    def _write_ring(self, channel: Channel, after: str) -> None:
        text, label = self._text, _label(channel)
        start = {
            "channel_dir": i32(DIRECTIONS[channel.direction]),
            "channel_index": i32(channel.index),
            "repeat_count": i32(0),
        }
        text.value(
            "i1", "aie.dma_start", properties=start, hint="started",
            successors=[f"{label}_0", after],
        )  # fmt: skip
        for i, descriptor in enumerate(channel.ring):
            text.block(f"{label}_{i}")
            self._use_lock(descriptor.acquire, ACQUIRE_GREATER_EQUAL)
            self._write_descriptor(channel, descriptor)
            self._use_lock(descriptor.release, RELEASE)
            text.op("aie.next_bd", successors=[f"{label}_{(i + 1) % len(channel.ring)}"])

    def _use_lock(self, lock: Lock | None, action: int) -> None:
        if lock is not None:
            one = self._text.constant(1, "i32")
            operands = [self._locks[lock.tile, lock.id], one]
            self._text.op("aie.use_lock", operands, {"action": i32(action)})

    def _write_descriptor(self, channel: Channel, descriptor: Descriptor) -> None:
        buffer = self._buffer_at(channel.tile, descriptor.address)
        size = DTYPES[buffer.content.element].itemsize
        properties = {
            "operandSegmentSizes": array("i32", [1, 0, 0, 0, 0]),
            "static_offset": i32((descriptor.address - buffer.start) // size),
            "static_len": i32(descriptor.words * WORD // size),
        }
        if descriptor.layout is not None:
            counts, strides = self._elements(channel, descriptor, size)
            properties["static_sizes"] = array("i64", counts)
            properties["static_strides"] = array("i64", strides)
        properties["bd_id"] = i32(descriptor.id)
        packet = self._design.fifos[channel.fifo].packet
        if packet is not None and channel.direction == "MM2S":
            properties["packet"] = packet_info(packet)
        self._text.op("aie.dma_bd", [buffer.value], properties)

    def _elements(
        self, channel: Channel, descriptor: Descriptor, size: int
    ) -> tuple[list[int], list[int]]:
        """A layout in elements of `size` bytes: the innermost stride of those below a word is 1."""
        assert descriptor.layout is not None
        counts = [count for count, _ in descriptor.layout.dimensions]
        strides = [stride for _, stride in descriptor.layout.dimensions]
        if any(stride % WORD for stride in strides) or (size < WORD and strides[-1] != WORD):
            raise DesignError(
                f"fifo {channel.fifo} at {channel.tile}: strides of {strides} bytes; they must be "
                "words, and contiguous ones in the innermost dimension of elements below a word"
            )
        if size < WORD:
            counts[-1] *= WORD // size
            strides[-1] = size
        return counts, [stride // size for stride in strides]

    # --- streams ---
    def _write_streams(self) -> None:
        text = self._text
        for stream in self._plan.streams:
            ends = [stream.source, *stream.destinations]
            text.comment(f"{stream.fifo}: {', '.join(str(end) for end in ends)}")
            if stream.packet is None:
                for destination in stream.destinations:
                    tiles = [self._tiles[stream.source.tile], self._tiles[destination.tile]]
                    text.op("aie.flow", tiles, {
                        "source_bundle": i32(_DMA), "source_channel": i32(stream.source.index),
                        "dest_bundle": i32(_DMA), "dest_channel": i32(destination.index),
                    })  # fmt: skip
                continue
            number = {"ID": f"{stream.packet} : i8"}
            with text.nest("aie.packet_flow", properties=number) as nest, nest.region():
                self._write_end("aie.packet_source", stream.source)
                for destination in stream.destinations:
                    self._write_end("aie.packet_dest", destination)
                text.op("aie.end")
        for fifo, port in self._plan.shim_ports.items():
            properties = {
                "sym_name": string(self._symbol(fifo)),
                "channel_dir": i32(DIRECTIONS[port.direction]),
                "channel_index": i64(port.index),
            }
            text.op("aie.shim_dma_allocation", [self._tiles[port.tile]], properties)

    def _write_end(self, name: str, port: Port) -> None:
        end = {"bundle": i32(_DMA), "channel": i32(port.index)}
        self._text.op(name, [self._tiles[port.tile]], end)

    # --- cores ---
    def _write_core(self, plan: WorkerPlan) -> None:
        text, worker, tile = self._text, plan.worker, plan.worker.tile
        resources = Resources(
            {
                port: Ring(
                    tuple(self._buffer_at(pool.tile, a).value for a in pool.addresses),
                    *self._sides(plan, port),
                )
                for port, pool in plan.pools.items()
            },
            {name: self._buffer_at(tile, a).value for name, a in plan.buffers.items()},
            self._buffer_at(tile, plan.parameters).value if worker.parameters else None,
            self._locks[tile, plan.go.id],
        )
        text.comment(f"worker {worker.name}")
        with text.nest(
            "aie.core", [self._tiles[tile]], {"stack_size": i32(worker.stack)},
            results=["index"], hint=f"core_{tile.column}_{tile.row}",
        ) as nest, nest.region():  # fmt: skip
            write_body(text, worker, resources)
            text.op("aie.end")

    def _sides(self, plan: WorkerPlan, port: str) -> tuple[Value, Value]:
        """The lock that a worker takes from at a port, and the one that it gives to."""
        pool = plan.pools[port]
        free = self._locks[pool.tile, pool.produce.id]
        filled = self._locks[pool.tile, pool.consume.id]
        return (filled, free) if port in plan.worker.inputs else (free, filled)

    def _write_sequence(self) -> None:
        """Streams are written at run time: the overlay's own sequence does nothing."""
        name = {"sym_name": string(self._symbol("sequence"))}
        with self._text.nest("aie.runtime_sequence", properties=name) as nest, nest.region():
            pass


def _label(channel: Channel) -> str:
    return f"{channel.direction}_{channel.index}".lower()
