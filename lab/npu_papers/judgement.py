"""The model against the papers: every cell, leave-one-out errors, goals met and missed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median

import numpy as np

from npu_papers.fit import Fit, LeftOut, fit, leave_one_out, predicted
from npu_papers.machine import Machine
from npu_papers.power import Alternative, FigureError, alternatives, figure_errors
from npu_papers.sizes import layer_projections, windows
from npu_papers.tables import BARE_GEMM, CONTEXTS, Cell, Phase, cells
from ort_aie_ep.aie_kernels.flow_kv.cost import FLOW_KV_CHUNK, PAIRS
from ort_aie_ep.aie_kernels.gemm.cost import gemm
from ort_aie_ep.aie_kernels.kernel_cycles import OURS, PUBLISHED
from ort_aie_ep.aie_kernels.machine import BF16
from ort_aie_ep.npu.terms import costs
from ort_aie_ep.npu.terms.costs import Cost
from ort_aie_ep.prediction.shapes import shape_of

DECODE_MEDIAN, DECODE_WORST, PREFILL_SLOPE = 0.10, 0.35, 0.30


@dataclass(frozen=True)
class CellError:
    """A cell, its prediction and the relative error, with the cycle counts named `kernels`."""

    cell: Cell
    kernels: str
    predicted: float
    error: float


@dataclass(frozen=True)
class Goal:
    """A limit and the result, both relative."""

    name: str
    kernels: str
    limit: float
    value: float
    met: bool


@dataclass(frozen=True)
class Slope:
    """Seconds a token of prompt, over the whole table and over its worst interval.

    The prediction uses the cycle counts named `kernels`, and `vector_copies` of each vector
    operator.

    `paper` and `model` are least squares over all lengths. `worst_error` is the largest relative
    error between neighbouring columns, `worst_between` names these columns. The curves are the
    least-squares (seconds, seconds per 1,024 tokens, seconds per 1,024² tokens) with relative
    weights.
    """

    model_name: str
    kernels: str
    vector_copies: int
    paper: float
    model: float
    error: float
    worst_error: float
    worst_between: tuple[int, int]
    paper_curve: tuple[float, float, float]
    model_curve: tuple[float, float, float]


@dataclass(frozen=True)
class KvBandwidth:
    """What a decode row implies about the cache: additional bytes a token, by additional time.

    `paper` and `model` are bytes a second between two columns; `paper_low` and `paper_high` are the
    limits that the rounding of the printed figures allows. `chunk_cycles` is the time in which each
    of the four pairs here would have to process a chunk of 8 KB to give the paper's figure; its
    channels alone need 2,048.
    """

    model_name: str
    begin: int
    end: int
    paper: float
    paper_low: float
    paper_high: float
    chunk_cycles: float
    model: float


@dataclass(frozen=True)
class EndToEnd:
    """FLOP of the layers' projections by the time of the whole prompt, in FLOP/s."""

    model_name: str
    context: int
    paper: float
    model: float


@dataclass(frozen=True)
class Judgement:
    """Everything that the papers' numbers say about the model.

    `cells`, `goals` and `slopes` are given for both sets of cycle counts (`kernels`), the slopes
    also for eight copies of the vector operators, which the designs do not have. The rest is for
    the published counts, with which the constants were fitted.
    """

    constants: dict[str, Cost]
    refitted: Fit
    outside: tuple[str, ...]
    cells: tuple[CellError, ...]
    left_out: tuple[LeftOut, ...]
    goals: tuple[Goal, ...]
    slopes: tuple[Slope, ...]
    kv_bandwidths: tuple[KvBandwidth, ...]
    end_to_end: tuple[EndToEnd, ...]
    bare_gemm: dict[str, float]
    power: tuple[FigureError, ...]
    power_alternatives: tuple[Alternative, ...]

    @property
    def models(self) -> tuple[str, ...]:
        """The models for which the papers have figures."""
        return tuple(dict.fromkeys(c.cell.model for c in self.cells))


def fitted_constants() -> dict[str, Cost]:
    """The fitted constants of costs.py."""
    return {name: cost for name, cost in costs.all_costs().items() if cost.status == "fitted"}


def judge() -> Judgement:
    """Predict every cell of the papers with the constants of costs.py."""
    on = Machine()
    ways = [replace(on, kernels=k, vector_copies=n) for n in (1, 8) for k in (PUBLISHED, OURS)]
    every = [_errors(way) for way in ways]
    published, ours = every[:2]
    slopes = [
        [_slope(model, way, errors) for model in _names(errors, "prefill")]
        for way, errors in zip(ways, every, strict=True)
    ]
    constants = fitted_constants()
    return Judgement(
        constants=constants,
        refitted=fit(),
        outside=tuple(n for n, c in constants.items() if not _inside(c)),
        cells=(*published, *ours),
        left_out=leave_one_out(),
        goals=(*_goals(published, slopes[0]), *_goals(ours, slopes[1])),
        slopes=tuple(slope for of_way in slopes for slope in of_way),
        kv_bandwidths=tuple(
            row for name in _names(published, "decode") for row in _kv_bandwidths(name, published)
        ),
        end_to_end=tuple(_end_to_end(e) for e in published if e.cell.phase == "prefill"),
        bare_gemm={**BARE_GEMM, "this model": _bare_gemm(on, 2048)},
        power=figure_errors(),
        power_alternatives=alternatives(),
    )


