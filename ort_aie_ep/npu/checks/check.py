"""Does a design fit its device, and can it go on? `check` proves it or refuses, with every reason.

What is looked at: the rules of the vocabulary (`structure`), every resource of every tile against
`device.TILES`, paths for the streams (`route`), the workers' bodies (`dry_run`), the sequences
(`check_sequence`), and progress (`progress`). Program size and stack cannot be known without the
compiler: they are estimates, and never count as passed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from ort_aie_ep.npu.checks.check_sequence import sequence_mistakes
from ort_aie_ep.npu.checks.dry_run import Trace, dry_run
from ort_aie_ep.npu.checks.progress import loops, small_shapes, statements
from ort_aie_ep.npu.checks.report import Estimate, Report, Use, Violation, tile_list
from ort_aie_ep.npu.checks.route import ARBITERS, RULE_SLOTS, route
from ort_aie_ep.npu.checks.structure import notes, structure
from ort_aie_ep.npu.checks.token_parts import Unpredictable
from ort_aie_ep.npu.checks.tokens import TokenRun
from ort_aie_ep.npu.kernels import Kernels
from ort_aie_ep.npu.vocabulary.configuration import Channel, Configuration, Direction, configure
from ort_aie_ep.npu.vocabulary.design import Design, Layout, Worker
from ort_aie_ep.npu.vocabulary.device import (
    MAX_LOCK_VALUE,
    PROGRAM_BYTES,
    TILES,
    WORD,
    Tile,
)  # fmt: skip
from ort_aie_ep.npu.vocabulary.errors import DesignError, SimulationError
from ort_aie_ep.npu.vocabulary.kernel import DTYPES, Kernel

Shapes = Mapping[str, Iterable[Mapping[str, int]]]

BARE_PROGRAM = 1024  # bytes: start-up code, locks and loops of a body
PROGRAM_OF_A_KERNEL = 2048  # bytes
_PROGRAM_BASIS = (
    f"program size is a guess of {BARE_PROGRAM} bytes and {PROGRAM_OF_A_KERNEL} a kernel: nothing "
    "has been compiled, and only the linker knows"
)
_STACK_BASIS = (
    "stack is what the design reserves, of what it could; only the compiler knows what the kernels "
    "need, and the buffers begin right behind it"
)
# A memory tile's DMA sees its own memory behind its western neighbour's (mlir-aie's target model).
_DMA_BASE = {"core": 0, "mem": 0x80000}
_ADDRESS_BITS = {"core": 14, "mem": 19}  # of words, in a descriptor


def check(design: Design, shapes: Shapes | None = None) -> Report:
    """The report on a design that passes.

    Progress is shown for a few small shapes of every sequence, and for `shapes`: parameter values
    by sequence. Raises DesignError that lists every violation, each with the tile, the resource,
    the limit and the use.
    """
    report = examine(design, shapes)
    if not report.passed:
        count = len(report.violations)
        lines = "\n".join(f"  {violation}" for violation in report.violations)
        raise DesignError(
            f"design {design.name} is refused for {design.device.name}, "
            f"{count} violation{'s' * (count > 1)}:\n{lines}"
        )
    return report


def examine(design: Design, shapes: Shapes | None = None) -> Report:
    """The report on a design, whether it passes or not. Raises nothing for a bad design."""
    return _Examination(design, shapes or {}).run()


class _Examination:
    def __init__(self, design: Design, shapes: Shapes) -> None:
        self._design = design
        self._shapes = shapes
        self._uses: list[Use] = []
        self._violations: list[Violation] = []
        self._notes: list[str] = []
        self._proved: list[str] = []
        self._kernels: Kernels | None = None

    def run(self) -> Report:
        design = self._design
        self._violations.extend(structure(design))
        sound = not self._violations
        if sound:
            self._notes.extend(notes(design))
            traces = {w.name: dry_run(w) for w in design.workers.values()}
            self._workers(traces)
            self._sequences(traces)
            configuration = self._configure()
            if configuration is not None:
                self._memory(configuration)
                self._channels(configuration)
                self._descriptors(configuration)
                self._locks(configuration)
                self._routes(configuration)
                self._loops(traces)
                if not self._violations:
                    self._progress(configuration, traces)
        order = {"shim": 0, "mem": 1, "core": 2}
        return Report(
            design.name,
            design.device.name,
            tuple(sorted(self._uses, key=lambda u: (order[u.tile.kind], u.tile))),
            tuple(self._estimates()),
            tuple(self._proved),
            tuple(self._notes),
            tuple(self._violations),
        )

    def _configure(self) -> Configuration | None:
        try:
            return configure(self._design)
        except DesignError as error:
            self._refuse("design", "assignment", str(error))
            return None

    def _refuse(self, where: Tile | str, resource: str, text: str) -> None:
        violation = Violation(str(where), resource, text)
        if violation not in self._violations:
            self._violations.append(violation)

    def _use(self, tile: Tile, resource: str, used: int, limit: int, by: str) -> None:
        use = Use(tile, resource, used, limit)
        self._uses.append(use)
        if not use.fits:
            self._refuse(tile, resource, f"{used:,} used, the limit is {limit:,} ({by})")

    # --- resources ---
    def _memory(self, configuration: Configuration) -> None:
        alignment = self._design.device.alignment
        for tile, used in configuration.memory.items():
            items = configuration.memory_items[tile]
            largest = sorted(items, key=lambda item: -item[2])[:6]
            by = ", ".join(f"{name} {size:,}" for name, _, size in largest)
            more = f" and {len(items) - 6} smaller" if len(items) > 6 else ""
            self._use(tile, "memory bytes", used, TILES[tile.kind].memory, by + more)
            for name, address, size in items:
                if tile.kind == "core" and size and address % alignment:
                    self._refuse(
                        tile, "alignment",
                        f"{name} is at {address:#x}; vector loads need multiples of {alignment}",
                    )  # fmt: skip

    def _channels(self, configuration: Configuration) -> None:
        fifos: dict[tuple[Tile, Direction], dict[int, list[str]]] = defaultdict(dict)
        for stream in configuration.streams:
            for port in (stream.source, *stream.destinations):
                fifos[port.tile, port.direction].setdefault(port.index, []).append(stream.fifo)
        for (tile, direction), used in sorted(fifos.items()):
            facts = TILES[tile.kind]
            limit = facts.mm2s if direction == "MM2S" else facts.s2mm
            by = ", ".join(f"{i}: {'+'.join(names)}" for i, names in sorted(used.items()))
            self._use(tile, f"{direction} channels", len(used), limit, by)
            for index, names in used.items():
                # A channel of too high a number is no more than a symptom of too many.
                if not 0 <= index < limit and len(used) <= limit:
                    self._refuse(
                        tile, f"{direction} channels",
                        f"fifo {names[0]} is put on channel {index}; there are 0..{limit - 1}",
                    )  # fmt: skip
                if len(names) > 1:
                    self._share(tile, direction, index, names)

    def _share(self, tile: Tile, direction: Direction, index: int, names: list[str]) -> None:
        """Several fifos on one channel."""
        what = f"{direction} {index} of {tile}"
        if tile.kind != "shim":
            self._refuse(
                tile, f"{direction} channels",
                f"fifos {', '.join(names)} share channel {index}; only a shim's can be shared, "
                "because its sequence orders the transfers",
            )  # fmt: skip
            return
        packets = [self._design.fifos[name].packet for name in names]
        if len(set(packets)) < len(packets):
            self._refuse(
                tile, "packet ids",
                f"fifos {', '.join(names)} share channel {index} under ids {packets}; each needs "
                "one of its own",
            )  # fmt: skip
        self._notes.append(
            f"fifos {', '.join(names)} share {what}: the one whose transfer is first holds up the "
            "others"
            + (
                ""
                if direction == "MM2S"
                else ", and the workers must send in the order in which the sequence receives"
            )
        )

    def _descriptors(self, configuration: Configuration) -> None:
        counts: dict[tuple[Tile, str], dict[str, int]] = defaultdict(dict)
        top: dict[Tile, int] = {}  # the highest address of a buffer
        for channel in configuration.channels:
            which = ""
            if channel.tile.kind == "mem":
                which = " of even channels" if channel.index % 2 == 0 else " of odd channels"
            by = counts[channel.tile, which]
            by[channel.fifo] = by.get(channel.fifo, 0) + len(channel.ring)
            self._descriptor_fields(channel)
            last = max(d.address for d in channel.ring)
            top[channel.tile] = max(top.get(channel.tile, 0), last + _DMA_BASE[channel.tile.kind])
        for tile, address in sorted(top.items()):
            limit = (1 << _ADDRESS_BITS[tile.kind]) - 1
            if address // WORD > limit:
                self._refuse(
                    tile, "descriptor address",
                    f"a buffer is at word {address // WORD:,}, the limit is {limit:,}",
                )  # fmt: skip
        for (tile, which), by in sorted(counts.items()):
            limit = TILES[tile.kind].descriptors // (2 if which else 1)
            self._use(
                tile, f"descriptors{which}", sum(by.values()), limit,
                ", ".join(f"{fifo} {count}" for fifo, count in by.items()),
            )  # fmt: skip

    def _descriptor_fields(self, channel: Channel) -> None:
        facts = TILES[channel.tile.kind]
        for descriptor in channel.ring:
            if not 1 <= descriptor.words <= facts.max_words:
                self._refuse(
                    channel.tile, "descriptor length",
                    f"fifo {channel.fifo} moves {descriptor.words:,} words at a time, the limit is "
                    f"{facts.max_words:,}",
                )  # fmt: skip
        words = {descriptor.words for descriptor in channel.ring}
        layout = channel.ring[0].layout
        if layout is not None:
            element = DTYPES[self._design.fifos[channel.fifo].object.element].itemsize
            for text in _layout_mistakes(layout, channel.tile, min(words), element):
                self._refuse(channel.tile, "layout", f"fifo {channel.fifo} {text}")

    def _locks(self, configuration: Configuration) -> None:
        by: dict[Tile, list[str]] = defaultdict(list)
        for lock in configuration.locks:
            by[lock.tile].append(lock.name)
            if not 0 <= lock.initial <= MAX_LOCK_VALUE:
                self._refuse(
                    lock.tile, "lock value",
                    f"lock {lock.name} starts at {lock.initial}, the limit is {MAX_LOCK_VALUE}",
                )  # fmt: skip
        for tile, names in sorted(by.items()):
            self._use(tile, "locks", len(names), TILES[tile.kind].locks, ", ".join(names))

    def _routes(self, configuration: Configuration) -> None:
        routing = route(self._design.device, configuration.streams)
        for hop, used in sorted(routing.used.items()):
            by = f"no other way was found; they carry {', '.join(routing.through(hop))}"
            self._use(hop.tile, f"stream ports {hop.heading}", used, hop.ports, by)
        packets: dict[Tile, list[str]] = defaultdict(list)
        for net, tile, sets in routing.rules():
            name = "+".join(stream.fifo for stream in net.streams)
            packets[tile].append(name)
            if sets > RULE_SLOTS:
                self._refuse(
                    tile, "packet rules",
                    f"the packets of {name} part {sets} ways, the limit is {RULE_SLOTS} for a port",
                )  # fmt: skip
        for tile, names in sorted(packets.items()):
            self._use(tile, "packet arbiters", len(names), ARBITERS, ", ".join(names))

    # --- workers and sequences ---
    def _workers(self, traces: Mapping[str, Trace]) -> None:
        alike: dict[str, list[Worker]] = defaultdict(list)
        unused: dict[str, list[Worker]] = defaultdict(list)
        symbols: dict[str, Kernel] = {}
        for worker in self._design.workers.values():
            trace = traces[worker.name]
            for mistake in trace.mistakes:
                alike[mistake].append(worker)
            if worker.parameters and not trace.starts and trace.complete:
                alike["the body never takes its parameters (Parameters)"].append(worker)
            if not trace.complete:
                alike["one pass through the body takes too many steps to be looked at"].append(
                    worker
                )
            for kernel in worker.kernels:
                if kernel not in trace.calls and not trace.mistakes:
                    unused[kernel.name].append(worker)
                if symbols.setdefault(kernel.name, kernel).arguments != kernel.arguments:
                    alike[f"two kernels are named {kernel.name}, with other arguments"].append(
                        worker
                    )
        for mistake, workers in alike.items():
            self._refuse(_names(workers), "body", mistake)
        for kernel_name, workers in unused.items():
            self._notes.append(f"kernel {kernel_name} is never called by {_names(workers)}")

    def _sequences(self, traces: Mapping[str, Trace]) -> None:
        design = self._design
        started: set[str] = set()
        used: set[str] = set()
        for sequence in design.sequences.values():
            for mistake in sequence_mistakes(design, sequence):
                self._refuse(f"sequence {sequence.name}", "statement", mistake)
            for statement in statements(sequence.body):
                if "start" in statement:
                    started.add(statement["start"])
                used.add(statement.get("transfer", ""))
        for name in sorted(started & set(traces)):
            if traces[name].complete and not traces[name].starts and not traces[name].mistakes:
                self._refuse(
                    f"worker {name} at {design.workers[name].tile}", "body",
                    "a sequence starts it, and its body never waits for that (Parameters)",
                )  # fmt: skip
        if design.sequences:
            for name, trace in traces.items():
                if trace.starts and name not in started:
                    self._notes.append(f"no sequence starts worker {name}")
            for fifo in design.fifos.values():
                ends = (fifo.producer, *fifo.consumers)
                if any(e.tile.kind == "shim" for e in ends) and fifo.name not in used:
                    self._notes.append(f"no sequence moves anything on fifo {fifo.name}")

    # --- progress ---
    def _loops(self, traces: Mapping[str, Trace]) -> None:
        dead, primed = loops(self._design, traces)
        for loop in dead:
            self._refuse(
                "design", "loop of fifos",
                f"{loop}: every worker in it waits for an object before it sends one, so "
                "none moves",
            )  # fmt: skip
        for loop in primed:
            self._notes.append(
                f"fifos {loop} form a loop, which starts because a worker sends first"
            )

    def _progress(self, configuration: Configuration, traces: Mapping[str, Trace]) -> None:
        design = self._design
        if not design.sequences:
            if any(trace.starts for trace in traces.values()):
                self._notes.append("progress is not shown: no sequence starts the workers")
                return
            try:
                standstill = TokenRun(configuration, self._run_kernel, endless=True).endless_passes(
                    4
                )
            except Unpredictable as reason:
                self._notes.append(f"progress is not shown: {reason}")
                return
            if standstill:
                self._refuse("design", "deadlock", f"it comes to a standstill: {standstill}")
            else:
                self._proved.append("every worker goes on while the shims give and take")
            return
        for sequence in design.sequences.values():
            given = [dict(shape) for shape in self._shapes.get(sequence.name, ())]
            shapes = [*small_shapes(sequence), *given]
            if not shapes:
                self._notes.append(
                    f"sequence {sequence.name}: no small shape meets its conditions, so progress "
                    "is not shown; pass one to check"
                )
            for shape in shapes:
                at = ", ".join(f"{name}={value}" for name, value in shape.items())
                where = f"sequence {sequence.name}" + (f" at {at}" if at else "")
                try:
                    problems = TokenRun(configuration, self._run_kernel).sequence(sequence, shape)
                except Unpredictable as reason:
                    self._notes.append(f"{where}: progress is not shown: {reason}")
                    continue
                except (DesignError, ArithmeticError, KeyError) as error:
                    problems = [f"{error}"]
                if problems:
                    for problem in problems:
                        self._refuse(where, "progress", problem)
                    break  # larger shapes show the same again
                self._proved.append(f"{where}: every transfer completes, nothing is left over")

    def _run_kernel(self, kernel: Kernel, *arguments: Any) -> None:
        """The host's build of a kernel; it is there wherever the package is installed whole."""
        try:
            if self._kernels is None:
                self._kernels = Kernels(self._design.device.architecture)
            self._kernels.call(kernel, *arguments)
        except SimulationError as error:
            raise Unpredictable(f"{error}") from None

    def _estimates(self) -> Iterator[Estimate]:
        for worker in self._design.workers.values():
            size = BARE_PROGRAM + PROGRAM_OF_A_KERNEL * len({k.name for k in worker.kernels})
            yield Estimate(worker.tile, "program bytes", size, PROGRAM_BYTES, _PROGRAM_BASIS)
            for use in self._uses:
                if (use.tile, use.resource) == (worker.tile, "memory bytes"):
                    most = worker.stack + max(0, use.limit - use.used)
                    yield Estimate(worker.tile, "stack bytes", worker.stack, most, _STACK_BASIS)


