"""Every command that takes a model, on random models: a result or a message, never a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest
from random_graphs import RandomGraph
from typer.testing import CliRunner

from ort_aie_ep.cli import app


def ort_aie(*words: object) -> int:
    """The exit code of a command, which ended by itself or with a message."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exception is None or isinstance(result.exception, SystemExit), (
        words,
        result.exc_info,
    )
    assert result.exit_code == 0 or "error: " in result.stderr
    return result.exit_code


@pytest.mark.parametrize("seed", range(16))
def test_commands_take_random_models(seed: int, tmp_path: Path) -> None:
    graph = RandomGraph(seed)
    model = graph.save(tmp_path / "model.onnx")
    compiled = tmp_path / "compiled"
    assert ort_aie("explain", model) == 0
    assert ort_aie("run", model, "text") == 1  # there is no tokenizer
    if ort_aie("compile", model, compiled):
        return
    assert ort_aie("explain", compiled, "--nodes", "--html", tmp_path / "page.html") == 0
    ort_aie("simulate", compiled, "--contexts", "8")
    assert ort_aie("run", compiled, "text") == 1


def test_a_node_between_two_plans_is_explained(tmp_path: Path) -> None:
    graph = RandomGraph(0)
    model = graph.save(tmp_path / "model.onnx")
    assert ort_aie("compile", model, tmp_path / "compiled") == 0
    assert ort_aie("explain", tmp_path / "compiled") == 0
