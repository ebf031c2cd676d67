"""A token of this project's plans beside the same model's token in AMD's open decoder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ort_aie_ep.npu.speed import mlir_air
from ort_aie_ep.npu.speed.kernels import OURS, PUBLISHED
from ort_aie_ep.npu.speed.models import MODELS, shape_of, steps_of
from ort_aie_ep.npu.speed.operators import Machine
from ort_aie_ep.npu.speed.papers import CONTEXTS
from ort_aie_ep.npu.speed.plans import compose
from ort_aie_ep.npu.vocabulary.eras import MLIR_AIR

#: The longest context of the comparison: beyond it, mlir-air's own offsets wrap.
LONGEST = 32768


@dataclass(frozen=True)
class BesideAmd:
    """A token of this project beside AMD's measured one, in tokens per second.

    `predicted` has the cycles of this project's kernels, `with_published` those of published ones.
    `with_their_attention` has mlir-air's measured cycles of attention instead. All use the era of
    the measurement.
    """

    model: str
    context: int
    measured: float
    predicted: float
    with_published: float
    with_their_attention: float


def beside_amd() -> Iterator[BesideAmd]:
    """Every cell of mlir-air's sweep up to 32k for a model that this project has a plan of."""
    machines = [
        replace(Machine.of(MLIR_AIR), kernels=kernels)
        for kernels in (OURS, PUBLISHED, mlir_air.KERNELS)
    ]
    for model in MODELS:
        plans = steps_of(shape_of(model))
        for context, measured in zip(CONTEXTS, mlir_air.MEASURED.get(model, ()), strict=False):
            if context <= LONGEST:
                tokens = (compose(plans, 1, context, machine) for machine in machines)
                speeds = (1 / token.timing.seconds for token in tokens)
                yield BesideAmd(model, context, measured, *speeds)
