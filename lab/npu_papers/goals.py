"""This project's plans beside AMD's open decoder (tokens) and paper 2 (prompts)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

from npu_papers import mlir_air
from npu_papers.machine import Machine
from npu_papers.tables import CONTEXTS, FASTFLOWLM_2026_TOKENS, MLIR_AIR_TOKENS, ROWS
from ort_aie_ep.aie_kernels.kernel_cycles import OURS, PUBLISHED
from ort_aie_ep.npu.terms.eras import MLIR_AIR, PAPERS
from ort_aie_ep.prediction.composition import compose
from ort_aie_ep.prediction.shapes import plans_of, shape_of

#: The longest context of the comparison: beyond it, mlir-air's own offsets wrap.
LONGEST = 32768


@dataclass(frozen=True)
class BesideAmd:
    """A token of this project beside AMD's measured one, in tokens per second.

    `predicted` has the cycles of this project's kernels, `with_published` those of published ones,
    `with_theirs` those to which mlir-air's decoder is fitted, of attention and of the ends of
    rounds. All use the era of the measurement. `fastflowlm` is what FastFlowLM's pages of January
    2026 have, if they do.
    """

    model: str
    context: int
    measured: float
    predicted: float
    with_published: float
    with_theirs: float
    fastflowlm: float | None


@dataclass(frozen=True)
class BesidePaper2:
    """Seconds of a prompt: paper 2's to the first token, and the device's alone in this project.

    `predicted` has the cycles of this project's kernels and the constants of the papers' era,
    `later` those of the era mlir-air.
    """

    model: str
    context: int
    measured: float
    predicted: float
    later: float


@cache
def beside_paper2() -> tuple[BesidePaper2, ...]:
    """Every cell of paper 2's Tables 1 and 2."""
    return tuple(_beside_paper2())


def _beside_paper2() -> Iterator[BesidePaper2]:
    machines = [replace(Machine.of(era), kernels=OURS) for era in (PAPERS, MLIR_AIR)]
    for row in ROWS:
        if (row.paper, row.phase, row.hardware) != (2, "prefill", "NPU"):
            continue
        plans = plans_of(shape_of(row.model))
        for context, measured in zip(CONTEXTS, row.values, strict=False):
            prompts = (compose(plans, context, context, machine) for machine in machines)
            yield BesidePaper2(
                row.model, context, measured, *(prompt.timing.seconds for prompt in prompts)
            )


@cache
def beside_amd() -> tuple[BesideAmd, ...]:
    """Every cell of mlir-air's sweep up to 32k."""
    return tuple(_beside_amd())


def _beside_amd() -> Iterator[BesideAmd]:
    machines = [
        replace(Machine.of(MLIR_AIR), kernels=kernels)
        for kernels in (OURS, PUBLISHED, mlir_air.KERNELS)
    ]
    for model, row in MLIR_AIR_TOKENS.items():
        plans = plans_of(mlir_air.DECODERS[model].shape)
        closed = dict(zip(CONTEXTS, FASTFLOWLM_2026_TOKENS.get(model, ()), strict=False))
        for context, measured in zip(CONTEXTS, row, strict=True):
            if context <= LONGEST:
                tokens = (compose(plans, 1, context, machine) for machine in machines)
                own, published, theirs = (1 / token.timing.seconds for token in tokens)
                yield BesideAmd(
                    model, context, measured, own, published, theirs, closed.get(context)
                )
