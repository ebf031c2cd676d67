"""Rotations of queries and keys before an attention: which become inputs of FlowAttention."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from step_graphs import FLOAT, FLOAT16, INT64, Graph, Shape, Step, ops

HEADS, KV_HEADS, DIM = 4, 2, 32
WIDTHS = {"q": HEADS * DIM, "k": KV_HEADS * DIM, "v": KV_HEADS * DIM}
COUNTS = {"q": HEADS, "k": KV_HEADS}
MICROSOFT = "com.microsoft"
EPSILON = 0.25
MIXED = {"op": "MRotaryEmbedding", "attributes": {"mrope_section": [4, 7, 5], "mrope_layout": 1},
         "positions": (3, "batch", "sequence")}  # fmt: skip


@dataclass
class Case:
    """Gemma 4's attention as the model builder writes it, except for the fields that are changed.

    `chain` is what is done to queries and keys, and `values` to values.
    """

    op: str = "RotaryEmbedding"
    domain: str = MICROSOFT
    chain: tuple[str, ...] = ("norm", "rotary")
    values: bool = True
    split: bool = True
    numbered: bool = False  # num_heads is given
    pairs: int = DIM // 2
    positions: Shape = ("batch", "sequence")
    positions_type: int = INT64
    table_type: int = FLOAT
    attributes: dict[str, Any] = field(default_factory=dict)
    of_keys: dict[str, Any] = field(default_factory=dict)  # attributes of the keys' rotation alone
    keys_by: str = "ids"
    rotated: str = "qk"
    of_values: float = EPSILON
    given: dict[str, Any] = field(default_factory=dict)  # attributes of the attention
    width: int | None = WIDTHS["q"]

    def graph(self) -> Graph:
        graph = Graph()
        for name, width in WIDTHS.items():
            graph.value(name, ("batch", "sequence", width))
        graph.values["q"]["shape"][-1] = self.width
        if self.split:
            graph.value("qkv", ("batch", "sequence", sum(WIDTHS.values())))
            graph.node("Split", ["qkv"], "q", "k", "v", axis=-1)
        for name in ("cos", "sin"):
            graph.value(name, (64, self.pairs), self.table_type, True)
        for name in ("ids", "other ids"):
            graph.value(name, self.positions, self.positions_type)
        ends = {name: self.chained(graph, name) for name in "qk"}
        ends["v"] = self.norm(graph, "v", "v", self.of_values) if self.values else "v"
        others = ["past_key", "past_value", "seqlens_k", "total"]
        for name in others:
            graph.value(name, None)
        graph.step("FlowAttention", [*ends.values(), *others], "output", "present_key",
                   "present_value", num_heads=HEADS, kv_num_heads=KV_HEADS,
                   **self.given)  # fmt: skip
        return graph

    def chained(self, graph: Graph, name: str) -> str:
        at = name
        for step in self.chain:
            if step == "norm":
                at = self.norm(graph, name, at, EPSILON)
            elif name in self.rotated:
                at = self.rotate(graph, name, at)
        return at

    def norm(self, graph: Graph, name: str, at: str, epsilon: float) -> str:
        rows = ("batch", f"{name} rows", DIM)
        for step, shape in ((1, rows), (2, rows), (3, ("batch", "sequence", WIDTHS[name]))):
            graph.value(f"{name}_{step}", shape)
        graph.node("Reshape", [at, graph.sizes(f"{name}.heads", 0, -1, DIM)], f"{name}_1")
        graph.node("SimplifiedLayerNormalization",
                   [f"{name}_1", graph.weight(f"{name}.weight", DIM)], f"{name}_2",
                   epsilon=epsilon)  # fmt: skip
        flat = graph.sizes(f"{name}.flat", 0, -1, WIDTHS[name])
        return graph.node("Reshape", [f"{name}_2", flat], f"{name}_3")

    def rotate(self, graph: Graph, name: str, at: str) -> str:
        graph.value(f"{name}_rotated", graph.values[at]["shape"])
        ids = self.keys_by if name == "k" else "ids"
        tables = ["cos", "sin"]
        inputs = [at, ids, *tables] if self.domain == MICROSOFT else [at, *tables, ids]
        heads = {"num_heads": COUNTS[name]} if self.numbered else {}
        own = self.of_keys if name == "k" else {}
        return graph.node(self.op, inputs, f"{name}_rotated", domain=self.domain,
                          **{**heads, **self.attributes, **own})  # fmt: skip

    def fused(self, *wanted: str) -> list[Step]:
        return self.graph().fused("output", "present_key", "present_value", *wanted)


BEFORE = ["past_key", "past_value", "seqlens_k", "total", "cos", "sin", "ids"]
ROTATED = {"format": 1, "num_heads": HEADS, "kv_num_heads": KV_HEADS, "do_rotary": 1,
           "position_axes": 1}  # fmt: skip


def test_everything_of_gemma_4_between_projection_and_attention_goes_in() -> None:
    (step,) = Case().fused()
    assert step.reads == [
        "qkv", "", "", *BEFORE, *[""] * 4, "q.weight", "k.weight", "", "v.weight",
    ]  # fmt: skip
    assert step.writes == ["output", "present_key", "present_value"]
    assert step.attributes == ROTATED | {"qk_norm_epsilon": EPSILON}
    assert len(step.nodes) == len(Case().graph().nodes)


def test_norms_after_the_rotation_stay_after_it() -> None:
    """As in Hunyuan."""
    (step,) = Case(chain=("rotary", "norm"), values=False).fused()
    assert step.reads[:3] == ["qkv", "", ""]
    assert step.attributes == ROTATED | {"qk_norm_epsilon": EPSILON, "norm_after_rotary": 1}


@pytest.mark.parametrize("place", [14, 15])
def test_a_norm_that_the_attention_has_already_stays_after_the_rotation(place: int) -> None:
    """Of queries and keys, or of either."""
    graph = Case(chain=("rotary",), values=False).graph()
    attention = graph.nodes[-1]
    weights = [""] * (place - len(attention["inputs"])) + [graph.weight("norm", DIM)]
    attention["inputs"] += weights
    (step,) = graph.fused("output", "present_key", "present_value")
    assert step.attributes == ROTATED | {"norm_after_rotary": 1}


@pytest.mark.parametrize(
    "case",
    [
        Case(chain=("rotary",), values=False),
        Case(chain=("rotary",), values=False, numbered=True, pairs=8,
             attributes={"rotary_embedding_dim": 16}),
        Case(chain=("rotary",), values=False, numbered=True, domain=""),
        Case(chain=("rotary",), values=False, attributes={"interleaved": 1}),
        Case(chain=("rotary",), values=False, table_type=FLOAT, split=False),
    ],
    ids=["plain", "a part of each head", "ONNX's", "neighbouring channels", "three inputs"],
)  # fmt: skip
def test_rotations_alone_go_in(case: Case) -> None:
    (step,) = case.fused()
    assert step.reads == [*(["qkv", "", ""] if case.split else ["q", "k", "v"]), *BEFORE]
    interleaved = case.attributes.get("interleaved", 0)
    assert step.attributes == ROTATED | ({"rotary_interleaved": 1} if interleaved else {})


def test_the_three_positions_of_m_rope_go_in() -> None:
    (step,) = Case(chain=("rotary",), values=False, numbered=True, **MIXED).fused()
    assert step.attributes == ROTATED | {
        "position_axes": 3, "mrope_height": 7, "mrope_width": 5, "mrope_interleaved": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    "case",
    [
        Case(rotated="q"),
        Case(rotated="k"),
        Case(keys_by="other ids"),
        Case(of_keys={"interleaved": 1}),
        Case(attributes={"scale": 2.0}),
        Case(attributes={"is_packed_batching": 1}),
        Case(positions=(1,)),
        Case(positions=None),
        Case(positions_type=FLOAT),
        Case(table_type=FLOAT16),
        Case(pairs=8),  # without num_heads, heads of 16 channels
        Case(numbered=True, pairs=8),
        Case(numbered=True, attributes={"rotary_embedding_dim": 16}),
        Case(attributes={"num_heads": 2}),
        Case(given={"do_rotary": 1}),
        Case(chain=("rotary",), width=None),
        Case(numbered=True, **{**MIXED, "attributes": {"mrope_section": [4, 7, 4]}}),
        Case(numbered=True, **{**MIXED, "attributes": {"mrope_section": [20, -7, 3]}}),
        Case(numbered=True, **{**MIXED, "attributes": {}}),
        Case(numbered=True, **{**MIXED, "positions": ("batch", "sequence")}),
    ],
    ids=["query alone", "key alone", "other positions", "other pairs", "scale", "packed batches",
         "an offset", "unknown positions", "positions in float", "another type", "half heads",
         "a narrow table", "a part", "other heads", "rotates already", "unknown width",
         "short sections", "negative sections", "no sections", "one position"],
)  # fmt: skip
def test_other_rotations_stay(case: Case) -> None:
    steps = case.fused()
    names = {name for step in steps if step.op == "" for name in step.nodes}
    assert {f"/{name}_rotated" for name in case.rotated} <= names
    (attention,) = (step for step in steps if step.op == "FlowAttention")
    assert attention.attributes.get("do_rotary", 0) == case.given.get("do_rotary", 0)


@pytest.mark.parametrize("wanted", ["q_rotated", "k_rotated"])
def test_rotated_values_that_are_wanted_keep_both_rotations(wanted: str) -> None:
    names = [step.name for step in Case().fused(wanted) if step.op == ""]
    assert {"/q_rotated", "/k_rotated"} <= set(names)


def test_values_with_a_norm_of_another_epsilon_keep_it() -> None:
    steps = Case(of_values=1e-3).fused()
    assert ops(steps).count("RMSNorm") == 1
    (attention,) = (step for step in steps if step.op == "FlowAttention")
    assert attention.attributes["qk_norm_epsilon"] == EPSILON
    assert attention.reads[2] == "v_3"
