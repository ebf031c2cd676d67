"""Medians of the measurements, ort_aie_ep against the best peer, and this project's goals.

A goal is met if the bound on its bad side meets it: the lower bound of a speed, the upper bound of
a cost. A value that was measured once, such as memory, is its own bound.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ort_aie_ep.models.files import write_json as write_file
from ort_aie_ep.tools.bench.peers.engines import COMPARED, CPU_EP, OURS, kind
from ort_aie_ep.tools.bench.peers.results import (
    COLD,
    DECODE,
    PHASES,
    PREFILL,
    SHAPES,
    STATES,
    STAYED,
    Growth,
    Measured,
    Results,
)
from ort_aie_ep.tools.bench.peers.workload import DECODE_LENGTHS, PREFILL_LENGTHS
from ort_aie_ep.tools.bench.statistics import RESAMPLES, Interval, median, ratio

# Least ort_aie_ep / best peer: for decoding at all contexts; for decoding at the long one, where
# the better engine of ort_aie_ep counts, because peers also have 8-bit keys and values; and for
# prompts, without AMX and with it.
DECODE_FACTOR, LONG_FACTOR, LONG = 1.4, 2.0, 4096
PREFILL_FACTOR, AMX_FACTOR = 1.3, 2.0
# Rows in a call, and its highest cost relative to a call with one row.
BATCH, BATCH_FACTOR = 4, 1.3
# Least ort_aie_ep / ONNX Runtime for a token of the demonstration model.
DEMONSTRATION_FACTOR = 2.0
# Least share of the memory's read bandwidth, at the shortest decoded context.
BANDWIDTH_SHARE = 0.9
# ort_aie_ep's time to load / ONNX Runtime's must be below it.
LOAD_FACTOR = 0.25
# Peak memory is at most the factor times the weights' files, plus the KV cache and these bytes.
MEMORY_FACTOR, MEMORY_BYTES = 1.1, 200_000_000
# Highest cost of a token of context / reading its keys and values once.
GROWTH_FACTOR = 1.2


@dataclass(frozen=True)
class Cell:
    """One engine's tokens per second in a column: the median of so many rounds."""

    engine: str
    phase: str
    length: int
    speed: Interval
    rounds: int


@dataclass(frozen=True)
class Ratio:
    """An engine of ort_aie_ep / the peer with the highest median in a column, over rounds."""

    engine: str
    phase: str
    length: int
    peer: str
    ratio: Interval


@dataclass(frozen=True)
class Start:
    """An engine's starts with the page cache in one state, in seconds: from the file to a ready
    session, and from the start of the process to the first token."""

    engine: str
    state: str
    load: Interval
    first_token: Interval


@dataclass(frozen=True)
class StartRatio:
    """ort_aie_ep / the peer with the earliest first token, over turns; and ort_aie_ep's time to
    load / that of ONNX Runtime's CPU EP, or None without it."""

    state: str
    peer: str
    first_token: Interval
    load: Interval | None


@dataclass(frozen=True)
class Bandwidth:
    """Bytes per second of weights that an engine reads while it decodes, and their share of the
    same round's best plain read."""

    read: Interval
    share: Interval


@dataclass(frozen=True)
class Fit:
    """Seconds per token = `start` + `slope` · context, by least squares over medians of rounds.

    `ratio`: slope / (KV bytes of a token / bytes read per second), with each round's own probe; 1
    is the time to read keys and values once at full bandwidth.
    """

    start: float
    slope: float
    ratio: Interval


@dataclass(frozen=True)
class Goal:
    """What is compared with what; the measured value, and its limit in the same unit ("" for a
    ratio); what the number consists of, and whether it is met. None if it was not measured."""

    what: str
    measured: Interval | None
    limit: float
    unit: str
    detail: str
    met: bool | None


@dataclass(frozen=True)
class PeersReport:
    """Speeds, starts, ratios, goals, and the measurements they come from; the bandwidth of each
    engine is at the shortest decoded context."""

    cells: tuple[Cell, ...]
    ratios: tuple[Ratio, ...]
    starts: tuple[Start, ...]
    start_ratios: tuple[StartRatio, ...]
    bandwidth: dict[str, Bandwidth]
    fit: Fit | None
    goals: tuple[Goal, ...]
    results: Results

    @property
    def columns(self) -> list[tuple[str, int]]:
        """(phase, length), sorted by length within a phase."""
        found = {(c.phase, c.length) for c in self.cells}
        return sorted(found, key=lambda c: (PHASES.index(c[0]), c[1]))


def report(results: Results) -> PeersReport:
    """Medians, bounds, ratios and goals of all measurements."""
    fit = fit_growth(results.growth) if results.growth else None
    ratios, start_ratios = _ratios_of(results), _start_ratios_of(results)
    bandwidth = _bandwidth_of(results)
    goals = (
        *_speed_goals(results, ratios), *_batch_goals(results), _demonstration_goal(results),
        _bandwidth_goal(results, bandwidth.get(OURS)), *_start_goals(results, start_ratios),
        _memory_goal(results), _growth_goal(results, fit),
    )  # fmt: skip
    cells = tuple(
        Cell(m.engine, phase, length, median(rounds), len(rounds))
        for m in results.measured
        for phase in PHASES
        for length, rounds in m.speeds[phase].items()
    )
    started = [(m.engine, m.starts) for m in results.measured if m.starts is not None]
    starts = tuple(
        Start(name, s, median(made.load_seconds[s]), median(made.first_token_seconds[s]))
        for name, made in started
        for s in STATES
    )
    return PeersReport(cells, ratios, starts, start_ratios, bandwidth, fit, goals, results)


