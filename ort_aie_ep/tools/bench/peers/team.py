"""The engines of a run: one that fails is left out with its reason, and the others continue."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from ort_aie_ep.progress import Count, Progress
from ort_aie_ep.tools.bench.peers.engines import OURS, Model, Source, kind
from ort_aie_ep.tools.bench.peers.process import EngineError, Setup, settle

Point = TypeVar("Point")
Taken = TypeVar("Taken")


class Course:
    """Counts steps, and says how long the rest will take; `note` is for what cannot wait."""

    def __init__(self, progress: Progress | None, note: Callable[[str], None]) -> None:
        self.note = note
        self._count = Count(progress, 0)
        self._started = self._told = time.perf_counter()
        self._done_then = 0

    def expect(self, steps: int) -> None:
        """`steps` steps are left."""
        self._count.total = self._count.done + steps

    def step(self, what: str) -> None:
        """One step is done."""
        self._count.what = what
        self._count.step()

    def tell(self, what: str, longer: float = 1.0) -> None:
        """Says what is done, and how long the rest will take if a step takes as long as the last
        ones did, or `longer` times as long."""
        now, done = time.perf_counter(), self._count.done
        pace = (now - self._told) / max(1, done - self._done_then)
        minutes = pace * longer * (self._count.total - done) / 60
        self._told, self._done_then = now, done
        spent = (now - self._started) / 60
        self.note(f"{what} done after {spent:.1f} min; about {minutes:.0f} min to go")


class Team:
    """The engines that still take part.

    Attributes:
        setup: the input of their processes.
        left_out: by engine's name, why it does not take part.
        retried: by engine's name, what it runs without, and why.
        partly: by engine's name, where it failed, if the rest of its numbers is valid.
    """

    def __init__(self, setup: Setup, left_out: dict[str, str], course: Course) -> None:
        self.setup = setup
        self.left_out = left_out
        self.retried: dict[str, str] = {}
        self.partly: dict[str, str] = {}
        self._course = course

    @property
    def names(self) -> list[str]:
        """Names of the engines that have not failed, ort_aie_ep first."""
        return [name for name in self.setup.models if name not in self.left_out]

    @contextmanager
    def excused(self, name: str, where: str, *, partly: bool = False) -> Iterator[None]:
        """A block whose failure leaves the engine out, or without this part of its numbers.

        Raises:
            EngineError: ort_aie_ep fails: without it, there is nothing to compare.
        """
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

        A round that does not count comes first, of the points `first`. An engine that fails, at a
        point that `where` describes, is left out of this part and given to `failed`.
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
    """A model for an engine.

    Raises:
        EngineError: a peer's library fails, in any way.
        Exception: ort_aie_ep fails; its exception is passed on.
    """
    try:
        return make(source)
    except Exception as error:
        if kind(name).library == OURS:
            raise
        raise EngineError(name, f"failed: {type(error).__name__}: {error}") from error
