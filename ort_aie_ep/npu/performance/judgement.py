"""The model against the papers: every cell, leave-one-out errors, goals met and missed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import numpy as np

from ort_aie_ep.npu import costs
from ort_aie_ep.npu.costs import Cost
from ort_aie_ep.npu.performance import operators as op
from ort_aie_ep.npu.performance.fit import Fit, LeftOut, fit, leave_one_out, predicted
from ort_aie_ep.npu.performance.models import layer_projections, shape_of, windows
from ort_aie_ep.npu.performance.operators import Machine
from ort_aie_ep.npu.performance.papers import BARE_GEMM, Cell, Phase, cells

DECODE_MEDIAN, DECODE_WORST, PREFILL_SLOPE = 0.10, 0.35, 0.30


@dataclass(frozen=True)
class CellError:
    """A cell, its prediction and the relative error."""

    cell: Cell
    predicted: float
    error: float


@dataclass(frozen=True)
class Goal:
    """A limit and what came of it, both relative."""

    name: str
    limit: float
    value: float

    @property
    def met(self) -> bool:
        """Whether the value keeps the limit."""
        return self.value <= self.limit


@dataclass(frozen=True)
class Slope:
    """Seconds a token of prompt, over the whole table and over its worst interval.

    `paper` and `model` are least squares over all lengths; `worst_error` is the largest relative
    error between neighbouring columns, `worst_between` which. The curves are the least-squares
    (seconds, seconds per 1,024 tokens, seconds per 1,024² tokens) with relative weights.
    """

    model_name: str
    paper: float
    model: float
    error: float
    worst_error: float
    worst_between: tuple[int, int]
    paper_curve: tuple[float, float, float]
    model_curve: tuple[float, float, float]


@dataclass(frozen=True)
class KvBandwidth:
    """What a decode row says of the cache: bytes a token more, by time a token more.

    Over neighbouring columns from `begin` to `end` tokens; bytes a second.
    """

    model_name: str
    begin: int
    end: int
    paper: float
    model: float


@dataclass(frozen=True)
class EndToEnd:
    """FLOP of the layers' projections and attention by the time of a whole prompt, in FLOP/s."""

    model_name: str
    context: int
    paper: float
    model: float


@dataclass(frozen=True)
class Judgement:
    """Everything that the papers' numbers say about the model."""

    constants: dict[str, Cost]
    refitted: Fit
    outside: tuple[str, ...]
    cells: tuple[CellError, ...]
    left_out: tuple[LeftOut, ...]
    left_out_errors: tuple[float, ...]
    goals: tuple[Goal, ...]
    slopes: tuple[Slope, ...]
    kv_bandwidths: tuple[KvBandwidth, ...]
    end_to_end: tuple[EndToEnd, ...]
    bare_gemm: dict[str, float]

    def of(self, phase: Phase) -> tuple[CellError, ...]:
        """The cells of a phase."""
        return tuple(c for c in self.cells if c.cell.phase == phase)


def fitted_constants() -> dict[str, Cost]:
    """Those of costs.py that are fitted."""
    return {name: cost for name, cost in costs.all_costs().items() if cost.status == "fitted"}


def judge() -> Judgement:
    """Predicts every cell of the papers with the constants of costs.py."""
    on = Machine()
    errors = []
    for cell in cells():
        value = predicted(cell, on)
        errors.append(CellError(cell, value, value / cell.value - 1))
    decoding = [abs(e.error) for e in errors if e.cell.phase == "decode" and not e.cell.calibrates]
    slopes = tuple(_slope(name, errors) for name in _names(errors, "prefill"))
    constants = fitted_constants()
    left_out = leave_one_out()
    return Judgement(
        constants=constants,
        refitted=fit(),
        outside=tuple(n for n, c in constants.items() if not _inside(c)),
        cells=tuple(errors),
        left_out=left_out,
        left_out_errors=tuple(result.error for result in left_out),
        goals=(
            Goal("decode, median error of cells not calibrated on", DECODE_MEDIAN, median(decoding)),
            Goal("decode, worst error of them", DECODE_WORST, max(decoding)),
            Goal(
                "prefill, worst error of a table's slope",
                PREFILL_SLOPE,
                max(abs(s.error) for s in slopes),
            ),
        ),
        slopes=slopes,
        kv_bandwidths=tuple(
            pair for name in _names(errors, "decode") for pair in _kv_bandwidths(name, errors)
        ),
        end_to_end=tuple(_end_to_end(e) for e in errors if e.cell.phase == "prefill"),
        bare_gemm={**BARE_GEMM, "this model": _bare_gemm(on, 2048)},
    )