def write_json(report: PeersReport, path: Path, settings: Mapping[str, Any]) -> None:
    """Writes everything, including each round's numbers and the `settings` of the run."""
    write_file(path, asdict(report) | dict(settings))


def _ratios_of(results: Results) -> tuple[Ratio, ...]:
    """For all columns and each compared engine of ort_aie_ep; none without a peer."""
    _, peers = _sides(results)
    found = []
    for ours in (m for m in results.measured if m.engine in COMPARED and peers):
        for phase in PHASES:
            for length, rounds in ours.speeds[phase].items():
                columns = {m.engine: m.speeds[phase].get(length, []) for m in peers}
                # Not an engine left out after the pilot, unless the one it lost to has failed.
                most = max(map(len, columns.values()))
                rivals = {name: r for name, r in columns.items() if len(r) == most}
                best = max(rivals, key=lambda name: median(rivals[name]).value)
                within = ratio(rounds[:most], rivals[best])
                found.append(Ratio(ours.engine, phase, length, best, within))
    return tuple(found)


def _start_ratios_of(results: Results) -> tuple[StartRatio, ...]:
    """Warm and cold; none without ort_aie_ep or without a peer."""
    ours, peers = _sides(results)
    by_name = {m.engine: m.starts for m in peers if m.starts is not None}
    if ours is None or ours.starts is None or not by_name:
        return ()
    found = []
    for state in STATES:
        first = {name: s.first_token_seconds[state] for name, s in by_name.items()}
        best = min(first, key=lambda name: median(first[name]).value)
        load = None
        if CPU_EP in by_name:
            theirs = by_name[CPU_EP].load_seconds[state]
            load = ratio(ours.starts.load_seconds[state], theirs)
        first_token = ratio(ours.starts.first_token_seconds[state], first[best])
        found.append(StartRatio(state, best, first_token, load))
    return tuple(found)


def _bandwidth_of(results: Results) -> dict[str, Bandwidth]:
    """By engine, at the shortest decoded context."""
    shortest = min((n for m in results.measured for n in m.speeds[DECODE]), default=0)
    found = {}
    for m in results.measured:
        read = [speed * m.weight_bytes for speed in m.speeds[DECODE].get(shortest, [])]
        if read:
            share = ratio(read, results.probes[: len(read)])
            found[m.engine] = Bandwidth(median(read), share)
    return found


def fit_growth(growth: Growth) -> Fit:
    """The line through the medians, and how its slope compares with reading the cache once."""
    lengths = np.array(list(growth.seconds), np.float64)
    rounds = np.array(list(growth.seconds.values()))  # (lengths, rounds)

    def line(values: npt.NDArray[np.float64]) -> tuple[float, float]:
        slope, start = np.polyfit(lengths, np.median(values, axis=1), 1)
        return float(slope), float(start)

    slope, start = line(rounds)
    # In bytes that could have been read in the meantime, relative to the cache's bytes.
    relative = rounds * np.array(growth.read_bytes_per_second) / growth.cache_bytes
    # Whatever slows a round slows all lengths, so whole rounds are resampled.
    picks = np.random.default_rng(0).integers(0, rounds.shape[1], (RESAMPLES, rounds.shape[1]))
    low, high = np.percentile([line(relative[:, pick])[0] for pick in picks], (2.5, 97.5))
    return Fit(start, slope, Interval(line(relative)[0], float(low), float(high)))


def _sides(results: Results) -> tuple[Measured | None, list[Measured]]:
    """(ort_aie_ep, the peers); ort_aie_ep with other types of keys and values is neither."""
    ours = next((m for m in results.measured if m.engine == OURS), None)
    return ours, [m for m in results.measured if kind(m.engine).library != OURS]


def _goal(
    what: str,
    measured: Interval | None,
    wanted: Callable[[float, float], bool],
    limit: float,
    detail: str = "",
    unit: str = "",
) -> Goal:
    met = None
    if measured is not None:
        worst = measured.low if wanted in (operator.gt, operator.ge) else measured.high
        met = wanted(worst, limit)
    return Goal(what, measured, limit, unit, detail, met)


