"""Commands and functions that take a model take a name, and compile what it names once."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from checkpoints import checkpoint, python_with_builder
from hubs import Hub
from model_folders import DATA
from typer.testing import CliRunner

import ort_aie_ep
from ort_aie_ep import platforms, requirements
from ort_aie_ep.cli import app
from ort_aie_ep.hub import fits
from ort_aie_ep.hub.contents import Choice, File, Kind

LLAMA = DATA / "llama"
GENERATED = ("import os", "--max-tokens", "4")


def ort_aie(*words: object) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words])


def succeeded(*words: object) -> Any:
    result = ort_aie(*words)
    assert result.exit_code == 0, result.output
    return result


def entries(tmp_path: Path) -> list[Path]:
    return [path for path in (tmp_path / "compiled").glob("*") if path.name != "sources"]


def test_run_compiles_a_name_once_into_the_cache_of_sessions(hub: Hub, tmp_path: Path) -> None:
    hub.add("me/llama", LLAMA)
    ort_aie_ep.compile(LLAMA, tmp_path / "by hand")
    expected = succeeded("run", tmp_path / "by hand", *GENERATED).stdout
    first = succeeded("run", "me/llama", *GENERATED)
    assert first.stdout == expected
    assert "to download" in first.stderr
    (entry,) = entries(tmp_path)
    made = entry.stat().st_mtime_ns
    hub.requests.clear()
    second = succeeded("run", "me/llama", *GENERATED)
    assert second.stdout == expected
    assert "to download" not in second.stderr
    session = ort_aie_ep.session("me/llama")
    assert entries(tmp_path) == [entry]
    assert entry.stat().st_mtime_ns == made
    assert not hub.downloads()
    # A whole model: onnxruntime-genai needs no other folder.
    assert {"tokenizer.json", "genai_config.json"} <= {path.name for path in entry.iterdir()}
    listed = json.loads(succeeded("cache", "--json").stdout)["entries"]
    assert [(each["source"], each["in_use"]) for each in listed] == [("me/llama", True)]
    del session
    removed = succeeded("cache", "--remove", "me/llama").stderr
    assert "hf cache rm model/me/llama" in removed
    assert entries(tmp_path) == []
    assert ort_aie("cache", "--remove", "me/llama").exit_code == 1


def test_compile_and_explain_take_a_name(hub: Hub, tmp_path: Path) -> None:
    # As many repositories have an export: its configuration is in the folder above.
    files = {path.name: path.read_bytes() for path in LLAMA.iterdir()}
    del files["genai_config.json"]
    onnx = {name: files.pop(name) for name in ("model.onnx", "model.onnx.data")}
    hub.add("me/llama", onnx, under="onnx/")
    hub.add("me/llama", {**files, "config.json": b"{}", "model.safetensors": b"-" * 200_000})
    told = succeeded("compile", "me/llama", tmp_path / "compiled by name").stdout
    assert "aie.FlowAttention" in told
    assert (tmp_path / "compiled by name" / "tokenizer.json").is_file()
    assert "aie.FlowAttention" in succeeded("explain", "me/llama").stdout
    assert not [path for path in hub.downloads() if path.endswith(".safetensors")]


def test_a_checkpoint_goes_through_the_builder_once(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add("me/checkpoint", checkpoint(tmp_path / "SRC"))
    refused = ort_aie("run", "me/checkpoint", *GENERATED)
    assert refused.exit_code == 1
    assert re.search(
        r"1\.3 GB.*\n  ort-aie compile me/checkpoint COMPILED --builder-env", refused.stderr
    )
    seen = tmp_path / "seen.json"
    python = python_with_builder(tmp_path / "bin" / "python", STANDIN_SEEN=seen)
    monkeypatch.setenv("ORT_AIE_BUILDER_PYTHON", str(python))
    text = succeeded("run", "me/checkpoint", *GENERATED).stdout
    seen.unlink()
    assert succeeded("run", "me/checkpoint", *GENERATED).stdout == text
    assert not seen.exists()
    assert all(len(path.name) == 40 for path in entries(tmp_path))  # nothing beside the entry


def test_a_file_of_fastflowlm_opens_by_its_name(hub: Hub, tmp_path: Path) -> None:
    hub.add("me/q4nx", DATA / "q4nx_llama")
    session = ort_aie_ep.session("me/q4nx")
    assert "logits" in [output.name for output in session.get_outputs()]
    assert succeeded("compile", "me/q4nx", tmp_path / "out").exit_code == 0


def test_doctor_says_what_fits_and_downloads_nothing(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add("me/llama", LLAMA)
    assert "model.onnx and 4 more files" in succeeded("doctor", "me/llama").stdout
    told = json.loads(succeeded("doctor", "me/llama", "--json").stdout)
    assert told["settings"]["left"] == sum(path.stat().st_size for path in LLAMA.iterdir())
    monkeypatch.setattr(platforms, "free_memory", lambda: 1000)
    result = ort_aie("doctor", "me/llama")
    assert result.exit_code == 1
    assert "does not fit" in result.stdout
    assert not hub.downloads()


def test_without_huggingface_hub_a_name_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = requirements.find_spec
    monkeypatch.setattr(
        requirements, "find_spec", lambda name: None if name == "huggingface_hub" else real(name)
    )
    result = ort_aie("explain", "me/llama")
    assert result.exit_code == 1
    assert "me/llama does not exist here" in result.stderr
    assert "pip install 'ort_aie_ep[hub]'" in result.stderr


def test_the_speed_is_that_of_a_plain_read_of_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fits, "read_bandwidth", lambda: 10e9)
    monkeypatch.setattr(platforms, "free_memory", lambda: 3_000_000_000)
    large, small = (Choice(Kind.gguf, "", (File("a.gguf", size),)) for size in (10**9, 10**6))
    fit = fits.fit(large)
    assert fit.speed == 10
    assert fit.fits
    assert fits.fit(small).speed is None
    assert not fits.fit(Choice(Kind.onnx, "", (File("a", 3 * 10**9),))).fits
    assert fits.fit(Choice(Kind.checkpoint, "", (File("a", 10**9),))).weights < 10**9 / 2
