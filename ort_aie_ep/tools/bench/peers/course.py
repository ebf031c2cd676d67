"""How far a run has come, and how long it will take."""

from __future__ import annotations

import time
from collections.abc import Iterable

from ort_aie_ep.tools.bench.peers import batches, growth, starts
from ort_aie_ep.tools.bench.peers.plan import Plan
from ort_aie_ep.tools.bench.peers.process import Progress


class Course:
    """Progress that counts its steps, and estimates when the rest will be done."""

    def __init__(self, plan: Plan, context: int, progress: Progress) -> None:
        """For a plan, and a model with room for `context` tokens."""
        self._plan = plan
        self._lengths = plan.growth_within(context)
        self._progress = progress
        self._done = 0
        self._started = time.perf_counter()

    def expect(self, steps: int, names: Iterable[str], parts: int = 0) -> None:
        """`steps` steps are left, and with engines `names` the `parts` after the rounds."""
        engines, plan = list(names), self._plan
        rest = (
            batches.steps(sum(map(batches.takes_part, engines)), plan.batches, plan.rounds),
            starts.steps(len(engines), plan.starts),
            growth.steps(self._lengths, plan.rounds),
        )
        self._progress.total(self._done + steps + sum(rest[parts:]))

    def step(self, what: str) -> None:
        """One step is done."""
        self._done += 1
        self._progress.step(what)

    def note(self, text: str) -> None:
        """Something worth knowing before the end."""
        self._progress.note(text)

    def total(self, steps: int) -> None:
        """`steps` steps are left; nothing is known about what comes after."""
        self._progress.total(self._done + steps)

    def left(self, what: str, seconds: float) -> None:
        """Says what was done, and how long the rest will take."""
        spent = (time.perf_counter() - self._started) / 60
        self.note(f"{what} done after {spent:.1f} min; about {seconds / 60:.0f} min to go")

    def rest_seconds(self, opened: dict[str, float], token: dict[str, float], ours: str) -> float:
        """Time for all after the rounds, from each engine's seconds to open and per token."""
        plan = self._plan
        rows = sum(2 * (1 + n / 4) * (batches.CALLS + 1) for n in plan.batches)
        several = sum(
            seconds + (plan.rounds + 1) * rows * token[name]
            for name, seconds in opened.items()
            if batches.takes_part(name)
        )
        starting = sum(opened.values()) * (1 + 2 * plan.starts) * 1.2
        growing = sum(growth.TOKENS * token[ours] * (1 + n / 8192) for n in self._lengths)
        return several + starting + (plan.rounds + 1) * growing
