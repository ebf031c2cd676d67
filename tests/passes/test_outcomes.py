"""What each pass replaces, what it leaves, and the reason it gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from builder_nodes import attention_model, projection_model, tied_model
from onnx import TensorProto
from op_models import (
    BFLOAT16,
    FLOAT16,
    NEEDS_TWO_BITS,
    ORT_VERSION,
    QUANTISED_CACHES,
    open_session,
    run,
)

from ort_aie_ep import _native
from ort_aie_ep.errors import AieError
from ort_aie_ep.formats import q4nx
from ort_aie_ep.graph_passes import NodeOutcome, run_passes
from ort_aie_ep.graph_passes.attention.shapes import spread_hidden_shapes


def rewritten(model: onnx.ModelProto) -> tuple[ir.Model, list[NodeOutcome]]:
    graph_model = ir.from_proto(model)
    return graph_model, list(run_passes(graph_model).outcomes.values())


def only_node(model: ir.Model, op_type: str) -> ir.Node:
    (node,) = (node for node in model.graph if node.op_type == op_type)
    return node


def attributes_of(node: ir.Node) -> dict[str, Any]:
    return {name: attribute.value for name, attribute in node.attributes.items()}


def signature(model: ir.Model) -> list[tuple[str | None, ir.DataType | None, str]]:
    return [(v.name, v.dtype, str(v.shape)) for v in (*model.graph.inputs, *model.graph.outputs)]


# --- MatMulNBits -> Q4NXMatMul --------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.dtype(np.float32), FLOAT16, BFLOAT16])
@pytest.mark.parametrize("block_size", [32, 64, 128, 256])
@pytest.mark.parametrize("zero_points", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_a_projection_is_replaced(
    dtype: np.dtype[Any], block_size: int, zero_points: bool, bias: bool
) -> None:
    source = projection_model(
        40, 320, dtype=dtype, block_size=block_size, zero_points=zero_points, bias=bias
    )
    form = q4nx.BlockForm.smallest(4, block_size, symmetric=not zero_points)
    model, outcomes = rewritten(source)
    assert outcomes == [NodeOutcome("/model/proj/MatMul_Q4", "MatMulNBits", "aie.Q4NXMatMul", "")]
    (node,) = model.graph
    assert (node.domain, node.op_type, node.name) == ("aie", "Q4NXMatMul", "/model/proj/MatMul_Q4")
    assert attributes_of(node) == {
        "K": 320, "N": 40, "accuracy_level": 4, "symmetric": int(not zero_points),
        **form.attributes(),
    }  # fmt: skip
    assert [value.name for value in node.inputs if value] == ["x", "proj.B_q4nx"] + ["bias"] * bias
    assert signature(model) == signature(ir.from_proto(source))
    assert set(model.graph.initializers) == {"proj.B_q4nx"} | ({"bias"} if bias else set())
    assert model.opset_imports["aie"] == 1
    (weights,) = (v for v in model.graph.initializers.values() if v.name == "proj.B_q4nx")
    assert weights.const_value is not None
    blocks = weights.const_value.numpy()
    assert blocks.shape == form.blocks_shape(40, 320)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"bits": 1}, "weights have 1 bits; Q2NX holds 2, Q4NX 4 and Q8NX 8"),
        ({"block_size": 16}, "block_size is 16; Q4NX shares a scale among 32 in-features"),
        ({"block_size": 16, "bits": 8}, "block_size is 16; Q8NX shares a scale among 32 in-f"),
        ({"block_size": 512}, "block_size is 512; expected 32, 64, 128 or 256"),
        (
            {"zero_points": np.dtype(np.float32), "bits": 8},
            "zero_points are FLOAT; with 8 bits they must be UINT8",
        ),
        ({"g_idx": True}, "g_idx permutes the groups"),
        ({"as_inputs": ("proj.B",)}, "B, scales or zero_points are not constant"),
        ({"as_inputs": ("proj.scales",)}, "B, scales or zero_points are not constant"),
        ({"as_inputs": ("proj.zero_points",), "zero_points": True}, "are not constant"),
        ({"weight_prepacked": 1}, "weight_prepacked=1 is a CUDA layout"),
        ({"zero_points": np.dtype(np.int32)}, "zero_points are INT32; expected UINT8, FLOAT"),
        ({"dtype": np.dtype(np.int8)}, "A is INT8; expected FLOAT, FLOAT16 or BFLOAT16"),
    ],
)
def test_a_projection_is_left_with_a_reason(options: dict[str, Any], reason: str) -> None:
    source = projection_model(**options)
    before = source.SerializeToString(deterministic=True)
    model, (outcome,) = rewritten(source)
    assert outcome.becomes is None
    assert reason in outcome.reason
    after = ir.to_proto(model)
    assert [node.op_type for node in after.graph.node] == ["MatMulNBits"]
    assert after.graph.node[0] == onnx.ModelProto.FromString(before).graph.node[0]


def test_an_attribute_of_the_wrong_type_is_an_error() -> None:
    source = projection_model()
    (node,) = source.graph.node
    for attribute in node.attribute:
        if attribute.name == "K":
            attribute.CopyFrom(onnx.helper.make_attribute("K", 320.0))
    with pytest.raises(AieError, match=r"/model/proj/MatMul_Q4.*K .*320.0"):
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


@pytest.mark.parametrize("dtype", [np.dtype(np.float32), FLOAT16])
@pytest.mark.parametrize("points", [np.dtype(np.float32), FLOAT16])
def test_float_zero_points_of_any_float_type_are_taken(
    dtype: np.dtype[Any], points: np.dtype[Any]
) -> None:
    source = projection_model(dtype=dtype, zero_points=points)
    feeds = {"x": np.ones((1, 2, 320), dtype)}
    expected = run(open_session(source.SerializeToString()), feeds)["y"].astype(np.float64)
    model, (outcome,) = rewritten(source)
    assert outcome.becomes == "aie.Q4NXMatMul"
    actual = run(open_session(ir.to_proto(model).SerializeToString()), feeds)["y"]
    # As in test_a_rewritten_graph_runs_and_gives_the_same_results; float16's rounding is far
    # smaller.
    assert np.linalg.norm(actual - expected) <= 0.03 * np.linalg.norm(expected)


# --- GroupQueryAttention -> FlowAttention ---------------------------------------------------------


def quantised(bits: int = 8) -> dict[str, Any]:
    """For a KV cache with one scale for all keys, and one for all values."""
    return {
        "cache": TensorProto.INT8 if bits == 8 else TensorProto.UINT8, "scales": True,
        "k_quant_type": "PER_TENSOR", "v_quant_type": "PER_TENSOR", "kv_cache_bit_width": bits,
    }  # fmt: skip


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("with_past", [True, False])
def test_attention_on_a_quantised_cache_is_replaced(bits: int, with_past: bool) -> None:
    source = attention_model(**quantised(bits), with_past=with_past)
    model, (outcome,) = rewritten(source)
    assert outcome.becomes == "aie.FlowAttention"
    (node,) = model.graph
    assert attributes_of(node) == {
        "num_heads": 4, "kv_num_heads": 2, "do_rotary": 1, "format": _native.FORMAT,
        "k_quant_type": "PER_TENSOR", "v_quant_type": "PER_TENSOR", "kv_cache_bit_width": bits,
    }  # fmt: skip
    assert [value.name for value in node.inputs if value is not None][12:] == ["k_scale", "v_scale"]
    cache = np.zeros((2, 2, 5, 32 * bits // 8), np.int8 if bits == 8 else np.uint8)
    feeds = {
        "qkv": np.random.default_rng(1).standard_normal((2, 5, 8 * 32)).astype(np.float32),
        "past_key": cache, "past_value": cache,
        "seqlens_k": np.array([4, 2], np.int32), "total": np.array(5, np.int32),
    }  # fmt: skip
    actual = run(open_session(ir.to_proto(model).SerializeToString()), feeds)
    assert actual["present_key"].dtype == cache.dtype
    if ORT_VERSION < (1, 24):  # which do not know the scales; the compiled model still runs
        with pytest.raises(Exception, match=r"GroupQueryAttention.*has input size 14"):
            open_session(source.SerializeToString())
    if ORT_VERSION < QUANTISED_CACHES or not with_past:
        return
    expected = run(open_session(source.SerializeToString()), feeds)
    # test_flow_attention_quantised checks rotated keys and outputs.
    for b, rows in enumerate((5, 3)):
        np.testing.assert_array_equal(
            *(x["present_value"][b, :, :rows] for x in (actual, expected))
        )


@pytest.mark.parametrize("bits", [8, 4])
def test_the_width_of_attention_is_known_by_a_quantised_cache(bits: int) -> None:
    model, _ = rewritten(attention_model(**quantised(bits)))
    (node,) = model.graph
    output = node.outputs[0]
    output.shape = None
    spread_hidden_shapes(model)
    assert output.shape == ("batch", "sequence", 4 * 32)


@pytest.mark.parametrize("cache", [TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16])
def test_attention_is_replaced(cache: int) -> None:
    source = attention_model(
        cache=cache, scale=0.25, softcap=30.0, local_window_size=8, sliding_window_cache=1
    )
    model, outcomes = rewritten(source)
    assert outcomes == [
        NodeOutcome(
            "/model/attn/GroupQueryAttention", "GroupQueryAttention", "aie.FlowAttention", ""
        )
    ]
    (node,) = model.graph
    assert (node.domain, node.op_type) == ("aie", "FlowAttention")
    assert attributes_of(node) == {
        "num_heads": 4, "kv_num_heads": 2, "do_rotary": 1, "scale": 0.25, "softcap": 30.0,
        "local_window_size": 8, "sliding_window_cache": 1, "format": _native.FORMAT,
    }  # fmt: skip
    assert signature(model) == signature(ir.from_proto(source))
    names = [value.name if value else None for value in node.inputs]
    assert names[:1] + names[3:] == [
        "qkv",
        "past_key",
        "past_value",
        "seqlens_k",
        "total",
        "cos",
        "sin",
    ]
    # No input name is empty: ONNX Runtime 1.23 could not load that.
    assert all(names)
    assert names[1] == names[2]
    placeholder = node.inputs[1]
    assert placeholder is not None
    assert placeholder.const_value is not None
    assert placeholder.const_value.numpy().shape == (0,)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"scales": True}, "k_scale or v_scale is given without k_quant_type and v_quant_type"),
        ({"cache": TensorProto.UINT8}, "its KV cache is UINT8; expected FLOAT, FLOAT16 or"),
        (quantised(bits=2), "kv_cache_bit_width=2; expected 8 or 4"),
        (quantised() | {"scales": False}, "k_scale or v_scale is missing"),
        (quantised() | {"cache": TensorProto.UINT8},
         "its KV cache is UINT8; expected INT8 for kv_cache_bit_width=8"),
        (quantised() | {"v_quant_type": "NONE"},
         "k_quant_type=PER_TENSOR with v_quant_type=NONE; expected PER_TENSOR or PER_CHANNEL for"),
        ({"outputs": 4, "qk_output": 1}, "output_qk asks for the score matrix"),
        ({"query_seqlens": True}, "query_seqlens pads chunks of a prompt on the right"),
        ({"k_norm_epsilon": 1e-5}, "q_norm_epsilon and k_norm_epsilon"),
        ({"outputs": 4}, "output_qk asks for the score matrix"),
        ({"head_dim": 12}, "heads have 12 channels; expected a multiple of 8"),
        ({"head_dim": 12, "with_past": False}, "heads have 12 channels"),
        ({"head_dim": "size", "with_past": False}, "channels of a head is not known"),
        ({"num_heads": 3}, "num_heads=3 is not a multiple of kv_num_heads=2"),
        ({"causal": 0, "local_window_size": 4}, "a window without causal attention"),
        ({"outputs": 1}, "present_key and present_value"),
        ({"outputs": 2}, "present_key and present_value"),
    ],
)  # fmt: skip
def test_attention_is_left_with_a_reason(options: dict[str, Any], reason: str) -> None:
    model, outcomes = rewritten(attention_model(**options))
    assert [node.op_type for node in model.graph] == ["GroupQueryAttention"]
    (outcome,) = outcomes
    assert outcome.becomes is None
    assert reason in outcome.reason


def test_an_empty_score_output_does_not_matter() -> None:
    source = attention_model(outputs=4)
    source.graph.node[0].output[3] = ""
    del source.graph.output[3]
    model, (outcome,) = rewritten(source)
    assert outcome.becomes == "aie.FlowAttention"
    assert signature(model) == signature(ir.from_proto(source))
    open_session(ir.to_proto(model).SerializeToString())


# --- tied embedding -> Q4NXGather -----------------------------------------------------------------


@pytest.mark.parametrize("bits", [2, 8])
@pytest.mark.parametrize("zero_points", [False, True])
def test_weights_become_blocks_of_as_many_bits(zero_points: bool, bits: int) -> None:
    source = tied_model(bits=bits, zero_points=zero_points)
    form = q4nx.BlockForm.smallest(bits, 32, symmetric=not zero_points)
    model, outcomes = rewritten(source)
    assert {o.op_type: o.becomes for o in outcomes} == {
        "GatherBlockQuantized": "aie.Q4NXGather",
        "MatMulNBits": "aie.Q4NXMatMul",
    }
    gather, projection = only_node(model, "Q4NXGather"), only_node(model, "Q4NXMatMul")
    assert gather.inputs[0] is projection.inputs[1]
    assert attributes_of(gather) == {
        "K": 320, "N": 70, "dtype": 1, **form.attributes(),
    }  # fmt: skip
    assert attributes_of(projection) == {
        "K": 320, "N": 70, "accuracy_level": 4, "symmetric": int(not zero_points),
        **form.attributes(),
    }  # fmt: skip
    (weights,) = model.graph.initializers.values()
    assert weights.name == f"lm_head.B_q{bits}nx"
    assert weights.const_value is not None
    assert weights.const_value.numpy().shape == form.blocks_shape(70, 320)


@pytest.mark.parametrize("zero_points", [False, True])
@pytest.mark.parametrize("reshape", [None, [70, -1], [-1, 160], [0, 160]])
def test_a_tied_embedding_shares_the_projections_weights(
    zero_points: bool, reshape: list[int] | None
) -> None:
    source = tied_model(zero_points=zero_points, reshape=reshape)
    model, outcomes = rewritten(source)
    assert {o.op_type: o.becomes for o in outcomes} == {
        "GatherBlockQuantized": "aie.Q4NXGather",
        "MatMulNBits": "aie.Q4NXMatMul",
    }
    gather, projection = only_node(model, "Q4NXGather"), only_node(model, "Q4NXMatMul")
    assert gather.inputs[0] is projection.inputs[1]
    form = q4nx.BlockForm.smallest(4, 32, symmetric=not zero_points)
    assert attributes_of(gather) == {"K": 320, "N": 70, "dtype": 1} | form.attributes()
    assert list(model.graph.initializers) == ["lm_head.B_q4nx"]
    assert len(list(model.graph)) == 2  # the Reshape is gone
    assert signature(model) == signature(ir.from_proto(source))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"tied": False}, "its weights are not tied to a MatMulNBits"),
        ({"gather_block_size": 64}, "its weights are not tied to a MatMulNBits"),
        ({"bits": 1}, "the projection that it is tied to stays on the CPU EP: weights have 1 bits"),
        ({"block_size": 16}, "stays on the CPU EP: block_size is 16"),
        ({"k": 300}, "K=300 is not a multiple of block_size=32"),
        ({"reshape": [140, 80]}, "its data is reshaped"),
    ],
)
def test_an_embedding_is_left_with_a_reason(options: dict[str, Any], reason: str) -> None:
    model, outcomes = rewritten(tied_model(**options))
    (outcome,) = (o for o in outcomes if o.op_type == "GatherBlockQuantized")
    assert outcome.becomes is None
    assert reason in outcome.reason
    only_node(model, "GatherBlockQuantized")


# --- whole graphs ---------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [4, 8, pytest.param(2, marks=NEEDS_TWO_BITS)])
def test_a_rewritten_graph_runs_and_gives_the_same_results(bits: int) -> None:
    for source, feeds in (
        (projection_model(bits=bits, bias=True), {"x": np.ones((1, 2, 320), np.float32)}),
        (tied_model(bits=bits), {"ids": np.array([[3, 69, 0]], np.int64)}),
    ):
        expected = run(open_session(source.SerializeToString()), feeds)
        model, _ = rewritten(source)
        actual = run(open_session(ir.to_proto(model).SerializeToString()), feeds)
        for name, y in expected.items():
            # int8 activations, 2 steps of 1/127 of values up to 1, and bfloat16 scales (2^-8): of
            # independent errors, relative to the norm of the whole result.
            assert np.linalg.norm(actual[name] - y) <= 0.03 * np.linalg.norm(y)


def test_a_rewritten_attention_runs() -> None:
    source = attention_model()
    rng = np.random.default_rng(1)
    feeds = {
        "qkv": rng.standard_normal((2, 1, 256)).astype(np.float32),
        "past_key": rng.standard_normal((2, 2, 9, 32)).astype(np.float32),
        "past_value": rng.standard_normal((2, 2, 9, 32)).astype(np.float32),
        "seqlens_k": np.array([9, 4], np.int32),
        "total": np.array(10, np.int32),
    }
    model, _ = rewritten(source)
    actual = run(open_session(ir.to_proto(model).SerializeToString()), feeds)
    expected = run(open_session(source.SerializeToString()), feeds)
    np.testing.assert_allclose(actual["output"], expected["output"], rtol=0, atol=2e-5)


def test_a_graph_without_such_nodes_is_left_alone() -> None:
    graph = onnx.parser.parse_graph("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    model, outcomes = rewritten(onnx.helper.make_model(graph))
    assert outcomes == []
    assert [node.op_type for node in model.graph] == ["Relu"]
    assert "aie" not in model.opset_imports


def test_passes_are_idempotent() -> None:
    model, _ = rewritten(tied_model())
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    assert list(run_passes(model).outcomes) == []
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before
