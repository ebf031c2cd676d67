"""Where the attention of one layer begins and ends, in a graph that spells it out.

Three kinds of places hold whatever nodes an exporter chose: the Softmax, the Concat of a graph
input with new rows whose result is a graph output (the KV cache), and the projections, that is
products with a constant matrix. All between the projections of query, key and value, the caches and
the projection that takes the result is the region; what it computes is for the proof to find out.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import onnx_ir as ir

from ort_aie_ep.graph_passes.base import attribute, input_at, node_label
from ort_aie_ep.graph_passes.subgraph import NoMatch, constant

# The integer inputs of a decoder that hosts feed by name.
ATTENTION_MASK, POSITION_IDS, INPUT_IDS = "attention_mask", "position_ids", "input_ids"
HOST_INPUTS = frozenset({ATTENTION_MASK, POSITION_IDS, INPUT_IDS})
PROJECTIONS = {("", "MatMul"), ("com.microsoft", "MatMulNBits"), ("aie", "Q4NXMatMul")}


@dataclass(frozen=True)
class Cache:
    """One half of a KV cache: present = Concat(past, new) over the sequence."""

    past: ir.Value
    new: ir.Value
    present: ir.Value


@dataclass(frozen=True)
class Region:
    """One layer's attention, by its edges.

    Attributes:
        softmax: its Softmax.
        query, key, value: what the projections give, (batch, sequence, width), bias included; one
            value thrice where one projection gives all three.
        keys, values: the caches.
        output: (batch, sequence, heads · head size), what the next projection takes.
        inputs: all that the region reads and that is not constant: the three, both pasts, integer
            graph inputs, and values of which it takes the shape alone.
        shape_only: the last kind.
        nodes: its nodes, in graph order.
    """

    softmax: ir.Node
    query: ir.Value
    key: ir.Value
    value: ir.Value
    keys: Cache
    values: Cache
    output: ir.Value
    inputs: tuple[ir.Value, ...]
    shape_only: frozenset[ir.Value]
    nodes: tuple[ir.Node, ...]

    @property
    def packed(self) -> bool:
        """Whether one projection gives query, key and value."""
        return self.query is self.key

    def origins(self) -> dict[ir.Value, frozenset[ir.Value]]:
        """Which of query, key, value and the pasts each of the region's values is made of.

        A shape is made of none.
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
        """The values that depend on an input, be it on its shape."""
        varying = set(self.inputs)
        for node in self.nodes:
            if varying.intersection(node.inputs):
                varying.update(node.outputs)
        return varying


@dataclass
class _Trace:
    """What some values are computed from, back to projections, graph inputs and constants."""

    nodes: set[ir.Node] = field(default_factory=set)
    projected: set[ir.Value] = field(default_factory=set)
    inputs: set[ir.Value] = field(default_factory=set)
    shapes: set[ir.Value] = field(default_factory=set)


def projected_width(value: ir.Value | None) -> int | None:
    """The last dimension of a projection's result; None for other values.

    A bias, a norm over all of that dimension, as in OLMo 2, and a Clip, as in OLMo, count as part
    of the projection: they stay in the graph.
    """
    node = value.producer() if value is not None else None
    if node is None:
        return None
    if (node.domain, node.op_type) in PROJECTIONS:
        if node.op_type != "MatMul":
            return attribute(node, "N", 0)
        matrix = constant(input_at(node, 1))
        return matrix.shape.numpy()[1] if matrix is not None and len(matrix.shape) == 2 else None
    if (node.domain, node.op_type) == ("", "Clip"):
        limits = all(constant(limit) is not None for limit in node.inputs[1:] if limit is not None)
        return projected_width(node.inputs[0]) if limits else None
    if node.op_type in ("Add", "SimplifiedLayerNormalization") and not node.domain:
        for operand, vector in (node.inputs[:2], node.inputs[1::-1]):
            width, weights = projected_width(operand), constant(vector)
            if width is not None and weights is not None and weights.shape == (width,):
                return width
    return None


def find_cache(node: ir.Node) -> Cache | None:
    """The cache that a Concat writes, or None for other nodes."""
    if node.op_type != "Concat" or len(node.inputs) != 2 or not node.outputs[0].is_graph_output():
        return None
    past, new = node.inputs
    if past is None or new is None or not past.is_graph_input() or past.shape is None:
        return None
    if len(past.shape) != 4 or attribute(node, "axis", 0) not in (-2, 2):
        return None
    return Cache(past, new, node.outputs[0])


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
            "output): it is a router's, or of an attention without a past"
        )
    if len(keys) != 1:
        raise NoMatch(
            f"its scores read {len(keys)} KV caches, expected the keys' alone: a Concat of a graph "
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
            raise NoMatch(f"it reads the graph input '{other.name}', which no attention takes")
        if other.dtype is None or not other.dtype.is_integer() or len(other.shape or ()) != 2:
            raise NoMatch(
                f"it reads the graph input '{other.name}', {other.dtype} {other.shape}: expected "
                "integers (batch, length)"
            )
    inputs = tuple(dict.fromkeys([*edges, *sorted(others, key=lambda v: str(v.name))]))
    nodes = tuple(sorted(inside.nodes, key=order.__getitem__))
    return Region(softmax, query, key, value, keys[0], values[0], output, inputs, shape_only, nodes)


def _trace(values: list[ir.Value]) -> _Trace:
    trace, stack, seen = _Trace(), list(values), set(values)
    while stack:
        value = stack.pop()
        node = value.producer()
        if value.is_graph_input():
            trace.inputs.add(value)
        elif projected_width(value) is not None:
            trace.projected.add(value)
        elif node is not None:
            trace.nodes.add(node)
            for source in node.inputs:
                if source is None or source in seen or source.is_initializer():
                    continue
                if node.op_type == "Shape" and _is_float(source):
                    trace.shapes.add(source)
                    continue
                seen.add(source)
                stack.append(source)
    return trace


def _settle_shapes(trace: _Trace) -> frozenset[ir.Value]:
    """Adds to the trace what its shapes are taken of, and returns the values for which only the
    shape counts: hidden states, and caches of other layers."""
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


def _caches(trace: _Trace) -> list[Cache]:
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
    """What a norm before the projection takes, as in BitNet: it stays in the graph."""
    node = value.producer()
    if node is None or (node.domain, node.op_type) != ("", "SimplifiedLayerNormalization"):
        return value
    source = node.inputs[0]
    return value if source is None else source
