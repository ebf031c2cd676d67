"""Measuring engines in turns: starts, then speeds in rounds, then the growth of ours with context.

A round is every measurement of every engine once (A B C D at one context, A B C D at the next), so
that whatever else the machine does meets all of them. Only one engine works at a time. After the
first rounds, the pilot, of a library that has several ways to run the model those clearly slower
at a context are left out of that context.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from ort_aie_ep.errors import AieError
from ort_aie_ep.runtime.sessions import inspect
from ort_aie_ep.tools.bench.peers import growth, starts
from ort_aie_ep.tools.bench.peers.bandwidth import ReadProbe
from ort_aie_ep.tools.bench.peers.engine import Settings
from ort_aie_ep.tools.bench.peers.engines import KINDS, OURS, Source, kind
from ort_aie_ep.tools.bench.peers.growth import Growth
from ort_aie_ep.tools.bench.peers.process import FIRST_PROMPT, Progress, Setup, Worker, settle
from ort_aie_ep.tools.bench.peers.starts import Starts
from ort_aie_ep.tools.bench.peers.weights import LlamaWeights

# What is measured unless a user chooses otherwise.
DECODE_LENGTHS = (64, 512, 2048, 4096)
PREFILL_LENGTHS = (512, 2048, 4096)
ROUNDS = 7
STARTS = 5

PILOT_ROUNDS = 2
"""Rounds with all ways; the faster of them counts, since another process can only slow one down."""
PILOT_MARGIN = 0.05
"""A way that comes this close to its library's fastest in the pilot stays: it may be the faster."""

DECODE, PREFILL = PHASES = ("decode", "prefill")

Speeds = dict[str, dict[int, list[float]]]
"""Tokens per second of each round, by phase (decode, prefill) and context in tokens."""


@dataclass(frozen=True)
class Plan:
    """What to measure.

    Attributes:
        decode, prefill: context lengths in tokens.
        new_tokens: tokens decoded at each length.
        rounds: of all, after one that is not counted: it touches pages and fills caches.
        starts: of each engine, warm and cold each.
        threads: of each engine.
        options: of ours, such as numerics.
        growth: total lengths in tokens to fit the cost of context over; empty for none.
    """

    decode: tuple[int, ...]
    prefill: tuple[int, ...]
    new_tokens: int
    rounds: int
    starts: int
    threads: int
    options: dict[str, str]
    growth: tuple[int, ...] = growth.LENGTHS

    @property
    def lengths(self) -> tuple[int, ...]:
        """All context lengths, ascending."""
        return tuple(sorted({*self.decode, *self.prefill}))

    @property
    def capacity(self) -> int:
        """Tokens that a cache must hold."""
        return max(FIRST_PROMPT, *self.lengths) + self.new_tokens

    def growth_within(self, context: int) -> tuple[int, ...]:
        """Of the lengths to fit over, those that a model has room for; none if they fit no line."""
        lengths = tuple(n for n in self.growth if n <= context)
        return lengths if len(lengths) > 1 else ()

    def steps(self, engines: int, context: int, runs: int | None = None) -> int:
        """Calls of `Progress.step` that `measure` makes.

        `runs` are measurements of a round after the pilot; unless given, all are made.
        """
        all_runs = engines * len(self.lengths)
        pilot = min(PILOT_ROUNDS, self.rounds)
        return (
            2 * engines  # models are written and opened
            + starts.steps(engines, self.starts)
            + (1 + pilot) * all_runs
            + (self.rounds - pilot) * (all_runs if runs is None else runs)
            + growth.steps(self.growth_within(context), self.rounds)
        )


@dataclass(frozen=True)
class Measured:
    """One engine's numbers.

    Attributes:
        engine: its name.
        settings: by its own account.
        bits: mean bits of a weight, scales included.
        weight_bytes: read for each decoded token.
        file_bytes: of the files that hold weights.
        starts: from the start of a process to its first token.
        memory: bytes at the end of the rounds: `peak` (VmHWM, mapped files included), of which
            there are `anonymous` and `files` at that time; 0 where unknown.
        speeds: of each round, or of the pilot alone where another way was clearly faster.
    """

    engine: str
    settings: dict[str, str]
    bits: float
    weight_bytes: int
    file_bytes: int
    starts: Starts
    memory: dict[str, int]
    speeds: Speeds


@dataclass(frozen=True)
class Results:
    """All engines, ours first.

    Attributes:
        measured: engines that ran.
        left_out: by engine's name, why it did not run and how to get it.
        probes: bytes per second that a read of memory reached in each round, right after the
            shortest decoded context.
        cache_bytes: of keys and values of `capacity` tokens in float16.
        capacity: tokens that the engines had to make room for.
        growth: of ours, or None where it was not measured.
    """

    measured: tuple[Measured, ...]
    left_out: dict[str, str]
    probes: list[float]
    cache_bytes: int
    capacity: int
    growth: Growth | None = None

    @property
    def rounds(self) -> int:
        """Of all engines and contexts that were not left out after the pilot."""
        return len(self.probes)


