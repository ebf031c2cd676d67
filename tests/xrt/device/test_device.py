"""The device layer over the stand-in of XRT, used by a C++ program; numpy computes the results."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from cmake_program import Project
from standin_inputs import matvec, words

from ort_aie_ep.aie_kernels.build import make_design
from ort_aie_ep.modelled_npu.device_process import write_packages
from ort_aie_ep.npu.packages.simulated import write_simulated_packages
from ort_aie_ep.npu.terms.device import device

HERE = Path(__file__).parent
CASES = re.findall(r'^    \{"(\w+)", \w+\},$', (HERE / "device_test.cc").read_text(), re.MULTILINE)


@pytest.fixture(scope="module")
def program(project: Project) -> Path:
    return project.build("tests/xrt/device_test")


def edited(package: Path, copy: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    """A copy of a package with another value in its manifest."""
    shutil.copytree(package, copy)
    manifest = json.loads((copy / "manifest.json").read_text())
    edit(manifest)
    (copy / "manifest.json").write_text(json.dumps(manifest))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """For each device, the program's inputs: packages, others that do not fit, a matvec's
    buffers."""
    packages = tmp_path_factory.mktemp("packages")
    folders = {}
    for name in ("npu1", "npu2"):
        write_packages(packages / name, device(name))
        folder = folders[name] = tmp_path_factory.mktemp(name)
        (folder / "packages").symlink_to(packages)
        buffers, result, _, _ = matvec(name)
        for file, data in {**buffers, "result": result, "words": words(name)}.items():
            if file != "y":
                (folder / file).write_bytes(data.tobytes())
        # One matvec is predicted to take over 0.25 s, so two do not fit in a run.
        rate = buffers["w"].nbytes / 0.2
        decoder = "fused_dqp" if name == "npu1" else "decode"
        edited(
            packages / name / decoder, folder / "slow" / decoder,
            lambda m, rate=rate: m.update(ddr_bytes_per_second=rate),
        )  # fmt: skip
    folder, decode = folders["npu2"], packages / "npu2" / "decode"
    target = device("npu2")
    together = {design: make_design(design, target) for design in ("decode", "fused_dqp")}
    write_simulated_packages(folder / "together", together)
    (folder / "nowhere").mkdir()
    edited(decode, folder / "of_npu1" / "decode", lambda m: m.update(device="npu1"))
    edited(decode, folder / "of_format_9" / "decode", lambda m: m.update(format=9))
    other = "00000000-0000-4000-8000-000000000000"
    edited(decode, folder / "of_another_xclbin" / "decode", lambda m: m.update(uuid=other))
    edited(decode, folder / "unbuilt" / "decode", lambda m: m.update(uuid=None))
    shutil.copytree(decode, folder / "no_xclbin" / "decode")
    (folder / "no_xclbin" / "decode" / "overlay.xclbin").write_bytes(b"xclbin1\0" + bytes(500))
    shutil.copytree(packages / "npu2" / "fused_dqp", folder / "renamed" / "decode")
    shutil.copytree(decode, folder / "pipe" / "decode")
    (folder / "pipe" / "decode" / "overlay.xclbin").unlink()
    os.mkfifo(folder / "pipe" / "decode" / "overlay.xclbin")
    shutil.copytree(decode, folder / "endless" / "decode")
    os.truncate(folder / "endless" / "decode" / "manifest.json", 1 << 33)
    return folders


def run(
    program: Path, cases: Sequence[str], folder: Path, name: str = "npu2", trace: str = ""
) -> None:
    environment = {
        **os.environ,
        "ORT_AIE_SIM_PYTHON": sys.executable,
        "ORT_AIE_SIM_DEVICE": name,
        "ORT_AIE_TRACE": trace,
    }
    environment.pop("ORT_AIE_SIM_FAULTS", None)
    done = subprocess.run(
        [program, folder, *cases], env=environment, capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""


# They change what holds for the whole process, its limits and its timeline, or leave behind what a
# lost device or a run without an end holds, as XRT would end the process with it.
ALONE = [
    "RefusedWeightsAreSpokenOfOnce", "WritesATrace", "RunsWordsOfOthers", "NoAnswer",
    "AFaultNamesTheInvocationThatStopped", "RemovedDevice",
]  # fmt: skip


def test_program(program: Path, folders: dict[str, Path]) -> None:
    together = [case for case in CASES if case not in ALONE]
    assert len(together) + len(ALONE) == len(CASES) > 30
    run(program, together, folders["npu2"])


@pytest.mark.parametrize("case", [case for case in ALONE if case != "WritesATrace"])
def test_a_process_of_its_own(program: Path, folders: dict[str, Path], case: str) -> None:
    run(program, [case], folders["npu2"])


def test_first_generation(program: Path, folders: dict[str, Path]) -> None:
    """NPU1 has no lists of runs."""
    cases = [
        "RunsMatvec", "PlansOfManyBuffersAreOneList", "ListsHave24RunsAtMost",
        "LongPlansAreSeveralRuns", "Timeout",
    ]  # fmt: skip
    run(program, cases, folders["npu1"], "npu1")


def test_trace_has_what_happened_in_order(
    program: Path, folders: dict[str, Path], tmp_path: Path
) -> None:
    path = tmp_path / "trace.json"
    run(program, ["WritesATrace"], folders["npu2"], trace=str(path))
    trace = json.loads(path.read_text())
    assert [p.name for p in tmp_path.iterdir()] == ["trace.json"]
    events = sorted(trace["traceEvents"], key=lambda event: event["ts"])
    # x, w, bias, y and the instructions; the run; then y back.
    what = [event["cat"] for event in events]
    assert what == ["sync"] * 5 + ["dispatch", "wait", "sync"]
    assert events[5]["name"] == events[6]["name"] == "matvec"
    assert events[0]["args"]["bytes"] == (folders["npu2"] / "x").stat().st_size
    assert all(event["ph"] == "X" and event["dur"] >= 0 for event in events)
    ends = [event["ts"] + event["dur"] for event in events]
    assert all(end <= event["ts"] for end, event in zip(ends, events[1:], strict=False))