def _errors(on: Machine) -> list[CellError]:
    found = []
    for cell in cells():
        value = predicted(cell, on)
        found.append(CellError(cell, on.kernels.name, value, value / cell.value - 1))
    return found


def _goals(errors: list[CellError], slopes: list[Slope]) -> list[Goal]:
    """Judge cells to which nothing was fitted."""
    decoding = [abs(e.error) for e in errors if e.cell.phase == "decode" and not e.cell.calibrates]
    return [
        Goal(name, errors[0].kernels, limit, value, value <= limit)
        for name, limit, value in (
            ("decode, median error", DECODE_MEDIAN, median(decoding)),
            ("decode, worst error", DECODE_WORST, max(decoding)),
            ("prefill, worst slope", PREFILL_SLOPE, max(abs(s.error) for s in slopes)),
        )
    ]


def _inside(cost: Cost) -> bool:
    low, high = cost.bounds
    return low <= cost.value <= high


def _names(errors: list[CellError], phase: Phase) -> tuple[str, ...]:
    return tuple(dict.fromkeys(e.cell.model for e in errors if e.cell.phase == phase))


def _row(name: str, phase: Phase, errors: list[CellError]) -> list[CellError]:
    return [e for e in errors if (e.cell.model, e.cell.phase) == (name, phase)]


def _slope(name: str, way: Machine, errors: list[CellError]) -> Slope:
    row = _row(name, "prefill", errors)
    lengths = [e.cell.context for e in row]
    measured = [e.cell.value for e in row]
    modelled = [e.predicted for e in row]
    slope, of_model = (float(np.polyfit(lengths, y, 1)[0]) for y in (measured, modelled))
    between = list(pairwise(lengths))
    intervals = [
        (modelled[i + 1] - modelled[i]) / (measured[i + 1] - measured[i]) - 1
        for i in range(len(between))
    ]
    worst = max(range(len(between)), key=lambda i: abs(intervals[i]))
    return Slope(
        name,
        way.kernels.name,
        way.vector_copies,
        slope, of_model, of_model / slope - 1, intervals[worst], between[worst],
        _curve(lengths, measured), _curve(lengths, modelled),
    )  # fmt: skip


def _curve(lengths: list[int], seconds: list[float]) -> tuple[float, float, float]:
    thousands = [length / 1024 for length in lengths]
    square, linear, constant = np.polyfit(thousands, seconds, 2, w=[1 / s for s in seconds])
    return float(constant), float(linear), float(square)


def _kv_bandwidths(name: str, errors: list[CellError]) -> list[KvBandwidth]:
    """From 1k to 32k, and from there to the end of the row; full windows add nothing."""
    shape = shape_of(name)
    at = {e.cell.context: e for e in _row(name, "decode", errors)}

    def cached(context: int) -> int:
        keys = sum(
            count * (context if window is None else min(window, context))
            for window, count in windows(shape).items()
        )
        return keys * 2 * BF16 * shape.keys

    results = []
    for begin, end in ((CONTEXTS[0], CONTEXTS[5]), (CONTEXTS[5], CONTEXTS[7])):
        if end not in at:
            continue
        more = cached(end) - cached(begin)
        first, last = at[begin], at[end]

        def rate(fast: float, slow: float, more: int = more) -> float:
            return more / (1 / slow - 1 / fast)

        half = 0.05  # the tables give one decimal
        paper = rate(first.cell.value, last.cell.value)
        in_flight = 2 * min(shape.kv_heads, PAIRS) * FLOW_KV_CHUNK
        results.append(
            KvBandwidth(
                name, begin, end, paper,
                rate(first.cell.value + half, last.cell.value - half),
                rate(first.cell.value - half, last.cell.value + half),
                in_flight * costs.CLOCK.value / paper,
                rate(first.predicted, last.predicted),
            )
        )  # fmt: skip
    return results


def _end_to_end(error: CellError) -> EndToEnd:
    shape = shape_of(error.cell.model)
    weights = shape.layers * sum(p.weights for p in layer_projections(shape))
    flops = 2.0 * error.cell.context * weights
    return EndToEnd(
        error.cell.model, error.cell.context, flops / error.cell.value, flops / error.predicted
    )


def _bare_gemm(on: Machine, size: int) -> float:
    return 2 * size**3 / on.seconds(gemm(size, size, size))
