"""Simulations and judgements as tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ort_aie_ep.npu.speed.beside import PROMPTS, Comparison, beside
from ort_aie_ep.npu.speed.goals import beside_amd, beside_paper2
from ort_aie_ep.npu.speed.judgement import Judgement
from ort_aie_ep.npu.speed.mlir_air import UNTOUCHED, Sweep
from ort_aie_ep.npu.speed.papers import CONTEXTS, FASTFLOWLM_SPEEDS
from ort_aie_ep.npu.speed.pictures import Picture
from ort_aie_ep.npu.speed.plans import Composition
from ort_aie_ep.npu.speed.published import SWEEP, published, summaries
from ort_aie_ep.npu.speed.simulation import PlanSimulation, Point, Simulation
from ort_aie_ep.npu.speed.tally import Part
from ort_aie_ep.npu.vocabulary import costs
from ort_aie_ep.npu.vocabulary.eras import ERAS, PAPERS

_DECODE_PARTS: tuple[Part, ...] = ("projections", "attention", "vector", "lm_head", "dispatch")
_PREFILL_PARTS: tuple[Part, ...] = (
    "gemm", "dequant", "attention", "vector", "lm_head", "dispatch", "switches",
)  # fmt: skip
_T = TypeVar("_T")
_PLAN_DECODE_PARTS: tuple[Part, ...] = (
    "layers", "lm_head", "projections", "attention", "vector", "dispatch",
)  # fmt: skip
_PLAN_PREFILL_PARTS: tuple[Part, ...] = (
    "gemm", "dequant", "attention", "projections", "vector", "dispatch", "switches",
)  # fmt: skip
_PICTURE_PARTS: tuple[Part, ...] = ("gemm", "attention", "dispatch", "switches")
_SCALES = {"B/s": (1e9, "GB/s"), "s": (1e-6, "µs")}


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
        shown += [_bound_line(p) for p in _ends(points)]
        shown.append(Text())
    shown += _what_if(simulation)
    if simulation.speedups:
        contexts = list(next(iter(simulation.speedups.values())))
        table = _table("Paper 1, Table I: its NPU's speed over", *map(_context, contexts))
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
    table = _table(
        "", "s", *(_marked(part, False) for part in _PICTURE_PARTS), "GB read", "GB written",
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
    return Group(table, _plan_line("a picture", picture.layers))


def plan_tables(plan: PlanSimulation) -> RenderableType:
    """What this library's plan does: time, submissions, runs, bytes, and the host's steps."""
    title = f"{plan.model} on {plan.device}: the plan of this library, its own kernels' cycles"
    # Watts are published for the era of the papers only.
    power = ("TPS/W, inferred",) if plan.era == PAPERS.name else ()
    shown: list[RenderableType] = []
    for phase, of, names, unit, scale in (
        ("a token", plan.decode, _PLAN_DECODE_PARTS, "ms", 1e3),
        ("a prompt", plan.prefill, _PLAN_PREFILL_PARTS, "s", 1.0),
    ):
        rate = ("tokens/s",) if of is plan.decode else ()
        parts = [name for name in names if any(one.timing.parts.get(name) for one in of)]
        table = _table(
            "context", *rate, unit, *(_marked(name, bool(rate)) for name in parts), "GB read",
            "GB written", *power, title=f"{title}, {phase}; parts in {unit}",
        )  # fmt: skip
        for one in of:
            timing = one.timing
            # Where all steps stay on the host, there is no speed of an NPU to predict.
            speed = f"{1 / timing.seconds:.2f}" if timing.seconds else "–"
            rates = (speed,) if rate else ()
            seconds = [timing.seconds, *(timing.parts.get(name, 0) for name in parts)]
            table.add_row(
                _context(one.context), *rates, *(f"{s * scale:.2f}" for s in seconds),
                f"{timing.read / 1e9:.2f}", f"{timing.write / 1e9:.2f}",
                *(_rate(one.draw.tokens_per_watt) if one.draw else "–" for _ in power),
            )  # fmt: skip
        shown += [table, *(_plan_line(phase, one) for one in _ends(of))]
    shown.append(Text(f"weights, as the device reads them: {plan.form}"))
    if beside().unconfirmed:
        shown.append(
            Text(
                "†: its attention is faster than anyone has measured such a kernel "
                "(ort-aie predict --kernels)"
            )
        )
    return Group(*shown)


def _marked(part: Part, decoding: bool) -> str:
    """The name of a part, with a mark if the design of its attention is unconfirmed."""
    design = "flow_kv" if decoding else "flow_qkv"
    attends = part in ("attention", "layers")
    return f"{part}†" if attends and design in beside().unconfirmed else part


def _plan_line(phase: str, one: Composition) -> Text:
    """How a call reaches the device, and which steps the host does; no table has their time."""
    steps = ", ".join(f"{reason}: {count}" for reason, count in one.host_steps.items())
    return Text(
        f"{phase} at {_context(one.context)}: {one.device_steps} steps in "
        f"{one.submissions} submission{'' if one.submissions == 1 else 's'}, {one.timing.runs} "
        f"run{'' if one.timing.runs == 1 else 's'}, {one.timing.switches} changes of overlay; on "
        f"the host, not counted: {steps or 'none'}"
        + (f"; not on fused_layer: {one.layers_refused}" if one.layers_refused else "")
    )


def judgement_tables(judgement: Judgement) -> RenderableType:
    """Constants, every cell of the papers, goals."""
    return Group(
        era_table(),
        summary_table(),
        _constants(judgement),
        _cells(judgement, "decode", "Decode, tokens per second"),
        _cells(judgement, "prefill", "Prefill, seconds to the first token"),
        _left_out(judgement),
        *_slopes(judgement),
        _end_to_end(judgement),
        _kv(judgement),
        _goals(judgement),
        *_power_errors(judgement),
    )


def _parts(title: str, points: Sequence[Point]) -> Table:
    decoding = points[0].phase == "decode"
    names = _DECODE_PARTS if decoding else _PREFILL_PARTS
    heading = (_marked(name, decoding) for name in names)
    table = _table("context", "model", *heading, "DDR alone", title=title)
    for p in points:
        seconds = [*(p.timing.parts.get(name, 0) for name in names), p.timing.ddr_seconds]
        parts = (f"{s * (1e3 if decoding else 1):.2f}" for s in seconds)
        table.add_row(_context(p.context), f"{p.value:.2f}", *parts)
    return table


def _beside(points: Sequence[Point]) -> Table:
    """The same points beside the papers' cells."""
    decoding = points[0].phase == "decode"
    unit, scale = ("ms", 1e3) if decoding else ("s", 1)
    least, _ = costs.OVERLAY_SWITCH.bounds
    unfitted = [] if decoding else [f"at {least * 1e6:.1f} µs a switch"]
    hardware = list(points[0].others)
    table = _table(
        "context", "model", "paper", "error", f"residual, {unit}", *unfitted,
        *(f"paper's {h}" for h in hardware),
    )  # fmt: skip
    for p in points:
        if p.paper is None or p.error is None or p.residual is None or p.residual_unfitted is None:
            continue
        residuals = [p.residual] if decoding else [p.residual, p.residual_unfitted]
        table.add_row(
            _context(p.context), f"{p.value:.2f}", f"{p.paper:g}{'*' if p.calibrates else ''}",
            f"{p.error:+.1%}", *(f"{s * scale:+.2f}" for s in residuals),
            *(f"{p.others[h]:g}" if h in p.others else "" for h in hardware),
        )  # fmt: skip
    return table


