"""A prediction as a range, and the measured figure that is the nearest to it, in words."""

from __future__ import annotations

from ort_aie_ep.npu.terms.eras import era
from ort_aie_ep.prediction.measured import SPREAD, SPREAD_SOURCE, Figure, Phase, nearest


def range_of(phase: Phase, seconds: float) -> tuple[float, float]:
    """The least and the most of a prediction of `seconds`: tokens per second, or seconds of a
    prompt. One end is the machine whose constants these are, the other one of its kind."""
    slowest = seconds * SPREAD
    return (1 / slowest, 1 / seconds) if phase == "token" else (seconds, slowest)


def range_words(phase: Phase, seconds: float) -> str:
    """The range as tables show it."""
    return "–".join(f"{value:.3g}" for value in range_of(phase, seconds))


def basis(name: str) -> str:
    """What a range of the era called `name` means."""
    return (
        f"range: from a {era(name).platform.processor}, whose constants these are, to a machine of "
        f"its kind that is {SPREAD} times slower ({SPREAD_SOURCE})"
    )


def nearest_words(model: str, phase: Phase, context: int, billions: float) -> str:
    """The nearest measured figure, which is another program's."""
    return f"nearest measured: {_words(nearest(model, phase, context, billions))}"


def _words(figure: Figure) -> str:
    context = f"{figure.context // 1024}k" if figure.context % 1024 == 0 else str(figure.context)
    value = (
        f"{figure.value:g} tokens/s at {context}"
        if figure.phase == "token"
        else f"{figure.value:g} s for a prompt of {context}"
    )
    return f"{figure.model}, {value}, {figure.source}, {figure.machine}"
