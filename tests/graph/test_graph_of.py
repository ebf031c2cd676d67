"""The errors of src/graph about a graph that Python described badly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from step_graphs import FLOAT, INT64, Graph

from ort_aie_ep import _native


def test_nodes_that_are_not_steps_stay_as_they_are() -> None:
    graph = Graph()
    graph.node("Clip", ["x", "", graph.value("most", [], constant=np.array(1, np.float32))], "y",
               numbers=[1, 2], number=1, share=0.5, text="a")  # fmt: skip
    (item,) = graph.fused("y")
    assert (item.op, item.name, item.nodes) == ("", "/y", ["/y"])
    assert (item.reads, item.writes) == (["x", "", "most"], ["y"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"inputs": ["other"]}, "node '/y': there is no value 'other'"),
        ({"outputs": ["other"]}, "node '/y': there is no value 'other'"),
        ({"attributes": {"a": None}}, "attribute a must be an int, a float, a str or a list"),
    ],
)
def test_a_node_that_is_not_understood_is_named(change: dict[str, Any], message: str) -> None:
    graph = Graph()
    graph.node("Neg", ["x"], "y")
    graph.nodes[0] |= change
    with pytest.raises(ValueError, match=message):
        graph.fused("y")


@pytest.mark.parametrize(
    ("constant", "type", "message"),
    [
        (np.zeros((2, 3), np.float32), FLOAT, r"must be \(4, 3\), got \(2, 3\)"),
        (np.zeros((3, 4), np.float32).T, FLOAT, "must be a contiguous array in row-major order"),
        (np.zeros((4, 3), np.float32), INT64, "must have 8 bytes, got 4"),
    ],
)
def test_a_constant_that_does_not_fit_is_named(constant: Any, type: int, message: str) -> None:
    graph = Graph()
    graph.value("c", (4, 3), type, constant)
    with pytest.raises(ValueError, match=f"constant 'c' {message}"):
        graph.fused()


@pytest.mark.parametrize("shape", [None, ("rows", 3), (None, 3)])
def test_a_constant_has_a_known_shape(shape: Any) -> None:
    graph = Graph()
    graph.value("c", shape, constant=True)
    with pytest.raises(ValueError, match="shape of constant 'c'"):
        graph.fused()


def test_names_of_values_are_not_used_twice() -> None:
    values = list(Graph().values.values())
    with pytest.raises(ValueError, match="'x'"):
        _native.fused_steps([], [*values, values[0]])
