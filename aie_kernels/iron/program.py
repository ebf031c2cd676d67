"""A design as an IRON program: fifos, links, workers, the runtime.

Every fifo is an `ObjectFifo` and every forward, split or join an `ObjectFifoLink` on its handles:
`handle.forward`, `.split` and `.join` are made of the same link, but take neither the channel of
both ends nor another object type at the receiver (mlir-aie python/iron/dataflow/objectfifo.py).

What the manifest promises is pinned: tiles, depths, the shims' channels, packet ids, the addresses
of the run-time parameters and the ids of the go locks. So are the addresses of the workers' own
buffers, because the compiler aligns to 32 bytes and AIE2P's wide accesses need 64; those of fifos
have no such option. All else is the compiler's choice.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

import numpy as np

from ort_aie_ep.aie_kernels.iron.bodies import Resources, Tracer
from ort_aie_ep.aie_kernels.iron.interface import Iron, array_of
from ort_aie_ep.aie_kernels.iron.sequences import Bound, Run, runtime
from ort_aie_ep.npu.vocabulary.configuration import configure
from ort_aie_ep.npu.vocabulary.design import Design, End, Fifo, Layout, Link, Worker
from ort_aie_ep.npu.vocabulary.device import WORD, Tile
from ort_aie_ep.npu.vocabulary.errors import DesignError
from ort_aie_ep.npu.vocabulary.kernel import DTYPES, Array, Kernel


def array_type(array: Array) -> Any:
    """IRON's type of a buffer."""
    return array_of(array.count, DTYPES[array.element])


def object_file(kernel: Kernel) -> str:
    """The object that a kernel is linked from, relative to the folder of the MLIR."""
    return f"{PurePath(kernel.source).stem}.o"


def make_program(iron: Iron, design: Design, run: Run | None = None) -> Any:
    """The IRON Program of `design`; with `run` its runtime does that run, else nothing.

    Raises DesignError for what IRON cannot express.
    """
    return _Lowering(iron, design).program(run)


