"""The measurements, as numbers of each round."""

from __future__ import annotations

from dataclasses import dataclass

from ort_aie_ep.tools.bench.bench import Comparison
from ort_aie_ep.tools.bench.peers.batches import Batches
from ort_aie_ep.tools.bench.peers.growth import Growth
from ort_aie_ep.tools.bench.peers.starts import Starts

Speeds = dict[str, dict[int, list[float]]]
"""Tokens per second in each round, by phase (decode, prefill) and context in tokens."""


@dataclass(frozen=True)
class Measured:
    """One engine's numbers.

    Attributes:
        engine: its name.
        settings: the settings that it reports.
        bits: mean bits of a weight, including scales.
        weight_bytes: bytes read for each decoded token.
        file_bytes: size of the files that hold weights.
        starts: from the start of a process to its first token; None if not measured.
        memory: bytes at the end of the rounds: `peak` (VmHWM, including mapped files), and the
            `anonymous` and `files` parts of it at that time; 0 if unknown.
        speeds: speeds of each round, or only of the pilot if another engine of the same library was
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
    """All engines, ort_aie_ep first.

    Attributes:
        measured: engines that ran to the end.
        left_out: by engine's name, why it did not run, and how to get it if it is available.
        probes: bytes per second that a read of memory reached in each round, right after the
            shortest decoded context.
        cache_bytes: bytes of keys and values for `capacity` tokens in float16.
        capacity: tokens that the engines had to make room for.
        growth: the growth of ort_aie_ep, or None if it was not measured.
        batches: for engines that take several rows in a call, or None if not measured.
        demonstration: a token of the demonstration model, with ort_aie_ep and with ONNX Runtime, or
            None.
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
