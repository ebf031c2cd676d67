"""Gate, up, activation and multiplication: what becomes one gated projection."""

from __future__ import annotations

from typing import Any

import pytest
from step_graphs import INT64, Graph, K, N, ops

GATED = {"Q4NXMatMul": "Q4NXGatedMLP", "GEMM": "GatedGEMM"}
# Nodes of activations -> the step's name for them.
ACTIVATIONS = {
    "SiLU": "silu",
    "SiLU swapped": "silu",
    "QuickGelu": "silu",
    "Gelu": "gelu_tanh",
    "FastGelu": "gelu_tanh",
}


def activate(graph: Graph, kind: str, gate: str = "gate") -> str:
    if kind.startswith("SiLU"):
        factors = [gate, graph.node("Sigmoid", [gate], "sigmoid")]
        return graph.node("Mul", factors[::-1] if "swapped" in kind else factors, "activated")
    domain = "" if kind == "Gelu" else "com.microsoft"
    attributes: dict[str, Any] = {"Gelu": {"approximate": "tanh"}, "QuickGelu": {"alpha": 1.0}}
    return graph.node(kind, [gate], "activated", domain=domain, **attributes.get(kind, {}))


def multiply(graph: Graph, kind: str = "SiLU", swap: bool = False, up: str = "up") -> str:
    factors = [activate(graph, kind), up]
    return graph.node("Mul", factors[::-1] if swap else factors, "y")


def mlp(graph: Graph, kind: str = "SiLU", swap: bool = False, **projection: Any) -> str:
    for name in ("gate", "up"):
        graph.projection("x", name, **projection)
    return multiply(graph, kind, swap)


# --- two projections ------------------------------------------------------------------------------


@pytest.mark.parametrize("op", GATED)
@pytest.mark.parametrize(("kind", "activation"), ACTIVATIONS.items())
@pytest.mark.parametrize("swap", [False, True])
def test_a_gated_mlp_becomes_one_step(op: str, kind: str, activation: str, swap: bool) -> None:
    graph = Graph()
    mlp(graph, kind, swap, op=op)
    (step,) = graph.fused("y")
    assert (step.op, step.name) == (GATED[op], "/y")
    assert (step.reads, step.writes) == (["x", "gate.W", "up.W"], ["y"])
    inside = ["/sigmoid"] if kind.startswith("SiLU") else []
    assert sorted(step.nodes) == sorted(["/gate", "/up", *inside, "/activated", "/y"])
    given = {"accuracy_level": 4, "symmetric": 1} if op == "Q4NXMatMul" else {}
    expected = {"K": K, "N": N, "format": 1, "activation": activation}
    assert step.attributes == expected | given


def test_a_gated_mlp_becomes_one_step_where_the_rows_are_not_known() -> None:
    graph = Graph()
    for name in ("gate", "up", "sigmoid", "activated", "y"):
        graph.value(name, None)
    mlp(graph)
    assert ops(graph.fused("y")) == ["Q4NXGatedMLP"]


def test_gate_and_up_are_symmetric_where_both_are() -> None:
    graph = Graph()
    graph.projection("x", "gate", symmetric=1)
    graph.projection("x", "up", symmetric=0)
    multiply(graph)
    (step,) = graph.fused("y")
    assert step.attributes["symmetric"] == 0


@pytest.mark.parametrize("wanted", ["gate", "up", "sigmoid", "activated"])
def test_a_gated_mlp_whose_inside_is_wanted_stays_in_parts(wanted: str) -> None:
    graph = Graph()
    mlp(graph)
    assert "Q4NXGatedMLP" not in ops(graph.fused("y", wanted))


@pytest.mark.parametrize("read", ["gate", "up", "sigmoid", "activated"])
@pytest.mark.parametrize("kind", ["SiLU", "Gelu"])
def test_a_gated_mlp_whose_inside_is_read_stays_in_parts(read: str, kind: str) -> None:
    graph = Graph()
    mlp(graph, kind)
    if read in graph.values:
        graph.node("Neg", [read], "z")
        assert "Q4NXGatedMLP" not in ops(graph.fused("y", "z"))


