"""RMS norms and residuals before a projection: which become its inputs."""

from __future__ import annotations

from typing import Any

import pytest
from step_graphs import FLOAT16, ROWS, Graph, K, N, Step, ops

NORM, SKIP_NORM = "SimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization"
RMS_NORM = "RMSNormalization"
PROJECTIONS = ["Q4NXMatMul", "GEMM", "Q4NXGatedMLP", "GatedGEMM"]


def norm(graph: Graph, a: str = "x", y: str = "normed", *, op_type: str = NORM,
         epsilon: float = 0.25, **attributes: Any) -> str:  # fmt: skip
    graph.value(y, ROWS)
    if "w" not in graph.values:
        graph.weight("w", K)
    return graph.node(op_type, [a, "w"], y, epsilon=epsilon, **attributes)


def skip_norm(graph: Graph, total: str = "total", **attributes: Any) -> str:
    for name in ("normed", "total"):
        if name not in graph.values:
            graph.value(name, ROWS)
    outputs = ["normed", "", "", total] if total else ["normed"]
    return graph.node(SKIP_NORM, ["x", "r", graph.weight("w", K)], *outputs,
                      domain="com.microsoft", epsilon=0.25, **attributes)  # fmt: skip


def add(graph: Graph, *terms: str) -> str:
    graph.value("total", ROWS)
    return graph.node("Add", terms or ("x", "r"), "total")


def project(graph: Graph, a: str = "normed", op: str = "Q4NXMatMul") -> str:
    if "Gated" not in op:
        return graph.projection(a, "y", op=op)
    w = graph.weight("up.W", 2, 1, 5120, type=2)
    return graph.projection(a, "y", w, op=op, activation="silu")


def only(steps: list[Step]) -> Step:
    (step,) = steps
    return step


# --- a norm alone ---------------------------------------------------------------------------------


@pytest.mark.parametrize("op", PROJECTIONS)
@pytest.mark.parametrize("op_type", [NORM, RMS_NORM])
def test_a_norm_goes_into_the_projection_behind_it(op: str, op_type: str) -> None:
    graph = Graph()
    norm(graph, op_type=op_type)
    project(graph, op=op)
    step = only(graph.fused("y"))
    assert (step.op, step.name, step.nodes) == (op, "/y", ["/y", "/normed"])
    third = "up.W" if "Gated" in op else ""
    assert (step.reads, step.writes) == (["x", "y.W", third, "w"], ["y"])
    assert step.attributes["norm_epsilon"] == 0.25


def test_a_norm_goes_in_beside_a_bias() -> None:
    graph = Graph()
    norm(graph)
    graph.step("Add", [graph.projection("normed", "product"), graph.weight("b", N)], "y")
    step = only(graph.fused("y"))
    assert (step.reads, step.writes) == (["x", "product.W", "b", "w"], ["y"])
    assert step.nodes == ["/product", "/y", "/normed"]


def test_a_norm_goes_into_a_gated_mlp_that_was_made_before() -> None:
    graph = Graph()
    norm(graph)
    for name in ("gate", "up"):
        graph.projection("normed", name)
    activated = graph.node("Gelu", ["gate"], "activated", approximate="tanh")
    graph.node("Mul", [activated, "up"], "y")
    step = only(graph.fused("y"))
    assert (step.op, step.reads) == ("Q4NXGatedMLP", ["x", "gate.W", "up.W", "w"])


@pytest.mark.parametrize(("op_type", "epsilon"), [(NORM, 1e-5), (SKIP_NORM, 1e-12)])
def test_epsilon_left_out_is_the_operators_own(op_type: str, epsilon: float) -> None:
    graph = Graph()
    skip_norm(graph) if op_type == SKIP_NORM else norm(graph)
    del graph.nodes[0]["attributes"]["epsilon"]
    project(graph)
    assert only(graph.fused("y")).attributes["norm_epsilon"] == pytest.approx(epsilon)


def test_a_norm_that_several_projections_read_stays() -> None:
    graph = Graph()
    norm(graph)
    for name in "qkv":
        graph.projection("normed", name)
    steps = graph.fused(*"qkv")
    assert ops(steps) == ["RMSNorm", *["Q4NXMatMul"] * 3]
    assert [step.reads[0] for step in steps] == ["x", *["normed"] * 3]


def test_a_norm_that_is_wanted_stays() -> None:
    graph = Graph()
    norm(graph)
    project(graph)
    assert ops(graph.fused("y", "normed")) == ["RMSNorm", "Q4NXMatMul"]


def test_a_norm_behind_a_norm_stays() -> None:
    graph = Graph()
    norm(graph)
    norm(graph, "normed", "twice")
    project(graph, "twice")
    steps = graph.fused("y")
    assert ops(steps) == ["RMSNorm", "Q4NXMatMul"]
    assert steps[1].reads == ["normed", "y.W", "", "w"]


