"""Questions about a graph: what nodes and values are, where a value comes from, what reads it.

Here: code that walks a graph, for all passes. Not here: code that changes one.
"""

from __future__ import annotations

from collections.abc import (
    Callable,
    Collection,
    Container,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
)
from typing import Any, TypeGuard, TypeVar

import numpy.typing as npt
import onnx_ir as ir

from ort_aie_ep.errors import AieError

Array = npt.NDArray[Any]
T = TypeVar("T", int, float, str)
Place = TypeVar("Place", bound=Hashable)
# Operators that read only the shape of a value.
OF_LENGTHS = ("Shape", "Size")

# --- nodes ----------------------------------------------------------------------------------------


def node_label(node: ir.Node) -> str:
    """The node's name, or what it computes if it has no name."""
    return node.name or f"{node.op_type} -> {node.outputs[0].name}"


def is_op(node: ir.Node | None, *op_types: str, domain: str = "") -> TypeGuard[ir.Node]:
    """Whether there is a node, and it is one of these operators of `domain` (ONNX's own)."""
    return node is not None and node.domain == domain and node.op_type in op_types


def attribute(node: ir.Node, name: str, default: T) -> T:
    """An attribute's value, or its default in the op's schema."""
    attr = node.attributes.get(name)
    if attr is None:
        return default
    if not isinstance(attr.value, type(default)):
        raise AieError(
            f"node '{node_label(node)}' ({node.op_type}): attribute {name} must be "
            f"{type(default).__name__}, got {attr.value!r}"
        )
    return attr.value


def graph_attributes(node: ir.Node) -> list[ir.Attr]:
    """The bodies of an If, Loop or Scan."""
    return [attr for attr in node.attributes.values() if attr.type == ir.AttributeType.GRAPH]


def permutes(node: ir.Node | None, perm: list[int]) -> TypeGuard[ir.Node]:
    """Whether a node is a Transpose by `perm`."""
    given = node.attributes.get("perm") if is_op(node, "Transpose") else None
    return given is not None and list(given.as_ints()) == perm


def input_at(node: ir.Node, index: int) -> ir.Value | None:
    """Input `index`, or None where it is absent or left empty."""
    return node.inputs[index] if index < len(node.inputs) else None


def given_inputs(node: ir.Node) -> list[ir.Value]:
    """The inputs that are not left empty."""
    return [value for value in node.inputs if value is not None]


def value_inputs(node: ir.Node) -> list[ir.Value]:
    """The inputs whose elements a node reads: none for an operator that reads only a shape."""
    return [] if node.op_type in OF_LENGTHS else given_inputs(node)


def used_output(node: ir.Node, index: int) -> ir.Value | None:
    """Output `index`, if the node has it and something reads it."""
    output = node.outputs[index] if index < len(node.outputs) else None
    return output if output is not None and is_read(output) else None


# --- values ---------------------------------------------------------------------------------------


def rank(value: ir.Value | None) -> int | None:
    """The number of dimensions, if it is known."""
    return len(value.shape) if value is not None and value.shape is not None else None


def fixed_dim(value: ir.Value | None, axis: int) -> int | None:
    """A dimension, if it is a number."""
    if value is None or value.shape is None or len(value.shape) <= axis:
        return None
    dim = value.shape[axis]
    return dim if isinstance(dim, int) else None


def same_dim(one: int | ir.SymbolicDim, other: int | ir.SymbolicDim) -> bool:
    """Whether two dimensions are known to be equal: unknown ones compare as equal, and are not."""
    known = isinstance(one, int) or one.value is not None
    return known and one == other


def type_name(*values: ir.Value | None) -> str:
    """ONNX's name of the first known type among values of the same type."""
    for value in values:
        if value is not None and value.dtype is not None:
            return value.dtype.name
    return "of unknown type"


def constant(value: ir.Value | None) -> ir.TensorProtocol | None:
    """The tensor of an initializer or a Constant node, or None for a value that is computed."""
    if value is None or value.is_graph_input():
        return None
    node = made_by(value, "Constant") if value.const_value is None else None
    given = node.attributes.get("value") if node is not None else None
    if given is not None and given.type == ir.AttributeType.TENSOR:
        tensor: ir.TensorProtocol = given.value
        return tensor  # get_const_tensor is slow
    return ir.convenience.get_const_tensor(value)


def is_fixed(value: ir.Value | None) -> bool:
    """Whether a value is an initializer that no call can replace: an input has only a default."""
    return value is not None and value.const_value is not None and not value.is_graph_input()


def constant_array(value: ir.Value | None) -> Array | None:
    """A constant as a numpy array, or None for a value that is computed."""
    tensor = constant(value)
    return None if tensor is None else tensor.numpy()


