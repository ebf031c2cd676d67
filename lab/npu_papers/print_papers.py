"""The judgement of the papers' era as tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.table import Table

from npu_papers.judgement import Judgement
from npu_papers.published import summaries
from ort_aie_ep.npu.terms.eras import ERAS, PAPERS
from ort_aie_ep.prediction.report import in_k, new_table

SCALES = {"B/s": (1e9, "GB/s"), "s": (1e-6, "µs")}


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


def era_table() -> Table:
    """The constants that depend on the era, side by side."""
    table = new_table("constant", "unit", *ERAS, title="Eras: what changes with the platform")
    for field, cost in PAPERS.all_costs().items():
        scale, unit = SCALES.get(cost.unit, (1.0, cost.unit))
        values = (era.all_costs()[field].value / scale for era in ERAS.values())
        table.add_row(field.replace("_", " "), unit, *(f"{value:.4g}" for value in values))
    return table


def summary_table() -> Table:
    """The model's errors by source; the model of a cell is that of its own era."""
    table = new_table(
        "source", "cells", "fitted to", "median error", "worst error",
        title="Published speeds (errors of the cells to which nothing was fitted)",
    )  # fmt: skip
    for one in summaries():
        table.add_row(
            one.source, str(one.cells), str(one.fitted), f"{one.median:.1%}", f"{one.worst:.1%}"
        )
    return table


def _constants(judgement: Judgement) -> Table:
    table = new_table(
        "fitted constant", "value", "unit", "sources allow", "one cell left out", "within",
        title="Fitted constants: python lab/npu_papers fit",
    )  # fmt: skip
    for name, cost in judgement.constants.items():
        scale, unit = SCALES[cost.unit]
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
    table = new_table("model", "", *map(in_k, contexts), title=f"{title} (*: calibrated on)")
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
    table = new_table(
        "cell left out", "paper", "predicted", "error", title="Leave one out: refitted without it"
    )
    for result in judgement.left_out:
        cell = result.cell
        table.add_row(
            f"{cell.model}, {cell.phase} at {in_k(cell.context)}", f"{cell.value:g}",
            f"{result.predicted:.3g}", f"{result.error:+.1%}",
        )  # fmt: skip
    return table


def _slopes(judgement: Judgement) -> Iterable[Table]:
    table = new_table(
        "model", "kernels", "vector operators", "paper", "model", "error", "worst interval",
        "its error", title="Prefill: slope in prompt length, ms a token",
    )  # fmt: skip
    curves = new_table(
        "", "", "s", "s per 1k", "s per 1k²", title="Prefill: parabolas through the same points"
    )
    shown: set[str] = set()
    for s in judgement.slopes:
        begin, end = s.worst_between
        copies = "a core each" if s.vector_copies == 1 else f"{s.vector_copies} copies"
        table.add_row(
            s.model_name, s.kernels, copies, f"{s.paper * 1e3:.3f}", f"{s.model * 1e3:.3f}",
            f"{s.error:+.1%}", f"{in_k(begin)} to {in_k(end)}", f"{s.worst_error:+.1%}",
        )  # fmt: skip
        if s.model_name not in shown:
            shown.add(s.model_name)
            curves.add_row(s.model_name, "paper", *(f"{x:.3g}" for x in s.paper_curve))
            curves.add_row("", s.kernels, *(f"{x:.3g}" for x in s.model_curve))
    return table, curves


def _end_to_end(judgement: Judgement) -> Table:
    gemms = "\n".join(f"{name} {rate / 1e12:.1f}" for name, rate in judgement.bare_gemm.items())
    table = new_table(
        "model", "prompt", "paper", "model",
        title=f"Projections' TFLOP/s end to end\nBare GEMM of 2048³:\n{gemms}",
    )  # fmt: skip
    for e in judgement.end_to_end:
        table.add_row(
            e.model_name, in_k(e.context), f"{e.paper / 1e12:.2f}", f"{e.model / 1e12:.2f}"
        )
    return table


def _kv(judgement: Judgement) -> Table:
    table = new_table(
        "model", "between", "paper", "its rounding allows", "cycles a chunk", "model",
        title="KV cache: bytes a token more by time a token more, GB/s",
    )  # fmt: skip
    for k in judgement.kv_bandwidths:
        table.add_row(
            k.model_name, f"{in_k(k.begin)} to {in_k(k.end)}", f"{k.paper / 1e9:.1f}",
            f"{k.paper_low / 1e9:.1f} to {k.paper_high / 1e9:.1f}", f"{k.chunk_cycles:.0f}",
            f"{k.model / 1e9:.1f}",
        )  # fmt: skip
    return table


def _goals(judgement: Judgement) -> Table:
    table = new_table(
        "goal", "kernels", "at most", "is", "",
        title="Goals (decode: on cells that nothing was fitted to)",
    )  # fmt: skip
    for goal in judgement.goals:
        table.add_row(
            goal.name, goal.kernels, f"{goal.limit:.0%}", f"{goal.value:.1%}",
            "met" if goal.met else "missed",
        )  # fmt: skip
    return table


def _power_errors(judgement: Judgement) -> Iterable[Table]:
    watts = new_table(
        "source", "model", "phase", "published", "model", "error", "left out",
        title="Power: watts of the NPU (left out: fitted without the figure; blank: not fitted)",
    )  # fmt: skip
    for e in judgement.power:
        left_out = "" if e.left_out is None else f"{e.left_out:+.1%}"
        watts.add_row(
            e.figure.source, e.figure.model, e.figure.phase, f"{e.figure.npu:g}",
            f"{e.predicted:.2f}", f"{e.error:+.1%}", left_out,
        )  # fmt: skip
    causes = new_table(
        "cause", "idle, W", "mJ for each", "", "worst error", "left out",
        title="Power: what else could be its cause, fitted to the same figures",
    )  # fmt: skip
    for a in judgement.power_alternatives:
        causes.add_row(
            a.cause, f"{a.idle:.2f}", f"{a.slope * 1e3:.3g}", a.unit, f"{a.worst:.1%}",
            f"{a.worst_left_out:.1%}",
        )  # fmt: skip
    return watts, causes
