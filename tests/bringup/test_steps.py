"""`ort-aie validate`: every step, whatever the outcome of earlier ones; a report at any time."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from overlay_site import TOKEN, Site
from typer.testing import CliRunner

from ort_aie_ep.bringup import Report, cases, first_token, model_process, steps
from ort_aie_ep.bringup.cases import shapes
from ort_aie_ep.bringup.constants import measurements
from ort_aie_ep.bringup.first_token import Token, run_apart
from ort_aie_ep.bringup.report import page, page_of, verdict
from ort_aie_ep.cli import app
from ort_aie_ep.errors import AieError
from ort_aie_ep.machine import Finding
from ort_aie_ep.npu.terms import costs

STEPS = ["machine", "device", "overlays", "small shapes", "shapes of a layer", "chains of runs",
         "constants", "a model's tokens"]  # fmt: skip
DESIGNS = ("dequant", "micro")


@pytest.fixture(autouse=True)
def few_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first small shape of each sequence, one of a layer (or smaller) for each design, one
    constant; no simulation for comparison."""

    def first(manifest: Any, device: Any, sequence: str) -> list[Any]:
        every = shapes(manifest, device, sequence)
        small = [s for s in every if not s.typical]
        larger = small[-1:] if sequence in ("passthrough", "dequant") else []
        return [*small[:1], *(replace(shape, typical=True) for shape in larger)]

    monkeypatch.setattr(cases, "shapes", first)
    monkeypatch.setattr(cases, "MAX_SIMULATED", 0.0)
    monkeypatch.setattr(steps, "RUNS", 2)
    monkeypatch.setattr(steps, "QUICK_RUNS", 2)


@pytest.fixture
def try_it(site: Site, run: Any) -> Callable[..., Report]:
    """All steps with two overlays, of two that are wanted."""

    def tried(designs: tuple[str, ...] = DESIGNS, **options: Any) -> Report:
        for name in designs:
            site.add(name)
        report: Report = run(quick=False, wanted=DESIGNS, **options)[0]
        return report

    return tried


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """The report's file."""
    return tmp_path / "day.json"


def outcomes(day: Report) -> dict[str, str]:
    assert [step.name for step in day.steps] == STEPS[: len(day.steps)]
    return {step.name: step.outcome for step in day.steps}


