"""Malformed models: each is an error that names the node or tensor, not a traceback."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builder_nodes import attention_model, projection_model, save, tied_model
from json_mutations import mutations as json_mutations
from json_mutations import refusal
from onnx import TensorProto, helper
from onnx_mutations import mutations
from typer.testing import CliRunner

import ort_aie_ep
from ort_aie_ep.cli import app
from ort_aie_ep.errors import AieError
from ort_aie_ep.explain.explain import CPU_EP, GONE, explain
from ort_aie_ep.models.onnx_file import load_model

Change = Callable[[onnx.ModelProto], Any]


def written(folder: Path, model: onnx.ModelProto) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    return folder


def initializer(model: onnx.ModelProto, name: str) -> onnx.TensorProto:
    (tensor,) = (t for t in model.graph.initializer if t.name == name)
    return tensor


def set_dims(name: str, *dims: int) -> Change:
    def change(model: onnx.ModelProto) -> None:
        tensor = initializer(model, name)
        del tensor.dims[:]
        tensor.dims.extend(dims)

    return change


def set_attribute(name: str, value: Any) -> Change:
    def change(model: onnx.ModelProto) -> None:
        (attribute,) = (a for a in model.graph.node[0].attribute if a.name == name)
        attribute.CopyFrom(helper.make_attribute(name, value))

    return change


def add_node(*args: Any, **attributes: Any) -> Change:
    node = helper.make_node(*args, name="added", **attributes)
    return lambda model: model.graph.node.append(node)


def no_value(model: onnx.ModelProto) -> None:
    node = helper.make_node("Constant", [], ["c"], name="added")
    node.attribute.add(name="value", type=onnx.AttributeProto.TENSOR)
    model.graph.node.append(node)


def as_typed_data(model: onnx.ModelProto) -> None:
    tensor = initializer(model, "proj.scales")
    values = np.frombuffer(tensor.raw_data, np.float32)[:-1]
    tensor.ClearField("raw_data")
    tensor.float_data.extend(values)


def text_outside(model: onnx.ModelProto) -> None:
    tensor = initializer(model, "proj.scales")
    tensor.data_type, tensor.data_location = TensorProto.STRING, TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="model.onnx")


NODE = r"node '/model/proj/MatMul_Q4' \(MatMulNBits\)"
CASES: list[tuple[Change, str]] = [
    (lambda m: setattr(initializer(m, "proj.B"), "data_type", 0),
     "tensor 'proj.B' has the type 0, which ONNX does not have"),
    (lambda m: setattr(initializer(m, "proj.B"), "data_type", 99), "'proj.B' has the type 99"),
    (set_dims("proj.B", 40, -10, 16), r"tensor 'proj.B' has the shape \(40, -10, 16\)"),
    (set_dims("proj.B", 2**40, 2**40, 2), "tensor 'proj.B' has the shape .* not possible"),
    (set_dims("proj.B", 2**40, 2**40, 0), "tensor 'proj.B' holds 6400 bytes, but UINT8"),
    (set_dims("proj.B", *[2**62] * 1000), "tensor 'proj.B' has the shape"),
    (as_typed_data, "tensor 'proj.scales', FLOAT .*, has 399 values in float_data; expected 400"),
    (text_outside, "tensor 'proj.scales' has text in an external file"),
    (lambda m: m.graph.initializer.append(initializer(m, "proj.B")),
     "initializer 'proj.B' appears twice"),
    (lambda m: initializer(m, "proj.B").ClearField("name"), "initializer without a name"),
    (lambda m: m.graph.sparse_initializer.add().values.CopyFrom(initializer(m, "proj.B")),
     "initializer 'proj.B' is sparse"),
    (lambda m: m.graph.node[0].ClearField("input"), f"{NODE} has 0 inputs; .* has 3 or more"),
    (lambda m: m.graph.node[0].input.__setitem__(1, ""), f"{NODE} lacks input 1 of MatMulNBits"),
    (lambda m: m.graph.node[0].input.__setitem__(1, "none"), f"{NODE} reads 'none', which nothing"),
    (lambda m: m.graph.node[0].ClearField("output"), "MatMul_Q4.* has 0 outputs; .* has 1 or more"),
    (lambda m: m.graph.node[0].ClearField("op_type"), "MatMul_Q4' .* has no operator"),
    (lambda m: m.graph.node.append(m.graph.node[0]), f"{NODE} defines 'y', also defined by {NODE}"),
    (add_node("Relu", ["y"], ["x"]), "'added' .* defines 'x', also defined by the graph"),
    (lambda m: m.graph.node[0].input.__setitem__(0, "y"),
     f"{NODE} waits for its own result: the graph has a cycle"),
    (lambda m: (m.graph.node[0].input.__setitem__(0, "z"), add_node("Relu", ["y"], ["z"])(m)),
     f"{NODE} waits for its own result"),
    (set_attribute("K", 320.0), "attribute K must be int, got float"),
    (set_attribute("N", "40"), "attribute N must be int, got str"),
    (set_attribute("block_size", [32]), "attribute block_size must be int, got a list"),
    (lambda m: m.graph.node[0].attribute.append(m.graph.node[0].attribute[0]),
     f"{NODE} has attribute '.*' twice"),
    (no_value, "'added' .*: attribute value has no value of its type TENSOR"),
    (add_node("Constant", [], ["c"]), r"'added' \(Constant\) has 0 attributes; a Constant has one"),
    (add_node("Cast", ["y"], ["c"]), r"node 'added' \(Cast\) lacks attribute to"),
    (add_node("Cast", ["y"], ["c"], to="float"), "attribute to must be INT, got STRING"),
    (add_node("Reshape", ["y"], ["c"]), "'added' .* has 1 inputs; Reshape has 2"),
    (add_node("Split", ["y"], []), "'added' .* has 0 outputs; Split has 1 or more"),
    (add_node("GatherBlockQuantized", [], ["c"], domain="com.microsoft"),
     "'added' .* has 0 inputs; GatherBlockQuantized has 3 or more"),
    (add_node("GroupQueryAttention", ["x"], ["c"], domain="com.microsoft"),
     "'added' .* has 1 inputs; GroupQueryAttention has 7 or more"),
    (add_node("Attention", [], ["c"]), r"'added' \(Attention\) has 0 inputs; Attention has 3 to"),
    (lambda m: setattr(m.graph.output[0], "name", "q"), "nothing defines the graph output 'q'"),
    (lambda m: m.graph.input.append(m.graph.input[0]), "graph input 'x' appears twice"),
    (lambda m: m.ClearField("opset_import"), "names no opset"),
    (lambda m: m.opset_import.add(domain="", version=3), "the opset '' 3 is not possible"),
    (lambda m: setattr(m.opset_import[0], "version", 2**40), "the opset '' .* is not possible"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "message"), CASES, ids=[message for _, message in CASES])
def test_what_no_graph_can_be_is_named(tmp_path: Path, change: Change, message: str) -> None:
    model = projection_model()
    change(model)
    source = written(tmp_path / "source", model)
    with pytest.raises(AieError, match=message):
        ort_aie_ep.compile(source, tmp_path / "compiled")
    if "must be int" not in message:  # what a pass reads, not what the file's reader checks
        with pytest.raises(AieError, match=message):
            explain(source)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_the_command_ends_as_with_other_mistakes(tmp_path: Path) -> None:
    model = projection_model()
    model.graph.node[0].input[0] = "y"
    source = written(tmp_path / "source", model)
    for words in (["compile", str(source), str(tmp_path / "compiled")], ["explain", str(source)],
                  ["explain", str(source), "--ep"]):  # fmt: skip
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 1, result.output
        assert "cycle" in result.stderr


def test_nodes_in_another_order_are_sorted(tmp_path: Path) -> None:
    model = projection_model()
    model.graph.node[0].input[0] = "r"
    model.graph.node.append(helper.make_node("Relu", ["x"], ["r"], name="first"))
    names = [node.name for node in load_model(written(tmp_path, model) / "model.onnx").graph]
    assert names == ["first", "/model/proj/MatMul_Q4"]


def test_a_domain_that_is_not_imported_is(tmp_path: Path) -> None:
    model = projection_model()
    (own,) = (opset for opset in model.opset_import if opset.domain == "com.microsoft")
    model.opset_import.remove(own)
    source = written(tmp_path / "source", model)
    assert load_model(source / "model.onnx").graph.opset_imports["com.microsoft"] == 1
    ort_aie_ep.compile(source, tmp_path / "compiled")


def nested(depth: int) -> onnx.NodeProto:
    """If in If. protobuf itself does not write or read messages nested more than 100 deep."""
    result = helper.make_tensor_value_info("inner", TensorProto.FLOAT, None)
    last = node = helper.make_node("Identity", ["y"], ["inner"])
    for _ in range(depth):
        then = helper.make_graph([node], "then", [], [result])
        other = helper.make_graph([last], "other", [], [result])
        node = helper.make_node("If", ["c"], ["inner"], then_branch=then, else_branch=other)
    return node


@pytest.mark.parametrize("depth", [5, 24])
def test_graphs_in_graphs_are_read_or_named(tmp_path: Path, depth: int) -> None:
    model = projection_model()
    condition = helper.make_node(
        "Constant", [], ["c"], value=helper.make_tensor("c", TensorProto.BOOL, [], [True])
    )
    model.graph.node.extend([condition, nested(depth)])
    source = written(tmp_path / "source", model)
    said = refusal(lambda: ort_aie_ep.compile(source, tmp_path / "compiled"))
    assert not said or "ONNX model" in said


@pytest.mark.parametrize("name", ["model.onnx", "model.onnx.data", "genai_config.json"])
def test_a_pipe_in_the_place_of_a_file_does_not_wait(tmp_path: Path, name: str) -> None:
    source = tmp_path / "source"
    save(projection_model(), source)
    (source / name).unlink(missing_ok=True)
    os.mkfifo(source / name)
    said = refusal(lambda: ort_aie_ep.compile(source, tmp_path / "compiled"))
    assert "regular file" in said


@pytest.mark.parametrize("model", ["projection", "attention", "tied"])
def test_mutated_models_are_compiled_or_named(tmp_path: Path, model: str) -> None:
    base = {
        "projection": projection_model(zero_points=True, bias=True),
        "attention": attention_model(),
        "tied": tied_model(),
    }[model]
    refused = 0
    for index, data in enumerate(mutations(base, seed=13, count=60)):
        source = tmp_path / f"{index}"
        source.mkdir()
        (source / "model.onnx").write_bytes(data)
        options = ({}, {"fuse": False}, {"last_logits": True}, {"kv": "f16"})[index % 4]
        refused += bool(
            refusal(lambda: ort_aie_ep.compile(source, source / "compiled", **options))  # noqa: B023
        )
        if index % 5 == 0:
            refusal(lambda: explain(source))  # noqa: B023
    assert 20 < refused <= 60


def test_a_damaged_genai_config_is_read_or_named(tmp_path: Path) -> None:
    source = save(projection_model(), tmp_path / "source").parent
    decoder = {"filename": "model.onnx", "session_options": {"log_id": "x"}, "head_size": 8}
    config = {"model": {"decoder": decoder, "eos_token_id": [1], "context_length": 8}, "search": {}}
    path = source / "genai_config.json"
    for index, data in enumerate(json_mutations(json.dumps(config), seed=13, count=60)):
        path.write_bytes(data)
        said = refusal(lambda: ort_aie_ep.compile(source, tmp_path / f"compiled{index}"))  # noqa: B023
        assert not said or "genai_config.json" in said


def test_a_damaged_report_is_read_or_named(tmp_path: Path) -> None:
    source = save(projection_model(), tmp_path / "source").parent
    ort_aie_ep.compile(source, tmp_path / "compiled")
    path = tmp_path / "compiled" / "ort_aie_report.json"
    for data in json_mutations(path.read_text(), seed=13, count=40):
        path.write_bytes(data)
        said = refusal(lambda: explain(tmp_path / "compiled"))
        assert not said or str(path) in said


def test_an_unread_node_is_not_reported_to_become_anything(tmp_path: Path) -> None:
    model = projection_model()
    model.graph.node.append(helper.make_node("Relu", ["x"], ["z"], name="relu"))
    model.graph.output[0].name = "z"
    source = written(tmp_path / "source", model)
    assert {node.op: node.runs for node in explain(source).nodes} == {
        "com.microsoft.MatMulNBits": GONE,
        "Relu": CPU_EP,
    }
    with pytest.raises(AieError, match=r"source/model\.onnx"):
        ort_aie_ep.compile(source, tmp_path / "compiled")
