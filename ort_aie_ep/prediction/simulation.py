"""The plan of a model at several contexts: tokens and prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ort_aie_ep.formats.q4nx import SHIPPING, BlockForm
from ort_aie_ep.npu.terms.errors import DesignError
from ort_aie_ep.prediction.composition import Composition, compose, form_of
from ort_aie_ep.prediction.recipes import Plans
from ort_aie_ep.prediction.shapes import plans_of, shape_of
from ort_aie_ep.progress import Count, Progress

#: Where no contexts are given. Prompts beyond them take seconds each to compose.
CONTEXTS = (1024, 2048, 4096, 8192)


@dataclass(frozen=True)
class PlanSimulation:
    """What this library's plan of a model does: tokens and prompts by context. `form` is that in
    which the device reads its quantised weights."""

    model: str
    form: BlockForm
    decode: tuple[Composition, ...]
    prefill: tuple[Composition, ...]


def simulate(
    model: str, contexts: Sequence[int] | None = None, progress: Progress | None = None,
    form: BlockForm = SHIPPING,
) -> PlanSimulation:  # fmt: skip
    """Predict the plan that `compile --last-logits` makes of a model of a known shape, with its
    weights in `form`; otherwise as `simulate_plans`.

    Raises:
        DesignError: the performance model does not cover the model or a context.
    """
    shape = shape_of(model)
    plans = plans_of(shape, form)
    return simulate_plans(model, plans, shape.context, contexts, progress)


def simulate_plans(
    model: str, plans: Plans, positions: int | None, contexts: Sequence[int] | None = None,
    progress: Progress | None = None,
) -> PlanSimulation:  # fmt: skip
    """Predict the plans of a compiled model at `contexts`, by default `CONTEXTS`.

    `progress` counts tokens of prompts.

    Raises:
        DesignError: the performance model does not cover a context.
    """
    chosen = _contexts(model, positions, contexts)
    decoding = tuple(compose(plans, 1, context) for context in chosen)
    count = Count(progress, sum(chosen))
    prompts = []
    for context in chosen:
        count.begin(f"{model}, a prompt of {context} tokens")
        prompts.append(compose(plans, context, context))
        count.step(context)
    return PlanSimulation(model, form_of(plans), decoding, tuple(prompts))


def _contexts(model: str, positions: int | None, contexts: Sequence[int] | None) -> tuple[int, ...]:
    if contexts is None:
        all_of_them = tuple(c for c in CONTEXTS if positions is None or c <= positions)
        return all_of_them or (positions or CONTEXTS[0],)
    for context in contexts:
        if context < 1 or (positions is not None and context > positions):
            most = "more" if positions is None else str(positions)
            raise DesignError(f"context {context}: {model} has 1 to {most} positions")
    return tuple(contexts)
