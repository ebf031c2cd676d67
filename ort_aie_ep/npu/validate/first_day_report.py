"""The report of a first day: JSON, a page for people, and a summary of three lines."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator
from pathlib import Path

from ort_aie_ep.models.files import written_beside
from ort_aie_ep.npu.validate.bench import Measurement
from ort_aie_ep.npu.validate.first_day import FirstDay
from ort_aie_ep.npu.validate.report import as_json
from ort_aie_ep.npu.validate.session import Case, DesignResult
from ort_aie_ep.npu.vocabulary import costs


def write(day: FirstDay, path: Path) -> None:
    """Write the JSON to `path` and the page beside it, each atomically (written and renamed)."""
    with written_beside(path) as file:
        file.write(as_json(day.to_json()))
    with written_beside(page_of(path)) as file:
        file.write(page(day))


def page_of(path: Path) -> Path:
    """The path of a report's page."""
    return path.with_suffix(".md")


# --- three lines ----------------------------------------------------------------------------------
def verdict(day: FirstDay) -> tuple[str, str, str]:
    """What runs and is right; its speed against the prediction; the first failure, its remedy."""
    return _right(day), _fast(day), _next(day)


def _right(day: FirstDay) -> str:
    designs = day.report.designs
    cases = [case for design in designs for case in design.cases]
    if not any(case.outcome in ("passed", "wrong") for case in cases):
        return "Right: nothing has run on the NPU yet."
    good = [design.design for design in designs if design.passed]
    passed = sum(case.outcome == "passed" for case in cases)
    text = (
        f"Right: {len(good)} of {len(designs)} overlays ({', '.join(good) or 'none'}), "
        f"{passed} of {len(cases)} cases"
    )
    if day.token is not None and day.token.submissions:
        same = "the" if day.token.right else "NOT the"
        text += f"; the demonstration model writes {same} same text on the NPU as on the host"
    return text + "."


def _fast(day: FirstDay) -> str:
    parts = []
    rates = {design.design: _ratios(day, design) for design in day.report.designs}
    every = [ratio for ratios in rates.values() for ratio in ratios]
    if every:
        middles = {name: statistics.median(ratios) for name, ratios in rates.items() if ratios}
        best, worst = min(middles, key=middles.__getitem__), max(middles, key=middles.__getitem__)
        text = f"the median run takes {statistics.median(every):.2f} of the predicted time"
        if best != worst:
            text += f" ({best} {middles[best]:.2f}, {worst} {middles[worst]:.2f})"
        parts.append(text)
    named = {each.name: each for each in day.report.control if each.measured is not None}
    for name, what, scale, unit in (
        ("DISPATCH", "a run alone costs", 1e6, "µs"),
        ("STREAM", "a channel carries", 1.0, "B/cycle"),
        ("DDR_READ", "memory is read at", 1e-9, "GB/s"),
    ):
        if name in named:
            measured = named[name].measured or 0.0
            expected = named[name].in_costs * scale
            parts.append(f"{what} {measured * scale:.3g} {unit} (model {expected:.3g})")
    if (token := day.token) is not None and token.submissions:
        parts.append(
            f"a token takes {token.milliseconds:.1f} ms, on the host {token.host_milliseconds:.1f}"
        )
    return f"Fast: {'; '.join(parts) or 'nothing was measured'}."


def _next(day: FirstDay) -> str:
    step = next((step for step in day.steps if step.outcome in ("failed", "interrupted")), None)
    if step is None:
        return "Next: nothing failed. Attach this report to an issue, and run a model of your own."
    if step.outcome == "interrupted":
        return f"Next: it was interrupted at '{step.name}'; the same command starts again."
    says = step.says.rstrip(".")
    return f"Next: '{step.name}' failed first: {says}. {_sentence(step.remedy)}".rstrip()


def _sentence(text: str) -> str:
    text = text.strip().rstrip(".")
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def expected(day: FirstDay, case: Case) -> float | None:
    """The model's seconds for a case, with the measured dispatch if there is one."""
    model = case.simulated if case.simulated is not None else case.predicted
    if model is None:
        return None
    found = (each.measured for each in day.report.control if each.name == "DISPATCH")
    return model + case.runs * (next(found, None) or costs.DISPATCH.value)


def _ratios(day: FirstDay, design: DesignResult) -> list[float]:
    """Ratios of the cases at least as long as a dispatch, which would dominate shorter ones."""
    return [
        case.measured / model
        for case in design.cases
        if case.measured is not None
        and (case.predicted or 0.0) >= costs.DISPATCH.value
        and (model := expected(day, case))
    ]


# --- the page -------------------------------------------------------------------------------------
def page(day: FirstDay) -> str:
    """The page in Markdown, which ends with the three lines."""
    report = day.report
    parts = [
        f"# First day on an NPU\n\n{report.made}, ort_aie_ep {report.library}, overlays of "
        f"`{day.folder}`.",
        _section("Steps", ("step", "outcome", "s", "found", "remedy"), (
            (step.name, step.outcome, f"{step.seconds:.1f}", step.says, step.remedy)
            for step in day.steps
        )),
        _section("Machine", ("link", "found", "remedy"), (
            (each["name"], each["found"] or "missing", each["remedy"]) for each in day.machine
        )),
        _section("Overlays", ("design", "package", "passed", "wrong", "fault", "refused"), (
            _counts(design) for design in report.designs
        )),
        _section("What is not right", ("design", "case", "outcome", "reason"), (
            (design.design, case_name(case), case.outcome, _why(case))
            for design in report.designs for case in design.cases if case.outcome != "passed"
        )),
        _section("Times, µs", ("design", "case", "measured", "±", "model", "ratio"), (
            row for design in report.designs for row in _times(day, design)
        )),
        _section("Constants", ("constant", "measured", "±", "costs.py", "unit", "or why not"), (
            _constant(each) for each in report.control
        )),
        "## In three lines\n\n" + "\n\n".join(verdict(day)),
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


def case_name(case: Case) -> str:
    """A sequence with its shape."""
    shape = (f"{k}={v}" for k, v in case.shape.items() if not k.endswith("_bits"))
    return " ".join([case.sequence, *shape])


def _why(case: Case) -> str:
    examples = (f"{d.output} {d.example}" for d in case.differences if d.example)
    return "; ".join(part for part in (case.reason, *examples) if part)


def _counts(design: DesignResult) -> tuple[str, ...]:
    counts = (
        str(sum(case.outcome == outcome for case in design.cases))
        for outcome in ("passed", "wrong", "fault", "refused")
    )
    return (design.design or "?", design.refused or design.package, *counts)


def _times(day: FirstDay, design: DesignResult) -> Iterator[tuple[str, ...]]:
    for case in design.cases:
        if case.measured is None:
            continue
        model = expected(day, case)
        measured, spread = (f"{(s or 0.0) * 1e6:,.1f}" for s in (case.measured, case.spread))
        beside = ("?", "?")
        if model:
            beside = (f"{model * 1e6:,.1f}", f"{case.measured / model:.2f}")
        yield (design.design, case_name(case), measured, spread, *beside)


def _constant(each: Measurement) -> tuple[str, ...]:
    found = ("–", "")
    if each.measured is not None:
        found = (f"{each.measured:.4g}", f"{each.spread:.2g}")
    return (each.name, *found, f"{each.in_costs:.4g}", each.unit, each.reason)
