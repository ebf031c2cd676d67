"""The NPU targets as a session sees them: options, reports of faults, counters, the trace."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import ort_aie_ep
from ort_aie_ep.runtime.counters import NpuCounters

LIBRARY = Path(ort_aie_ep.library_path())
SIMULATED = pytest.mark.skipif(
    not LIBRARY.with_name("libort_aie_sim.so").is_file(), reason="built without XRT's headers"
)
OPS = Path(__file__).parents[1] / "ops"


@pytest.fixture
def packages(tmp_path_factory: pytest.TempPathFactory) -> str:
    """XDG_CACHE_HOME: the modelled NPU's packages are made once."""
    return str(tmp_path_factory.getbasetemp())


# Sessions of one projection each with the environment's options, two or as many as SESSIONS
# says, and one on the host.
PROJECT = """
import json, os, sys
from dataclasses import asdict
sys.path += sys.argv[1:]
import numpy as np
import ort_aie_ep
from projection_calls import activations, make_weights, project
w, a = make_weights(256, 512), activations(1, 512)
result = {"before": asdict(ort_aie_ep.npu_counters())}
try:
    y = project(w, a)
    result["after"] = asdict(ort_aie_ep.npu_counters())
    for _ in range(1, int(os.environ.get("SESSIONS", "2"))):
        project(w, a)
    os.environ["ORT_AIE_TARGET"] = "host"
    host = project(w, a, accuracy_level=0)
    result["mass_of_difference"] = float(
        np.max(np.abs(y - host) / (np.abs(a) @ np.abs(w.dequantised).T))
    )
except Exception as error:
    result["error"] = str(error)
print(json.dumps(result))
"""


