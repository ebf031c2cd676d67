"""A prediction as a range: how far machines of one kind differ. Nothing here was measured by this
project.
"""

from __future__ import annotations

from typing import Literal

from ort_aie_ep.npu.terms import costs

Phase = Literal["token", "prompt"]

#: How many times as long a machine may take as another of its kind.
SPREAD = 1.9
BASIS = (
    f"range: from a {costs.PROCESSOR}, whose constants these are, to a machine of its kind that is "
    f"{SPREAD} times slower (two Ryzen AI 350 with equal DIMMs, FastFlowLM issue 625)"
)


def range_of(phase: Phase, seconds: float) -> tuple[float, float]:
    """The least and the most of a prediction of `seconds`: tokens per second, or seconds of a
    prompt. One end is the machine whose constants these are, the other one of its kind."""
    slowest = seconds * SPREAD
    return (1 / slowest, 1 / seconds) if phase == "token" else (seconds, slowest)


def range_words(phase: Phase, seconds: float) -> str:
    """The range as tables show it."""
    return "–".join(
        f"{value:,.0f}" if value >= 100 else f"{value:.3g}" for value in range_of(phase, seconds)
    )
