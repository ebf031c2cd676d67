"""A report as Markdown that a README can take as it is."""

from __future__ import annotations

from ort_aie_ep.tools.bench.peers.report import PeersReport
from ort_aie_ep.tools.bench.peers.sheets import Sheet, sheets


def markdown(report: PeersReport, conditions: str) -> str:
    """A line about the machine and the run, then all tables."""
    return "\n\n".join([conditions, *(_table(sheet) for sheet in sheets(report))]) + "\n"


def _table(sheet: Sheet) -> str:
    rest = "---:" if sheet.numbers else "---"
    lines = [sheet.header, ("---", *[rest] * (len(sheet.header) - 1)), *sheet.rows]
    rows = "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)
    note = f"\n\n{sheet.note}" if sheet.note else ""
    return f"**{sheet.title}**\n\n{rows}{note}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
