"""`ort-aie bench`: a compiled model alone, or against another engine on the model that it comes
from: ONNX Runtime's CPU EP on ONNX, llama.cpp on a GGUF file.

Both engines are in one process and alternate, so that other load on the machine affects both.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from ort_aie_ep.errors import AieError
from ort_aie_ep.machine import physical_cores
from ort_aie_ep.models.folder import ModelFolder
from ort_aie_ep.models.interface import context_length
from ort_aie_ep.progress import Count, Progress
from ort_aie_ep.running.generate import Decoder, Tokens
from ort_aie_ep.runtime.sessions import Options
from ort_aie_ep.tools.bench.agreement import Agreement, compare
from ort_aie_ep.tools.bench.llama_cpp import NAME as LLAMA_CPP
from ort_aie_ep.tools.bench.llama_cpp import LlamaCpp
from ort_aie_ep.tools.bench.measured_text import measuring_tokens
from ort_aie_ep.tools.bench.pair import Pair, open_alone, open_pair

# ONNX Runtime's threads spin for a while after a run, on the cores that the other session needs.
SETTLE_SECONDS = 0.1

# Runs that the comparison of logits counts as.
COMPARING = 2

OURS, CPU_EP = "ort_aie_ep", "CPU EP"

Timed = Callable[[Tokens, int, int], tuple[float, float]]
"""Runs so many tokens in one pass and some more singly: (prefill, decode) tokens per second."""


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

    def total(self, engines: int = 2) -> int:
        """Runs of all engines, including those that do not count."""
        return len(self.lengths) * (self.runs + 1) * engines


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
        ours, reference: tokens per second with ort_aie_ep and with another engine, if there is one.
        ratio: ours / reference, for consecutive runs.
    """

    phase: str
    length: int
    ours: Speed
    reference: Speed | None
    ratio: Speed | None


@dataclass(frozen=True)
class BenchReport:
    """All comparisons of a model, and how far the logits agree.

    Attributes:
        against: the other engine; empty if the model was measured alone.
        agreement: of the logits, with those of the CPU EP.
        load_seconds: to open the model in each engine.
    """

    against: str
    comparisons: tuple[Comparison, ...]
    agreement: Agreement | None
    load_seconds: tuple[float, ...]


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
    capacity = _capacity(source, workload)
    pair = open_pair(compiled, source, options, capacity)
    tokens = measuring_tokens(source, pair.reference.vocabulary, capacity)
    count = Count(progress, workload.total() + COMPARING)
    comparisons = compare_speed(timed(pair), tokens, workload, count)
    # The shortest context will do: this compares numbers, and the reference adds its own tokens.
    count.begin("comparing logits")
    agreement = compare(
        pair.ours, pair.reference, tokens[: min(workload.lengths)], workload.new_tokens
    )
    count.step(amount=COMPARING)
    return BenchReport(CPU_EP, comparisons, agreement, pair.load_seconds)


def bench_alone(
    compiled: ModelFolder,
    options: Options,
    workload: Workload,
    gguf: Path | None = None,
    progress: Progress | None = None,
) -> BenchReport:
    """Measures a compiled model, beside llama.cpp on the file that it comes from if that is given.
    `progress` counts runs.

    Raises:
        AieError: the workload does not fit the model's context, or an engine fails.
    """
    capacity = _capacity(compiled, workload)
    decoder, *seconds = open_alone(compiled, options, capacity)
    engines: dict[str, Timed] = {OURS: partial(speeds, decoder)}
    if gguf is not None:
        start = time.perf_counter()
        other = LlamaCpp(gguf, capacity, options.threads or physical_cores())
        seconds.append(time.perf_counter() - start)
        engines[LLAMA_CPP] = other.speeds
    tokens = measuring_tokens(compiled, decoder.vocabulary, capacity)
    count = Count(progress, workload.total(len(engines)))
    comparisons = compare_speed(engines, tokens, workload, count)
    return BenchReport("" if gguf is None else LLAMA_CPP, comparisons, None, tuple(seconds))


def timed(pair: Pair) -> dict[str, Timed]:
    """Both sessions, by name."""
    return {OURS: partial(speeds, pair.ours), CPU_EP: partial(speeds, pair.reference)}


def _capacity(folder: ModelFolder, workload: Workload) -> int:
    capacity = max(workload.lengths) + workload.new_tokens
    if capacity > context_length(folder):
        raise AieError(
            f"{max(workload.lengths)} tokens and {workload.new_tokens} new ones exceed the model's "
            f"context of {context_length(folder)}"
        )
    return capacity


def compare_speed(
    engines: Mapping[str, Timed], tokens: Tokens, workload: Workload, count: Count
) -> tuple[Comparison, ...]:
    """Prefill and decoding at each length with one engine or two, by their names; `count` gets as
    many steps as the workload has runs."""
    found = []
    for length in workload.lengths:
        rounds = []
        for _ in range(workload.runs + 1):
            both = []
            for name, engine in engines.items():
                count.begin(f"context {length}: {name}")
                time.sleep(SETTLE_SECONDS)
                both.append(engine(tokens, length, workload.new_tokens))
                count.step()
            rounds.append(both)
        for i, phase in enumerate(("prefill", "decode")):
            # The first round only touches pages and fills caches.
            ours, *others = zip(*([one[i] for one in both] for both in rounds[1:]), strict=True)
            reference = ratio = None
            for other in others:
                reference = Speed.of(other)
                ratio = Speed.of([a / b for a, b in zip(ours, other, strict=True)])
            found.append(Comparison(phase, length, Speed.of(ours), reference, ratio))
    return tuple(found)


def speeds(decoder: Decoder, tokens: Tokens, length: int, new_tokens: int) -> tuple[float, float]:
    """See `Timed`; only time in ONNX Runtime counts."""
    decoder.reset()
    decoder.forward(tokens[:length])
    prefill = length / decoder.run_seconds
    seconds = []
    for token in tokens[length : length + new_tokens]:
        decoder.forward(np.array([token]))
        seconds.append(decoder.run_seconds)
    return prefill, new_tokens / sum(seconds)
