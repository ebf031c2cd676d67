"""Rotations by the tokens' own positions before GroupQueryAttention: part of aie.FlowAttention."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema
from op_models import Array, model_of, onnx_tensor, open_session, run

from ort_aie_ep.graph_passes import run_passes

HEADS, KV_HEADS, DIM, ROWS = 4, 2, 32, 64
WIDTHS = {"q": HEADS * DIM, "k": KV_HEADS * DIM}
HAS_MIXED = any(schema.name == "MRotaryEmbedding" for schema in get_all_operator_schema())
CALLS = ((9, 0), (1, 9), (4, 5))


def model_with(op_type: str, **attributes: Any) -> ir.Model:
    """Queries and keys that `op_type` rotates, and an attention of them."""
    axes = [3] if op_type == "MRotaryEmbedding" else []
    pairs = attributes.get("rotary_embedding_dim", DIM) // 2
    angles = np.outer(np.arange(ROWS), np.geomspace(1, 0.01, pairs))
    tables = {"cos": np.cos(angles).astype(np.float32), "sin": np.sin(angles).astype(np.float32)}
    nodes = [
        helper.make_node(op_type, [name, "ids", *tables], [f"{name}_rotated"], name=f"/{name}",
                         domain="com.microsoft", num_heads=heads, **attributes)
        for name, heads in (("q", HEADS), ("k", KV_HEADS))
    ]  # fmt: skip
    nodes.append(helper.make_node(
        "GroupQueryAttention",
        ["q_rotated", "k_rotated", "v", "past_key", "past_value", "seqlens_k", "total"],
        ["output", "present_key", "present_value"], name="/attention", domain="com.microsoft",
        num_heads=HEADS, kv_num_heads=KV_HEADS,
    ))  # fmt: skip
    floats, past = TensorProto.FLOAT, [1, KV_HEADS, "past", DIM]
    inputs = {name: [1, "sequence", width] for name, width in WIDTHS.items()}
    inputs |= {"v": inputs["k"], "past_key": past, "past_value": past}
    graph = helper.make_graph(
        nodes,
        "graph",
        [
            *(helper.make_tensor_value_info(name, floats, shape) for name, shape in inputs.items()),
            helper.make_tensor_value_info("ids", TensorProto.INT64, [*axes, 1, "sequence"]),
            helper.make_tensor_value_info("seqlens_k", TensorProto.INT32, [1]),
            helper.make_tensor_value_info("total", TensorProto.INT32, []),
        ],
        [helper.make_tensor_value_info(name, floats, None) for name in nodes[-1].output],
        [onnx_tensor(name, array) for name, array in tables.items()],
    )
    return ir.from_proto(model_of(graph, 21))


def results(model: ir.Model, sequence: int, past: int) -> dict[str, Array]:
    rng = np.random.default_rng(3)
    sizes = {"sequence": sequence, "past": past}
    feeds: dict[str, Array | None] = {}
    for value in model.graph.inputs:
        assert value.name
        assert value.shape is not None
        shape = [sizes.get(str(dim), dim) for dim in value.shape]
        if value.dtype == ir.DataType.INT64:  # positions as of a picture: in no order
            feeds[value.name] = rng.integers(0, ROWS, shape)
        else:
            feeds[value.name] = rng.standard_normal(shape).astype(np.float32)
    feeds |= {"seqlens_k": np.array([past + sequence - 1], np.int32),
              "total": np.array(past + sequence, np.int32)}  # fmt: skip
    return run(open_session(ir.to_proto(model).SerializeToString()), feeds)


@pytest.mark.parametrize(
    ("op_type", "attributes"),
    [
        ("RotaryEmbedding", {}),
        ("RotaryEmbedding", {"interleaved": 1}),
        ("RotaryEmbedding", {"rotary_embedding_dim": 16}),
        ("MRotaryEmbedding", {"mrope_section": [4, 7, 5]}),
        ("MRotaryEmbedding", {"mrope_section": [6, 5, 5], "mrope_layout": 1}),
        ("MRotaryEmbedding", {"mrope_section": [4, 2, 2], "rotary_embedding_dim": 16}),
    ],
)
def test_attention_rotates_as_the_node_before_it(op_type: str, attributes: dict[str, Any]) -> None:
    if op_type == "MRotaryEmbedding" and not HAS_MIXED:
        pytest.skip("this ONNX Runtime has no MRotaryEmbedding")
    for sequence, past in CALLS:
        model = model_with(op_type, **attributes)
        expected = results(model, sequence, past)
        report = run_passes(model)
        assert [node.op_type for node in model.graph] == ["FlowAttention"]
        assert {o.becomes for o in report.outcomes.values()} == {"aie.FlowAttention"}
        for name, y in results(model, sequence, past).items():
            # Rotation and sums of products of values near 1, in float32 on either side.
            np.testing.assert_allclose(y, expected[name], rtol=0, atol=2e-5)
