"""Measures engines in interleaved rounds: speeds, several rows, starts, the growth with context.

A round has every measurement of every engine once (A B C D at one context, A B C D at the next), so
that other load on the machine affects all of them. Only one engine works at a time. Before the
rounds, a trial of the shorter contexts shows what fails, and how long the run will take. The first
rounds are the pilot. If a library has several engines, those clearly slower at a context in the
pilot are then left out of that context.

Each part after the rounds names its steps, and updates its `result` after each of its own rounds.
It raises EngineError if ort_aie_ep fails.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

from ort_aie_ep.errors import AieError
from ort_aie_ep.runtime.sessions import inspect
from ort_aie_ep.tools.bench import memory
from ort_aie_ep.tools.bench.bench import Comparison
from ort_aie_ep.tools.bench.peers import results
from ort_aie_ep.tools.bench.peers.course import Cost, Course
from ort_aie_ep.tools.bench.peers.engines import KINDS, OURS, Model, Settings, Source, kind
from ort_aie_ep.tools.bench.peers.process import FIRST_PROMPT, EngineError, Setup, Worker
from ort_aie_ep.tools.bench.peers.results import COLD, SHAPES, STATES, WARM, Measured, Results
from ort_aie_ep.tools.bench.peers.rounds import Rounds, Team, written
from ort_aie_ep.tools.bench.peers.weights import DecoderWeights
from ort_aie_ep.tools.bench.peers.workload import (
    CALLS,
    CONTEXT,
    DECODED_COST,
    GROWTH_TOKENS,
    START_COST,
    WRITING_COST,
    Workload,
)


def available(names: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """(engines that can run, how to get what the others lack)."""
    missing = {name: kind(name).missing() for name in names}
    absent = {name: text for name, text in missing.items() if text is not None}
    return [name for name in names if name not in absent], absent


def open_source(model: Path, scratch: Path) -> Source:
    """Opens the source of all engines' models; AieError if it is compiled, or not for peers."""
    found = inspect(model)
    if found.compiled:
        raise AieError(f"{model} is compiled; the peers need its source: pass that")
    return Source(found.folder, DecoderWeights(found.folder), scratch)


def measure(
    source: Source,
    workload: Workload,
    course: Course,
    names: Sequence[str] = tuple(KINDS),
    *,
    partial: Callable[[Results], None] = lambda _: None,
    amx: bool = False,
    demonstrate: Callable[[], Comparison | None] | None = None,
) -> Results:
    """Makes every engine's model, and measures rounds, several rows, starts and growth.

    `partial` gets the results so far, after each round of each part; `demonstrate` measures a
    token of the demonstration model, if there is one. `amx` is whether the CPU has AMX.

    Raises:
        AieError: the workload exceeds the model's context, or ort_aie_ep fails.
    """
    context = source.weights.shape.context
    if workload.capacity > context:
        raise AieError(
            f"{max(workload.lengths)} tokens and {workload.new_tokens} new ones exceed the model's "
            f"context of {context}"
        )
    if workload.batches and CONTEXT + max(workload.batches) > context:
        raise AieError(
            f"a batch of {max(workload.batches)} after {CONTEXT} tokens exceeds the "
            f"model's context of {context}"
        )
    ready, left_out = available(names)
    if left_out:
        course.note("; ".join(f"{name} {reason}" for name, reason in left_out.items()))
    models = {}
    writing = [Cost(name, "writing its model") for name in ready]
    course.expect(writing)
    for step in writing:
        name = step.engine
        try:
            models[name] = written(name, kind(name).model, source)
        except EngineError as error:
            left_out[name] = f"{error.reason} ({step.what})"
            course.note(f"{name} {left_out[name]}; the others go on")
        course.step(step)
    # Files that this process has mapped would stay in memory, which cold starts must avoid.
    source.weights.release()
    settings = Settings(workload.threads, workload.capacity, workload.options)
    team = Team(Setup(models, settings, source.weights.shape.vocab), left_out, course)
    rows, starts, growth = Batches(workload, source), Starts(workload), Growth(workload, source)
    parts: list[Batches | Starts | Growth] = [rows, starts, growth]

    def later(names: list[str], done: int = 0) -> list[Cost]:
        return [cost for part in parts[done:] for cost in part.costs(names)]

    rounds = Rounds(workload, team, course, later)
    demonstration: Comparison | None = None

    def so_far(unfinished: str) -> Results:
        """Of the engines that have not failed; `unfinished` is what is still to come."""
        measured = []
        for name in team.names:
            settings, model = rounds.settings[name], models[name]
            if name in team.partly:
                settings = settings | {"not all measured": f"it {team.partly[name]}"}
            sizes = model.bits, model.weight_bytes, model.file_bytes
            found, memory = starts.result.get(name), rounds.memory[name]
            speeds = deepcopy(rounds.speeds[name])
            measured.append(Measured(name, settings, *sizes, found, memory, speeds))
        probes, cache_bytes = list(rounds.probes), source.weights.cache_bytes(workload.capacity)
        return Results(
            tuple(measured), dict(team.left_out), probes, cache_bytes, workload.capacity,
            growth.result, rows.result, demonstration, amx, unfinished,
        )  # fmt: skip

    def tell(done: str) -> None:
        partial(so_far(f"{done}, and none of the later parts"))

    rounds.run(tell)
    for done, part in enumerate(parts):
        course.expect(later(team.names, done))
        part.measure(team, course, tell)
    if demonstrate is not None:
        demonstration = demonstrate()
    return so_far("")


