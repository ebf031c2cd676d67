"""The terms of a dataflow design: fifos between tiles, workers on tiles, sequences.

The checks (`check`), the simulator and the MLIR (`aie_kernels.build`) all use this one description.
The terms and rules are those of mlir-aie's object fifos:

* a fifo moves objects of one size from one producer to its consumers in order; every consumer gets
  every object (broadcast), and the slowest consumer holds back all others;
* an end on a compute or memory tile has `depth` buffers and a pair of locks; the instruction stream
  drives an end on a shim;
* a memory tile can pass objects on: `forward` one to one, `split` an object into segments for
  several fifos, `join` segments of several fifos into one object;
* `Layout` reorders an object on its way: the order in which a sender reads its buffer, or in which
  a receiver writes its own.

A worker's body is a generator of steps (`Acquire`, `Release`, `Call`, `Parameters`, `Read`). The
simulator executes it and the lowering traces it, so it must not depend on data except through loops
(`core.loop`) over values that it was given.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ort_aie_ep.formats.q4nx import SHIPPING, BlockForm
from ort_aie_ep.npu.terms.device import DEFAULT_STACK, Device, Tile
from ort_aie_ep.npu.terms.errors import DesignError
from ort_aie_ep.npu.terms.kernel import Array, ElementType, Kernel
from ort_aie_ep.npu.terms.sequence import Sequence


@dataclass(frozen=True)
class Layout:
    """An access pattern over the buffer of an object: (count, stride in bytes), outermost first.

    The innermost dimension is contiguous words (`stride` 4). The product of the counts times 4 is
    the number of bytes that move.
    """

    dimensions: tuple[tuple[int, int], ...]

    @property
    def words(self) -> int:
        """The number of words that move."""
        return int(np.prod([count for count, _ in self.dimensions]))

    def offsets(self) -> np.ndarray:
        """(words,) int64: the byte offset of each word, in the order of the stream."""
        total = np.zeros(1, dtype=np.int64)
        for count, stride in self.dimensions:
            total = (total[:, None] + np.arange(count, dtype=np.int64) * stride).ravel()
        return total


@dataclass(frozen=True)
class End:
    """One end of a fifo: a tile, the depth of its buffers there, the layout, the DMA channel.

    If `channel` is None, the allocation chooses it. `object` differs from the fifo's object only
    where a receiver takes the same bytes in smaller or larger objects.
    """

    tile: Tile
    depth: int = 2
    layout: Layout | None = None
    channel: int | None = None
    object: Array | None = None


@dataclass(eq=False)
class Fifo:
    """Objects of `object` from `producer` to `consumers`. Made by `Design.fifo` and the links.

    `shared` fifos connect two compute tiles through a memory that both reach, without DMA; the
    buffers are in the producer's memory. `packet` is the id under which a fifo shares its shim
    channel with others.
    """

    name: str
    object: Array
    producer: End
    consumers: list[End]
    shared: bool = False
    packet: int | None = None

    def end(self, tile: Tile) -> End:
        """The end at `tile`. Raises DesignError when the fifo has no end there."""
        for end in (self.producer, *self.consumers):
            if end.tile == tile:
                return end
        raise DesignError(f"fifo {self.name} has no end at {tile}")

    def object_at(self, tile: Tile) -> Array:
        """The object as the end at `tile` takes it. Raises DesignError if there is no such end."""
        return self.end(tile).object or self.object


@dataclass(frozen=True, eq=False)
class Link:
    """Objects of `sources` become objects of `destinations` in the buffers of one memory tile.

    One side has exactly one fifo. `offsets` are the byte offsets of the segments in the whole
    object, in the order of the other side's fifos.
    """

    tile: Tile
    sources: tuple[Fifo, ...]
    destinations: tuple[Fifo, ...]
    offsets: tuple[int, ...]

    @property
    def whole(self) -> Fifo:
        """The fifo of the undivided object."""
        return self.destinations[0] if len(self.destinations) == 1 else self.sources[0]

    @property
    def parts(self) -> tuple[Fifo, ...]:
        """The fifos of the segments."""
        return self.sources if len(self.destinations) == 1 else self.destinations


@dataclass(frozen=True, eq=False)
class Buffer:
    """Memory of one worker that outlives its objects: accumulators, resident inputs."""

    name: str
    array: Array


# --- the steps of a worker's body -----------------------------------------------------------------
@dataclass(frozen=True)
class Acquire:
    """Hold `count` objects of a port; returns one buffer, or a list of them when count > 1."""

    port: str
    count: int = 1


@dataclass(frozen=True)
class Release:
    """Pass the oldest `count` objects of a port to the other side."""

    port: str
    count: int = 1


@dataclass(frozen=True)
class Call:
    """Run a kernel on buffers (from `Acquire` or `core.buffer`) and integers."""

    kernel: Kernel
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class Parameters:
    """Wait until the sequence starts this worker; returns its run-time parameters as a tuple."""


@dataclass(frozen=True)
class Read:
    """Read the i32 at `index` of a buffer of the worker, which a kernel has written."""

    buffer: str
    index: int


Step = Acquire | Release | Call | Parameters | Read
Steps = Generator[Step, Any, None]
Body = Callable[["Core"], Steps]


class Core:
    """The argument of a worker's body. The simulator and the lowering implement it separately."""

    def loop(self, count: Any) -> Iterable[Any]:
        """Indices 0 .. count - 1; `count` is an integer or a value from `Parameters` or `Read`."""
        raise NotImplementedError

    def buffer(self, name: str) -> Any:
        """A buffer of the worker, as an argument of `Call`."""
        raise NotImplementedError