def project(script: str = PROJECT, **environment: str) -> tuple[dict[str, Any], list[str]]:
    """(what the process prints, its lines on stderr)"""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ORT_AIE_")}
    done = subprocess.run(
        [sys.executable, "-c", script, str(OPS), str(OPS.parent)], env=clean | environment,
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result, done.stderr.splitlines()


# Both targets round activations to bfloat16 and accumulate in float32. The NPU's output is a
# bfloat16, and its dequantised weights may be too: 2^-8 and 2^-9 of the mass.
BOUND = 2.0**-8 + 2.0**-9


@SIMULATED
def test_projection_on_the_modelled_npu(tmp_path: Path) -> None:
    result, lines = project(ORT_AIE_TARGET="sim", XDG_CACHE_HOME=str(tmp_path), SESSIONS="1")
    assert result["before"] == asdict(NpuCounters())
    after = NpuCounters(**result["after"])
    assert (after.device_steps, after.host_steps, after.fallbacks) == (1, {}, 0)
    assert after.runs >= 1
    assert after.streams_built >= 1
    assert after.bytes_to > 256 * 512 // 2  # the weights, of 4 bits and more
    assert after.bytes_from >= 2 * 256
    # The session is closed, and the device with it.
    assert (after.buffers, after.buffer_bytes) == (0, 0)
    assert result["mass_of_difference"] <= BOUND
    assert lines == []
    assert (tmp_path / "ort_aie_ep/simulated_overlays/npu2/decode/manifest.json").is_file()


@SIMULATED
def test_counters_are_kept_when_the_last_session_closes(packages: str) -> None:
    # A call before would load the library and keep it open.
    script = PROJECT.replace(
        'result = {"before": asdict(ort_aie_ep.npu_counters())}', "result = {}"
    )
    result, _ = project(script, ORT_AIE_TARGET="sim", XDG_CACHE_HOME=packages, SESSIONS="1")
    assert NpuCounters(**result["after"]).device_steps == 1


@SIMULATED
def test_a_session_goes_on_after_a_fault(packages: str) -> None:
    result, lines = project(
        ORT_AIE_TARGET="sim", XDG_CACHE_HOME=packages, SESSIONS="1",
        ORT_AIE_SIM_FAULTS="run_timeout@1..2",
    )  # fmt: skip
    after = NpuCounters(**result["after"])
    assert (after.retries, after.fallbacks, after.buffers) == (1, 1, 0)
    assert result["mass_of_difference"] == 0  # the host's own numerics
    assert len(lines) == 1
    assert lines[0].startswith("ort_aie_ep: ")
    assert "TIMEOUT" in lines[0]


@SIMULATED
def test_a_fault_is_raised_if_asked_for(packages: str) -> None:
    result, lines = project(
        ORT_AIE_TARGET="sim", XDG_CACHE_HOME=packages, ORT_AIE_ON_DEVICE_ERROR="raise",
        ORT_AIE_SIM_FAULTS="run_error@1..2",
    )  # fmt: skip
    assert "the_node" in result["error"]
    assert "ERROR" in result["error"]
    assert len(lines) <= 1


@SIMULATED
def test_trace_shows_nodes_and_what_they_wait_for(tmp_path: Path, packages: str) -> None:
    path = tmp_path / "timeline.json"
    project(
        ORT_AIE_TARGET="sim", XDG_CACHE_HOME=packages, ORT_AIE_LOG="trace",
        ORT_AIE_TRACE=str(path),
    )  # fmt: skip
    events = json.loads(path.read_text())["traceEvents"]
    nodes = [event for event in events if event["cat"] == "node"]
    # From the two sessions, and from the host's.
    assert [node["name"] for node in nodes] == ["MatMul"] * 3
    assert [node["args"]["node"] for node in nodes] == ["the_node"] * 3
    for category in ("dispatch", "wait", "sync"):
        assert any(
            nodes[0]["ts"] <= event["ts"]
            and event["ts"] + event["dur"] <= nodes[0]["ts"] + nodes[0]["dur"]
            for event in events
            if event["cat"] == category
        )


# Attention for a prompt of 70 tokens, in one run and then in two.
PROMPTS = """
import json, os, sys
sys.path += sys.argv[1:]
import ort_aie_ep
from attention_calls import attributes, flow_attention, random_inputs
a, runs = attributes(2, 1), []
for chunk in ("256", "64"):
    os.environ["ORT_AIE_PROMPT_CHUNK"] = chunk
    before = ort_aie_ep.npu_counters().runs
    flow_attention(a, random_inputs(a, 70, lengths=(70,), capacity=70, dim=64))
    runs.append(ort_aie_ep.npu_counters().runs - before)
print(json.dumps({"runs": runs}))
"""


@SIMULATED
def test_prompt_chunk_divides_a_prompt_into_runs(packages: str) -> None:
    result, _ = project(PROMPTS, ORT_AIE_TARGET="sim", XDG_CACHE_HOME=packages)
    assert result["runs"] == [1, 2]


def machine_with(folder: Path, vendor: str) -> str:
    """A /sys folder whose accel class has one device."""
    device = folder / "sys" / "class" / "accel" / "accel0" / "device"
    device.mkdir(parents=True)
    (device / "vendor").write_text(f"{vendor}\n")
    return str(folder / "sys")


def test_auto_stays_on_the_host_without_an_npu(tmp_path: Path) -> None:
    result, lines = project(ORT_AIE_SYSFS=machine_with(tmp_path, "0x8086"))
    assert result["mass_of_difference"] == 0
    assert result["after"] == asdict(NpuCounters())
    assert lines == []


@pytest.mark.skipif(Path("/dev/accel/accel0").exists(), reason="there may be an NPU")
def test_auto_says_once_a_session_why_the_npu_is_not_used(tmp_path: Path) -> None:
    sys_root = machine_with(tmp_path, "0x1022")
    result, lines = project(ORT_AIE_SYSFS=sys_root)
    assert result["mass_of_difference"] == 0
    assert all(
        line.startswith("ort_aie_ep: the host computes, because the NPU cannot be used: ")
        for line in lines
    )
    assert len(lines) == 2  # sessions
    assert project(ORT_AIE_SYSFS=sys_root, ORT_AIE_LOG="quiet")[1] == []


@pytest.mark.skipif(Path("/dev/accel/accel0").exists(), reason="there may be an NPU")
def test_xrt_without_an_npu_goes_on_on_the_host_and_says_so() -> None:
    result, lines = project(ORT_AIE_TARGET="xrt")
    assert result["mass_of_difference"] == 0
    assert len(lines) == 2  # sessions
    start = "ort_aie_ep: the host computes, because the NPU cannot be used: ort_aie.target=xrt: "
    assert all(line.startswith(start) for line in lines)


@pytest.mark.skipif(Path("/dev/accel/accel0").exists(), reason="there may be an NPU")
def test_xrt_without_an_npu_is_an_error_if_asked_for() -> None:
    result, _ = project(ORT_AIE_TARGET="xrt", ORT_AIE_ON_DEVICE_ERROR="raise")
    assert "'the_node': ort_aie.target=xrt" in result["error"]


def test_a_build_without_xrt_says_so(tmp_path: Path) -> None:
    alone = tmp_path / LIBRARY.name
    shutil.copy(LIBRARY, alone)
    script = PROJECT.replace(
        "import ort_aie_ep\n",
        f"import ort_aie_ep\nort_aie_ep.library_path = lambda: {str(alone)!r}\n",
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(OPS), str(OPS.parent)],
        env=os.environ | {"ORT_AIE_TARGET": "sim"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    error = json.loads(done.stdout.splitlines()[-1])["error"]
    assert "ort_aie.target=sim" in error
    assert "libxrt-dev" in error
