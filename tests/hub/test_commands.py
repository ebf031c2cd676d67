"""Commands and functions that take a model take a name, and compile what it names once."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from checkpoints import checkpoint, python_with_builder, weights
from commands import ort_aie, succeeded
from hubs import Hub
from model_folders import DATA

import ort_aie_ep
from ort_aie_ep import platforms, requirements
from ort_aie_ep.errors import AieError
from ort_aie_ep.hub import fits
from ort_aie_ep.hub.contents import Choice, File, Kind
from ort_aie_ep.hub.models import compiled, local
from ort_aie_ep.models.checkpoint import INDEX
from ort_aie_ep.models.folder import find_model
from ort_aie_ep.running.templates import find_template

LLAMA = DATA / "llama"
GENERATED = ("import os", "--max-tokens", "4")


def entries(tmp_path: Path) -> list[Path]:
    return [path for path in (tmp_path / "compiled").glob("*") if path.name != "sources"]


def test_run_compiles_a_name_once_into_the_cache_of_sessions(hub: Hub, tmp_path: Path) -> None:
    hub.add("me/llama", LLAMA)
    ort_aie_ep.compile(LLAMA, tmp_path / "by hand")
    expected = succeeded("run", tmp_path / "by hand", *GENERATED).stdout
    pulled = succeeded("pull", "me/llama")
    assert "to download" in pulled.stderr
    assert "next: " in pulled.stderr
    assert succeeded("run", "me/llama", *GENERATED).stdout == expected
    assert "temperature 0" in succeeded("show", "me/llama").stdout
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
    listed = json.loads(succeeded("list", "--json").stdout)["entries"]
    assert [(each["source"], each["in_use"]) for each in listed] == [("me/llama", True)]
    del session
    removed = succeeded("rm", "hf.co/me/llama").stderr
    assert "hf cache rm model/me/llama" in removed
    assert entries(tmp_path) == []
    assert ort_aie("rm", "me/llama").exit_code == 1


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


@pytest.mark.parametrize(
    ("name", "index"), [("model.safetensors-00001-of-00001", True), ("model-q", False)]
)
def test_a_checkpoints_weights_are_what_its_index_names(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, index: bool
) -> None:
    """Qwen3.5's file is called so; files are those of safetensors' own writer."""
    save = pytest.importorskip("safetensors.numpy")
    source = checkpoint(tmp_path / "SRC")
    for shard in source.glob("model*"):
        shard.unlink()
    tensors = {"model.embed_tokens.weight": weights(9, 6), "lm_head.weight": weights(9, 6, seed=1)}
    save.save_file(tensors, source / f"{name}.safetensors")
    save.save_file(tensors, source / "consolidated.safetensors")
    if index:
        named = dict.fromkeys(tensors, f"{name}.safetensors")
        (source / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": named}))
    hub.add("me/checkpoint", source)
    assert "checkpoint of safetensors" in succeeded("doctor", "me/checkpoint").stdout
    assert [path.rpartition("/")[2] for path in hub.downloads()] == [INDEX] * index
    seen = tmp_path / "seen.json"
    python = python_with_builder(tmp_path / "bin" / "python", STANDIN_SEEN=seen)
    monkeypatch.setenv("ORT_AIE_BUILDER_PYTHON", str(python))
    for model in ("me/checkpoint", source):
        (source / "consolidated.safetensors").unlink(missing_ok=True)
        succeeded("compile", model, tmp_path / f"compiled {Path(model).name}")
        told = json.loads(seen.read_text())
        # What transformers finds: without an index, it looks for one name alone.
        shard = f"{name}.safetensors" if index else "model.safetensors"
        assert [file for file in told["files"] if file.endswith(".safetensors")] == [shard]
        for tensor, values in tensors.items():
            np.testing.assert_array_equal(np.float32(told["tensors"][tensor]), values)


DOORS = {
    "doctor": (), "compile": ("compiled",), "explain": (), "run": ("text",), "chat": (),
    "serve": (), "batch": ("in.jsonl", "answers"), "bench": (), "accuracy": (),
}  # fmt: skip


@pytest.mark.parametrize("command", [*DOORS, "session"])
def test_a_model_of_amds_runtime_is_refused_before_it_is_downloaded(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    names = ("genai_config.json", "model_jit.onnx", "model_jit.onnx.data", "model_jit.pb.bin")
    hub.add("amd/hybrid", {name: b"{}" for name in (*names, "tokenizer.json")})
    if command == "session":
        with pytest.raises(AieError) as error:
            ort_aie_ep.session("amd/hybrid")
        told = str(error.value)
    else:
        result = ort_aie(command, "amd/hybrid", *DOORS[command])
        assert result.exit_code == 1
        told = result.stderr.removeprefix("error: ")
    assert " ".join(told.split()) == (
        "amd/hybrid has no model that can be opened: only AMD's Ryzen AI Software runs it "
        "(model_jit.onnx); take the same model as GGUF, as its original checkpoint, or as an ONNX "
        "export at int4 for CPUs"
    )
    assert not hub.downloads()


def test_nodes_of_amds_runtime_are_refused_before_weights_come(hub: Hub, tmp_path: Path) -> None:
    """Where names of files do not tell; and in a folder of the user's."""
    model = onnx.load(LLAMA / "model.onnx", load_external_data=False)
    node = next(n for n in model.graph.node if n.op_type == "GroupQueryAttention")
    node.domain = "com.ryzenai"
    hub.add("amd/strix", LLAMA)
    hub.add("amd/strix", {"model.onnx": model.SerializeToString()})
    said = r"com\.ryzenai\.GroupQueryAttention, which only AMD's Ryzen AI Software runs: take"
    with pytest.raises(AieError, match=f"^amd/strix: model.onnx: it has nodes {said}"):
        ort_aie_ep.session("amd/strix")
    assert [path.rpartition("/")[2] for path in hub.downloads()] == ["model.onnx"]
    folder = tmp_path / "strix"
    shutil.copytree(LLAMA, folder)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    for command in ("compile", "explain"):
        assert re.search(said, ort_aie(command, folder, *DOORS[command]).stderr)
    (folder / "prefill.pb.bin").touch()
    for command in set(DOORS) - {"doctor"}:
        told = ort_aie(command, folder, *DOORS[command]).stderr
        assert "strix is a model that only AMD's Ryzen AI Software runs" in told


