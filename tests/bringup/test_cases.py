"""Cases of design packages on a recorder of pyxrt, whose device is the simulator."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from overlay_site import TOOLS, Site
from pyxrt_recorder import DISPATCH, Recorder

from ort_aie_ep.bringup import cases as cases_module
from ort_aie_ep.bringup import device as device_module


# --- results --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "on", "sequences"),
    [
        ("fused_dqp", "npu2_2col", {"matvec", "matvec_part"}),
        pytest.param(
            "fused_dqp_128_symmetric", "npu1", {"matvec", "matvec_part"}, marks=pytest.mark.in_turn
        ),
        ("dequant_128", "npu1_1col", {"dequant"}),
        pytest.param(
            "short_gemm_32_symmetric", "npu2_1col", {"project"}, marks=pytest.mark.in_turn
        ),
        pytest.param(
            "gemm",
            "npu2_2col",
            {"gemm", "gate", "add_norm", "rotate", "append_rows"},
            marks=pytest.mark.in_turn,
        ),
        pytest.param("gemm", "npu1_1col", {"gemm"}, marks=pytest.mark.in_turn),
        ("micro", "npu2_2col", {"passthrough", "read", "write", "two_ids", "read_small", "chain"}),
        pytest.param(
            "micro",
            "npu1_1col",
            {"passthrough", "read", "write", "two_ids", "read_small"},
            marks=pytest.mark.in_turn,
        ),
        ("flow_kv", "npu2_2col", {"attention"}),
        ("flow_qkv", "npu2_2col", {"attention"}),
        ("vector_ops", "npu2_2col", {"rms_norm", "rope", "append", "move_heads", "glu"}),
    ],
)
def test_every_sequence_of_a_design_is_judged(
    site: Site, run: Any, name: str, on: str, sequences: set[str]
) -> None:
    site.add(name, on)
    report, _ = run(names=("NPU Phoenix",) if on.startswith("npu1") else ("NPU Krackan 1",))
    (design,) = report.designs
    assert report.passed, report.steps
    assert {case.sequence for case in design.cases} == sequences
    for case in design.cases:
        assert case.differences
        assert all(d.wrong == 0 and d.of_tolerance <= 1 for d in case.differences)
        assert all(d.elements > 0 for d in case.differences)


def test_decode_overlay_has_the_references_of_all_its_sequences(site: Site, run: Any) -> None:
    site.add("decode", "npu2")
    report, _ = run()
    assert report.passed, report.steps
    assert len({case.sequence for case in report.designs[0].cases}) == 8


def test_times_are_reported_beside_the_predicted_ones(
    site: Site, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        cases_module, "shapes", lambda *a: [s for s in _shapes(*a) if not s.typical]
    )
    site.add("fused_dqp")
    report, _ = run(quick=False)
    for case in report.designs[0].cases:
        # The recorder's device is the simulator, after a dispatch.
        assert case.measured == pytest.approx(case.simulated + DISPATCH, rel=0.02)
        assert case.predicted > 0
        assert case.repetitions == 3


_shapes = cases_module.shapes


def test_without_simpy_nothing_but_the_simulation_is_missing(
    site: Site, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ort_aie_ep.npu.simulator.session", None)
    monkeypatch.setattr(cases_module, "shapes", lambda *a: _shapes(*a)[:1])
    site.add("dequant")
    report, _ = run(quick=False)
    assert report.passed
    assert "ort_aie_ep.npu.simulator.session" in report.designs[0].not_simulated
    assert report.designs[0].cases[0].simulated is None


def test_a_package_of_another_version_is_judged_but_not_simulated(
    site: Site, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cases_module, "shapes", lambda *a: _shapes(*a)[:1])
    folder = site.add("dequant")
    content = json.loads((folder / "manifest.json").read_text())
    content["sequences"]["dequant"]["body"].append({"cut": True})
    (folder / "manifest.json").write_text(json.dumps(content))
    report, _ = run(quick=False)
    assert "dequant" in report.designs[0].not_simulated
    assert report.designs[0].cases[0].outcome == "passed", report.steps


def test_report_names_device_and_versions(site: Site, run: Any, tmp_path: Path) -> None:
    site.add("dequant")
    run()
    content = json.loads((tmp_path / "day.json").read_text())
    assert content["passed"] is True
    assert content["device"]["name"] == "NPU Strix"
    assert (content["device"]["xrt"], content["device"]["xrt_hash"]) == ("2.25.0", "abc")
    assert content["designs"][0]["toolchain"] == TOOLS
    assert content["designs"][0]["cases"][0]["differences"][0]["tolerance"] == 0
    assert not list(tmp_path.glob(".day*"))


def test_driver_and_firmware_are_those_of_sysfs(site: Site, tmp_path: Path) -> None:
    pci = tmp_path / "bus/pci/devices/0000:c5:00.1"
    (tmp_path / "module/amdxdna").mkdir(parents=True)
    pci.mkdir(parents=True)
    (tmp_path / "module/amdxdna/version").write_text("2.25.0_20260801\n")
    (pci / "fw_version").write_text("1.1.2.64\n")
    (pci / "device").write_text("0x17f0\n")
    found = device_module.Npu(Recorder({}, names=("a new name",)), tmp_path).identity  # type: ignore[arg-type]
    assert (found.driver, found.firmware) == ("2.25.0_20260801", "1.1.2.64")
    assert found.generation == 4  # by its PCI id


def test_chains_are_tried_at_three_lengths(site: Site, run: Any) -> None:
    site.add("micro")
    report, recorder = run()
    chains = [case for case in report.designs[0].cases if case.sequence == "chain"]
    assert [case.shape["runs"] for case in chains] == [1, 2, 24]
    assert recorder.calls["runlist.add"] == 27
    assert [case.measured for case in chains] == sorted(case.measured for case in chains)


def test_one_design_can_be_tried_by_itself(site: Site, run: Any) -> None:
    site.add("micro")
    site.add("dequant")
    report, _ = run(designs=["dequant"])
    assert report.passed
    assert [design.design for design in report.designs] == ["dequant"]
    assert report.steps[-1].outcome == "skipped", "a model needs the other designs"
    missing, _ = run(designs=["gemm"])
    assert not missing.passed
    assert "kernels build gemm --device npu2" in missing.steps[2].remedy


def test_each_package_of_one_xclbin_runs_its_own_kernel(site: Site, run: Any) -> None:
    site.add_together(["dequant", "vector_ops"])
    report, _ = run()
    assert report.passed, report.steps


def test_a_run_that_a_chain_drops_is_found(site: Site, run: Any) -> None:
    site.add("micro")
    report, _ = run(longest_list=23)
    wrong = [case for case in report.designs[0].cases if case.outcome != "passed"]
    assert [(case.sequence, case.shape["runs"]) for case in wrong] == [("chain", 24)]
    assert wrong[0].differences[0].wrong == 4096, "the last object of the chain"


def test_a_chain_that_hangs_is_an_entry(site: Site, run: Any) -> None:
    site.add("micro")
    report, _ = run(fail=lambda call: "TIMEOUT" if call == "runlist.wait" else None)
    chains = [case for case in report.designs[0].cases if case.sequence == "chain"]
    assert {case.outcome for case in chains} == {"fault"}
    assert "ERT_CMD_STATE_TIMEOUT" in chains[0].reason


def test_ids_that_come_out_of_the_wrong_core_are_found(site: Site, run: Any) -> None:
    site.add("micro")

    def swap(buffers: dict[int, np.ndarray]) -> None:
        if len(buffers) == 3:  # a, b and y of both ids
            y = buffers[2].reshape(-1, 2, 512)
            y[:] = y[:, ::-1].copy()

    report, _ = run(corrupt=swap)
    outcomes = {case.sequence: case.outcome for case in report.designs[0].cases}
    assert outcomes["two_ids"] == "wrong"
    assert outcomes["passthrough"] == "passed"


def test_outputs_that_nobody_wrote_are_wrong(site: Site, run: Any) -> None:
    site.add("vector_ops")
    report, _ = run(corrupt=lambda buffers: [b.fill(0xFF) for b in buffers.values()])
    assert {case.outcome for case in report.designs[0].cases} == {"wrong"}


@pytest.mark.parametrize(
    ("state", "reason"),
    [("TIMEOUT", "timeout: the run did not end within 8 s"),
     ("ERROR", "state: the run ended in state ERT_CMD_STATE_ERROR"),
     ("ABORT", "ERT_CMD_STATE_ABORT")],
)  # fmt: skip
def test_a_run_that_ends_badly_is_an_entry(site: Site, run: Any, state: str, reason: str) -> None:
    site.add("dequant")
    waits: list[str] = []

    def fail(call: str) -> str | None:
        waits.extend([call] if call == "run.wait" else [])
        return state if call == "run.wait" and len(waits) == 1 else None

    report, recorder = run(fail=fail)
    first, *others = report.designs[0].cases
    assert first.outcome == "fault"
    assert reason in first.reason
    assert {case.outcome for case in others} == {"passed"}
    assert recorder.calls["hw_context"] == 2, "the next case gets a fresh context"
    assert not report.passed


@pytest.mark.parametrize(
    ("call", "kind"),
    [("hw_context", "context"), ("bo", "allocation"), ("xclbin", "context"),
     ("run.start", "run"), ("bo.sync", "run")],
)  # fmt: skip
def test_what_the_binding_raises_is_an_entry(site: Site, run: Any, call: str, kind: str) -> None:
    site.add("dequant")

    def fail(name: str) -> None:
        if name == call:
            raise MemoryError("mmap failed")

    report, _ = run(fail=fail)
    case = report.designs[0].cases[0]
    assert (case.outcome, case.reason[: len(kind)]) == ("fault", kind)
    assert "mmap failed" in case.reason


def test_another_devices_package_is_refused(site: Site, run: Any) -> None:
    site.add("dequant", "npu1")
    site.add("dequant", "npu2")
    report, recorder = run()
    refused, ran = report.designs
    assert "ort-aie kernels build all --device npu2" in refused.refused
    assert ran.passed
    assert recorder.calls["hw_context"] == 1
    assert not report.passed


def test_a_corrupted_overlay_is_refused(site: Site, run: Any) -> None:
    folder = site.add("dequant")
    (folder / "overlay.xclbin").write_bytes(b"not one")
    report, _ = run()
    assert "axlf" in report.designs[0].refused


@pytest.mark.parametrize(
    ("names", "text"),
    [((), "XRT lists no device"), (("xilinx_u250",), "xilinx_u250, none of which is a known NPU")],
)
def test_no_npu_is_a_problem_of_the_report(
    site: Site, run: Any, names: tuple[str, ...], text: str
) -> None:
    site.add("dequant")
    report, _ = run(names=names)
    assert text in report.steps[1].says
    assert not report.passed


def test_the_npu_need_not_be_the_first_device(site: Site, run: Any) -> None:
    site.add("dequant")
    report, _ = run(names=("xilinx_u250", "RyzenAI-npu5"))
    assert report.passed
    assert report.device.name == "RyzenAI-npu5"


def test_a_run_that_would_take_too_long_is_not_submitted(
    site: Site, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.add("dequant")

    def build(manifest_json: str, plan: Any) -> list[dict[str, Any]]:
        return [{"words": np.zeros(4, np.uint32), "predicted_seconds": 0.6}]

    monkeypatch.setattr(cases_module._npu, "build", build)
    report, recorder = run()
    assert {case.outcome for case in report.designs[0].cases} == {"refused"}
    assert "0.60 s" in report.designs[0].cases[0].reason
    assert recorder.calls["run.start"] == 0


def test_a_sequence_without_reference_is_an_entry(site: Site, run: Any) -> None:
    folder = site.add("dequant")
    content = json.loads((folder / "manifest.json").read_text())
    content["sequences"]["novel"] = content["sequences"]["dequant"]
    (folder / "manifest.json").write_text(json.dumps(content))
    report, _ = run()
    refused = [case for case in report.designs[0].cases if case.outcome == "refused"]
    assert [case.sequence for case in refused] == ["novel"]