def _power(points: Sequence[Point]) -> Table:
    """Watts, and tokens per second and watt."""
    table = _table(
        "context", "W, NPU", "TPS/W, NPU", "W, with CPU", "TPS/W, with CPU",
        title="Power, inferred from the papers' watts; with CPU: as much as paper 2's drew",
    )  # fmt: skip
    for p in points:
        table.add_row(
            _context(p.context), f"{p.draw.npu_watts:.2f}", _rate(p.draw.tokens_per_watt),
            f"{p.draw.with_cpu_watts:.2f}", _rate(p.draw.with_cpu_tokens_per_watt),
        )  # fmt: skip
    return table


def _power_errors(judgement: Judgement) -> Iterable[Table]:
    watts = _table(
        "source", "model", "phase", "published", "model", "error", "left out",
        title="Power: watts of the NPU (left out: fitted without the figure; blank: not fitted)",
    )  # fmt: skip
    for e in judgement.power:
        left_out = "" if e.left_out is None else f"{e.left_out:+.1%}"
        watts.add_row(
            e.figure.source, e.figure.model, e.figure.phase, f"{e.figure.npu:g}",
            f"{e.predicted:.2f}", f"{e.error:+.1%}", left_out,
        )  # fmt: skip
    causes = _table(
        "cause", "idle, W", "mJ for each", "", "worst error", "left out",
        title="Power: what else could be its cause, fitted to the same figures",
    )  # fmt: skip
    for a in judgement.power_alternatives:
        causes.add_row(
            a.cause, f"{a.idle:.2f}", f"{a.slope * 1e3:.3g}", a.unit, f"{a.worst:.1%}",
            f"{a.worst_left_out:.1%}",
        )  # fmt: skip
    return watts, causes


