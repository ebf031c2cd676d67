"""Nodes around projections: which become part of an aie.* op, and which do not."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from builder_nodes import matmul_nbits, projection_weights
from onnx import helper
from op_models import (
    FLOAT16,
    FLOAT32,
    NEEDS_TWO_BITS,
    ONNX_TYPES,
    Array,
    model_of,
    onnx_tensor,
    open_session,
    run,
)

from ort_aie_ep.formats.q4nx import BlockForm
from ort_aie_ep.graph_passes import Quantising, WeightForm, run_passes

K, N = 96, 64
NORM, SKIP_NORM = "SimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization"
RMS_NORM = "RMSNormalization"
# What projections are in the source (MatMulNBits, or a MatMul that shall become this), and then.
FORMS = [None, WeightForm.BF16]
PROJECTION = {None: "Q4NXMatMul", WeightForm.BF16: "GEMM"}
SYMMETRIC = BlockForm(minima=False)
GATED = {None: "Q4NXGatedMLP", WeightForm.BF16: "GatedGEMM"}
BLOCKS = {None: "B_q4nx", WeightForm.BF16: "weight_bf16"}


@dataclass
class Graph:
    """Nodes and initializers, in order; `x` and `r` (batch, sequence, K) are the inputs."""

    dtype: np.dtype[Any] = FLOAT32
    form: WeightForm | None = None
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: dict[str, Array] = field(default_factory=dict)
    widths: dict[str, int] = field(default_factory=dict)  # the width of values that are not N wide

    def node(self, op_type: str, inputs: list[str], *outputs: str, **attributes: Any) -> str:
        domain = "com.microsoft" if op_type == SKIP_NORM else ""
        self.nodes.append(
            helper.make_node(op_type, inputs, list(outputs), name=f"/{outputs[0]}",
                             domain=domain, **attributes)
        )  # fmt: skip
        return outputs[0]

    def projection(
        self, a: str, y: str, *, bias: bool = False, n: int = N, zero_points: bool = False,
        **attributes: Any,
    ) -> str:  # fmt: skip
        if self.form is not None:
            return self.float_projection(a, y, bias, n)
        weights = projection_weights(
            n, K, dtype=self.dtype, prefix=y, seed=len(self.nodes), zero_points=zero_points,
            bits=attributes.get("bits", 4),
        )  # fmt: skip
        self.initializers |= weights
        self.widths[y] = n
        names = []
        if bias:
            names = ["", "", self.bias(f"{y}.bias", n)]
        self.nodes.append(
            matmul_nbits(a, y, weights, n, K, name=f"/{y}", inputs=names, **attributes)
        )
        return y

    def float_projection(self, a: str, y: str, bias: bool, n: int) -> str:
        weights = np.random.default_rng(len(self.nodes)).standard_normal((K, n)) / np.sqrt(K)
        self.initializers[f"{y}.weight"] = weights.astype(self.dtype)
        self.widths[y] = n
        if bias:
            product = self.float_projection(a, f"{y}.product", False, n)
            return self.node("Add", [product, self.bias(f"{y}.bias", n)], y)
        return self.node("MatMul", [a, f"{y}.weight"], y)

    def bias(self, name: str, n: int = N) -> str:
        self.initializers[name] = np.linspace(-1, 1, n).astype(self.dtype)
        return name

    def weight(self, name: str) -> str:
        self.initializers[name] = np.linspace(0.5, 1.5, K).astype(self.dtype)
        return name

    def model(self, *outputs: str) -> ir.Model:
        """Typed and shaped like the builder's graphs."""
        element = ONNX_TYPES[self.dtype]
        graph = helper.make_graph(
            self.nodes,
            "graph",
            [
                helper.make_tensor_value_info(name, element, ["batch", "sequence", K])
                for name in ("x", "r")
            ],
            [helper.make_tensor_value_info(name, element, None) for name in outputs],
            [onnx_tensor(name, array) for name, array in self.initializers.items()],
            value_info=[
                helper.make_tensor_value_info(
                    name, element, ["batch", "sequence", self.widths.get(name, N)]
                )
                for node in self.nodes
                for name in node.output
                if name and name not in outputs
            ],
        )
        newer = any(node.op_type == RMS_NORM for node in self.nodes)
        return ir.from_proto(model_of(graph, 23 if newer else 21))


