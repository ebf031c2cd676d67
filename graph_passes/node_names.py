"""A name of its own for each node: reports, explanations and --keep tell nodes apart by name.

Before: nodes without a name, or of one name, which ONNX allows
After:  each is named, in every graph of the model; "Attention -> y" where it had no name, and
        "name -> y" where others had the same
"""

from __future__ import annotations

from collections import Counter

import onnx_ir as ir


def name_nodes(model: ir.Model) -> None:
    """Names the nodes of the main graph and of all graphs inside it."""
    nodes = list(model.graph.all_nodes())
    used = Counter(node.name for node in nodes if node.name)
    taken = set(used)
    for node in nodes:
        if node.name and used[node.name] == 1:
            continue
        result = node.outputs[0].name if node.outputs else ""
        name = stem = f"{node.name or node.op_type} -> {result}"
        number = 1
        while name in taken:
            number += 1
            name = f"{stem} ({number})"
        node.name = name
        taken.add(name)