class Batches:
    """The cost of several rows in a call: a token of each of n sequences, or n tokens of one.

    Every call returns the logits of all its rows, so the models used here have all logits.
    """

    name = "several rows in a call"

    def __init__(self, workload: Workload, source: Source) -> None:
        self.result: results.Batches | None = None
        self._sizes, self._rounds, self._source = workload.batches, workload.rounds, source
        self._points = [(n, shape) for n in self._sizes for shape in SHAPES]

    def _opening(self, names: list[str]) -> list[Cost]:
        tokens = WRITING_COST + START_COST
        return [Cost(name, f"opening for {self.name}", tokens) for name in _batching(names)]

    def _cost(self, name: str, point: tuple[int, str]) -> Cost:
        rows, shape = point
        tokens = CONTEXT + (CALLS + 1) * (DECODED_COST + 2 * rows)
        return Cost(name, f"{rows} {shape} in a call", tokens)

    def costs(self, names: list[str]) -> list[Cost]:
        """The steps with these engines."""
        calls = [self._cost(name, p) for name in _batching(names) for p in self._points]
        return self._opening(names) + calls * (self._rounds + 1) if self._points else []

    def measure(self, team: Team, course: Course, tell: Callable[[str], None]) -> None:
        """Measures all sizes and shapes."""
        if not self._points:
            return
        capacity = CONTEXT + (CALLS + 1) * max(rows for rows, _ in self._points)
        settings = replace(team.setup.settings, capacity=capacity)
        workers: dict[str, Worker] = {}

        def call(name: str, point: tuple[int, str]) -> float:
            rows = (point[0], 1) if point[1] == results.SEQUENCES else (1, point[0])
            return workers[name].batch_at(CONTEXT, *rows, CALLS)

        def keep(found: dict[str, dict[tuple[int, str], list[float]]], when: str) -> None:
            self.result = results.Batches(
                {
                    name: {s: {n: list(taken[n, s]) for n in self._sizes} for s in SHAPES}
                    for name, taken in found.items()
                }
            )
            tell(f"{self.name}, {when}")

        with ExitStack() as stack:
            for step in self._opening(team.names):
                name = step.engine
                with team.excused(name, self.name, partly=True):
                    worker = stack.enter_context(Worker(name))
                    models = {name: written(name, _batching([name])[name], self._source)}
                    worker.open(replace(team.setup, models=models, settings=settings))
                    workers[name] = worker
                course.step(step)
            self._source.weights.release()
            team.in_rounds(
                workers, self._points, self._rounds, call, self._cost, keep,
                failed=lambda name: workers[name].close(),
            )  # fmt: skip


