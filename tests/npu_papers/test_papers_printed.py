"""The program's tables, data and picture."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib import util
from pathlib import Path
from typing import Any

import pytest
from npu_papers import __main__ as program
from npu_papers import plot

pytestmark = pytest.mark.in_turn  # nothing that ships prints these


def printed(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert program.main([str(word) for word in words]) == 0
    return capsys.readouterr().out


def data(capsys: pytest.CaptureFixture[str], *words: object) -> Any:
    return json.loads(printed(capsys, *words, "--json"))


def test_the_folder_is_a_program() -> None:
    folder = str(Path(program.__file__).parent)
    words = [sys.executable, folder, "model", "gemma3-4b", "--contexts", "1024,4096"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    for published in ("14.4", "14.1"):
        assert published in done.stdout


def test_data_of_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    report = data(capsys, "model", "qwen3-0.6b", "--contexts", "1024")
    decoding, prompt = report["points"]
    assert (decoding["phase"], prompt["phase"]) == ("decode", "prefill")
    assert decoding["paper"] == 50.4
    assert decoding["calibrates"]
    watts = decoding["draw"]["npu_watts"]
    assert decoding["draw"]["tokens_per_watt"] == pytest.approx(decoding["value"] / watts)
    assert prompt["residual"] is None
    assert len(report["what_if"]) == 3 * 4 + 1 + 2 * 3 + 4 + 4


def test_data_of_the_papers_and_of_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    report = data(capsys, "papers")
    assert len(report["cells"]) == 2 * 50
    assert len(report["left_out"]) == 5
    assert {cost["status"] for cost in report["constants"].values()} == {"fitted"}
    report = data(capsys, "kernels")
    assert {row["unit"] for row in report["rows"]} == {"cycles", "ms"}
    assert set(report["unconfirmed"]) <= {row["design"] for row in report["rows"]}


def test_every_cell_of_the_papers_is_printed_with_its_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = printed(capsys, "papers")
    decode, prefill = text.index("Decode, tokens"), text.index("Prefill, seconds")
    cells = text[decode : text.index("Leave one out")]
    assert decode < prefill
    assert len(re.findall(r"[+-]\d+\.\d%", cells)) == 2 * 50


@pytest.mark.in_turn
def test_every_cell_of_2026_is_printed_with_its_error(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "mlir-air")
    assert len(re.findall(r"[+-]\d+\.\d%", text)) == 8 * 8 + 59 + 54 + 11
    assert len(data(capsys, "mlir-air")["cells"]) == 8 * 8


def test_constants_that_the_fit_does_not_give_are_an_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "STALE" not in printed(capsys, "fit")
    monkeypatch.setattr("npu_papers.constants.UNCONFIRMED", frozenset())
    assert program.main(["fit"]) == 1


def test_calls_of_flash_attention_are_divided(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [line for line in printed(capsys, "attention").splitlines() if "heads of" in line]
    assert len(rows) == 16
    for row in rows:
        measured, fixed, scores, *_ = (float(cell) for cell in row.split("|")[2:-1])
        assert fixed + scores == pytest.approx(measured, rel=0.12)


def test_mistakes_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["model", "gpt-5"]) == 1
    assert "llama-3.2-1b" in capsys.readouterr().err


def test_without_matplotlib_the_plot_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plot, "find_spec", lambda name: None)
    assert program.main(["papers", "--plot", "x.png"]) == 1
    assert "pip install matplotlib" in capsys.readouterr().err


@pytest.mark.skipif(util.find_spec("matplotlib") is None, reason="needs matplotlib")
def test_the_plot_is_drawn(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "model.png"
    printed(capsys, "model", "qwen3-0.6b", "--contexts", "100,128", "--plot", path)
    assert path.read_bytes().startswith(b"\x89PNG")
