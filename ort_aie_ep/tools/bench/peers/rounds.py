"""Speeds: a trial of the shorter contexts, then rounds of all contexts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack

from ort_aie_ep.tools.bench.memory import ReadProbe
from ort_aie_ep.tools.bench.peers.engines import OURS, kind
from ort_aie_ep.tools.bench.peers.plan import PILOT_MARGIN, PILOT_ROUNDS, Plan
from ort_aie_ep.tools.bench.peers.process import EngineError, Worker, settle
from ort_aie_ep.tools.bench.peers.results import DECODE, PREFILL, Speeds
from ort_aie_ep.tools.bench.peers.team import Course, Team


class Rounds:
    """The rounds of all engines, which stay open from the first to the last.

    Attributes:
        settings, memory, speeds: by engine's name, as in `Measured`.
        probes: bytes per second that a read of memory reached in each round that counts.
    """

    def __init__(
        self, plan: Plan, team: Team, course: Course, later: Callable[[list[str]], int]
    ) -> None:
        """`later` says how many steps follow the rounds with the engines that are left."""
        self.settings: dict[str, dict[str, str]] = {}
        self.memory: dict[str, dict[str, int]] = {}
        self.speeds: dict[str, Speeds] = {}
        self.probes: list[float] = []
        self._plan, self._team, self._course, self._later = plan, team, course, later
        self._workers: dict[str, Worker] = {}
        self._stack = ExitStack()

    def run(self, round_done: Callable[[str], None]) -> None:
        """Runs all rounds; calls `round_done` with a round's name after each one that counts.

        Raises:
            EngineError: ort_aie_ep fails.
        """
        plan, names = self._plan, self._team.names
        self._expect(len(names) * (1 + len(plan.trial) + plan.rounds * len(plan.lengths)))
        with self._stack:
            for name in names:
                with self._team.excused(name, "opening its model"):
                    self._retrying(name, self._open, self._open)
                self._course.step(f"{name}: opened")
            for length in plan.trial:
                for name in self._team.names:
                    self._run(name, length, trial=True)
                    self._course.step(f"trial, context {length}: {name}")
            # A prompt takes most of the time, in proportion to its length or more.
            mean, tried = (sum(n) / len(n) for n in (plan.lengths, plan.trial))
            self._course.tell("trial", mean / tried)
            chosen = {length: self._team.names for length in plan.lengths}
            probe = ReadProbe(plan.threads)
            for turn in range(1, plan.rounds + 1):
                self._round(turn, chosen, probe)
                left = plan.rounds - turn
                if turn == PILOT_ROUNDS and left:
                    chosen = self._choose()
                    self._expect(left * sum(map(len, chosen.values())))
                self._course.tell(f"round {turn} of {plan.rounds}")
                round_done(f"round {turn} of {plan.rounds}")

    def _round(self, turn: int, chosen: Mapping[int, list[str]], probe: ReadProbe) -> None:
        plan = self._plan
        for length, names in chosen.items():
            for name in [name for name in names if name not in self._team.left_out]:
                self._run(name, length, first=turn == 1)
                self._course.step(f"round {turn}, context {length}: {name}")
            # A virtual machine's share of the memory bandwidth changes by the minute, so the
            # probe is measured next to the speeds it is compared with.
            if length == min(plan.decode, default=min(plan.lengths)):
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

        def record(name: str) -> None:
            self._record(name, length, counts=not trial)

        def again(name: str) -> None:
            self._workers[name].close()
            self._open(name)
            for n in [length] if trial else [n for n in self._plan.lengths if n <= length]:
                self._record(name, n, counts=not trial)

        with self._team.excused(name, f"context {length}"):
            if trial or first:
                self._retrying(name, record, again)
            else:
                record(name)
        if name in self._team.left_out:
            # A failed engine may still have its model in memory, or busy threads.
            self._workers[name].close()

    def _retrying(
        self, name: str, work: Callable[[str], None], again: Callable[[str], None]
    ) -> None:
        try:
            work(name)
        except EngineError as error:
            if not self._team.retry(name, error):
                raise
            again(name)

    def _record(self, name: str, length: int, *, counts: bool) -> None:
        settle()
        plan, speeds = self._plan, self.speeds[name]
        # One prompt serves both phases.
        new_tokens = plan.new_tokens if length in plan.decode else 0
        answer = self._workers[name].run(length, new_tokens)
        self.memory[name] = answer["memory"]
        if counts and length in plan.decode:
            speed = new_tokens / answer["decode_seconds"]
            speeds[DECODE].setdefault(length, []).append(speed)
        if counts and length in plan.prefill:
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

    def _expect(self, steps: int) -> None:
        """`steps` steps of the rounds are left, and those after the rounds."""
        self._course.expect(steps + self._later(self._team.names))


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