class _Lowering:
    def __init__(self, iron: Iron, design: Design) -> None:
        self._iron = iron
        self._design = design
        self._plan = configure(design)
        self._tiles: dict[Tile, Any] = {}
        self._kernels: dict[str, tuple[tuple[Any, ...], Any]] = {}
        self._handles: dict[tuple[str, Tile, bool], Any] = {}  # bool: the producer's
        self._words: dict[str, Any] = {}
        self._locks: dict[str, Any] = {}

    def program(self, run: Run | None) -> Any:
        iron, design = self._iron, self._design
        for fifo in design.fifos.values():
            self._fifo(fifo)
        for link in design.links:
            self._link(link)
        workers = [self._worker(worker) for worker in design.workers.values()]
        shims = {
            name: self._handles[name, port.tile, port.direction == "MM2S"]
            for name, port in self._plan.shim_ports.items()
        }
        rt = runtime(iron, Bound(shims, self._words, self._locks), self._plan, run)
        return iron.Program(iron.device(design.device.name), rt, workers=workers)

    def _tile(self, tile: Tile) -> Any:
        """One object per tile, with its type: two of one place can become two tiles."""
        if tile not in self._tiles:
            kinds = self._iron.AIETileType
            kind = {"shim": kinds.ShimNOCTile, "mem": kinds.MemTile, "core": kinds.CoreTile}
            self._tiles[tile] = self._iron.Tile(tile.column, tile.row, tile_type=kind[tile.kind])
        return self._tiles[tile]

    # --- fifos ---
    def _fifo(self, fifo: Fifo) -> None:
        sent, taken = self._objects(fifo)
        cores = fifo.producer.tile.kind == "core" and any(
            end.tile.kind == "core" for end in fifo.consumers
        )
        options: dict[str, Any] = {}
        if fifo.shared:
            options["delegate_tile"] = self._tile(fifo.producer.tile)
        elif cores:  # or neighbours would share memory
            options["via_DMA"] = True
        if taken != sent:
            options["consumer_obj_type"] = array_type(taken)
        if fifo.packet is not None:
            options.update(packet=True, packet_id=fifo.packet)
        if fifo.repeat > 1:
            options["repeat_count"] = fifo.repeat
        if fifo.producer.layout is not None:
            options["to_stream"] = self._walk(fifo, fifo.producer, sent)
        # Nothing is stored at a shim: its end has the depth of the other side.
        depth = (fifo.consumers[0] if fifo.producer.tile.kind == "shim" else fifo.producer).depth
        made = self._iron.ObjectFifo(array_type(sent), depth=depth, name=fifo.name, **options)
        self._handles[fifo.name, fifo.producer.tile, True] = made.prod(
            **self._end(fifo, fifo.producer, depth)
        )
        for end in fifo.consumers:
            given = self._end(fifo, end, depth if end.tile.kind == "shim" else end.depth)
            if end.layout is not None:
                given["from_stream"] = self._walk(fifo, end, end.object or sent)
            self._handles[fifo.name, end.tile, False] = made.cons(**given)

    def _objects(self, fifo: Fifo) -> tuple[Array, Array]:
        """What is sent and what cores receive: IRON has one type for each.

        What a memory tile receives follows from its link: a segment there is as large as the
        offsets say, and may gather several objects of a sender.
        """
        sent = fifo.producer.object or fifo.object
        if fifo.producer.tile.kind == "shim" and fifo.consumers[0].tile.kind == "mem":
            sent = fifo.consumers[0].object or sent
        cores = [end for end in fifo.consumers if end.tile.kind == "core"]
        received = {end.object or fifo.object for end in cores} or {sent}
        if len(received) > 1:
            raise DesignError(
                f"fifo {fifo.name}: its receivers take objects of different sizes, "
                f"{sorted(a.bytes for a in received)} bytes; IRON has one for all"
            )
        (taken,) = received
        if taken.element != sent.element or sent.count % taken.count:
            raise DesignError(
                f"fifo {fifo.name}: objects of {taken.count} {taken.element} are received from "
                f"objects of {sent.count} {sent.element}; IRON can only divide an object, with the "
                "same type of element"
            )
        return sent, taken

    def _end(self, fifo: Fifo, end: End, depth: int) -> dict[str, Any]:
        if end.tile.kind != "shim":
            return {"depth": depth, "channel": end.channel}
        if end.layout is not None:
            raise DesignError(
                f"fifo {fifo.name} at {end.tile}: the order at a shim is the sequence's"
            )
        # The manifest names the channel, whether the design did or not.
        port = self._plan.shim_ports[fifo.name]
        return {"depth": depth, "channel": port.index, "tile": self._tile(end.tile)}

    def _walk(self, fifo: Fifo, end: End, array: Array) -> Any:
        """A layout as a pattern over the elements of one object.

        (python/iron/dataflow/objectfifo.py: a pattern over a tensor of the size of the object, at
        offset 0. Its innermost stride is 1 unless elements are words.)
        """
        assert isinstance(end.layout, Layout)
        size = DTYPES[array.element].itemsize
        counts = [count for count, _ in end.layout.dimensions]
        strides = [stride for _, stride in end.layout.dimensions]
        if any(stride % WORD for stride in strides) or (size < WORD and strides[-1] != WORD):
            raise DesignError(
                f"fifo {fifo.name} at {end.tile}: strides of {strides} bytes; they must be words, "
                f"and contiguous ones in the innermost dimension of {array.element}"
            )
        if size < WORD:
            counts[-1] *= WORD // size
            strides[-1] = size
        return self._iron.TensorAccessPattern(
            (array.count,), 0, counts, [stride // size for stride in strides]
        )

    def _link(self, link: Link) -> None:
        whole = link.whole.object
        for part in link.parts:
            if part.object.element != whole.element:
                raise DesignError(
                    f"link at {link.tile}: fifo {part.name} holds {part.object.element}, "
                    f"{link.whole.name} holds {whole.element}; IRON counts offsets in elements"
                )
        size = DTYPES[whole.element].itemsize
        offsets = [offset // size for offset in link.offsets]
        join = len(link.sources) > 1
        self._iron.ObjectFifoLink(
            [self._handles[f.name, link.tile, False] for f in link.sources],
            [self._handles[f.name, link.tile, True] for f in link.destinations],
            tile=self._tile(link.tile),
            src_offsets=offsets if join else [],
            dst_offsets=[] if join else offsets,
        )

    # --- workers ---
    def _kernel(self, kernel: Kernel) -> Any:
        """One declaration of a symbol serves all workers, so its types must be the same in all."""
        types: list[Any] = [
            array_type(a) if isinstance(a, Array) else np.int32 for a in kernel.arguments
        ]
        if kernel.name not in self._kernels:
            made = self._iron.Kernel(kernel.name, object_file(kernel), types)
            self._kernels[kernel.name] = (kernel.arguments, made)
        arguments, made = self._kernels[kernel.name]
        if arguments != kernel.arguments:
            raise DesignError(
                f"design {self._design.name}: kernel {kernel.name} is used with the arguments "
                f"{arguments} and {kernel.arguments}; a symbol has one signature in an overlay"
            )
        return made

    def _worker(self, worker: Worker) -> Any:
        iron, plan, tile = self._iron, self._plan.workers[worker.name], self._tile(worker.tile)
        ports = {
            **{p: self._handles[f.name, worker.tile, False] for p, f in worker.inputs.items()},
            **{p: self._handles[f.name, worker.tile, True] for p, f in worker.outputs.items()},
        }
        kernels = {kernel.name: self._kernel(kernel) for kernel in worker.kernels}
        buffers = {
            b.name: iron.Buffer(
                type=array_type(b.array),
                name=f"{worker.name}_{b.name}",
                tile=tile,
                address=plan.buffers[b.name],
            )
            for b in worker.buffers
        }
        words = []
        if worker.parameters:
            words.append(
                iron.Buffer(
                    type=array_type(Array("i32", len(worker.parameters))),
                    name=f"{worker.name}_parameters",
                    tile=tile,
                    use_write_rtp=True,
                    address=plan.parameters,
                )
            )
            self._words[worker.name] = words[0]
        go = iron.Lock(tile, lock_id=plan.go.id, init=0, name=f"{worker.name}_go")
        self._locks[worker.name] = go

        # IRON hands the arguments back as they were given: everything that a core uses must be
        # among them, and lists may nest.
        def core(
            port_values: list[Any],
            kernel_values: list[Any],
            buffer_values: list[Any],
            word_values: list[Any],
            lock: Any,
        ) -> None:
            resources = Resources(
                dict(zip(ports, port_values, strict=True)),
                dict(zip(kernels, kernel_values, strict=True)),
                dict(zip(buffers, buffer_values, strict=True)),
                word_values[0] if word_values else None,
                lock,
            )
            Tracer(iron, worker, resources).run()

        return iron.Worker(
            core,
            fn_args=[
                list(ports.values()), list(kernels.values()), list(buffers.values()), words, go,
            ],
            tile=tile,
            stack_size=worker.stack,
            # Trip counts are known at run time only, so which buffer of a ring is next is too.
            dynamic_objfifo_lowering=True,
        )  # fmt: skip
