"""Plans on an NPU, by a C++ program with a test device (executor/, one case per test)."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from cmake_program import Project

from ort_aie_ep.aie_kernels.build import designs_on
from ort_aie_ep.npu.packages.package import manifest
from ort_aie_ep.npu.terms.device import device

HERE = Path(__file__).parent
CASES = [
    case
    for source in sorted((HERE / "executor").glob("*_test.cc"))
    for case in re.findall(r'^    \{"(\w+)", \w+\},$', source.read_text(), re.MULTILINE)
]


@pytest.fixture(scope="module")
def program(project: Project) -> Path:
    return project.build("src/targets/npu/executor_test")


@pytest.fixture(scope="module")
def manifests(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("manifests")
    for name in ("npu1", "npu2"):
        (folder / name).mkdir()
        for made in designs_on(device(name)).values():
            (folder / name / f"{made.package}.json").write_text(json.dumps(manifest(made)))
    return folder


def run(program: Path, argument: Path, case: str) -> None:
    done = subprocess.run(
        [program, argument, case], capture_output=True, text=True, check=False, timeout=300,
        # Overwrites freed memory.
        env={**os.environ, "ORT_AIE_ISA": "portable", "MALLOC_PERTURB_": "165"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


# With each change, shorter prompts of decoders and those that the device prepares.
LONG = {"prompts_of_decoders"}


@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=pytest.mark.in_turn if c in LONG else []) for c in CASES]
)
def test_executor(program: Path, manifests: Path, case: str) -> None:
    run(program, manifests, case)