def operators(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


def results(model: ir.Model, dtype: np.dtype[Any] = FLOAT32) -> dict[str, Array]:
    rng = np.random.default_rng(7)
    feeds: dict[str, Array | None] = {
        name: rng.standard_normal((1, 3, K)).astype(dtype) for name in ("x", "r")
    }
    return run(open_session(ir.to_proto(model).SerializeToString()), feeds)


def assert_same_results(graph: Graph, *outputs: str) -> ir.Model:
    """Rewrites the graph's model; its results must equal those of the separate nodes."""
    model = graph.model(*outputs)
    expected = results(model, graph.dtype)
    run_passes(model, quantize=graph.form and Quantising(graph.form))
    actual = results(model, graph.dtype)
    # int8 activations (1/127 of the largest of 32), bfloat16 scales, and the type's roundings; or
    # both operands in bfloat16 (2^-9 each), in two products that are multiplied, one scaled by a
    # slope of at most 1.13: independent errors, relative to the norm of the whole result.
    bound = 0.03 if graph.form is None else 2.0**-6
    for name, y in expected.items():
        error = np.linalg.norm((actual[name] - y).astype(np.float64))
        assert error <= bound * np.linalg.norm(y.astype(np.float64)), name
    return model


def mlp(graph: Graph, a: str, activation: str, *, swap: tuple[bool, bool] = (False, False)) -> str:
    gate, up = graph.projection(a, "gate"), graph.projection(a, "up")
    if activation == "silu":
        inputs = [gate, graph.node("Sigmoid", [gate], "sigmoid")]
        activated = graph.node("Mul", inputs[::-1] if swap[0] else inputs, "activated")
    else:
        activated = graph.node("Gelu", [gate], "activated", approximate="tanh")
    inputs = [activated, up]
    return graph.node("Mul", inputs[::-1] if swap[1] else inputs, "y")


# --- gated MLP ------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16])
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("swap", [(False, False), (True, False), (False, True), (True, True)])
def test_a_gated_mlp_becomes_one_node(
    form: WeightForm | None, dtype: np.dtype[Any], activation: str, swap: tuple[bool, bool]
) -> None:
    graph = Graph(dtype, form)
    mlp(graph, "x", activation, swap=swap)
    model = assert_same_results(graph, "y")
    (node,) = model.graph
    assert (node.domain, node.op_type, node.name) == ("aie", GATED[form], "/y")
    values = {name: attribute.value for name, attribute in node.attributes.items()}
    given = {"format": 1}
    if form is None:
        given = {"accuracy_level": 4, "symmetric": 1} | SYMMETRIC.attributes()
    assert values == {"K": K, "N": N, "activation": activation} | given
    names = [value.name if value else None for value in node.inputs]
    assert names == ["x", f"gate.{BLOCKS[form]}", f"up.{BLOCKS[form]}"]


@pytest.mark.parametrize("form", FORMS)
def test_the_report_names_every_node_of_a_gated_mlp(form: WeightForm | None) -> None:
    graph = Graph(form=form)
    mlp(graph, "x", "silu")
    report = run_passes(graph.model("y"), quantize=form and Quantising(form))
    becomes, projection = f"aie.{GATED[form]}", "MatMulNBits" if form is None else "MatMul"
    assert {o.node: (o.op_type, o.becomes) for o in report.outcomes.values()} == {
        "/gate": (projection, becomes),
        "/up": (projection, becomes),
        "/sigmoid": ("Sigmoid", becomes),
        "/activated": ("Mul", becomes),
        "/y": ("Mul", becomes),
    }


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("which", ["gate", "up"])
def test_a_gated_mlp_with_a_bias_stays_in_parts(form: WeightForm | None, which: str) -> None:
    graph = Graph(form=form)
    gate = graph.projection("x", "gate", bias=which == "gate")
    up = graph.projection("x", "up", bias=which == "up")
    activated = graph.node("Mul", [gate, graph.node("Sigmoid", [gate], "sigmoid")], "activated")
    graph.node("Mul", [activated, up], "y")
    model = assert_same_results(graph, "y")
    assert operators(model) == [PROJECTION[form], PROJECTION[form], "Sigmoid", "Mul", "Mul"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("wanted", ["gate", "up", "sigmoid", "activated"])
def test_a_gated_mlp_whose_inside_is_wanted_stays_in_parts(
    form: WeightForm | None, wanted: str
) -> None:
    graph = Graph(form=form)
    mlp(graph, "x", "silu")
    model = assert_same_results(graph, "y", wanted)
    assert GATED[form] not in operators(model)


def test_projections_of_different_inputs_or_levels_are_not_a_gated_mlp() -> None:
    for other, level in (("r", 4), ("x", 0)):
        graph = Graph()
        gate = graph.projection("x", "gate")
        up = graph.projection(other, "up", accuracy_level=level)
        activated = graph.node("Gelu", [gate], "activated", approximate="tanh")
        graph.node("Mul", [activated, up], "y")
        assert "Q4NXGatedMLP" not in operators(assert_same_results(graph, "y"))


def test_the_exact_gelu_stays_in_parts() -> None:
    graph = Graph()
    activated = graph.node("Gelu", [graph.projection("x", "gate")], "activated")
    graph.node("Mul", [activated, graph.projection("x", "up")], "y")
    assert operators(assert_same_results(graph, "y")).count("Gelu") == 1


# --- gate and up in one tensor --------------------------------------------------------------------


def packed_mlp(
    graph: Graph, activation: str, n: int = 2 * N, *, axis: int = -1,
    sizes: tuple[int, ...] | None = None, swap: bool = False, **projection: Any,
) -> None:  # fmt: skip
    both = graph.projection("x", "both", n=n, **projection)
    if sizes is None:
        graph.node("Split", [both], "gate", "up", axis=axis, num_outputs=2)
    else:
        graph.initializers["sizes"] = np.array(sizes, np.int64)
        graph.node("Split", [both, "sizes"], "gate", "up", axis=axis)
    graph.widths |= {name: n // 2 for name in ("gate", "up", "sigmoid", "activated")}
    if activation == "silu":
        activated = graph.node("Mul", ["gate", graph.node("Sigmoid", ["gate"], "sigmoid")],
                               "activated")  # fmt: skip
    else:
        activated = graph.node("Gelu", ["gate"], "activated", approximate="tanh")
    inputs = [activated, "up"]
    graph.node("Mul", inputs[::-1] if swap else inputs, "y")


@pytest.mark.parametrize("zero_points", [False, True])
@pytest.mark.parametrize(("activation", "swap"), [("silu", False), ("gelu_tanh", True)])
def test_gate_and_up_in_one_tensor_become_one_node(
    zero_points: bool, activation: str, swap: bool
) -> None:
    graph = Graph()
    packed_mlp(graph, activation, 2 * N, zero_points=zero_points, swap=swap)
    (node,) = assert_same_results(graph, "y").graph
    assert (node.domain, node.op_type, node.name) == ("aie", "Q4NXGatedMLP", "/y")
    values = {name: attribute.value for name, attribute in node.attributes.items()}
    assert values == {
        "K": K, "N": N, "accuracy_level": 4, "symmetric": int(not zero_points),
        "activation": activation, **(BlockForm() if zero_points else SYMMETRIC).attributes(),
    }  # fmt: skip
    names = [value.name if value else None for value in node.inputs]
    assert names == ["x", "both.B_q4nx"]


def test_the_report_names_every_node_of_a_packed_mlp() -> None:
    graph = Graph()
    packed_mlp(graph, "silu")
    report = run_passes(graph.model("y"))
    assert {o.node: (o.op_type, o.becomes) for o in report.outcomes.values()} == {
        "/both": ("MatMulNBits", "aie.Q4NXGatedMLP"),
        "/gate": ("Split", "aie.Q4NXGatedMLP"),
        "/sigmoid": ("Sigmoid", "aie.Q4NXGatedMLP"),
        "/activated": ("Mul", "aie.Q4NXGatedMLP"),
        "/y": ("Mul", "aie.Q4NXGatedMLP"),
    }


def test_a_packed_mlp_split_in_given_halves_becomes_one_node() -> None:
    graph = Graph()
    packed_mlp(graph, "silu", sizes=(N, N), axis=2)
    assert operators(assert_same_results(graph, "y")) == ["Q4NXGatedMLP"]


@pytest.mark.parametrize(
    "options", [{"bias": True}, {"bits": 1}, {"axis": 1}, {"sizes": (1, 2 * N - 1)}]
)
def test_a_packed_mlp_of_another_kind_stays_in_parts(options: dict[str, Any]) -> None:
    graph = Graph()
    packed_mlp(graph, "silu", **options)
    model = graph.model("y")
    run_passes(model)
    assert "Split" in operators(model)
    assert "Q4NXGatedMLP" not in operators(model)


def test_a_packed_mlp_whose_halves_are_wanted_stays_in_parts() -> None:
    graph = Graph()
    packed_mlp(graph, "silu")
    assert "Split" in operators(assert_same_results(graph, "y", "up"))


# --- other bits -----------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [pytest.param(2, marks=NEEDS_TWO_BITS), 8])
def test_weights_of_other_bits_fuse_as_those_of_four_do(bits: int) -> None:
    apart, packed, biased = Graph(), Graph(), Graph()
    gate, up = (apart.projection("x", name, bits=bits) for name in ("gate", "up"))
    sigmoid = apart.node("Sigmoid", [gate], "sigmoid")
    apart.node("Mul", [apart.node("Mul", [gate, sigmoid], "activated"), up], "y")
    packed_mlp(packed, "silu", 2 * N, bits=bits)
    biased.node("Add", [biased.projection("x", "product", bits=bits), biased.bias("b")], "y")
    for graph, op_type, n in (
        (apart, "Q4NXGatedMLP", N), (packed, "Q4NXGatedMLP", N), (biased, "Q4NXMatMul", N),
    ):  # fmt: skip
        (node,) = assert_same_results(graph, "y").graph
        assert node.op_type == op_type
        assert (node.attributes["bits"].value, node.attributes["N"].value) == (bits, n)


def test_halves_that_part_inside_a_block_stay_in_parts() -> None:
    graph = Graph()
    packed_mlp(graph, "silu", 144)  # 2 x 72, in blocks of 32
    assert "Q4NXGatedMLP" not in operators(assert_same_results(graph, "y"))


@pytest.mark.parametrize("bits", [2, 8])
def test_gate_and_up_of_different_bits_stay_apart(bits: int) -> None:
    graph = Graph()
    gate, up = graph.projection("x", "gate", bits=bits), graph.projection("x", "up")
    sigmoid = graph.node("Sigmoid", [gate], "sigmoid")
    graph.node("Mul", [graph.node("Mul", [gate, sigmoid], "activated"), up], "y")
    model = graph.model("y")
    run_passes(model)
    assert "Q4NXGatedMLP" not in operators(model)


# --- bias -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16])
@pytest.mark.parametrize("swap", [False, True])
def test_a_bias_goes_into_the_projection(dtype: np.dtype[Any], swap: bool) -> None:
    graph = Graph(dtype)
    inputs = [graph.projection("x", "product"), graph.bias("b")]
    graph.node("Add", inputs[::-1] if swap else inputs, "y")
    (node,) = assert_same_results(graph, "y").graph
    assert (node.op_type, node.name) == ("Q4NXMatMul", "/product")
    assert [value.name for value in node.inputs if value] == ["x", "product.B_q4nx", "b"]


def test_a_bias_after_a_norm_and_a_projection_goes_in_with_the_norm() -> None:
    graph = Graph()
    normed = graph.node(NORM, ["x", graph.weight("w")], "normed")
    graph.node("Add", [graph.projection(normed, "product"), graph.bias("b")], "y")
    (node,) = assert_same_results(graph, "y").graph
    assert [value.name for value in node.inputs if value] == ["x", "product.B_q4nx", "b", "w"]


def test_an_addend_that_is_not_one_projections_bias_is_added_outside() -> None:
    for kind in ("scalar", "tensor", "second bias", "wanted"):
        graph = Graph()
        product = graph.projection("x", "product", bias=kind == "second bias")
        added = graph.bias("b", 1) if kind == "scalar" else graph.bias("b")
        if kind == "tensor":
            added = graph.projection("r", "other")
        graph.node("Add", [product, added], "y")
        outputs = ("y", "product") if kind == "wanted" else ("y",)
        assert "Add" in operators(assert_same_results(graph, *outputs)), kind


# --- norms ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("op_type", [NORM, RMS_NORM])
def test_a_norm_goes_into_the_projection_behind_it(
    form: WeightForm | None, dtype: np.dtype[Any], bias: bool, op_type: str
) -> None:
    graph = Graph(dtype, form)
    normed = graph.node(op_type, ["x", graph.weight("w")], "normed", epsilon=1e-3, axis=-1)
    graph.projection(normed, "y", bias=bias)
    model = assert_same_results(graph, "y")
    (node,) = model.graph
    names = [value.name if value else None for value in node.inputs]
    blocks = f"y.product.{BLOCKS[form]}" if bias and form else f"y.{BLOCKS[form]}"
    assert names == ["x", blocks, "y.bias" if bias else "ort_aie.none", "w"]
    assert node.attributes["norm_epsilon"].value == pytest.approx(1e-3)
    assert len(node.outputs) == 1


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16])
def test_residual_and_norm_go_in_and_the_sum_comes_out(
    form: WeightForm | None, dtype: np.dtype[Any]
) -> None:
    graph = Graph(dtype, form)
    graph.widths["total"] = K
    inputs = ["x", "r", graph.weight("w")]
    normed = graph.node(SKIP_NORM, inputs, "normed", "", "", "total", epsilon=1e-5)
    mlp(graph, normed, "silu")
    # The residual continues to the next layer.
    graph.node("Add", ["total", "x"], "next")
    graph.node("Neg", ["total"], "total_again")
    model = assert_same_results(graph, "y", "next", "total_again")
    node = next(node for node in model.graph if node.domain == "aie")
    names = [value.name if value else None for value in node.inputs]
    assert names == ["x", f"gate.{BLOCKS[form]}", f"up.{BLOCKS[form]}", "w", "r"]
    assert [value.name for value in node.outputs] == ["y", "total"]
    assert SKIP_NORM not in operators(model)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("op_type", [NORM, RMS_NORM])
@pytest.mark.parametrize("wanted", ["output", "nodes", "nobody"])
def test_an_addition_before_a_norm_goes_in_with_it(
    form: WeightForm | None, op_type: str, wanted: str
) -> None:
    graph = Graph(form=form)
    graph.widths["total"] = K
    graph.node("Add", ["x", "r"], "total")
    normed = graph.node(op_type, ["total", graph.weight("w")], "normed", epsilon=1e-5)
    graph.projection(normed, "y")
    outputs = ["y"]
    if wanted == "output":
        outputs.append("total")
    if wanted == "nodes":
        outputs += [graph.node("Neg", ["total"], "again"), graph.node("Abs", ["total"], "size")]
    model = assert_same_results(graph, *outputs)
    node = next(node for node in model.graph if node.domain == "aie")
    assert [value.name if value else None for value in node.inputs][3:] == ["w", "r"]
    assert "Add" not in operators(model)
    assert [value.name for value in model.graph.outputs] == outputs


def test_an_addition_that_broadcasts_stays_before_the_norm() -> None:
    graph = Graph()
    graph.widths["total"] = K
    graph.node("Add", ["x", graph.weight("one row")], "total")
    graph.projection(graph.node(NORM, ["total", graph.weight("w")], "normed"), "y")
    assert operators(assert_same_results(graph, "y")) == ["Add", "Q4NXMatMul"]


def test_an_addition_of_unknown_shapes_stays_before_the_norm() -> None:
    graph = Graph()
    graph.widths["total"] = K
    graph.node("Add", ["x", "r"], "total")
    graph.projection(graph.node(NORM, ["total", graph.weight("w")], "normed"), "y")
    model = graph.model("y")
    for value in model.graph.inputs:
        value.shape = ir.Shape(["batch", None, K])
    run_passes(model)
    assert operators(model) == ["Add", "Q4NXMatMul"]


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (1, K), (1, 1, K)])
def test_a_weight_that_is_broadcast_is_made_a_row(shape: tuple[int, ...]) -> None:
    def graph(weight: Array) -> Graph:
        graph = Graph()
        graph.initializers["w"] = weight
        graph.projection(graph.node(RMS_NORM, ["x", "w"], "normed"), "y")
        return graph

    weight = np.linspace(0.5, 1.5, K)[: np.prod(shape, dtype=int)].astype(np.float32)
    model = graph(weight.reshape(shape)).model("y")
    run_passes(model)
    assert operators(model) == ["Q4NXMatMul"]
    # ONNX Runtime 1.23 does not broadcast any of them by itself.
    row = graph(np.broadcast_to(weight, K).copy()).model("y")
    run_passes(row)
    np.testing.assert_array_equal(results(model)["y"], results(row)["y"])