def _inside(cost: Cost) -> bool:
    low, high = cost.interval or (cost.value, cost.value)
    return low <= cost.value <= high


def _names(errors: list[CellError], phase: Phase) -> tuple[str, ...]:
    return tuple(dict.fromkeys(e.cell.model for e in errors if e.cell.phase == phase))


def _row(name: str, phase: Phase, errors: list[CellError]) -> list[CellError]:
    return [e for e in errors if (e.cell.model, e.cell.phase) == (name, phase)]


def _slope(name: str, errors: list[CellError]) -> Slope:
    row = _row(name, "prefill", errors)
    lengths = [e.cell.context for e in row]
    measured = [e.cell.value for e in row]
    modelled = [e.predicted for e in row]
    slope, of_model = (float(np.polyfit(lengths, y, 1)[0]) for y in (measured, modelled))
    between = list(zip(lengths, lengths[1:], strict=False))
    intervals = [
        (modelled[i + 1] - modelled[i]) / (measured[i + 1] - measured[i]) - 1
        for i in range(len(between))
    ]
    worst = max(range(len(between)), key=lambda i: abs(intervals[i]))
    return Slope(
        name, slope, of_model, of_model / slope - 1, intervals[worst], between[worst],
        _curve(lengths, measured), _curve(lengths, modelled),
    )  # fmt: skip


def _curve(lengths: list[int], seconds: list[float]) -> tuple[float, float, float]:
    thousands = [length / 1024 for length in lengths]
    square, linear, constant = np.polyfit(thousands, seconds, 2, w=[1 / s for s in seconds])
    return float(constant), float(linear), float(square)


def _kv_bandwidths(name: str, errors: list[CellError]) -> list[KvBandwidth]:
    """Only rows and keys that grow count: a full window adds nothing."""
    shape = shape_of(name)
    row = _row(name, "decode", errors)

    def cached(context: int) -> int:
        keys = sum(
            count * (context if window is None else min(window, context))
            for window, count in windows(shape).items()
        )
        return keys * 2 * op.BF16 * shape.keys

    results = []
    for a, b in zip(row, row[1:], strict=False):
        more = cached(b.cell.context) - cached(a.cell.context)

        def rate(value: Callable[[CellError], float], a: CellError = a, b: CellError = b) -> float:
            slower = 1 / value(b) - 1 / value(a)
            return more / slower if slower > 0 else float("inf")

        results.append(
            KvBandwidth(
                name, a.cell.context, b.cell.context,
                rate(lambda e: e.cell.value), rate(lambda e: e.predicted),
            )
        )  # fmt: skip
    return results


def _end_to_end(error: CellError) -> EndToEnd:
    shape = shape_of(error.cell.model)
    length = error.cell.context
    flops = 2.0 * length * shape.layers * sum(p.weights for p in layer_projections(shape))
    for window, count in windows(shape).items():
        seen = length if window is None else min(window, length)
        # Causal: position i sees min(i + 1, window) keys.
        pairs = seen * (seen + 1) / 2 + (length - seen) * seen
        flops += count * 4.0 * pairs * shape.queries
    return EndToEnd(
        error.cell.model, length, flops / error.cell.value, flops / error.predicted
    )


def _bare_gemm(on: Machine, size: int) -> float:
    return 2 * size**3 / on.seconds(op.gemm(size, size, size))
