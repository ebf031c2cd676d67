"""Queries on a graph: which node gives a value, which read it, and what it is made of."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from ort_aie_ep.errors import AieError
from ort_aie_ep.graph_passes import walk

TEXT = """
<ir_version: 10, opset_import: ["": 21]>
graph (float[batch, 4] x, float[4, 4] w) => (float[batch, 4] y)
<float[4, 4] weights = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}>
{
    transposed = Transpose<perm = [1, 0]>(weights)
    product = MatMul(x, transposed)
    same = Identity(product)
    again = Identity(same)
    length = Shape(again)
    square = Mul(product, product)
    shaped = Reshape(square, length)
    y = Add(shaped, w)
}
"""


@pytest.fixture
def values() -> dict[str, ir.Value]:
    graph = ir.from_proto(onnx.parser.parse_model(TEXT)).graph
    made = [value for node in graph for value in node.outputs]
    return {str(v.name): v for v in (*graph.inputs, *graph.initializers.values(), *made)}


def names(found: object) -> list[str]:
    return [value.name for value in found]  # type: ignore[attr-defined]


def kinds(nodes: list[ir.Node]) -> list[str]:
    return [node.op_type for node in nodes]


def test_a_node_is_found_by_its_operator_and_its_domain(values: dict[str, ir.Value]) -> None:
    assert walk.made_by(values["y"], "Sub", "Add") is values["y"].producer()
    assert walk.made_by(values["y"], "Add", domain="com.microsoft") is None
    assert walk.made_by(values["x"], "Add") is None
    assert walk.made_by(None, "Add") is None


def test_a_node_that_reads_a_value_twice_is_not_its_only_reader(
    values: dict[str, ir.Value],
) -> None:
    assert walk.only_reader(values["square"]) is walk.producer(values["shaped"])
    assert walk.only_reader(values["product"]) is None  # Identity and Mul
    assert walk.only_reader(values["y"]) is None  # the caller, as a graph output
    assert walk.is_read(values["y"])
    values["same"].producer().replace_input_with(0, values["x"])
    assert walk.only_reader(values["product"]) is None  # Mul, twice


def test_a_chain_is_gone_through_by_first_inputs(values: dict[str, ir.Value]) -> None:
    assert walk.before(values["again"], "Identity") is values["product"]
    assert walk.before(values["again"], "Cast") is values["again"]
    assert walk.before(values["shaped"], "Reshape", "Mul") is values["product"]


def test_a_transposed_matrix_is_known_from_other_transposes(values: dict[str, ir.Value]) -> None:
    assert walk.before_transpose(values["transposed"]) == (values["weights"], True)
    assert walk.before_transpose(values["weights"]) == (values["weights"], False)
    node = walk.producer(values["transposed"])
    node.attributes.pop("perm")  # which reverses the dimensions
    assert walk.before_transpose(values["transposed"]) == (values["weights"], True)
    node.attributes.add(ir.AttrInt64s("perm", [0, 1]))
    assert walk.before_transpose(values["transposed"]) is None


def test_all_that_a_value_is_made_of_is_met_once(values: dict[str, ir.Value]) -> None:
    found = names(walk.above([values["y"]]))
    assert sorted(found) == sorted(set(values))
    assert found[0] == "y"


def test_nothing_behind_an_edge_or_a_shape_is_met(values: dict[str, ir.Value]) -> None:
    edge = values["product"]
    found = names(walk.above([values["y"]], edge=lambda value: value is edge))
    assert "product" in found
    assert "x" not in found
    lengths_alone = names(
        walk.above([values["y"]], edge=lambda v: v is edge, inputs=walk.value_inputs)
    )
    assert set(found) - set(lengths_alone) == {"same", "again"}


def test_nodes_come_after_what_they_read(values: dict[str, ir.Value]) -> None:
    nodes = walk.nodes_above([values["y"]], edge=lambda value: False)
    place = {node: index for index, node in enumerate(nodes)}
    assert len(place) == 8
    for node in nodes:
        givers = [value.producer() for value in walk.given_inputs(node)]
        assert all(place[giver] < place[node] for giver in givers if giver is not None)
    edge = values["product"]
    assert kinds(walk.nodes_above([values["shaped"]], edge=lambda value: value is edge)) == [
        "Identity", "Identity", "Shape", "Mul", "Reshape",
    ]  # fmt: skip


def test_what_follows_ends_where_there_are_two_readers(values: dict[str, ir.Value]) -> None:
    assert kinds(list(walk.below(walk.producer(values["square"]), 9))) == ["Reshape", "Add"]
    assert kinds(list(walk.below(walk.producer(values["square"]), 1))) == ["Reshape"]
    assert list(walk.below(walk.producer(values["product"]), 9)) == []


def test_a_bottleneck_is_what_all_of_a_value_comes_through(values: dict[str, ir.Value]) -> None:
    assert names(walk.bottlenecks(values["shaped"], 9))[0] == "product"
    assert walk.bottlenecks(values["shaped"], 2) == []  # Reshape and Mul: the length is open


def test_an_attribute_of_another_type_is_named(values: dict[str, ir.Value]) -> None:
    node = walk.producer(values["transposed"])
    assert walk.attribute(node, "axis", 3) == 3
    with pytest.raises(AieError, match=r"perm .*int"):
        walk.attribute(node, "perm", 0)
