"""Plans on an NPU, by a C++ program with a device of its own (executor/, a case a test)."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from standin_inputs import find_cmake

from ort_aie_ep.npu.device import device
from ort_aie_ep.npu.device_process import designs_for
from ort_aie_ep.npu.package import manifest

HERE = Path(__file__).parent
SOURCE = HERE.parents[1]
CASES = [
    case
    for source in sorted((HERE / "executor").glob("*_test.cc"))
    for case in re.findall(r'^    \{"(\w+)", \w+\},$', source.read_text(), re.MULTILINE)
]

# The project looks for pybind11 and ONNX Runtime's headers; the program uses neither.
PYBIND11 = """\
function(pybind11_add_module name no_extras)
  add_library(${name} MODULE EXCLUDE_FROM_ALL ${ARGN})
endfunction()
"""
HEADERS = (
    "onnxruntime_c_api.h",
    "onnxruntime_ep_c_api.h",
    "onnxruntime_session_options_config_keys.h",
)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    cmake = find_cmake()
    if cmake is None:
        pytest.skip("there is no cmake")
    build = tmp_path_factory.mktemp("executor")
    (build / "pybind11Config.cmake").write_text(PYBIND11)
    for name in HEADERS:
        (build / name).write_text("#pragma once\n#define ORT_API_VERSION 23\n")
    configure = (
        "-S", SOURCE, "-B", build, f"-Dpybind11_DIR={build}", "-DORT_AIE_XRT_FROM=none",
        f"-DORT_AIE_ONNXRUNTIME_INCLUDE_DIR={build}", f"-DPython_EXECUTABLE={sys.executable}",
    )  # fmt: skip
    for command in (configure, ("--build", build, "--target", "executor_test", "--parallel")):
        done = subprocess.run(
            [cmake, *map(str, command)], capture_output=True, text=True, check=False
        )
        if "nlohmann/json.hpp was not found" in done.stderr:
            pytest.skip("there is no nlohmann_json, which a build of the package has")
        assert done.returncode == 0, done.stdout + done.stderr
    return build / "src" / "targets" / "xrt" / "executor_test"


@pytest.fixture(scope="module")
def manifests(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("manifests")
    for name in ("npu1", "npu2"):
        (folder / name).mkdir()
        for made in designs_for(device(name)).values():
            (folder / name / f"{made.name}.json").write_text(json.dumps(manifest(made)))
    return folder


@pytest.mark.parametrize("case", CASES)
def test_executor(program: Path, manifests: Path, case: str) -> None:
    done = subprocess.run(
        [program, manifests, case], capture_output=True, text=True, check=False, timeout=300,
        env={**os.environ, "ORT_AIE_ISA": "portable"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