def _names(workers: list[Worker]) -> str:
    if len(workers) == 1:
        return f"worker {workers[0].name} at {workers[0].tile}"
    return f"worker {workers[0].name} and {len(workers) - 1} more at " + tile_list(
        worker.tile for worker in workers
    )


def _layout_mistakes(layout: Layout, tile: Tile, words: int, element: int) -> Iterator[str]:
    """What of a layout does not go into the fields of a descriptor, or through mlir-aie's verifier,
    or is no reordering. `element` is the size of the buffer's, in bytes."""
    facts = TILES[tile.kind]
    dimensions = layout.dimensions
    if not dimensions:
        yield "has no dimensions"
        return
    if len(dimensions) > facts.dimensions:
        yield f"has {len(dimensions)} dimensions {dimensions}, the limit is {facts.dimensions}"
    if any(count < 1 for count, _ in dimensions):
        yield f"has a count below 1 in {dimensions}"
        return
    if dimensions[-1][1] != WORD:
        yield (
            f"has stride {dimensions[-1][1]} in the innermost dimension; it must be contiguous "
            f"words (stride {WORD})"
        )
    for place, (count, stride) in enumerate(dimensions):
        if stride <= 0 or stride % WORD:
            yield f"has stride {stride} bytes in dimension {place}; it must be a multiple of {WORD}"
        elif stride // WORD > facts.max_step:
            yield (
                f"has a step of {stride // WORD:,} words in dimension {place}, the limit is "
                f"{facts.max_step:,}"
            )
        elif stride > words * WORD:
            yield (
                f"has a stride of {stride:,} bytes in dimension {place}, which mlir-aie refuses "
                f"beyond the object's {words * WORD:,}, whatever the count"
            )
        # The innermost dimension is of words, which hold several of the smaller elements.
        elements = count * max(1, WORD // element) if place == len(dimensions) - 1 else count
        if elements > facts.max_count:
            yield (
                f"counts {elements} elements in dimension {place}, the limit of mlir-aie is "
                f"{facts.max_count}"
            )
    if layout.words != words:
        yield f"moves {layout.words * WORD} bytes by {dimensions}, of an object of {words * WORD}"
        return
    offsets = layout.offsets()
    if offsets.min() < 0 or offsets.max() >= words * WORD:
        yield (
            f"reaches bytes {offsets.min()}..{offsets.max() + WORD - 1} of an object of "
            f"{words * WORD}"
        )
    elif len(np.unique(offsets)) != words:
        yield f"visits some words of the object twice and others never: {dimensions}"
