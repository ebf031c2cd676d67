"""What the rounds say: tables, a JSON file and a plot."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ort_aie_ep.errors import AieError
from ort_aie_ep.peers.engines import OURS, OURS_FLOAT
from ort_aie_ep.peers.runner import Measured, Results
from ort_aie_ep.peers.statistics import RESAMPLES, Interval, median, ratio


@dataclass(frozen=True)
class Cell:
    """One engine in one column.

    Attributes:
        engine: its name.
        phase: decode or prefill.
        length: context in tokens.
        speed: tokens per second.
    """

    engine: str
    phase: str
    length: int
    speed: Interval


@dataclass(frozen=True)
class Ratio:
    """Ours against the peer that is fastest in a column.

    Attributes:
        phase, length: the column.
        peer: the one with the highest median.
        ratio: ours / peer, of rounds.
    """

    phase: str
    length: int
    peer: str
    ratio: Interval


@dataclass(frozen=True)
class PeersReport:
    """Speeds, ratios, and the measurements they come from.

    Attributes:
        bandwidth: by engine, bytes per second of weights at the shortest decoded context; empty
            where nothing was decoded.
        results: rounds, settings, memory.
    """

    cells: tuple[Cell, ...]
    ratios: tuple[Ratio, ...]
    bandwidth: dict[str, Interval]
    results: Results


def report(results: Results) -> PeersReport:
    """Medians, bounds and ratios of all rounds."""
    columns = _columns(results)
    cells = tuple(
        Cell(m.engine, phase, length, median(_speeds(m, phase)[length]))
        for m in results.measured
        for phase, length in columns
    )
    ours = next((m for m in results.measured if m.engine == OURS), None)
    peers = [m for m in results.measured if m.engine not in (OURS, OURS_FLOAT)]
    ratios = []
    for phase, length in columns if ours and peers else ():
        assert ours is not None
        best = max(peers, key=lambda m: median(_speeds(m, phase)[length]).value)
        values = ratio(_speeds(ours, phase)[length], _speeds(best, phase)[length])
        ratios.append(Ratio(phase, length, best.engine, values))
    bandwidth = {}
    for m in results.measured if any(phase == "decode" for phase, _ in columns) else ():
        shortest = m.decode[min(m.decode)]
        bandwidth[m.engine] = median([speed * m.weight_bytes for speed in shortest])
    return PeersReport(cells, tuple(ratios), bandwidth, results)


def tables(report: PeersReport) -> RenderableType:
    """Speeds and ratios; then load, memory and bandwidth; then settings."""
    return Group(_speed_table(report), _cost_table(report), _settings_table(report.results))


def write_json(report: PeersReport, path: Path, settings: Mapping[str, Any]) -> None:
    """Everything, each round's numbers too, and the `settings` of the run."""
    path.write_text(json.dumps(asdict(report) | dict(settings), indent=2) + "\n", encoding="utf-8")


def check_plot() -> None:
    """Before a long measurement.

    Raises:
        AieError: matplotlib is not installed.
    """
    if find_spec("matplotlib") is None:
        raise AieError("the plot needs matplotlib: pip install matplotlib, or leave out --out")