def _ends(points: Sequence[_T]) -> Sequence[_T]:
    return points if len(points) < 2 else (points[0], points[-1])


def _bound_line(point: Point) -> Text:
    """Which design takes most of the time, and what limits it."""
    timing = point.timing
    shares = {**timing.parts}
    most = max(shares, key=lambda name: shares[name])
    bounds = ", ".join(
        f"{name} {seconds / timing.seconds:.0%}" for name, seconds in timing.by_bound.items()
    )
    return Text(
        f"{point.phase} at {_context(point.context)}: most time in {most} "
        f"({shares[most] / timing.seconds:.0%}); bound by {bounds}; "
        f"{timing.runs} runs, {timing.switches} changes of overlay"
    )


def _what_if(simulation: Simulation) -> Iterable[RenderableType]:
    contexts = sorted({p.context for p in simulation.points})
    for phase, unit in (
        ("decode", "tokens per second. FusedDQP's columns, FlowKV's pairs"),
        ("prefill", "seconds. Vector operators"),
    ):
        table = _table(
            "placement", "kernels", "GB/s", *map(_context, contexts),
            title=f"What if, {phase}: {unit}",
        )  # fmt: skip
        for w in simulation.what_if:
            values = w.decode if phase == "decode" else w.prefill
            if values:
                cells = (f"{values[c]:.3g}" for c in contexts)
                table.add_row(w.placement, w.kernels, f"{w.ddr_read / 1e9:.3g}", *cells)
        yield table


def _constants(judgement: Judgement) -> Table:
    table = _table(
        "fitted constant", "value", "unit", "sources allow", "one cell left out", "within",
        title="Fitted constants: fitted by lab/fit_npu_model.py",
    )  # fmt: skip
    for name, cost in judgement.constants.items():
        scale, unit = _SCALES[cost.unit]
        low, high = cost.bounds
        moved = [
            getattr(result.constants, name.lower())
            for result in judgement.left_out
            if name != "OVERLAY_SWITCH" or result.cell.phase == "decode"
        ]
        table.add_row(
            name, f"{cost.value / scale:.4g}", unit, f"{low / scale:.4g} to {high / scale:.4g}",
            f"{min(moved) / scale:.4g} to {max(moved) / scale:.4g}",
            "no" if name in judgement.outside else "yes",
        )  # fmt: skip
    return table


