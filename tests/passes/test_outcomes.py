"""What each pass replaces, what it leaves, and the reason it gives."""

from __future__ import annotations

from typing import Any

import onnx
import onnx_ir as ir
import pytest
from builder_nodes import attention_model, projection_model
from onnx import TensorProto

from ort_aie_ep.errors import AieError
from ort_aie_ep.graph_passes import NodeOutcome, run_passes
from ort_aie_ep.graph_passes.attention.shapes import spread_hidden_shapes


def rewritten(model: onnx.ModelProto) -> tuple[ir.Model, list[NodeOutcome]]:
    graph_model = ir.from_proto(model)
    return graph_model, list(run_passes(graph_model).outcomes.values())


# --- MatMulNBits -> Q4NXMatMul --------------------------------------------------------------------


def test_an_attribute_of_the_wrong_type_is_an_error() -> None:
    source = projection_model()
    (node,) = source.graph.node
    for attribute in node.attribute:
        if attribute.name == "K":
            attribute.CopyFrom(onnx.helper.make_attribute("K", 320.0))
    with pytest.raises(AieError, match=r"/model/proj/MatMul_Q4.*K must be int, got float"):
        rewritten(source)


def test_nodes_without_names_are_told_apart_by_their_outputs() -> None:
    source = projection_model()
    source.graph.node[0].name = ""
    _, (outcome,) = rewritten(source)
    assert outcome.node == "MatMulNBits -> y"


def test_an_attention_without_a_name_is_reported_by_what_it_computed() -> None:
    # Its replacement computes values with other names.
    graph = onnx.parser.parse_graph(
        "agraph (float[1,3,16] q) => (float[1,3,16] y)"
        "{ y = Attention<q_num_heads=2, kv_num_heads=2>(q, q, q) }"
    )
    source = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 23)])
    _, (outcome,) = rewritten(source)
    assert outcome == NodeOutcome("Attention -> y", "Attention", "aie.FlowAttention", "")


def test_nodes_of_one_name_are_told_apart_by_their_outputs() -> None:
    source = projection_model()
    (first,) = source.graph.node
    second = source.graph.node.add()
    second.CopyFrom(first)
    second.output[0] = "z"
    source.graph.output.add().CopyFrom(source.graph.output[0])
    source.graph.output[1].name = "z"
    next(a for a in second.attribute if a.name == "bits").i = 3
    model, outcomes = rewritten(source)
    assert {o.node: o.becomes for o in outcomes} == {
        "/model/proj/MatMul_Q4 -> y": "aie.Q4NXMatMul",
        "/model/proj/MatMul_Q4 -> z": None,
    }
    assert [node.name for node in model.graph] == [o.node for o in outcomes]


def test_names_that_are_made_collide_with_none() -> None:
    text = "agraph (float[2] x) => (float[2] b) { a = Relu(x)  b = Relu(a) }"
    graph = onnx.parser.parse_graph(text)
    graph.node[0].name = "Relu -> b"
    model, _ = rewritten(onnx.helper.make_model(graph))
    assert [node.name for node in model.graph] == ["Relu -> b", "Relu -> b (2)"]


# --- GroupQueryAttention -> FlowAttention ---------------------------------------------------------


def quantised(bits: int = 8) -> dict[str, Any]:
    """For a KV cache with one scale for all keys, and one for all values."""
    return {
        "cache": TensorProto.INT8 if bits == 8 else TensorProto.UINT8, "scales": True,
        "k_quant_type": "PER_TENSOR", "v_quant_type": "PER_TENSOR", "kv_cache_bit_width": bits,
    }  # fmt: skip


@pytest.mark.parametrize("bits", [8, 4])
def test_the_width_of_attention_is_known_by_a_quantised_cache(bits: int) -> None:
    model, _ = rewritten(attention_model(**quantised(bits)))
    (node,) = model.graph
    output = node.outputs[0]
    output.shape = None
    spread_hidden_shapes(model)
    assert output.shape == ("batch", "sequence", 4 * 32)