@pytest.mark.parametrize("shape", [(3, K), (3, 1), (1, 1, 1, K)])
def test_a_weight_of_another_shape_keeps_the_norm(shape: tuple[int, ...]) -> None:
    graph = Graph()
    graph.initializers["w"] = np.ones(shape, np.float32)
    graph.projection(graph.node(RMS_NORM, ["x", "w"], "normed"), "y")
    model = graph.model("y")  # not run: ONNX Runtime 1.23 does not broadcast it
    outcome = run_passes(model).outcomes["/normed"]
    assert RMS_NORM in operators(model)
    dims = ", ".join(map(str, shape))
    assert outcome.reason == f"its scale is ({dims}); a step needs a scale of shape (K)"


def test_a_weight_of_unknown_shape_keeps_the_norm() -> None:
    graph = Graph()
    graph.node("Identity", ["r"], "w")
    graph.projection(graph.node(RMS_NORM, ["x", "w"], "normed"), "y")
    model = graph.model("y")
    next(node for node in model.graph if node.op_type == "Identity").outputs[0].shape = None
    outcome = run_passes(model).outcomes["/normed"]
    assert RMS_NORM in operators(model)
    assert outcome.reason.startswith("its scale is of unknown shape; ")


def test_a_sum_that_is_an_output_of_the_graph_keeps_its_name() -> None:
    graph = Graph()
    inputs = ["x", "r", graph.weight("w")]
    graph.projection(graph.node(SKIP_NORM, inputs, "normed", "", "", "total"), "y")
    model = assert_same_results(graph, "y", "total")
    assert operators(model) == ["Q4NXMatMul"]
    assert [value.name for value in model.graph.outputs] == ["y", "total"]


