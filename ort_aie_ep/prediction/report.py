"""What a plan is predicted to do, as tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ort_aie_ep.prediction.composition import Composition, Part
from ort_aie_ep.prediction.ranges import BASIS, Phase, range_words
from ort_aie_ep.prediction.simulation import PlanSimulation

_T = TypeVar("_T")
_DECODE_PARTS: tuple[Part, ...] = (
    "layers", "lm_head", "projections", "attention", "vector", "dispatch",
)  # fmt: skip
_PREFILL_PARTS: tuple[Part, ...] = (
    "gemm", "dequant", "attention", "projections", "vector", "dispatch", "switches",
)  # fmt: skip


def plan_tables(plan: PlanSimulation) -> RenderableType:
    """What this library's plan does: time, submissions, runs, bytes, and the host's steps."""
    title = f"{plan.model} on npu2: the plan of this library"
    shown: list[RenderableType] = []
    phases: tuple[tuple[Phase, tuple[Composition, ...], tuple[Part, ...], str, float], ...] = (
        ("token", plan.decode, _DECODE_PARTS, "ms", 1e3),
        ("prompt", plan.prefill, _PREFILL_PARTS, "s", 1.0),
    )
    for kind, of, names, unit, scale in phases:
        phase = f"a {kind}"
        timings = [one.timing for one in of]
        parts = [name for name in names if any(timing.parts.get(name) for timing in timings)]
        # Where all steps stay on the host, there is no speed of an NPU to predict.
        speeds = [f"{1 / timing.seconds:.2f}" if timing.seconds else "–" for timing in timings]
        rows = {"tokens/s": speeds} if of is plan.decode else {}
        rows["range"] = [range_words(kind, t.seconds) if t.seconds else "–" for t in timings]
        rows[unit] = [f"{timing.seconds * scale:.2f}" for timing in timings]
        for name in parts:
            rows[name] = [f"{timing.parts.get(name, 0) * scale:.2f}" for timing in timings]
        rows["GB read"] = [f"{timing.read / 1e9:.2f}" for timing in timings]
        rows["GB written"] = [f"{timing.write / 1e9:.2f}" for timing in timings]
        table = new_table("context", *(in_k(one.context) for one in of))
        for row, values in rows.items():
            table.add_row(row, *values)
        # Not the table's own title, which would be folded to the table's width.
        shown.append(Text(f"{title}, {phase}; parts in {unit}"))
        shown += [table, *(plan_line(phase, one) for one in ends(of))]
    shown.append(Text(BASIS))
    shown.append(Text(f"weights, as the device reads them: {plan.form}"))
    return Group(*shown)


def plan_line(phase: str, one: Composition) -> Text:
    """How a call reaches the device, and which steps the host does; no table has their time."""
    steps = ", ".join(f"{reason}: {count}" for reason, count in one.host_steps.items())
    return Text(
        f"{phase} at {in_k(one.context)}: {one.device_steps} steps in "
        f"{one.submissions} submission{'' if one.submissions == 1 else 's'}, {one.timing.runs} "
        f"run{'' if one.timing.runs == 1 else 's'}, {one.timing.switches} changes of overlay; on "
        f"the host, not counted: {steps or 'none'}"
        + (f"; not on fused_layer: {one.layers_refused}" if one.layers_refused else "")
    )


def ends(points: Sequence[_T]) -> Sequence[_T]:
    """The first and the last."""
    return points if len(points) < 2 else (points[0], points[-1])


def in_k(tokens: int) -> str:
    """A context length, such as 4k."""
    return f"{tokens // 1024}k" if tokens % 1024 == 0 else str(tokens)


def new_table(first: str, *others: str, title: str | None = None) -> Table:
    """A table without rows; the first column is of names."""
    table = Table(box=box.SIMPLE, title=title, title_justify="left")
    table.add_column(first, justify="left")
    for name in others:
        table.add_column(name, justify="right")
    return table