def free_name(stem: str, taken: Container[str | None]) -> str:
    """`stem`, or "stem (2)" and so on if it is taken."""
    name, number = stem, 1
    while name in taken:
        number += 1
        name = f"{stem} ({number})"
    return name


# --- what gives a value, and what reads it --------------------------------------------------------


def producer(value: ir.Value) -> ir.Node:
    """The node that computes a value that is known to be computed."""
    node = value.producer()
    assert node is not None
    return node


def made_by(value: ir.Value | None, *op_types: str, domain: str = "") -> ir.Node | None:
    """The node that computes `value`, if it is one of these operators of `domain`."""
    node = value.producer() if value is not None else None
    return node if is_op(node, *op_types, domain=domain) else None


def is_read(value: ir.Value) -> bool:
    """Whether a node, or the caller of the graph, reads `value`."""
    return bool(value.uses()) or value.is_graph_output()


def only_reader(value: ir.Value) -> ir.Node | None:
    """The node that reads `value`, if it is the only reader and reads it once."""
    uses = value.uses()
    return next(iter(uses))[0] if len(uses) == 1 and not value.is_graph_output() else None


def before(value: ir.Value, *op_types: str, domains: tuple[str, ...] = ("",)) -> ir.Value:
    """`value` before any of these operators, followed through their first inputs."""
    while True:
        node = value.producer()
        if node is None or node.domain not in domains or node.op_type not in op_types:
            return value
        source = input_at(node, 0)
        if source is None:
            return value
        value = source


def before_transpose(matrix: ir.Value | None) -> tuple[ir.Value | None, bool] | None:
    """A matrix before it was transposed, and whether it was; None for any other Transpose."""
    node = made_by(matrix, "Transpose")
    if node is None:
        return matrix, False
    if "perm" in node.attributes and not permutes(node, [1, 0]):
        return None
    return input_at(node, 0), True


# --- further up and down --------------------------------------------------------------------------


def reached(start: Iterable[Place], following: Mapping[Place, Collection[Place]]) -> set[Place]:
    """What `following` leads to from `start`, in one step or more."""
    found: set[Place] = set()
    waiting = [after for item in start for after in following.get(item, ())]
    while waiting:
        item = waiting.pop()
        if item not in found:
            found.add(item)
            waiting += following.get(item, ())
    return found


def above(
    values: Iterable[ir.Value],
    *,
    edge: Callable[[ir.Value], bool] = lambda value: False,
    inputs: Callable[[ir.Node], Iterable[ir.Value]] = given_inputs,
) -> Iterator[ir.Value]:
    """Values and the values they are computed from, each once, up to an `edge`, which is called for
    each of them. `inputs` returns the inputs of a node that count."""
    stack, seen = list(values), set[ir.Value]()
    while stack:
        value = stack.pop()
        if value in seen:
            continue
        seen.add(value)
        yield value
        node = None if edge(value) else value.producer()
        if node is not None:
            stack += inputs(node)


def nodes_above(
    values: Iterable[ir.Value],
    *,
    edge: Callable[[ir.Value], bool],
    inputs: Callable[[ir.Node], Iterable[ir.Value]] = given_inputs,
) -> list[ir.Node]:
    """The nodes that compute `values`, sources first, up to an `edge`, which is called for each
    value found, even one that no node computes."""
    nodes: dict[ir.Node, None] = {}
    stack, edges = list(values), set[ir.Value]()
    while stack:
        value = stack[-1]
        node = value.producer()
        if node in nodes or value in edges:
            stack.pop()
        elif edge(value) or node is None:
            edges.add(value)
            stack.pop()
        else:
            waiting = [v for v in inputs(node) if v not in edges and v.producer() not in nodes]
            if waiting:
                stack += waiting
            else:
                nodes[node] = None
                stack.pop()
    return list(nodes)


def below(node: ir.Node, limit: int) -> Iterator[ir.Node]:
    """The nodes that follow, as long as each first result has one reader; at most `limit`."""
    for _ in range(limit):
        readers = node.outputs[0].consumers()
        if len(readers) != 1 or node.outputs[0].is_graph_output():
            return
        node = readers[0]
        yield node


def bottlenecks(value: ir.Value, limit: int) -> list[ir.Value]:
    """Values on every path to `value`, nearest first, found within at most `limit` nodes."""
    graph = value.graph
    assert isinstance(graph, ir.Graph)
    position: dict[ir.Node | None, int] = {node: index for index, node in enumerate(graph)}
    frontier, found, done = {value}, [], 0
    while frontier and done < limit:
        last = max(frontier, key=lambda v: position.get(v.producer(), -1))
        node = last.producer()
        if node is None:
            break
        frontier.remove(last)
        frontier |= {v for v in node.inputs if v is not None and constant(v) is None}
        done += 1
        if len(frontier) == 1:
            found.append(next(iter(frontier)))
    return found
