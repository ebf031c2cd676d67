"""Nodes that stay on the CPU EP are reported with their weights, whether a pass examines them or
not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from builder_nodes import matmul_nbits, projection_weights, save
from onnx import TensorProto, helper
from op_models import model_of, onnx_tensor

import ort_aie_ep
from ort_aie_ep.cli.tables import explanation_table, outcomes_table, share_line
from ort_aie_ep.explain.explain import explain
from ort_aie_ep.graph_passes.work import Work, work_of
from ort_aie_ep.models.integrity import REPORT

K, EXPERTS, TOP = 64, 8, 2


def work(op_type: str, inputs: list[Any], domain: str = "", **attributes: Any) -> Work:
    """The work of a node. Arrays among its inputs are constants, lists are dimensions of graph
    inputs."""
    values, constants = [], []
    for index, given in enumerate(inputs):
        name = f"i{index}"
        if isinstance(given, list):
            values.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, given))
        elif given is not None:
            constants.append(onnx_tensor(name, given))
    names = [f"i{i}" if given is not None else "" for i, given in enumerate(inputs)]
    node = helper.make_node(op_type, names, ["y"], domain=domain, **attributes)
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "g", values, [result], constants)
    (read,) = ir.from_proto(model_of(graph)).graph
    return work_of(read)


def floats(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


X = ["batch", "sequence", K]


@pytest.mark.parametrize(
    ("node", "weight_bytes", "token_bytes"),
    [
        (("MatMul", [X, floats(K, 8)]), 4 * K * 8, 4 * K * 8),
        (("Gemm", [X, floats(K, 8), floats(8)]), 4 * K * 8 + 32, 4 * K * 8 + 32),
        (("MatMul", [X, X]), 0, 0),
        (("Conv", [X, floats(16, 3, 5, 5)]), 4 * 16 * 75, 4 * 16 * 75),
        (("Add", [X, floats(K)]), 0, 0),
        (("Gather", [floats(500, K), X]), 4 * 500 * K, 0),
    ],
)
def test_weights_are_what_a_token_is_multiplied_by(
    node: tuple[str, list[Any]], weight_bytes: int, token_bytes: int
) -> None:
    assert work(*node) == Work(weight_bytes, token_bytes)


def test_a_token_reads_the_experts_that_it_is_sent_to() -> None:
    tensors = [np.zeros((EXPERTS, 2 * K, K // 2), np.uint8), floats(EXPERTS, 2 * K)]
    size = EXPERTS * 2 * K * (K // 2 + 4)
    attributes = {"k": TOP, "expert_weight_bits": 4}
    found = work("QMoE", [X, [1, EXPERTS], *tensors], "com.microsoft", **attributes)
    assert found == Work(size, size * TOP // EXPERTS)


def test_a_recurrence_reads_its_state() -> None:
    state = ["batch", 4, 16, 32]
    assert work("LinearAttention", [X, X, X, state], "com.microsoft") == Work(0, 4 * 4 * 16 * 32)
    unknown = ["batch", 4, "size", 32]
    assert work("LinearAttention", [X, X, X, unknown], "com.microsoft") == Work()


def test_dequantised_weights_are_those_of_the_product_behind_them() -> None:
    nodes = [
        helper.make_node("DequantizeLinear", ["codes", "scale"], ["rows"], name="dq", axis=0),
        helper.make_node("Transpose", ["rows"], ["columns"], name="t"),
        helper.make_node("MatMul", ["x", "columns"], ["y"], name="product"),
    ]
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("x", "y")]
    constants = [onnx_tensor("codes", np.zeros((96, K), np.int8)), onnx_tensor("scale", floats(96))]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], constants)
    works = {node.name: work_of(node) for node in ir.from_proto(model_of(graph)).graph}
    assert works == {"dq": Work(), "t": Work(), "product": Work(96 * K + 96 * 4, 96 * K + 96 * 4)}


def mixture() -> onnx.ModelProto:
    """A projection, and a mixture of experts after a router of 8 columns."""
    weights = projection_weights(K, K)
    experts = {"fc1": floats(EXPERTS, K, K), "fc2": floats(EXPERTS, K, K)}
    nodes = [
        matmul_nbits("x", "h", weights, K, K, name="/proj"),
        helper.make_node("MatMul", ["h", "router"], ["routes"], name="/router"),
        helper.make_node(
            "MoE", ["h", "routes", "fc1", "", "fc2"], ["y"],
            name="/experts", domain="com.microsoft", k=TOP,
        ),
    ]  # fmt: skip
    constants = weights | {"router": floats(K, EXPERTS)} | experts
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["tokens", K])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["tokens", K])],
        [onnx_tensor(name, array) for name, array in constants.items()],
    )
    return model_of(graph)


def test_the_table_and_explain_show_what_no_pass_looks_at(tmp_path: Path) -> None:
    save(mixture(), tmp_path / "source")
    result = ort_aie_ep.compile(tmp_path / "source", tmp_path / "out")
    projection, router = K * K // 2 + K * 2 * 4, 4 * K * EXPERTS
    experts = 2 * EXPERTS * K * K * 4
    assert [(o.node, o.weight_bytes, o.token_bytes) for o in result.outcomes] == [
        ("/router", router, router),
        ("/proj", projection, projection),
        ("/experts", experts, experts * TOP // EXPERTS),
    ]
    reasons = {o.node: o.reason for o in result.outcomes}
    assert reasons["/experts"] == "no aie operator"
    nodes = {n.node: n for n in explain(tmp_path / "source").nodes}
    for outcome in result.outcomes:
        node = nodes[outcome.node]
        assert (node.becomes or None, node.weight_bytes, node.token_bytes) == (
            outcome.becomes, outcome.weight_bytes, outcome.token_bytes,
        )  # fmt: skip
    report = json.loads((tmp_path / "out" / REPORT).read_text())
    assert report["nodes"][2]["weight_bytes"] == experts
    left, whole = experts * TOP // EXPERTS, experts * TOP // EXPERTS + projection + router
    line = share_line(result.outcomes)
    assert line.startswith(f"{left / whole:.1%}".replace("%", " % of the bytes"))
    assert share_line(explain(tmp_path / "source").nodes) == line
    for table in (
        outcomes_table(result.outcomes),
        explanation_table(explain(tmp_path / "source"), each_node=False),
    ):
        cells = {c.header: [str(cell) for cell in c.cells] for c in table.columns}
        row = cells["op"].index("MoE")
        assert cells["weights"][row] == "0.3 MB"
        assert cells["token reads"][row] == f"{experts / 4 / whole:.1%}".replace("%", " %")


def test_a_model_without_weights_has_no_share() -> None:
    assert share_line([]) == ""