def plot(report: PeersReport, path: Path, title: str) -> None:
    """Speed against context as a PNG, decode and prefill side by side, with 95 % bars."""
    from matplotlib.figure import Figure

    phases = [p for p in ("decode", "prefill") if any(c.phase == p for c in report.cells)]
    figure = Figure(figsize=(2 + 5 * len(phases), 4), layout="constrained")
    panels = figure.subplots(1, len(phases), squeeze=False)[0]
    for axes, phase in zip(panels, phases, strict=True):
        for m in report.results.measured:
            cells = [c for c in report.cells if (c.engine, c.phase) == (m.engine, phase)]
            values = [c.speed for c in cells]
            axes.errorbar(
                [c.length for c in cells],
                [v.value for v in values],
                yerr=[[v.value - v.low for v in values], [v.high - v.value for v in values]],
                label=m.engine,
                marker="o",
                capsize=3,
                linewidth=2.5 if m.engine == OURS else 1.5,
            )
        lengths = sorted({c.length for c in report.cells if c.phase == phase})
        axes.set_xscale("log", base=2)
        axes.set_xticks(lengths, [str(length) for length in lengths])
        axes.set_xticks([], minor=True)
        axes.set_ylim(bottom=0)
        axes.set(title=phase, xlabel="context, tokens", ylabel="tokens per second")
        axes.grid(alpha=0.3)
    # Beside the axes: within, it would hide points.
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center")
    figure.suptitle(title, fontsize="small")
    figure.savefig(path, dpi=150)


def _speeds(measured: Measured, phase: str) -> dict[int, list[float]]:
    return measured.decode if phase == "decode" else measured.prefill


def _columns(results: Results) -> list[tuple[str, int]]:
    first = results.measured[0]
    return [("decode", n) for n in first.decode] + [("prefill", n) for n in first.prefill]


def _speed_table(report: PeersReport) -> Table:
    columns = _columns(report.results)
    table = _table("tokens per second", [f"{phase} {length}" for phase, length in columns])
    for m in report.results.measured:
        row = [c.speed for c in report.cells if c.engine == m.engine]
        table.add_row(m.engine, *(_shown(value) for value in row))
    table.add_section()
    if report.ratios:
        table.add_row("best peer", *(r.peer for r in report.ratios))
        table.add_row("ours / best peer", *(_ratio(r.ratio) for r in report.ratios))
    return table


def _cost_table(report: PeersReport) -> Table:
    limit = report.results.read_bytes_per_second
    table = _table(
        "",
        [
            "load, s",
            "first token, s",
            "peak memory, MB",
            "bits/weight",
            "GB/s decoding",
            "of limit",
        ],
    )
    for m in report.results.measured:
        reached = report.bandwidth.get(m.engine)
        table.add_row(
            m.engine,
            f"{m.load_seconds:.2f}",
            f"{m.first_token_seconds:.2f}",
            f"{m.peak_bytes / 1e6:.0f}" if m.peak_bytes else "",
            f"{m.bits:.2f}",
            _scaled(reached, 1e9, ".1f") if reached else "",
            _scaled(reached, limit / 100, ".0f") + " %" if reached else "",
        )
    table.caption = (
        f"limit: {limit / 1e9:.1f} GB/s read in this run; ( ): 95 % bounds of the median, "
        f"bootstrap over rounds, {RESAMPLES} resamples"
    )
    table.caption_justify = "left"
    return table


def _settings_table(results: Results) -> Table:
    table = Table("engine", "settings", header_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for m in results.measured:
        words = (f"{name}: {value}" for name, value in m.settings.items())
        table.add_row(m.engine, Text("; ".join(words)))
    for name, why in results.left_out.items():
        table.add_row(name, Text(why, style="yellow"))
    return table


def _table(first: str, numbers: list[str]) -> Table:
    table = Table(header_style="bold", box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column(first, no_wrap=True)
    for name in numbers:
        table.add_column(name, justify="right", overflow="fold")
    return table


def _shown(value: Interval) -> str:
    # Two lines, or seven columns would not fit a terminal.
    return _scaled(value, 1, ".1f" if value.value < 100 else ".0f").replace(" ", "\n")


def _scaled(value: Interval, unit: float, digits: str) -> str:
    middle, low, high = (format(x / unit, digits) for x in (value.value, value.low, value.high))
    return f"{middle} ({low}–{high})"


def _ratio(value: Interval) -> Text:
    # Won or lost only where the bounds say so.
    style = "bold green" if value.low > 1 else "bold red" if value.high < 1 else "bold yellow"
    return Text(_scaled(value, 1, ".2f").replace(" ", "\n"), style=style)