def _speed_goals(results: Results, ratios: Sequence[Ratio]) -> Iterator[Goal]:
    found = {(r.phase, r.length): r for r in ratios if r.engine == OURS}
    worst = min(found.values(), key=lambda r: r.ratio.low, default=None)
    detail = f"× {worst.peer}, {worst.phase} at {worst.length}, the lowest" if worst else ""
    least = worst.ratio if worst else None
    yield _goal("ahead of the best peer in every column", least, operator.gt, 1, detail)
    wanted = {(DECODE, n) for n in DECODE_LENGTHS} | {(PREFILL, n) for n in PREFILL_LENGTHS}
    for phase, length in sorted(found.keys() | wanted):
        amx = phase == PREFILL and results.amx
        factor = DECODE_FACTOR if phase == DECODE else AMX_FACTOR if amx else PREFILL_FACTOR
        what = f"{phase} at {length}: at least {factor:g} × the best peer"
        r = found.get((phase, length))
        interval, detail = (r.ratio, f"× {r.peer}") if r else (None, "")
        yield _goal(what + " (AMX)" * amx, interval, operator.ge, factor, detail)
    far = [r for r in ratios if (r.phase, r.length) == (DECODE, LONG)]
    best = max(far, key=lambda r: r.ratio.value, default=None)
    interval, detail = (best.ratio, f"× {best.peer}, {best.engine}") if best else (None, "")
    what = f"{DECODE} at {LONG}, KV of any type: at least {LONG_FACTOR:g} × the best peer"
    yield _goal(what, interval, operator.ge, LONG_FACTOR, detail)


def _batch_goals(results: Results) -> Iterator[Goal]:
    for shape in SHAPES:
        cost = results.batches.cost(OURS, shape, BATCH) if results.batches else None
        what = f"{BATCH} {shape} in a call: at most {BATCH_FACTOR} × a call with one"
        yield _goal(what, cost, operator.le, BATCH_FACTOR)


def _demonstration_goal(results: Results) -> Goal:
    what = f"a token of the demonstration model: at least {DEMONSTRATION_FACTOR:g} × {CPU_EP}'s"
    c = results.demonstration
    ratio = Interval(c.ratio.median, c.ratio.least, c.ratio.most) if c else None
    detail = "the least and the most of all runs in brackets" if c else ""
    return _goal(what, ratio, operator.ge, DEMONSTRATION_FACTOR, detail)


def _bandwidth_goal(results: Results, reached: Bandwidth | None) -> Goal:
    what = f"decode at the shortest context: at least {BANDWIDTH_SHARE:.0%} of the read bandwidth"
    s = reached.share if reached else None
    share = Interval(100 * s.value, 100 * s.low, 100 * s.high) if s else None
    detail = f"of {_usual(results.probes)} GB/s, counting only the Q4NX bytes of a token"
    return _goal(what, share, operator.ge, BANDWIDTH_SHARE * 100, detail, "%")


def _start_goals(results: Results, ratios: Sequence[StartRatio]) -> Iterator[Goal]:
    found = {r.state: r for r in ratios}
    kept = max((m.starts.kept for m in results.measured if m.starts), default=0.0)
    for state in STATES:
        r, to_load, to_first = found.get(state), "", ""
        if state == COLD and kept > STAYED:
            r, to_load = None, f"not cold: up to {kept:.0%} of a model stayed in memory"
            to_first = to_load
        elif r:
            to_load, to_first = f"× {CPU_EP}", f"× {r.peer}"
        load, first = (r.load, r.first_token) if r else (None, None)
        what = f"session load, {state}: under {LOAD_FACTOR} × ONNX Runtime's"
        yield _goal(what, load, operator.lt, LOAD_FACTOR, to_load)
        what = f"process start to first token, {state}: ahead of every peer"
        yield _goal(what, first, operator.lt, 1, to_first)


def _memory_goal(results: Results) -> Goal:
    what = f"peak memory: at most {MEMORY_FACTOR} × weights + KV cache + {MEMORY_BYTES // 10**6} MB"
    ours, _ = _sides(results)
    if ours is None or not ours.memory["peak"]:
        return _goal(what, None, operator.le, 0)
    peak, anonymous, files = (ours.memory[part] / 1e6 for part in ("peak", "anonymous", "files"))
    weights, cache = ours.file_bytes / 1e6, results.cache_bytes / 1e6
    bound = MEMORY_FACTOR * weights + cache + MEMORY_BYTES / 1e6
    detail = (
        f"VmHWM; at the end {anonymous:.0f} anonymous, {files:.0f} of files. Limit {bound:.0f}: "
        f"weights {weights:.0f}, KV cache of {results.capacity} tokens {cache:.0f}"
    )
    return _goal(what, Interval(peak, peak, peak), operator.le, bound, detail, "MB")


def _growth_goal(results: Results, fit: Fit | None) -> Goal:
    what = f"cost of context: at most {GROWTH_FACTOR} × KV bytes / read bandwidth"
    if fit is None or results.growth is None:
        return _goal(what, None, operator.le, GROWTH_FACTOR)
    lengths = results.growth.seconds
    detail = (
        f"{fit.slope * 1e9:.0f} ns a token of context, fitted from {min(lengths)} to "
        f"{max(lengths)}; {results.growth.cache_bytes} bytes at "
        f"{_usual(results.growth.read_bytes_per_second)} GB/s"
    )
    return _goal(what, fit.ratio, operator.le, GROWTH_FACTOR, detail)


def _usual(probes: Sequence[float]) -> str:
    """GB/s in the median round."""
    return f"{median(probes).value / 1e9:.1f}" if probes else "0"
