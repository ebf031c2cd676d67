"""Vectors that a model computes from constants alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_ir.passes.common import RemoveUnusedNodesPass

from ort_aie_ep.graph_passes.weights.vectors import fold_vectors

Array = npt.NDArray[Any]
W = np.arange(4, dtype=np.float32)


def folded(op: str, a: Array | str, b: Array | str, *, wanted: bool = False) -> ir.Model:
    """y = x * op(a, b), where an operand may be the input; `wanted`: op's result is an output."""
    names = [part if isinstance(part, str) else f"c{i}" for i, part in enumerate((a, b))]
    constants = [
        numpy_helper.from_array(part, name)
        for part, name in zip((a, b), names, strict=True)
        if not isinstance(part, str)
    ]
    nodes = [helper.make_node(op, names, ["s"]), helper.make_node("Mul", ["x", "s"], ["y"])]
    outputs = ["y", "s"] if wanted else ["y"]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        constants,
    )  # fmt: skip
    model = ir.from_proto(helper.make_model(graph))
    fold_vectors(model)
    return model


@pytest.mark.parametrize(
    ("op", "b", "expected"),
    [
        ("Add", np.float32(1), W + 1),
        ("Sub", np.array([1], np.float32), W - 1),
        ("Mul", W, W * W),
    ],
)
def test_the_vector_is_computed_once(op: str, b: Array, expected: Array) -> None:
    model = folded(op, W, np.asarray(b))
    (node,) = model.graph
    assert (node.op_type, node.inputs[1].name) == ("Mul", "s")
    np.testing.assert_array_equal(node.inputs[1].const_value.numpy(), expected)


@pytest.mark.parametrize(
    ("a", "b", "wanted"),
    [
        ("x", W, False),  # not a constant
        (W, np.ones((4, 4), np.float32), False),  # a matrix
        (W, np.ones(3, np.float32), False),  # ONNX Runtime refuses it
        (W, W, True),  # an output of the model
    ],
)
def test_anything_else_stays(a: Array | str, b: Array | str, wanted: bool) -> None:
    assert [node.op_type for node in folded("Add", a, b, wanted=wanted).graph] == ["Add", "Mul"]


def test_the_vectors_that_it_was_made_of_go() -> None:
    model = folded("Add", W, W)
    RemoveUnusedNodesPass()(model)
    assert list(model.graph.initializers) == ["s"]
