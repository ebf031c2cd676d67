"""The engines of a run, and their speeds: a trial of the shorter contexts, then rounds of all.

An engine that fails is left out with its reason, and the others continue.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

from ort_aie_ep.progress import Count, Progress
from ort_aie_ep.tools.bench.memory import ReadProbe
from ort_aie_ep.tools.bench.peers.engines import OURS, Model, Source, kind
from ort_aie_ep.tools.bench.peers.process import EngineError, Setup, Worker, settle
from ort_aie_ep.tools.bench.peers.results import DECODE, PREFILL, Speeds
from ort_aie_ep.tools.bench.peers.workload import PILOT_MARGIN, PILOT_ROUNDS, Workload

Point = TypeVar("Point")
Taken = TypeVar("Taken")


class Course:
    """Counts steps, and says how long the rest will take; `note` is for what cannot wait."""

    def __init__(self, progress: Progress | None, note: Callable[[str], None]) -> None:
        self.note = note
        self._count = Count(progress, 0)
        self._started = time.perf_counter()
        self.restart()

    def expect(self, steps: int) -> None:
        """Sets how many steps are left."""
        self._count.total = self._count.done + steps

    def step(self, what: str) -> None:
        """Counts a step as done."""
        self._count.what = what
        self._count.step()

    def restart(self) -> None:
        """Starts again to time steps, from which `tell` estimates how long the rest will take."""
        self._since, self._done = time.perf_counter(), self._count.done

    def tell(self, what: str, longer: float = 1.0) -> None:
        """Notes that `what` is done, and when the rest will be if its steps take `longer` times as
        long as those since the last `tell` or `restart`."""
        now, done, total = time.perf_counter(), self._count.done, self._count.total
        rest = (now - self._since) / max(1, done - self._done) * (total - done) * longer
        spent = (now - self._started) / 60
        self.restart()
        self.note(f"{what} done after {spent:.1f} min; about {rest / 60:.0f} min to go")


class Team:
    """The engines of a run, and the input of their processes.

    By engine's name: why it is `left_out`, what it was `retried` without, and where it failed if
    the rest of its numbers is valid (`partly`).
    """

    def __init__(self, setup: Setup, left_out: dict[str, str], course: Course) -> None:
        self.setup, self.left_out, self._course = setup, left_out, course
        self.retried: dict[str, str] = {}
        self.partly: dict[str, str] = {}

    @property
    def names(self) -> list[str]:
        """Names of the engines that have not failed, ort_aie_ep first."""
        return [name for name in self.setup.models if name not in self.left_out]

    @contextmanager
    def excused(self, name: str, where: str, *, partly: bool = False) -> Iterator[None]:
        """Leaves the engine out if the block fails, or with `partly` only this part of its numbers.
        A failure of ort_aie_ep is raised, because without it there is nothing to compare."""
        try:
            yield
        except EngineError as error:
            if name == OURS:
                raise
            excuses = self.partly if partly else self.left_out
            excuses[name] = f"{error.reason} ({where})"
            self._course.note(f"{name} {excuses[name]}; the others go on")

    def retry(self, name: str, error: EngineError) -> bool:
        """Whether the engine has a feature that may be at fault; if so, it now runs without it."""
        without = kind(name).without
        if not without or name in self.retried:
            return False
        self.setup.without[name] = without
        self.retried[name] = f"{without}, after it {error.reason}"
        self._course.note(f"{name} {error.reason}; it is tried once more without {without}")
        return True

    def in_rounds(
        self,
        names: Iterable[str],
        points: Sequence[Point],
        rounds: int,
        measure: Callable[[str, Point], Taken],
        where: Callable[[Point], str],
        failed: Callable[[str], None] = lambda _: None,
        first: Sequence[Point] | None = None,
    ) -> dict[str, dict[Point, list[Taken]]]:
        """Measures all points with all engines in interleaved rounds, by engine and by point.

        A round that does not count comes first, of the points `first`. An engine that fails, at
        `where`, is left out of this part and given to `failed`.
        """
        found: dict[str, dict[Point, list[Taken]]] = {n: {p: [] for p in points} for n in names}
        for turn in range(rounds + 1):
            for point in points if turn or first is None else first:
                for name in list(found):
                    taken: Any = None
                    settle()
                    with self.excused(name, where(point), partly=True):
                        taken = measure(name, point)
                    if taken is None:
                        failed(name)
                        del found[name]
                    elif turn:
                        found[name][point].append(taken)
                    self._course.step(f"{where(point)}, round {turn}: {name}")
        return found


def written(name: str, make: Callable[[Source], Model], source: Source) -> Model:
    """A model for an engine; any failure of a peer's library is an EngineError."""
    try:
        return make(source)
    except Exception as error:
        if kind(name).library == OURS:
            raise
        raise EngineError(name, f"failed: {type(error).__name__}: {error}") from error