@pytest.mark.parametrize(
    "difference",
    [{"a": "r"}, {"accuracy_level": 0}, {"bits": 2}, {"n": 1}, {"op": "GEMM"}],
    ids=["input", "level", "bits", "N", "form"],
)
def test_projections_that_differ_are_not_a_gated_mlp(difference: dict[str, Any]) -> None:
    graph = Graph()
    graph.projection("x", "gate")
    a = difference.pop("a", "x")
    graph.projection(a, "up", **difference)
    multiply(graph)
    steps = graph.fused("y")
    assert "Q4NXGatedMLP" not in ops(steps)
    assert [step.name for step in steps if step.apart] == ["/y"] * ("bits" in difference)


def test_bits_that_are_left_out_are_four() -> None:
    graph = Graph()
    graph.projection("x", "gate", bits=4)
    graph.projection("x", "up")
    multiply(graph)
    assert ops(graph.fused("y")) == ["Q4NXGatedMLP"]


@pytest.mark.parametrize("which", ["gate", "up"])
@pytest.mark.parametrize("inside", [False, True])
def test_a_gated_mlp_with_a_bias_stays_in_parts(which: str, inside: bool) -> None:
    graph = Graph()
    for name in ("gate", "up"):
        bias = [graph.weight("b", N)] if name == which else []
        if inside or not bias:
            graph.projection("x", name, *bias)
        else:
            graph.step("Add", [graph.projection("x", "product"), *bias], name)
    multiply(graph)
    assert ops(graph.fused("y")) == ["Q4NXMatMul", "Q4NXMatMul", "Activation", "Mul", "Mul"]


def test_projections_with_a_norm_in_them_are_not_a_gated_mlp() -> None:
    graph = Graph()
    norm = ["", graph.weight("w", K)]
    graph.projection("x", "gate", *norm)
    graph.projection("x", "up", *norm)
    multiply(graph)
    assert "Q4NXGatedMLP" not in ops(graph.fused("y"))


@pytest.mark.parametrize(
    ("op_type", "domain", "attributes"),
    [
        ("Gelu", "", {}),
        ("Gelu", "com.microsoft", {}),
        ("QuickGelu", "com.microsoft", {"alpha": 1.702}),
        ("Sigmoid", "", {}),
        ("Tanh", "", {}),
    ],
)
def test_other_activations_stay_in_parts(
    op_type: str, domain: str, attributes: dict[str, Any]
) -> None:
    graph = Graph()
    for name in ("gate", "up"):
        graph.projection("x", name)
    activated = graph.node(op_type, ["gate"], "activated", domain=domain, **attributes)
    graph.node("Mul", [activated, "up"], "y")
    assert "Q4NXGatedMLP" not in ops(graph.fused("y"))


def test_a_fast_gelu_with_a_bias_stays_in_parts() -> None:
    graph = Graph()
    for name in ("gate", "up"):
        graph.projection("x", name)
    graph.node("FastGelu", ["gate", graph.weight("b", N)], "activated", domain="com.microsoft")
    graph.node("Mul", ["activated", "up"], "y")
    assert "Q4NXGatedMLP" not in ops(graph.fused("y"))


def test_the_sigmoid_of_another_value_is_not_an_activation() -> None:
    graph = Graph()
    for name in ("gate", "up", "third"):
        graph.projection("x", name)
    sigmoid = graph.node("Sigmoid", ["third"], "sigmoid")
    graph.node("Mul", ["gate", sigmoid], "activated")
    graph.node("Mul", ["activated", "up"], "y")
    assert "Q4NXGatedMLP" not in ops(graph.fused("y"))


def test_an_activation_times_its_own_gate_is_not_a_gated_mlp() -> None:
    graph = Graph()
    graph.projection("x", "gate")
    multiply(graph, "Gelu", up="gate")
    assert "Q4NXGatedMLP" not in ops(graph.fused("y"))


def test_of_two_gated_mlps_each_becomes_a_step() -> None:
    graph = Graph()
    for layer, a in enumerate(("x", "r")):
        gate, up = (graph.projection(a, f"{layer}.{name}") for name in ("gate", "up"))
        graph.node("Mul", [gate, graph.node("Sigmoid", [gate], f"{layer}.s")], f"{layer}.a")
        graph.node("Mul", [up, f"{layer}.a"], f"{layer}.y")
    assert [step.reads for step in graph.fused("0.y", "1.y")] == [
        ["x", "0.gate.W", "0.up.W"],
        ["r", "1.gate.W", "1.up.W"],
    ]


