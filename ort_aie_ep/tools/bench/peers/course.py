"""How far a run is, and how long the rest takes, by what each kind of step has taken so far."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import mean

from ort_aie_ep.progress import Count, Progress


@dataclass(frozen=True)
class Cost:
    """What a step costs: as much as the equal steps before it.

    Attributes:
        engine, what: the engine, and what it does.
        tokens: a guess for the first of its kind, in tokens of a prompt; 0 for steps that come
            before all prompts, and so tell nothing about them.
    """

    engine: str
    what: str
    tokens: float = 0.0


class Course:
    """Counts and times steps. `note` is for what cannot wait, `left` is told the seconds left."""

    def __init__(
        self,
        progress: Progress | None,
        note: Callable[[str], None],
        left: Callable[[float], None] = lambda _: None,
    ) -> None:
        self.note, self._left = note, left
        self._count = Count(progress, 0)
        self._rest: Counter[Cost] = Counter()
        self._taken: dict[Cost, list[float]] = {}
        self._started = self._since = time.perf_counter()

    @property
    def elapsed(self) -> float:
        """Seconds since the run began."""
        return time.perf_counter() - self._started

    def expect(self, rest: Iterable[Cost]) -> None:
        """Sets the steps that are left."""
        self._rest = Counter(rest)
        self._count.total = self._count.done + self._rest.total()

    def step(self, cost: Cost, when: str = "") -> None:
        """Counts a step as done."""
        now = time.perf_counter()
        self._taken.setdefault(cost, []).append(now - self._since)
        self._since = now
        self._rest[cost] -= 1
        self._count.what = f"{', '.join(filter(None, (cost.what, when)))}: {cost.engine}"
        self._count.step()
        left = self.seconds((+self._rest).elements())
        if left is not None:
            self._left(left)

    def seconds(self, costs: Iterable[Cost]) -> float | None:
        """Seconds that steps take; None before the first step that has a guess."""
        taken = {cost: mean(seconds) for cost, seconds in self._taken.items()}
        guessed = [cost for cost in taken if cost.tokens]
        if not guessed:
            return None
        token = sum(taken[cost] for cost in guessed) / sum(cost.tokens for cost in guessed)
        return sum(taken.get(cost, cost.tokens * token) for cost in costs)
