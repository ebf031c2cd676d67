"""Published speeds beside the model: those of the papers, of FastFlowLM, and of mlir-air."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from npu_papers import mlir_air
from npu_papers.fit import predicted
from npu_papers.machine import Machine
from npu_papers.program import decode, prefill
from npu_papers.tables import (
    CONTEXTS,
    FASTFLOWLM_2026_PROMPTS,
    FASTFLOWLM_2026_TOKENS,
    FASTFLOWLM_SPEEDS,
    MLIR_AIR_PROMPT,
    MLIR_AIR_PROMPTS,
    cells,
)
from ort_aie_ep.npu.terms.eras import MLIR_AIR, EraName
from ort_aie_ep.prediction.shapes import shape_of

SWEEP = "mlir-air's sweep"


@dataclass(frozen=True)
class Published:
    """One published speed, tokens per second or seconds to the first token.

    `error` is the prediction's, relative; `fitted`: a constant was fitted to it.
    """

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
    """Every cell of the tables, predicted with the constants of its own era.

    mlir-air's decoder has its own placement. All others, its prompts as well, have the papers'
    program.
    """
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
            "mlir-air", SWEEP, one.model, one.context, one.measured, one.error,
            one.calibrates,
        )  # fmt: skip
    yield from _of_2026()


def _of_2026() -> Iterator[Published]:
    machine = Machine.of(MLIR_AIR)
    for model, row in FASTFLOWLM_2026_TOKENS.items():
        for context, speed in zip(CONTEXTS, row, strict=False):
            error = 1 / decode(shape_of(model), context, machine).seconds / speed - 1
            source = "FastFlowLM 0.9.31, tokens"
            yield Published("mlir-air", source, model, context, speed, error, False)
    prompts = [
        *(
            ("FastFlowLM 0.9.31, prompts", model, tokens, tokens / speed)
            for model, row in FASTFLOWLM_2026_PROMPTS.items()
            for tokens, speed in zip(CONTEXTS, row, strict=False)
        ),
        *(
            (f"mlir-air's prompts, {where}", model, MLIR_AIR_PROMPT, seconds)
            for where, row in MLIR_AIR_PROMPTS.items()
            for model, seconds in row.items()
        ),
    ]
    for source, model, tokens, seconds in prompts:
        error = prefill(shape_of(model), tokens, machine).seconds / seconds - 1
        yield Published("mlir-air", source, model, tokens, seconds, error, False)


def summaries() -> tuple[Summary, ...]:
    """The errors by source, and of all sources together."""
    every = tuple(published())
    names = dict.fromkeys(one.source for one in every)
    of_each = (_summary(name, [one for one in every if one.source == name]) for name in names)
    return (*of_each, _summary("all", every))


def _summary(source: str, of: Sequence[Published]) -> Summary:
    errors = [abs(one.error) for one in of if not one.fitted]
    return Summary(source, len(of), len(of) - len(errors), median(errors), max(errors))
