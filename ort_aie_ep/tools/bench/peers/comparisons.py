"""Medians of the measurements, and ort_aie_ep against the best peer."""

from __future__ import annotations

from dataclasses import dataclass

from ort_aie_ep.tools.bench.peers.engines import COMPARED, CPU_EP, OURS, kind
from ort_aie_ep.tools.bench.peers.plan import DECODE, PHASES
from ort_aie_ep.tools.bench.peers.results import Measured, Results
from ort_aie_ep.tools.bench.peers.starts import STATES
from ort_aie_ep.tools.bench.peers.statistics import Interval, median, ratio


@dataclass(frozen=True)
class Cell:
    """One engine in one column.

    Attributes:
        engine: its name.
        phase: decode or prefill.
        length: context in tokens.
        speed: tokens per second.
        rounds: number of rounds that the speed is the median of.
    """

    engine: str
    phase: str
    length: int
    speed: Interval
    rounds: int


@dataclass(frozen=True)
class Ratio:
    """ort_aie_ep against the fastest peer in a column.

    Attributes:
        engine: which engine of ort_aie_ep.
        phase, length: the column.
        peer: the peer with the highest median.
        ratio: engine / peer, over rounds.
    """

    engine: str
    phase: str
    length: int
    peer: str
    ratio: Interval


@dataclass(frozen=True)
class Start:
    """One engine's starts from one state of the page cache, in seconds.

    Attributes:
        engine: its name.
        state: warm or cold.
        load: from the file to a ready session.
        first_token: from the start of the process to the first token.
    """

    engine: str
    state: str
    load: Interval
    first_token: Interval


@dataclass(frozen=True)
class StartRatio:
    """ort_aie_ep against the peer with the earliest first token.

    Attributes:
        state: warm or cold.
        peer: the peer with the lowest median.
        first_token: ort_aie_ep / peer, over turns.
        load: ort_aie_ep / ONNX Runtime's CPU EP, over turns; None without the CPU EP.
    """

    state: str
    peer: str
    first_token: Interval
    load: Interval | None


@dataclass(frozen=True)
class Bandwidth:
    """The bandwidth of an engine's weight reads while it decodes.

    Attributes:
        read: bytes per second.
        share: share of the probe's bandwidth in the same round, over rounds.
    """

    read: Interval
    share: Interval


def cells(results: Results) -> tuple[Cell, ...]:
    """The cells of every engine in every column that it was measured in."""
    return tuple(
        Cell(m.engine, phase, length, median(rounds), len(rounds))
        for m in results.measured
        for phase in PHASES
        for length, rounds in m.speeds[phase].items()
    )


def ratios(results: Results) -> tuple[Ratio, ...]:
    """For all columns and each compared engine of ort_aie_ep; none without a peer."""
    _, peers = sides(results)
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


def starts(results: Results) -> tuple[Start, ...]:
    """The starts of every engine, warm and cold."""
    return tuple(
        Start(
            m.engine,
            state,
            median(m.starts.load_seconds[state]),
            median(m.starts.first_token_seconds[state]),
        )
        for m in results.measured
        if m.starts is not None
        for state in STATES
    )


def start_ratios(results: Results) -> tuple[StartRatio, ...]:
    """Warm and cold; none without ort_aie_ep or without a peer."""
    ours, peers = sides(results)
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


def bandwidth(results: Results) -> dict[str, Bandwidth]:
    """By engine, at the shortest decoded context."""
    shortest = min((n for m in results.measured for n in m.speeds[DECODE]), default=0)
    found = {}
    for m in results.measured:
        read = [speed * m.weight_bytes for speed in m.speeds[DECODE].get(shortest, [])]
        if read:
            share = ratio(read, results.probes[: len(read)])
            found[m.engine] = Bandwidth(median(read), share)
    return found


def sides(results: Results) -> tuple[Measured | None, list[Measured]]:
    """(ort_aie_ep, the peers); ort_aie_ep with other types of keys and values is neither."""
    ours = next((m for m in results.measured if m.engine == OURS), None)
    return ours, [m for m in results.measured if kind(m.engine).library != OURS]
