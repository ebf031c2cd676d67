"""DequantizeLinear of 4-bit weights: packed as it dequantises them; nodes that stay say why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper
from op_models import FLOAT16, FLOAT32, ONNX_TYPES, onnx_tensor, open_session, run

from ort_aie_ep.errors import AieError
from ort_aie_ep.formats import q4nx
from ort_aie_ep.graph_passes import run_passes
from ort_aie_ep.graph_passes.projection import dequantize
from ort_aie_ep.models.onnx_file import load_model

Array = npt.NDArray[Any]
TYPES = {"int4": TensorProto.INT4, "uint4": TensorProto.UINT4, "int8": TensorProto.INT8}


def weights_model(
    k: int = 320,
    n: int = 70,
    *,
    dtype: np.dtype[Any] = FLOAT32,
    kind: str = "int4",
    block_size: int = 32,
    zero_points: bool = False,
    rows_are_outputs: bool = False,
    op_type: str = "MatMul",
    bias: bool = False,
    scales: str = "blocks",
    scale_axis: int | None = None,
    **attributes: Any,
) -> onnx.ModelProto:
    """x -> MatMul or Gemm with DequantizeLinear, or a Gather of its rows -> y.

    `rows_are_outputs`: the codes are (N, K), which a MatMul transposes.
    """
    rng = np.random.default_rng([k, n, block_size])
    blocks = -(-k // block_size)
    shape, scale_shape = ((n, k), (n, blocks)) if rows_are_outputs else ((k, n), (blocks, n))
    scale_shape = {"blocks": scale_shape, "columns": (n,), "one": ()}[scales]
    code_type = getattr(ml_dtypes, kind) if kind != "int8" else np.dtype(np.int8)
    low, high = (0, 16) if kind == "uint4" else (-8, 8)

    def codes(name: str, dims: tuple[int, ...]) -> onnx.TensorProto:
        values = rng.integers(low, high, dims).astype(code_type)
        return helper.make_tensor(name, TYPES[kind], dims, values.astype(np.int8).reshape(-1))

    constants = [
        codes("w", shape),
        # The scales have 4 bits, so bfloat16 holds them and their minima: packing changes nothing.
        onnx_tensor("w.scales", rng.integers(1, 16, scale_shape).astype(dtype) / dtype.type(512)),
    ]
    if zero_points:
        constants.append(codes("w.zero_points", scale_shape))
    along = 1 if rows_are_outputs else 0
    given = {"block_size": block_size} if scales == "blocks" else {}
    default_axis = along if scales == "blocks" else 1 - along
    nodes = [
        helper.make_node(
            "DequantizeLinear", [c.name for c in constants], ["w.float"], name="/dequantize",
            axis=default_axis if scale_axis is None else scale_axis, **given,
        )
    ]  # fmt: skip
    element = ONNX_TYPES[dtype]
    x = helper.make_tensor_value_info("x", element, ["rows", k])
    inputs = ["x", "w.float"]
    if op_type == "Gather":
        x = helper.make_tensor_value_info("x", TensorProto.INT64, ["batch", "tokens"])
        inputs.reverse()
    elif op_type == "Gemm":
        attributes = {"transB": int(rows_are_outputs)} | attributes
        if bias:
            constants.append(onnx_tensor("bias", np.linspace(-1, 1, n).astype(dtype)))
            inputs.append("bias")
    elif rows_are_outputs:
        nodes.append(helper.make_node("Transpose", ["w.float"], ["w.transposed"], perm=[1, 0]))
        inputs[1] = "w.transposed"
    nodes.append(helper.make_node(op_type, inputs, ["y"], name="/projection", **attributes))
    y = helper.make_tensor_value_info("y", element, None)
    graph = helper.make_graph(nodes, "graph", [x], [y], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def compiled(model: onnx.ModelProto) -> tuple[ir.Model, dict[str, str]]:
    graph_model = ir.from_proto(model)
    outcomes = run_passes(graph_model).outcomes.values()
    return graph_model, {o.node: o.becomes or o.reason for o in outcomes}


def dequantised(model: onnx.ModelProto, **options: Any) -> Array:
    """(N, K) float32, as ONNX Runtime dequantises them."""
    graph = onnx.ModelProto()
    graph.CopyFrom(model)
    del graph.graph.node[1:], graph.graph.input[:], graph.graph.output[:]
    graph.graph.output.append(helper.make_tensor_value_info("w.float", TensorProto.UNDEFINED, None))
    element = model.graph.initializer[1].data_type
    graph.graph.output[0].type.tensor_type.elem_type = element
    w = run(open_session(graph.SerializeToString()), {})["w.float"].astype(np.float32)
    return w if options.get("rows_are_outputs") else w.T


def form_of(node: ir.Node) -> q4nx.BlockForm:
    """The form of an op's weights."""
    ints = {a.name: a.as_int() for a in node.attributes.values() if a.type == ir.AttributeType.INT}
    return q4nx.BlockForm.of(ints)


