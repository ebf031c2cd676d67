"""A bias after a projection: which becomes the projection's input, and which is added outside."""

from __future__ import annotations

import pytest
from step_graphs import FLOAT16, Graph, K, N, ops

PROJECTIONS = ["Q4NXMatMul", "GEMM"]


@pytest.mark.parametrize("op", PROJECTIONS)
@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("claimed", [False, True])
def test_a_bias_goes_into_the_projection(op: str, swap: bool, claimed: bool) -> None:
    graph = Graph()
    terms = [graph.projection("x", "product", op=op), graph.weight("b", N)]
    add = graph.step if claimed else graph.node
    add("Add", terms[::-1] if swap else terms, "y")
    (step,) = graph.fused("y")
    assert (step.op, step.name) == (op, "/product")
    assert (step.reads, step.writes) == (["x", "product.W", "b"], ["y"])
    assert step.nodes == ["/product", "/y"]
    assert (step.attributes["K"], step.attributes["N"]) == (K, N)


def test_a_bias_goes_in_where_the_rows_are_not_known() -> None:
    graph = Graph()
    graph.value("product", None)
    graph.node("Add", [graph.projection("x", "product"), graph.weight("b", N)], "y")
    assert ops(graph.fused("y")) == ["Q4NXMatMul"]


@pytest.mark.parametrize("shape", [(), (1,), (1, N), (1, 1, N), (K,)])
def test_an_addend_that_is_not_a_row_of_out_features_is_added_outside(
    shape: tuple[int, ...],
) -> None:
    graph = Graph()
    graph.step("Add", [graph.projection("x", "product"), graph.weight("b", *shape)], "y")
    assert ops(graph.fused("y")) == ["Q4NXMatMul", "Add"]


def test_an_addend_that_is_not_a_constant_is_added_outside() -> None:
    graph = Graph()
    graph.step("Add", [graph.projection("x", "product"), graph.value("b", [N])], "y")
    assert ops(graph.fused("y")) == ["Q4NXMatMul", "Add"]


@pytest.mark.parametrize(("product", "bias"), [(1, FLOAT16), (FLOAT16, 1), (0, 0)])
def test_a_bias_of_another_type_is_added_outside(product: int, bias: int) -> None:
    graph = Graph()
    graph.value("product", ("batch", "sequence", N), product)
    graph.node("Add", [graph.projection("x", "product"), graph.weight("b", N, type=bias)], "y")
    assert ops(graph.fused("y")) == ["Q4NXMatMul", ""]


def test_a_second_bias_is_added_outside() -> None:
    graph = Graph()
    product = graph.projection("x", "product", graph.weight("a", N))
    graph.step("Add", [product, graph.weight("b", N)], "y")
    assert ops(graph.fused("y")) == ["Q4NXMatMul", "Add"]


def test_of_two_biases_the_first_goes_in() -> None:
    graph = Graph()
    once = graph.step("Add", [graph.projection("x", "product"), graph.weight("a", N)], "once")
    graph.step("Add", [once, graph.weight("b", N)], "y")
    first, second = graph.fused("y")
    assert (first.op, first.reads[2], second.op) == ("Q4NXMatMul", "a", "Add")


def test_a_product_that_others_read_keeps_its_bias_outside() -> None:
    wanted, read, doubled = Graph(), Graph(), Graph()
    for graph in (wanted, read):
        graph.step("Add", [graph.projection("x", "product"), graph.weight("b", N)], "y")
    read.node("Neg", ["product"], "z")
    doubled.step("Add", [doubled.projection("x", "product"), "product"], "y")
    assert ops(wanted.fused("y", "product")) == ["Q4NXMatMul", "Add"]
    assert ops(read.fused("y", "z")) == ["Q4NXMatMul", "Add", ""]
    assert ops(doubled.fused("y")) == ["Q4NXMatMul", "Add"]


def test_a_sum_that_comes_out_of_a_projection_has_no_bias() -> None:
    graph = Graph()
    inputs = ["x", graph.weight("W", 2, 1, 5120, type=2), "", graph.weight("w", K), "r"]
    graph.value("total", ("batch", "sequence", K))
    graph.step("Q4NXMatMul", inputs, "y", "total", K=K, N=K)
    graph.step("Add", ["total", graph.weight("b", K)], "z")
    assert ops(graph.fused("y", "z")) == ["Q4NXMatMul", "Add"]


def test_other_operators_take_no_bias() -> None:
    graph = Graph()
    gated = ["x", graph.weight("gate", 2, 1, 5120, type=2), graph.weight("up", 2, 1, 5120, type=2)]
    graph.step("Q4NXGatedMLP", gated, "h", K=K, N=N, activation="silu")
    graph.step("Add", ["h", graph.weight("b", N)], "y")
    graph.step("Mul", [graph.projection("x", "product"), graph.weight("s", N)], "z")
    assert ops(graph.fused("y", "z")) == ["Q4NXGatedMLP", "Add", "Q4NXMatMul", "Mul"]