def test_templates_for_tools_come_along_into_what_is_compiled(hub: Hub, tmp_path: Path) -> None:
    hub.add("me/llama", LLAMA)
    template = "additional_chat_templates/tool_use.jinja"
    for text in ("one", "other"):  # another text is another model
        hub.add("me/llama", {"chat_template.jinja": b"plain", template: text.encode()})
        folder = compiled(local("me/llama")).file.parent
        found = find_template(find_model(folder))
        assert found is not None
        assert (found.text, found.for_tools) == ("plain", text)
        result = ort_aie_ep.compile("me/llama", tmp_path / text)
        assert (result.path / template).read_text() == text


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


def test_doctor_says_whether_a_file_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [tmp_path / f"model-0000{part}-of-00002.gguf" for part in (1, 2)]
    for part in parts:
        part.write_bytes(b"GGUF" + bytes(996))
    told = json.loads(succeeded("doctor", parts[1], "--json").stdout)
    assert (told["settings"]["bytes"], told["settings"]["left"]) == (2000, 0)
    monkeypatch.setattr(platforms, "free_memory", lambda: 1000)
    assert "does not fit" in ort_aie("doctor", parts[0]).stdout
    parts[0].unlink()
    assert parts[0].name in ort_aie("doctor", parts[1]).stderr


def test_pull_refuses_what_is_neither_there_nor_a_name() -> None:
    result = ort_aie("pull", "llama3.2")
    assert result.exit_code == 1
    assert "not a name on a hub" in result.stderr


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
    assert "install" in result.stderr
    assert "'huggingface_hub>=" in result.stderr


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
