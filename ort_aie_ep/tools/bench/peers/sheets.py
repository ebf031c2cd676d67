"""A report as tables of text, and as a page of them with the conditions and the picture."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ort_aie_ep.tools.bench.conditions import Conditions
from ort_aie_ep.tools.bench.peers import results
from ort_aie_ep.tools.bench.peers.engines import CPU_EP, KINDS, OURS
from ort_aie_ep.tools.bench.peers.report import Goal, PeersReport
from ort_aie_ep.tools.bench.peers.results import COLD, SHAPES, STATES, STAYED
from ort_aie_ep.tools.bench.peers.workload import CONTEXT, PILOT_MARGIN, PILOT_ROUNDS
from ort_aie_ep.tools.bench.statistics import RESAMPLES, Interval, median

MET = {True: "met", False: "gap", None: "not measured"}
"""The outcome of a goal, in a word or two."""


@dataclass(frozen=True)
class Sheet:
    """A table with a title, headings, cells as text (`numbers`: all but the first column), and the
    text below it."""

    title: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    numbers: bool = True
    note: str = ""


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
    known = [(name, value) for name, value in facts if value]
    parts += [_lines(("machine", ""), known, numbers=False), conditions.plan]
    parts += [f"![speed against context]({picture})"] if picture else []
    for sheet in sheets(report):
        table = _lines(sheet.header, sheet.rows, numbers=sheet.numbers)
        parts += [f"## {sheet.title}", table, *([sheet.note] if sheet.note else [])]
    return "\n\n".join(parts) + "\n"


def _lines(header: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: bool) -> str:
    rest = "---:" if numbers else "---"
    lines = [header, ("---", *[rest] * (len(header) - 1)), *rows]
    cells = ([cell.replace("|", "\\|") for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def sheets(report: PeersReport) -> list[Sheet]:
    """The tables that have rows: speeds first, the engines' settings last."""
    batches = report.results.batches
    made = (
        _speeds(report), batches and batches_sheet(batches), _starts(report), _memory(report),
        _growth(report), _demonstration(report), _goals(report), _engines(report),
    )  # fmt: skip
    return [sheet for sheet in made if sheet and sheet.rows]


def _engines(report: PeersReport) -> Sheet:
    rows = [
        (m.engine, "; ".join(f"{name}: {value}" for name, value in m.settings.items()))
        for m in report.results.measured
    ]
    rows += list(report.results.left_out.items())
    return Sheet("Engines", ("engine", "settings"), rows, numbers=False)


def _speeds(report: PeersReport) -> Sheet:
    columns, cells = report.columns, {(c.engine, c.phase, c.length): c for c in report.cells}
    rows = []
    for m in report.results.measured:
        row = []
        for column in columns:
            cell = cells.get((m.engine, *column))
            if cell is None:
                row.append("")
                continue
            digits = ".1f" if cell.speed.value < 100 else ".0f"
            counted = cell.rounds == report.results.rounds
            pilot = f"[{cell.speed.value:{digits}}]"
            row.append(_shown(cell.speed, digits=digits) if counted else pilot)
        rows.append((m.engine, *row))
    for engine in dict.fromkeys(r.engine for r in report.ratios):
        found = {(r.phase, r.length): r for r in report.ratios if r.engine == engine}
        if engine == OURS:
            rows.append(("best peer", *(found[column].peer for column in columns)))
        values = (_shown(found[column].ratio) for column in columns)
        rows.append((f"{engine} / best peer", *values))
    rounds = report.results.rounds
    note = (
        f"Medians of {rounds} round{'s' * (rounds != 1)}. ( ): 95 % bounds of the median, "
        f"bootstrap over rounds, {RESAMPLES} resamples."
    )
    if any("" in row for row in rows):
        note += " An empty cell: the quick run had no time for it."
    if any(c.rounds < rounds for c in report.cells):
        note += (
            f" [ ]: of the first {PILOT_ROUNDS} rounds only, where it was more than "
            f"{PILOT_MARGIN:.0%} slower than another way to run the same library."
        )
    header = ("tokens per second", *(f"{phase} {length}" for phase, length in columns))
    return Sheet("Speed", header, rows, note=note)


def batches_sheet(measured: results.Batches) -> Sheet:
    """The cost of several rows in a call."""
    shapes = [shape for found in measured.seconds.values() for shape in found.values()]
    sizes = sorted({n for shape in shapes for n in shape if n > 1})
    rows = []
    for engine, found in measured.seconds.items():
        for shape in SHAPES:
            one = found[shape].get(1)
            costs = [
                median(one) if one else None,
                *(measured.cost(engine, shape, n) for n in sizes),
            ]
            units = (1e-3, *[1.0] * len(sizes))
            cells = (_shown(c, unit) if c else "" for c, unit in zip(costs, units, strict=True))
            rows.append((f"{engine}, n {shape}", *cells))
    note = (
        f"A call with one token of each of n sequences, or with n tokens of one sequence, over a "
        f"context of {CONTEXT} tokens, with the logits of all. The second is the cost of verifying "
        "n - 1 drafted tokens."
    )
    header = ("cost in calls with one row", "n = 1, ms", *(f"n = {n}" for n in sizes))
    return Sheet("Several rows in a call", header, rows, note=note)


