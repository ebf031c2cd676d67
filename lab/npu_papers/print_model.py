"""A model by the papers' programs, as tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from npu_papers.model import Point, Simulation
from npu_papers.pictures import Picture
from npu_papers.tables import CONTEXTS, FASTFLOWLM_SPEEDS
from ort_aie_ep.npu.terms import costs
from ort_aie_ep.npu.terms.eras import PAPERS
from ort_aie_ep.prediction.report import (
    ends,
    in_k,
    marked,
    new_table,
    plan_line,
    plan_tables,
    three_digits,
)
from ort_aie_ep.prediction.tally import Part

_DECODE_PARTS: tuple[Part, ...] = ("projections", "attention", "vector", "lm_head", "dispatch")
_PREFILL_PARTS: tuple[Part, ...] = (
    "gemm", "dequant", "attention", "vector", "lm_head", "dispatch", "switches",
)  # fmt: skip
_PICTURE_PARTS: tuple[Part, ...] = ("gemm", "attention", "dispatch", "switches")


def simulation_tables(simulation: Simulation) -> RenderableType:
    """Decode, prefill and what-if of one model."""
    title = f"{simulation.model} on {simulation.device}"
    shown: list[RenderableType] = []
    for phase, unit in (("decode", "tokens per second; parts in ms"),
                        ("prefill", "seconds to the first token; parts in s")):  # fmt: skip
        points = [p for p in simulation.points if p.phase == phase]
        shown.append(_parts(f"{title}: {phase}, {unit}", points))
        if any(p.paper is not None for p in points):
            shown.append(_beside(points))
        if simulation.era == PAPERS.name:  # whose watts are published
            shown.append(_power(points))
        shown += [_bound_line(p) for p in ends(points)]
        shown.append(Text())
    shown += _what_if(simulation)
    if simulation.speedups:
        contexts = list(next(iter(simulation.speedups.values())))
        table = new_table("Paper 1, Table I: its NPU's speed over", *map(in_k, contexts))
        speeds = dict(zip(CONTEXTS, FASTFLOWLM_SPEEDS[simulation.model], strict=True))
        predicted = {p.context: p.value for p in simulation.of("decode")}
        for name, values in simulation.speedups.items():
            table.add_row(name, *(f"{v:.1f}x" for v in values.values()))
            table.add_row("  predicted", *(
                f"{v * predicted[c] / speeds[c]:.2g}x" if c in predicted else ""
                for c, v in values.items()
            ))  # fmt: skip
        shown.append(
            Text(
                "The papers give this model's speed as ratios only. The predicted ratio is to a "
                "backend with FastFlowLM's speed by the paper's ratio."
            )
        )
        shown.append(table)
    shown += [Text(), plan_tables(simulation.plan)]
    if simulation.picture is not None:
        shown += [Text(), picture_table(simulation.picture)]
    return Group(*shown)


def picture_table(picture: Picture) -> RenderableType:
    """A picture by this library's plan, beside paper 2's time."""
    table = new_table(
        "", "s", *(marked(part, False) for part in _PICTURE_PARTS), "GB read", "GB written",
        "paper",
        *(f"paper's {name}" for name in picture.others),
        title=f"{picture.model} on {picture.device}: a picture by the plan of this library; in s",
    )  # fmt: skip
    rows = {
        "layers of the vision tower": picture.layers.timing,
        "projection of its tokens": picture.projection.timing,
    }
    for name, timing in rows.items():
        table.add_row(
            name, f"{timing.seconds:.3f}",
            *(f"{timing.parts.get(part, 0):.3f}" for part in _PICTURE_PARTS),
            f"{timing.read / 1e9:.2f}", f"{timing.write / 1e9:.2f}",
        )  # fmt: skip
    blank = [""] * (len(_PICTURE_PARTS) + 2)
    others = (f"{value:g}" for value in picture.others.values())
    table.add_row("both", f"{picture.seconds:.3f}", *blank, f"{picture.paper:g}", *others)
    return Group(table, plan_line("a picture", picture.layers))


def _parts(title: str, points: Sequence[Point]) -> Table:
    decoding = points[0].phase == "decode"
    names = _DECODE_PARTS if decoding else _PREFILL_PARTS
    heading = (marked(name, decoding) for name in names)
    table = new_table("context", "model", *heading, "DDR alone", title=title)
    for p in points:
        seconds = [*(p.timing.parts.get(name, 0) for name in names), p.timing.ddr_seconds]
        parts = (f"{s * (1e3 if decoding else 1):.2f}" for s in seconds)
        table.add_row(in_k(p.context), f"{p.value:.2f}", *parts)
    return table


def _beside(points: Sequence[Point]) -> Table:
    """The same points beside the papers' cells."""
    decoding = points[0].phase == "decode"
    unit, scale = ("ms", 1e3) if decoding else ("s", 1)
    least, _ = costs.OVERLAY_SWITCH.bounds
    unfitted = [] if decoding else [f"at {least * 1e6:.1f} µs a switch"]
    hardware = list(points[0].others)
    table = new_table(
        "context", "model", "paper", "error", f"residual, {unit}", *unfitted,
        *(f"paper's {h}" for h in hardware),
    )  # fmt: skip
    for p in points:
        if p.paper is None or p.error is None or p.residual is None or p.residual_unfitted is None:
            continue
        residuals = [p.residual] if decoding else [p.residual, p.residual_unfitted]
        table.add_row(
            in_k(p.context), f"{p.value:.2f}", f"{p.paper:g}{'*' if p.calibrates else ''}",
            f"{p.error:+.1%}", *(f"{s * scale:+.2f}" for s in residuals),
            *(f"{p.others[h]:g}" if h in p.others else "" for h in hardware),
        )  # fmt: skip
    return table


