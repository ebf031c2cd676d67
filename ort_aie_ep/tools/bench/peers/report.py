"""The results of the measurements: medians with bounds, ratios, goals, all also as a JSON file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ort_aie_ep.models.files import write_json as write_file
from ort_aie_ep.tools.bench.peers import comparisons, growth
from ort_aie_ep.tools.bench.peers.comparisons import Bandwidth, Cell, Ratio, Start, StartRatio
from ort_aie_ep.tools.bench.peers.goals import Goal, goals
from ort_aie_ep.tools.bench.peers.growth import Fit
from ort_aie_ep.tools.bench.peers.plan import PHASES
from ort_aie_ep.tools.bench.peers.results import Results


@dataclass(frozen=True)
class PeersReport:
    """Speeds, starts, ratios, goals, and the measurements they come from.

    Attributes:
        bandwidth: by engine, at the shortest decoded context; empty if nothing was decoded.
        fit: the fit of the cost of context; None if it was not measured.
        goals: each goal with its measurement.
        results: rounds, settings, memory.
    """

    cells: tuple[Cell, ...]
    ratios: tuple[Ratio, ...]
    starts: tuple[Start, ...]
    start_ratios: tuple[StartRatio, ...]
    bandwidth: dict[str, Bandwidth]
    fit: Fit | None
    goals: tuple[Goal, ...]
    results: Results

    @property
    def columns(self) -> list[tuple[str, int]]:
        """(phase, length), sorted by length within a phase."""
        found = {(c.phase, c.length) for c in self.cells}
        return sorted(found, key=lambda c: (PHASES.index(c[0]), c[1]))


def report(results: Results) -> PeersReport:
    """Medians, bounds, ratios and goals of all measurements."""
    fit = growth.fit(results.growth) if results.growth else None
    ratios, start_ratios = comparisons.ratios(results), comparisons.start_ratios(results)
    bandwidth = comparisons.bandwidth(results)
    return PeersReport(
        comparisons.cells(results),
        ratios,
        comparisons.starts(results),
        start_ratios,
        bandwidth,
        fit,
        goals(results, ratios, start_ratios, bandwidth, fit),
        results,
    )


def write_json(report: PeersReport, path: Path, settings: Mapping[str, Any]) -> None:
    """Writes everything, including each round's numbers and the `settings` of the run."""
    write_file(path, asdict(report) | dict(settings))
