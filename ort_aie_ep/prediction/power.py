"""Tokens per second and watt of the NPU, inferred from the watts that others published.

Nothing here was measured by this project. The figures are watts of the chip without its memory, of
2025 (`lab/npu_papers/power.py` fits them). They support two constants, and none per model:

    joules of a token or a prompt = IDLE * seconds + LAYER * layers

What the CPU draws beside the NPU is not in it.
"""

from __future__ import annotations

from dataclasses import dataclass

from ort_aie_ep.npu.terms.costs import Cost
from ort_aie_ep.prediction.tally import Timing

IDLE = Cost(
    1.0918, "W", "Krackan", "what the NPU draws while it works at all: seven figures of HWiNFO",
    "fitted",
)  # fmt: skip
LAYER = Cost(
    0.75681e-3, "J", "Krackan", "what a pass through a layer adds, by the same figures", "fitted"
)


@dataclass(frozen=True)
class Draw:
    """Mean watts of the NPU, and tokens per second and watt."""

    npu_watts: float
    tokens_per_watt: float


def draw(timing: Timing, tokens: int, layers: int) -> Draw:
    """What a token (`tokens` 1) or a prompt of `tokens` draws."""
    watts = IDLE.value + LAYER.value * layers / timing.seconds
    return Draw(watts, tokens / timing.seconds / watts)
