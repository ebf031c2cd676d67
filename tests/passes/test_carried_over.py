"""Links among the files of a source folder: which are followed, and what the report says of
others."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from builder_nodes import projection_model, save
from op_models import session_options
from typer.testing import CliRunner

import ort_aie_ep
from ort_aie_ep.cli import app
from ort_aie_ep.compiler.compile import REPORT

GENAI_CONFIG = {"model": {"type": "llama", "decoder": {"filename": "model.onnx"}}}
WRITTEN = {"model.onnx", "model.onnx.data", REPORT}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return save(projection_model(), tmp_path / "source").parent


def carried(result: ort_aie_ep.compiler.compile.CompileResult) -> set[str]:
    files = {str(p.relative_to(result.path)) for p in result.path.rglob("*") if p.is_file()}
    assert not any(path.is_symlink() for path in result.path.rglob("*"))
    return files - WRITTEN


def test_links_inside_the_folder_become_files(source: Path, tmp_path: Path) -> None:
    (source / "parts").mkdir()
    (source / "parts" / "vocab.json").write_text("{}")
    (source / "vocab.json").symlink_to("parts/vocab.json")
    (source / "absolute.json").symlink_to(source / "parts" / "vocab.json")
    result = ort_aie_ep.compile(source, tmp_path / "compiled")
    assert carried(result) == {"parts/vocab.json", "vocab.json", "absolute.json"}
    assert result.notes == ()


def test_links_out_of_the_folder_are_named_and_not_followed(source: Path, tmp_path: Path) -> None:
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "key").write_text("secret")
    (source / "key").symlink_to("../secrets/key")
    (source / "again").symlink_to("key")
    (source / "folder").symlink_to("../secrets")
    (source / "nowhere").symlink_to("../nothing")
    (source / "device").symlink_to("/dev/zero")
    os.mkfifo(source / "pipe")
    (source / "tokenizer.json").write_text("{}")
    result = ort_aie_ep.compile(source, tmp_path / "compiled")
    assert carried(result) == {"tokenizer.json"}
    outside = f"it is a link to {tmp_path / 'secrets' / 'key'}, outside the folder"
    notes = {
        f"again is not copied: {outside}",
        "device is not copied: it is not a regular file",
        "folder is not copied: it is a link to a folder",
        f"key is not copied: {outside}",
        "nowhere is not copied: it is a link to nowhere",
        "pipe is not copied: it is not a regular file",
    }
    assert set(result.notes) == notes
    assert set(json.loads((result.path / REPORT).read_text())["notes"]) == notes


def test_the_command_says_what_is_left(source: Path, tmp_path: Path) -> None:
    (source / "passwd").symlink_to("/etc/passwd")
    result = CliRunner().invoke(app, ["compile", str(source), str(tmp_path / "compiled")])
    assert result.exit_code == 0, result.output
    assert "/etc/passwd" in result.stderr


def hub_cache(source: Path, root: Path) -> Path:
    """Stores a folder's files as Hugging Face's cache does; returns the snapshot."""
    snapshot = root / "models--me--model" / "snapshots" / ("a" * 40)
    blobs = root / "models--me--model" / "blobs"
    blobs.mkdir(parents=True)
    for path in sorted(p for p in source.rglob("*") if p.is_file()):
        blob = blobs / hashlib.sha256(path.read_bytes()).hexdigest()
        blob.write_bytes(path.read_bytes())
        link = snapshot / path.relative_to(source)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blob, link.parent))
    return snapshot


def compiled_model(folder: Path, destination: Path) -> bytes:
    return (ort_aie_ep.compile(folder, destination).path / "model.onnx.data").read_bytes()


def test_weights_in_a_snapshot_of_the_hub_are_read(source: Path, tmp_path: Path) -> None:
    expected = compiled_model(source, tmp_path / "expected")
    snapshot = hub_cache(source, tmp_path / "hub")
    assert (snapshot / "model.onnx.data").is_symlink()
    assert compiled_model(snapshot, tmp_path / "compiled") == expected


def test_weights_in_files_with_hard_links_are_read(source: Path, tmp_path: Path) -> None:
    expected = compiled_model(source, tmp_path / "expected")
    os.link(source / "model.onnx.data", tmp_path / "another name")
    assert compiled_model(source, tmp_path / "compiled") == expected


@pytest.mark.parametrize("folder", [".", "onnx"])
def test_a_snapshot_of_the_hub_is_carried_over_wholly(
    source: Path, tmp_path: Path, folder: str
) -> None:
    (source / "genai_config.json").write_text(json.dumps(GENAI_CONFIG))
    (source / "tokenizer.json").write_text("{}")
    (source / "more").mkdir()
    (source / "more" / "vocab.json").write_text("[]")
    inside = tmp_path / "upload"
    (inside / folder).parent.mkdir(exist_ok=True)
    source.rename(inside if folder == "." else (inside / folder))
    snapshot = hub_cache(inside, tmp_path / "hub") / folder
    result = ort_aie_ep.compile(snapshot, tmp_path / "compiled")
    stub = Path(ort_aie_ep.stub_path()).name
    assert carried(result) == {"genai_config.json", "tokenizer.json", "more/vocab.json", stub}
    assert result.notes == ()
    assert (result.path / "more" / "vocab.json").read_text() == "[]"


def test_a_snapshot_does_not_reach_other_repositories(source: Path, tmp_path: Path) -> None:
    snapshot = hub_cache(source, tmp_path / "hub")
    other = tmp_path / "hub" / "models--me--other" / "blobs" / "b"
    other.parent.mkdir(parents=True)
    other.write_text("secret")
    own = snapshot.parent.parent
    (own / "refs").write_text("secret")
    for name, target in (("other", other), ("refs", own / "refs"), ("up", other.parent.parent)):
        (snapshot / name).symlink_to(target)
    result = ort_aie_ep.compile(snapshot, tmp_path / "compiled")
    assert carried(result) == set()
    assert len(result.notes) == 3


def test_a_link_to_the_source_folder_is_the_folder(source: Path, tmp_path: Path) -> None:
    (source / "a.json").write_text("{}")
    (source / "b.json").symlink_to("a.json")
    (tmp_path / "link").symlink_to("source")
    result = ort_aie_ep.compile(tmp_path / "link", tmp_path / "compiled")
    assert carried(result) == {"a.json", "b.json"}
    assert result.notes == ()


def test_data_of_a_constant_outside_the_model_file_is_kept(source: Path, tmp_path: Path) -> None:
    """ONNX allows external data in attributes too."""
    path = source / "model.onnx"
    expected = np.arange(1000, dtype=np.float32)
    (source / "constant.data").write_bytes(expected.tobytes())
    tensor = onnx.TensorProto(name="c", data_type=onnx.TensorProto.FLOAT, dims=[1000])
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="constant.data")
    model = onnx.load(path, load_external_data=False)
    model.graph.node.append(onnx.helper.make_node("Constant", [], ["c"], value=tensor))
    model.graph.output.append(onnx.helper.make_tensor_value_info("c", tensor.data_type, [1000]))
    path.write_bytes(model.SerializeToString())
    compiled = ort_aie_ep.compile(source, tmp_path / "compiled").path
    shutil.rmtree(source)
    options = session_options()
    options.register_custom_ops_library(ort_aie_ep.library_path())
    session = onnxruntime.InferenceSession(compiled / "model.onnx", options)
    inputs = {i.name: np.zeros([1, 1, 320], np.float32) for i in session.get_inputs()}
    np.testing.assert_array_equal(session.run(["c"], inputs)[0], expected)
