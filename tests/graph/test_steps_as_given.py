"""Fusions of steps that say more than any source does: what their attributes and inputs forbid.

Fusions of nodes are in tests/corpus.
"""

from __future__ import annotations

from typing import Any

import pytest
from step_graphs import INT64, ROWS, Graph, K, N, ops

HEADS, DIM = 4, 32


def multiply(graph: Graph) -> None:
    activated = graph.node("QuickGelu", ["gate"], "a", domain="com.microsoft", alpha=1.0)
    graph.node("Mul", [activated, "up"], "y")


@pytest.mark.parametrize("symmetric", [(1, 0), (0, 1), (1, 1)])
def test_gate_and_up_are_symmetric_where_both_are(symmetric: tuple[int, int]) -> None:
    graph = Graph()
    for name, value in zip(("gate", "up"), symmetric, strict=True):
        graph.projection("x", name, symmetric=value)
    multiply(graph)
    (step,) = graph.fused("y")
    assert step.attributes["symmetric"] == min(symmetric)


def test_bits_that_are_left_out_are_four() -> None:
    graph = Graph()
    graph.projection("x", "gate", bits=4)
    graph.projection("x", "up")
    multiply(graph)
    assert ops(graph.fused("y")) == ["Q4NXGatedMLP"]


def test_gate_and_up_of_other_forms_are_said_to_be_apart() -> None:
    graph = Graph()
    graph.projection("x", "gate")
    graph.projection("x", "up", bits=2)
    multiply(graph)
    assert [step.name for step in graph.fused("y") if step.apart] == ["/y"]


@pytest.mark.parametrize("types", [("q4_k", "q4_k"), ("q4_k", "q6_k"), ("q4_k", "")])
def test_gate_and_up_of_one_type_are_fused(types: tuple[str, str]) -> None:
    graph = Graph()
    for name, its in zip(("gate", "up"), types, strict=True):
        graph.projection("x", name, format=3, **({"type": its} if its else {}))
    multiply(graph)
    steps = graph.fused("y")
    if types == ("q4_k", "q4_k"):
        (step,) = steps
        assert step.op == "Q4NXGatedMLP"
        assert step.attributes["type"] == "q4_k"
        assert step.attributes["format"] == 3
    else:
        assert [step.name for step in steps if step.apart] == ["/y"]


def test_projections_with_a_norm_in_them_are_not_a_gated_mlp() -> None:
    graph = Graph()
    for name in ("gate", "up"):
        graph.projection("x", name, "", graph.weight("w", K))
    multiply(graph)
    assert "Q4NXGatedMLP" not in ops(graph.fused("y"))


def test_a_split_of_unknown_rank_counts_from_the_right() -> None:
    for axis, fused in ((-1, True), (2, False)):
        graph = Graph()
        graph.value("x", None)
        graph.value("both", None)
        graph.node("Split", [graph.projection("x", "both", n=2 * N)], "gate", "up", axis=axis)
        multiply(graph)
        assert ("Q4NXGatedMLP" in ops(graph.fused("y"))) is fused


def test_a_split_whose_constant_sizes_are_not_at_hand_stays() -> None:
    graph = Graph()
    graph.value("sizes", [2], INT64, True)
    graph.node("Split", [graph.projection("x", "both", n=2 * N), "sizes"], "gate", "up", axis=-1)
    multiply(graph)
    assert "Q4NXGatedMLP" not in ops(graph.fused("y"))


def normed(graph: Graph, k: int = K) -> str:
    graph.value("normed", ROWS)
    return graph.node("SimplifiedLayerNormalization", ["x", graph.weight("w", k)], "normed",
                      epsilon=0.25)  # fmt: skip


@pytest.mark.parametrize("others", [["", "v"], ["", "", "r"], ["", "v", "r"]])
def test_a_norm_stays_before_a_projection_that_has_a_norm_or_a_residual(others: list[str]) -> None:
    graph = Graph()
    graph.weight("v", K)
    graph.projection(normed(graph), "y", *others)
    assert ops(graph.fused("y")) == ["RMSNorm", "Q4NXMatMul"]