def _demonstration(report: PeersReport) -> Sheet | None:
    c = report.results.demonstration
    if c is None:
        return None
    both = f"{OURS} / {CPU_EP}"
    speeds = (OURS, c.ours, ".0f"), (CPU_EP, c.reference, ".0f"), (both, c.ratio, ".2f")
    rows = [
        (name, *(format(value, digits) for value in (speed.median, speed.least, speed.most)))
        for name, speed, digits in speeds
    ]
    header = (f"tokens per second, {c.phase} at {c.length}", "median", "least", "most")
    note = "Measured as `ort-aie demo` does: both in one process, interleaved."
    return Sheet("Demonstration model", header, rows, note=note)


def _starts(report: PeersReport) -> Sheet:
    found = {(s.engine, s.state): s for s in report.starts}
    rows = []
    for engine in dict.fromkeys(s.engine for s in report.starts):
        both = [found[engine, state] for state in STATES]
        seconds = [*(s.load for s in both), *(s.first_token for s in both)]
        rows.append((engine, *map(_shown, seconds)))
    if report.start_ratios:
        firsts = (_shown(r.first_token) for r in report.start_ratios)
        rows.append(("best peer", "", "", *(r.peer for r in report.start_ratios)))
        rows.append((f"{OURS} / best peer", "", "", *firsts))
    note = (
        "Load: from the file to a ready session. First token: from the start of the process, "
        "prompt of 64 tokens. Cold: the model's files are dropped from the page cache; Python and "
        "the packages stay warm."
    )
    kept_of = {m.engine: m.starts.kept for m in report.results.measured if m.starts}
    not_cold = {name: kept for name, kept in kept_of.items() if kept > STAYED}
    if not_cold:
        kept = ", ".join(f"{share:.0%} of {name}'s" for name, share in not_cold.items())
        note += (
            f" NOT {COLD}: {kept} files stayed in memory, because they are on a file system in "
            "memory or another process has them mapped: MODEL, and --out or else TMPDIR, must be "
            "on a disk and used by nothing else."
        )
    header = ("seconds", *(f"load, {s}" for s in STATES), *(f"first token, {s}" for s in STATES))
    return Sheet("Starts", header, rows, note=note)


def _memory(report: PeersReport) -> Sheet:
    rows = []
    for m in report.results.measured:
        sizes = (f"{size / 1e6:.0f}" if size else "" for size in (m.memory["peak"], m.file_bytes))
        speed = ("", "")
        if reached := report.bandwidth.get(m.engine):
            speed = _shown(reached.read, 1e9, ".1f"), _shown(reached.share, 0.01, ".0f") + " %"
        rows.append((m.engine, *sizes, f"{m.bits:.2f}", *speed))
    probes = report.results.probes
    note = (
        "Peak memory: VmHWM, mapped files included. GB/s: weights alone, in the format's bytes, at "
        "the shortest decoded context. Limit: the same round's best plain read of memory, one of "
        f"which comes before each engine's turn there: {_shown(median(probes), 1e9, '.1f')} GB/s."
    )
    names = ("peak memory, MB", "files, MB", "bits/weight", "GB/s decoding", "of limit")
    return Sheet("Memory and bandwidth", ("", *names), rows, note=note)


def _growth(report: PeersReport) -> Sheet | None:
    fit, growth = report.fit, report.results.growth
    if fit is None or growth is None:
        return None
    times = growth.seconds.items()
    rows = [(str(n), _shown(median(rounds), 1e-3)) for n, rounds in times]
    note = (
        "Only ort_aie_ep, over a cache of random numbers, without a prefill. Fit: "
        f"{fit.start * 1e3:.2f} ms + {fit.slope * 1e9:.0f} ns · context, which is "
        f"{_shown(fit.ratio)} × the time to read {growth.cache_bytes} bytes of keys "
        f"and values at {_shown(median(growth.read_bytes_per_second), 1e9, '.1f')} GB/s."
    )
    return Sheet("Cost of context", ("context", "ms per token"), rows, note=note)


def _goals(report: PeersReport) -> Sheet:
    rows = [(goal.what, _measured(goal), MET[goal.met]) for goal in report.goals]
    note = "A goal is met when the bound on its bad side meets it."
    if absent := [name for name in report.results.left_out if name in KINDS]:
        note += f" Without {', '.join(absent)}."
    header = ("goal", "measured (95 % bounds)", "met?")
    return Sheet("Goals", header, rows, numbers=False, note=note)


def _measured(goal: Goal) -> str:
    m = goal.measured
    if m is None:
        return goal.detail
    digits = ".0f" if goal.unit else ".2f"
    value = format(m.value, digits) if m.low == m.high else _shown(m, digits=digits)
    return " ".join(part for part in (value, goal.unit, goal.detail) if part)


def _shown(value: Interval, unit: float = 1, digits: str = ".2f") -> str:
    middle, low, high = (format(x / unit, digits) for x in (value.value, value.low, value.high))
    return f"{middle} ({low}–{high})"