def test_a_sum_that_nobody_wants_is_not_written() -> None:
    graph = Graph()
    graph.projection(graph.node(SKIP_NORM, ["x", "r", graph.weight("w")], "normed"), "y")
    model = assert_same_results(graph, "y")
    (node,) = model.graph
    assert [output.name for output in node.outputs] == ["y"]


@pytest.mark.parametrize(("op_type", "epsilon"), [(NORM, 1e-5), (SKIP_NORM, 1e-12)])
def test_epsilon_left_out_is_the_operators_own(op_type: str, epsilon: float) -> None:
    graph = Graph()
    inputs = ["x", "r", graph.weight("w")] if op_type == SKIP_NORM else ["x", graph.weight("w")]
    graph.projection(graph.node(op_type, inputs, "normed"), "y")
    (node,) = assert_same_results(graph, "y").graph
    assert node.attributes["norm_epsilon"].value == pytest.approx(epsilon)


def test_nodes_between_that_take_the_sum_come_after_it() -> None:
    graph = Graph()
    inputs = ["x", "r", graph.weight("w")]
    normed = graph.node(SKIP_NORM, inputs, "normed", "", "", "total")
    graph.node("Neg", ["total"], "negative")
    graph.projection(normed, "y")
    model = assert_same_results(graph, "y", "negative")
    assert operators(model) == ["Q4NXMatMul", "Neg"]


