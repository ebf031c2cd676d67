"""All engines in interleaved rounds, so that other load on the machine affects all of them.

A round has every context, and at each of them every engine once: A B C D, then A B C D. Only one
engine works at a time. A first round, of the shorter contexts, touches pages, fills caches and does
not count. An engine that fails is left out with its reason, and the others continue.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np

from bench_peers.engines import KINDS, OURS, GgufSource, Model, Settings, Source
from bench_peers.machine import ReadProbe
from bench_peers.process import EngineError, Worker, one_line
from ort_aie_ep.errors import AieError

DECODE, PREFILL = PHASES = ("decode", "prefill")

# The longest context of the round that does not count.
_FIRST_TOKENS = 512
# Threads of the engine that has just answered may keep spinning for a while.
_SETTLE_SECONDS = 0.1

Note = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """Context lengths to decode and to prefill at, tokens to decode at each, rounds, and how the
    engines are opened."""

    decode: tuple[int, ...]
    prefill: tuple[int, ...]
    new_tokens: int
    rounds: int
    threads: int
    numerics: str | None = None

    @property
    def lengths(self) -> tuple[int, ...]:
        """All context lengths, ascending."""
        return tuple(sorted({*self.decode, *self.prefill}))

    @property
    def settings(self) -> Settings:
        """With room for the longest context and what is decoded there."""
        return Settings(self.threads, max(self.lengths) + self.new_tokens, self.numerics)


@dataclass
class Measured:
    """One engine's numbers: what it says of itself, its model, seconds to open it, the most bytes
    that its process had (0 if unknown), and tokens per second in each round, by phase and context.
    """

    engine: str
    model: Model
    settings: dict[str, str]
    load_seconds: float
    peak_bytes: int = 0
    speeds: dict[str, dict[int, list[float]]] = field(
        default_factory=lambda: {phase: {} for phase in PHASES}
    )


@dataclass
class Results:
    """Engines that ran to the end, ort_aie_ep first; by name, why others did not; bytes per second
    of the best plain read of memory in each round; and what is still to come, "" at the end."""

    measured: list[Measured]
    left_out: dict[str, str]
    reads: list[float]
    unfinished: str = ""


def measure(
    source: Source | GgufSource,
    plan: Plan,
    names: Sequence[str] = tuple(KINDS),
    note: Note = print,
    round_done: Callable[[Results], None] = lambda _: None,
) -> Results:
    """Makes every engine's model, opens all of them, and measures; `round_done` gets the results so
    far after each round.

    Raises:
        AieError: the plan exceeds the model's context, or ort_aie_ep fails.
    """
    results = Results([], {}, [], "before the first round")
    if plan.settings.capacity > source.context:
        raise AieError(
            f"{max(plan.lengths)} tokens and {plan.new_tokens} new ones exceed the model's context "
            f"of {source.context}"
        )
    with ExitStack() as stack:
        run = _Running(results, note, stack)
        for name in names:
            run.open(name, source, plan.settings)
        tokens = (
            np.random.default_rng(0).integers(0, source.vocabulary, plan.settings.capacity).tolist()
        )
        first = tuple(n for n in plan.lengths if n <= _FIRST_TOKENS) or plan.lengths[:1]
        for length in first:
            for measured in list(results.measured):
                run.once(measured, tokens[:length], 1)
        probe = ReadProbe(plan.threads)
        for turn in range(1, plan.rounds + 1):
            reads, taken = [], []
            for length in plan.lengths:
                note(f"round {turn} of {plan.rounds}, context {length}")
                new_tokens = plan.new_tokens if length in plan.decode else 0
                for measured in list(results.measured):
                    # A virtual machine's share of the memory bandwidth changes by the minute, so
                    # plain reads take turns with the engines. Something else may stop one of them,
                    # so the best one of a round counts.
                    if length == plan.lengths[0]:
                        time.sleep(_SETTLE_SECONDS)
                        reads.append(probe.measure())
                    answer = run.once(measured, tokens[:length], new_tokens)
                    if answer and new_tokens:
                        speed = new_tokens / answer["decode_seconds"]
                        taken.append((measured.speeds[DECODE], length, speed))
                    if answer and length in plan.prefill:
                        speed = length / answer["prefill_seconds"]
                        taken.append((measured.speeds[PREFILL], length, speed))
            # At once, so that a run that is interrupted has whole rounds.
            for speeds, length, speed in taken:
                speeds.setdefault(length, []).append(speed)
            results.reads.append(max(reads))
            results.unfinished = f"{turn} of {plan.rounds} rounds" if turn < plan.rounds else ""
            round_done(results)
    return results


class _Running:
    """The engines' processes, which end with the stack, or when their engine fails."""

    def __init__(self, results: Results, note: Note, stack: ExitStack) -> None:
        self._results, self._note, self._stack = results, note, stack
        self._workers: dict[str, Worker] = {}

    def open(self, name: str, source: Source | GgufSource, settings: Settings) -> None:
        """Writes the engine's model and opens it."""
        if missing := KINDS[name].missing():
            self._leave_out(name, missing)
            return
        self._note(f"opening {name}")
        try:
            try:
                model = KINDS[name].model(source)
            except Exception as error:  # every library has its own
                failure = f"failed to write its model: {type(error).__name__}: {error}"
                raise EngineError(name, one_line(failure)) from error
            worker = self._workers[name] = Worker(name)
            self._stack.callback(worker.close)
            opened = worker.open(model, settings)
        except EngineError as error:
            self._leave_out(name, error.reason)
            return
        self._results.measured.append(
            Measured(name, model, opened["settings"], opened["load_seconds"])
        )

    def once(
        self, measured: Measured, prompt: list[int], new_tokens: int
    ) -> dict[str, float] | None:
        """One prompt and the decoding after it; None if the engine fails."""
        time.sleep(_SETTLE_SECONDS)
        try:
            answer = self._workers[measured.engine].run(prompt, new_tokens)
        except EngineError as error:
            self._results.measured.remove(measured)
            self._leave_out(measured.engine, f"{error.reason} (context {len(prompt)})")
            return None
        measured.peak_bytes = answer["peak_bytes"]
        return answer

    def _leave_out(self, name: str, reason: str) -> None:
        if name == OURS:  # without it there is nothing to compare
            raise EngineError(name, reason)
        if name in self._workers:  # it may still have its model in memory, or busy threads
            self._workers[name].close()
        self._results.left_out[name] = reason
        self._note(f"{name} {reason}; the others go on")
