"""Bad models and bad destinations: each error names the thing, and nothing is left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builder_nodes import attention_model, projection_model, save, tied_model
from op_models import onnx_tensor

import ort_aie_ep
from ort_aie_ep.errors import AieError
from ort_aie_ep.explain.explain import explain


def compile_fails(
    source: Path, message: str, destination: Path | None = None, **options: Any
) -> None:
    """Checks that compiling raises AieError with this message and leaves the file system as it
    was."""
    target = destination or source.parent / "compiled"
    before = sorted(source.parent.rglob("*"))
    with pytest.raises(AieError, match=message):
        ort_aie_ep.compile(source, target, **options)
    assert sorted(source.parent.rglob("*")) == before


def entry(model: onnx.ModelProto, name: str, key: str) -> onnx.StringStringEntryProto:
    """An external data entry of an initializer, to be changed."""
    (tensor,) = (t for t in model.graph.initializer if t.name == name)
    found = [existing for existing in tensor.external_data if existing.key == key]
    wanted: onnx.StringStringEntryProto = found[0] if found else tensor.external_data.add(key=key)
    return wanted


def changed(folder: Path, change: Callable[[onnx.ModelProto], Any]) -> Path:
    """A saved projection whose .onnx file is changed afterwards."""
    path = save(projection_model(), folder)
    model = onnx.load(path, load_external_data=False)
    change(model)
    path.write_bytes(model.SerializeToString())
    return folder


@pytest.mark.parametrize("options", [{}, {"fuse": False}, {"quantize": "q4nx"}], ids=str)
def test_a_graph_that_was_saved_without_its_weights(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    model = projection_model()
    for tensor in model.graph.initializer:
        if tensor.name == "proj.B":
            tensor.ClearField("raw_data")
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "model.onnx").write_bytes(model.SerializeToString())
    message = r"model.onnx: tensor 'proj.B', UINT8 \(40, 10, 16\), has no data: .* with its weights"
    compile_fails(tmp_path / "source", message, **options)


# --- external data --------------------------------------------------------------------------------


def test_missing_external_data(tmp_path: Path) -> None:
    save(projection_model(), tmp_path / "source")
    (tmp_path / "source" / "model.onnx.data").unlink()
    compile_fails(tmp_path / "source", "tensor 'proj.B' .* 'model.onnx.data', which is missing")


def test_truncated_external_data(tmp_path: Path) -> None:
    save(projection_model(), tmp_path / "source")
    data = tmp_path / "source" / "model.onnx.data"
    os.truncate(data, data.stat().st_size - 1)
    compile_fails(tmp_path / "source", r"tensor 'proj\..*but the file ends at \d+: it is truncated")


def test_external_data_that_shrinks_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(projection_model(), tmp_path / "source")
    data = tmp_path / "source" / "model.onnx.data"

    def shrink(done: int, total: int, name: str) -> None:
        os.truncate(data, 100)

    with pytest.raises(AieError, match=r"'proj.B'.*truncated"):
        ort_aie_ep.compile(tmp_path / "source", tmp_path / "compiled", progress=shrink)
    assert [p.name for p in tmp_path.iterdir()] == ["source"]


@pytest.mark.parametrize(
    "location", ["../other.data", "/etc/hostname", "sub/../../other.data", "..", "/"]
)
def test_external_data_outside_the_folder(tmp_path: Path, location: str) -> None:
    (tmp_path / "other.data").write_bytes(bytes(100_000))

    def change(model: onnx.ModelProto) -> None:
        entry(model, "proj.B", "location").value = location

    changed(tmp_path / "source", change)
    compile_fails(tmp_path / "source", "tensor 'proj.B' .*, outside the model's folder")


def test_external_data_in_a_folder_of_its_own_name(tmp_path: Path) -> None:
    def change(model: onnx.ModelProto) -> None:
        entry(model, "proj.B", "location").value = "."

    changed(tmp_path / "source", change)
    compile_fails(tmp_path / "source", "tensor 'proj.B' has its data in '.', which is not a")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("length", "6399", r"6399 bytes are given, but UINT8 \(40, 10, 16\) needs 6400"),
        ("length", "0", "0 bytes are given"),
        ("length", "-6400", "length must be non-negative, got -6400 for tensor 'proj.B'"),
        ("length", "many", "cannot be read as an ONNX model: .*'many'"),
        ("offset", "1000000", "up to byte 1006400, but the file ends at"),
        ("offset", "-1", "offset must be non-negative, got -1 for tensor 'proj.B'"),
        ("offset", "99999999999999999999", "but the file ends at"),
    ],
)
def test_external_data_that_does_not_fit_its_tensor(
    tmp_path: Path, key: str, value: str, message: str
) -> None:
    def change(model: onnx.ModelProto) -> None:
        entry(model, "proj.B", key).value = value

    changed(tmp_path / "source", change)
    compile_fails(tmp_path / "source", message)


def test_inline_weights_that_are_too_short(tmp_path: Path) -> None:
    model = projection_model()
    (tensor,) = (t for t in model.graph.initializer if t.name == "proj.B")
    tensor.raw_data = tensor.raw_data[:-1]
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "model.onnx").write_bytes(model.SerializeToString())
    message = r"tensor 'proj.B' holds 6399 bytes, but UINT8 \(40, 10, 16\) needs 6400"
    compile_fails(tmp_path / "source", message)


# --- weights that do not fit their node -----------------------------------------------------------


@pytest.mark.parametrize("external", [True, False])
@pytest.mark.parametrize(
    ("attribute", "value", "message"),
    [
        ("N", 20, r"MatMul_Q4': its B is \(40, 10, 16\); expected \(20, 10, 16\)"),
        ("K", 10**15, r"its B is \(40, 10, 16\); expected \(40, 31250000000000, 16\)"),
        ("K", 2**62, r"K=4611686018427387904 N=40: more weights than fit in memory"),
    ],
)
def test_sizes_that_do_not_fit_the_weights(
    tmp_path: Path, external: bool, attribute: str, value: int, message: str
) -> None:
    model = projection_model()
    for existing in model.graph.node[0].attribute:
        if existing.name == attribute:
            existing.i = value
    save(model, tmp_path / "source", external=external)
    compile_fails(tmp_path / "source", message)


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("proj.B", np.zeros((40, 10, 16), np.int8), "B is INT8; expected UINT8"),
        ("proj.scales", np.zeros((40, 10), np.int32), "scales are INT32; expected FLOAT, FLOAT16"),
    ],
)
def test_weights_of_the_wrong_type(
    tmp_path: Path, name: str, array: np.ndarray, message: str
) -> None:
    model = projection_model()
    (tensor,) = (t for t in model.graph.initializer if t.name == name)
    tensor.CopyFrom(onnx_tensor(name, array))
    save(model, tmp_path / "source")
    compile_fails(tmp_path / "source", message)


@pytest.mark.parametrize("value", [0, -320])
def test_k_that_is_not_positive_leaves_the_node(tmp_path: Path, value: int) -> None:
    model = projection_model()
    for existing in model.graph.node[0].attribute:
        if existing.name == "K":
            existing.i = value
    save(model, tmp_path / "source")
    compile_fails(tmp_path / "source", f"nothing to compile.*\n.*K={value} N=40 must be positive")


# --- folders that are not a model -----------------------------------------------------------------


def test_a_path_that_does_not_exist(tmp_path: Path) -> None:
    compile_fails(tmp_path / "nowhere", "nowhere does not exist")


def test_an_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    compile_fails(
        tmp_path / "source", "source is not a model folder: it has neither genai_config.json"
    )


def test_a_file_that_is_not_an_onnx_file(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    compile_fails(tmp_path / "notes.txt", "notes.txt is not an .onnx or .gguf file")


def test_export_for_prompts_and_next_tokens_apart(tmp_path: Path) -> None:
    for name in ("decoder_model.onnx", "decoder_with_past_model.onnx"):
        save(projection_model(), tmp_path / "source").rename(tmp_path / "source" / name)
    message = r"has decoder_model\.onnx, .*export again with optimum-onnx"
    compile_fails(tmp_path / "source", message)


def test_several_models(tmp_path: Path) -> None:
    for name in ("a.onnx", "b.onnx"):
        save(projection_model(), tmp_path / "source")
        (tmp_path / "source" / "model.onnx").rename(tmp_path / "source" / name)
    compile_fails(tmp_path / "source", r"several models \(a.onnx, b.onnx\); pass one of the files")


@pytest.mark.parametrize(
    "content", [b"", b"this is no model", bytes(1000), b"\xff" * 1000], ids=lambda c: str(c[:8])
)
def test_a_file_that_holds_no_model(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "model.onnx").write_bytes(content)
    compile_fails(tmp_path / "source", "model.onnx (cannot be read as an ONNX model|has no graph)")


def test_a_truncated_onnx_file(tmp_path: Path) -> None:
    path = save(projection_model(), tmp_path / "source", external=False)
    path.write_bytes(path.read_bytes()[:-1000])
    compile_fails(tmp_path / "source", "model.onnx cannot be read as an ONNX model")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("{", "genai_config.json cannot be read as JSON"),
        ("[]", "genai_config.json: the content must be an object"),
        ("{}", "genai_config.json: model is missing"),
        ('{"model": {"decoder": "model.onnx"}}', "model.decoder must be an object"),
        ('{"model": {"decoder": {"filename": "none.onnx"}}}', "names none.onnx, which is not in"),
        ('{"model": {"decoder": {"filename": "../a.onnx"}}}', "'../a.onnx' is not in the folder"),
        ('{"model": {"decoder": {"filename": "/a.onnx"}}}', "'/a.onnx' is not in the folder"),
        ('{"model": {"decoder": {"filename": "model.onnx", "session_options": '
         '{"custom_ops_library": "libother.so"}}}}', "names the custom-op library 'libother.so'"),
        ('{"model": {"decoder": {"filename": "model.onnx", "session_options": 3}}}',
         "model.decoder.session_options must be an object"),
        ('{"model": {"decoder": {"filename": 1}}}', "model.decoder.filename must be a string"),
        ('{"model": {"decoder": {"filename": "a\\u0000"}}}', "without a zero character"),
        ('{"model": {"decoder": {"filename": "%s.onnx"}}}' % ("x" * 300), "which is not in"),
        ('{"model": {"decoder": {"filename": "model.onnx", "session_options": 3}, "vision": '
         '{"filename": {}}}}', "model.decoder.session_options must be an object"),
        ("[" * 5000, "nested more than 256 deep"),
    ],
)  # fmt: skip
def test_a_bad_genai_config(tmp_path: Path, config: str, message: str) -> None:
    save(projection_model(), tmp_path / "source")
    (tmp_path / "source" / "genai_config.json").write_text(config)
    compile_fails(tmp_path / "source", message)


@pytest.mark.parametrize(
    "model",
    [projection_model(block_size=16), attention_model(outputs=4), tied_model(block_size=16)],
)
def test_a_model_with_nothing_to_compile_says_why(tmp_path: Path, model: onnx.ModelProto) -> None:
    save(model, tmp_path / "source")
    nothing = "has nothing to compile: no MatMulNBits .*"
    compile_fails(tmp_path / "source", f"{nothing}, int4 DequantizeLinear .* MultiHeadAtt.*\n  /")
    message = rf"{nothing} GroupQueryAttention that can .*omit it .*DequantizeLinear.*\n  /"
    compile_fails(tmp_path / "source", message, fuse=False)


def test_a_compiled_model_is_not_compiled_again(tmp_path: Path) -> None:
    save(projection_model(), tmp_path / "first")
    ort_aie_ep.compile(tmp_path / "first", tmp_path / "source")
    message = "is already compiled: use it, or pass the source model"
    compile_fails(tmp_path / "source", message)


# --- destinations ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["folder", "file", "dangling link"])
def test_a_destination_that_exists(tmp_path: Path, kind: str) -> None:
    save(projection_model(), tmp_path / "source")
    destination = tmp_path / "compiled"
    if kind == "folder":
        destination.mkdir()
    elif kind == "file":
        destination.write_text("precious")
    else:
        destination.symlink_to(tmp_path / "nowhere")
    compile_fails(tmp_path / "source", "compiled already exists; remove it or choose another")


@pytest.mark.parametrize("parent", ["missing", "a/b/missing", "file"])
def test_a_destination_without_a_parent_folder(tmp_path: Path, parent: str) -> None:
    save(projection_model(), tmp_path / "source")
    (tmp_path / "file").write_text("no folder")
    compile_fails(tmp_path / "source", f"{parent} is not a folder", tmp_path / parent / "compiled")


def test_the_destination_is_looked_at_before_the_model(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no model")
    compile_fails(tmp_path / "nowhere", "file already exists", tmp_path / "file")
    compile_fails(
        tmp_path / "nowhere", "missing is not a folder", tmp_path / "missing" / "compiled"
    )


def test_a_destination_that_cannot_be_written(tmp_path: Path) -> None:
    save(projection_model(), tmp_path / "source")
    # Nobody, not even root, can make folders there.
    compile_fails(tmp_path / "source", "/proc cannot be written", Path("/proc/compiled"))
    if os.geteuid() != 0:
        (tmp_path / "closed").mkdir(mode=0o555)
        closed = tmp_path / "closed" / "compiled"
        compile_fails(tmp_path / "source", "closed cannot be written: Permission denied", closed)


def test_a_destination_with_an_impossible_name(tmp_path: Path) -> None:
    save(projection_model(), tmp_path / "source")
    compile_fails(tmp_path / "source", "cannot be written|failed", tmp_path / ("x" * 300))


COMPILE_WITH_LIMITS = """
import resource, signal, sys
import ort_aie_ep
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
_, most = resource.getrlimit(resource.RLIMIT_FSIZE)
for limit in sys.argv[3:]:
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), most))
    try:
        ort_aie_ep.compile(sys.argv[1], sys.argv[2])
    except ort_aie_ep.AieError as error:
        print("AieError:", error)
