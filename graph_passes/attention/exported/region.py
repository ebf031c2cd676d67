"""Where the attention of one layer begins and ends, in a graph that spells it out.

Three kinds of nodes are the same in every export: the Softmax, the Concat of a graph input with new
rows whose result is a graph output (the KV cache), and the projections, that is products with a
constant matrix. The region is everything between the projections of query, key and value, the
caches, and the projection that takes the result. The proof finds out what the region computes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import onnx_ir as ir

from ort_aie_ep.graph_passes.base import HOST_INPUTS, INPUT_IDS
from ort_aie_ep.graph_passes.projection.width import projected_width
from ort_aie_ep.graph_passes.subgraph import NoMatch
from ort_aie_ep.graph_passes.walk import (
    above,
    attribute,
    given_inputs,
    made_by,
    node_label,
)


@dataclass(frozen=True)
class HalfCache:
    """Keys or values of a KV cache: present = Concat(past, new) over the sequence."""

    past: ir.Value
    new: ir.Value
    present: ir.Value


@dataclass(frozen=True)
class Region:
    """One layer's attention, by its edges.

    Attributes:
        softmax: its Softmax.
        query, key, value: the results of the projections, (batch, sequence, width), with bias; the
            same value three times if one projection computes all three.
        keys, values: the caches.
        output: (batch, sequence, heads · head size), the input of the next projection.
        inputs: everything that the region reads and that is not constant: query, key, value, both
            pasts, integer graph inputs, and values of which it reads only the shape.
        shape_only: the values of which it reads only the shape.
        nodes: its nodes, in graph order.
    """

    softmax: ir.Node
    query: ir.Value
    key: ir.Value
    value: ir.Value
    keys: HalfCache
    values: HalfCache
    output: ir.Value
    inputs: tuple[ir.Value, ...]
    shape_only: frozenset[ir.Value]
    nodes: tuple[ir.Node, ...]

    @property
    def packed(self) -> bool:
        """Whether one projection gives query, key and value."""
        return self.query is self.key

    def origins(self) -> dict[ir.Value, frozenset[ir.Value]]:
        """Which of query, key, value and the pasts each of the region's values depends on.

        A shape depends on none of them.
        """
        data = (self.query, self.key, self.value, self.keys.past, self.values.past)
        made: dict[ir.Value, frozenset[ir.Value]] = {v: frozenset({v}) for v in data}
        for node in self.nodes:
            of: frozenset[ir.Value] = frozenset()
            if node.op_type != "Shape":
                of = of.union(*(made[v] for v in node.inputs if v in made))
            made.update(dict.fromkeys(node.outputs, of))
        return made

    def varying(self) -> set[ir.Value]:
        """The values that depend on an input, even if only on its shape."""
        varying = set(self.inputs)
        for node in self.nodes:
            if varying.intersection(node.inputs):
                varying.update(node.outputs)
        return varying


@dataclass
class _Trace:
    """The nodes that compute some values, back to projections, graph inputs and constants."""

    nodes: set[ir.Node] = field(default_factory=set)
    projected: set[ir.Value] = field(default_factory=set)
    inputs: set[ir.Value] = field(default_factory=set)
    shapes: set[ir.Value] = field(default_factory=set)


def find_cache(node: ir.Node) -> HalfCache | None:
    """The cache that a Concat writes, or None for other nodes."""
    if node.op_type != "Concat" or len(node.inputs) != 2 or not node.outputs[0].is_graph_output():
        return None
    past, new = node.inputs
    if past is None or new is None or not past.is_graph_input() or past.shape is None:
        return None
    if len(past.shape) != 4 or attribute(node, "axis", 0) not in (-2, 2):
        return None
    return HalfCache(past, new, node.outputs[0])


def find_region(softmax: ir.Node) -> Region:
    """The attention around a Softmax.

    Raises:
        NoMatch: it lacks an edge.
    """
    graph = softmax.graph
    assert isinstance(graph, ir.Graph)
    scores = softmax.inputs[0]
    assert scores is not None
    below_scores = _trace([scores])
    keys = _caches(below_scores)
    gemm = next((node for node in below_scores.nodes if node.op_type == "Gemm"), None)
    if gemm is not None:  # as in GPT-2
        raise NoMatch(
            f"its projection '{node_label(gemm)}' is a Gemm of flattened rows; expected MatMul or "
            "MatMulNBits"
        )
    if not keys:
        raise NoMatch(
            "its scores read no KV cache (a Concat of a graph input and new rows that is a graph "
            "output): it belongs to a router or to an attention without a past"
        )
    if len(keys) != 1:
        raise NoMatch(
            f"its scores read {len(keys)} KV caches; expected only the keys': a Concat of a graph "
            "input and new rows that is a graph output"
        )
    output = _projection_input(softmax)
    whole = _trace([output])
    values = [cache for cache in _caches(whole) if cache.present is not keys[0].present]
    if len(values) != 1:
        raise NoMatch(f"its result reads {len(values)} KV caches besides the keys', expected one")
    key = _only([keys[0].new], "the new keys")
    value = _only([values[0].new], "the new values")
    rest = below_scores.projected - {key}
    if len(rest) > 1 or (not rest and key is not value):
        raise NoMatch(f"its scores come from {len(rest)} projections besides the keys', expected 1")
    query = rest.pop() if rest else key
    inside = _trace([output, keys[0].present, values[0].present])
    order = {node: index for index, node in enumerate(graph)}
    shape_only = _settle_shapes(inside)
    edges = [query, key, value, keys[0].past, values[0].past]
    others = [v for v in (*inside.inputs, *shape_only) if v not in edges]
    others += [v for v in inside.projected if v not in edges]
    for other in inside.inputs - set(edges):
        if other.name not in HOST_INPUTS:
            raise NoMatch(f"it reads the graph input '{other.name}', which attention does not take")
        if other.dtype is None or not other.dtype.is_integer() or len(other.shape or ()) != 2:
            raise NoMatch(
                f"it reads the graph input '{other.name}', {other.dtype} {other.shape}: expected "
                "integers (batch, length)"
            )
    inputs = tuple(dict.fromkeys([*edges, *sorted(others, key=lambda v: str(v.name))]))
    nodes = tuple(sorted(inside.nodes, key=order.__getitem__))
    return Region(softmax, query, key, value, keys[0], values[0], output, inputs, shape_only, nodes)


def _trace(values: list[ir.Value]) -> _Trace:
    trace = _Trace()

    def edge(value: ir.Value) -> bool:
        if value.is_graph_input():
            trace.inputs.add(value)
        elif projected_width(value) is not None:
            trace.projected.add(value)
        else:
            return False
        return True

    def computed(node: ir.Node) -> Iterator[ir.Value]:
        trace.nodes.add(node)
        for source in given_inputs(node):
            if source.is_initializer():
                continue
            if node.op_type == "Shape" and _is_float(source):
                trace.shapes.add(source)
            else:
                yield source

    list(above(values, edge=edge, inputs=computed))
    return trace


def _settle_shapes(trace: _Trace) -> frozenset[ir.Value]:
    """Adds the sources of its shapes to the trace, and returns the values of which only the shape
    matters: hidden states, and caches of other layers."""
    hidden: set[ir.Value] = set()
    while True:
        inside = {value for node in trace.nodes for value in node.outputs}
        pending = trace.shapes - inside - trace.inputs - trace.projected - hidden
        if not pending:
            return frozenset(hidden)
        for value in pending:
            further = _trace([value])
            made_of_tokens = any(v.name == INPUT_IDS for v in further.inputs)
            if further.projected or made_of_tokens or value.is_graph_input():
                hidden.add(value)
            else:
                trace.nodes |= further.nodes
                trace.inputs |= further.inputs
                trace.shapes |= further.shapes


def _is_float(value: ir.Value) -> bool:
    return value.dtype is None or value.dtype.is_floating_point()


def _caches(trace: _Trace) -> list[HalfCache]:
    found = (find_cache(node) for node in trace.nodes)
    return [cache for cache in found if cache is not None]


def _only(values: list[ir.Value], what: str) -> ir.Value:
    projected = _trace(values).projected
    if len(projected) != 1:
        raise NoMatch(f"{what} come from {len(projected)} projections, expected one")
    return projected.pop()


def _projection_input(softmax: ir.Node) -> ir.Value:
    """The first value downstream of the Softmax that a projection takes."""
    graph = softmax.graph
    assert isinstance(graph, ir.Graph)
    reached = set(softmax.outputs)
    started = False
    for node in graph:
        started = started or node is softmax
        if not started or node is softmax or reached.isdisjoint(node.inputs):
            continue
        first = node.inputs[0]
        if first in reached and first is not None and projected_width(node.outputs[0]) is not None:
            return _before_norm(first)
        reached.update(node.outputs)
    raise NoMatch(f"no projection takes the result of '{node_label(softmax)}'")


def _before_norm(value: ir.Value) -> ir.Value:
    """The input of a norm before the projection, as in BitNet; that norm stays in the graph."""
    node = made_by(value, "SimplifiedLayerNormalization")
    source = node.inputs[0] if node is not None else None
    return value if source is None else source
