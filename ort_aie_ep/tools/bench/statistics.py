"""Medians of rounds with 95 % bounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 2000


@dataclass(frozen=True)
class Interval:
    """A value with its 95 % bounds: percentiles of a bootstrap over rounds or windows."""

    value: float
    low: float
    high: float


def median(values: Sequence[float]) -> Interval:
    """The median of one number from each round."""
    rounds = np.asarray(values, np.float64)
    picks = np.random.default_rng(0).integers(0, len(rounds), (RESAMPLES, len(rounds)))
    low, high = np.percentile(np.median(rounds[picks], axis=1), (2.5, 97.5))
    return Interval(float(np.median(rounds)), float(low), float(high))


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """The median of ours / theirs within each round, so that whatever slows a round slows both."""
    return median([a / b for a, b in zip(ours, theirs, strict=True)])
