"""The model beside the papers' tables as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from npu_papers.model import Point
from ort_aie_ep.npu.terms.errors import DesignError

_YTICKS = {"decode": (5, 10, 20, 40), "prefill": (1, 2, 5, 10, 20, 50, 100, 200)}


def check_plot() -> None:
    """Check before anything is computed. Raises DesignError if matplotlib is not installed."""
    if find_spec("matplotlib") is None:
        raise DesignError("the plot needs matplotlib: pip install matplotlib, or leave out --plot")


def plot(models: Mapping[str, Sequence[Point]], path: Path) -> None:
    """Plot decode and prefill side by side: a line a model, the papers' cells as dots.

    `models` has the points of each model by its name. Filled dots are the cells to which the
    constants were fitted.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter, ScalarFormatter

    figure = Figure(figsize=(12, 5), layout="constrained")
    decoding, prompts = figure.subplots(1, 2)
    for axes, phase, label in (
        (decoding, "decode", "tokens per second"),
        (prompts, "prefill", "seconds to the first token"),
    ):
        for number, (name, of_model) in enumerate(models.items()):
            points = [p for p in of_model if p.phase == phase]
            colour = f"C{number}"
            axes.plot(
                [p.context for p in points], [p.value for p in points], color=colour,
                label=name,
            )  # fmt: skip
            dots = {p.context: p.paper for p in points if p.paper is not None}
            axes.scatter(
                list(dots), list(dots.values()), edgecolors=colour, zorder=3,
                facecolors=[
                    colour if p.calibrates else "none" for p in points if p.context in dots
                ],
            )  # fmt: skip
        ticks = sorted({p.context for points in models.values() for p in points})
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(ticks, [f"{t // 1024}k" if t % 1024 == 0 else str(t) for t in ticks])
        axes.yaxis.set_major_formatter(ScalarFormatter())
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set_yticks(_YTICKS[phase])
        axes.set(title=phase, xlabel="context, tokens", ylabel=label)
        axes.grid(alpha=0.3)
    figure.legend(*decoding.get_legend_handles_labels(), loc="outside right center")
    figure.suptitle("Model (lines), papers 1 and 2 (dots; filled: calibrated on)", fontsize="small")
    figure.savefig(path, dpi=120)