def test_a_norm_of_other_rows_than_the_projections_stays() -> None:
    graph = Graph()
    graph.projection(normed(graph, K + 1), "y")
    assert ops(graph.fused("y")) == ["RMSNorm", "Q4NXMatMul"]


@pytest.mark.parametrize("position", [2, 4])
def test_a_norm_that_a_projection_adds_stays(position: int) -> None:
    graph = Graph()
    normed(graph)
    graph.value("total", ROWS)
    inputs = ["r", graph.weight("W", 2, 1, 5120, type=2), "", "", ""]
    inputs[position] = "normed"
    graph.step("Q4NXMatMul", inputs, "y", "total", K=K, N=N)
    assert ops(graph.fused("y")) == ["RMSNorm", "Q4NXMatMul"]


def attention(graph: Graph, *more: str, **given: Any) -> None:
    """Of q and k, whose heads have norms unless `given` has others."""
    for name in "qk":
        for step, width in ((1, DIM), (2, DIM), (3, HEADS * DIM)):
            rows = "sequence" if step == 3 else f"{name} rows"
            graph.value(f"{name}{step}", ("batch", rows, width))
        graph.value(name, ("batch", "sequence", HEADS * DIM))
        graph.node("Reshape", [name, graph.sizes(f"{name}.heads", 0, -1, DIM)], f"{name}1")
        graph.node("SimplifiedLayerNormalization", [f"{name}1", graph.weight(f"{name}.w", DIM)],
                   f"{name}2", epsilon=1e-6)  # fmt: skip
        graph.node("Reshape", [f"{name}2", graph.sizes(f"{name}.flat", 0, -1, HEADS * DIM)],
                   f"{name}3")  # fmt: skip
    for name in ("v", "past_key", "past_value", "seqlens_k", "total"):
        graph.value(name, None)
    inputs = ["q3", "k3", "v", "past_key", "past_value", "seqlens_k", "total", *more]
    counts = {"num_heads": HEADS, "kv_num_heads": HEADS}
    graph.step("FlowAttention", inputs, "y", "present_key", "present_value", **(counts | given))


@pytest.mark.parametrize("given", [{"num_heads": HEADS + 1}, {"num_heads": 2**62}])
def test_norms_of_other_heads_than_the_attentions_stay(given: dict[str, int]) -> None:
    graph = Graph()
    attention(graph, **given)
    assert ops(graph.fused("y")).count("RMSNorm") == 2


@pytest.mark.parametrize("place", [14, 15])
def test_norms_before_an_attention_that_has_either_stay(place: int) -> None:
    graph = Graph()
    attention(graph, *[""] * (place - 7), graph.weight("own", DIM))
    assert ops(graph.fused("y")).count("RMSNorm") == 2


@pytest.mark.parametrize("place", [14, 15])
def test_a_norm_that_an_attention_has_stays_after_a_rotation(place: int) -> None:
    graph = Graph()
    for name in "qk":
        graph.value(name, ("batch", "sequence", HEADS * DIM))
        graph.value(f"{name}r", ("batch", "sequence", HEADS * DIM))
    for name in ("cos", "sin"):
        graph.weight(name, 64, DIM // 2)
    graph.value("ids", ("batch", "sequence"), INT64)
    for name in "qk":
        graph.node("RotaryEmbedding", [name, "ids", "cos", "sin"], f"{name}r",
                   domain="com.microsoft")  # fmt: skip
    for name in ("v", "past_key", "past_value", "seqlens_k", "total"):
        graph.value(name, None)
    inputs = ["qr", "kr", "v", "past_key", "past_value", "seqlens_k", "total"]
    inputs += [""] * (place - 7) + [graph.weight("norm", DIM)]
    graph.step("FlowAttention", inputs, "y", "present_key", "present_value", num_heads=HEADS,
               kv_num_heads=HEADS)  # fmt: skip
    (step,) = graph.fused("y", "present_key", "present_value")
    assert step.attributes["norm_after_rotary"] == 1
