"""What is measured after the speeds: several rows in a call, starts, the growth with context.

Each part says how many steps it has, and keeps its `result`. It raises EngineError if ort_aie_ep
fails.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

from ort_aie_ep.tools.bench import memory
from ort_aie_ep.tools.bench.peers import results
from ort_aie_ep.tools.bench.peers.engines import OURS, Model, Source, kind
from ort_aie_ep.tools.bench.peers.plan import CALLS, CONTEXT, GROWTH_TOKENS, Plan
from ort_aie_ep.tools.bench.peers.process import FIRST_PROMPT, Worker
from ort_aie_ep.tools.bench.peers.results import COLD, SHAPES, STATES
from ort_aie_ep.tools.bench.peers.team import Course, Team, written


class Batches:
    """The cost of several rows in a call: a token of each of n sequences, or n tokens of one.

    Every call returns the logits of all its rows, so the models used here have all logits.
    """

    name = "several rows in a call"

    def __init__(self, plan: Plan, source: Source) -> None:
        self.result: results.Batches | None = None
        self._sizes, self._rounds, self._source = plan.batches, plan.rounds, source

    def steps(self, names: list[str]) -> int:
        """Steps with these engines."""
        calls = (self._rounds + 1) * len(SHAPES) * len(self._sizes)
        return len(_batching(names)) * (1 + calls) if self._sizes else 0

    def measure(self, team: Team, course: Course) -> None:
        """Measures all sizes and shapes."""
        if not self._sizes:
            return
        capacity = CONTEXT + (CALLS + 1) * max(self._sizes)
        settings = replace(team.setup.settings, capacity=capacity)
        workers: dict[str, Worker] = {}

        def call(name: str, point: tuple[int, str]) -> float:
            n, shape = point
            rows = (n, 1) if shape == results.SEQUENCES else (1, n)
            return workers[name].batch_at(CONTEXT, *rows, CALLS)

        with ExitStack() as stack:
            for name, make in _batching(team.names).items():
                with team.excused(name, self.name, partly=True):
                    worker = stack.enter_context(Worker(name))
                    models = {name: written(name, make, self._source)}
                    worker.open(replace(team.setup, models=models, settings=settings))
                    workers[name] = worker
                course.step(f"{name}: opened for {self.name}")
            self._source.weights.release()
            found = team.in_rounds(
                workers,
                [(n, shape) for n in self._sizes for shape in SHAPES],
                self._rounds,
                call,
                where=lambda point: f"{point[0]} {point[1]} in a call",
                failed=lambda name: workers[name].close(),
            )
        seconds = {
            name: {shape: {n: taken[n, shape] for n in self._sizes} for shape in SHAPES}
            for name, taken in found.items()
        }
        self.result = results.Batches(seconds)


def _batching(names: list[str]) -> dict[str, Callable[[Source], Model]]:
    """What writes the models of the engines that have one for several rows."""
    makers = {name: kind(name).batch_model for name in names}
    return {name: make for name, make in makers.items() if make is not None}


class Starts:
    """From the start of a process to its first token, the model's files in the page cache or not.

    Every start is a fresh process with an engine: Python, the engine's packages, the model, a
    prompt of 64 tokens. Cold means that the model's files are not in this kernel's page cache.
    Python's and the packages' own files stay warm, and so do caches below the kernel, such as a
    disk's or a hypervisor's. Nothing else may have the files open at that time: mapped pages cannot
    be dropped.
    """

    name = "starts"

    def __init__(self, plan: Plan) -> None:
        self.result: dict[str, results.Starts] = {}
        self._turns = plan.starts

    def steps(self, names: list[str]) -> int:
        """Steps with these engines."""
        return len(names) * (1 + self._turns * len(STATES))

    def measure(self, team: Team, _: Course) -> None:
        """Starts all engines alternately; what does not count compiles Python's files."""
        files = {name: memory.files_of(team.setup.models[name].path) for name in team.names}
        kept = dict.fromkeys(files, 0.0)

        def start(name: str, state: str) -> tuple[float, float]:
            memory.warm(files[name])
            if state == COLD:
                kept[name] = max(kept[name], memory.drop(files[name]))
            with Worker(name) as worker:
                loaded = worker.open(team.setup)["load_seconds"]
                worker.run(FIRST_PROMPT, 0)
                return loaded, worker.seconds()

        found = team.in_rounds(
            files, STATES, self._turns, start, lambda state: f"{state} start", first=STATES[:1]
        )
        for paths in files.values():
            memory.warm(paths)
        for name, taken in found.items():
            load, first = ({s: [t[i] for t in taken[s]] for s in STATES} for i in (0, 1))
            self.result[name] = results.Starts(load, first, kept[name])


class Growth:
    """The cost of a token of context when decoding.

    This measures only ort_aie_ep with float16 keys and values. Nothing is prefilled, because
    attention takes as long over random numbers as over a text. Not all peers allow that, and a real
    prompt of 32768 tokens would take each of them minutes in every round.
    """

    name = "the cost of context"

    def __init__(self, plan: Plan, source: Source) -> None:
        self.result: results.Growth | None = None
        self._plan, self._cache_bytes = plan, source.weights.cache_bytes
        self._lengths = plan.growth_within(source.weights.shape.context)

    def steps(self, _: list[str]) -> int:
        """Steps: each length, and the memory's bandwidth, in each round."""
        return 1 + (len(self._lengths) + 1) * (self._plan.rounds + 1) if self._lengths else 0

    def measure(self, team: Team, course: Course) -> None:
        """Decodes at all lengths, and reads memory."""
        if not self._lengths:
            return
        setup, least, most = team.setup, self._lengths[0], self._lengths[-1]
        with Worker(OURS) as worker:
            worker.open(replace(setup, settings=replace(setup.settings, capacity=most)))
            course.step(f"{OURS}: a cache of {most} tokens")
            probe = memory.ReadProbe(self._plan.threads)
            found = team.in_rounds(
                [OURS],
                [*self._lengths, 0],
                self._plan.rounds,
                lambda _, n: worker.decode_at(n, GROWTH_TOKENS) if n else probe.measure(),
                where=lambda n: f"a token at {n}" if n else "bandwidth",
            )[OURS]
        read, more = found.pop(0), self._cache_bytes(most) - self._cache_bytes(least)
        self.result = results.Growth(found, more // (most - least), read)