def test_a_norm_stays_before_a_projection_that_has_one() -> None:
    graph = Graph()
    norm(graph)
    graph.projection("normed", "y", "", graph.weight("v", K))
    assert ops(graph.fused("y")) == ["RMSNorm", "Q4NXMatMul"]


@pytest.mark.parametrize("position", [2, 4])
def test_a_norm_that_a_projection_adds_stays(position: int) -> None:
    graph = Graph()
    norm(graph)
    graph.value("total", ROWS)
    inputs = ["r", graph.weight("W", 2, 1, 5120, type=2), "", "", ""]
    inputs[position] = "normed"
    graph.step("Q4NXMatMul", inputs, "y", "total", K=K, N=N)
    assert ops(graph.fused("y")) == ["RMSNorm", "Q4NXMatMul"]


def test_a_norm_before_a_residual_without_one_stays() -> None:
    graph = Graph()
    norm(graph)
    graph.projection("normed", "y", "", "", "r")
    assert ops(graph.fused("y")) == ["RMSNorm", "Q4NXMatMul"]


def test_a_norm_of_other_rows_than_the_projections_stays() -> None:
    graph = Graph()
    graph.weight("w", K + 1)
    norm(graph)
    project(graph)
    assert ops(graph.fused("y")) == ["RMSNorm", "Q4NXMatMul"]


@pytest.mark.parametrize(
    "change",
    [{"axis": 1}, {"stash_type": 10}, {"outputs": ["normed", "mean"]}, {"inputs": ["x", "w", "b"]}],
)
def test_a_norm_of_another_kind_stays(change: dict[str, Any]) -> None:
    graph = Graph()
    norm(graph)
    graph.weight("b", K)
    graph.value("mean", None)
    for key, value in change.items():
        if key in graph.nodes[0]:
            graph.nodes[0][key] = value
        else:
            graph.nodes[0]["attributes"][key] = value
    project(graph)
    assert ops(graph.fused("y", "mean")) == ["", "Q4NXMatMul"]


def test_a_weight_of_another_type_keeps_the_norm() -> None:
    for type in (FLOAT16, 0):
        graph = Graph()
        graph.weight("w", K, type=type)
        norm(graph)
        project(graph)
        assert ops(graph.fused("y")) == ["", "Q4NXMatMul"]


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((3, K), f"(3, {K})"),
        ((1,), "(1)"),
        ((), "()"),
        (("rows", None), "(rows, ?)"),
        (None, "of unknown shape"),
    ],
)
def test_a_weight_that_is_broadcast_keeps_the_norm(shape: Any, words: str) -> None:
    graph = Graph()
    graph.value("w", shape)
    norm(graph, op_type=RMS_NORM)
    project(graph)
    left, projection = graph.fused("y")
    assert (left.op, projection.reads) == ("", ["normed", "y.W"])
    assert left.why_not.startswith(f"its scale is {words}; ")


# --- with the residual ----------------------------------------------------------------------------


@pytest.mark.parametrize("op", PROJECTIONS)
@pytest.mark.parametrize("wanted", ["output", "nodes", "nobody"])
@pytest.mark.parametrize("kind", ["skip norm", "addition", "step"])
def test_a_residual_goes_in_and_the_sum_comes_out(op: str, wanted: str, kind: str) -> None:
    graph = Graph()
    if kind == "skip norm":
        skip_norm(graph)
    else:
        add(graph)
        if kind == "step":
            graph.nodes[-1] |= {"domain": "aie", "attributes": {"format": 1}}
        norm(graph, "total")
    outputs = ["y"]
    if wanted == "output":
        outputs.append("total")
    if wanted == "nodes":  # they come before the projection that gives the sum
        outputs += [graph.node("Neg", ["total"], "again"), graph.node("Abs", ["total"], "size")]
    project(graph, op=op)
    step, *rest = graph.fused(*outputs)
    third = "up.W" if "Gated" in op else ""
    assert step.reads == ["x", "y.W", third, "w", "r"]
    assert step.writes == (["y", "total"] if wanted != "nobody" else ["y"])
    assert step.nodes == ["/y", "/normed", *(["/total"] if kind != "skip norm" else [])]
    assert [item.name for item in rest] == (["/again", "/size"] if wanted == "nodes" else [])


@pytest.mark.parametrize("total", ["", "total"])
def test_a_sum_that_nobody_reads_is_not_written(total: str) -> None:
    graph = Graph()
    skip_norm(graph, total)
    project(graph)
    step = only(graph.fused("y"))
    assert step.reads == ["x", "y.W", "", "w", "r"]
    assert step.writes == ["y"]


