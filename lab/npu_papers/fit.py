"""The three fitted constants, from five cells of the papers.

Paper 1's Table III at 1k (four Qwen3 models) gives the read bandwidth of DDR and the cost of a run,
by least squares over the relative errors of a token's time. The predicted time falls monotonically
with bandwidth and is linear in the cost of a run. So a golden section over the bandwidth suffices,
with the cost of a run in closed form. Paper 2's Table 1 at 1k (Gemma3-1B) then gives the cost of a
change of overlay, in which the predicted time is linear as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt

from npu_papers.machine import Machine
from npu_papers.program import decode, prefill
from npu_papers.tables import Cell, cells
from ort_aie_ep.npu.terms import costs
from ort_aie_ep.npu.terms.costs import Cost
from ort_aie_ep.prediction.shapes import shape_of

#: The constant of `costs` for each field of `Fit`.
COSTS: dict[str, Cost] = {
    "ddr_read": costs.DDR_READ,
    "dispatch": costs.DISPATCH,
    "overlay_switch": costs.OVERLAY_SWITCH,
}


@dataclass(frozen=True)
class Fit:
    """The fitted constants: bytes a second, seconds, seconds."""

    ddr_read: float
    dispatch: float
    overlay_switch: float

    def machine(self) -> Machine:
        """The device with these constants. DDR writes follow reads (costs.DDR_WRITE)."""
        return Machine(
            ddr_read=self.ddr_read,
            ddr_write=self.ddr_read,
            dispatch=self.dispatch,
            overlay_switch=self.overlay_switch,
        )


def predicted(cell: Cell, machine: Machine) -> float:
    """The model's prediction for the cell: tokens per second, or seconds to the first token."""
    shape = shape_of(cell.model)
    if cell.phase == "decode":
        return 1 / decode(shape, cell.context, machine).seconds
    return prefill(shape, cell.context, machine).seconds


def fit(calibration: Sequence[Cell] | None = None) -> Fit:
    """The constants that fit `calibration`, by default the five cells.

    Without a prefill cell the cost of a change of overlay is the least that its sources give.
    """
    chosen = [c for c in cells() if c.calibrates] if calibration is None else calibration
    tokens = [c for c in chosen if c.phase == "decode"]
    prompts = [c for c in chosen if c.phase == "prefill"]
    ddr_read = _least(lambda rate: _dispatch(tokens, rate)[1], *costs.DDR_READ.bounds)
    dispatch, _ = _dispatch(tokens, ddr_read)
    least, _ = costs.OVERLAY_SWITCH.bounds
    switch = _overlay_switch(prompts, Fit(ddr_read, dispatch, 0)) if prompts else least
    return Fit(ddr_read, dispatch, switch)


def _dispatch(tokens: Sequence[Cell], ddr_read: float) -> tuple[float, float]:
    """(cost of a run, sum of squared relative errors) that fit best at a bandwidth.

    With token time t measured and a + r·d predicted for r runs: minimise Σ (1 - (a + r·d) / t)².
    """
    machine = Fit(ddr_read, 0, 0).machine()
    timings = [decode(shape_of(c.model), c.context, machine) for c in tokens]
    rest = [1 - t.seconds * c.value for t, c in zip(timings, tokens, strict=True)]
    slope = [t.runs * c.value for t, c in zip(timings, tokens, strict=True)]
    dispatch = sum(s * r for s, r in zip(slope, rest, strict=True)) / sum(s * s for s in slope)
    return dispatch, sum((r - s * dispatch) ** 2 for s, r in zip(slope, rest, strict=True))


def _overlay_switch(prompts: Sequence[Cell], known: Fit) -> float:
    timings = [prefill(shape_of(c.model), c.context, known.machine()) for c in prompts]
    rest = [1 - t.seconds / c.value for t, c in zip(timings, prompts, strict=True)]
    slope = [t.switches / c.value for t, c in zip(timings, prompts, strict=True)]
    return sum(s * r for s, r in zip(slope, rest, strict=True)) / sum(s * s for s in slope)


def _least(function: Callable[[float], float], low: float, high: float) -> float:
    """The minimum of a unimodal function in [low, high], by golden section."""
    ratio = (sqrt(5) - 1) / 2
    left, right = high - ratio * (high - low), low + ratio * (high - low)
    at_left, at_right = function(left), function(right)
    while high - low > 1e-6 * high:
        if at_left < at_right:
            high, right, at_right = right, left, at_left
            left = high - ratio * (high - low)
            at_left = function(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + ratio * (high - low)
            at_right = function(right)
    return (low + high) / 2


@dataclass(frozen=True)
class LeftOut:
    """A calibration cell predicted by constants fitted without it; `error` is relative."""

    cell: Cell
    constants: Fit
    predicted: float
    error: float


def leave_one_out() -> tuple[LeftOut, ...]:
    """Leave out each calibration cell in turn."""
    chosen = [c for c in cells() if c.calibrates]
    results = []
    for cell in chosen:
        constants = fit([c for c in chosen if c is not cell])
        value = predicted(cell, constants.machine())
        results.append(LeftOut(cell, constants, value, value / cell.value - 1))
    return tuple(results)
