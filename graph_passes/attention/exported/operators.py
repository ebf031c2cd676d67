"""The operators allowed on the path of queries, keys, values and scores, and the inputs whose
values may reach a mask.

A proof by probes says nothing about numbers that no probe contains, and an operator may act only on
those: a Clip at 8 leaves normal random numbers unchanged, and a mask may look for one token of a
vocabulary. So only operators that cannot do this may touch the data: those that move numbers, those
that are linear in each operand, and the few others that attention consists of, in their places.
"""

from __future__ import annotations

import onnx_ir as ir

from ort_aie_ep.graph_passes.attention.exported.region import Region
from ort_aie_ep.graph_passes.base import ATTENTION_MASK
from ort_aie_ep.graph_passes.projection.norm import NORMS
from ort_aie_ep.graph_passes.subgraph import MASKED, NoMatch, narrows
from ort_aie_ep.graph_passes.walk import (
    above,
    attribute,
    constant_array,
    made_by,
    node_label,
    value_inputs,
)

MOVING = {
    "Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Split", "Squeeze",
    "Tile", "Transpose", "Unsqueeze",
}  # fmt: skip
HINTS = {
    "LayerNormalization": "is a layer norm; aie.FlowAttention has RMS norms of heads",
    "ReduceMean": "belongs to a norm other than aie.FlowAttention's, which is an RMS norm of heads "
    "with one weight (head size)",
}
LINEAR = {"Add", "Div", "Einsum", "MatMul", "Mul", "Neg", "Sub", "Sum"}


def check_operators(region: Region) -> None:
    """Raises NoMatch for an operator on the data's path that may act on numbers without a probe."""
    made = region.origins()
    for node in region.nodes:
        data = [value for value in node.inputs if value is not None and made.get(value)]
        if node.op_type == "Shape" or not data:
            continue
        of = frozenset[ir.Value]().union(*(made[value] for value in data))
        reason = _why_not(region, node, data, of)
        if reason:
            raise NoMatch(
                f"{node.op_type} '{node_label(node)}' on the path of its {_path(region, of)} "
                f"{reason}"
            )


def check_values(region: Region, tables: tuple[ir.Value, ...]) -> None:
    """Raises NoMatch if values of an integer input other than attention_mask reach the result.

    Angles (`tables`) may come from any input, because their computation stays in the graph.
    """
    results = [region.output, region.keys.present, region.values.present]
    edges = {region.query, region.key, region.value, region.keys.past, region.values.past}
    edges |= {*tables, *region.shape_only}
    for value in above(results, edge=edges.__contains__, inputs=value_inputs):
        if value.is_graph_input() and value not in edges and value.name != ATTENTION_MASK:
            raise NoMatch(
                f"its mask or its scores depend on the values of '{value.name}'; those of "
                f"'{ATTENTION_MASK}' alone are known"
            )


def _path(region: Region, of: frozenset[ir.Value]) -> str:
    """A name for data computed from `of`."""
    if region.values.past in of:
        return "result" if region.query in of else "values"
    if region.keys.past in of:
        return "scores" if region.query in of else "keys"
    if region.packed:
        return "query, key and value"
    return "query" if region.query in of else "key" if region.key in of else "value"


def _why_not(region: Region, node: ir.Node, data: list[ir.Value], of: frozenset[ir.Value]) -> str:
    """The reason against a node that reads `data`, computed from `of`, or an empty string."""
    kind, first = node.op_type, data[0] is node.inputs[0]
    if not node.domain:
        if kind == "Concat":
            return _why_not_concat(region, node, data, of)
        if kind in MOVING:
            return "" if first and len(data) == 1 else "takes places or shapes from the data"
        if kind in LINEAR:
            if kind == "Mul" and len(data) > 1:
                return "multiplies data with data"
            return "divides by data" if kind == "Div" and not (first and len(data) == 1) else ""
        if kind in NORMS or node is region.softmax:
            return ""
        if kind == "Cast":
            # A cache may be of a narrower type.
            to = ir.DataType(attribute(node, "to", 0))
            fits = to == region.keys.past.dtype or not narrows(node, region.query.dtype)
            return "" if fits else f"makes them {to.name}"
        if kind in ("IsNaN", "Max", "Tanh", "Where"):
            fits = _is_of_scores(region, node, data, of)
            return "" if fits else "may change numbers that no probe contains"
    return HINTS.get(kind, "may change numbers that no probe contains")


def _why_not_concat(
    region: Region, node: ir.Node, data: list[ir.Value], of: frozenset[ir.Value]
) -> str:
    """The reason against a Concat of scores with other values, which would join their softmax."""
    others = [value for value in node.inputs if value is not None and value not in data]
    if others and of >= {region.query, region.keys.past}:
        return (
            f"joins them with '{others[0].name}', as attention sinks are; aie.FlowAttention takes "
            "those only from head_sink of GroupQueryAttention"
        )
    return ""


def _is_of_scores(
    region: Region, node: ir.Node, data: list[ir.Value], of: frozenset[ir.Value]
) -> bool:
    """Whether an IsNaN, Max, Tanh or Where reads scores (or probabilities), as it may."""
    if not of >= {region.query, region.keys.past} or region.values.past in of:
        return False
    if node.op_type == "Tanh":
        return True  # a soft cap, which the proof compares
    if node.op_type == "IsNaN":
        return data[0] is region.softmax.outputs[0]
    if node.op_type == "Max":  # OPT keeps the scores that its mask hides finite
        floors = [constant_array(value) for value in node.inputs if value not in data]
        return len(data) == 1 and all(f is not None and bool((f <= MASKED).all()) for f in floors)
    condition, *branches = node.inputs
    # Data may be the condition of a Where only through IsNaN: the probabilities of a row that sees
    # no key are NaN.
    if condition in data and made_by(condition, "IsNaN") is None:
        return False
    return sum(branch in data for branch in branches) == 1
