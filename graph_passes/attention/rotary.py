"""RotaryEmbedding, ONNX's (opset 23) and com.microsoft's, of an attention's queries and keys, and
tables of rotations."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from ort_aie_ep.graph_passes.attention.node import Layout
from ort_aie_ep.graph_passes.base import Report
from ort_aie_ep.graph_passes.walk import (
    attribute,
    fixed_dim,
    input_at,
    made_by,
    node_label,
    only_reader,
    rank,
)
from ort_aie_ep.graph_passes.weights.streamed import RotaryTable

OP_TYPE, MIXED_TYPE = "RotaryEmbedding", "MRotaryEmbedding"


@dataclass(frozen=True)
class Rotation:
    """The tables of a RotaryEmbedding; without `positions`, cos and sin have a row per token."""

    cos: ir.Value
    sin: ir.Value
    positions: ir.Value | None
    interleaved: int


@dataclass(frozen=True)
class Rotations:
    """Queries and keys before they are rotated in the same way, and the nodes that rotate them."""

    query: ir.Value
    key: ir.Value
    rotation: Rotation
    nodes: tuple[ir.Node, ir.Node]


def frequencies_name(cos: str) -> str:
    """The name of the frequencies that stand for a table and that of the sines."""
    return f"{cos}.frequencies"


def computed_rotation(node: ir.Node, inputs: dict[str, ir.Value | None]) -> dict[str, int | float]:
    """Puts frequencies in the place of tables that are made of them, among the inputs of an
    aie.FlowAttention that is to replace `node`; returns the attributes that it then needs."""
    cos, sin = inputs.get("cos_cache"), inputs.get("sin_cache")
    table = None if cos is None else cos.const_value
    both = table is not None and sin is not None and isinstance(sin.const_value, RotaryTable)
    if not both or not isinstance(table, RotaryTable) or table.dtype != ir.DataType.FLOAT:
        return {}
    assert cos is not None
    name = frequencies_name(cos.name or "")
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    if name not in graph.initializers:
        tensor = ir.tensor(table.frequencies, name=name)
        shape, float_type = ir.Shape(table.frequencies.shape), ir.TensorType(table.dtype)
        value = ir.Value(name=name, shape=shape, type=float_type, const_value=tensor)
        graph.register_initializer(value)
    inputs |= {"cos_cache": None, "sin_cache": None, "rotary_frequencies": graph.initializers[name]}
    return {"rotary_positions": table.shape.numpy()[0], "rotary_magnitude": float(table.magnitude)}


def read_rotations(
    query: ir.Value, key: ir.Value, layout: Layout, report: Report
) -> Rotations | None:
    """The rotations that an attention can absorb; others are noted with their reason."""
    nodes = [_rotary(value) for value in (query, key)]
    rotated = [node for node in nodes if node is not None]
    if not rotated:
        return None
    reason, found = "", list[Rotation]()
    for node, heads in zip(nodes, (layout.heads, layout.kv_heads), strict=True):
        read = "queries or keys alone are rotated" if node is None else _read(node, heads, layout)
        if isinstance(read, Rotation):
            found.append(read)
        else:
            reason = reason or read
    if not reason and found[0] != found[1]:
        reason = "queries and keys are rotated differently"
    if reason:
        for node in rotated:
            report.left(node, reason)
        return None
    sources = [node.inputs[0] for node in rotated]
    assert sources[0] is not None
    assert sources[1] is not None
    return Rotations(sources[0], sources[1], found[0], (rotated[0], rotated[1]))


def explain_rotations(model: ir.Model, report: Report) -> None:
    """Notes why the remaining rotations stay."""
    for node in model.graph:
        value = node.outputs[0]
        mixed = made_by(value, MIXED_TYPE, domain="com.microsoft")
        if (_rotary(value) or mixed) is None or node_label(node) in report.outcomes:
            continue
        users = {user.op_type for user in node.outputs[0].consumers()}
        if users & {"FlowAttention", "GroupQueryAttention"}:
            # src/graph/fusions/rotary.cc
            reason = (
                "the attention cannot do it: that needs queries and keys that are rotated alike "
                "and read by it alone, tables of known width and one position for each token, "
                "(batch, sequence)"
            )
        elif "Attention" in users:
            reason = "the Attention that it feeds stays on the CPU EP"
        elif users:
            reason = f"it feeds {', '.join(sorted(users))}, not an Attention"
        else:
            reason = "its result is an output of the graph, and no Attention's input"
        report.left(node, reason)


def _rotary(value: ir.Value) -> ir.Node | None:
    return made_by(value, OP_TYPE) or made_by(value, OP_TYPE, domain="com.microsoft")


def _read(node: ir.Node, heads: int, layout: Layout) -> Rotation | str:
    if only_reader(node.outputs[0]) is None:
        return "others read the rotated value as well"
    if node.domain == "":
        cos, sin, positions = (input_at(node, i) for i in (1, 2, 3))
    else:
        positions, cos, sin = (input_at(node, i) for i in (1, 2, 3))
        if attribute(node, "scale", 1.0) != 1.0 or attribute(node, "is_packed_batching", 0):
            return "scale or is_packed_batching is not at its default"
        if rank(positions) != 2:
            return "position_ids is not (batch, sequence); a single offset means something else"
    source = node.inputs[0]
    assert cos is not None
    assert sin is not None
    assert source is not None
    if rank(cos) != (3 if positions is None else 2):
        return "the rank of its cosines is not known"
    width = fixed_dim(cos, 2 if positions is None else 1)
    if width is None or 2 * width != (attribute(node, "rotary_embedding_dim", 0) or layout.dim):
        return f"its cosines have {width} columns; expected half the rotated width"
    if not layout.split and attribute(node, "num_heads", 0) not in (0, heads):
        return f"num_heads is {attribute(node, 'num_heads', 0)}, that of the attention {heads}"
    if cos.dtype != source.dtype or sin.dtype != source.dtype:
        return "cosines or sines differ in type from the values they rotate"
    return Rotation(cos, sin, positions, attribute(node, "interleaved", 0))
