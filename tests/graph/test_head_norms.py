"""Norms of the heads of queries and keys: which become inputs of FlowAttention."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from step_graphs import Graph, Shape, Step, ops

HEADS, KV_HEADS, DIM = 4, 2, 32
WIDTHS = {"q": HEADS * DIM, "k": KV_HEADS * DIM, "v": KV_HEADS * DIM}
SIMPLIFIED = "SimplifiedLayerNormalization"
# Inputs of FlowAttention between the value and the norms' weights.
OTHERS = ["past_key", "past_value", "seqlens_k", "total", "cos", "sin", *[""] * 5]


@dataclass
class Case:
    """Qwen3's attention as the model builder writes it, except for the fields that are changed."""

    norm: str = SIMPLIFIED
    split: tuple[str, ...] = ("q", "k", "v")  # of one packed tensor, or empty for three inputs
    axis: int = -1
    norms: tuple[str, ...] = ("q", "k")
    epsilons: tuple[float, float] = (1e-6, 1e-6)
    per_head: int = DIM  # channels under one norm
    sizes: bool = True  # the Reshape's sizes are known
    known: bool = True  # the shapes of its results
    constant: bool | None = True  # the weights
    skip: bool = False
    heads: int = HEADS
    shapes: dict[str, Shape] = field(default_factory=dict)
    given: tuple[str, ...] = ()  # weights of norms that the attention has already

    def graph(self) -> Graph:
        graph = Graph()
        for name, width in WIDTHS.items():
            graph.value(name, ("batch", "sequence", width))
        if self.split:
            graph.value("qkv", ("batch", "sequence", sum(WIDTHS.values())))
            graph.node("Split", ["qkv"], *self.split, axis=self.axis)
        for name, epsilon in zip("qk", self.epsilons, strict=True):
            if name in self.norms:
                self.add_norm(graph, name, epsilon)
        for name in OTHERS:
            if name:
                graph.value(name, None)
        query, key = (f"{name}_3" if name in self.norms else name for name in "qk")
        weights = [graph.weight(name, DIM) if name else "" for name in self.given]
        graph.step(
            "FlowAttention", [query, key, "v", *OTHERS, *weights], "output", "present_key",
            "present_value", num_heads=self.heads, kv_num_heads=KV_HEADS, do_rotary=1,
        )  # fmt: skip
        for name, shape in self.shapes.items():
            graph.values[name]["shape"] = shape and list(shape)
        return graph

    def add_norm(self, graph: Graph, name: str, epsilon: float) -> None:
        rows = ("batch", f"{name} rows", self.per_head) if self.known else None
        for step, shape in ((1, rows), (2, rows), (3, ("batch", "sequence", WIDTHS[name]))):
            graph.value(f"{name}_{step}", shape)
        if self.sizes:
            graph.sizes(f"{name}.heads", 0, -1, self.per_head)
        else:
            graph.value(f"{name}.heads", [3])
        graph.sizes(f"{name}.flat", 0, -1, WIDTHS[name])
        weight = graph.value(f"{name}.weight", [self.per_head], constant=self.constant)
        graph.node("Reshape", [name, f"{name}.heads"], f"{name}_1")
        if self.skip:
            graph.node("SkipSimplifiedLayerNormalization", [f"{name}_1", f"{name}_1", weight],
                       f"{name}_2", domain="com.microsoft", epsilon=epsilon)  # fmt: skip
        else:
            graph.node(self.norm, [f"{name}_1", weight], f"{name}_2", epsilon=epsilon)
        graph.node("Reshape", [f"{name}_2", f"{name}.flat"], f"{name}_3")

    def fused(self, *wanted: str) -> list[Step]:
        return self.graph().fused("output", "present_key", "present_value", *wanted)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("norm", [SIMPLIFIED, "RMSNormalization"])
def test_both_norms_go_into_attention(packed: bool, norm: str) -> None:
    split = ("q", "k", "v") if packed else ()
    (step,) = Case(norm, split, epsilons=(0.25, 0.25)).fused()
    assert (step.op, step.name) == ("FlowAttention", "/output")
    parts = ["qkv", "", ""] if packed else ["q", "k", "v"]
    assert step.reads == [*parts, *OTHERS, "q.weight", "k.weight"]
    assert step.writes == ["output", "present_key", "present_value"]
    assert step.attributes == {
        "format": 1, "num_heads": HEADS, "kv_num_heads": KV_HEADS, "do_rotary": 1,
        "qk_norm_epsilon": 0.25,
    }  # fmt: skip
    names = [f"/{name}_{step}" for name in "qk" for step in (1, 2, 3)]
    assert sorted(step.nodes) == sorted(["/output", *names, *(["/q"] if packed else [])])


