"""A report as a page: the conditions, the picture, all tables."""

from __future__ import annotations

from collections.abc import Sequence

from ort_aie_ep.tools.bench.conditions import Conditions
from ort_aie_ep.tools.bench.peers.report import PeersReport
from ort_aie_ep.tools.bench.peers.sheets import Sheet, sheets


def markdown(report: PeersReport, conditions: Conditions, picture: str | None = None) -> str:
    """The page; `picture` is the name of a file beside it."""
    machine = conditions.machine
    parts = [
        f"# {machine.cpu}{f', {machine.identity}' if machine.identity else ''}",
        "How fast ort_aie_ep and other engines run one model on this CPU, on "
        f"{conditions.date}, by",
        f"```sh\n{conditions.command}\n```",
    ]
    if report.results.unfinished:
        parts.append(f"**Unfinished: {report.results.unfinished}.**")
    facts = [*machine.rows()[1:], *conditions.versions.items(), ("model", conditions.model)]
    rows = tuple((name, value) for name, value in facts if value)
    parts += [_rows(("machine", ""), rows, numbers=False), conditions.plan]
    parts += [f"![speed against context]({picture})"] if picture else []
    return "\n\n".join([*parts, *map(_table, sheets(report))]) + "\n"


def _table(sheet: Sheet) -> str:
    note = f"\n\n{sheet.note}" if sheet.note else ""
    return f"## {sheet.title}\n\n{_rows(sheet.header, sheet.rows, numbers=sheet.numbers)}{note}"


def _rows(header: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: bool) -> str:
    rest = "---:" if numbers else "---"
    lines = [header, ("---", *[rest] * (len(header) - 1)), *rows]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
