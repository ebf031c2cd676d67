"""What `compile` writes: the weights, the data file's layout, and the files beside them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy_q4nx as q4nx
import onnx
import onnx_ir as ir
import pytest
from builder_nodes import attention_model, projection_model, save, tied_model
from op_models import open_session, run

import ort_aie_ep
from ort_aie_ep.compiler import compiled_folder
from ort_aie_ep.compiler.compile import PAGE, REPORT

GENAI_CONFIG = {
    "model": {"type": "llama", "decoder": {"filename": "model.onnx", "session_options": {}}},
    "search": {"max_length": 64},
}


def external(model: onnx.ModelProto) -> dict[str, dict[str, str]]:
    """Initializer -> its external data entries, if it has some."""
    return {
        tensor.name: {entry.key: entry.value for entry in tensor.external_data}
        for tensor in model.graph.initializer
        if tensor.data_location == onnx.TensorProto.EXTERNAL
    }


def only_proto(path: Path) -> onnx.ModelProto:
    return onnx.load(path, load_external_data=False)


@pytest.mark.parametrize("external_source", [True, False])
def test_weights_are_written_page_aligned_into_one_padded_file(
    tmp_path: Path, external_source: bool
) -> None:
    source = projection_model(300, 320, zero_points=True, bias=True)
    save(source, tmp_path / "source", external=external_source)
    result = ort_aie_ep.compile(tmp_path / "source", tmp_path / "compiled")
    assert result.path == tmp_path / "compiled"
    data = tmp_path / "compiled" / "model.onnx.data"
    tensors = external(only_proto(tmp_path / "compiled" / "model.onnx"))
    assert set(tensors) == {"proj.B_q4nx", "bias"}
    for entries in tensors.values():
        assert entries["location"] == "model.onnx.data"
        assert int(entries["offset"]) % PAGE == 0
    assert data.stat().st_size % PAGE == 0
    assert data.stat().st_size == result.weight_bytes
    # Ten block rows and two block columns of 5120 bytes are 25 pages; the bias takes another.
    assert int(tensors["proj.B_q4nx"]["length"]) == 10 * 2 * 5120
    assert int(tensors["bias"]["length"]) == 300 * 4
    assert result.weight_bytes == 26 * PAGE


def test_weights_of_two_bits_take_five_ninths(tmp_path: Path) -> None:
    save(projection_model(300, 320, bits=2), tmp_path / "source")
    result = ort_aie_ep.compile(tmp_path / "source", tmp_path / "compiled")
    tensors = external(only_proto(tmp_path / "compiled" / "model.onnx"))
    assert int(tensors["proj.B_q2nx"]["length"]) == 10 * 2 * 2560
    assert result.weight_bytes == 13 * PAGE
    x = np.random.default_rng(0).standard_normal((1, 3, 320)).astype(np.float32)
    y = run(open_session(str(tmp_path / "compiled" / "model.onnx")), {"x": x})["y"]
    model = onnx.load(tmp_path / "compiled" / "model.onnx")
    blocks = onnx.numpy_helper.to_array(model.graph.initializer[0])
    weights = q4nx.dequantize(blocks, 300, 320, q4nx.BlockForm(2, minima=False))
    # int8 activations: independent errors of 1/127 of the largest of 32.
    assert np.linalg.norm(y - x @ weights.T) <= 0.02 * np.linalg.norm(y)


def test_a_tied_embedding_is_stored_once(tmp_path: Path) -> None:
    save(tied_model(700, 320), tmp_path / "source")
    result = ort_aie_ep.compile(tmp_path / "source", tmp_path / "compiled")
    rows, cols, size = q4nx.BlockForm(minima=False).blocks_shape(700, 320)
    assert result.weight_bytes == -(-rows * cols * size // PAGE) * PAGE
    feeds = {"ids": np.array([[0, 699, 5]], np.int64)}
    compiled = run(open_session(str(tmp_path / "compiled" / "model.onnx")), feeds)["logits"]
    source = run(open_session(str(tmp_path / "source" / "model.onnx")), feeds)["logits"]
    # int8 activations and bfloat16 scales, independent errors.
    assert np.linalg.norm(compiled - source) <= 0.03 * np.linalg.norm(source)


def test_small_tensors_stay_inline_where_shape_inference_sees_them(tmp_path: Path) -> None:
    save(tied_model(tied=False), tmp_path / "source")  # the Reshape stays, and so does its shape
    ort_aie_ep.compile(tmp_path / "source", tmp_path / "compiled")
    path = tmp_path / "compiled" / "model.onnx"
    assert "shape" not in external(only_proto(path))
    feeds = {"ids": np.array([[1, 2]], np.int64)}
    assert run(open_session(str(path)), feeds)["logits"].shape == (1, 2, 70)


@pytest.mark.parametrize("make", [projection_model, attention_model, tied_model])
def test_inputs_and_outputs_stay(tmp_path: Path, make: Any) -> None:
    path = save(make(), tmp_path / "source")
    ort_aie_ep.compile(path.parent, tmp_path / "compiled")
    before, after = only_proto(path).graph, only_proto(tmp_path / "compiled" / path.name).graph
    assert list(after.input) == list(before.input)
    assert list(after.output) == list(before.output)


def test_weights_are_packed_in_ranges_of_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(projection_model(200, 320, zero_points=True), tmp_path / "source")
    ort_aie_ep.compile(tmp_path / "source", tmp_path / "whole")
    # 160 bytes a row: 64 rows at a time, and 8 in the last range.
    monkeypatch.setattr("ort_aie_ep.graph_passes.weights.packed.CHUNK_BYTES", 64 * 160)
    ort_aie_ep.compile(tmp_path / "source", tmp_path / "ranges")
    whole, ranges = (tmp_path / name / "model.onnx.data" for name in ("whole", "ranges"))
    assert whole.read_bytes() == ranges.read_bytes()


def test_compiling_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    save(tied_model(), tmp_path / "source")
    for name in ("first", "second"):
        ort_aie_ep.compile(tmp_path / "source", tmp_path / name)
    for file in ("model.onnx", "model.onnx.data", REPORT):
        first, second = ((tmp_path / name / file).read_bytes() for name in ("first", "second"))
        assert first == second, file


def test_other_files_are_carried_over(tmp_path: Path) -> None:
    source = tmp_path / "source"
    save(projection_model(), source)
    (source / "tokenizer.json").write_text("{}")
    (source / "assets").mkdir()
    (source / "assets" / "chat_template.jinja").write_text("hello")
    ort_aie_ep.compile(source, tmp_path / "compiled")
    files = {
        str(p.relative_to(tmp_path / "compiled")) for p in (tmp_path / "compiled").rglob("*.*")
    }
    assert files == {
        "model.onnx", "model.onnx.data", REPORT, "tokenizer.json", "assets/chat_template.jinja"
    }  # fmt: skip
    assert (tmp_path / "compiled" / "assets" / "chat_template.jinja").read_text() == "hello"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["compiled", "source"]


def test_a_bare_file_compiles_without_its_neighbours(tmp_path: Path) -> None:
    path = save(projection_model(), tmp_path / "source")
    (path.parent / "other.onnx").write_bytes(b"another model")
    ort_aie_ep.compile(path, tmp_path / "compiled")
    names = sorted(p.name for p in (tmp_path / "compiled").iterdir())
    assert names == ["model.onnx", "model.onnx.data", REPORT]


def test_a_genai_folder_names_the_stub_library(tmp_path: Path) -> None:
    source = tmp_path / "source"
    save(projection_model(), source)
    (source / "genai_config.json").write_text(json.dumps(GENAI_CONFIG))
    ort_aie_ep.compile(source, tmp_path / "compiled")
    config = json.loads((tmp_path / "compiled" / "genai_config.json").read_text())
    stub = Path(ort_aie_ep.stub_path())
    options = config["model"]["decoder"]["session_options"]
    assert options.pop("custom_ops_library") == stub.name
    assert options.pop("ort_aie.prompt_logits") == "last"
    assert (tmp_path / "compiled" / stub.name).read_bytes() == stub.read_bytes()
    assert config == GENAI_CONFIG
    assert json.loads((source / "genai_config.json").read_text()) == GENAI_CONFIG


@pytest.mark.parametrize("options", [None, {"session_options": None}])
def test_a_genai_folder_without_session_options(
    tmp_path: Path, options: dict[str, Any] | None
) -> None:
    source = tmp_path / "source"
    save(projection_model(), source)
    config = {"model": {"decoder": {"filename": "model.onnx"} | (options or {})}}
    (source / "genai_config.json").write_text(json.dumps(config))
    ort_aie_ep.compile(source, tmp_path / "compiled")
    compiled = json.loads((tmp_path / "compiled" / "genai_config.json").read_text())
    options = compiled["model"]["decoder"]["session_options"]
    assert options.keys() == {"custom_ops_library", "ort_aie.prompt_logits"}


def test_a_model_in_a_subfolder_stays_there(tmp_path: Path) -> None:
    source = tmp_path / "source"
    save(projection_model(), source / "onnx")
    config = {"model": {"decoder": {"filename": "onnx/model.onnx"}}}
    (source / "genai_config.json").write_text(json.dumps(config))
    ort_aie_ep.compile(source, tmp_path / "compiled")
    model = tmp_path / "compiled" / "onnx" / "model.onnx"
    assert [node.domain for node in only_proto(model).graph.node] == ["aie"]
    open_session(str(model))


def test_a_destination_inside_the_source_is_not_copied_into_itself(tmp_path: Path) -> None:
    source = tmp_path / "source"
    save(projection_model(), source)
    (source / "tokenizer.json").write_text("{}")
    ort_aie_ep.compile(source, source / "compiled")
    names = sorted(p.name for p in (source / "compiled").iterdir())
    assert names == ["model.onnx", "model.onnx.data", REPORT, "tokenizer.json"]


def test_the_report_tells_each_node(tmp_path: Path) -> None:
    save(tied_model(tied=False), tmp_path / "source")
    result = ort_aie_ep.compile(tmp_path / "source", tmp_path / "compiled")
    report = json.loads((tmp_path / "compiled" / REPORT).read_text())
    assert [node["becomes"] for node in report["nodes"]] == [None, "aie.Q4NXMatMul"]
    assert "tied" in report["nodes"][0]["reason"]
    assert [node["node"] for node in report["nodes"]] == [o.node for o in result.outcomes]


def test_progress_counts_to_the_end(tmp_path: Path) -> None:
    save(projection_model(300, 320, bias=True), tmp_path / "source")
    calls: list[tuple[int, int, str]] = []
    ort_aie_ep.compile(
        tmp_path / "source",
        tmp_path / "compiled",
        progress=lambda done, total, name: calls.append((done, total, name)),
    )
    assert calls[0][0] == 0
    assert calls[-1][0] == calls[-1][1] == 10 * 2 * 4608 + 300 * 4
    assert [done for done, _, _ in calls] == sorted(done for done, _, _ in calls)
    assert {name for _, _, name in calls} == {"proj.B_q4nx", "bias", "", "hashing"}


def test_a_shape_without_a_type_is_left_out_without_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As in exports of optimum, some of whose values have shapes alone."""
    graph = onnx.helper.make_graph(
        [
            onnx.helper.make_node("Relu", ["x"], ["middle"]),
            onnx.helper.make_node("Relu", ["middle"], ["y"]),
        ],
        "g",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2])],
        value_info=[onnx.helper.make_tensor_value_info("middle", onnx.TensorProto.FLOAT, [2])],
    )
    model = ir.from_proto(onnx.helper.make_model(graph))
    (middle,) = model.graph[0].outputs
    middle.type = None
    compiled_folder._save(model, tmp_path / "model.onnx")
    assert not caplog.records
    assert ir.load(tmp_path / "model.onnx").graph.num_nodes() == 2