# --- gate and up in one tensor --------------------------------------------------------------------


def packed_mlp(
    graph: Graph, kind: str = "SiLU", swap: bool = False, *others: str, n: int = 2 * N,
    sizes: list[int] | None = None, halves: tuple[str, ...] = ("gate", "up"), axis: int = -1,
    split: dict[str, Any] | None = None, **projection: Any,
) -> None:  # fmt: skip
    both = [graph.projection("x", "both", *others, n=n, **projection)]
    if sizes is not None:
        both.append(graph.sizes("sizes", *sizes))
    graph.node("Split", both, *halves, axis=axis, **(split or {}))
    multiply(graph, kind, swap)


@pytest.mark.parametrize("op", GATED)
@pytest.mark.parametrize(("kind", "activation"), ACTIVATIONS.items())
@pytest.mark.parametrize("swap", [False, True])
def test_gate_and_up_in_one_tensor_become_one_step(
    op: str, kind: str, activation: str, swap: bool
) -> None:
    graph = Graph()
    packed_mlp(graph, kind, swap, op=op)
    (step,) = graph.fused("y")
    assert (step.op, step.name) == (GATED[op], "/y")
    assert (step.reads, step.writes) == (["x", "both.W"], ["y"])
    inside = ["/sigmoid"] if kind.startswith("SiLU") else []
    assert sorted(step.nodes) == sorted(["/both", "/gate", *inside, "/activated", "/y"])
    assert (step.attributes["N"], step.attributes["activation"]) == (N, activation)


@pytest.mark.parametrize(
    "options",
    [{"sizes": [N, N]}, {"split": {"split": [N, N]}}, {"axis": 2}, {"split": {"num_outputs": 2}}],
    ids=["input", "attribute", "axis from the left", "number"],
)
def test_halves_that_are_spelled_out_are_halves(options: dict[str, Any]) -> None:
    graph = Graph()
    packed_mlp(graph, **options)
    assert ops(graph.fused("y")) == ["Q4NXGatedMLP"]


def test_a_split_of_unknown_rank_counts_from_the_right() -> None:
    for axis, fused in ((-1, True), (2, False)):
        graph = Graph()
        graph.value("x", None)
        graph.value("both", None)
        packed_mlp(graph, axis=axis)
        assert ("Q4NXGatedMLP" in ops(graph.fused("y"))) is fused


@pytest.mark.parametrize(
    "options",
    [
        {"axis": 1},
        {"sizes": [32, 2 * N - 32]},
        {"sizes": [N, N, 0]},
        {"split": {"split": [32, 2 * N - 32]}},
        {"halves": ("up", "gate")},
        {"halves": ("gate", "up", "rest")},
        # Up would begin inside a block of 32 rows.
        {"n": 144},
        {"n": 2 * N + 1},
    ],
)
def test_a_split_of_another_kind_stays(options: dict[str, Any]) -> None:
    graph = Graph()
    packed_mlp(graph, **options)
    assert ops(graph.fused("y")) == ["Q4NXMatMul", "", "Activation", "Mul", "Mul"]


def test_a_split_whose_sizes_are_not_at_hand_stays() -> None:
    for constant in (None, True):
        graph = Graph()
        graph.value("sizes", [2], INT64, constant)
        graph.node(
            "Split", [graph.projection("x", "both", n=2 * N), "sizes"], "gate", "up", axis=-1
        )
        multiply(graph)
        assert "Q4NXGatedMLP" not in ops(graph.fused("y"))


def test_packed_gate_and_up_with_a_bias_stay_in_parts() -> None:
    graph = Graph()
    packed_mlp(graph, "SiLU", False, graph.weight("b", 2 * N))
    assert "Q4NXGatedMLP" not in ops(graph.fused("y"))


@pytest.mark.parametrize("wanted", ["both", "gate", "up", "sigmoid", "activated"])
def test_packed_gate_and_up_that_are_wanted_stay_in_parts(wanted: str) -> None:
    graph = Graph()
    packed_mlp(graph)
    assert "Q4NXGatedMLP" not in ops(graph.fused("y", wanted))
