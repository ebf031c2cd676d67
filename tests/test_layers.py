"""Checks pyproject.toml's import contracts on the installed package: imports point one way."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).parents[1] / "pyproject.toml"


def test_every_room_imports_those_below_it_alone(tmp_path: Path) -> None:
    # In a folder without the sources: they lack the rooms that the build puts into the package.
    command = [Path(sys.executable).with_name("lint-imports"), "--config", PROJECT, "--no-cache"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