def call(kernel: Kernel, *arguments: Any) -> Call:
    """`Call(kernel, arguments)`, after a check of the number of arguments."""
    if len(arguments) != len(kernel.arguments):
        raise DesignError(
            f"kernel {kernel.name} takes {len(kernel.arguments)} arguments, got {len(arguments)}"
        )
    return Call(kernel, arguments)


@dataclass(eq=False)
class Worker:
    """A program on a compute tile; its body repeats for ever.

    `inputs` and `outputs` name the fifos that it reads and writes; `parameters` names its run-time
    words (int32); `stack` is in bytes.
    """

    name: str
    tile: Tile
    body: Body
    inputs: dict[str, Fifo]
    outputs: dict[str, Fifo]
    buffers: tuple[Buffer, ...] = ()
    parameters: tuple[str, ...] = ()
    kernels: tuple[Kernel, ...] = ()
    stack: int = DEFAULT_STACK

    def port(self, name: str) -> Fifo:
        """The fifo behind the port `name`."""
        return self.inputs[name] if name in self.inputs else self.outputs[name]

    def object_at(self, port: str) -> Array:
        """The object of a port: the receiver's own view of it, where it has one."""
        fifo = self.port(port)
        if port in self.inputs:
            for end in fifo.consumers:
                if end.tile == self.tile and end.object is not None:
                    return end.object
        return fifo.object


def package_name(design: str, form: BlockForm) -> str:
    """The name of a design's package, and of its kernel in an xclbin of several: with the form of
    the weights that it reads, unless that is the shipping one. C++ has `npu::PackageName`."""
    if form.bits != SHIPPING.bits or form == SHIPPING:
        return design
    return f"{design}_{form.group}{'' if form.minima else '_symmetric'}"


