"""Repositories that would make something run, or be read, that is not their own data."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from checkpoints import checkpoint
from hubs import Hub
from model_folders import DATA
from typer.testing import CliRunner

import ort_aie_ep
from ort_aie_ep.cli import app
from ort_aie_ep.errors import AieError
from ort_aie_ep.hub.models import local

LLAMA = DATA / "llama"


def crafted(hub: Hub, change: Callable[[dict[str, bytes]], None]) -> None:
    files = {path.name: path.read_bytes() for path in LLAMA.iterdir()}
    change(files)
    hub.add("evil/model", files)


def model_with(change: Callable[[onnx.ModelProto], None]) -> Callable[[dict[str, bytes]], None]:
    def act(files: dict[str, bytes]) -> None:
        model = onnx.ModelProto.FromString(files["model.onnx"])
        change(model)
        files["model.onnx"] = model.SerializeToString()

    return act


def data_in(location: str) -> Callable[[dict[str, bytes]], None]:
    def change(model: onnx.ModelProto) -> None:
        for tensor in model.graph.initializer:
            for entry in tensor.external_data:
                if entry.key == "location":
                    entry.value = location

    return model_with(change)


def context(model: onnx.ModelProto) -> None:
    node = onnx.helper.make_node(
        "EPContext", [], ["unseen"], "unseen", domain="com.microsoft",
        embed_mode=0, ep_cache_context="/tmp/x.so", main_context=1, source="Other",
    )  # fmt: skip
    model.graph.node.insert(0, node)


def context_in_a_branch(model: onnx.ModelProto) -> None:
    inner = onnx.helper.make_node(
        "EPContext", [], ["inner"], "inner", domain="com.microsoft", embed_mode=0
    )
    value = onnx.helper.make_tensor_value_info("inner", onnx.TensorProto.FLOAT, [1])
    body = onnx.helper.make_graph([inner], "body", [], [value])
    model.graph.initializer.append(onnx.helper.make_tensor("yes", onnx.TensorProto.BOOL, [], [1]))
    model.graph.node.append(
        onnx.helper.make_node("If", ["yes"], ["either"], "if", then_branch=body, else_branch=body)
    )


def file_elsewhere(files: dict[str, bytes]) -> None:
    config = json.loads(files["genai_config.json"])
    config["model"]["vision"] = {"filename": "a.onnx", "config_filename": "../../../secret.json"}
    files["genai_config.json"] = json.dumps(config).encode()


def no_json(files: dict[str, bytes]) -> None:
    files["genai_config.json"] = b"[" * 100_000


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (data_in("/etc/passwd"), "evil/model: .*outside the model's folder"),
        (data_in("../../blobs/x"), "evil/model: .*outside the model's folder"),
        (data_in("missing.data"), "evil/model: .*missing"),
        (model_with(context), "evil/model: model.onnx has EPContext nodes"),
        (model_with(context_in_a_branch), "evil/model: model.onnx has EPContext nodes"),
        (file_elsewhere, "config_filename is '../../../secret.json', which is not in"),
        (no_json, "genai_config.json"),
    ],
    ids=["absolute", "above", "missing", "context", "in a branch", "configuration", "nesting"],
)
def test_what_leads_elsewhere_or_was_compiled_elsewhere_is_refused(
    hub: Hub, change: Callable[[dict[str, bytes]], None], message: str
) -> None:
    crafted(hub, change)
    for _ in range(2):  # a refused folder is not kept for the next call
        with pytest.raises(AieError, match=message):
            local("evil/model")


def test_libraries_that_a_configuration_names_are_not_loaded(hub: Hub, tmp_path: Path) -> None:
    def change(files: dict[str, bytes]) -> None:
        config = json.loads(files["genai_config.json"])
        options = {
            "custom_ops_library": "evil.so",
            "provider_options": [{"QNN": {"backend_path": "evil.so"}}],
            "config_entries": {"ep.context_file_path": "evil.so"},
        }
        decoder = config["model"]["decoder"]
        decoder["session_options"] = options
        more = {"session_options": options, "run_options": {"x": "evil.so"}}
        decoder["pipeline"] = [{"more": {"filename": "model.onnx", **more}}]
        config["provider_options"] = options["provider_options"]
        files["genai_config.json"] = json.dumps(config).encode()
        files["evil.so"] = files["evil.dll"] = b"\x7fELF"

    crafted(hub, change)
    folder = local("evil/model").path
    compiled = ort_aie_ep.compile("evil/model", tmp_path / "compiled").path
    for at in (folder, compiled):
        config = json.loads((at / "genai_config.json").read_text())
        assert "evil" not in json.dumps(config)
        assert not [*at.glob("evil*")]
        assert config["model"]["decoder"]["filename"] == "model.onnx"
    assert not [path for path in hub.downloads() if "evil." in path]


def test_code_of_a_checkpoint_is_neither_downloaded_nor_run(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source = checkpoint(tmp_path / "SRC", auto_map={"AutoConfig": "configuration_evil.Evil"})
    hub.add("evil/checkpoint", source)
    code = {"configuration_evil.py": b"raise SystemExit", "pytorch_model.bin": b"\x80\x04"}
    hub.add("evil/checkpoint", code)
    folder = local("evil/checkpoint").path
    assert {path.suffix for path in folder.iterdir()} == {".json", ".safetensors"}
    words = ["compile", "evil/checkpoint", "out", "--builder-option", "hf_remote=true"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 1
    assert "hf_remote runs code from the repository" in result.stderr