def check_packed(model: onnx.ModelProto, **options: Any) -> ir.Node:
    """The node. Checks that its weights are ONNX Runtime's dequantised ones, to the last bit."""
    changed, outcomes = compiled(model)
    (node,) = changed.graph
    assert outcomes["/projection"] == outcomes["/dequantize"] == f"aie.{node.op_type}"
    name = "w_q4nx" if options.get("rows_are_outputs") else "w_kn_q4nx"
    blocks = next(v for v in node.inputs if v is not None and v.name == name)
    assert blocks.const_value is not None
    expected = dequantised(model, **options)
    n, k = expected.shape
    weights = q4nx.dequantize(blocks.const_value.numpy(), n, k, form_of(node))
    np.testing.assert_array_equal(weights, expected)
    return node


def check_result(model: onnx.ModelProto, rows: int, k: int, **options: Any) -> None:
    """Compares with ONNX Runtime: activations are rounded to bfloat16, half an ulp of 2^-8 each,
    and both sides round the result to its type."""
    changed, _ = compiled(model)
    element = model.graph.input[0].type.tensor_type.elem_type
    dtype = next(d for d, t in ONNX_TYPES.items() if t == element)
    x = np.random.default_rng(rows).standard_normal((rows, k)).astype(dtype)
    ours = run(open_session(ir.to_proto(changed).SerializeToString()), {"x": x})["y"]
    theirs = run(open_session(model.SerializeToString()), {"x": x})["y"]
    w = np.abs(dequantised(model, **options))
    largest = np.abs(x.astype(np.float64)) @ w.T
    # In float16, ONNX Runtime rounds the weights and its sums of K products.
    rounding = 2**-9 + (2**-24 * k if dtype == FLOAT32 else 2**-11 * np.sqrt(k))
    assert (np.abs(ours.astype(np.float64) - theirs) <= largest * rounding + 2**-20).all()


# --- projections ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["int4", "uint4"])
@pytest.mark.parametrize("block_size", [32, 64, 128, 256])
@pytest.mark.parametrize("zero_points", [False, True])
@pytest.mark.parametrize("rows_are_outputs", [False, True])
def test_weights_are_packed_as_they_are_dequantised(
    kind: str, block_size: int, zero_points: bool, rows_are_outputs: bool
) -> None:
    options = {"kind": kind, "zero_points": zero_points, "rows_are_outputs": rows_are_outputs}
    node = check_packed(weights_model(block_size=block_size, **options), **options)
    assert node.attributes["symmetric"].as_int() == int(kind == "int4" and not zero_points)
    assert (node.attributes["K"].as_int(), node.attributes["N"].as_int()) == (320, 70)


@pytest.mark.parametrize(("k", "n"), [(32, 1), (256, 32), (300, 33), (288, 7), (1000, 64)])
@pytest.mark.parametrize("rows_are_outputs", [False, True])
@pytest.mark.parametrize("chunk", [1, 20_000])
def test_odd_sizes_in_chunks(
    k: int, n: int, rows_are_outputs: bool, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dequantize, "CHUNK_BYTES", chunk)
    options = {"rows_are_outputs": rows_are_outputs}
    check_packed(weights_model(k, n, zero_points=True, **options), **options)


@pytest.mark.parametrize("scales", ["columns", "one"])
@pytest.mark.parametrize("zero_points", [False, True])
@pytest.mark.parametrize("rows_are_outputs", [False, True])
def test_a_scale_for_each_out_feature_or_for_all(
    scales: str, zero_points: bool, rows_are_outputs: bool
) -> None:
    options = {"rows_are_outputs": rows_are_outputs}
    check_packed(weights_model(scales=scales, zero_points=zero_points, **options), **options)


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16])
@pytest.mark.parametrize("rows", [1, 9])
@pytest.mark.parametrize("op_type", ["MatMul", "Gemm"])
@pytest.mark.parametrize("rows_are_outputs", [False, True])
def test_results_are_those_of_onnx_runtime(
    dtype: np.dtype[Any], rows: int, op_type: str, rows_are_outputs: bool
) -> None:
    bias = op_type == "Gemm"
    model = weights_model(
        dtype=dtype, op_type=op_type, rows_are_outputs=rows_are_outputs, bias=bias
    )
    check_result(model, rows, 320, rows_are_outputs=rows_are_outputs)


def test_external_data(tmp_path: Path) -> None:
    model = weights_model(zero_points=True)
    expected = dequantised(model)
    onnx.save_model(
        model, tmp_path / "model.onnx", save_as_external_data=True, location="data",
        size_threshold=100,
    )  # fmt: skip
    loaded = load_model(tmp_path / "model.onnx")
    run_passes(loaded)
    blocks = loaded.graph.initializers["w_kn_q4nx"].const_value
    assert blocks is not None
    np.testing.assert_array_equal(q4nx.dequantize(blocks.numpy(), 70, 320), expected)