def _cells(judgement: Judgement, phase: str, title: str) -> Table:
    rows = [c for c in judgement.cells if c.cell.phase == phase]
    contexts = sorted({c.cell.context for c in rows})
    table = _table("model", "", *map(_context, contexts), title=f"{title} (*: calibrated on)")
    for name in dict.fromkeys(c.cell.model for c in rows):
        for kernels in dict.fromkeys(c.kernels for c in rows):
            own = {c.cell.context: c for c in rows if (c.cell.model, c.kernels) == (name, kernels)}
            found = [own.get(context) for context in contexts]
            first = found[0]
            if first and kernels == rows[0].kernels:
                cells = (
                    f"{c.cell.value:g}{'*' if c.cell.calibrates else ''}" if c else ""
                    for c in found
                )
                paper = f"paper {first.cell.paper}, Table {first.cell.table}"
                table.add_row(name, paper, *cells)
            table.add_row("", kernels, *(f"{c.predicted:.3g}" if c else "" for c in found))
            table.add_row("", "error", *(f"{c.error:+.1%}" if c else "" for c in found))
    return table


def _left_out(judgement: Judgement) -> Table:
    table = _table(
        "cell left out", "paper", "predicted", "error", title="Leave one out: refitted without it"
    )
    for result in judgement.left_out:
        cell = result.cell
        table.add_row(
            f"{cell.model}, {cell.phase} at {_context(cell.context)}", f"{cell.value:g}",
            f"{result.predicted:.3g}", f"{result.error:+.1%}",
        )  # fmt: skip
    return table


def _slopes(judgement: Judgement) -> Iterable[Table]:
    table = _table(
        "model", "kernels", "vector operators", "paper", "model", "error", "worst interval",
        "its error", title="Prefill: slope in prompt length, ms a token",
    )  # fmt: skip
    curves = _table(
        "", "", "s", "s per 1k", "s per 1k²", title="Prefill: parabolas through the same points"
    )
    shown: set[str] = set()
    for s in judgement.slopes:
        begin, end = s.worst_between
        copies = "a core each" if s.vector_copies == 1 else f"{s.vector_copies} copies"
        table.add_row(
            s.model_name, s.kernels, copies, f"{s.paper * 1e3:.3f}", f"{s.model * 1e3:.3f}",
            f"{s.error:+.1%}", f"{_context(begin)} to {_context(end)}", f"{s.worst_error:+.1%}",
        )  # fmt: skip
        if s.model_name not in shown:
            shown.add(s.model_name)
            curves.add_row(s.model_name, "paper", *(f"{x:.3g}" for x in s.paper_curve))
            curves.add_row("", s.kernels, *(f"{x:.3g}" for x in s.model_curve))
    return table, curves


def _end_to_end(judgement: Judgement) -> Table:
    gemms = "\n".join(f"{name} {rate / 1e12:.1f}" for name, rate in judgement.bare_gemm.items())
    table = _table(
        "model", "prompt", "paper", "model",
        title=f"Projections' TFLOP/s end to end\nBare GEMM of 2048³:\n{gemms}",
    )  # fmt: skip
    for e in judgement.end_to_end:
        table.add_row(
            e.model_name, _context(e.context), f"{e.paper / 1e12:.2f}", f"{e.model / 1e12:.2f}"
        )
    return table


def _kv(judgement: Judgement) -> Table:
    table = _table(
        "model", "between", "paper", "its rounding allows", "cycles a chunk", "model",
        title="KV cache: bytes a token more by time a token more, GB/s",
    )  # fmt: skip
    for k in judgement.kv_bandwidths:
        table.add_row(
            k.model_name, f"{_context(k.begin)} to {_context(k.end)}", f"{k.paper / 1e9:.1f}",
            f"{k.paper_low / 1e9:.1f} to {k.paper_high / 1e9:.1f}", f"{k.chunk_cycles:.0f}",
            f"{k.model / 1e9:.1f}",
        )  # fmt: skip
    return table


def _goals(judgement: Judgement) -> Table:
    table = _table(
        "goal", "kernels", "at most", "is", "",
        title="Goals (decode: on cells that nothing was fitted to)",
    )  # fmt: skip
    for goal in judgement.goals:
        table.add_row(
            goal.name, goal.kernels, f"{goal.limit:.0%}", f"{goal.value:.1%}",
            "met" if goal.met else "missed",
        )  # fmt: skip
    return table


