"""Bodies of If, Loop and Scan as separate models, so that each pass sees one graph at a time.

Before: a node with graphs among its attributes, whose nodes read values of the graphs around them
After:  while passes run, the node has a separate domain and no graphs, and takes the values that
        its bodies read as inputs; a body is a model that has these values as graph inputs, and
        constants as constants

So a value that a body reads has a reader where it is computed, and nothing matches across the edge
of a body.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from ort_aie_ep.graph_passes.base import HOST_INPUTS
from ort_aie_ep.graph_passes.subgraph import HOLDER_DOMAIN
from ort_aie_ep.graph_passes.walk import graph_attributes

_NUMBER = "ort_aie.number"  # attribute of a holder: no two are alike


@dataclass(frozen=True)
class Body:
    """A body that was taken out of its node.

    Attributes:
        model: the body; the values that it reads are inputs after its own.
        captured: those inputs.
        first: the index of the first of them among the inputs of the holder.
        constants: the body's initializers that stand for constants of graphs around it.
    """

    model: ir.Model
    captured: tuple[ir.Value, ...]
    first: int
    constants: dict[ir.Value, ir.Value]


@dataclass(frozen=True)
class Holder:
    """A node without its bodies, and the bodies it had."""

    node: ir.Node
    domain: str
    attributes: tuple[ir.Attr, ...]
    inputs: int
    bodies: tuple[Body, ...]


def body_labels(model: ir.Model) -> dict[str, str]:
    """For the nodes of bodies, by name: the bodies that a node is in, "then_branch of 'if'"."""
    labels: dict[str, str] = {}

    def look(graph: ir.Graph, where: str) -> None:
        for node in graph:
            if where:
                labels[node.name or ""] = where
            for attribute in graph_attributes(node):
                inside = f" in {where}" if where else ""
                look(attribute.as_graph(), f"{attribute.name} of '{node.name}'{inside}")

    look(model.graph, "")
    return labels


def take_out(model: ir.Model) -> list[Holder]:
    """Takes all bodies out, to be put back by `put_back`; outer holders come before inner ones."""
    holders = list(_take_out(model, model.graph))
    for graph in (model.graph, *(b.model.graph for h in holders for b in h.bodies)):
        graph.opset_imports.update({HOLDER_DOMAIN: 1} if holders else {})
    return holders


def parts(holders: list[Holder]) -> Iterator[ir.Model]:
    """The bodies, each with what is known so far about the values that it reads."""
    for holder in _still_there(holders):
        for body in holder.bodies:
            outer = holder.node.inputs[body.first :]
            for inner, value in zip(body.captured, outer, strict=False):
                if value is not None:
                    inner.type, inner.shape = value.type, value.shape
            yield body.model


def put_back(model: ir.Model, holders: list[Holder]) -> None:
    """Puts the bodies back into the nodes that are still there."""
    for holder in _still_there(holders):
        node = holder.node
        for body in holder.bodies:
            _release(model, body, node)
        node.resize_inputs(holder.inputs)
        node.domain = holder.domain
        node.attributes.pop(_NUMBER)
        for attribute in holder.attributes:
            node.attributes.add(attribute)
    model.graph.opset_imports.pop(HOLDER_DOMAIN, None)


def _still_there(holders: list[Holder]) -> Iterator[Holder]:
    """The holders whose node, and the body it is in, no pass has removed."""
    gone: set[ir.Graph] = set()
    for holder in holders:
        if holder.node.graph is None or holder.node.graph in gone:
            gone.update(body.model.graph for body in holder.bodies)
        else:
            yield holder


def _take_out(model: ir.Model, graph: ir.Graph) -> Iterator[Holder]:
    for node in list(graph):
        attributes = graph_attributes(node)
        if not attributes:
            continue
        # Inner ones first: the values they read from outer graphs are then inputs of their holder.
        inner = [h for attribute in attributes for h in _take_out(model, attribute.as_graph())]
        own_inputs = len(node.inputs)
        for attribute in attributes:
            node.attributes.pop(attribute.name)
        bodies = tuple(_capture(model, attribute.as_graph(), node) for attribute in attributes)
        node.attributes.add(ir.AttrString(_NUMBER, str(id(node))))
        holder = Holder(node, node.domain, tuple(attributes), own_inputs, bodies)
        node.domain = HOLDER_DOMAIN
        yield holder
        yield from inner


def _capture(model: ir.Model, graph: ir.Graph, holder: ir.Node) -> Body:
    """Gives `graph` its own values for those that it reads from other graphs."""
    captured: dict[ir.Value, ir.Value] = {}
    constants: dict[ir.Value, ir.Value] = {}
    for node in graph:
        for index, value in enumerate(node.inputs):
            if value is None or value.graph is None or value.graph is graph:
                continue
            tensor = None if value.is_graph_input() else ir.convenience.get_const_tensor(value)
            known = captured if tensor is None else constants
            if value not in known:
                inner = ir.Value(name=_inner_name(model, value), type=value.type, shape=value.shape)
                known[value] = inner
                if tensor is not None:
                    inner.type = ir.TensorType(tensor.dtype)
                    inner.shape = ir.Shape(tensor.shape.numpy())
                    inner.const_value = tensor
                    graph.register_initializer(inner)
            node.replace_input_with(index, known[value])
    first = len(holder.inputs)
    holder.resize_inputs(first + len(captured))
    for index, (value, inner) in enumerate(captured.items(), first):
        holder.replace_input_with(index, value)
        graph.inputs.append(inner)
    graph.opset_imports.update(model.graph.opset_imports)
    return Body(
        ir.Model(graph, ir_version=model.ir_version),
        tuple(captured.values()),
        first,
        {inner: value for value, inner in constants.items()},
    )


def _inner_name(model: ir.Model, value: ir.Value) -> str | None:
    """The value's own name, except that passes know inputs that hosts feed by the input's name."""
    if value.name in HOST_INPUTS and value not in model.graph.inputs:
        return f"{value.name} (computed)"
    return value.name


def _release(model: ir.Model, body: Body, holder: ir.Node) -> None:
    """Lets the body read its former values again, or the values with which passes replaced them."""
    graph = body.model.graph
    for inner, value in zip(body.captured, holder.inputs[body.first :], strict=False):
        assert value is not None
        ir.convenience.replace_all_uses_with(inner, value)
        graph.inputs.remove(inner)
    for inner, value in body.constants.items():
        if inner.uses():
            source = value.producer()
            if source is not None and source.graph is None:
                continue  # a Constant that is gone: the body keeps it
            if source is None and not value.is_initializer():
                model.graph.register_initializer(value)
            ir.convenience.replace_all_uses_with(inner, value)
        if inner.is_initializer():
            del graph.initializers[inner.name or ""]
    for domain, version in graph.opset_imports.items():
        model.graph.opset_imports.setdefault(domain, version)
    graph.opset_imports.clear()
