"""The measurements, as numbers of each round."""

from __future__ import annotations

from dataclasses import dataclass

from ort_aie_ep.tools.bench.bench import Comparison
from ort_aie_ep.tools.bench.statistics import Interval, ratio

DECODE, PREFILL = PHASES = ("decode", "prefill")
# What a call can have n of: a token of each of n sequences, or n tokens of one to verify.
SEQUENCES, TOKENS = SHAPES = ("sequences", "tokens of one")
# Whether the model's files are in the page cache when an engine starts. A start is not called cold
# if a larger share of them than STAYED was.
WARM, COLD = STATES = ("warm", "cold")
STAYED = 0.01

Speeds = dict[str, dict[int, list[float]]]
"""Tokens per second in each round, by phase and context in tokens."""


@dataclass(frozen=True)
class Starts:
    """One engine's starts: by state, seconds of each from the file to a ready session, and from the
    start of the process to the answer to a short prompt; and the largest share of the files' bytes
    that was in memory before a cold start."""

    load_seconds: dict[str, list[float]]
    first_token_seconds: dict[str, list[float]]
    kept: float


@dataclass(frozen=True)
class Batches:
    """Seconds of a call in each round, by engine, by shape, by n."""

    seconds: dict[str, dict[str, dict[int, list[float]]]]

    def cost(self, engine: str, shape: str, n: int) -> Interval | None:
        """Of a call with n rows relative to one row, within rounds; None if not measured."""
        rounds = self.seconds.get(engine, {}).get(shape, {})
        return ratio(rounds[n], rounds[1]) if n in rounds and 1 in rounds else None


@dataclass(frozen=True)
class Growth:
    """Seconds per token in each round by total length, bytes of keys and values for one token of
    context, and bytes per second of the best plain read of memory in each round."""

    seconds: dict[int, list[float]]
    cache_bytes: int
    read_bytes_per_second: list[float]


@dataclass(frozen=True)
class Measured:
    """One engine's numbers; `bits`, `weight_bytes` and `file_bytes` are those of its `Model`.

    Attributes:
        memory: bytes at the end of the rounds: `peak` (VmHWM, including mapped files), and the
            `anonymous` and `files` parts of it at that time; 0 if unknown.
        speeds: of each round, or only of the pilot if another engine of the same library was
            clearly faster.
    """

    engine: str
    settings: dict[str, str]
    bits: float
    weight_bytes: int
    file_bytes: int
    starts: Starts | None
    memory: dict[str, int]
    speeds: Speeds


@dataclass(frozen=True)
class Results:
    """All engines that ran to the end, ort_aie_ep first.

    Attributes:
        left_out: by engine's name, why it did not run, and how to get it if it is available.
        probes: bytes per second of the best plain read of memory in each round; one comes before
            each engine's turn at the shortest decoded context.
        cache_bytes: of keys and values in float16 for `capacity` tokens, which all made room for.
        amx: whether the CPU has AMX; the goal for prompts depends on it.
        unfinished: the parts still to come, "" at the end.
    """

    measured: tuple[Measured, ...]
    left_out: dict[str, str]
    probes: list[float]
    cache_bytes: int
    capacity: int
    growth: Growth | None = None
    batches: Batches | None = None
    demonstration: Comparison | None = None
    amx: bool = False
    unfinished: str = ""

    @property
    def rounds(self) -> int:
        """Rounds of all engines and contexts that were not left out after the pilot."""
        return len(self.probes)
