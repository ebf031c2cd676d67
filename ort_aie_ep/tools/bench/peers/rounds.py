"""The engines of a run, and their speeds: a trial of the shorter contexts, then rounds of all.

An engine that fails is left out with its reason, and the others continue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TypeVar

from ort_aie_ep.tools.bench.memory import ReadProbe
from ort_aie_ep.tools.bench.peers.course import Cost, Course
from ort_aie_ep.tools.bench.peers.engines import OURS, Model, Source, kind
from ort_aie_ep.tools.bench.peers.process import EngineError, Setup, Worker, settle
from ort_aie_ep.tools.bench.peers.results import DECODE, PREFILL, Speeds
from ort_aie_ep.tools.bench.peers.workload import (
    DECODED_COST,
    PILOT_MARGIN,
    PILOT_ROUNDS,
    Workload,
)

Point = TypeVar("Point")
Taken = TypeVar("Taken")


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
        cost: Callable[[str, Point], Cost],
        keep: Callable[[dict[str, dict[Point, list[Taken]]], str], None],
        failed: Callable[[str], None] = lambda _: None,
        first: Sequence[Point] | None = None,
    ) -> None:
        """Measures all points with all engines in interleaved rounds.

        After each round, `keep` gets what was measured so far, by engine and by point, and the
        round's name. A round that does not count comes first, of the points `first`. An engine that
        fails is left out of this part and given to `failed`.
        """
        found: dict[str, dict[Point, list[Taken]]] = {n: {p: [] for p in points} for n in names}
        for turn in range(rounds + 1):
            for point in points if turn or first is None else first:
                for name in list(found):
                    taken, step = None, cost(name, point)
                    settle()
                    with self.excused(name, step.what, partly=True):
                        taken = measure(name, point)
                    if taken is None:
                        failed(name)
                        del found[name]
                    elif turn:
                        found[name][point].append(taken)
                    self._course.step(step, f"round {turn}")
            if turn:
                keep(found, f"round {turn} of {rounds}")


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
        probes: as in `Results`.
    """

    def __init__(
        self,
        workload: Workload,
        team: Team,
        course: Course,
        later: Callable[[list[str]], Iterable[Cost]],
    ) -> None:
        """`later` names the steps that follow the rounds with the engines that are left."""
        self.settings: dict[str, dict[str, str]] = {}
        self.memory: dict[str, dict[str, int]] = {}
        self.speeds: dict[str, Speeds] = {}
        self.probes: list[float] = []
        self._plan, self._team, self._course, self._later = workload, team, course, later
        self._seconds: dict[str, float] = {}  # of each engine's last run
        self._workers: dict[str, Worker] = {}
        self._stack = ExitStack()

    def run(self, round_done: Callable[[str], None]) -> None:
        """Runs all rounds; calls `round_done` with a round's name after each one that counts."""
        workload, names = self._plan, self._team.names
        chosen = {length: names for length in workload.lengths}
        opening = [Cost(name, "opening its model") for name in names]
        trial = [self._cost(name, length) for length in workload.trial for name in names]
        self._course.expect([*opening, *trial, *self._rest(chosen, workload.rounds)])
        with self._stack:
            for step in opening:
                with self._team.excused(step.engine, step.what):
                    try:
                        self._open(step.engine)
                    except EngineError as error:
                        if not self._team.retry(step.engine, error):
                            raise
                        self._open(step.engine)
                self._course.step(step)
            for length in workload.trial:
                for name in self._team.names:
                    self._run(name, length, trial=True)
                    self._course.step(self._cost(name, length), "trial")
            if workload.seconds is not None:
                self._leave_out_slower_variants()
                self._fit(chosen, workload.seconds)
            probe = ReadProbe(workload.threads)
            turn, left = 0, max(1, self._rounds_left(0, chosen))
            while left:
                self._course.expect(self._rest(chosen, left))
                turn += 1
                self._round(turn, chosen, probe)
                if turn == PILOT_ROUNDS:
                    chosen = self._choose()
                left = self._rounds_left(turn, chosen)
                round_done(f"round {turn} of {turn + left}")

    def _cost(self, name: str, length: int) -> Cost:
        new_tokens = self._plan.new_tokens if length in self._plan.decode else 0
        return Cost(name, f"context {length}", length + DECODED_COST * new_tokens)

    def _of_round(self, chosen: Mapping[int, list[str]]) -> list[Cost]:
        left = self._team.names
        return [
            self._cost(n, length) for length, names in chosen.items() for n in names if n in left
        ]

    def _rest(self, chosen: Mapping[int, list[str]], rounds: int) -> list[Cost]:
        """The steps of so many rounds, and of all that follows."""
        return [*self._of_round(chosen) * rounds, *self._later(self._team.names)]

    def _rounds_left(self, done: int, chosen: Mapping[int, list[str]]) -> int:
        """Rounds that are still wanted, and that there is time for."""
        left = self._plan.rounds - done
        round_seconds = self._course.seconds(self._of_round(chosen))
        if self._plan.seconds is None or not round_seconds:
            return left
        return min(left, max(0, int((self._plan.seconds - self._course.elapsed) / round_seconds)))

    def _round(self, turn: int, chosen: Mapping[int, list[str]], probe: ReadProbe) -> None:
        workload, reads = self._plan, []
        for length, names in chosen.items():
            # A virtual machine's share of the memory bandwidth changes by the minute, so plain
            # reads take turns with the engines that they are compared with. What else the machine
            # does can stop a read, or several, so the best one of the round counts.
            beside = length == min(workload.decode, default=min(workload.lengths))
            for name in [name for name in names if name not in self._team.left_out]:
                if beside:
                    settle()
                    reads.append(probe.measure())
                self._run(name, length, first=turn == 1)
                self._course.step(self._cost(name, length), f"round {turn}")
        self.probes.append(max(reads))

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
        self._seconds[name] = answer["prefill_seconds"] + answer["decode_seconds"]
        if counts and length in workload.decode:
            speed = new_tokens / answer["decode_seconds"]
            speeds[DECODE].setdefault(length, []).append(speed)
        if counts and length in workload.prefill:
            speeds[PREFILL].setdefault(length, []).append(length / answer["prefill_seconds"])

    def _choose(self) -> dict[int, list[str]]:
        """By context, the engines that continue after the pilot."""
        speeds = {name: self.speeds[name] for name in self._team.names}
        return {length: fastest(speeds, length) for length in self._plan.lengths}

    def _leave_out_slower_variants(self) -> None:
        """Keeps each library's fastest engine in the last run of the trial."""
        best: dict[str, str] = {}
        for name in sorted(self._team.names, key=lambda name: self._seconds[name]):
            faster = best.setdefault(kind(name).library, name)
            if faster != name:
                self._team.left_out[name] = f"was slower than {faster} in the trial"
                self._workers[name].close()

    def _fit(self, chosen: dict[int, list[str]], seconds: float) -> None:
        """Takes the slowest peers out of the longest contexts, until a round fits in the time.

        ort_aie_ep and the fastest peer of the trial stay, and so do the contexts of the trial.
        """
        peers = [name for name in self._team.names if kind(name).library != OURS]
        slowest = sorted(peers, key=lambda name: self._seconds[name], reverse=True)[:-1]
        beyond = [length for length in self._plan.lengths if length > max(self._plan.trial)]
        for length in reversed(beyond):
            for name in slowest:
                needed = self._course.seconds(self._of_round(chosen)) or 0.0
                if self._course.elapsed + needed <= seconds:
                    return
                chosen[length] = [other for other in chosen[length] if other != name]


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
