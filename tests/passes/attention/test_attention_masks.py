"""Masks that models compute before ONNX's Attention: how often they are run, and on what.

What is read of them is in tests/corpus/masks.py.
"""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest
from onnx import helper, parser

from ort_aie_ep.graph_passes import run_passes, subgraph
from ort_aie_ep.graph_passes.attention import mask as attention_mask

LAYER = """
    <ir_version: 10, opset_import: ["" : 23]>
    layer (float[b, s, 32] q, int64[b, s] attention_mask) => (float[b, s, 32] y)
    <int64 zero = {0}, int64 one = {1}, int64[1] last = {-1}, int64[2] middle = {1, 2}> {
        total = Shape<start = 1, end = 2>(attention_mask)
        total0 = Squeeze(total)
        key = Range(zero, total0, one)
        query = Unsqueeze(key, last)
        causal = LessOrEqual(key, query)
        shown2 = Cast<to = 9>(attention_mask)
        shown = Unsqueeze(shown2, middle)
        seen = And(causal, shown)
        mask = Identity(seen)
        y = Attention<q_num_heads = 4, kv_num_heads = 4>(q, q, q, mask)
    }
"""


def layer(*more: onnx.NodeProto) -> onnx.ModelProto:
    """With more nodes, whose results are outputs."""
    model = parser.parse_model(LAYER)
    model.graph.node.extend(more)
    for node in more:
        model.graph.output.append(helper.make_tensor_value_info(node.output[0], 1, None))
    return model


def again(q: str, y: str) -> onnx.NodeProto:
    counts = {"q_num_heads": 4, "kv_num_heads": 4}
    return helper.make_node("Attention", [q, q, q, "mask"], [y], name=f"/{y}", **counts)


def attentions(model: onnx.ModelProto) -> list[ir.Node]:
    changed = ir.from_proto(model)
    run_passes(changed)
    return [node for node in changed.graph if node.op_type == "FlowAttention"]


def test_a_mask_that_reads_large_constants_is_used_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = layer()
    model.graph.initializer.append(helper.make_tensor("wide", 9, [1001, 1], [True] * 1001))
    nodes = list(model.graph.node)
    place = next(i for i, node in enumerate(nodes) if node.op_type == "Identity")
    nodes[place].CopyFrom(helper.make_node("And", ["seen", "table"], ["mask"]))
    nodes.insert(place, helper.make_node("Gather", ["wide", "zero"], ["table"]))
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    (read,) = attentions(model)
    assert read.attributes["causal"].as_int() == 1
    monkeypatch.setattr(subgraph, "MOST_BYTES", 1000)
    (left,) = attentions(model)
    assert left.attributes["causal"].as_int() == 0


def test_a_mask_is_read_once_for_all_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = []
    part = attention_mask.Part
    monkeypatch.setattr(attention_mask, "Part", lambda *given: parts.append(given) or part(*given))
    assert len(attentions(layer(again("y", "second")))) == 2
    assert len(parts) <= 2  # after a cache, and without one


def test_an_attention_that_is_computed_twice_is_one() -> None:
    model = layer(again("q", "second"), helper.make_node("Neg", ["second"], ["third"]))
    assert len(attentions(model)) == 1
