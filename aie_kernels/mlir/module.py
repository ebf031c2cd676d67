"""A design as a module of the aie dialect: `configure()` in print, with only the routes left open.

Every buffer has its address and bank, every lock its id and first value, every descriptor its id.
`report` looks for these names: `<worker>_parameters`, `<worker>_go`, and a fifo's own name for its
end at a shim.

The dialect is that of mlir-aie since July 2026 (7e00b579, 1.4.2.dev16): counts of locks are values,
descriptors have `static_offset`, `static_len`, `static_sizes` and `static_strides`, all of them in
elements of the buffer (include/aie/Dialect/AIE/IR/AIEOps.td, AIEAttrs.td). The generic form gives
enumerations as numbers.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import PurePath

from ort_aie_ep.aie_kernels.mlir.attributes import (
    ACQUIRE_GREATER_EQUAL,
    DEVICES,
    DIRECTIONS,
    DMA,
    RELEASE,
    packet_info,
)
from ort_aie_ep.aie_kernels.mlir.bodies import Resources, Ring, memref, write_body
from ort_aie_ep.aie_kernels.mlir.placement import PlacedBuffer, named_locks, placed_buffers
from ort_aie_ep.aie_kernels.mlir.sequences import Run, write_sequence
from ort_aie_ep.aie_kernels.mlir.text import Text, Value, array, function, i32, i64, string
from ort_aie_ep.npu.terms.configuration import (
    Channel,
    Configuration,
    Descriptor,
    Lock,
    Port,
    WorkerPlan,
    configure,
)
from ort_aie_ep.npu.terms.design import Design
from ort_aie_ep.npu.terms.device import WORD, Tile
from ort_aie_ep.npu.terms.errors import DesignError
from ort_aie_ep.npu.terms.kernel import DTYPES, Array, Kernel


def object_file(kernel: Kernel) -> str:
    """The object that a kernel is linked from, relative to the folder of the MLIR."""
    return f"{PurePath(kernel.source).stem}.o"


def print_module(design: Design, run: Run | None = None) -> str:
    """The module of `design`, with the sequence of `run` if there is one.

    Raises DesignError for what the dialect cannot say.
    """
    return _Printer(design).module(run)


class _Printer:
    def __init__(self, design: Design) -> None:
        self._design = design
        self._plan: Configuration = configure(design)
        self._text = Text()
        self._symbols: set[str] = set()
        self._tiles: dict[Tile, Value] = {}
        self._buffers: dict[Tile, list[tuple[PlacedBuffer, Value]]] = defaultdict(list)
        self._locks: dict[tuple[Tile, int], Value] = {}

    def module(self, run: Run | None) -> str:
        text, design = self._text, self._design
        for fifo in design.fifos.values():
            for end in (fifo.producer, *fifo.consumers):
                if end.tile.kind == "shim" and end.layout is not None:
                    raise DesignError(
                        f"fifo {fifo.name} at {end.tile}: the order at a shim is the sequence's"
                    )
        device = {"device": i32(DEVICES[design.device.name]), "sym_name": string("main")}
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
                go = {
                    name: self._locks[w.go.tile, w.go.id] for name, w in self._plan.workers.items()
                }
                write_sequence(text, self._symbol("sequence"), self._plan, go, run)
                text.op("aie.end")
        return str(text)

    def _symbol(self, name: str) -> str:
        if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
            raise DesignError(
                f"design {self._design.name}: {name!r} cannot be a name in the overlay; fifos, "
                "workers and buffers have names of letters, digits and underscores"
            )
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
        for name, lock in named_locks(self._plan):
            properties = {
                "lockID": i32(lock.id),
                "init": i32(lock.initial),
                "sym_name": string(self._symbol(name)),
            }
            self._locks[lock.tile, lock.id] = self._text.value(
                "index", "aie.lock", [self._tiles[lock.tile]], properties, hint=name
            )

    def _write_buffers(self) -> None:
        for placed in placed_buffers(self._plan):
            properties = {
                "sym_name": string(self._symbol(placed.name)),
                "address": i32(placed.start),
                "mem_bank": i32(placed.bank),
            }
            tile = self._tiles[placed.tile]
            type = memref(placed.content)
            value = self._text.value(type, "aie.buffer", [tile], properties, hint=placed.name)
            self._buffers[placed.tile].append((placed, value))

    def _buffer_at(self, tile: Tile, address: int) -> tuple[PlacedBuffer, Value]:
        for buffer, value in self._buffers[tile]:
            if buffer.start <= address < buffer.end:
                return buffer, value
        raise DesignError(
            f"design {self._design.name}: a fifo ends at {tile}, where no worker takes or gives it"
        )

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

    def _use_lock(self, lock: Lock, action: int) -> None:
        operands = [self._locks[lock.tile, lock.id], self._text.constant(1, "i32")]
        self._text.op("aie.use_lock", operands, {"action": i32(action)})

    def _write_descriptor(self, channel: Channel, descriptor: Descriptor) -> None:
        buffer, value = self._buffer_at(channel.tile, descriptor.address)
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
        self._text.op("aie.dma_bd", [value], properties)

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
                        "source_bundle": i32(DMA), "source_channel": i32(stream.source.index),
                        "dest_bundle": i32(DMA), "dest_channel": i32(destination.index),
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
        end = {"bundle": i32(DMA), "channel": i32(port.index)}
        self._text.op(name, [self._tiles[port.tile]], end)

    # --- cores ---
    def _write_core(self, plan: WorkerPlan) -> None:
        text, worker, tile = self._text, plan.worker, plan.worker.tile
        resources = Resources(
            {
                port: Ring(
                    tuple(self._buffer_at(pool.tile, a)[1] for a in pool.addresses),
                    *self._sides(plan, port),
                )
                for port, pool in plan.pools.items()
            },
            {name: self._buffer_at(tile, a)[1] for name, a in plan.buffers.items()},
            self._buffer_at(tile, plan.parameters)[1] if worker.parameters else None,
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


def _label(channel: Channel) -> str:
    return f"{channel.direction}_{channel.index}".lower()
