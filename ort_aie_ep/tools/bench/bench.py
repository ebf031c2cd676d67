"""`ort-aie bench`: a compiled model against ONNX Runtime's CPU EP on the source model.

Both sessions are in one process and alternate, so that other load on the machine affects both.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ort_aie_ep.errors import AieError
from ort_aie_ep.models.folder import ModelFolder
from ort_aie_ep.models.interface import context_length
from ort_aie_ep.progress import Count, Progress
from ort_aie_ep.running.generate import Decoder, Tokens
from ort_aie_ep.runtime.sessions import Options
from ort_aie_ep.tools.bench.agreement import Agreement, compare
from ort_aie_ep.tools.bench.measured_text import measuring_tokens
from ort_aie_ep.tools.bench.pair import Pair, open_pair

# ONNX Runtime's threads spin for a while after a run, on the cores that the other session needs.
SETTLE_SECONDS = 0.1

# Runs that the comparison of logits counts as.
COMPARING = 2


@dataclass(frozen=True)
class Workload:
    """What to measure.

    Attributes:
        lengths: context lengths in tokens: each is prefilled in one pass, then decoded from.
        new_tokens: tokens to decode at each length, one by one.
        runs: runs of each length and session, after one that is not counted.
    """

    lengths: tuple[int, ...]
    new_tokens: int
    runs: int

    def total(self) -> int:
        """Runs of both sessions, including those that do not count."""
        return len(self.lengths) * (self.runs + 1) * 2


@dataclass(frozen=True)
class Speed:
    """Tokens per second of one phase over all runs: median, least and most."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Speed:
        """From measured tokens per second, or from their ratios."""
        return cls(statistics.median(values), min(values), max(values))


@dataclass(frozen=True)
class Comparison:
    """One phase at one context length.

    Attributes:
        phase: prefill or decode.
        length: context length in tokens.
        ours, reference: tokens per second with ort_aie_ep and with ONNX Runtime's CPU EP.
        ratio: ours / reference, for consecutive runs.
    """

    phase: str
    length: int
    ours: Speed
    reference: Speed
    ratio: Speed


@dataclass(frozen=True)
class BenchReport:
    """All comparisons of a model, and how far the logits agree.

    Attributes:
        load_seconds: see `Pair`.
    """

    comparisons: tuple[Comparison, ...]
    agreement: Agreement
    load_seconds: tuple[float, float]


def default_lengths(folder: ModelFolder, new_tokens: int) -> tuple[int, ...]:
    """Those of 128, 512 and 1024 tokens that fit in the model's context, or else what fits."""
    room = context_length(folder) - new_tokens
    lengths = tuple(length for length in (128, 512, 1024) if length <= room)
    return lengths or (max(1, room // 2),)


def bench(
    compiled: ModelFolder,
    source: ModelFolder,
    options: Options,
    workload: Workload,
    progress: Progress | None = None,
) -> BenchReport:
    """Measures both sessions. `progress` counts runs.

    Raises:
        AieError: the workload does not fit the model's context, or a session fails.
    """
    capacity = max(workload.lengths) + workload.new_tokens
    if capacity > context_length(source):
        raise AieError(
            f"{max(workload.lengths)} tokens and {workload.new_tokens} new ones exceed the model's "
            f"context of {context_length(source)}"
        )
    pair = open_pair(compiled, source, options, capacity)
    tokens = measuring_tokens(source, pair.reference.vocabulary, capacity)
    count = Count(progress, workload.total() + COMPARING)
    comparisons = [
        c for n in workload.lengths for c in compare_speed(pair, tokens, n, workload, count)
    ]
    # The shortest context will do: this compares numbers, and the reference adds its own tokens.
    count.begin("comparing logits")
    agreement = compare(
        pair.ours, pair.reference, tokens[: min(workload.lengths)], workload.new_tokens
    )
    count.step(amount=COMPARING)
    return BenchReport(tuple(comparisons), agreement, pair.load_seconds)


def compare_speed(
    pair: Pair, tokens: Tokens, length: int, workload: Workload, count: Count
) -> list[Comparison]:
    """Prefill of `length` tokens and decoding from there; `count` gets 2 (runs + 1) steps."""
    speeds: list[tuple[tuple[float, float], tuple[float, float]]] = []
    for run in range(workload.runs + 1):
        both = []
        for name, decoder in (("ort_aie_ep", pair.ours), ("CPU EP", pair.reference)):
            count.begin(f"context {length}: {name}")
            time.sleep(SETTLE_SECONDS)
            both.append(_speeds(decoder, tokens, length, workload.new_tokens))
            count.step()
        if run > 0:  # the first one only touches pages and fills caches
            speeds.append((both[0], both[1]))
    return [
        Comparison(
            phase,
            length,
            Speed.of([ours[i] for ours, _ in speeds]),
            Speed.of([reference[i] for _, reference in speeds]),
            Speed.of([ours[i] / reference[i] for ours, reference in speeds]),
        )
        for i, phase in enumerate(("prefill", "decode"))
    ]


def _speeds(decoder: Decoder, tokens: Tokens, length: int, new_tokens: int) -> tuple[float, float]:
    """(prefill, decode) tokens per second of one run, counting only time in ONNX Runtime."""
    decoder.reset()
    decoder.forward(tokens[:length])
    prefill = length / decoder.run_seconds
    seconds = []
    for token in tokens[length : length + new_tokens]:
        decoder.forward(np.array([token]))
        seconds.append(decoder.run_seconds)
    return prefill, new_tokens / sum(seconds)
