"""A model by the papers' programs: speed by context, beside the papers, and what-ifs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from npu_papers.machine import Machine
from npu_papers.pictures import Picture, picture_of
from npu_papers.power import Draw, draw
from npu_papers.program import decode, prefill
from npu_papers.tables import (
    CONTEXTS,
    SPEEDUPS,
    Cell,
    Phase,
    cells,
    others,
)
from ort_aie_ep.aie_kernels.kernel_cycles import OURS
from ort_aie_ep.formats.q4nx import SHIPPING, BlockForm
from ort_aie_ep.models.shapes import Shape
from ort_aie_ep.npu.terms import costs
from ort_aie_ep.npu.terms.eras import PAPERS, Era, EraName
from ort_aie_ep.prediction.shapes import plans_of, shape_of
from ort_aie_ep.prediction.simulation import PlanSimulation, simulate_plans
from ort_aie_ep.prediction.tally import Timing
from ort_aie_ep.progress import Progress

DEVICE = "npu2"  # the one that the papers' programs fit

#: DDR read bandwidths of `WhatIf`, in bytes a second: paper 2's cap, the most that paper 1's
#: FusedDQP can read, and two that only more channels can read.
BANDWIDTHS = (40e9, 57.6e9, 90e9, 120e9)


@dataclass(frozen=True)
class Point:
    """One phase at one context.

    `value` is tokens per second when decoding, and seconds to the first token of a prompt. `paper`
    is the measured one, if there is one, and `error` the relative difference of the prediction.
    `residual` is measured less predicted time in seconds, `residual_unfitted` the same if a change
    of overlay cost only the least that a source gives. `others` are other hardware's values.
    `draw` is power, inferred (power.py).
    """

    phase: Phase
    context: int
    value: float
    timing: Timing
    draw: Draw
    paper: float | None
    error: float | None
    residual: float | None
    residual_unfitted: float | None
    calibrates: bool
    others: dict[str, float]


@dataclass(frozen=True)
class WhatIf:
    """Speed of a placement at a bandwidth: tokens per second and seconds, by context.

    `kernels` names the cycle counts. One of the phases may be empty, if the placement does not
    affect it.
    """

    placement: str
    kernels: str
    ddr_read: float
    decode: dict[int, float]
    prefill: dict[int, float]


@dataclass(frozen=True)
class Simulation:
    """What `simulate` says of a model. `speedups` are paper 1's, where it gives no speeds.

    `points` and `what_if` are the papers' programs, a run for each layer, with published cycles of
    kernels; `plan` and `picture` are this library's, with its own.
    """

    model: str
    device: str
    era: EraName
    points: tuple[Point, ...]
    what_if: tuple[WhatIf, ...]
    speedups: dict[str, dict[int, float]]
    plan: PlanSimulation
    picture: Picture | None

    def of(self, phase: Phase) -> tuple[Point, ...]:
        """The points of a phase."""
        return tuple(p for p in self.points if p.phase == phase)


def simulate(
    model: str, contexts: Sequence[int] | None = None, progress: Progress | None = None,
    era: Era = PAPERS,
) -> Simulation:  # fmt: skip
    """Predict `model` at `contexts`, by default the papers' columns that it has positions for.

    `progress` counts tokens of prompts, because their plans take most of the time. The papers'
    measurements are beside the predictions of their own era only.

    Raises:
        DesignError: the performance model does not cover the model or a context.
    """
    shape = shape_of(model)
    chosen = tuple(contexts or (c for c in CONTEXTS if c <= shape.context))
    plan = simulate_plans(model, plans_of(shape), shape.context, DEVICE, chosen, progress, era)
    on = Machine.of(era)
    speedups = {
        name: dict(zip(CONTEXTS, values, strict=True))
        for name, values in SPEEDUPS.get(model, {}).items()
        if era is PAPERS
    }
    return Simulation(
        model, DEVICE, era.name, points_of(model, chosen, era), _what_if(shape, on, chosen),
        speedups, plan, picture_of(model, DEVICE, replace(on, kernels=OURS)),
    )  # fmt: skip


def points_of(
    model: str, contexts: Sequence[int] | None = None, era: Era = PAPERS
) -> tuple[Point, ...]:
    """The speeds alone that `simulate` predicts for the papers' programs."""
    shape = shape_of(model)
    on = Machine.of(era)
    measured = {(c.phase, c.context): c for c in cells() if c.model == model and era is PAPERS}
    return tuple(
        _point(
            shape, phase, context, on, measured.get((phase, context)),
            others(model, phase) if era is PAPERS else {},
        )
        for phase in ("decode", "prefill")
        for context in contexts or (c for c in CONTEXTS if c <= shape.context)
    )  # fmt: skip


