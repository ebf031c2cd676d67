"""Seconds and bytes of a token or a prompt, added up operator by operator."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Literal

from ort_aie_ep.aie_kernels.machine import Bound, Machine, Step

Part = Literal[
    "layers",
    "projections",
    "gemm",
    "dequant",
    "attention",
    "vector",
    "lm_head",
    "dispatch",
    "switches",
]


@dataclass(frozen=True)
class Timing:
    """Seconds of a token or a prompt: by part, and by what limits them.

    `runs` are dispatches, `switches` changes of overlay; `by_bound` leaves both out. `read` and
    `write` are DDR bytes.
    """

    seconds: float
    parts: dict[Part, float]
    by_bound: dict[Bound, float]
    runs: int
    switches: int
    read: float
    write: float


class Tally:
    """Adds operators up."""

    def __init__(self) -> None:
        self.machine = Machine()
        self.parts: dict[Part, float] = defaultdict(float)
        self.bounds: dict[Bound, float] = defaultdict(float)
        self.read = self.write = 0.0

    def add(self, part: Part, steps: tuple[Step, ...]) -> None:
        """Add an operator."""
        bounds = self.machine.by_bound(steps)
        for bound, seconds in bounds.items():
            self.bounds[bound] += seconds
        self.parts[part] += sum(bounds.values())
        self.read += sum(step.read for step in steps)
        self.write += sum(step.write for step in steps)

    def timing(self, runs: int, switches: int) -> Timing:
        """The total, with this many runs and changes of overlay."""
        self.parts["dispatch"] = runs * self.machine.dispatch
        self.parts["switches"] = switches * self.machine.overlay_switch
        return Timing(
            sum(self.parts.values()), dict(self.parts), dict(self.bounds), runs, switches,
            self.read, self.write,
        )  # fmt: skip
