"""Attention without a cache that an exporter spelled out, compared with ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper
from onnx.numpy_helper import from_array
from op_models import model_of, open_session, run
from vision_tower import SPELLINGS, picture_encoder, vision_tower

import ort_aie_ep
from ort_aie_ep.graph_passes import run_passes

Array = npt.NDArray[Any]
H, D = 3, 72


class Attention:
    """x (batch, tokens, H * D), cut into heads thrice, around the nodes of a test."""

    def __init__(self, heads: int = H, dim: int = D) -> None:
        self.dim, self.width = dim, heads * dim
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.more: list[onnx.ValueInfoProto] = []
        shape = self.constant("shape", np.array([0, 0, heads, dim], np.int64))
        for name, perm in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
            tokens = self.node("Reshape", [name, shape], f"{name}.tokens")
            self.node("Transpose", [tokens], f"{name}.heads", perm=perm)

    def constant(self, name: str, array: Array) -> str:
        self.constants.append(from_array(array, name))
        return name

    def node(self, op: str, inputs: list[str], result: str, **more: Any) -> str:
        self.nodes.append(helper.make_node(op, inputs, [result], name=f"/{result}", **more))
        return result

    def model(self, result: str, opset: int = 21) -> onnx.ModelProto:
        swapped = self.node("Transpose", [result], "swapped", perm=[0, 2, 1, 3])
        shape = self.constant("joined", np.array([0, 0, self.width], np.int64))
        self.node("Reshape", [swapped, shape], "y")
        given = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", "tokens", self.width])
            for name in ("q", "k", "v")
        ]
        outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
        graph = helper.make_graph(
            self.nodes, "graph", [*given, *self.more], outputs, self.constants
        )
        return model_of(graph, opset)


def outcomes(model: onnx.ModelProto) -> tuple[ir.Model, dict[str, str]]:
    changed = ir.from_proto(model)
    report = run_passes(changed)
    return changed, {o.node: o.becomes or o.reason for o in report.outcomes.values()}


def check(model: onnx.ModelProto, **more: Array) -> ir.Model:
    """Compares with ONNX Runtime. Each side may be off by the rounding of D products of vectors no
    longer than 16, scaled by at most 1, and of sums over fewer than 64 keys of values below 8."""
    changed, found = outcomes(model)
    assert found["/probabilities"] == "aie.FlowAttention"
    assert not {"Softmax", "MatMul"} & {node.op_type for node in changed.graph}
    rng = np.random.default_rng(3)
    feeds = {name: rng.standard_normal((2, 40, H * D)).astype(np.float32) for name in "qkv"}
    expected = run(open_session(model.SerializeToString()), {**feeds, **more})["y"]
    actual = run(open_session(ir.to_proto(changed).SerializeToString()), {**feeds, **more})["y"]
    bound = 2 * (2 * (D + 16) * 16**2 + 64 + 8) * 2**-24 * 8
    assert np.abs(actual - expected).max() <= bound
    return changed


def scaled(graph: Attention, scale: float = D**-0.5) -> str:
    scores = graph.node("MatMul", ["q.heads", "k.heads"], "scores")
    return graph.node("Mul", [scores, graph.constant("scale", np.float32([scale]))], "scaled")


def attended(graph: Attention, scores: str) -> str:
    probabilities = graph.node("Softmax", [scores], "probabilities", axis=-1)
    return graph.node("MatMul", [probabilities, "v.heads"], "result")


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_vision_tower(spelling: str, tmp_path: Path) -> None:
    model, products = vision_tower(hidden=144, spelling=spelling)
    onnx.save(model, tmp_path / "tower.onnx")
    result = ort_aie_ep.compile(tmp_path / "tower.onnx", tmp_path / "out", quantize="bf16")
    became = [(o.op_type, o.becomes) for o in result.outcomes]
    assert not [o for o in result.outcomes if o.op_type == "MatMul" and o.becomes is None]
    assert became.count(("MatMul", "aie.GEMM")) == products
    kept = {node.op_type for node in onnx.load(result.path / "tower.onnx").graph.node}
    assert kept == {"Add", "LayerNormalization", "Plan"}  # Add: of the positions
    x = np.random.default_rng(0).standard_normal((3, 9, 75)).astype(np.float32)
    expected = run(open_session(model.SerializeToString()), {"x": x})["features"]
    actual = run(open_session(str(result.path / "tower.onnx")), {"x": x})["features"]
    # Weights and activations of each product are rounded to bfloat16; independent errors add up in
    # squares.
    error = np.linalg.norm(actual - expected) / np.linalg.norm(expected)
    assert error <= np.sqrt(2 * products) * 2.0**-8


def test_a_layer_with_the_widths_of_siglip(tmp_path: Path) -> None:
    # More than a tile of queries and a chunk of keys, of SigLIP's 4,096.
    patches = 272
    model, products = vision_tower(patches, 588, 1152, 4304, 1, heads=16, spelling="eager")
    onnx.save(model, tmp_path / "tower.onnx")
    result = ort_aie_ep.compile(tmp_path / "tower.onnx", tmp_path / "out", quantize="bf16")
    x = np.random.default_rng(0).standard_normal((1, patches, 588)).astype(np.float32)
    expected = run(open_session(model.SerializeToString()), {"x": x})["features"]
    actual = run(open_session(str(result.path / "tower.onnx")), {"x": x})["features"]
    error = np.linalg.norm(actual - expected) / np.linalg.norm(expected)
    assert error <= np.sqrt(2 * products) * 2.0**-8  # as above


def test_a_picture_of_896_pixels_becomes_256_tokens(tmp_path: Path) -> None:
    model, products = picture_encoder()
    onnx.save(model, tmp_path / "vision.onnx")
    result = ort_aie_ep.compile(tmp_path / "vision.onnx", tmp_path / "out", quantize="bf16")
    left = {(o.op_type, o.reason) for o in result.outcomes if o.becomes is None}
    assert left == {("Conv", "no aie operator")}
    x = np.random.default_rng(0).uniform(-1, 1, (1, 3, 896, 896)).astype(np.float32)
    expected = run(open_session(model.SerializeToString()), {"x": x})["features"]
    actual = run(open_session(str(result.path / "vision.onnx")), {"x": x})["features"]
    assert actual.shape == (1, 256, 96)
    error = np.linalg.norm(actual - expected) / np.linalg.norm(expected)
    assert error <= np.sqrt(2 * products) * 2.0**-8  # as above


@pytest.mark.parametrize("place", ["query", "keys", "both", "divisor", "scores"])
def test_the_scale_may_be_anywhere(place: str) -> None:
    graph = Attention()
    q, k = "q.heads", "k.heads"
    if place in ("query", "both"):
        q = graph.node("Mul", [q, graph.constant("a", np.float32(0.3))], "q.scaled")
    if place in ("keys", "both"):
        k = graph.node("Mul", [graph.constant("b", np.float32([[0.4]])), k], "k.scaled")
    scores = graph.node("MatMul", [q, k], "scores")
    if place in ("divisor", "scores"):
        op = "Div" if place == "divisor" else "Mul"
        scores = graph.node(op, [scores, graph.constant("c", np.float32(2.5))], "scaled")
    changed = check(graph.model(attended(graph, scores)))
    given = {"query": 0.3, "keys": 0.4, "both": 0.12, "divisor": 0.4, "scores": 2.5}
    (node,) = (n for n in changed.graph if n.op_type == "FlowAttention")
    assert node.attributes["scale"].as_float() == pytest.approx(given[place], rel=1e-6)
    assert node.attributes["causal"].as_int() == 0


@pytest.mark.parametrize("dims", [("tokens", "tokens"), (1, "tokens"), (1, 1, "tokens", "tokens")])
def test_a_mask_becomes_a_bias(dims: tuple[int | str, ...]) -> None:
    graph = Attention()
    graph.more.append(helper.make_tensor_value_info("mask", TensorProto.FLOAT, dims))
    masked = graph.node("Add", ["mask", scaled(graph)], "masked")
    shape = [40 if d == "tokens" else int(d) for d in dims]
    mask = np.random.default_rng(1).integers(0, 2, shape) * np.float32(-1e9)
    mask[..., 0] = 0  # every query sees a key
    check(graph.model(attended(graph, masked)), mask=mask.astype(np.float32))


def test_a_softmax_of_float32_in_half_precision_is_recognised() -> None:
    graph = Attention()
    wide = graph.node("Cast", [scaled(graph)], "wide", to=TensorProto.DOUBLE)
    probabilities = graph.node("Softmax", [wide], "probabilities", axis=-1)
    narrow = graph.node("Cast", [probabilities], "narrow", to=TensorProto.FLOAT)
    check(graph.model(graph.node("MatMul", [narrow, "v.heads"], "result")))


def test_a_softmax_of_another_axis_is_left() -> None:
    graph = Attention()
    probabilities = graph.node("Softmax", [scaled(graph)], "probabilities", axis=2)
    model = graph.model(graph.node("MatMul", [probabilities, "v.heads"], "result"))
    assert outcomes(model)[1]["/probabilities"] == "its axis is 2; expected the last"


def test_heads_that_are_no_multiple_of_8_are_left() -> None:
    graph = Attention(dim=20)
    model = graph.model(attended(graph, scaled(graph)))
    reason = outcomes(model)[1]["/probabilities"]
    assert reason == "heads have 20 channels; expected a multiple of 8"


def test_a_mask_without_a_column_for_each_key_is_left() -> None:
    graph = Attention()
    graph.more.append(helper.make_tensor_value_info("mask", TensorProto.FLOAT, ["tokens", 1]))
    model = graph.model(attended(graph, graph.node("Add", [scaled(graph), "mask"], "masked")))
    reason = outcomes(model)[1]["/probabilities"]
    assert reason == "its mask is not known to have a column for each key"


def given(model: onnx.ModelProto, name: str, *dims: int | str) -> None:
    """Declares an input with other dimensions."""
    (value,) = (v for v in model.graph.input if v.name == name)
    value.CopyFrom(helper.make_tensor_value_info(name, TensorProto.FLOAT, dims))


@pytest.mark.parametrize("name", ["key", "value"])
def test_keys_or_values_that_a_product_repeats_for_a_batch_are_left(name: str) -> None:
    graph = Attention()
    model = graph.model(attended(graph, scaled(graph)))
    given(model, name[0], 1, "tokens", H * D)
    assert outcomes(model)[1]["/probabilities"] == f"query and {name} have different batches"


def test_a_query_that_a_product_repeats_for_a_batch_is_left() -> None:
    graph = Attention()
    model = graph.model(attended(graph, scaled(graph)))
    given(model, "q", 1, "tokens", H * D)
    assert outcomes(model)[1]["/probabilities"] == "query and key have different batches"


@pytest.mark.parametrize(
    ("query", "mask"),
    [
        (("batch", 1), (1, 1, "rows", "tokens")),
        ((1, "tokens"), ("masks", 1, "tokens", "tokens")),
    ],
)
def test_a_mask_that_repeats_the_scores_is_left(
    query: tuple[int | str, int | str], mask: tuple[int | str, ...]
) -> None:
    graph = Attention()
    graph.more.append(helper.make_tensor_value_info("mask", TensorProto.FLOAT, mask))
    masked = graph.node("Add", [scaled(graph), "mask"], "masked")
    model = graph.model(attended(graph, masked))
    given(model, "q", *query, H * D)
    for name in "kv":
        given(model, name, query[0], "tokens", H * D)
    assert outcomes(model)[1]["/probabilities"] == (
        "its mask has more rows, heads or batches than the scores that it is added to"
    )


def test_values_of_another_type_are_left() -> None:
    graph = Attention()
    for node in graph.nodes:
        if node.output[0] == "v.tokens":
            node.input[0] = "narrow v"
    graph.nodes.insert(0, helper.make_node("Cast", ["v"], ["narrow v"], to=TensorProto.FLOAT16))
    probabilities = graph.node("Softmax", [scaled(graph)], "probabilities", axis=-1)
    narrow = graph.node("Cast", [probabilities], "narrow", to=TensorProto.FLOAT16)
    model = graph.model(graph.node("MatMul", [narrow, "v.heads"], "result"))
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT16
    assert outcomes(model)[1]["/probabilities"] == "query is FLOAT and value FLOAT16"


@pytest.mark.parametrize("scale", [0, np.inf, np.nan])
def test_a_scale_that_has_no_meaning_is_left(scale: float) -> None:
    graph = Attention()
    model = graph.model(attended(graph, scaled(graph, scale)))
    assert outcomes(model)[1]["/probabilities"] == f"its scores are multiplied by {scale:g}"


def test_scores_with_a_fifth_dimension_are_left() -> None:
    graph = Attention()
    scores = graph.node("MatMul", ["q.heads", "k.heads"], "scores")
    factor = graph.constant("factor", np.full((1, 1, 1, 1, 1), 0.1, np.float32))
    result = attended(graph, graph.node("Mul", [scores, factor], "scaled"))
    axes = graph.constant("axes", np.array([0]))
    _, found = outcomes(graph.model(graph.node("Squeeze", [result, axes], "squeezed")))
    assert found["/probabilities"].startswith("its scores read no KV cache")


def test_scores_that_meet_other_numbers_are_left() -> None:
    spoiling: list[tuple[str, list[str]]] = [("Tanh", []), ("Mul", ["mask"]), ("Abs", [])]
    for op, inputs in spoiling:
        graph = Attention()
        dims = ["tokens", "tokens"]
        graph.more.append(helper.make_tensor_value_info("mask", TensorProto.FLOAT, dims))
        changed = graph.node(op, [scaled(graph), *inputs], "changed")
        _, found = outcomes(graph.model(attended(graph, changed)))
        assert found["/probabilities"].startswith("its scores read no KV cache"), op


def test_probabilities_that_something_else_reads_are_left() -> None:
    graph = Attention()
    result = attended(graph, scaled(graph))
    model = graph.model(result)
    model.graph.output.append(helper.make_tensor_value_info("probabilities", 1, None))
    assert outcomes(model)[1]["/probabilities"].startswith("its scores read no KV cache")


def test_a_narrower_softmax_is_left() -> None:
    graph = Attention()
    narrow = graph.node("Cast", [scaled(graph)], "narrow", to=TensorProto.FLOAT16)
    probabilities = graph.node("Softmax", [narrow], "probabilities", axis=-1)
    wide = graph.node("Cast", [probabilities], "wide", to=TensorProto.FLOAT)
    model = graph.model(graph.node("MatMul", [wide, "v.heads"], "result"))
    assert outcomes(model)[1]["/probabilities"].startswith("its scores read no KV cache")


def test_probabilities_that_become_whole_numbers_are_left() -> None:
    graph = Attention()
    probabilities = graph.node("Softmax", [scaled(graph)], "probabilities", axis=-1)
    whole = graph.node("Cast", [probabilities], "whole", to=TensorProto.INT8)
    again = graph.node("Cast", [whole], "again", to=TensorProto.FLOAT)
    model = graph.model(graph.node("MatMul", [again, "v.heads"], "result"))
    assert outcomes(model)[1]["/probabilities"].startswith("its scores read no KV cache")


def test_a_mask_of_one_dimension_is_left() -> None:
    graph = Attention()
    graph.more.append(helper.make_tensor_value_info("mask", TensorProto.FLOAT, ["tokens"]))
    model = graph.model(attended(graph, graph.node("Add", [scaled(graph), "mask"], "masked")))
    reason = outcomes(model)[1]["/probabilities"]
    assert reason == "its mask is [tokens]; expected two to four dimensions"