def _point(
    shape: Shape, phase: Phase, context: int, on: Machine, cell: Cell | None,
    hardware: Mapping[str, Sequence[float]],
) -> Point:  # fmt: skip
    timing = (decode if phase == "decode" else prefill)(shape, context, on)
    value = 1 / timing.seconds if phase == "decode" else timing.seconds
    beside = {
        name: values[CONTEXTS.index(context)]
        for name, values in hardware.items()
        if context in CONTEXTS[: len(values)]
    }
    power = draw(timing, 1 if phase == "decode" else context, shape.layers)
    if cell is None:
        return Point(phase, context, value, timing, power, None, None, None, None, False, beside)
    taken = 1 / cell.value if phase == "decode" else cell.value
    least, _ = costs.OVERLAY_SWITCH.bounds
    cheaper = timing.switches * (on.overlay_switch - least)
    return Point(
        phase, context, value, timing, power, cell.value, value / cell.value - 1,
        taken - timing.seconds, taken - timing.seconds + cheaper, cell.calibrates, beside,
    )  # fmt: skip


# Of FusedDQP, and of FlowKV.
FOUR_COLUMNS = "4 columns, 4 pairs"
EIGHT_COLUMNS = "8 columns, 8 pairs"
TWO_OVERLAYS = "the same, two overlays"
# Of the vector operators.
ONE_COPY = "a core each"
EIGHT_COPIES = "eight copies"
ONE_CONTEXT = "a core each, overlays in one context"
# Weights of 2 and 8 bits, in groups of 32. A kernel for 2 bits was written and counted, for 8 there
# is none: it has the cycles for 4.
TWO_BITS_CYCLES = 2265.1  # of a block, on AIE2P
TWO_BITS, EIGHT_BITS = BlockForm(bits=2), BlockForm(bits=8, minima=False)


def _what_if(shape: Shape, on: Machine, contexts: Sequence[int]) -> tuple[WhatIf, ...]:
    """Other bandwidths, placements and kernels.

    Eight columns of FusedDQP fill the array. FlowKV is then a second program in the same cores, and
    both must fit into 16 KB. Or it is another overlay, which costs two changes a layer, here at the
    least that a source gives. Overlays that share a context (one xclbin with a kernel for each)
    change by loading a PDI.
    """
    least, _ = costs.OVERLAY_SWITCH.bounds
    wide = replace(on, fused_dqp_columns=8, flow_kv_pairs=8)
    apart = replace(wide, overlay_switch=least)

    def tokens(name: str, at: Machine, switches: int = 0, form: BlockForm = SHIPPING) -> WhatIf:
        if form == TWO_BITS:
            at = replace(at, kernels=replace(at.kernels, dqp_block=TWO_BITS_CYCLES))
        speeds = {c: 1 / decode(shape, c, at, switches, form).seconds for c in contexts}
        return WhatIf(name, at.kernels.name, at.ddr_read, speeds, {})

    def prompts(name: str, at: Machine) -> WhatIf:
        seconds = {c: prefill(shape, c, at).seconds for c in contexts}
        return WhatIf(name, at.kernels.name, at.ddr_read, {}, seconds)

    def bandwidths(placed: Machine) -> list[Machine]:
        return [replace(placed, ddr_read=b, ddr_write=b) for b in BANDWIDTHS]

    ours, many = replace(on, kernels=OURS), replace(on, vector_copies=8)
    return (
        *(tokens(FOUR_COLUMNS, at) for at in bandwidths(on)),
        *(tokens(EIGHT_COLUMNS, at) for at in bandwidths(wide)),
        *(tokens(TWO_OVERLAYS, at, 2) for at in bandwidths(apart)),
        tokens(FOUR_COLUMNS, ours),
        *(
            tokens(f"{placement}, {form.bits} bits", at, form=form)
            for placement, at in ((FOUR_COLUMNS, on), (EIGHT_COLUMNS, wide))
            for form in (SHIPPING, TWO_BITS, EIGHT_BITS)
        ),
        *(prompts(ONE_COPY, at) for at in bandwidths(on)),
        prompts(ONE_CONTEXT, replace(on, overlay_switch=costs.PDI_SWITCH.value)),
        prompts(EIGHT_COPIES, many),
        prompts(ONE_COPY, ours),
        prompts(EIGHT_COPIES, replace(many, kernels=OURS)),
    )
