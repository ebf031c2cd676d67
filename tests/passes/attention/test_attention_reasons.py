"""Exported attention that is left alone names what in the model is not supported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from test_decomposed_attention import (
    LAYER,
    assert_same,
    attentions,
    constant,
    insert,
    load,
    logits,
    node_of,
    scores_of,
)

from ort_aie_ep.graph_passes import run_passes

__all__ = ["load"]  # a fixture

HEADS, KV_HEADS, SIZE = 4, 2, 32  # from the recorded Llama
EPSILON = {"axis": -1, "epsilon": 1e-6}


def weights(model: ir.Model) -> ir.Value:
    return constant(model, np.linspace(0.5, 1.5, SIZE, dtype=np.float32))


def value_at(model: ir.Model, name: str) -> ir.Value:
    return node_of(model, f"{LAYER}/{name}").outputs[0]


def layer_norms(model: ir.Model) -> str:
    """Phi's qk_layernorm."""
    for name in ("Reshape", "Reshape_1"):
        insert(model, value_at(model, name), "LayerNormalization", weights(model), **EPSILON)
    return "LayerNormalization '*' on the path of its query is a layer norm; aie.FlowAttention has"


def spelled_layer_norms(model: ir.Model) -> str:
    """As Cohere's norms are exported, except for the division."""
    for name in ("Reshape", "Reshape_1"):
        value = value_at(model, name)
        centred = insert(model, value, "Sub", value).producer()
        assert centred is not None
        mean = ir.node("ReduceMean", [value, constant(model, np.array([-1]))], name=f"{name}.mean")
        mean.outputs[0].name = f"{name}.mean"
        model.graph.append(mean)
        centred.replace_input_with(1, mean.outputs[0])
    model.graph.sort()
    return "ReduceMean 'Reshape.mean' on the path of its query belongs to a norm other than"


def norms_after_the_rotation(model: ir.Model) -> str:
    """HunYuan's."""
    for name in ("Add", "Add_1"):
        value = value_at(model, name)
        insert(model, value, "SimplifiedLayerNormalization", weights(model), **EPSILON)
    return "the norm '*' comes after the rotation; aie.FlowAttention's come before it"


def norm_of_the_query_alone(model: ir.Model) -> str:
    value = value_at(model, "Reshape")
    insert(model, value, "SimplifiedLayerNormalization", weights(model), **EPSILON)
    return "it has 1 norms of the query and 0 of the key ('*'); aie.FlowAttention has one of each"


def sinks(model: ir.Model) -> str:
    """As in GPT-OSS: one more score for each head, without a value."""
    scores = node_of(model, f"{LAYER}/Softmax").inputs[0]
    assert scores is not None
    shape = ir.node("Shape", [scores], {"end": 3})
    one = constant(model, np.array([1]))
    wide = ir.node("Concat", [shape.outputs[0], one], {"axis": 0})
    sink = constant(model, np.linspace(0, 1, HEADS, dtype=np.float32).reshape(1, HEADS, 1, 1))
    given = ir.node("Expand", [sink, wide.outputs[0]])
    for node, name in ((shape, "sinks.shape"), (wide, "sinks.wide"), (given, "sinks")):
        node.outputs[0].name = name
        model.graph.append(node)
    insert(model, scores, "Concat", given.outputs[0], axis=-1)
    probabilities = value_at(model, "Softmax")
    begin, end = constant(model, np.array([0])), constant(model, np.array([-1]))
    insert(model, probabilities, "Slice", begin, end, constant(model, np.array([3])))
    return "joins them with 'sinks', as attention sinks are; aie.FlowAttention takes those only"