def test_an_embedding_shares_the_weights_of_the_projection() -> None:
    model = weights_model(op_type="Gather", rows_are_outputs=True)
    nodes = model.graph.node
    nodes.append(helper.make_node("Transpose", ["w.float"], ["head"], perm=[1, 0]))
    nodes.append(helper.make_node("MatMul", ["y", "head"], ["logits"], name="/head"))
    model.graph.output.append(helper.make_tensor_value_info("logits", TensorProto.FLOAT, None))
    changed, outcomes = compiled(model)
    assert [node.op_type for node in changed.graph] == ["Q4NXGather", "Q4NXMatMul"]
    assert outcomes["/head"] == "aie.Q4NXMatMul"
    assert len(changed.graph.initializers) == 1
    ids = np.array([[3, 69, 0, 3]])
    ours = run(open_session(ir.to_proto(changed).SerializeToString()), {"x": ids})
    theirs = run(open_session(model.SerializeToString()), {"x": ids})
    np.testing.assert_array_equal(ours["y"], theirs["y"])


def test_a_matrix_that_is_used_plain_and_transposed_is_packed_for_each() -> None:
    model = weights_model(64, 96, scales="one")
    nodes = model.graph.node
    nodes.append(helper.make_node("Transpose", ["w.float"], ["back"], perm=[1, 0]))
    nodes.append(helper.make_node("MatMul", ["y", "back"], ["z"], name="/back"))
    model.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, None))
    changed, _ = compiled(model)
    assert [node.op_type for node in changed.graph] == ["Q4NXMatMul", "Q4NXMatMul"]
    w = dequantised(model)
    packed = changed.graph.initializers
    for name, expected in (("w_kn_q4nx", w), ("w_q4nx", w.T)):
        blocks = packed[name].const_value
        assert blocks is not None
        form = q4nx.BlockForm.smallest(4, 256, symmetric=True)
        weights = q4nx.dequantize(blocks.numpy(), *expected.shape, form)
        np.testing.assert_array_equal(weights, expected)


def test_a_bias_that_is_added_joins_the_projection() -> None:
    model = weights_model()
    model.graph.node[1].output[0] = "product"
    model.graph.initializer.append(onnx_tensor("bias", np.ones(70, np.float32)))
    model.graph.value_info.append(helper.make_tensor_value_info("product", 1, ["rows", 70]))
    model.graph.node.append(helper.make_node("Add", ["product", "bias"], ["y"], name="/bias"))
    changed, outcomes = compiled(model)
    assert [node.op_type for node in changed.graph] == ["Q4NXMatMul"]
    assert outcomes["/bias"] == "aie.Q4NXMatMul"


# --- what stays -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"kind": "int8"}, "weights are INT8; Q4NX holds INT4 and UINT4"),
        ({"block_size": 16}, "block_size is 16; Q4NX shares a scale among 32 in-features"),
        ({"k": 64, "n": 64, "scale_axis": 1}, "its blocks lie along the out-features"),
        ({"k": 64, "n": 64, "scales": "columns", "scale_axis": 0},
         "it has a scale for each in-feature"),
        ({"op_type": "Gemm", "alpha": 2.0}, "alpha, beta or transA is not at its default"),
        ({"op_type": "Gather"}, "its blocks lie along the out-features"),
        ({"op_type": "Gather", "rows_are_outputs": True, "axis": 1}, "it gathers columns"),
    ],
)  # fmt: skip
def test_what_stays_says_why(options: dict[str, Any], reason: str) -> None:
    changed, outcomes = compiled(weights_model(**options))
    assert outcomes["/projection"].startswith(reason)
    assert "DequantizeLinear" in [node.op_type for node in changed.graph]


def test_a_transpose_that_transposes_nothing_is_none() -> None:
    model = weights_model(64, 64, rows_are_outputs=True)
    model.graph.node[1].attribute[0].ints[:] = [0, 1]
    model.graph.node[0].attribute[0].i = 0  # blocks along the in-features, which are rows then
    scales = model.graph.initializer[1]
    scales.CopyFrom(onnx_tensor("w.scales", np.full((2, 64), 0.125, np.float32)))
    x = np.random.default_rng(2).standard_normal((3, 64)).astype(np.float32)
    expected = run(open_session(model.SerializeToString()), {"x": x})["y"]
    changed, _ = compiled(model)
    actual = run(open_session(ir.to_proto(changed).SerializeToString()), {"x": x})["y"]
    np.testing.assert_array_equal(actual, expected)
    assert "DequantizeLinear" in [node.op_type for node in changed.graph]


@pytest.mark.parametrize(("op_type", "along"), [("Gather", True), ("MatMul", False)])
def test_another_type_than_that_of_the_scales_stays(op_type: str, along: bool) -> None:
    model = weights_model(op_type=op_type, rows_are_outputs=along)
    model.opset_import[0].version = 23
    dequantize = model.graph.node[0]
    dequantize.attribute.append(helper.make_attribute("output_dtype", TensorProto.FLOAT16))
    _, outcomes = compiled(model)
    reason = "its output_dtype is FLOAT16 and its scales FLOAT"
    assert outcomes["/projection"] == reason


def test_scales_that_do_not_fit_are_an_error() -> None:
    model = weights_model()
    del model.graph.initializer[1]
    model.graph.initializer.append(onnx_tensor("w.scales", np.ones((9, 70), np.float32)))
    with pytest.raises(AieError, match=r"'/projection'.*'w.scales' .*\(9, 70\)"):
        compiled(model)
