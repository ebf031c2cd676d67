"""Regions: which steps are computed together such that the nodes still have an order."""

from __future__ import annotations

from graphlib import TopologicalSorter

import numpy as np
import pytest
from step_graphs import FLOAT, Graph

from ort_aie_ep import _native


def regions(graph: Graph, *wanted: str) -> list[set[str]]:
    """The first outputs of each region's nodes."""
    for name in wanted:
        graph.values[name]["wanted"] = True
    plan = _native.plan_graph(graph.nodes, [*graph.values.values()], whole=True)
    return [{plan["items"][i]["writes"][0] for i in region["items"]} for region in plan["regions"]]


def assert_in_order(graph: Graph, found: list[set[str]]) -> None:
    """Checks that no two regions or other nodes wait for each other."""
    place = {name: f"region {i}" for i, region in enumerate(found) for name in region}
    waits: dict[str, set[str]] = {}
    for node in graph.nodes:
        (written,) = node["outputs"]
        mine = place.get(written, written)
        needs = {place.get(name, name) for name in node["inputs"]} - {mine}
        waits.setdefault(mine, set()).update(needs)
    [*TopologicalSorter(waits).static_order()]  # raises CycleError


def test_what_stands_between_two_projections_is_in_their_region() -> None:
    graph = Graph()
    graph.projection("x", "a")
    graph.step("Activation", ["a"], "b", function="silu")
    graph.projection("b", "c")
    graph.step("Activation", ["x"], "idle", function="silu")
    assert regions(graph, "c", "idle") == [{"a", "b", "c"}]


def test_a_node_outside_cuts_a_region_in_two() -> None:
    graph = Graph()
    graph.projection("x", "a")
    graph.node("Tanh", ["a"], "b")
    graph.projection("b", "c")
    graph.step("Add", ["c", "a"], "d")
    assert regions(graph, "d") == [{"a"}, {"c", "d"}]


def test_two_regions_do_not_wait_for_each_other() -> None:
    """Two towers: each region would be convex, and both together a cycle."""
    graph = Graph()
    for start, first, middle, last in (("x", *"abc"), ("r", *"def")):
        graph.projection(start, first)
        graph.node("Tanh", [first], middle)
        graph.projection(middle, last)
    found = regions(graph, "c", "f")
    assert set().union(*found) == set("acdf")
    assert_in_order(graph, found)


def test_casts_behind_a_node_outside_stay_there_with_it() -> None:
    """ONNX Runtime may drop all of them."""
    graph = Graph()
    graph.projection("x", "a")
    graph.node("Sqrt", ["a"], "b")
    for a, y in (("b", "c"), ("c", "d")):
        graph.node("Cast", [a], y, to=FLOAT)
    graph.projection("d", "e")
    graph.node("Cast", ["e"], "f", to=FLOAT)
    graph.projection("f", "g")
    assert regions(graph, "g") == [{"a"}, {"e", "f", "g"}]


@pytest.mark.parametrize("seed", range(40))
def test_regions_of_any_graph_can_be_put_in_an_order(seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph = Graph()
    names, anchors = ["x", "r"], set()
    for i in range(30):
        # Mostly near values, as in models, and sometimes the beginning of another tower.
        a = rng.choice(names[:2] if rng.random() < 0.3 else names[-4:])
        b = rng.choice(names)
        name = f"v{i}"
        kind = rng.choice(["projection", "Add", "Sum"], p=[0.4, 0.3, 0.3])
        if kind == "projection":
            graph.projection(a, name)
            anchors.add(name)
        elif kind == "Add":
            graph.step("Add", [a, b], name)
        else:
            graph.node("Sum", [a], name)
        names.append(name)
    read = {name for node in graph.nodes for name in node["inputs"]}
    found = regions(graph, *(name for name in names[2:] if name not in read))
    assert_in_order(graph, found)
    for anchor in anchors:
        assert sum(anchor in region for region in found) == 1
