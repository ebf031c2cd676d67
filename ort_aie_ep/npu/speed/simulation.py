"""A model's speed against context, beside the papers, and what other designs would give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ort_aie_ep.formats.q4nx import SHIPPING, BlockForm
from ort_aie_ep.models.shapes import Shape
from ort_aie_ep.npu.speed.kernels import OURS, kernels_of
from ort_aie_ep.npu.speed.models import shape_of, steps_of
from ort_aie_ep.npu.speed.operators import Machine
from ort_aie_ep.npu.speed.papers import (
    CONTEXTS,
    SPEEDUPS,
    Cell,
    Phase,
    cells,
    others,
)
from ort_aie_ep.npu.speed.phases import decode, prefill
from ort_aie_ep.npu.speed.pictures import Picture, picture_of
from ort_aie_ep.npu.speed.plans import Composition, compose
from ort_aie_ep.npu.speed.power import Draw, draw
from ort_aie_ep.npu.speed.steps import Plans, form_of
from ort_aie_ep.npu.speed.tally import Timing
from ort_aie_ep.npu.vocabulary import costs
from ort_aie_ep.npu.vocabulary.device import device as find_device
from ort_aie_ep.npu.vocabulary.eras import PAPERS, Era, EraName
from ort_aie_ep.npu.vocabulary.errors import DesignError
from ort_aie_ep.progress import Count, Progress

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
class PlanSimulation:
    """What this library's plan of a model does: tokens and prompts by context. `form` is that in
    which the device reads its quantised weights."""

    model: str
    device: str
    era: EraName
    form: BlockForm
    decode: tuple[Composition, ...]
    prefill: tuple[Composition, ...]


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


def machine(device: str, era: Era = PAPERS) -> Machine:
    """The device as the model sees it, with the constants of an era.

    Raises:
        DesignError: the device is unknown, or the designs' placements do not fit it.
    """
    found = find_device(device)
    if (found.architecture, found.columns) != ("aie2p", 8):
        raise DesignError(
            f"device {device!r}: the performance model's placements need 8 columns of AIE2P; "
            "known: npu2"
        )
    return Machine.of(era, columns=found.columns)


def simulate(
    model: str,
    device: str = "npu2",
    contexts: Sequence[int] | None = None,
    progress: Progress | None = None,
    era: Era = PAPERS,
    form: BlockForm = SHIPPING,
) -> Simulation:
    """Predict `model` at `contexts`, by default the papers' columns that it has positions for.

    `form` is that of the weights of this library's plan. `progress` counts tokens of prompts,
    because their plans take most of the time. The papers' measurements are beside the predictions
    of their own era only.

    Raises:
        DesignError: the performance model does not cover the model, the device or a context.
    """
    shape = shape_of(model)
    on = machine(device, era)
    chosen = _contexts(model, shape.context, contexts)
    points = points_of(model, device, chosen, era)
    speedups = {
        name: dict(zip(CONTEXTS, values, strict=True))
        for name, values in SPEEDUPS.get(model, {}).items()
        if era is PAPERS
    }
    plan = simulate_plans(
        model, steps_of(shape, form), shape.context, device, chosen, progress, era
    )
    picture = picture_of(model, device, replace(on, kernels=OURS))
    what_if = _what_if(shape, on, chosen)
    return Simulation(model, device, era.name, points, what_if, speedups, plan, picture)


def points_of(
    model: str,
    device: str = "npu2",
    contexts: Sequence[int] | None = None,
    era: Era = PAPERS,
) -> tuple[Point, ...]:
    """The speeds alone that `simulate` predicts for the papers' programs.

    Raises:
        DesignError: as `simulate`.
    """
    shape = shape_of(model)
    on = machine(device, era)
    measured = {(c.phase, c.context): c for c in cells() if c.model == model and era is PAPERS}
    return tuple(
        _point(
            shape,
            phase,
            context,
            on,
            measured.get((phase, context)),
            others(model, phase) if era is PAPERS else {},
        )
        for phase in ("decode", "prefill")
        for context in _contexts(model, shape.context, contexts)
    )


def simulate_plans(
    model: str, plans: Plans, positions: int | None, device: str = "npu2",
    contexts: Sequence[int] | None = None, progress: Progress | None = None, era: Era = PAPERS,
) -> PlanSimulation:  # fmt: skip
    """Predict the plans of a compiled model at `contexts`, by default as `simulate` does.

    The kernels have this project's cycles, of the era silicon-2026 no fewer than silicon showed
    (`kernels_of`). `progress` counts tokens of prompts.

    Raises:
        DesignError: the performance model does not cover the device or a context.
    """
    on = replace(machine(device, era), kernels=kernels_of(era))
    chosen = _contexts(model, positions, contexts)
    decoding = tuple(compose(plans, 1, context, on) for context in chosen)
    count = Count(progress, sum(chosen))
    prompts = []
    for context in chosen:
        count.begin(f"{model}, a prompt of {context} tokens")
        prompts.append(compose(plans, context, context, on))
        count.step(context)
    form = form_of(max(plans, key=len))
    return PlanSimulation(model, device, era.name, form, decoding, tuple(prompts))


def _contexts(model: str, positions: int | None, contexts: Sequence[int] | None) -> tuple[int, ...]:
    if contexts is None:
        all_of_them = tuple(c for c in CONTEXTS if positions is None or c <= positions)
        return all_of_them or (positions or CONTEXTS[0],)
    for context in contexts:
        if context < 1 or (positions is not None and context > positions):
            most = "more" if positions is None else str(positions)
            raise DesignError(f"context {context}: {model} has 1 to {most} positions")
    return tuple(contexts)


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
# Weights of 2 and 8 bits, in groups of 32. For 8 bits there is no kernel: it has the cycles for 4.
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
