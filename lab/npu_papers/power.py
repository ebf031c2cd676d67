"""Tokens per second and watt, inferred from the watts that others published.

Nothing here was measured by this project. The figures are what HWiNFO showed while FastFlowLM ran:
paper 1's Table II, paper 2's Table 5, and a page of FastFlowLM with the llamas' prompts. They are
watts of the chip without its memory. The model has two constants, fitted to the figures whose speed
is published too, and none per model:

    joules of a token or a prompt = idle · seconds + layer · layers

`idle` is what the NPU draws while it works at all, `layer` is what a pass through a layer adds.
The figures do not show more: `alternatives` puts bytes, multiplications or runs in the place of
layers. What the CPU draws beside the NPU differs 40-fold between the two platforms, so it is not
modelled: `Draw` has the NPU alone, and the NPU with what the CPU drew in paper 2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import mean

import numpy as np

from npu_papers.machine import Machine
from npu_papers.program import decode, prefill
from npu_papers.sizes import layer_projections
from npu_papers.tables import AT, FIGURES, PAPER2, Figure, Phase
from ort_aie_ep.prediction.shapes import shape_of
from ort_aie_ep.prediction.tally import Timing


@dataclass(frozen=True)
class Power:
    """The NPU's constants: watts while it works, joules of a pass through a layer."""

    idle: float
    layer: float

    def watts(self, seconds: float, layers: int) -> float:
        """The NPU's mean watts over a token or a prompt."""
        return self.idle + self.layer * layers / seconds


@dataclass(frozen=True)
class Draw:
    """Watts and tokens per second and watt: of the NPU alone, and with paper 2's CPU beside it."""

    npu_watts: float
    tokens_per_watt: float
    with_cpu_watts: float
    with_cpu_tokens_per_watt: float


def draw(timing: Timing, tokens: int, layers: int) -> Draw:
    """What a token (`tokens` 1) or a prompt of `tokens` draws by the fitted constants."""
    npu = fitted().watts(timing.seconds, layers)
    phase: Phase = "decode" if tokens == 1 else "prefill"
    total = npu + mean(f.cpu for f in FIGURES if (f.source, f.phase) == (PAPER2, phase))
    rate = tokens / timing.seconds
    return Draw(npu, rate / npu, total, rate / total)


@dataclass(frozen=True)
class FigureError:
    """A figure beside the model, at the published speed, or the predicted one if there is none.

    `left_out` is the relative error of constants fitted without the figure; None: it is not fitted.
    """

    figure: Figure
    predicted: float
    error: float
    left_out: float | None


@dataclass(frozen=True)
class Alternative:
    """The model with another cause than layers: the worst relative errors over the fitted figures.

    `worst_left_out` is that of constants fitted without the figure. `slope` is in watts for each
    `unit` a second.
    """

    cause: str
    unit: str
    idle: float
    slope: float
    worst: float
    worst_left_out: float


@cache
def fitted() -> Power:
    """The constants: least squares of the relative errors of `_measured()`."""
    return Power(*_fit([f.npu for f in _measured()], _rates(_measured(), _layers)))


def figure_errors() -> tuple[FigureError, ...]:
    """Every published figure beside the model."""
    kept = _measured()
    watts, rates = [f.npu for f in kept], _rates(kept, _layers)
    left_out = dict(zip(kept, _left_out(watts, rates), strict=True))
    results = []
    for figure in FIGURES:
        predicted = fitted().watts(_seconds(figure), shape_of(figure.model).layers)
        error = predicted / figure.npu - 1
        results.append(FigureError(figure, predicted, error, left_out.get(figure)))
    return tuple(results)


def alternatives() -> tuple[Alternative, ...]:
    """The same fit with other causes; the first is the one that is used."""
    causes: tuple[tuple[str, str, Callable[[Figure], float]], ...] = (
        ("layers of a token or a prompt", "layer", _layers),
        ("runs of the papers' program", "run", lambda f: _timing(f).runs),
        ("bytes of DDR", "GB", lambda f: (_timing(f).read + _timing(f).write) / 1e9),
        ("multiplications by weights", "10^12", _multiplications),
    )
    kept = _measured()
    watts = [f.npu for f in kept]
    results = []
    for cause, unit, count in causes:
        rates = _rates(kept, count)
        idle, slope = _fit(watts, rates)
        errors = [abs((idle + slope * r) / w - 1) for w, r in zip(watts, rates, strict=True)]
        results.append(
            Alternative(
                cause, unit, idle, slope, max(errors), max(map(abs, _left_out(watts, rates)))
            )
        )
    return tuple(results)


def _measured() -> tuple[Figure, ...]:
    return tuple(f for f in FIGURES if f.measured_seconds is not None)


def _timing(figure: Figure) -> Timing:
    phase = decode if figure.phase == "decode" else prefill
    return phase(shape_of(figure.model), AT, Machine())


def _seconds(figure: Figure) -> float:
    return figure.measured_seconds or _timing(figure).seconds


def _layers(figure: Figure) -> float:
    return shape_of(figure.model).layers


def _multiplications(figure: Figure) -> float:
    shape = shape_of(figure.model)
    weights = shape.layers * sum(p.weights for p in layer_projections(shape))
    return figure.tokens * weights / 1e12


def _rates(figures: Sequence[Figure], count: Callable[[Figure], float]) -> list[float]:
    return [count(f) / _seconds(f) for f in figures]


def _fit(watts: Sequence[float], rates: Sequence[float]) -> tuple[float, float]:
    """(idle, slope) that minimise the sum of ((idle + slope · rate) / watts - 1)²."""
    measured = np.array(watts)
    terms = np.stack([1 / measured, np.array(rates) / measured], axis=1)
    idle, slope = np.linalg.lstsq(terms, np.ones(len(measured)), rcond=None)[0]
    return float(idle), float(slope)


def _left_out(watts: Sequence[float], rates: Sequence[float]) -> list[float]:
    """The relative error of each figure by a fit to the others."""
    errors = []
    for i, (w, r) in enumerate(zip(watts, rates, strict=True)):
        idle, slope = _fit([*watts[:i], *watts[i + 1 :]], [*rates[:i], *rates[i + 1 :]])
        errors.append((idle + slope * r) / w - 1)
    return errors