def sweep_tables(sweep: Sweep) -> RenderableType:
    """mlir-air's measured decoding beside the model of its placement."""
    constants = _table(
        "fitted constant", "value", "unit", "sources allow", "one cell left out",
        title="Fitted constants of mlir-air's kernels: fitted by lab/fit_npu_model.py",
    )  # fmt: skip
    for name, cost in sweep.constants.items():
        low, high = cost.bounds
        least, most = sweep.moved[name]
        constants.add_row(
            name.upper(), f"{cost.value:.4g}", cost.unit, f"{low:.4g} to {high:.4g}",
            f"{least:.4g} to {most:.4g}",
        )  # fmt: skip
    contexts = sorted({c.context for c in sweep.cells})
    table = _table(
        "model", "", *map(_context, contexts),
        title="mlir-air's decoder, tokens per second (*: calibrated on)",
    )  # fmt: skip
    for model in dict.fromkeys(c.model for c in sweep.cells):
        row = [c for c in sweep.cells if c.model == model]
        measured = (f"{c.measured:g}{'*' if c.calibrates else ''}" for c in row)
        table.add_row(model, "measured", *measured)
        table.add_row("", "model", *(f"{c.predicted:.3g}" for c in row))
        table.add_row("", "error", *(f"{c.error:+.1%}" for c in row))
    errors = Text(
        f"Cells to which none of these constants was fitted: median error {sweep.median:.1%}, "
        f"worst {sweep.worst:.1%}. Of {' and '.join(UNTOUCHED)}, from which nothing else comes "
        f"either: {sweep.untouched_median:.1%}, {sweep.untouched_worst:.1%}"
    )
    return Group(
        era_table(), constants, table, errors, _beside_amd(), _beside_paper2(), *_later_tables(),
        summary_table(),
    )  # fmt: skip


def _later_tables() -> Iterator[Table]:
    """The other tables of the era, which nothing was fitted to."""
    every = [one for one in published() if one.era == "mlir-air" and one.source != SWEEP]
    for source in dict.fromkeys(one.source for one in every):
        rows = [one for one in every if one.source == source]
        contexts = sorted({one.context for one in rows})
        unit = "tokens per second" if source.endswith("tokens") else "seconds to the first token"
        table = _table("model", "", *map(_context, contexts), title=f"{source}: {unit}")
        for model in dict.fromkeys(one.model for one in rows):
            row = [one for one in rows if one.model == model]
            table.add_row(model, "measured", *(f"{one.measured:.3g}" for one in row))
            table.add_row("", "error", *(f"{one.error:+.1%}" for one in row))
        yield table


def _beside_amd() -> RenderableType:
    """This project's token beside mlir-air's measured one."""
    every = beside_amd()
    contexts = sorted({one.context for one in every})
    table = _table(
        "model", "", *map(_context, contexts),
        title="The overlay of whole layers, tokens per second (era mlir-air)",
    )  # fmt: skip
    for model in dict.fromkeys(one.model for one in every):
        row = [one for one in every if one.model == model]
        table.add_row(model, "mlir-air, measured", *(f"{one.measured:g}" for one in row))
        table.add_row("", "this project's cycles", *(f"{one.predicted:.4g}" for one in row))
        table.add_row("", "published cycles", *(f"{one.with_published:.4g}" for one in row))
        table.add_row("", "mlir-air's cycles", *(f"{one.with_theirs:.4g}" for one in row))
        theirs = [f"{one.fastflowlm:g}" if one.fastflowlm else "" for one in row]
        if any(theirs):
            table.add_row("", "FastFlowLM 2026, measured", *theirs)
    above = sum(one.predicted >= one.measured for one in every)
    published = sum(one.with_published >= one.measured for one in every)
    closed = [(one.predicted, one.fastflowlm) for one in every if one.fastflowlm]
    above_closed = sum(predicted >= measured for predicted, measured in closed)
    careful = sum(one.with_theirs >= one.measured for one in every)
    return Group(
        table,
        Text(
            f"At or above the measurement: {above} of {len(every)} cells; {published} with "
            f"published cycles, {careful} with those to which mlir-air's decoder is fitted. Of "
            f"FastFlowLM's cells of 2026: {above_closed} of {len(closed)}"
        ),
    )


