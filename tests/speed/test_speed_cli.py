"""`ort-aie predict`: tables, JSON, mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import mistake, ort_aie, succeeded

import ort_aie_ep
from ort_aie_ep.prediction.ranges import range_words


def test_a_name_is_composed_of_the_plan_of_its_shape() -> None:
    report = json.loads(succeeded("predict", "llama-3.2-1b", "--json").stdout)
    for phase in ("decode", "prefill"):
        assert [one["context"] for one in report[phase]] == [1024, 2048, 4096, 8192]
    assert report["decode"][0]["overlays"] == {"fused_layer": 1}
    token = 1 / report["decode"][0]["timing"]["seconds"]
    assert f"{token:.2f}" in succeeded("predict", "llama-3.2-1b", "--contexts", "1024").stdout


def test_a_prediction_is_a_range() -> None:
    words = ("llama-3.2-1b", "--contexts", "1024")
    report = json.loads(succeeded("predict", *words, "--json").stdout)
    shown = " ".join(succeeded("predict", *words).stdout.split())
    for phase, kind in (("decode", "token"), ("prefill", "prompt")):
        seconds = report[phase][0]["timing"]["seconds"]
        assert range_words(kind, seconds) in shown  # type: ignore[arg-type]


def test_mistakes_name_what_is_known() -> None:
    assert "llama-3.2-1b" in mistake("predict", "llama")
    assert "group" in mistake("predict", "qwen3-4b", "--group", "100")
    assert "99999999" in mistake("predict", "qwen3-4b", "--contexts", "99999999")


@pytest.mark.parametrize(
    "words",
    [(), ("qwen3-4b", "--contexts", "1k"), ("qwen3-4b", "--era", "papers")],
)  # fmt: skip
def test_a_command_that_is_written_wrongly_ends_with_2(words: tuple[str, ...]) -> None:
    assert ort_aie("predict", *words).exit_code == 2


def test_a_compiled_model_is_composed_of_its_plan(tmp_path: Path) -> None:
    ort_aie_ep.compile(Path(ort_aie_ep.__file__).parent / "demo_model", tmp_path / "compiled")
    words = (tmp_path / "compiled", "--contexts", "128")
    report = json.loads(succeeded("predict", *words, "--json").stdout)
    (token,), (prompt,) = report["decode"], report["prefill"]
    assert token["host_steps"] == {"rows of an embedding": 1}
    assert prompt["overlays"].keys() == {"short_gemm", "gemm_bfp16", "flow_qkv"}
    text = succeeded("predict", *words).stdout
    assert token["submissions"] == 1
    assert f"{token['device_steps']} steps" in " ".join(text.split())
    assert "4096" in mistake("predict", tmp_path / "compiled", "--contexts", "4096")


def test_a_folder_that_is_not_compiled_is_compiled_and_a_file_says_what_to_do() -> None:
    demo = Path(ort_aie_ep.__file__).parent / "demo_model"
    assert "a token" in succeeded("predict", demo, "--contexts", "64").stdout
    assert "ort-aie compile" in mistake("predict", demo / "model.onnx")
