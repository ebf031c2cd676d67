"""Does a design fit its device, and can it make progress? `check` proves it or says every reason.

It looks at the rules of the vocabulary (`structure`), the workers' bodies (`terms.body`), every
resource of every tile against `device.TILES`, and paths for the streams (`route`). The runtime's
own reader reads the sequences, and the simulator runs them (`progress`). Only the compiler knows
what programs, stacks and static data take.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from ort_aie_ep.npu import peano
from ort_aie_ep.npu.checks import real_words
from ort_aie_ep.npu.checks.descriptors import descriptors
from ort_aie_ep.npu.checks.packets import packets
from ort_aie_ep.npu.checks.progress import progress, statements
from ort_aie_ep.npu.checks.report import Findings, Report, tile_list
from ort_aie_ep.npu.checks.route import route
from ort_aie_ep.npu.checks.static_data import static_data
from ort_aie_ep.npu.checks.structure import notes, structure
from ort_aie_ep.npu.packages.package import manifest, validate
from ort_aie_ep.npu.terms.body import Invoke, Node, Start, nodes, trace
from ort_aie_ep.npu.terms.configuration import Configuration, Direction, configure
from ort_aie_ep.npu.terms.design import Design, Worker
from ort_aie_ep.npu.terms.device import (
    MAX_LOCK_VALUE,
    TILES,
    Tile,
)  # fmt: skip
from ort_aie_ep.npu.terms.errors import DesignError
from ort_aie_ep.npu.terms.kernel import Kernel


def check(design: Design) -> Report:
    """The report on a design that passes.

    Raises DesignError, which lists every violation with the tile, the resource, the limit and the
    use.
    """
    report = examine(design)
    if not report.passed:
        count = len(report.violations)
        lines = "\n".join(f"  {violation}" for violation in report.violations)
        raise DesignError(
            f"design {design.package} is refused for {design.device.name}, "
            f"{count} violation{'s' * (count > 1)}:\n{lines}"
        )
    return report


def examine(design: Design) -> Report:
    """The report on a design, whether it passes or not. Does not raise for a bad design."""
    return _Examination(design).run()


class _Examination:
    def __init__(self, design: Design) -> None:
        self._design = design
        self._found = Findings()

    def run(self) -> Report:
        design = self._design
        self._found.violations.extend(structure(design))
        sound = not self._found.violations
        if sound:
            self._found.notes.extend(notes(design))
            bodies = self._bodies()
            self._workers(bodies)
            self._sequences(bodies)
            configuration = self._configure()
            if configuration is not None:
                self._memory(configuration)
                static_data(self._found, configuration)
                self._sources()
                self._channels(configuration)
                descriptors(self._found, configuration)
                self._locks(configuration)
                self._routes(configuration)
                if not self._found.violations:
                    self._statements()
                if not self._found.violations:
                    progress(self._found, design)
        found, order = self._found, {"shim": 0, "mem": 1, "core": 2}
        return Report(
            design.package,
            design.device.name,
            tuple(sorted(found.uses, key=lambda u: (order[u.tile.kind], u.tile))),
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
    def _sources(self) -> None:
        """Refuse what Peano is known to compile wrongly; say at which level it compiles."""
        levels: dict[tuple[str, str], set[str]] = defaultdict(set)
        for worker in self._design.workers.values():
            for kernel in worker.kernels:
                level = peano.level(kernel.source)
                levels[level.option, level.reason].add(Path(kernel.source).name)
                for mistake in peano.mistakes_of(kernel.source):
                    self._found.refuse(worker.tile, "source", mistake)
        for (option, reason), sources in levels.items():
            self._found.facts.append(f"{option} for {', '.join(sorted(sources))}: {reason}")

    def _bodies(self) -> dict[str, list[Node]]:
        """The steps of the workers whose bodies are right, those in loops included."""
        alike: dict[str, list[Worker]] = defaultdict(list)
        bodies: dict[str, list[Node]] = {}
        for worker in self._design.workers.values():
            try:
                bodies[worker.name] = list(nodes(trace(worker)))
            except DesignError as error:
                alike[str(error)].append(worker)
                continue
            if worker.parameters and not _starts(bodies[worker.name]):
                alike["the body never reads its parameters (Parameters)"].append(worker)
        for mistake, workers in alike.items():
            self._found.refuse(_names(workers), "body", mistake)
        return bodies

    def _workers(self, bodies: Mapping[str, list[Node]]) -> None:
        unused: dict[str, list[Worker]] = defaultdict(list)
        symbols: dict[str, Kernel] = {}
        for worker in self._design.workers.values():
            steps = bodies.get(worker.name)
            for kernel in worker.kernels:
                if steps is not None and not any(
                    isinstance(step, Invoke) and step.kernel == kernel for step in steps
                ):
                    unused[kernel.name].append(worker)
                if symbols.setdefault(kernel.name, kernel).arguments != kernel.arguments:
                    self._found.refuse(
                        _names([worker]), "body",
                        f"two kernels are named {kernel.name}, with different arguments",
                    )  # fmt: skip
        for name, workers in unused.items():
            self._found.notes.append(f"kernel {name} is never called by {_names(workers)}")

    def _sequences(self, bodies: Mapping[str, list[Node]]) -> None:
        design = self._design
        every = [s for q in design.sequences.values() for s in statements(q.body)]
        started = {s["start"] for s in every if "start" in s}
        used = {s["transfer"] for s in every if "transfer" in s}
        for name, steps in bodies.items():
            if name in started and not _starts(steps):
                self._found.refuse(
                    _names([design.workers[name]]), "body",
                    "a sequence starts it, but its body never waits for the start (Parameters)",
                )  # fmt: skip
            if design.sequences and name not in started and _starts(steps):
                self._found.notes.append(f"no sequence starts worker {name}")
        waited = {name for s in every for name in s.get("wait") or s.get("arrive") or ()}
        for fifo in design.fifos.values():
            inward = fifo.producer.tile.kind == "shim"
            if inward and fifo.name in waited:
                self._found.refuse(
                    "sequences", "statement",
                    f"one waits for fifo {fifo.name}, which goes into the array; wait for one that "
                    "comes out: only that shows that the cores are done",
                )  # fmt: skip
            at_shim = inward or any(end.tile.kind == "shim" for end in fifo.consumers)
            if design.sequences and at_shim and fifo.name not in used:
                self._found.notes.append(f"no sequence moves anything on fifo {fifo.name}")

    def _statements(self) -> None:
        """The runtime's own reader of sequences."""
        try:
            validate(manifest(self._design), "the manifest")
        except DesignError as error:
            self._found.refuse("sequences", "statement", str(error))


def _names(workers: list[Worker]) -> str:
    if len(workers) == 1:
        return f"worker {workers[0].name} at {workers[0].tile}"
    return f"worker {workers[0].name} and {len(workers) - 1} more at " + tile_list(
        worker.tile for worker in workers
    )


def _starts(steps: list[Node]) -> bool:
    return any(isinstance(step, Start) for step in steps)