def _beside_paper2() -> Table:
    """This project's prompts beside those of paper 2."""
    every = beside_paper2()
    contexts = sorted({one.context for one in every})
    table = _table(
        "model", "", *map(_context, contexts),
        title="A prompt by the plan of this library, seconds of the device alone",
    )  # fmt: skip
    for model in dict.fromkeys(one.model for one in every):
        row = [one for one in every if one.model == model]
        table.add_row(model, "paper 2, measured", *(f"{one.measured:g}" for one in row))
        table.add_row("", "era papers", *(f"{one.predicted:.3g}" for one in row))
        table.add_row("", "era mlir-air", *(f"{one.later:.3g}" for one in row))
    return table


def era_table() -> Table:
    """The constants that depend on the era, side by side."""
    table = _table("constant", "unit", *ERAS, title="Eras: what changes with the platform")
    for field, cost in PAPERS.all_costs().items():
        scale, unit = _SCALES.get(cost.unit, (1.0, cost.unit))
        values = (era.all_costs()[field].value / scale for era in ERAS.values())
        table.add_row(field.replace("_", " "), unit, *(f"{value:.4g}" for value in values))
    return table


def summary_table() -> Table:
    """The model's errors by source; the model of a cell is that of its own era."""
    table = _table(
        "source", "cells", "fitted to", "median error", "worst error",
        title="Published speeds (errors of the cells to which nothing was fitted)",
    )  # fmt: skip
    for one in summaries():
        table.add_row(
            one.source, str(one.cells), str(one.fitted), f"{one.median:.1%}", f"{one.worst:.1%}"
        )
    return table


def kernel_rows(comparison: Comparison) -> list[tuple[str, ...]]:
    """The cells of the table of kernels beside published ones, its heading first."""
    rows: list[tuple[str, ...]] = [
        ("design", "what", "unit", "published", "this project", "ratio", "", "source")
    ]
    for one in comparison.rows:
        least, most = (_digits(value) for value in one.published)
        rows.append((
            one.design, one.what, one.unit, least if least == most else f"{least} to {most}",
            _digits(one.model), f"{one.ratio:.2f}", one.verdict, one.source,
        ))  # fmt: skip
    return rows


def kernel_table(comparison: Comparison) -> RenderableType:
    """This project's kernels beside the nearest measured ones."""
    heading, *rows = kernel_rows(comparison)
    table = _table(*heading, title="Kernels of a core, then whole operators (era mlir-air)")
    for row in rows:
        table.add_row(*row)
    prompts = _table(
        "model", "", *map(_context, PROMPTS),
        title="Attention of a prompt, all layers, in s (era mlir-air)",
    )  # fmt: skip
    for model in dict.fromkeys(one.model for one in comparison.prompts):
        of = [one for one in comparison.prompts if one.model == model]
        prompts.add_row(model, "this project", *(f"{one.predicted:.3g}" for one in of))
        prompts.add_row("", "mlir-air's line", *(f"{one.mlir_air:.3g}" for one in of))
        prompts.add_row("", "FastFlowLM's square", *(f"{one.fastflowlm:.3g}" for one in of))
    return Group(
        table,
        Text(f"Unconfirmed (faster than anyone measured): {', '.join(comparison.unconfirmed)}"),
        Text(),
        prompts,
    )


def _digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _rate(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _context(tokens: int) -> str:
    return f"{tokens // 1024}k" if tokens % 1024 == 0 else str(tokens)


def _table(first: str, *others: str, title: str | None = None) -> Table:
    table = Table(box=box.SIMPLE, title=title, title_justify="left")
    table.add_column(first, justify="left")
    for name in others:
        table.add_column(name, justify="right")
    return table
