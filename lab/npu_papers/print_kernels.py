"""This project's kernels beside published ones, as tables for a terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from npu_papers.kernels import PROMPTS, Comparison
from ort_aie_ep.prediction.report import in_k, new_table


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
    table = new_table(*heading, title="Kernels of a core, then whole operators (era mlir-air)")
    for row in rows:
        table.add_row(*row)
    prompts = new_table(
        "model", "", *map(in_k, PROMPTS),
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
