"""Speeds: a trial of the shorter contexts, then rounds of all contexts."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial

from ort_aie_ep.tools.bench.peers.bandwidth import ReadProbe
from ort_aie_ep.tools.bench.peers.course import Course
from ort_aie_ep.tools.bench.peers.engines import OURS, kind
from ort_aie_ep.tools.bench.peers.plan import DECODE, PILOT_MARGIN, PREFILL, Plan
from ort_aie_ep.tools.bench.peers.process import EngineError, Worker, settle
from ort_aie_ep.tools.bench.peers.results import Speeds
from ort_aie_ep.tools.bench.peers.team import Team

# Cost of a prompt's token at a long context relative to a short one, to estimate the total time.
_SLOWER = 1.3


@dataclass
class Opened:
    """A worker whose engine is open, and its measurements so far.

    Attributes:
        worker: the worker.
        settings: the settings that the engine reports.
        open_seconds: from the start of its process until it was open.
        memory: memory at the end of the last measurement.
        speeds: speeds of the rounds that count.
        seconds: seconds of the last prompt and of its decoding, by context.
    """

    worker: Worker
    settings: dict[str, str]
    open_seconds: float
    memory: dict[str, int] = field(default_factory=dict)
    speeds: Speeds = field(default_factory=lambda: {DECODE: {}, PREFILL: {}})
    seconds: dict[int, tuple[float, float]] = field(default_factory=dict)


class Rounds:
    """The rounds of all engines, which stay open from the first to the last.

    Attributes:
        opened: by engine's name.
        probes: bytes per second that a read of memory reached in each round that counts.
    """

    def __init__(self, plan: Plan, team: Team, course: Course) -> None:
        self.opened: dict[str, Opened] = {}
        self.probes: list[float] = []
        self._plan, self._team, self._course = plan, team, course

    def run(self, round_done: Callable[[str], None]) -> None:
        """Runs all rounds; calls `round_done` with a round's name after each one that counts.

        Raises:
            EngineError: ort_aie_ep fails.
        """
        plan, names = self._plan, self._team.names
        runs = len(plan.trial) + plan.rounds * len(plan.lengths)
        self._course.expect(len(names) * (1 + runs), names)
        with ExitStack() as stack:
            for name in names:
                with self._team.excused(name, "opening its model"):
                    opening = partial(self._open, name, stack)
                    self._retrying(name, opening, opening)
                self._course.step(f"{name}: opened")
            for length in plan.trial:
                for name in self._team.names:
                    self._run(name, length, stack, counts=False)
                    self._course.step(f"trial, context {length}: {name}")
            self._course.left("trial", plan.rounds * self._round_seconds() + self._rest_seconds())
            self._count(stack, round_done)

    def _count(self, stack: ExitStack, round_done: Callable[[str], None]) -> None:
        """Runs the rounds that count."""
        plan, course = self._plan, self._course
        chosen = {length: self._team.names for length in plan.lengths}
        probe = ReadProbe(plan.threads)
        for turn in range(1, plan.rounds + 1):
            started = time.perf_counter()
            for length, names in chosen.items():
                for name in [name for name in names if name not in self._team.left_out]:
                    self._run(name, length, stack, first=turn == 1)
                    course.step(f"round {turn}, context {length}: {name}")
                # A virtual machine's share of the memory bandwidth changes by the minute, so the
                # probe is measured next to the speeds it is compared with.
                if length == min(plan.decode, default=min(plan.lengths)):
                    settle()
                    bandwidth = probe.measure()
            self.probes.append(bandwidth)
            seconds = time.perf_counter() - started
            left = plan.rounds - turn
            if turn == plan.pilot and left:
                chosen = self._choose()
                runs = sum(map(len, chosen.values()))
                course.expect(left * runs, self._team.names)
                seconds = self._round_seconds(chosen)
            course.left(f"round {turn} of {plan.rounds}", left * seconds + self._rest_seconds())
            round_done(f"round {turn} of {plan.rounds}")

    def _open(self, name: str, stack: ExitStack) -> None:
        worker = stack.enter_context(Worker(name))
        settings = worker.open(self._team.setup)["settings"]
        if name in self._team.retried:
            settings["without"] = self._team.retried[name]
        self.opened[name] = Opened(worker, settings, worker.seconds())

    def _run(
        self, name: str, length: int, stack: ExitStack, *, counts: bool = True, first: bool = False
    ) -> None:
        """One measurement.

        In the trial and in the `first` round, an engine that fails may be retried once without a
        feature; measurements with that feature then do not count.
        """
        lengths = [n for n in self._plan.lengths if n <= length] if counts else [length]

        def again() -> None:
            self.opened[name].worker.close()
            self._open(name, stack)
            for n in lengths:
                self._record(name, n, counts)

        with self._team.excused(name, f"context {length}"):
            if counts and not first:
                self._record(name, length, counts)
            else:
                self._retrying(name, lambda: self._record(name, length, counts), again)
        if name in self._team.left_out:
            # A failed engine may still have its model in memory, or busy threads.
            self.opened[name].worker.close()

    def _retrying(self, name: str, work: Callable[[], None], again: Callable[[], None]) -> None:
        try:
            work()
        except EngineError as error:
            if not self._team.retry(name, error):
                raise
            again()

    def _record(self, name: str, length: int, counts: bool) -> None:
        settle()
        plan, engine = self._plan, self.opened[name]
        # One prompt serves both phases.
        new_tokens = plan.new_tokens if length in plan.decode else 0
        answer = engine.worker.run(length, new_tokens)
        engine.memory = answer["memory"]
        prefill, decode = answer["prefill_seconds"], answer["decode_seconds"]
        engine.seconds[length] = prefill, decode
        if counts and length in plan.decode:
            engine.speeds[DECODE].setdefault(length, []).append(new_tokens / decode)
        if counts and length in plan.prefill:
            engine.speeds[PREFILL].setdefault(length, []).append(length / prefill)

    def _choose(self) -> dict[int, list[str]]:
        """By context, the engines that continue after the pilot."""
        speeds = {name: self.opened[name].speeds for name in self._team.names}
        chosen = {length: fastest(speeds, length) for length in self._plan.lengths}
        for length, names in chosen.items():
            for name in (n for n in speeds if n not in names):
                faster = [n for n in names if kind(n).library == kind(name).library]
                self._course.note(
                    f"context {length}: {name} is left out, slower than {', '.join(faster)}"
                )
        return chosen

    def _round_seconds(self, chosen: Mapping[int, list[str]] | None = None) -> float:
        """Time for a round, from the last measurements; untried contexts use the longest one's."""
        whole = 0.0
        for name in self._team.names:
            seconds = self.opened[name].seconds
            longest = max(seconds)
            for length in self._plan.lengths:
                if chosen is not None and name not in chosen[length]:
                    continue
                prefill, decode = seconds.get(length, seconds[longest])
                if length not in seconds:
                    prefill *= length / longest * _SLOWER
                whole += prefill + decode
        return whole

    def _rest_seconds(self) -> float:
        """Time for the parts after the rounds, from the last measurements."""
        names = self._team.names
        token = {}
        for name in names:
            length, (prefill, decode) = min(self.opened[name].seconds.items())
            token[name] = decode / self._plan.new_tokens if decode else prefill / length
        opened = {name: self.opened[name].open_seconds for name in names}
        return self._course.rest_seconds(opened, token, OURS)


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