def _power(points: Sequence[Point]) -> Table:
    """Watts, and tokens per second and watt."""
    table = new_table(
        "context", "W, NPU", "TPS/W, NPU", "W, with CPU", "TPS/W, with CPU",
        title="Power, inferred from the papers' watts; with CPU: as much as paper 2's drew",
    )  # fmt: skip
    for p in points:
        table.add_row(
            in_k(p.context), f"{p.draw.npu_watts:.2f}", three_digits(p.draw.tokens_per_watt),
            f"{p.draw.with_cpu_watts:.2f}", three_digits(p.draw.with_cpu_tokens_per_watt),
        )  # fmt: skip
    return table


def _bound_line(point: Point) -> Text:
    """Which design takes most of the time, and what limits it."""
    timing = point.timing
    shares = {**timing.parts}
    most = max(shares, key=lambda name: shares[name])
    bounds = ", ".join(
        f"{name} {seconds / timing.seconds:.0%}" for name, seconds in timing.by_bound.items()
    )
    return Text(
        f"{point.phase} at {in_k(point.context)}: most time in {most} "
        f"({shares[most] / timing.seconds:.0%}); bound by {bounds}; "
        f"{timing.runs} runs, {timing.switches} changes of overlay"
    )


def _what_if(simulation: Simulation) -> Iterable[RenderableType]:
    contexts = sorted({p.context for p in simulation.points})
    for phase, unit in (
        ("decode", "tokens per second. FusedDQP's columns, FlowKV's pairs"),
        ("prefill", "seconds. Vector operators"),
    ):
        table = new_table(
            "placement", "kernels", "GB/s", *map(in_k, contexts),
            title=f"What if, {phase}: {unit}",
        )  # fmt: skip
        for w in simulation.what_if:
            values = w.decode if phase == "decode" else w.prefill
            if values:
                cells = (f"{values[c]:.3g}" for c in contexts)
                table.add_row(w.placement, w.kernels, f"{w.ddr_read / 1e9:.3g}", *cells)
        yield table
