"""Norms of the heads of queries and keys: what becomes part of aie.FlowAttention."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper
from op_models import Array, model_of, onnx_tensor, open_session, run

from ort_aie_ep.graph_passes import run_passes

HEADS, KV_HEADS, DIM = 4, 2, 32
WIDTHS = {"q": HEADS * DIM, "k": KV_HEADS * DIM, "v": KV_HEADS * DIM}
NORM = "SimplifiedLayerNormalization"


@dataclass
class Case:
    """Qwen3's attention as the model builder writes it, except for the fields that are changed."""

    norm: str = NORM
    split: bool = True  # the input is one packed tensor, not three
    norms: tuple[str, ...] = ("q", "k")
    epsilons: tuple[float, float] = (1e-6, 1e-6)
    per_head: int = DIM  # channels under one norm
    outputs: tuple[str, ...] = ("output",)
    attributes: dict[str, Any] = field(default_factory=dict)

    def model(self) -> ir.Model:
        rng = np.random.default_rng(5)
        nodes, initializers = [], {
            "cos": np.cos(np.outer(np.arange(64), np.geomspace(1, 0.01, DIM // 2))),
            "sin": np.sin(np.outer(np.arange(64), np.geomspace(1, 0.01, DIM // 2))),
        }  # fmt: skip
        arrays: dict[str, Array] = {n: a.astype(np.float32) for n, a in initializers.items()}
        typed = {name: ["batch", "sequence", width] for name, width in WIDTHS.items()}
        if self.split:
            arrays["sizes"] = np.array(list(WIDTHS.values()), np.int64)
            nodes.append(helper.make_node("Split", ["qkv", "sizes"], list(WIDTHS), name="/split",
                                          axis=-1))  # fmt: skip
        for name, epsilon in zip("qk", self.epsilons, strict=True):
            if name not in self.norms:
                continue
            arrays |= {
                f"{name}.heads": np.array([0, -1, self.per_head], np.int64),
                f"{name}.flat": np.array([0, -1, WIDTHS[name]], np.int64),
                f"{name}.weight": rng.uniform(0.5, 1.5, self.per_head).astype(np.float32),
            }
            steps = [("Reshape", [name, f"{name}.heads"], f"{name}_1", {}),
                     (self.norm, [f"{name}_1", f"{name}.weight"], f"{name}_2",
                      {"epsilon": epsilon}),
                     ("Reshape", [f"{name}_2", f"{name}.flat"], f"{name}_3", {})]  # fmt: skip
            nodes += [helper.make_node(op, inputs, [output], name=f"/{output}", **attributes)
                      for op, inputs, output, attributes in steps]  # fmt: skip
            typed |= {f"{name}_1": ["batch", f"{name} rows", self.per_head],
                      f"{name}_2": ["batch", f"{name} rows", self.per_head],
                      f"{name}_3": ["batch", "sequence", WIDTHS[name]]}  # fmt: skip
        query, key = (f"{name}_3" if name in self.norms else name for name in "qk")
        nodes.append(helper.make_node(
            "GroupQueryAttention", [query, key, "v", "past_key", "past_value", "seqlens_k", "total",
                                    "cos", "sin"],
            ["output", "present_key", "present_value"], name="/attention", domain="com.microsoft",
            num_heads=HEADS, kv_num_heads=KV_HEADS, do_rotary=1, **self.attributes,
        ))  # fmt: skip
        inputs: dict[str, list[Any]] = {"past_key": [1, KV_HEADS, "past", DIM],
                                        "past_value": [1, KV_HEADS, "past", DIM]}  # fmt: skip
        if self.split:
            inputs["qkv"] = ["batch", "sequence", sum(WIDTHS.values())]
        else:
            inputs |= {name: typed.pop(name) for name in WIDTHS}
        floats = TensorProto.FLOAT
        graph = helper.make_graph(
            nodes,
            "graph",
            [
                *(helper.make_tensor_value_info(n, floats, s) for n, s in inputs.items()),
                helper.make_tensor_value_info("seqlens_k", TensorProto.INT32, [1]),
                helper.make_tensor_value_info("total", TensorProto.INT32, []),
            ],
            [
                helper.make_tensor_value_info(name, floats, None)
                for name in (*self.outputs, "present_key", "present_value")
            ],
            [onnx_tensor(name, array) for name, array in arrays.items()],
            value_info=[
                helper.make_tensor_value_info(name, floats, shape)
                for name, shape in typed.items()
                if name not in self.outputs
            ],
        )
        return ir.from_proto(model_of(graph, 21 if self.norm == NORM else 23))


def results(model: ir.Model, sequence: int, past: int) -> dict[str, Array]:
    rng = np.random.default_rng(3)
    feeds: dict[str, Array | None] = {
        value.name: rng.standard_normal(
            [{"batch": 1, "sequence": sequence, "past": past}.get(str(d), d) for d in value.shape]
        ).astype(np.float32)
        for value in model.graph.inputs
        if value.name and value.shape is not None and value.dtype == ir.DataType.FLOAT
    }
    feeds |= {"seqlens_k": np.array([past + sequence - 1], np.int32),
              "total": np.array(past + sequence, np.int32)}  # fmt: skip
    return run(open_session(ir.to_proto(model).SerializeToString()), feeds)


def rewritten(case: Case) -> ir.Model:
    """The case's model after the passes. Checks that its results are unchanged."""
    for sequence, past in ((9, 0), (1, 9), (4, 5)):
        model = case.model()
        expected = results(model, sequence, past)
        run_passes(model)
        for name, y in results(model, sequence, past).items():
            # Norms, rotation and sums of products of values near 1, in float32 on either side.
            np.testing.assert_allclose(y, expected[name], rtol=0, atol=2e-5)
    return model


def operators(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


def inputs_of(node: ir.Node) -> list[str | None]:
    return [value.name if value else None for value in node.inputs]


@pytest.mark.parametrize("split", [True, False])
@pytest.mark.parametrize("norm", [NORM, "RMSNormalization"])
def test_both_norms_go_into_attention(split: bool, norm: str) -> None:
    (node,) = rewritten(Case(norm, split, epsilons=(1e-3, 1e-3))).graph
    assert (node.domain, node.op_type, node.name) == ("aie", "FlowAttention", "/attention")
    none = "ort_aie.none"
    assert inputs_of(node) == [
        *(["qkv", none, none] if split else ["q", "k", "v"]),
        *["past_key", "past_value", "seqlens_k", "total", "cos", "sin"], *[none] * 5,
        "q.weight", "k.weight",
    ]  # fmt: skip
    assert node.attributes["qk_norm_epsilon"].value == pytest.approx(1e-3)


def test_the_report_names_the_norms_nodes() -> None:
    model = Case().model()
    fused = {o.node for o in run_passes(model).outcomes.values() if o.becomes}
    names = [f"/{name}_{step}" for name in "qk" for step in (1, 2, 3)]
    assert fused == {"/split", "/attention", *names}


def test_without_fusion_the_norms_stay() -> None:
    model = Case().model()
    run_passes(model, fuse=False)
    assert operators(model).count(NORM) == 2


@pytest.mark.parametrize(
    "case",
    [
        Case(norms=("q",)),
        Case(norms=("k",)),
        Case(epsilons=(1e-6, 1e-3)),
        Case(per_head=DIM // 2),  # the norm of half a head
        Case(outputs=("output", "q_3")),
        Case(outputs=("output", "k_2")),
    ],
    ids=["query alone", "key alone", "two epsilons", "half heads", "wanted", "wanted inside"],
)
def test_other_norms_stay(case: Case) -> None:
    model = rewritten(case)
    assert operators(model).count(NORM) == len(case.norms)
    assert "FlowAttention" in operators(model)


def test_a_split_that_somebody_else_reads_stays() -> None:
    model = rewritten(Case(outputs=("output", "v")))
    assert operators(model) == ["Split", "FlowAttention"]


@pytest.mark.parametrize("shape", [None, ir.Shape([None, None, WIDTHS["q"]])])
def test_shapes_that_are_not_known_keep_the_norms(shape: ir.Shape | None) -> None:
    model = Case().model()
    for name in ("/split", "/q_3"):
        model.graph.node(name).outputs[0].shape = shape
    run_passes(model)
    assert operators(model).count(NORM) == 2


@pytest.mark.parametrize("place", ["/split", "/q_1", "/q_2", "/q_3"])
def test_a_clip_on_the_way_stays(place: str) -> None:
    model = Case().model()
    value = model.graph.node(place).outputs[0]
    users = list(value.uses())
    limits = [ir.node("Constant", [], {"value": ir.tensor(np.float32(x))}) for x in (-0.5, 0.5)]
    clip = ir.node("Clip", [value, *(limit.outputs[0] for limit in limits)], name="/clip")
    clip.outputs[0].shape, clip.outputs[0].type = value.shape, value.type
    for node, name in zip((*limits, clip), ("low", "high", "clipped"), strict=True):
        node.outputs[0].name = name
        model.graph.append(node)
    for user, index in users:
        user.replace_input_with(index, clip.outputs[0])
    model.graph.sort()
    expected = results(model, 4, 5)
    run_passes(model)
    for name, y in results(model, 4, 5).items():
        # As in `rewritten`.
        np.testing.assert_allclose(y, expected[name], rtol=0, atol=2e-5)
    assert operators(model).count("Clip") == 1


def test_passes_are_idempotent() -> None:
    model = rewritten(Case())
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    assert list(run_passes(model).outcomes) == []
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before
