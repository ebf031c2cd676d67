"""All published speeds beside the model: those of the papers, of FastFlowLM, and of mlir-air."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from ort_aie_ep.npu.speed import mlir_air
from ort_aie_ep.npu.speed.fit import predicted
from ort_aie_ep.npu.speed.models import shape_of
from ort_aie_ep.npu.speed.operators import Machine
from ort_aie_ep.npu.speed.papers import CONTEXTS, FASTFLOWLM_SPEEDS, cells
from ort_aie_ep.npu.speed.phases import decode
from ort_aie_ep.npu.vocabulary.eras import EraName


@dataclass(frozen=True)
class Published:
    """One published speed: `error` is the prediction's, relative; `fitted`: a constant was fitted
    to it."""

    era: EraName
    source: str
    model: str
    context: int
    measured: float
    error: float
    fitted: bool


@dataclass(frozen=True)
class Summary:
    """The errors of a source's cells: how many there are, and how many constants were fitted to.

    `median` and `worst` are of the absolute errors of the others.
    """

    source: str
    cells: int
    fitted: int
    median: float
    worst: float


def published() -> Iterator[Published]:
    """Every published cell, predicted with the constants and the placement of its own era."""
    machine = Machine()
    for cell in cells():
        value = predicted(cell, machine)
        source = f"paper {cell.paper}, Table {cell.table}"
        yield Published(
            "papers", source, cell.model, cell.context, cell.value, value / cell.value - 1,
            cell.calibrates,
        )  # fmt: skip
    for model, row in FASTFLOWLM_SPEEDS.items():
        for context, measured in zip(CONTEXTS, row, strict=True):
            error = 1 / decode(shape_of(model), context, machine).seconds / measured - 1
            yield Published(
                "papers", "FastFlowLM (paper 1, Table I)", model, context, measured, error, False
            )
    for one in mlir_air.cells():
        yield Published(
            "mlir-air", "mlir-air's sweep", one.model, one.context, one.measured, one.error,
            one.calibrates,
        )  # fmt: skip


def summaries() -> tuple[Summary, ...]:
    """The errors by source, and of all sources together."""
    every = tuple(published())
    names = dict.fromkeys(one.source for one in every)
    of_each = (_summary(name, [one for one in every if one.source == name]) for name in names)
    return (*of_each, _summary("all", every))


def _summary(source: str, of: Sequence[Published]) -> Summary:
    errors = [abs(one.error) for one in of if not one.fitted]
    return Summary(source, len(of), len(of) - len(errors), median(errors), max(errors))
