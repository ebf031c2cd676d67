"""A compiled model is opened once, so that a source that no runtime loads is reported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest
from builder_nodes import projection_model, save
from onnx import TensorProto, helper

import ort_aie_ep
from ort_aie_ep import AieError, _native


def folder_with(
    path: Path, op_type: str, *inputs: str, domain: str = "", opset: int = 21, **attributes: int
) -> Path:
    """A projection, and a node after it that gives another output."""
    model = projection_model()
    node = helper.make_node(op_type, inputs, ["z"], name="/other", domain=domain, **attributes)
    model.graph.node.append(node)
    model.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, None))
    for entry in model.opset_import:
        entry.version = opset if not entry.domain else entry.version
    if domain not in ("", "com.microsoft"):
        model.opset_import.append(helper.make_opsetid(domain, 1))
    save(model, path)
    return path


@pytest.mark.parametrize(
    ("op_type", "inputs", "reason"),
    [
        ("Reluu", ["y"], "No Op registered for Reluu"),
        ("And", ["y", "y"], "Type Error: Type 'tensor"),
    ],
)
def test_a_source_that_no_runtime_loads_is_named(
    op_type: str, inputs: list[str], reason: str, tmp_path: Path
) -> None:
    source = folder_with(tmp_path / "source", op_type, *inputs)
    with pytest.raises(AieError) as error:
        ort_aie_ep.compile(source, tmp_path / "compiled")
    message = str(error.value)
    assert message.startswith(f"{source / 'model.onnx'} is not a valid model: ONNX Runtime ")
    assert reason in message
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_the_command_fails_too(tmp_path: Path) -> None:
    source = folder_with(tmp_path / "source", "Reluu", "y")
    command = [sys.executable, "-m", "ort_aie_ep", "compile", str(source), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Reluu" in done.stderr


@pytest.mark.parametrize(
    ("op_type", "domain", "reason"),
    [
        ("Own", "my.library", "my.library:Own(-1) is not a registered function/op"),
        ("FromTheFuture", "com.microsoft", "FromTheFuture(-1) is not a registered"),
    ],
)
def test_operators_of_other_libraries_are_noted(
    op_type: str, domain: str, reason: str, tmp_path: Path
) -> None:
    source = folder_with(tmp_path / "source", op_type, "y", domain=domain)
    result = ort_aie_ep.compile(source, tmp_path / "compiled")
    (note,) = result.notes
    assert str(source / "model.onnx") in note
    assert reason in note
    report = json.loads((result.path / "ort_aie_report.json").read_text())
    assert report["notes"] == [note]
    assert any(node.domain == "aie" for node in onnx.load(result.path / "model.onnx").graph.node)


def test_types_that_the_cpu_lacks_are_noted(tmp_path: Path) -> None:
    source = folder_with(tmp_path / "source", "Cast", "y", to=TensorProto.BFLOAT16)
    model = onnx.load(source / "model.onnx")
    model.graph.node.append(helper.make_node("Erf", ["z"], ["bf16"], name="/erf"))
    model.graph.node.append(helper.make_node("Cast", ["bf16"], ["w"], to=TensorProto.FLOAT))
    del model.graph.output[-1]
    model.graph.output.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, None))
    onnx.save(model, source / "model.onnx")
    (note,) = ort_aie_ep.compile(source, tmp_path / "compiled").notes
    assert "/erf" in note or "Cast" in note, note


def test_a_fault_of_ort_aie_ep_is_called_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(projection_model(), tmp_path / "source")
    claimed_sources = _native.claimed_sources

    def with_a_wrong_format(*given: Any) -> Any:
        (step,) = claimed_sources(*given)
        return [{**step, "attributes": {**step["attributes"], "format": 999}}]

    monkeypatch.setattr(_native, "claimed_sources", with_a_wrong_format)
    with pytest.raises(AieError, match=r"bug in ort_aie_ep: .*format"):
        ort_aie_ep.compile(tmp_path / "source", tmp_path / "compiled")
    assert not (tmp_path / "compiled").exists()


def test_a_model_that_opens_has_no_note(tmp_path: Path) -> None:
    save(projection_model(), tmp_path / "source")
    assert ort_aie_ep.compile(tmp_path / "source", tmp_path / "compiled").notes == ()
