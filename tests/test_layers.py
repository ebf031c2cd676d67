"""Checks pyproject.toml's import contracts on the package: imports point one way."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import ort_aie_ep

PROJECT = Path(__file__).parents[1] / "pyproject.toml"


def test_every_room_imports_those_below_it_alone(tmp_path: Path) -> None:
    # The tool follows no link to a folder, which two rooms are in the sources.
    package = Path(ort_aie_ep.__file__).parent
    modules = shutil.ignore_patterns("*.so", "*.cc", "*.h", "*.json", "__pycache__", "*.onnx*")
    shutil.copytree(package, tmp_path / "ort_aie_ep", ignore=modules)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [Path(sys.executable).with_name("lint-imports"), "--config", PROJECT, "--no-cache"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
