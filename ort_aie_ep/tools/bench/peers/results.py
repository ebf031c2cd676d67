"""What was measured, as numbers of each round."""

from __future__ import annotations

from dataclasses import dataclass

from ort_aie_ep.tools.bench.bench import Comparison
from ort_aie_ep.tools.bench.peers.batches import Batches
from ort_aie_ep.tools.bench.peers.growth import Growth
from ort_aie_ep.tools.bench.peers.starts import Starts

Speeds = dict[str, dict[int, list[float]]]
"""Tokens per second of each round, by phase (decode, prefill) and context in tokens."""


@dataclass(frozen=True)
class Measured:
    """One engine's numbers.

    Attributes:
        engine: its name.
        settings: by its own account.
        bits: mean bits of a weight, scales included.
        weight_bytes: read for each decoded token.
        file_bytes: of the files that hold weights.
        starts: from the start of a process to its first token; None where not measured.
        memory: bytes at the end of the rounds: `peak` (VmHWM, mapped files included), of which
            there are `anonymous` and `files` at that time; 0 where unknown.
        speeds: of each round, or of the pilot alone where another way was clearly faster.
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
    """All engines, ours first.

    Attributes:
        measured: engines that ran to the end.
        left_out: by engine's name, why it did not, and where it can be had how to get it.
        probes: bytes per second that a read of memory reached in each round, right after the
            shortest decoded context.
        cache_bytes: of keys and values of `capacity` tokens in float16.
        capacity: tokens that the engines had to make room for.
        growth: of ours, or None where it was not measured.
        batches: of engines that take several rows in a call, or None where not measured.
        demonstration: a token of the demonstration model, ours and ONNX Runtime's, or None.
        amx: whether the CPU has it: what prompts should reach depends on that.
        unfinished: what is still to come, "" at the end.
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
        """Of all engines and contexts that were not left out after the pilot."""
        return len(self.probes)