def test_a_norm_that_several_nodes_take_stays() -> None:
    graph = Graph()
    normed = graph.node(NORM, ["x", graph.weight("w")], "normed")
    graph.projection(normed, "y")
    graph.projection(normed, "z")
    assert NORM in operators(assert_same_results(graph, "y", "z"))


@pytest.mark.parametrize("outputs", [("y", "normed"), ("y", "inverse")])
def test_a_norm_whose_other_results_are_wanted_stays(outputs: tuple[str, ...]) -> None:
    graph = Graph()
    normed = graph.node(NORM, ["x", graph.weight("w")], "normed", "inverse")
    graph.projection(normed, "y")
    model = graph.model(*outputs)
    run_passes(model)
    assert NORM in operators(model)


@pytest.mark.parametrize("attributes", [{"axis": 1}, {"stash_type": 10}])
def test_a_norm_of_another_kind_stays(attributes: dict[str, int]) -> None:
    graph = Graph()
    graph.projection(graph.node(NORM, ["x", graph.weight("w")], "normed", **attributes), "y")
    model = graph.model("y")
    run_passes(model)
    assert NORM in operators(model)


def test_a_residual_that_may_be_broadcast_stays() -> None:
    graph = Graph()
    graph.node("Neg", ["r"], "residual")
    inputs = ["x", "residual", graph.weight("w")]
    graph.projection(graph.node(SKIP_NORM, inputs, "normed"), "y")
    model = graph.model("y")
    model.graph.node("/residual").outputs[0].shape = None
    run_passes(model)
    assert SKIP_NORM in operators(model)


