"""`ort-aie predict`: tables, JSON, the picture, mistakes."""

from __future__ import annotations

import json
import re
from importlib import util
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import ort_aie_ep
from ort_aie_ep.cli import app
from ort_aie_ep.npu.speed import plot as plot_module


def simulate(*words: object) -> Any:
    return CliRunner().invoke(app, ["predict", *map(str, words)])


def succeeded(*words: object) -> Any:
    result = simulate(*words)
    assert result.exit_code == 0, result.output
    return result


def mistake(*words: object) -> str:
    result = simulate(*words)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "error: " in result.stderr
    return str(result.stderr)


def test_a_model_is_shown_beside_the_papers() -> None:
    text = succeeded("gemma3-4b", "--contexts", "1024,4096").stdout
    for published in ("14.4", "14.1"):
        assert published in text


def test_the_papers_tables_are_printed() -> None:
    assert "llama-3.2-1b" in succeeded("--papers").stdout


def test_json_of_a_model() -> None:
    report = json.loads(succeeded("qwen3-0.6b", "--contexts", "1024", "--json").stdout)
    assert {"model", "device", "points", "what_if", "speedups", "environment"} <= report.keys()
    decoding, prompt = report["points"]
    assert (decoding["phase"], prompt["phase"]) == ("decode", "prefill")
    assert decoding["paper"] == 50.4
    assert decoding["calibrates"]
    assert decoding["timing"]["parts"]["projections"] > 0
    watts = decoding["draw"]["npu_watts"]
    assert decoding["draw"]["tokens_per_watt"] == pytest.approx(decoding["value"] / watts)
    assert prompt["draw"]["tokens_per_watt"] > decoding["draw"]["tokens_per_watt"]
    assert prompt["residual"] is None
    assert len(report["what_if"]) == 3 * 4 + 1 + 2 * 3 + 4 + 4


def test_an_era_changes_the_constants_and_has_no_cells_of_the_papers() -> None:
    words = ("qwen3-0.6b", "--contexts", "64", "--json")
    papers, later = (
        json.loads(succeeded(*words, "--era", era).stdout) for era in ("papers", "mlir-air")
    )
    assert later["points"][0]["value"] > papers["points"][0]["value"]
    assert (papers["era"], later["era"]) == ("papers", "mlir-air")
    text = succeeded("llama-3.2-1b", "--contexts", "64", "--era", "mlir-air").stdout
    assert "layers" in text
    for only_2025 in ("TPS/W", "Table I", "iGPU"):
        assert only_2025 not in text


@pytest.mark.in_turn
def test_the_published_cells_of_2026_are_beside_the_model() -> None:
    text = succeeded("--papers", "--era", "mlir-air").stdout
    assert len(re.findall(r"[+-]\d+\.\d%", text)) == 8 * 8 + 59 + 54 + 11
    assert "ATTENTION_RATE" in text
    report = json.loads(succeeded("--papers", "--era", "mlir-air", "--json").stdout)
    assert len(report["cells"]) == 8 * 8
    assert simulate("--papers", "--era", "mlir-air", "--plot", "x.png").exit_code == 2


def test_kernels_stand_beside_published_ones() -> None:
    succeeded("--kernels")
    report = json.loads(succeeded("--kernels", "--json").stdout)
    assert {row["unit"] for row in report["rows"]} == {"cycles", "ms"}
    assert set(report["unconfirmed"]) <= {row["design"] for row in report["rows"]}
    assert {one["tokens"] for one in report["prompts"]} == {1024, 2048, 16384}
    for words in (("qwen3-4b", "--kernels"), ("--kernels", "--plot", "x.png"),
                  ("--kernels", "--contexts", "64")):  # fmt: skip
        assert simulate(*words).exit_code == 2


def test_json_of_the_papers() -> None:
    report = json.loads(succeeded("--papers", "--json").stdout)
    assert len(report["cells"]) == 2 * 50
    assert len(report["left_out"]) == 5
    assert all(
        {"name", "kernels", "limit", "value", "met"} == goal.keys() for goal in report["goals"]
    )
    for cost in report["constants"].values():
        assert cost["status"] == "fitted"
        assert cost["unit"]
        assert len(cost["interval"]) == 2


def test_mistakes_name_what_is_known() -> None:
    assert "llama-3.2-1b" in mistake("llama")
    assert "npu1" in mistake("qwen3-4b", "--device", "npu3")
    for words in (("--papers",), ("--papers", "--era", "mlir-air"), ("--kernels",)):
        assert "npu1" in mistake(*words, "--device", "npu1")
    assert "group" in mistake("qwen3-4b", "--group", "100")
    assert "99999999" in mistake("qwen3-4b", "--contexts", "99999999")


@pytest.mark.parametrize(
    "words",
    [(), ("qwen3-4b", "--papers"), ("qwen3-4b", "--contexts", "1k"),
     ("--papers", "--contexts", "1024"), ("--papers", "--group", "128")],
)  # fmt: skip
def test_a_command_that_is_written_wrongly_ends_with_2(words: tuple[str, ...]) -> None:
    assert simulate(*words).exit_code == 2


def test_without_matplotlib_the_plot_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(plot_module, "find_spec", lambda name: None)
    assert "pip install matplotlib" in mistake("qwen3-4b", "--plot", tmp_path / "x.png")


@pytest.mark.skipif(util.find_spec("matplotlib") is None, reason="needs matplotlib")
def test_the_plot_is_drawn(tmp_path: Path) -> None:
    path = tmp_path / "model.png"
    words = ("qwen3-0.6b", "--contexts", "100,128")
    result = succeeded(*words, "--plot", path)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert str(path) in result.stderr
    nowhere = tmp_path / "no" / "x.png"
    assert str(nowhere) in simulate(*words, "--plot", nowhere).stderr


def test_a_compiled_model_is_composed_of_its_plan(tmp_path: Path) -> None:
    ort_aie_ep.compile(Path(ort_aie_ep.__file__).parent / "demo_model", tmp_path / "compiled")
    words = (tmp_path / "compiled", "--contexts", "128")
    report = json.loads(succeeded(*words, "--json").stdout)
    (token,), (prompt,) = report["decode"], report["prefill"]
    assert token["host_steps"] == {"rows of an embedding": 1}
    assert prompt["overlays"].keys() == {"dequant", "gemm", "flow_qkv"}
    text = succeeded(*words).stdout
    assert token["submissions"] == 1
    assert f"{token['device_steps']} steps" in " ".join(text.split())
    assert "4096" in mistake(tmp_path / "compiled", "--contexts", "4096")


def test_a_model_that_is_not_compiled_says_what_to_do() -> None:
    demo = Path(ort_aie_ep.__file__).parent / "demo_model"
    assert "ort-aie compile" in mistake(demo)
