"""`ort-aie first-day`: every step, whatever the outcome of earlier ones, and a report at any
time."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from overlay_site import Site
from pyxrt_recorder import Recorder
from typer.testing import CliRunner

from ort_aie_ep.cli import app
from ort_aie_ep.errors import AieError
from ort_aie_ep.explain.machine import Finding
from ort_aie_ep.npu.validate import first_day as first_day_module
from ort_aie_ep.npu.validate import npu as npu_module
from ort_aie_ep.npu.validate.control import measure, measurements
from ort_aie_ep.npu.validate.first_day import FirstDay, Means, Token, first_day
from ort_aie_ep.npu.validate.first_day_report import page, page_of, verdict, write
from ort_aie_ep.npu.validate.session import shapes
from ort_aie_ep.npu.vocabulary import costs
from ort_aie_ep.tools import first_token

STEPS = ["machine", "device", "overlays", "small shapes", "shapes of a layer", "chains of runs",
         "constants", "a model's tokens"]  # fmt: skip
TOKEN = Token(
    tokens=16, same=16, near_tie=False, largest_difference=0.1, largest_logit=12.0,
    milliseconds=12.5, host_milliseconds=3.25, submissions=1.0, host_steps={},
)  # fmt: skip
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

    monkeypatch.setattr("ort_aie_ep.npu.validate.session.shapes", first)
    monkeypatch.setattr("ort_aie_ep.npu.validate.session.MAX_SIMULATED", 0.0)
    first_one = lambda *arguments: islice(measure(*arguments), 1)  # noqa: E731
    monkeypatch.setattr(first_day_module, "measure", first_one)
    monkeypatch.setattr(first_day_module, "RUNS", 2)
    monkeypatch.setattr(first_day_module, "QUICK_RUNS", 2)


@pytest.fixture
def try_it(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[FirstDay, Path]]:
    """A first day with two overlays; options belong to Means, `recorder` to the Recorder."""

    def tried(
        recorder: dict[str, Any] | None = None,
        designs: tuple[str, ...] = DESIGNS,
        constants: bool = False,
        **means: Any,
    ) -> tuple[FirstDay, Path]:
        if constants:
            monkeypatch.setattr(first_day_module, "measure", measure)
        for name in designs:
            site.add(name)
        pyxrt = Recorder(site.designs, **recorder or {})
        monkeypatch.setattr(npu_module, "perf_counter", pyxrt.clock)
        its: dict[str, Any] = {
            "look": lambda: [Finding("NPU", "NPU2")], "wanted": lambda device: DESIGNS,
            "token": lambda folder: TOKEN, "load": lambda: pyxrt,
        }  # fmt: skip
        out = tmp_path / "day.json"
        folder = site.folder / "overlays"
        return first_day(folder, Means(**its | means), lambda day: write(day, out)), out

    return tried


def outcomes(day: FirstDay) -> dict[str, str]:
    assert [step.name for step in day.steps] == STEPS[: len(day.steps)]
    return {step.name: step.outcome for step in day.steps}


# --- a good day -----------------------------------------------------------------------------------
def test_a_day_on_which_all_is_right(try_it: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    day, out = try_it(constants=True)
    assert set(outcomes(day).values()) == {"done"}, day.steps
    assert day.passed
    # The design that computes nothing is first, though not by its name.
    assert [design.design for design in day.report.designs] == ["micro", "dequant"]
    right, fast, then = verdict(day)
    assert right == (
        "Right: 2 of 2 overlays (micro, dequant), 11 of 11 cases; the demonstration model writes "
        "the same text on the NPU as on the host."
    )
    assert "210 µs (model 210); a channel carries 3.99 B/cycle (model 4)" in fast
    assert fast.endswith("a token takes 12.5 ms, on the host 3.2.")
    assert then.startswith("Next: nothing failed.")
    content = json.loads(out.read_text())
    assert content["passed"] is True
    assert content["token"]["same"] == 16
    assert content["validate"]["device"]["name"] == "NPU Strix"
    assert page_of(out).read_text() == page(day)
    assert page(day).rstrip().endswith("\n\n".join(verdict(day)))
    # As if runs as short as these were longer than a dispatch.
    monkeypatch.setattr(costs, "DISPATCH", replace(costs.DISPATCH, value=0.0))
    assert verdict(day)[1].startswith("Fast: the median run takes 1.0")


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
    day, _ = try_it(recorder={"names": ()}, look=lambda: missing)
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

    day, _ = try_it(recorder={"corrupt": corrupt})
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

    day, _ = try_it(recorder={"fail": fail})
    micro, dequant = day.report.designs
    kinds = [case.outcome for case in micro.cases]
    assert kinds[:3] == ["fault"] * 3
    assert set(kinds[3:]) == {"refused"}, "also of the shapes of a layer"
    assert dequant.passed
    assert "dmesg" in verdict(day)[2]


def test_a_missing_overlay_is_named_with_what_builds_it(try_it: Any, site: Site) -> None:
    day, _ = try_it(designs=("micro",))
    assert outcomes(day)["overlays"] == "failed"
    assert outcomes(day)["small shapes"] == "done"
    folder = site.folder / "overlays"
    assert "missing: dequant" in verdict(day)[2]
    assert f"Ort-aie kernels build dequant --device npu2 --out {folder}." in verdict(day)[2]


def test_what_is_missing_is_built_where_that_is_asked_for(try_it: Any, site: Site) -> None:
    def build(name: str, device: str, folder: Path) -> None:
        if name == "micro":
            raise AieError("aiecc is not installed")
        site.add(name).rename(folder)

    day, _ = try_it(designs=(), build=build)
    assert "missing: micro" in day.steps[2].says
    assert outcomes(day)["shapes of a layer"] == "done"


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
    day, _ = try_it(token=lambda folder: Token(**TOKEN.__dict__ | token))
    assert outcomes(day)["a model's tokens"] == "failed"
    assert says in verdict(day)[2]
    assert not day.passed


def test_texts_that_part_at_a_near_tie_are_right() -> None:
    assert Token(**TOKEN.__dict__ | {"same": 3, "near_tie": True}).right


def test_a_mistake_of_a_step_is_an_entry_and_the_next_begins(try_it: Any) -> None:
    def look() -> list[Finding]:
        raise ZeroDivisionError("a mistake")

    day, _ = try_it(look=look)
    assert list(outcomes(day).values()) == ["failed", *["done"] * 7]
    assert "ZeroDivisionError" in verdict(day)[2]


def test_without_lists_the_chains_are_left_out(try_it: Any) -> None:
    day, _ = try_it(recorder={"lists": False})
    assert outcomes(day)["chains of runs"] == "skipped"
    assert day.passed


def test_a_chain_that_fails_is_found_after_everything_else_has_run(try_it: Any) -> None:
    day, _ = try_it(recorder={"longest_list": 1})
    its = outcomes(day)
    assert its.pop("chains of runs") == "failed"
    assert set(its.values()) == {"done"}
    assert "micro chain: wrong" in verdict(day)[2]


# --- days that end early --------------------------------------------------------------------------
def test_an_interrupted_day_leaves_what_was_done(try_it: Any) -> None:
    def interrupt(done: int, total: int, text: str) -> None:
        if text.startswith("dequant"):
            raise KeyboardInterrupt

    day, out = try_it(progress=interrupt)
    assert list(outcomes(day).values()) == ["done"] * 3 + ["interrupted"]
    assert day.interrupted
    content = json.loads(out.read_text())
    assert [step["outcome"] for step in content["steps"]][-1] == "interrupted"
    assert {case["outcome"] for case in content["validate"]["designs"][0]["cases"]} == {"passed"}
    assert "'small shapes'" in page_of(out).read_text()


def test_a_machine_that_dies_leaves_the_designs_before(try_it: Any, tmp_path: Path) -> None:
    class Dead(BaseException):
        pass

    def die(done: int, total: int, text: str) -> None:
        if text.startswith("dequant"):
            raise Dead

    with pytest.raises(Dead):
        try_it(progress=die)
    content = json.loads((tmp_path / "day.json").read_text())
    micro, dequant = content["validate"]["designs"]
    assert len(micro["cases"]) == 5
    assert dequant["cases"] == []
    assert not list(tmp_path.glob(".day*"))


def test_a_machine_that_dies_leaves_the_constants_before(try_it: Any, tmp_path: Path) -> None:
    class Dead(BaseException):
        pass

    def die(done: int, total: int, text: str) -> None:
        if text == "RTP_WORD":
            raise Dead

    with pytest.raises(Dead):
        try_it(progress=die, constants=True, designs=("micro",))
    control = json.loads((tmp_path / "day.json").read_text())["validate"]["control"]
    assert [each["name"] for each in control] == ["DISPATCH", "WRITE32"]


# --- the command ----------------------------------------------------------------------------------
@pytest.mark.parametrize("wrong", [False, True])
def test_the_command_ends_with_three_lines(
    site: Site,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ends: Callable[[str], dict[str, str]],
    wrong: bool,
) -> None:
    folder = site.add("micro").parent

    def corrupt(buffers: dict[int, np.ndarray]) -> None:
        if wrong:
            buffers[len(buffers) - 1][0] ^= 0x40

    recorder = Recorder(site.designs, corrupt=corrupt)
    monkeypatch.setattr(npu_module, "perf_counter", recorder.clock)
    monkeypatch.setitem(sys.modules, "pyxrt", recorder)
    monkeypatch.setattr(first_token, "run_apart", lambda folder: dict(TOKEN.__dict__))
    out = tmp_path / "day.json"
    result = CliRunner().invoke(app, ["first-day", str(folder), "--out", str(out)])
    # This machine has no NPU, and only one overlay exists.
    assert result.exit_code == 1, result.output
    assert [line.split(":")[0] for line in result.stdout.splitlines()] == ["Right", "Fast", "Next"]
    content = json.loads(out.read_text())
    assert [step["name"] for step in content["steps"]] == STEPS
    assert content["steps"][3]["outcome"] == ("failed" if wrong else "done")
    design = content["validate"]["designs"][0]
    tests = len(design["cases"]) + measurements(False) + 1
    assert ends(result.stderr) == {"first-day": f"{tests} tests"}
    # The command simulates with the library's own designs.
    assert content["validate"]["designs"][0]["not_simulated"] == ""


def test_a_report_that_cannot_be_written_is_said_at_once(tmp_path: Path) -> None:
    out = tmp_path / "nowhere" / "day.json"
    result = CliRunner().invoke(app, ["first-day", str(tmp_path), "--out", str(out)])
    assert result.exit_code == 1
    assert "nowhere" in result.output


# --- the model's process --------------------------------------------------------------------------
@pytest.mark.in_turn  # tests/xrt/test_demo_model_on_sim.py has such tokens with each change
def test_tokens_on_the_modelled_npu_are_the_hosts(tmp_path: Path) -> None:
    found = Token(**first_token.measure(tmp_path, "sim", tokens=2, text="x"))
    assert found.right
    assert found.submissions == 1
    assert 0 < found.largest_difference < 0.1 * found.largest_logit


def test_a_model_that_fails_is_reported_with_its_last_line(tmp_path: Path) -> None:
    with pytest.raises(AieError, match=r"code 1 .*xrt"):
        first_token.run_apart(tmp_path, "xrt")


def test_a_model_that_does_not_end_is_given_up(tmp_path: Path) -> None:
    with pytest.raises(AieError, match="0 s"):
        first_token.run_apart(tmp_path, "host", limit=0.01)