def _batching(names: list[str]) -> dict[str, Callable[[Source], Model]]:
    """What writes the models of the engines that have one for several rows."""
    makers = {name: kind(name).batch_model for name in names}
    return {name: make for name, make in makers.items() if make is not None}


class Starts:
    """From the start of a process to its first token, the model's files in the page cache or not.

    Every start is a fresh process: Python, the engine's packages, the model, a prompt of 64 tokens.
    Python's and the packages' own files stay warm, and so do caches below the kernel, such as a
    disk's or a hypervisor's. Nothing else may have the model's files mapped: such pages stay.
    """

    name = "starts"

    def __init__(self, workload: Workload) -> None:
        self.result: dict[str, results.Starts] = {}
        self._turns = workload.starts

    def _cost(self, name: str, state: str) -> Cost:
        return Cost(name, f"{state} start", START_COST + FIRST_PROMPT)

    def costs(self, names: list[str]) -> list[Cost]:
        """The steps with these engines."""
        if not self._turns:
            return []
        states = [WARM, *STATES * self._turns]
        return [self._cost(name, state) for name in names for state in states]

    def measure(self, team: Team, _: Course, tell: Callable[[str], None]) -> None:
        """Starts all engines alternately, first once without timing, to compile Python's files."""
        if not self._turns:
            return
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

        def keep(found: dict[str, dict[str, list[tuple[float, float]]]], when: str) -> None:
            self.result = {}
            for name, taken in found.items():
                load, first = ({s: [t[i] for t in taken[s]] for s in STATES} for i in (0, 1))
                self.result[name] = results.Starts(load, first, kept[name])
            tell(f"{self.name}, {when}")

        team.in_rounds(files, STATES, self._turns, start, self._cost, keep, first=(WARM,))
        for paths in files.values():
            memory.warm(paths)


class Growth:
    """The cost of a token of context when decoding, for ort_aie_ep with float16 keys and values.

    Nothing is prefilled, because attention takes as long over random numbers as over a text. Not
    all peers allow that, and a real prompt of 32768 tokens would take each of them minutes.
    """

    name = "the cost of context"

    def __init__(self, workload: Workload, source: Source) -> None:
        self.result: results.Growth | None = None
        self._plan, self._cache_bytes = workload, source.weights.cache_bytes
        self._lengths = workload.growth_within(source.weights.shape.context)

    def _opening(self) -> Cost:
        return Cost(OURS, f"a cache of {self._lengths[-1]} tokens", START_COST)

    def _cost(self, name: str, length: int) -> Cost:
        # On a 1B Llama with AVX2, half of a token's time at 16384 is attention.
        tokens = GROWTH_TOKENS * DECODED_COST * (1 + length / 16384)
        return Cost(name, f"a token at {length}", tokens)

    def costs(self, _: list[str]) -> list[Cost]:
        """The steps: each length in each round."""
        lengths = [self._cost(OURS, length) for length in self._lengths]
        return [self._opening(), *lengths * (self._plan.rounds + 1)] if lengths else []

    def measure(self, team: Team, course: Course, tell: Callable[[str], None]) -> None:
        """Decodes at all lengths, and reads memory before each."""
        if not self._lengths:
            return
        setup, least, most = team.setup, self._lengths[0], self._lengths[-1]
        more = self._cache_bytes(most) - self._cache_bytes(least)
        probe = memory.ReadProbe(self._plan.threads)

        def keep(found: dict[str, dict[int, list[tuple[float, float]]]], when: str) -> None:
            taken = found[OURS]
            seconds = {n: [token for token, _ in rounds] for n, rounds in taken.items()}
            reads = [[read for _, read in rounds] for rounds in taken.values()]
            best = [max(of_round) for of_round in zip(*reads, strict=True)]
            self.result = results.Growth(seconds, more // (most - least), best)
            tell(f"{self.name}, {when}")

        with Worker(OURS) as worker:

            def token(_: str, length: int) -> tuple[float, float]:
                read = probe.measure()
                return worker.decode_at(length, GROWTH_TOKENS), read

            worker.open(replace(setup, settings=replace(setup.settings, capacity=most)))
            course.step(self._opening())
            team.in_rounds([OURS], self._lengths, self._plan.rounds, token, self._cost, keep)