"""
# Sizes that no file may exceed.
LIMITS = (
    0,  # the first byte of weights
    8192,  # inside a tensor
    11000,  # while the data file is padded to whole pages
    13000,  # a file that is carried over
)


def test_a_write_that_fails_midway_leaves_nothing(tmp_path: Path) -> None:
    save(projection_model(k=256), tmp_path / "source")  # compiled: 10,240 bytes of weights
    (tmp_path / "source" / "tokenizer.model").write_bytes(bytes(40_000))
    before = sorted(tmp_path.rglob("*"))
    done = subprocess.run(
        [sys.executable, "-c", COMPILE_WITH_LIMITS, str(tmp_path / "source"),
         str(tmp_path / "compiled"), *map(str, LIMITS)],
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert len(said) == len(LIMITS)
    for line in said:
        assert line.startswith(f"AieError: writing {tmp_path / 'compiled'} failed: ")
        assert "File too large" in line or "is the disk full?" in line
    assert sorted(tmp_path.rglob("*")) == before


def test_an_interrupted_compile_leaves_nothing(tmp_path: Path) -> None:
    save(projection_model(), tmp_path / "source")

    def interrupt(done: int, total: int, name: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ort_aie_ep.compile(tmp_path / "source", tmp_path / "compiled", progress=interrupt)
    assert [p.name for p in tmp_path.iterdir()] == ["source"]


def test_a_destination_that_another_writer_makes_meanwhile_stays(tmp_path: Path) -> None:
    save(projection_model(), tmp_path / "source")
    other = tmp_path / "compiled"

    def make(done: int, total: int, name: str) -> None:
        if not other.exists():
            ort_aie_ep.compile(tmp_path / "source", other, fuse=False)

    with pytest.raises(AieError, match="compiled already exists"):
        ort_aie_ep.compile(tmp_path / "source", other, progress=make)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["compiled", "source"]
    assert explain(other).compiled


def test_the_source_is_never_changed(tmp_path: Path) -> None:
    save(tied_model(), tmp_path / "source")
    (tmp_path / "source" / "genai_config.json").write_text(
        json.dumps({"model": {"decoder": {"filename": "model.onnx"}}})
    )
    before = {p: p.read_bytes() for p in sorted((tmp_path / "source").iterdir())}
    ort_aie_ep.compile(tmp_path / "source", tmp_path / "compiled")
    assert {p: p.read_bytes() for p in sorted((tmp_path / "source").iterdir())} == before
