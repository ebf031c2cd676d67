"""Does a design fit its device, and can it make progress? `check` proves it or says every reason.

It looks at the rules of the vocabulary (`structure`), every resource of every tile against
`device.TILES`, paths for the streams (`route`), the workers' bodies (`dry_run`), the sequences
(`check_sequence`), and progress (`progress`). Program size and stack (`core_programs`) and static
data cannot be known without the compiler: they are ranges, and never count as passed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ort_aie_ep.npu.checks import core_programs, real_words, static_data
from ort_aie_ep.npu.checks.check_sequence import sequence_mistakes
from ort_aie_ep.npu.checks.count_parts import Unpredictable
from ort_aie_ep.npu.checks.counts import CountRun
from ort_aie_ep.npu.checks.descriptors import descriptors
from ort_aie_ep.npu.checks.dry_run import Trace, dry_run
from ort_aie_ep.npu.checks.packets import packets
from ort_aie_ep.npu.checks.progress import loops, small_shapes, statements
from ort_aie_ep.npu.checks.report import Estimate, Findings, Report, tile_list
from ort_aie_ep.npu.checks.route import route
from ort_aie_ep.npu.checks.structure import notes, structure
from ort_aie_ep.npu.kernels import Kernels
from ort_aie_ep.npu.terms.configuration import Configuration, Direction, configure
from ort_aie_ep.npu.terms.design import Design, Worker
from ort_aie_ep.npu.terms.device import (
    MAX_LOCK_VALUE,
    TILES,
    Tile,
)  # fmt: skip
from ort_aie_ep.npu.terms.errors import DesignError, SimulationError
from ort_aie_ep.npu.terms.kernel import Kernel

Shapes = Mapping[str, Iterable[Mapping[str, int]]]


def check(design: Design, shapes: Shapes | None = None) -> Report:
    """The report on a design that passes.

    It shows progress for a few small shapes of every sequence, and for `shapes`: parameter values
    by sequence. Raises DesignError, which lists every violation with the tile, the resource, the
    limit and the use.
    """
    report = examine(design, shapes)
    if not report.passed:
        count = len(report.violations)
        lines = "\n".join(f"  {violation}" for violation in report.violations)
        raise DesignError(
            f"design {design.package} is refused for {design.device.name}, "
            f"{count} violation{'s' * (count > 1)}:\n{lines}"
        )
    return report


def examine(design: Design, shapes: Shapes | None = None) -> Report:
    """The report on a design, whether it passes or not. Does not raise for a bad design."""
    return _Examination(design, shapes or {}).run()


class _Examination:
    def __init__(self, design: Design, shapes: Shapes) -> None:
        self._design = design
        self._shapes = shapes
        self._found = Findings()
        self._configuration: Configuration | None = None
        self._kernels: Kernels | None = None

    def run(self) -> Report:
        design = self._design
        self._found.violations.extend(structure(design))
        sound = not self._found.violations
        if sound:
            self._found.notes.extend(notes(design))
            traces = {w.name: dry_run(w) for w in design.workers.values()}
            self._workers(traces)
            self._sequences(traces)
            self._configuration = configuration = self._configure()
            if configuration is not None:
                self._memory(configuration)
                static_data.static_data(self._found, configuration)
                core_programs.core_programs(self._found, configuration)
                self._channels(configuration)
                descriptors(self._found, configuration)
                self._locks(configuration)
                self._routes(configuration)
                self._loops(traces)
                if not self._found.violations:
                    self._progress(configuration, traces)
        found, order = self._found, {"shim": 0, "mem": 1, "core": 2}
        return Report(
            design.package,
            design.device.name,
            tuple(sorted(found.uses, key=lambda u: (order[u.tile.kind], u.tile))),
            tuple(self._estimates()),
            tuple(found.proved),
            tuple(found.notes),
            tuple(found.violations),
            tuple(found.facts),
        )

    def _configure(self) -> Configuration | None:
        try:
            return configure(self._design)
        except DesignError as error:
            self._found.refuse("design", "assignment", str(error))
            return None

    # --- resources ---
    def _memory(self, configuration: Configuration) -> None:
        alignment = self._design.device.alignment
        for tile, used in configuration.memory.items():
            items = configuration.memory_items[tile]
            largest = sorted(items, key=lambda item: -item[2])[:6]
            by = ", ".join(f"{name} {size:,}" for name, _, size in largest)
            more = f" and {len(items) - 6} smaller" if len(items) > 6 else ""
            limit = TILES[tile.kind].memory
            stack = max((size for name, _, size in items if name == "stack"), default=0)
            real = real_words.MEMORY
            if stack >= limit:
                real = real_words.STACK.format(bytes=stack, limit=limit)
            self._found.use(tile, "memory bytes", used, limit, by + more, real)
            for name, address, size in items:
                if tile.kind == "core" and size and address % alignment:
                    self._found.refuse(
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
            real = real_words.INPUT_CHANNELS if direction == "S2MM" else real_words.OUTPUT_CHANNELS
            self._found.use(
                tile, f"{direction} channels", len(used), limit, by,
                real_words.ROUTING if tile.kind == "shim" else real,
            )  # fmt: skip
            for index, names in used.items():
                # A channel with too high a number is only a symptom of too many channels.
                if not 0 <= index < limit and len(used) <= limit:
                    self._found.refuse(
                        tile, f"{direction} channels",
                        f"fifo {names[0]} uses channel {index}; the channels are 0..{limit - 1}",
                        real_words.ROUTING,
                    )  # fmt: skip
                if len(names) > 1:
                    self._share(tile, direction, index, names)

    def _share(self, tile: Tile, direction: Direction, index: int, names: list[str]) -> None:
        """Check a channel that several fifos use."""
        what = f"{direction} {index} of {tile}"
        if tile.kind != "shim":
            self._found.refuse(
                tile, f"{direction} channels",
                f"fifos {', '.join(names)} share channel {index}; only a shim's channel can, "
                "because its sequence orders the transfers",
            )  # fmt: skip
            return
        packets = [self._design.fifos[name].packet for name in names]
        if len(set(packets)) < len(packets):
            self._found.refuse(
                tile, "packet ids",
                f"fifos {', '.join(names)} share channel {index} under ids {packets}; each needs "
                "a unique id",
            )  # fmt: skip
        self._found.notes.append(
            f"fifos {', '.join(names)} share {what}: the one whose transfer is first holds up the "
            "others"
            + (
                ""
                if direction == "MM2S"
                else ", and the workers must send in the order in which the sequence receives"
            )
        )

    def _locks(self, configuration: Configuration) -> None:
        by: dict[Tile, list[str]] = defaultdict(list)
        for lock in configuration.locks:
            by[lock.tile].append(lock.name)
            if not 0 <= lock.initial <= MAX_LOCK_VALUE:
                self._found.refuse(
                    lock.tile, "lock value",
                    f"lock {lock.name} starts at {lock.initial}; the limit is {MAX_LOCK_VALUE}",
                )  # fmt: skip
        for tile, names in sorted(by.items()):
            limit = TILES[tile.kind].locks
            self._found.use(
                tile, "locks", len(names), limit, ", ".join(names),
                real_words.LOCK_ID.format(limit=limit - 1),
            )  # fmt: skip

    def _routes(self, configuration: Configuration) -> None:
        routing = route(self._design.device, configuration.streams)
        for hop, used in sorted(routing.used.items()):
            by = f"no other path was found; the ports carry {', '.join(routing.through(hop))}"
            self._found.use(
                hop.tile, f"stream ports {hop.heading}", used, hop.ports, by, real_words.ROUTING
            )
        switches, fifo = routing.longest()
        if switches:
            self._found.facts.append(
                f"the longest path of a stream is that of fifo {fifo}, {switches} switches; aiecc "
                "finds its own paths, whose trees are longer"
            )
        packets(self._found, configuration, routing)

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
                alike["the body never reads its parameters (Parameters)"].append(worker)
            if not trace.complete:
                alike["one pass through the body takes too many steps to be checked"].append(worker)
            for kernel in worker.kernels:
                if kernel not in trace.calls and not trace.mistakes:
                    unused[kernel.name].append(worker)
                if symbols.setdefault(kernel.name, kernel).arguments != kernel.arguments:
                    alike[f"two kernels are named {kernel.name}, with different arguments"].append(
                        worker
                    )
        for mistake, workers in alike.items():
            self._found.refuse(_names(workers), "body", mistake)
        for kernel_name, workers in unused.items():
            self._found.notes.append(f"kernel {kernel_name} is never called by {_names(workers)}")

    def _sequences(self, traces: Mapping[str, Trace]) -> None:
        design = self._design
        started: set[str] = set()
        used: set[str] = set()
        for sequence in design.sequences.values():
            for mistake in sequence_mistakes(design, sequence):
                self._found.refuse(f"sequence {sequence.name}", "statement", mistake)
            for statement in statements(sequence.body):
                if "start" in statement:
                    started.add(statement["start"])
                used.add(statement.get("transfer", ""))
        for name in sorted(started & set(traces)):
            if traces[name].complete and not traces[name].starts and not traces[name].mistakes:
                self._found.refuse(
                    f"worker {name} at {design.workers[name].tile}", "body",
                    "a sequence starts it, but its body never waits for the start (Parameters)",
                )  # fmt: skip
        if design.sequences:
            for name, trace in traces.items():
                if trace.starts and name not in started:
                    self._found.notes.append(f"no sequence starts worker {name}")
            for fifo in design.fifos.values():
                ends = (fifo.producer, *fifo.consumers)
                if any(e.tile.kind == "shim" for e in ends) and fifo.name not in used:
                    self._found.notes.append(f"no sequence moves anything on fifo {fifo.name}")

    # --- progress ---
    def _loops(self, traces: Mapping[str, Trace]) -> None:
        dead, primed = loops(self._design, traces)
        for loop in dead:
            self._found.refuse(
                "design", "loop of fifos",
                f"{loop}: every worker in it waits for an object before it sends one, so "
                "none moves",
            )  # fmt: skip
        for loop in primed:
            self._found.notes.append(
                f"fifos {loop} form a loop, which starts because a worker sends first"
            )

    def _progress(self, configuration: Configuration, traces: Mapping[str, Trace]) -> None:
        design = self._design
        if not design.sequences:
            if any(trace.starts for trace in traces.values()):
                self._found.notes.append("progress is not shown: no sequence starts the workers")
                return
            try:
                standstill = CountRun(configuration, self._run_kernel, endless=True).endless_passes(
                    4
                )
            except Unpredictable as reason:
                self._found.notes.append(f"progress is not shown: {reason}")
                return
            except DesignError as error:
                standstill = str(error)
            if standstill:
                self._found.refuse("design", "deadlock", f"it comes to a standstill: {standstill}")
            else:
                self._found.proved.append("every worker goes on while the shims send and receive")
            return
        for sequence in design.sequences.values():
            given = [dict(shape) for shape in self._shapes.get(sequence.name, ())]
            shapes = [*small_shapes(sequence), *given]
            if not shapes:
                self._found.notes.append(
                    f"sequence {sequence.name}: no small shape meets its conditions, so progress "
                    "is not shown; pass one to check"
                )
            for shape in shapes:
                at = ", ".join(f"{name}={value}" for name, value in shape.items())
                where = f"sequence {sequence.name}" + (f" at {at}" if at else "")
                try:
                    problems = CountRun(configuration, self._run_kernel).sequence(sequence, shape)
                except Unpredictable as reason:
                    self._found.notes.append(f"{where}: progress is not shown: {reason}")
                    continue
                except (DesignError, ArithmeticError, KeyError) as error:
                    problems = [f"{error}"]
                if problems:
                    for problem in problems:
                        self._found.refuse(where, "progress", problem)
                    break  # larger shapes would show the same
                self._found.proved.append(
                    f"{where}: every transfer completes and nothing is left over"
                )

    def _run_kernel(self, kernel: Kernel, *arguments: Any) -> None:
        """This host's build of the kernels; a complete installation of the package has it."""
        try:
            if self._kernels is None:
                self._kernels = Kernels(self._design.device.architecture)
            self._kernels.call(kernel, *arguments)
        except SimulationError as error:
            raise Unpredictable(f"{error}") from None

    def _estimates(self) -> Iterator[Estimate]:
        if self._configuration is not None:
            yield from static_data.estimates(self._configuration)
            yield from core_programs.estimates(self._configuration)


def _names(workers: list[Worker]) -> str:
    if len(workers) == 1:
        return f"worker {workers[0].name} at {workers[0].tile}"
    return f"worker {workers[0].name} and {len(workers) - 1} more at " + tile_list(
        worker.tile for worker in workers
    )