@pytest.mark.parametrize("total", ["", "total"])
def test_a_sum_that_nobody_reads_of_a_norm_by_itself_is_not_written(total: str) -> None:
    graph = Graph()
    skip_norm(graph, total)
    assert only(graph.fused("normed")).writes == ["normed"]


def test_a_sum_of_a_value_with_itself_goes_in() -> None:
    graph = Graph()
    add(graph, "x", "x")
    project(graph, norm(graph, "total"))
    assert only(graph.fused("y")).reads == ["x", "y.W", "", "w", "x"]


def test_the_first_of_two_norms_gives_the_sum_that_the_other_reads() -> None:
    graph = Graph()
    add(graph)
    for name in "ab":
        graph.projection(norm(graph, "total", f"normed {name}"), name)
    first, second = graph.fused("a", "b")
    assert (first.reads, first.writes) == (["x", "a.W", "", "w", "r"], ["a", "total"])
    assert (second.reads, second.writes) == (["total", "b.W", "", "w"], ["b"])


def test_layers_hand_their_sums_on() -> None:
    graph = Graph()
    for name in ("sum 1", "sum 2", "normed 1", "normed 2"):
        graph.value(name, ROWS)
    graph.node("Add", ["x", "r"], "sum 1")
    graph.projection(norm(graph, "sum 1", "normed 1"), "y", n=K)
    graph.node("Add", ["sum 1", "y"], "sum 2")
    graph.projection(norm(graph, "sum 2", "normed 2"), "z", n=K)
    first, second = graph.fused("z", "sum 2")
    assert (first.reads, first.writes) == (["x", "y.W", "", "w", "r"], ["y", "sum 1"])
    assert (second.reads, second.writes) == (["sum 1", "z.W", "", "w", "y"], ["z", "sum 2"])


def test_an_addition_stays_where_its_norm_does() -> None:
    graph = Graph()
    add(graph)
    norm(graph, "total")
    for name in "qk":
        graph.projection("normed", name)
    assert ops(graph.fused("q", "k")) == ["Add", "RMSNorm", "Q4NXMatMul", "Q4NXMatMul"]


@pytest.mark.parametrize(
    ("shape", "left"),
    [((K,), "Add"), ((1,), "Add"), (("batch", None, K), ""), (("batch", 1, K), ""), (None, "")],
    ids=["row", "one value", "unknown", "broadcast", "unknown rank"],
)
@pytest.mark.parametrize("swap", [False, True])
def test_an_addition_that_may_broadcast_stays_before_the_norm(
    shape: Any, left: str, swap: bool
) -> None:
    graph = Graph()
    graph.value("other", shape)
    add(graph, *(("other", "x") if swap else ("x", "other")))
    project(graph, norm(graph, "total"))
    steps = graph.fused("y")
    assert ops(steps) == [left, "Q4NXMatMul"]
    assert steps[1].reads == ["total", "y.W", "", "w"]


@pytest.mark.parametrize("shape", [None, (1, "sequence", K), (None, "sequence", K)])
def test_a_residual_that_may_be_broadcast_keeps_the_norm(shape: Any) -> None:
    graph = Graph()
    skip_norm(graph)
    project(graph)
    graph.values["r"]["shape"] = shape and list(shape)
    assert ops(graph.fused("y")) == ["", "Q4NXMatMul"]


# Otherwise a projection would read a value computed from its own output.
@pytest.mark.parametrize("input", ["scale", "bias"])
def test_an_addition_that_another_input_is_made_of_stays(input: str) -> None:
    graph = Graph()
    graph.node("ReduceMax", [add(graph)], graph.value("made", [K if input == "scale" else N]))
    graph.value("w", [K]) if input == "bias" else graph.node("Abs", ["made"], graph.value("w", [K]))
    norm(graph, "total")
    graph.projection("normed", "y", *(["made"] if input == "bias" else []))
    steps = graph.fused("y")
    assert ops(steps) == (
        ["Add", "", "Q4NXMatMul"] if input == "bias" else ["Add", "", "", "Q4NXMatMul"]
    )
    assert (steps[-1].reads[0], steps[-1].reads[3]) == ("total", "w")


def test_a_norm_whose_sum_another_input_is_made_of_stays() -> None:
    graph = Graph()
    skip_norm(graph)
    graph.node("ReduceMax", ["total"], graph.value("made", [N]))
    graph.projection("normed", "y", "made")
    assert ops(graph.fused("y")) == ["RMSNorm", "", "Q4NXMatMul"]


def test_a_bias_that_is_computed_before_the_sum_does_not_matter() -> None:
    for wanted in (["y"], ["y", "made"]):
        graph = Graph()
        graph.node("ReduceMax", ["r"], graph.value("made", [N]))
        skip_norm(graph)
        graph.projection("normed", "y", "made")
        assert ops(graph.fused(*wanted)) == ["", "Q4NXMatMul"]
