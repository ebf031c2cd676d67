"""A report of `ort-aie validate` as JSON and as text."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from ort_aie_ep.models.files import written_beside
from ort_aie_ep.npu.validate.session import Case, DesignResult, Report


def write(report: Report, path: Path) -> None:
    """Write the JSON beside `path` and rename it."""
    with written_beside(path) as file:
        file.write(as_json(report.to_json()))


def as_json(content: dict[str, Any]) -> str:
    """The text of a report's file."""
    return json.dumps(_plain(content), indent=1, allow_nan=False) + "\n"


def _plain(value: Any) -> Any:
    """Turn infinities into null, because JSON has none."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def render(report: Report) -> str:
    """The report for people."""
    if report.problem:
        return f"nothing was run: {report.problem}"
    lines = []
    if (device := report.device) is not None:
        lines += [
            f"{device.name or 'a device without a name'} at {device.address or '?'}: "
            f"XRT {device.xrt or '?'}, driver {device.driver or '?'}, "
            f"firmware {device.firmware or '?'}, Linux {device.kernel}",
        ]
    for design in report.designs:
        lines += ["", *_design(design)]
    if report.control:
        lines += ["", f"{'constant':26}{'measured':>14}{'±':>12}{'costs.py':>14}  unit, where"]
    for each in report.control:
        found = f"{'–':>14}{'':>12}"
        if each.measured is not None:
            found = f"{each.measured:14.4g}{each.spread:12.2g}"
        tail = f"  {each.unit}, {each.of_device}, {each.status}"
        lines.append(f"{each.name:26}{found}{each.in_costs:14.4g}{tail}")
        if each.reason:
            lines.append(f"  not measured: {each.reason}")
    lines += ["", "everything is right" if report.passed else "NOT everything is right"]
    return "\n".join(lines)


def _design(design: DesignResult) -> list[str]:
    lines = [f"{design.design or '?'} ({design.device or '?'}), {design.package}"]
    if design.refused:
        return [*lines, f"  refused: {design.refused}"]
    if design.not_simulated:
        lines.append(f"  not simulated: {design.not_simulated}")
    return lines + [line for case in design.cases for line in _case(case)]


def _case(case: Case) -> list[str]:
    shape = " ".join(f"{k}={v}" for k, v in case.shape.items() if not k.endswith("_bits"))
    line = f"  {case.outcome:8}{case.sequence} {shape}"
    if case.measured is not None:
        share = max((d.of_tolerance for d in case.differences), default=0.0)
        model = _time(case.simulated if case.simulated is not None else case.predicted)
        line += f": {_time(case.measured)} (model {model} and the dispatch), "
        line += f"error {share:.2f} of its tolerance"
    lines = [line]
    if case.reason:
        lines.append(f"    {case.reason}")
    lines += [f"    {d.output} {d.example}" for d in case.differences if d.example]
    return lines


def _time(seconds: float | None) -> str:
    return "?" if seconds is None else f"{seconds * 1e6:,.1f} µs"