# --- a good day -----------------------------------------------------------------------------------
def test_a_day_on_which_all_is_right(
    try_it: Any, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    day = try_it(constants=True)
    assert set(outcomes(day).values()) == {"done"}, day.steps
    assert day.passed
    # The design that computes nothing is first, though not by its name.
    assert [design.design for design in day.designs] == ["micro", "dequant"]
    right, fast, then = verdict(day)
    assert right == (
        "Right: 2 of 2 overlays (micro, dequant), 11 of 11 cases; the demonstration model writes "
        "the same text on the NPU as on the host."
    )
    assert "75.1 µs (model 75); a channel carries 10.2 GB/s (model 10.3)" in fast
    assert fast.endswith("a token takes 12.5 ms, on the host 3.2.")
    assert then.startswith("Next: nothing failed.")
    content = json.loads(out.read_text())
    assert content["passed"] is True
    assert content["token"]["same"] == 16
    assert content["device"]["name"] == "NPU Strix"
    assert page_of(out).read_text() == page(day)
    assert page(day).rstrip().endswith("\n\n".join(verdict(day)))
    # As if runs as short as these were longer than a dispatch.
    monkeypatch.setattr(costs, "DISPATCH", replace(costs.DISPATCH, value=0.0))
    assert verdict(day)[1].startswith("Fast: the median run takes 0.98")


def test_small_shapes_of_all_designs_come_before_those_of_a_layer(try_it: Any) -> None:
    said: list[str] = []
    try_it(progress=lambda done, total, what: said.append(what))
    places = [said.index(text) for text in (
        "small shapes", "micro passthrough bytes=8192 lanes=1 first=0",
        "dequant dequant blocks=4", "shapes of a layer",
        "micro passthrough bytes=40960 lanes=2 first=1", "dequant dequant blocks=37",
        "chains of runs", "micro chain runs=24", "constants", "DISPATCH", "a model's tokens",
    )]  # fmt: skip
    assert places == sorted(places)


# --- days that go wrong ---------------------------------------------------------------------------
def test_without_a_device_the_machine_is_still_looked_at(try_it: Any) -> None:
    missing = [Finding("NPU", "NPU2"), Finding("amdxdna driver", "", "install Linux 6.14")]
    day = try_it(names=(), look=lambda: missing)
    assert list(outcomes(day).values()) == ["failed", "failed", *["skipped"] * 6]
    assert verdict(day) == (
        "Right: nothing has run on the NPU yet.",
        "Fast: nothing was measured.",
        "Next: 'machine' failed first: there is no amdxdna driver. Install Linux 6.14.",
    )
    assert "| amdxdna driver | missing | install Linux 6.14 |" in page(day)


def test_wrong_results_do_not_end_the_day(try_it: Any) -> None:
    def corrupt(buffers: dict[int, np.ndarray]) -> None:
        if len(buffers) == 2:  # not the chains, nor the ids
            buffers[1].view(np.uint16)[7] ^= 0x4000

    day = try_it(corrupt=corrupt)
    its = outcomes(day)
    assert (its["small shapes"], its["shapes of a layer"]) == ("failed", "failed")
    assert (its["constants"], its["a model's tokens"]) == ("done", "done")
    right, _, then = verdict(day)
    assert right.startswith("Right: 0 of 2 overlays (none), 5 of 11 cases")
    assert "'small shapes' failed first: 2 of 6" in then
    assert "micro passthrough: wrong: 1 elements" in then
    assert "| micro | passthrough bytes=8192 lanes=1 first=0 | wrong |" in page(day)


def test_designs_that_hang_are_left_alone_and_the_next_is_tried(try_it: Any) -> None:
    waits: list[int] = []

    def fail(call: str) -> str | None:
        waits.extend([1] if call == "run.wait" else [])
        return "TIMEOUT" if call == "run.wait" and len(waits) <= 3 else None

    day = try_it(fail=fail)
    micro, dequant = day.designs
    kinds = [case.outcome for case in micro.cases]
    assert kinds[:3] == ["fault"] * 3
    assert set(kinds[3:]) == {"refused"}, "also of the shapes of a layer"
    assert dequant.passed
    assert "dmesg" in verdict(day)[2]


def test_a_missing_overlay_is_named_with_what_builds_it(try_it: Any, site: Site) -> None:
    day = try_it(designs=("micro",))
    assert outcomes(day)["overlays"] == "failed"
    assert outcomes(day)["small shapes"] == "done"
    folder = site.folder / "overlays"
    assert "missing: dequant" in verdict(day)[2]
    assert f"Ort-aie kernels build dequant --device npu2 --out {folder}." in verdict(day)[2]


@pytest.mark.parametrize(
    ("token", "says"),
    [
        ({"same": 3}, "3 of 16 are the host's"),
        (
            {"submissions": 0.0, "host_steps": {"no overlay gemm": 9}},
            "did all the work: no overlay",
        ),
    ],
)
def test_tokens_that_are_not_the_hosts_are_a_failure(
    try_it: Any, token: dict[str, Any], says: str
) -> None:
    day = try_it(token=lambda folder: Token(**TOKEN.__dict__ | token))
    assert outcomes(day)["a model's tokens"] == "failed"
    assert says in verdict(day)[2]
    assert not day.passed


def test_texts_that_part_at_a_near_tie_are_right() -> None:
    assert Token(**TOKEN.__dict__ | {"same": 3, "near_tie": True}).right


def test_a_mistake_of_a_step_is_an_entry_and_the_next_begins(try_it: Any) -> None:
    def look() -> list[Finding]:
        raise ZeroDivisionError("a mistake")

    day = try_it(look=look)
    assert list(outcomes(day).values()) == ["failed", *["done"] * 7]
    assert "ZeroDivisionError" in verdict(day)[2]


def test_without_lists_the_chains_are_left_out(try_it: Any) -> None:
    day = try_it(lists=False)
    assert outcomes(day)["chains of runs"] == "skipped"
    assert day.passed


# --- days that end early --------------------------------------------------------------------------
def test_an_interrupted_day_leaves_what_was_done(try_it: Any, out: Path) -> None:
    def interrupt(done: int, total: int, text: str) -> None:
        if text.startswith("dequant"):
            raise KeyboardInterrupt

    day = try_it(progress=interrupt)
    assert list(outcomes(day).values()) == ["done"] * 3 + ["interrupted"]
    assert day.interrupted
    content = json.loads(out.read_text())
    assert [step["outcome"] for step in content["steps"]][-1] == "interrupted"
    assert {case["outcome"] for case in content["designs"][0]["cases"]} == {"passed"}
    assert "'small shapes'" in page_of(out).read_text()


def test_a_machine_that_dies_leaves_the_designs_before(try_it: Any, out: Path) -> None:
    class Dead(BaseException):
        pass

    def die(done: int, total: int, text: str) -> None:
        if text.startswith("dequant"):
            raise Dead

    with pytest.raises(Dead):
        try_it(progress=die)
    content = json.loads(out.read_text())
    micro, dequant = content["designs"]
    assert len(micro["cases"]) == 5
    assert dequant["cases"] == []
    assert not list(out.parent.glob(".day*"))


# --- the command ----------------------------------------------------------------------------------
@pytest.mark.parametrize("right", [True, False])
def test_the_command_ends_with_three_lines(
    site: Site,
    out: Path,
    record: Any,
    monkeypatch: pytest.MonkeyPatch,
    ends: Callable[[str], dict[str, str]],
    right: bool,
) -> None:
    def corrupt(buffers: dict[int, np.ndarray]) -> None:
        if not right:
            buffers[len(buffers) - 1][0] ^= 0x40

    monkeypatch.setattr(steps, "links", lambda: [Finding("NPU", "NPU2")])
    monkeypatch.setattr(first_token, "run_apart", lambda folder: TOKEN)
    folder = site.add("micro")  # a package by itself: no other is missing
    record(corrupt=corrupt)
    result = CliRunner().invoke(app, ["validate", str(folder), "--out", str(out)])
    assert result.exit_code == (0 if right else 1), result.output
    assert [line.split(":")[0] for line in result.stdout.splitlines()] == ["Right", "Fast", "Next"]
    content = json.loads(out.read_text())
    assert [step["name"] for step in content["steps"]] == STEPS
    assert content["steps"][3]["outcome"] == ("done" if right else "failed")
    design = content["designs"][0]
    tests = len(design["cases"]) + measurements(False) + 1
    assert ends(result.stderr) == {"validate": f"{tests} tests"}
    # The command simulates with the library's own designs.
    assert design["not_simulated"] == ""


def test_without_pyxrt_the_command_says_where_it_is(
    site: Site, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyxrt", None)
    result = CliRunner().invoke(app, ["validate", str(site.add("dequant")), "--out", str(out)])
    assert result.exit_code == 1
    says = json.loads(out.read_text())["steps"][1]["says"]
    for part in ("apt install python3-xrt", "dnf install python3-xrt", "/opt/xilinx/xrt"):
        assert part in says
        assert part in result.stderr


def test_a_report_that_cannot_be_written_is_said_at_once(tmp_path: Path) -> None:
    out = tmp_path / "nowhere" / "day.json"
    result = CliRunner().invoke(app, ["validate", str(tmp_path), "--out", str(out)])
    assert result.exit_code == 1
    assert "nowhere" in result.output


# --- the model's process --------------------------------------------------------------------------
@pytest.mark.in_turn  # tests/xrt/test_models_on_npu.py has such tokens with each change
def test_tokens_on_the_modelled_npu_are_the_hosts(tmp_path: Path) -> None:
    found = model_process.measure(tmp_path, "sim", tokens=2, text="x")
    assert found.right
    assert found.submissions == 1
    assert 0 < found.largest_difference < 0.1 * found.largest_logit


def test_a_model_that_fails_is_reported_with_its_last_line(tmp_path: Path) -> None:
    with pytest.raises(AieError, match=r"code 1 .*xrt"):
        run_apart(tmp_path, "xrt")


def test_a_model_that_does_not_end_is_given_up(tmp_path: Path) -> None:
    with pytest.raises(AieError, match="0 s"):
        run_apart(tmp_path, "host", limit=0.01)
