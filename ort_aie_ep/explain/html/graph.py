"""Who reads whom in a model, node by node as `explain` tells of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir
from onnx_ir.passes.common import ShapeInferencePass

from ort_aie_ep.explain.explain import Explanation, NodeFate
from ort_aie_ep.graph_passes.planning import expand_plans
from ort_aie_ep.graph_passes.unique_names import name_nodes
from ort_aie_ep.graph_passes.walk import graph_attributes
from ort_aie_ep.models.onnx_file import load_model

_TYPES = {ir.DataType.FLOAT: "float32", ir.DataType.DOUBLE: "float64"}


@dataclass(frozen=True)
class Tensor:
    """A value: its name, and its type and shape as text, "float32 [batch, 1, 64]"."""

    name: str
    type: str


@dataclass(frozen=True)
class DrawnNode:
    """A node, or an input or output of the model, which has no fate.

    Attributes:
        label: its name.
        op: domain.type of a node, "input" or "output".
        reads: values that it reads, weights among them.
        writes: values that it writes.
    """

    label: str
    op: str
    reads: tuple[Tensor, ...] = ()
    writes: tuple[Tensor, ...] = ()
    fate: NodeFate | None = None


@dataclass(frozen=True)
class DrawnGraph:
    """Nodes in graph order, and edges (from, to) between their places."""

    nodes: tuple[DrawnNode, ...]
    edges: tuple[tuple[int, int], ...]


def read_graph(explanation: Explanation) -> DrawnGraph:
    """The graph of the model that was explained.

    Raises:
        AieError: the model is not there any more, or is damaged.
    """
    model = load_model(Path(explanation.model))
    name_nodes(model)
    expand_plans(model)
    # Of a standard operator without a shape in the file; nothing fails without one.
    ShapeInferencePass(check_type=False, strict_mode=False, data_prop=True)(model)
    sources = list(ir.traversal.RecursiveGraphIterator(model.graph))
    inputs = [value for value in model.graph.inputs if value.uses()]
    nodes = [DrawnNode(v.name or "", "input", writes=(_tensor(v),)) for v in inputs]
    place = {value: at for at, value in enumerate(inputs)}
    for node, fate in zip(sources, explanation.nodes, strict=True):
        place |= dict.fromkeys(node.outputs, len(nodes))
        nodes.append(
            DrawnNode(
                fate.node, fate.op, tuple(map(_tensor, _given(node.inputs))),
                tuple(_tensor(value) for value in node.outputs if value.name), fate,
            )
        )  # fmt: skip
    edges = {
        (place[value], at)
        for at, node in enumerate(sources, len(inputs))
        for value in _read_by(node)
        if value in place
    }
    for value in model.graph.outputs:
        if value in place:
            edges.add((place[value], len(nodes)))
            nodes.append(DrawnNode(value.name or "", "output", reads=(_tensor(value),)))
    return DrawnGraph(tuple(nodes), tuple(sorted(edges)))


def _read_by(node: ir.Node) -> Iterator[ir.Value]:
    """What a node reads, and what its bodies give it."""
    yield from _given(node.inputs)
    for attr in graph_attributes(node):
        yield from _given(attr.as_graph().outputs)


def _given(values: Sequence[ir.Value | None]) -> Iterator[ir.Value]:
    """Values that are there; a tensor of no elements stands for one that is not."""
    for value in values:
        if value is not None and (value.shape is None or list(value.shape) != [0]):
            yield value


def _tensor(value: ir.Value) -> Tensor:
    known = value if value.const_value is None else value.const_value
    dtype, shape = known.dtype, known.shape
    kind = "unknown type" if dtype is None else _TYPES.get(dtype, dtype.name.lower())
    if shape is None:
        return Tensor(value.name or "", f"{kind} of unknown shape")
    dims = ", ".join(str(dim) if isinstance(dim, int) else str(dim.value or "?") for dim in shape)
    return Tensor(value.name or "", f"{kind} [{dims}]")
