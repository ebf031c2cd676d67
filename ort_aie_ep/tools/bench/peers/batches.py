"""The cost of several rows in a call, relative to one: a token of each of n sequences, or n of one.

The first is a batch of users, the second the verification of drafted tokens. Every call returns the
logits of all its rows, so the models used here have all logits.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace

from ort_aie_ep.tools.bench.peers.engines import Source, kind
from ort_aie_ep.tools.bench.peers.process import Progress, Worker, settle
from ort_aie_ep.tools.bench.peers.statistics import Interval, median
from ort_aie_ep.tools.bench.peers.team import Team, written

CONTEXT = 64
"""Tokens in each sequence before a call."""
CALLS = 4
"""Consecutive calls; their mean counts."""

SEQUENCES, TOKENS = SHAPES = ("sequences", "tokens of one")
"""The two things that a call can have n of."""


@dataclass(frozen=True)
class Batches:
    """Seconds of a call in each round, by engine, by shape, by n."""

    seconds: dict[str, dict[str, dict[int, list[float]]]]

    def cost(self, engine: str, shape: str, n: int) -> Interval | None:
        """Of a call with n rows relative to one row, within rounds; None if not measured."""
        rounds = self.seconds.get(engine, {}).get(shape, {})
        if n not in rounds or 1 not in rounds:
            return None
        return median([many / one for many, one in zip(rounds[n], rounds[1], strict=True)])


def steps(engines: int, sizes: tuple[int, ...], rounds: int) -> int:
    """Calls of `Progress.step` that `measure` makes."""
    return engines * (1 + (rounds + 1) * 2 * len(sizes)) if sizes else 0


def takes_part(name: str) -> bool:
    """Whether an engine has a model for this."""
    return kind(name).batch_model is not None


def measure(
    source: Source, team: Team, sizes: tuple[int, ...], rounds: int, progress: Progress
) -> Batches:
    """Measures all sizes and engines in interleaved rounds, after one that is not counted.

    Raises:
        EngineError: ort_aie_ep fails.
    """
    capacity = CONTEXT + (CALLS + 1) * max(sizes)
    settings = replace(team.setup.settings, capacity=capacity)
    opened: dict[str, Worker] = {}
    seconds: dict[str, dict[str, dict[int, list[float]]]] = {}
    with ExitStack() as stack:
        for name in team.names:
            make = kind(name).batch_model
            if make is None:
                continue
            with team.excused(name, "several rows in a call", partly=True):
                worker = stack.enter_context(Worker(name))
                models = {name: written(name, make, source)}
                worker.open(replace(team.setup, models=models, settings=settings))
                opened[name] = worker
                seconds[name] = {shape: {} for shape in SHAPES}
            progress.step(f"{name}: opened for batches")
        source.weights.release()
        for turn in range(rounds + 1):
            for n in sizes:
                for shape in SHAPES:
                    for name in [name for name in opened if name not in team.partly]:
                        rows = (n, 1) if shape == SEQUENCES else (1, n)
                        settle()
                        with team.excused(name, f"{n} {shape} in a call", partly=True):
                            taken = opened[name].batch_at(CONTEXT, *rows, CALLS)
                            if turn:
                                seconds[name][shape].setdefault(n, []).append(taken)
                        if name in team.partly:
                            opened[name].close()
                        progress.step(f"batches, round {turn}: {n} {shape}, {name}")
    return Batches({name: s for name, s in seconds.items() if name not in team.partly})