@dataclass(eq=False)
class Design:
    """A named design on a device: everything in one overlay (xclbin). `form` is that of the
    quantised weights that it reads, if it reads any."""

    name: str
    device: Device
    form: BlockForm = SHIPPING
    fifos: dict[str, Fifo] = field(default_factory=dict)
    links: list[Link] = field(default_factory=list)
    workers: dict[str, Worker] = field(default_factory=dict)
    sequences: dict[str, Sequence] = field(default_factory=dict)

    @property
    def package(self) -> str:
        """The name of its package."""
        return package_name(self.name, self.form)

    # --- tiles ---
    def shim(self, column: int, channel: int | None = None) -> End:
        """An end at the shim of `column`."""
        return End(self.device.tile(column, 0), channel=channel)

    def mem(self, column: int, depth: int = 2, **options: Any) -> End:
        """An end at the memory tile of `column`; the options are those of `End`."""
        return End(self.device.tile(column, 1), depth, **options)

    def core(self, column: int, row: int, depth: int = 2, **options: Any) -> End:
        """An end at the compute tile `row` (0 is the lowest) of `column`."""
        if not 0 <= row < self.device.core_rows:
            raise DesignError(
                f"{self.device.name} has compute rows 0..{self.device.core_rows - 1}, got {row}"
            )
        return End(self.device.tile(column, 2 + row), depth, **options)

    # --- fifos ---
    def fifo(
        self,
        name: str,
        element: ElementType,
        count: int,
        producer: End,
        consumers: SequenceOf[End] | End,
        *,
        shared: bool = False,
        packet: int | None = None,
    ) -> Fifo:
        """A fifo of objects of `count` elements; `check` says whether it can be.

        Raises DesignError when the name is taken.
        """
        if name in self.fifos:
            raise DesignError(f"design {self.name}: two fifos are named {name!r}")
        ends = [consumers] if isinstance(consumers, End) else list(consumers)
        fifo = Fifo(name, Array(element, count), producer, ends, shared, packet)
        self.fifos[name] = fifo
        return fifo

    def _link(self, tile: Tile, sources: SequenceOf[Fifo], destinations: SequenceOf[Fifo]) -> Link:
        sizes = [f.object_at(tile).bytes for f in (sources if len(sources) > 1 else destinations)]
        offsets = tuple(int(x) for x in np.cumsum([0, *sizes[:-1]]))
        link = Link(tile, tuple(sources), tuple(destinations), offsets)
        self.links.append(link)
        return link

    def forward(self, source: Fifo, destination: Fifo) -> Link:
        """Pass each object on through the memory tile where `source` ends."""
        return self._link(destination.producer.tile, [source], [destination])

    def split(self, source: Fifo, destinations: SequenceOf[Fifo]) -> Link:
        """Divide each object of `source` among `destinations`, in order."""
        return self._link(source.consumers[0].tile, [source], destinations)

    def join(self, sources: SequenceOf[Fifo], destination: Fifo) -> Link:
        """Put an object of each of `sources`, in order, into one object of `destination`."""
        return self._link(destination.producer.tile, sources, [destination])

    # --- workers and sequences ---
    def worker(
        self,
        name: str,
        at: End,
        body: Body,
        *,
        inputs: dict[str, Fifo],
        outputs: dict[str, Fifo],
        buffers: SequenceOf[Buffer] = (),
        parameters: SequenceOf[str] = (),
        kernels: SequenceOf[Kernel] = (),
        stack: int = DEFAULT_STACK,
    ) -> Worker:
        """Add a worker on a compute tile; `check` says whether it can be.

        Raises DesignError when the name is taken, or a kernel does not exist for the architecture.
        """
        if name in self.workers:
            raise DesignError(f"design {self.name}: two workers are named {name!r}")
        for kernel in kernels:
            if self.device.architecture not in kernel.architectures:
                raise DesignError(
                    f"worker {name}: kernel {kernel.name} is written for "
                    f"{', '.join(kernel.architectures)}, but {self.device.name} is "
                    f"{self.device.architecture}"
                )
        made = Worker(
            name, at.tile, body, inputs, outputs, tuple(buffers), tuple(parameters),
            tuple(kernels), stack,
        )  # fmt: skip
        self.workers[name] = made
        return made

    def sequence(self, name: str, *parameters: str) -> Sequence:
        """Add an entry point with integer parameters."""
        if name in self.sequences:
            raise DesignError(f"design {self.name}: two sequences are named {name!r}")
        self.sequences[name] = Sequence(name, parameters)
        return self.sequences[name]
