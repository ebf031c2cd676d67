"""The report of `ort-aie validate`: JSON, a page for people, and a summary of three lines."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ort_aie_ep.bringup.bench import Measurement
from ort_aie_ep.bringup.cases import Case, DesignResult, case_name
from ort_aie_ep.bringup.steps import Report
from ort_aie_ep.models.files import written_beside
from ort_aie_ep.npu.terms import costs


def write(report: Report, path: Path) -> None:
    """Write the JSON to `path` and the page beside it, each atomically (written and renamed)."""
    with written_beside(path) as file:
        file.write(json.dumps(_plain(report.to_json()), indent=1, allow_nan=False) + "\n")
    with written_beside(page_of(path)) as file:
        file.write(page(report))


def _plain(value: Any) -> Any:
    """Turn infinities into null, because JSON has none."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def page_of(path: Path) -> Path:
    """The path of a report's page."""
    return path.with_suffix(".md")


# --- three lines ----------------------------------------------------------------------------------
def verdict(report: Report) -> tuple[str, str, str]:
    """What runs and is right; its speed against the prediction; the first failure, its remedy."""
    return _right(report), _fast(report), _next(report)


def _right(report: Report) -> str:
    designs = report.designs
    cases = [case for design in designs for case in design.cases]
    if not any(case.outcome in ("passed", "wrong") for case in cases):
        return "Right: nothing has run on the NPU yet."
    good = [design.design for design in designs if design.passed]
    passed = sum(case.outcome == "passed" for case in cases)
    text = (
        f"Right: {len(good)} of {len(designs)} overlays ({', '.join(good) or 'none'}), "
        f"{passed} of {len(cases)} cases"
    )
    if report.token is not None and report.token.submissions:
        same = "the" if report.token.right else "NOT the"
        text += f"; the demonstration model writes {same} same text on the NPU as on the host"
    return text + "."


def _fast(report: Report) -> str:
    parts = []
    rates = {design.design: _ratios(report, design) for design in report.designs}
    every = [ratio for ratios in rates.values() for ratio in ratios]
    if every:
        middles = {name: statistics.median(ratios) for name, ratios in rates.items() if ratios}
        best, worst = min(middles, key=middles.__getitem__), max(middles, key=middles.__getitem__)
        text = f"the median run takes {statistics.median(every):.2f} of the predicted time"
        if best != worst:
            text += f" ({best} {middles[best]:.2f}, {worst} {middles[worst]:.2f})"
        parts.append(text)
    named = {each.name: each for each in report.control if each.measured is not None}
    for name, what, scale, unit in (
        ("DISPATCH", "a run alone costs", 1e6, "µs"),
        ("SHIM_CHANNEL", "a channel carries", 1e-9, "GB/s"),
        ("DDR_READ", "memory is read at", 1e-9, "GB/s"),
    ):
        if name in named:
            measured = named[name].measured or 0.0
            expected = named[name].in_costs * scale
            parts.append(f"{what} {measured * scale:.3g} {unit} (model {expected:.3g})")
    if (token := report.token) is not None and token.submissions:
        parts.append(
            f"a token takes {token.milliseconds:.1f} ms, on the host {token.host_milliseconds:.1f}"
        )
    return f"Fast: {'; '.join(parts) or 'nothing was measured'}."


def _next(report: Report) -> str:
    step = next((step for step in report.steps if step.outcome in ("failed", "interrupted")), None)
    if step is None:
        return "Next: nothing failed. Attach this report to an issue, and run a model of your own."
    if step.outcome == "interrupted":
        return f"Next: it was interrupted at '{step.name}'; the same command starts again."
    says = step.says.rstrip(".")
    return f"Next: '{step.name}' failed first: {says}. {_sentence(step.remedy)}".rstrip()


def _sentence(text: str) -> str:
    text = text.strip().rstrip(".")
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def expected(report: Report, case: Case) -> float | None:
    """The model's seconds for a case, with the measured dispatch if there is one."""
    model = case.simulated if case.simulated is not None else case.predicted
    if model is None:
        return None
    found = (each.measured for each in report.control if each.name == "DISPATCH")
    return model + case.runs * (next(found, None) or costs.DISPATCH.value)


def _ratios(report: Report, design: DesignResult) -> list[float]:
    """Ratios of the cases at least as long as a dispatch, which would dominate shorter ones."""
    return [
        case.measured / model
        for case in design.cases
        if case.measured is not None
        and (case.predicted or 0.0) >= costs.DISPATCH.value
        and (model := expected(report, case))
    ]


# --- the page -------------------------------------------------------------------------------------
def page(report: Report) -> str:
    """The page in Markdown, which ends with the three lines."""
    parts = [
        f"# What the NPU of this machine does\n\n{report.made}, ort_aie_ep "
        f"{report.library}, overlays of `{report.folder}`.",
        _section("Steps", ("step", "outcome", "s", "found", "remedy"), (
            (step.name, step.outcome, f"{step.seconds:.1f}", step.says, step.remedy)
            for step in report.steps
        )),
        _section("Machine", ("link", "found", "remedy"), (
            (each.name, each.found or "missing", each.remedy) for each in report.machine
        )),
        _section("Overlays", ("design", "package", "passed", "wrong", "fault", "refused"), (
            _counts(design) for design in report.designs
        )),
        _section("What is not right", ("design", "case", "outcome", "reason"), (
            (design.design, case_name(case.sequence, case.shape), case.outcome, _why(case))
            for design in report.designs for case in design.cases if case.outcome != "passed"
        )),
        _section("Times, µs", ("design", "case", "measured", "±", "model", "ratio"), (
            row for design in report.designs for row in _times(report, design)
        )),
        _section("Constants", ("constant", "measured", "±", "costs.py", "unit", "or why not"), (
            _constant(each) for each in report.control
        )),
        "## In three lines\n\n" + "\n\n".join(verdict(report)),
    ]  # fmt: skip
    return "\n\n".join(part for part in parts if part) + "\n"


def _section(title: str, columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [f"| {' | '.join(map(_cell, row))} |" for row in rows]
    if not lines:
        return ""
    head = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    return "\n".join([f"## {title}", "", *head, *lines])


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def _why(case: Case) -> str:
    examples = (f"{d.output} {d.example}" for d in case.differences if d.example)
    return "; ".join(part for part in (case.reason, *examples) if part)


def _counts(design: DesignResult) -> tuple[str, ...]:
    counts = (
        str(sum(case.outcome == outcome for case in design.cases))
        for outcome in ("passed", "wrong", "fault", "refused")
    )
    return (design.design or "?", design.refused or design.package, *counts)


def _times(report: Report, design: DesignResult) -> Iterator[tuple[str, ...]]:
    for case in design.cases:
        if case.measured is None:
            continue
        model = expected(report, case)
        measured, spread = (f"{(s or 0.0) * 1e6:,.1f}" for s in (case.measured, case.spread))
        beside = ("?", "?")
        if model:
            beside = (f"{model * 1e6:,.1f}", f"{case.measured / model:.2f}")
        yield (design.design, case_name(case.sequence, case.shape), measured, spread, *beside)


def _constant(each: Measurement) -> tuple[str, ...]:
    found = ("–", "")
    if each.measured is not None:
        found = (f"{each.measured:.4g}", f"{each.spread:.2g}")
    return (each.name, *found, f"{each.in_costs:.4g}", each.unit, each.reason)