@pytest.mark.parametrize(("sizes", "known"), [(True, False), (False, True)])
def test_the_width_of_a_head_is_a_size_or_a_shape(sizes: bool, known: bool) -> None:
    assert ops(Case(sizes=sizes, known=known).fused()) == ["FlowAttention"]


@pytest.mark.parametrize(
    "case",
    [
        Case(norms=("q",)),
        Case(norms=("k",)),
        Case(epsilons=(1e-6, 1e-3)),
        Case(per_head=DIM // 2),  # the norm of half a head
        Case(per_head=2 * DIM),  # and of two at once
        Case(sizes=False, known=False),
        Case(constant=None),
        Case(skip=True),
        Case(heads=HEADS + 1),
        Case(heads=2**62),
        Case(shapes={"q": None}),
        Case(shapes={"q": (None, "sequence", WIDTHS["q"]),
                     "q_3": (None, "sequence", WIDTHS["q"])}),
        Case(shapes={"k_3": ("batch", "other", WIDTHS["k"])}),
        Case(shapes={"q": (WIDTHS["q"],), "q_3": (WIDTHS["q"],)}),
        Case(given=("q.norm", "k.norm")),
        Case(given=("", "k.norm")),
    ],
    ids=["query alone", "key alone", "two epsilons", "half heads", "two heads", "unknown head",
         "computed weight", "skip", "other heads", "countless heads", "unknown shape",
         "unknown rows", "other rows", "one row", "given", "one given"],
)  # fmt: skip
def test_other_norms_stay(case: Case) -> None:
    steps = case.fused()
    assert ops(steps).count("RMSNorm") == len(case.norms)
    assert "FlowAttention" in ops(steps)


@pytest.mark.parametrize("wanted", [f"{name}_{step}" for name in "qk" for step in (1, 2, 3)])
def test_norms_whose_inside_is_wanted_stay(wanted: str) -> None:
    assert ops(Case().fused(wanted)).count("RMSNorm") == 2


@pytest.mark.parametrize("place", [f"q_{step}" for step in (1, 2, 3)])
def test_a_node_on_the_way_keeps_the_norms(place: str) -> None:
    graph = Case().graph()
    graph.value("clipped", graph.values[place]["shape"])
    for node in graph.nodes:
        node["inputs"] = ["clipped" if name == place else name for name in node["inputs"]]
    graph.node("Clip", [place], "clipped")
    after = next(i for i, node in enumerate(graph.nodes) if place in node["outputs"]) + 1
    graph.nodes.insert(after, graph.nodes.pop())
    assert ops(graph.fused("output")).count("RMSNorm") == 2


@pytest.mark.parametrize("wanted", ["q", "k", "v"])
def test_a_split_whose_parts_are_wanted_stays(wanted: str) -> None:
    split, attention = Case().fused(wanted)
    assert (split.name, attention.op) == ("/q", "FlowAttention")
    assert attention.reads[:3] == ["q", "k", "v"]


@pytest.mark.parametrize(
    "case",
    [Case(split=("k", "q", "v")), Case(split=("q", "k", "v", "rest")), Case(axis=1)],
    ids=["order", "four parts", "axis"],
)
def test_a_split_of_another_kind_stays(case: Case) -> None:
    split, attention = case.fused()
    assert (split.op, attention.op) == ("", "FlowAttention")
    assert attention.reads[-2:] == ["q.weight", "k.weight"]


def test_a_split_along_the_third_dimension_goes_in() -> None:
    assert ops(Case(axis=2).fused()) == ["FlowAttention"]


def test_numbers_that_an_exporter_wrote_as_names_are_computed() -> None:
    """mobius-onnx declares q after the norm as ("batch", "sequence", "128")."""
    names: dict[str, Shape] = {}
    for name, heads in (("q", HEADS), ("k", KV_HEADS)):
        for step in (1, 2):
            names[f"{name}_{step}"] = ("batch", "sequence", str(heads), DIM)
        names[f"{name}_3"] = ("batch", "sequence", str(heads * DIM))
    graph = Case(split=(), shapes=names).graph()
    for name in "qk":
        graph.sizes(f"{name}.heads", 0, 0, -1, DIM)
        graph.sizes(f"{name}.flat", 0, 0, -1)
    (step,) = graph.fused("output", "present_key", "present_value")
    assert step.reads[:3] == ["q", "k", "v"]