def available(names: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """(engines that can run, how to get what the others lack)."""
    missing = {name: kind(name).missing() for name in names}
    absent = {name: text for name, text in missing.items() if text is not None}
    return [name for name in names if name not in absent], absent


def open_source(model: Path, scratch: Path) -> Source:
    """What all engines' models are made from.

    Raises:
        AieError: the folder is compiled, or holds a model that the peers cannot be given.
    """
    found = inspect(model)
    if found.compiled:
        raise AieError(f"{model} is compiled; the peers need the model that it was made from")
    return Source(found.folder, LlamaWeights(found.folder), scratch)


def physical_cores() -> int:
    """Cores that this process may use, siblings of a core counted once."""
    cores = set()
    for cpu in os.sched_getaffinity(0):
        topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        cores.add(topology.read_text() if topology.is_file() else str(cpu))
    return len(cores)


def measure(
    source: Source, plan: Plan, progress: Progress, names: Sequence[str] = tuple(KINDS)
) -> Results:
    """Makes every engine's model and measures starts, rounds, and growth.

    Raises:
        AieError: the plan exceeds the model's context, or an engine fails.
    """
    context = source.weights.sizes.context
    if plan.capacity > context:
        raise AieError(
            f"{max(plan.lengths)} tokens and {plan.new_tokens} new ones exceed the model's context "
            f"of {context}"
        )
    ready, left_out = available(names)
    progress.total(plan.steps(len(ready), context))
    models = {}
    for name in ready:
        models[name] = kind(name).model(source)
        progress.step(f"{name}: model written")
    # What this process has mapped stays in memory when it should not, for cold starts.
    source.weights.release()
    settings = Settings(plan.threads, plan.capacity, plan.options)
    setup = Setup(models, settings, source.weights.sizes.vocabulary)
    started = starts.measure(setup, plan.starts, progress)
    with ExitStack() as stack:
        opened = {}
        for name in models:
            worker = stack.enter_context(Worker(name))
            opened[name] = _Opened(worker, worker.open(setup)["settings"])
            progress.step(f"{name}: opened")
        probes = _rounds(opened, plan, context, progress)
    grown, lengths = None, plan.growth_within(context)
    if lengths and OURS in models:
        cache_bytes = source.weights.cache_bytes(1)
        grown = growth.measure(setup, lengths, plan.rounds, cache_bytes, progress)
    measured = tuple(
        Measured(
            name,
            engine.settings,
            models[name].bits,
            models[name].weight_bytes,
            models[name].file_bytes,
            started[name],
            engine.memory,
            engine.speeds,
        )
        for name, engine in opened.items()
    )
    cache_bytes = source.weights.cache_bytes(plan.capacity)
    return Results(measured, left_out, probes, cache_bytes, plan.capacity, grown)


@dataclass
class _Opened:
    """A worker whose engine is open, and what was measured of it so far."""

    worker: Worker
    settings: dict[str, str]
    memory: dict[str, int] = field(default_factory=dict)
    speeds: Speeds = field(default_factory=lambda: {DECODE: {}, PREFILL: {}})


def _rounds(
    opened: Mapping[str, _Opened], plan: Plan, context: int, progress: Progress
) -> list[float]:
    """All rounds; bytes per second that the probe read in each that counts."""
    chosen = {length: list(opened) for length in plan.lengths}
    probe, read = ReadProbe(plan.threads), []
    for turn in range(plan.rounds + 1):
        for length, names in chosen.items():
            for name in names:
                for phase, speed in _run(opened[name], length, plan).items():
                    if turn:
                        opened[name].speeds[phase].setdefault(length, []).append(speed)
                progress.step(f"round {turn}, context {length}: {name}")
            # A virtual machine's share of the memory changes by the minute: what is compared with
            # the probe is measured beside it.
            if length == min(plan.decode, default=min(plan.lengths)):
                settle()
                bandwidth = probe.measure()
        if turn:
            read.append(bandwidth)
        if turn == PILOT_ROUNDS < plan.rounds:
            speeds = {name: engine.speeds for name, engine in opened.items()}
            chosen = {length: fastest(speeds, length) for length in plan.lengths}
            for length, names in chosen.items():
                for name in (n for n in opened if n not in names):
                    faster = [n for n in names if kind(n).library == kind(name).library]
                    progress.note(
                        f"context {length}: {name} is left out, slower than {', '.join(faster)}"
                    )
            progress.total(plan.steps(len(opened), context, sum(map(len, chosen.values()))))
    return read


def _run(engine: _Opened, length: int, plan: Plan) -> dict[str, float]:
    """Tokens per second by phase, of those that the plan has at that length."""
    settle()
    # One prompt serves both phases.
    new_tokens = plan.new_tokens if length in plan.decode else 0
    answer = engine.worker.run(length, new_tokens)
    engine.memory = answer["memory"]
    speeds = {}
    if length in plan.decode:
        speeds[DECODE] = new_tokens / answer["decode_seconds"]
    if length in plan.prefill:
        speeds[PREFILL] = length / answer["prefill_seconds"]
    return speeds


def fastest(speeds: Mapping[str, Speeds], length: int) -> list[str]:
    """Engines to go on with at a context: ours, and of each peer its fastest way in any phase."""
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
