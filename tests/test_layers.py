"""Checks pyproject.toml's import contracts on the package, and what is imported to run a model."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("layers") / "compiled"
    ort_aie_ep.compile(Path(ort_aie_ep.__file__).parent / "demo_model", folder)
    return folder


@pytest.mark.parametrize("words", [("run",), ("chat", "--no-template")], ids=["run", "chat"])
def test_what_compiles_is_not_imported_to_run_a_compiled_model(
    words: tuple[str, ...], compiled: Path, tmp_path: Path
) -> None:
    command, *options = words
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "ort_aie_ep", command, compiled, "import os",
         "--max-tokens", "1", *options],
        env={**os.environ, "ORT_AIE_CACHE": str(tmp_path)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "ort_aie_ep.running.loop" in imported
    compiling = {"ort_aie_ep.graph_passes", "ort_aie_ep.compiler.compile", "onnx", "onnx_ir"}
    assert not imported & compiling