def test_a_norm_with_a_bias_stays() -> None:
    graph = Graph()
    inputs = ["x", "r", graph.weight("w"), graph.weight("bias")]
    graph.projection(graph.node(SKIP_NORM, inputs, "normed"), "y")
    assert SKIP_NORM in operators(assert_same_results(graph, "y"))


def test_a_norm_before_a_projection_that_stays_is_left_alone() -> None:
    graph = Graph()
    normed = graph.node(NORM, ["x", graph.weight("w")], "normed")
    weights = projection_weights(N, K, block_size=16, prefix="y")
    graph.initializers |= weights
    graph.nodes.append(matmul_nbits(normed, "y", weights, N, K, block_size=16))
    model = graph.model("y")
    report = run_passes(model)
    assert operators(model) == [NORM, "MatMulNBits"]
    assert "/normed" not in report.outcomes


@pytest.mark.parametrize("form", FORMS)
def test_passes_are_idempotent(form: WeightForm | None) -> None:
    graph = Graph(form=form)
    inputs = ["x", "r", graph.weight("w")]
    mlp(graph, graph.node(SKIP_NORM, inputs, "normed", "", "", "total"), "silu")
    model = graph.model("y", "total")
    run_passes(model, quantize=form and Quantising(form))
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    assert list(run_passes(model, quantize=form and Quantising(form)).outcomes) == []
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before
