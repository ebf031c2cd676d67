"""Threads that share ops and the modelled NPU, in a C++ program that compares them with the host.

`tests/check_sanitizers.sh` runs the same program under ThreadSanitizer.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cmake_program import Project


@pytest.mark.in_turn  # with each change, executor_test has prompts of several threads
def test_threads_share_ops_and_a_target(project: Project, tmp_path: Path) -> None:
    program = project.build("tests/xrt/threads_test")
    environment = {
        **os.environ,
        "ORT_AIE_SIM_PYTHON": sys.executable,
        "ORT_AIE_TRACE": str(tmp_path / "trace.json"),
        "XDG_CACHE_HOME": str(tmp_path),
    }
    environment.pop("ORT_AIE_SIM_FAULTS", None)
    done = subprocess.run(
        [program], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "trace.json").is_file()
