"""The Reshape between a router and its experts: which goes, and which stays."""

from __future__ import annotations

from step_graphs import Graph, ops

EXPERTS = 8


def experts(graph: Graph, router: str, **attributes: int) -> str:
    graph.value("x", ("batch", "sequence", 64))
    weights = [graph.weight(name, 1) for name in ("gate", "down")]
    return graph.step("Q4NXMoE", ["x", router, *weights], "y", experts=EXPERTS, **attributes)


def joined(graph: Graph, *logits: int | str) -> str:
    """Logits of that shape, with batch and sequence joined."""
    graph.value("logits", logits)
    return graph.node("Reshape", ["logits", graph.sizes("flat", -1, EXPERTS)], "joined")


def test_a_reshape_that_joins_batch_and_sequence_goes() -> None:
    graph = Graph()
    experts(graph, joined(graph, "batch", "sequence", EXPERTS))
    (step,) = graph.fused("y")
    assert (step.op, step.reads[:2]) == ("Q4NXMoE", ["x", "logits"])
    assert step.nodes == ["/y", "/joined"]


def test_a_reshape_of_other_rows_stays() -> None:
    for shape in (
        ("batch", EXPERTS, "sequence"),
        ("batch", "sequence", 2, EXPERTS // 2),
        ("sequence", "batch", EXPERTS),
        ("batch", "sequence", "experts"),
        ("all", EXPERTS),
    ):
        graph = Graph()
        experts(graph, joined(graph, *shape))
        assert ops(graph.fused("y")) == ["", "Q4NXMoE"], shape


def test_logits_that_something_else_reads_as_rows_stay_rows() -> None:
    graph = Graph()
    experts(graph, joined(graph, "batch", "sequence", EXPERTS))
    assert ops(graph.fused("y", "joined")) == ["", "Q4NXMoE"]
