"""What was published in 2026 beside the model, as tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from npu_papers.goals import beside_amd, beside_paper2
from npu_papers.mlir_air import UNTOUCHED, Sweep
from npu_papers.print_papers import era_table, summary_table
from npu_papers.published import SWEEP, published
from ort_aie_ep.prediction.report import in_k, new_table


def sweep_tables(sweep: Sweep) -> RenderableType:
    """mlir-air's measured decoding beside the model of its placement."""
    constants = new_table(
        "fitted constant", "value", "unit", "sources allow", "one cell left out",
        title="Fitted constants of mlir-air's kernels: python lab/npu_papers fit",
    )  # fmt: skip
    for name, cost in sweep.constants.items():
        low, high = cost.bounds
        least, most = sweep.moved[name]
        constants.add_row(
            name.upper(), f"{cost.value:.4g}", cost.unit, f"{low:.4g} to {high:.4g}",
            f"{least:.4g} to {most:.4g}",
        )  # fmt: skip
    contexts = sorted({c.context for c in sweep.cells})
    table = new_table(
        "model", "", *map(in_k, contexts),
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
        table = new_table("model", "", *map(in_k, contexts), title=f"{source}: {unit}")
        for model in dict.fromkeys(one.model for one in rows):
            row = [one for one in rows if one.model == model]
            table.add_row(model, "measured", *(f"{one.measured:.3g}" for one in row))
            table.add_row("", "error", *(f"{one.error:+.1%}" for one in row))
        yield table


def _beside_amd() -> RenderableType:
    """This project's token beside mlir-air's measured one."""
    every = beside_amd()
    contexts = sorted({one.context for one in every})
    table = new_table(
        "model", "", *map(in_k, contexts),
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
    table = new_table(
        "model", "", *map(in_k, contexts),
        title="A prompt by the plan of this library, seconds of the device alone",
    )  # fmt: skip
    for model in dict.fromkeys(one.model for one in every):
        row = [one for one in every if one.model == model]
        table.add_row(model, "paper 2, measured", *(f"{one.measured:g}" for one in row))
        table.add_row("", "era papers", *(f"{one.predicted:.3g}" for one in row))
        table.add_row("", "era mlir-air", *(f"{one.later:.3g}" for one in row))
    return table
