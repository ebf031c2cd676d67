"""A model's nodes, as `explain` describes them, and which reads which."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path

import onnx_ir as ir
from onnx_ir.passes.common import ShapeInferencePass

from ort_aie_ep.explain.explain import GONE, Explanation, NodeFate
from ort_aie_ep.graph_passes.planning import expand_plans
from ort_aie_ep.graph_passes.unique_names import name_nodes
from ort_aie_ep.graph_passes.value_types import infer_types
from ort_aie_ep.graph_passes.walk import attribute, graph_attributes, is_op
from ort_aie_ep.models.onnx_file import load_model

# A dimension that ONNX's inference does not know, and None if a file leaves out its name.
_UNNAMED = re.compile(r"unk__\d+|None|\?")
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
        reads: values that it reads, including weights.
        writes: values that it writes.
    """

    label: str
    op: str
    reads: tuple[Tensor, ...] = ()
    writes: tuple[Tensor, ...] = ()
    fate: NodeFate | None = None


@dataclass(frozen=True)
class DrawnGraph:
    """Nodes in graph order, and edges (from, to) between their indices."""

    nodes: tuple[DrawnNode, ...]
    edges: tuple[tuple[int, int], ...]


def read_graph(explanation: Explanation) -> DrawnGraph:
    """Reads the graph of the explained model.

    Raises:
        AieError: the model is no longer there, or is damaged.
    """
    model = load_model(Path(explanation.model))
    name_nodes(model)
    expand_plans(model)
    _complete_types(model, Path(explanation.model))
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


def without_folded(graph: DrawnGraph) -> tuple[set[int], tuple[tuple[int, int], ...]]:
    """The nodes that are computed when the model runs, and the edges between them, including edges
    that lead through folded nodes. Inputs that no remaining node reads are left out."""
    folded = {
        place
        for place, node in enumerate(graph.nodes)
        if node.fate is not None and node.fate.runs == GONE
    }
    above: dict[int, set[int]] = {place: set() for place in range(len(graph.nodes))}
    for source, target in graph.edges:
        above[target].add(source)
    for place in TopologicalSorter(above).static_order():
        through = above[place] & folded
        above[place] = (above[place] - folded).union(*(above[source] for source in through))
    edges = [(s, t) for t, sources in above.items() if t not in folded for s in sources]
    joined = {place for edge in edges for place in edge}
    shown = {
        place
        for place, node in enumerate(graph.nodes)
        if place not in folded and (node.fate is not None or place in joined)
    }
    return shown, tuple(sorted(edges))


def _complete_types(model: ir.Model, file: Path) -> None:
    """Adds types and shapes that the file leaves out and ONNX can infer to the main graph's values.

    ONNX does not know MatMulNBits, so the inference runs on a copy of the model that has MatMul in
    its place.
    """
    lacking = {
        value.name: value
        for node in model.graph
        for value in node.outputs
        if value.name and (value.shape is None or value.dtype is None)
    }
    if not lacking:
        return
    copy = load_model(file)
    infer_types(copy)
    for node in copy.graph:
        if is_op(node, "MatMulNBits", domain="com.microsoft") and node.outputs[0].shape is None:
            k, n = attribute(node, "K", 0), attribute(node, "N", 0)
            dtype = node.outputs[0].dtype or ir.DataType.FLOAT
            matrix = ir.val(f"{node.outputs[0].name}.matrix", dtype, [k, n])
            copy.graph.inputs.append(matrix)
            node.domain, node.op_type = "", "MatMul"
            node.resize_inputs(2)
            node.replace_input_with(1, matrix)
            node.attributes.clear()
    ShapeInferencePass(check_type=False, strict_mode=False, data_prop=True)(copy)
    for node in copy.graph:
        for value in node.outputs:
            if (own := lacking.get(value.name or "")) is not None:
                own.type, own.shape = own.type or value.type, own.shape or value.shape


def _read_by(node: ir.Node) -> Iterator[ir.Value]:
    """The values that a node reads, directly and in its bodies."""
    yield from _given(node.inputs)
    for attr in graph_attributes(node):
        yield from _given(attr.as_graph().outputs)


def _given(values: Sequence[ir.Value | None]) -> Iterator[ir.Value]:
    """The values that are present; a tensor without elements stands for an absent one."""
    for value in values:
        if value is not None and (value.shape is None or list(value.shape) != [0]):
            yield value


def _tensor(value: ir.Value) -> Tensor:
    known = value if value.const_value is None else value.const_value
    dtype, shape = known.dtype, known.shape
    kind = "unknown type" if dtype is None else _TYPES.get(dtype, dtype.name.lower())
    if shape is None:
        return Tensor(value.name or "", f"{kind} of unknown shape")
    dims = ", ".join("?" if _UNNAMED.fullmatch(name := str(dim)) else name for dim in shape)
    return Tensor(value.name or "", f"{kind} [{dims}]")
