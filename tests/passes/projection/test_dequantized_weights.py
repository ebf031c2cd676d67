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
from op_models import FLOAT32, ONNX_TYPES, onnx_tensor, open_session, run

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


# --- what stays -----------------------------------------------------------------------------------


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