def side_by_side(model: ir.Model) -> str:
    """For each key-value head its queries, its key and its value (Falcon's new architecture)."""
    nodes = [node_of(model, f"{LAYER}/{name}_proj/MatMul") for name in "qkv"]
    parts = []
    for node in nodes:
        tensor = node.inputs[1]
        assert tensor is not None
        assert tensor.const_value is not None
        array = tensor.const_value.numpy()
        parts.append(array.reshape(len(array), KV_HEADS, -1, SIZE))
    matrix = np.concatenate(parts, 2).reshape(len(parts[0]), -1)
    both = ir.node("MatMul", [nodes[0].inputs[0], constant(model, matrix)])
    groups = constant(model, np.array([0, 0, KV_HEADS, HEADS // KV_HEADS + 2, SIZE]))
    split = ir.node("Reshape", [both.outputs[0], groups])
    sizes = constant(model, np.array([HEADS // KV_HEADS, 1, 1]))
    taken = ir.node("Split", [split.outputs[0], sizes], {"axis": 3}, num_outputs=3)
    made = [both, split, taken]
    for node, value in zip(nodes, taken.outputs, strict=True):
        flat = ir.node("Reshape", [value, constant(model, np.array([0, 0, -1]))])
        value.name, flat.outputs[0].name = f"{node.name}.grouped", f"{node.name}.flat"
        ir.convenience.replace_all_uses_with(node.outputs[0], flat.outputs[0])
        model.graph.remove(node, safe=True)
        made.append(flat)
    both.outputs[0].name, split.outputs[0].name = "both", "grouped"
    model.graph.extend(made)
    model.graph.sort()
    return "its projection has query, key and value of each key-value head side by side; expected"


def values_first(model: ir.Model) -> str:
    """One projection for all three, with its parts in another order, as in CodeGen."""
    nodes = [node_of(model, f"{LAYER}/{name}_proj/MatMul") for name in "vqk"]
    tensors = [node.inputs[1] for node in nodes]
    arrays = [tensor.const_value.numpy() for tensor in tensors if tensor and tensor.const_value]
    both = ir.node("MatMul", [nodes[0].inputs[0], constant(model, np.concatenate(arrays, 1))])
    sizes = constant(model, np.array([array.shape[1] for array in arrays]))
    taken = ir.node("Split", [both.outputs[0], sizes], {"axis": -1}, num_outputs=3)
    both.outputs[0].name = "both"
    model.graph.extend([both, taken])
    for node, value in zip(nodes, taken.outputs, strict=True):
        value.name = f"{node.name}.part"
        ir.convenience.replace_all_uses_with(node.outputs[0], value)
        model.graph.remove(node, safe=True)
    model.graph.sort()
    return "its projection has query, key and value in another order; expected all queries"


def gemms(model: ir.Model) -> str:
    """As in GPT-2: rows are flattened first, and batch and length come back afterwards."""
    node = node_of(model, f"{LAYER}/q_proj/MatMul")
    hidden, matrix = node.inputs
    assert hidden is not None
    assert matrix is not None
    shape = ir.node("Shape", [hidden], {"end": 2})
    back = ir.node("Concat", [shape.outputs[0], constant(model, np.array([-1]))], {"axis": 0})
    flat = ir.node("Reshape", [hidden, constant(model, np.array([-1, HEADS * SIZE]))])
    gemm = ir.node("Gemm", [flat.outputs[0], matrix], name="/gemm")
    rows = ir.node("Reshape", [gemm.outputs[0], back.outputs[0]])
    made = [shape, back, flat, gemm, rows]
    for i, new in enumerate(made):
        new.outputs[0].name = f"gemm.{i}"
    model.graph.extend(made)
    ir.convenience.replace_all_uses_with(node.outputs[0], rows.outputs[0])
    model.graph.remove(node, safe=True)
    model.graph.sort()
    return "its projection '/gemm' is a Gemm of flattened rows; expected MatMul or MatMulNBits"


def lengths_that_the_model_cannot_have(model: ir.Model) -> str:
    """A table for fewer keys than a prompt of the probes has."""
    table = constant(model, np.zeros((1, 1, 1, 3), np.float32))
    insert(model, scores_of(model), "Add", table)
    return "it cannot be run apart from the model: Add '*' fails (*broadcast*)"


@pytest.mark.parametrize(
    "change",
    [
        layer_norms,
        spelled_layer_norms,
        norms_after_the_rotation,
        norm_of_the_query_alone,
        sinks,
        side_by_side,
        values_first,
        gemms,
        lengths_that_the_model_cannot_have,
    ],
)
def test_the_reason_names_what_is_not_supported(
    change: Callable[[ir.Model], str], load: Callable[..., ir.Model], tmp_path: Path
) -> None:
    model = load("llama", layers=1)
    pieces = change(model).split("*")
    outcomes = run_passes(model).outcomes
    reason = next(o.reason for o in outcomes.values() if o.node == f"{LAYER}/Softmax")
    at = 0
    for piece in pieces:
        at = reason.find(piece, at)
        assert at >= 0, reason
    assert "onnxruntime_src" not in reason


def test_a_norm_before_the_last_projection_stays_there(
    load: Callable[..., ir.Model], tmp_path: Path
) -> None:
    """BitNet's attn_sub_norm."""
    model = load("llama", layers=1)
    vector = constant(model, np.linspace(0.5, 1.5, HEADS * SIZE, dtype=np.float32))
    result = value_at(model, "Reshape_7")
    insert(model, result, "SimplifiedLayerNormalization", vector, **EPSILON)
    expected = logits(model, tmp_path / "source")
    run_passes(model)
    assert len(attentions(model)) == 1
    assert_same(model, expected, tmp_path / "compiled")