class Rounds:
    """The rounds of all engines, which stay open from the first to the last.

    Attributes:
        settings, memory, speeds: as in `Measured`, by engine's name.
        probes: the memory's bandwidth in each round that counts, in bytes per second.
    """

    def __init__(
        self, workload: Workload, team: Team, course: Course, later: Callable[[list[str]], int]
    ) -> None:
        """`later` says how many steps follow the rounds with the engines that are left."""
        self.settings: dict[str, dict[str, str]] = {}
        self.memory: dict[str, dict[str, int]] = {}
        self.speeds: dict[str, Speeds] = {}
        self.probes: list[float] = []
        self._plan, self._team, self._course, self._later = workload, team, course, later
        self._workers: dict[str, Worker] = {}
        self._stack = ExitStack()

    def run(self, round_done: Callable[[str], None]) -> None:
        """Runs all rounds; calls `round_done` with a round's name after each one that counts."""
        workload, names = self._plan, self._team.names
        runs = len(workload.trial) + workload.rounds * len(workload.lengths)
        self._course.expect(len(names) * (1 + runs) + self._later(names))
        with self._stack:
            for name in names:
                with self._team.excused(name, "opening its model"):
                    try:
                        self._open(name)
                    except EngineError as error:
                        if not self._team.retry(name, error):
                            raise
                        self._open(name)
                self._course.step(f"{name}: opened")
            self._course.restart()
            for length in workload.trial:
                for name in self._team.names:
                    self._run(name, length, trial=True)
                    self._course.step(f"trial, context {length}: {name}")
            # A prompt takes most of the time, in proportion to its length or more.
            mean, tried = (sum(n) / len(n) for n in (workload.lengths, workload.trial))
            self._course.tell("trial", mean / tried)
            chosen = {length: self._team.names for length in workload.lengths}
            probe = ReadProbe(workload.threads)
            for turn in range(1, workload.rounds + 1):
                self._round(turn, chosen, probe)
                left = workload.rounds - turn
                if turn == PILOT_ROUNDS and left:
                    chosen = self._choose()
                    runs = left * sum(map(len, chosen.values()))
                    self._course.expect(runs + self._later(self._team.names))
                self._course.tell(f"round {turn} of {workload.rounds}")
                round_done(f"round {turn} of {workload.rounds}")

    def _round(self, turn: int, chosen: Mapping[int, list[str]], probe: ReadProbe) -> None:
        workload = self._plan
        for length, names in chosen.items():
            for name in [name for name in names if name not in self._team.left_out]:
                self._run(name, length, first=turn == 1)
                self._course.step(f"round {turn}, context {length}: {name}")
            # A virtual machine's share of the memory bandwidth changes by the minute, so the
            # probe is measured next to the speeds it is compared with.
            if length == min(workload.decode, default=min(workload.lengths)):
                settle()
                self.probes.append(probe.measure())

    def _open(self, name: str) -> None:
        worker = self._workers[name] = self._stack.enter_context(Worker(name))
        self.settings[name] = worker.open(self._team.setup)["settings"]
        if name in self._team.retried:
            self.settings[name]["without"] = self._team.retried[name]
        self.speeds[name] = {DECODE: {}, PREFILL: {}}

    def _run(self, name: str, length: int, *, trial: bool = False, first: bool = False) -> None:
        """One measurement.

        In the trial and in the `first` round, an engine that fails may be retried once without a
        feature; measurements with that feature then do not count.
        """

        def record(*lengths: int) -> None:
            for n in lengths:
                self._record(name, n, counts=not trial)

        with self._team.excused(name, f"context {length}"):
            try:
                record(length)
            except EngineError as error:
                if not (trial or first) or not self._team.retry(name, error):
                    raise
                self._workers[name].close()
                self._open(name)
                record(*([length] if trial else [n for n in self._plan.lengths if n <= length]))
        if name in self._team.left_out:
            # A failed engine may still have its model in memory, or busy threads.
            self._workers[name].close()

    def _record(self, name: str, length: int, *, counts: bool) -> None:
        settle()
        workload, speeds = self._plan, self.speeds[name]
        # One prompt serves both phases.
        new_tokens = workload.new_tokens if length in workload.decode else 0
        answer = self._workers[name].run(length, new_tokens)
        self.memory[name] = answer["memory"]
        if counts and length in workload.decode:
            speed = new_tokens / answer["decode_seconds"]
            speeds[DECODE].setdefault(length, []).append(speed)
        if counts and length in workload.prefill:
            speeds[PREFILL].setdefault(length, []).append(length / answer["prefill_seconds"])

    def _choose(self) -> dict[int, list[str]]:
        """By context, the engines that continue after the pilot."""
        speeds = {name: self.speeds[name] for name in self._team.names}
        chosen = {length: fastest(speeds, length) for length in self._plan.lengths}
        for length, names in chosen.items():
            for name in (n for n in speeds if n not in names):
                faster = [n for n in names if kind(n).library == kind(name).library]
                self._course.note(
                    f"context {length}: {name} is left out, slower than {', '.join(faster)}"
                )
        return chosen


def fastest(speeds: Mapping[str, Speeds], length: int) -> list[str]:
    """Engines to continue with at a context: ort_aie_ep, and each peer's fastest in any phase."""
    best: dict[tuple[str, str], float] = {}
    for name, phases in speeds.items():
        for phase in phases:
            column = kind(name).library, phase
            best[column] = max(best.get(column, 0.0), *phases[phase].get(length, [0.0]))

    def close(name: str) -> bool:
        library = kind(name).library
        return library == OURS or any(
            max(lengths[length]) >= (1 - PILOT_MARGIN) * best[library, phase]
            for phase, lengths in speeds[name].items()
            if length in lengths
        )

    return [name for name in speeds if close(name)]
