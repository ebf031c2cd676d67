"""The cost of a token of context when decoding: a fit of seconds per token against context.

This measures only ort_aie_ep with float16 keys and values. Nothing is prefilled, because attention
takes as long over random numbers as over a text. Not all peers allow that, and a real prompt of
32768 tokens would take each of them minutes in every round.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ort_aie_ep.tools.bench.peers.bandwidth import ReadProbe
from ort_aie_ep.tools.bench.peers.engines import OURS
from ort_aie_ep.tools.bench.peers.process import Progress, Setup, Worker, settle
from ort_aie_ep.tools.bench.peers.statistics import RESAMPLES, Interval

LENGTHS = (512, 2048, 4096, 8192, 16384, 32768)
"""Default total lengths in tokens."""

TOKENS = 16
"""Tokens to decode at each length in a round."""


@dataclass(frozen=True)
class Growth:
    """Measurements.

    Attributes:
        seconds: by total length, seconds per token in each round.
        cache_bytes: bytes of keys and values for one token of context.
        read_bytes_per_second: memory bandwidth in each round.
    """

    seconds: dict[int, list[float]]
    cache_bytes: int
    read_bytes_per_second: list[float]


@dataclass(frozen=True)
class Fit:
    """Seconds per token = `start` + `slope` · context, by least squares over medians of rounds.

    Attributes:
        start: seconds.
        slope: seconds per token of context.
        ratio: slope / (KV bytes of a token / bytes read per second), with each round's own probe; 1
            is the time to read keys and values once at full bandwidth. 95 % bounds by a bootstrap
            over rounds.
    """

    start: float
    slope: float
    ratio: Interval


def steps(lengths: tuple[int, ...], rounds: int) -> int:
    """Calls of `Progress.step` that `measure` makes."""
    return 1 + len(lengths) * (rounds + 1) if lengths else 0


def measure(
    setup: Setup,
    lengths: tuple[int, ...],
    rounds: int,
    cache_bytes: int,
    progress: Progress,
) -> Growth:
    """Decodes at all lengths in interleaved rounds, after one that is not counted.

    Raises:
        AieError: the engine fails.
    """
    capacity = max(lengths)
    seconds: dict[int, list[float]] = {length: [] for length in lengths}
    read = []
    with Worker(OURS) as worker:
        worker.open(replace(setup, settings=replace(setup.settings, capacity=capacity)))
        progress.step(f"growth: a cache of {capacity} tokens")
        probe = ReadProbe(setup.settings.threads)
        for turn in range(rounds + 1):
            for length in lengths:
                settle()
                taken = worker.decode_at(length, TOKENS)
                if turn:
                    seconds[length].append(taken)
                progress.step(f"growth round {turn}, context {length}")
            settle()
            bandwidth = probe.measure()
            if turn:
                read.append(bandwidth)
    return Growth(seconds, cache_bytes, read)


def fit(growth: Growth) -> Fit:
    """The line through the medians, and how its slope compares with reading the cache once."""
    lengths = np.array(list(growth.seconds), np.float64)
    rounds = np.array(list(growth.seconds.values()))  # (lengths, rounds)
    slope, start = _line(lengths, rounds)
    # In bytes that could have been read in the meantime, relative to the cache's bytes.
    relative = rounds * np.array(growth.read_bytes_per_second) / growth.cache_bytes
    # Whatever slows a round slows all lengths, so whole rounds are resampled.
    picks = np.random.default_rng(0).integers(0, rounds.shape[1], (RESAMPLES, rounds.shape[1]))
    ratios = [_line(lengths, relative[:, pick])[0] for pick in picks]
    low, high = np.percentile(ratios, (2.5, 97.5))
    ratio = Interval(_line(lengths, relative)[0], float(low), float(high))
    return Fit(start, slope, ratio)


def _line(lengths: npt.NDArray[np.float64], rounds: npt.NDArray[np.float64]) -> tuple[float, float]:
    """(slope, start)."""
    slope, start = np.polyfit(lengths, np.median(rounds, axis=1), 1)
    return float(slope), float(start)
