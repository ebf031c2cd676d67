"""Speed against context as a picture."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from ort_aie_ep.errors import AieError
from ort_aie_ep.tools.bench.peers.engines import OURS
from ort_aie_ep.tools.bench.peers.report import PeersReport
from ort_aie_ep.tools.bench.peers.results import PHASES


def check_plot() -> None:
    """Refuses, before a long measurement, to go on without what a plot needs."""
    if find_spec("matplotlib") is None:
        raise AieError("the plot needs matplotlib: pip install matplotlib, or leave out --out")


def plot(report: PeersReport, path: Path, title: str) -> None:
    """Speed against context as a PNG, decode and prefill side by side, with 95 % bars."""
    from matplotlib.figure import Figure

    phases = [p for p in PHASES if any(c.phase == p for c in report.cells)]
    figure = Figure(figsize=(2 + 5 * len(phases), 4), layout="constrained")
    panels = figure.subplots(1, len(phases), squeeze=False)[0]
    for axes, phase in zip(panels, phases, strict=True):
        for m in report.results.measured:
            shown = m.engine, phase, report.results.rounds
            cells = [c for c in report.cells if (c.engine, c.phase, c.rounds) == shown]
            if not cells:
                continue
            values = [c.speed for c in cells]
            axes.errorbar(
                [c.length for c in cells], [v.value for v in values],
                yerr=[[v.value - v.low for v in values], [v.high - v.value for v in values]],
                label=m.engine, marker="o", capsize=3, linewidth=2.5 if m.engine == OURS else 1.5,
            )  # fmt: skip
        lengths = sorted({c.length for c in report.cells if c.phase == phase})
        axes.set_xscale("log", base=2)
        axes.set_xticks(lengths, [str(length) for length in lengths])
        axes.set_xticks([], minor=True)
        axes.set_ylim(bottom=0)
        axes.set(title=phase, xlabel="context, tokens", ylabel="tokens per second")
        axes.grid(alpha=0.3)
    # Beside the axes, because inside it would hide points.
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center")
    figure.suptitle(title, fontsize="small")
    figure.savefig(path, dpi=150)
