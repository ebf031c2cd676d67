"""Unique names of nodes and values, in all graphs of a model.

Before: nodes without a name or with the same name; values of two bodies with the same name, which
        ONNX allows
After:  each node has a name: "Attention -> y" if it had none, "name -> y" if others had the same.
        Reports, explanations and --keep identify nodes by name. Names of values in bodies differ
        from all others, because passes derive names from names
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import onnx_ir as ir

from ort_aie_ep.graph_passes.base import HOST_INPUTS
from ort_aie_ep.graph_passes.walk import free_name


def name_nodes(model: ir.Model) -> None:
    """Gives names to the nodes of the main graph and of all bodies."""
    nodes = list(model.graph.all_nodes())
    used = Counter(node.name for node in nodes if node.name)
    taken: set[str | None] = set(used)
    for node in nodes:
        if node.name and used[node.name] == 1:
            continue
        result = node.outputs[0].name if node.outputs else ""
        node.name = free_name(f"{node.name or node.op_type} -> {result}", taken)
        taken.add(node.name)


def name_values(model: ir.Model) -> None:
    """Renames values of bodies that have the name of another value, or of a host's input."""
    main, *bodies = model.graphs()
    taken = {value.name for value in _values(main)} | HOST_INPUTS
    values = [value for body in bodies for value in _values(body)]
    free = taken | {value.name for value in values}
    for value in values:
        if value.name in taken:
            value.name = free_name(value.name or "", free)
            free.add(value.name)
        taken.add(value.name)


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    """The values that a graph itself has; outputs that are left out have no name."""
    yield from dict.fromkeys((*graph.inputs, *graph.initializers.values()))
    for node in graph:
        yield from (value for value in node.outputs if value.name)
