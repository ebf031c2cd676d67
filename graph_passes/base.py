"""Code that all passes share: the report of each node's fate, and the kinds of passes.

There are three kinds of passes, by how much of a graph they need to see:

* one node, perhaps with its inputs: a `NodeRule`, whose refusals are reasons in the report;
* several nodes in a pattern, replaced by one node: a rewrite rule of onnxscript, whose `check`
  fails with its reason, and whose `rewrite` reports the nodes as fused;
* a graph: a function of the model, named for what it does (`infer_types`, `fuse_steps`), which
  takes the report if it replaces nodes.

A pass's docstring shows the graph before and after. `pipeline.py` has their order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from ort_aie_ep import _native
from ort_aie_ep.graph_passes.walk import is_op, node_label

if TYPE_CHECKING:
    from ort_aie_ep.graph_passes.weights.float_weights import FloatLayers

DOMAIN = "aie"
FORMAT: int = _native.FORMAT
NONE = "ort_aie.none"
NO_OPERATOR = "no aie operator"
# The integer inputs of a decoder that hosts feed by name.
ATTENTION_MASK, POSITION_IDS, INPUT_IDS = "attention_mask", "position_ids", "input_ids"
HOST_INPUTS = frozenset({ATTENTION_MASK, POSITION_IDS, INPUT_IDS})

Attribute = int | float | str


@dataclass(frozen=True)
class NodeOutcome:
    """What became of one node: the op that replaces it, or why it stays on the CPU EP.

    `body`: the bodies of If, Loop or Scan that it is in, "then_branch of 'if'"; often empty.
    `weight_bytes`, `token_bytes`: those of the source, as work.py counts them.
    """

    node: str
    op_type: str
    becomes: str | None
    reason: str
    body: str = ""
    weight_bytes: int = field(default=0, compare=False)
    token_bytes: int = field(default=0, compare=False)


@dataclass
class Report:
    """Outcomes of the nodes that passes examined, in graph order of the first examination.

    Attributes:
        outcomes: by node.
        layers: float weights to be replaced, and the error of each once it is written.
    """

    outcomes: dict[str, NodeOutcome] = field(default_factory=dict)
    layers: FloatLayers | None = None

    def replaced(
        self,
        node: ir.Node,
        becomes: str,
        body: str = "",
        weight_bytes: int = 0,
        token_bytes: int = 0,
    ) -> None:
        """Notes that `node` became an aie.* op."""
        label = node_label(node)
        self.outcomes[label] = NodeOutcome(
            label, node.op_type, becomes, "", body, weight_bytes, token_bytes
        )

    def fused(self, node: ir.Node, becomes: str) -> None:
        """Notes that `node`, perhaps an aie.* op already, became part of an aie.* op."""
        label = node_label(node)
        before = self.outcomes.get(label)
        op_type = before.op_type if before is not None else node.op_type
        self.outcomes[label] = NodeOutcome(label, op_type, becomes, "")

    def left(self, node: ir.Node, reason: str) -> None:
        """Notes that `node` stays as it is."""
        self.outcomes[node_label(node)] = NodeOutcome(node_label(node), node.op_type, None, reason)


class NodeRule:
    """Nodes of one kind -> aie operators, one by one.

    A subclass selects the nodes, gives the reason against one of them (`why_not`, empty for none)
    and the inputs and attributes of its replacement (`replacement`). If more than the node changes,
    it overrides `replace`. Both outcomes go into the report.
    """

    becomes: str
    op_type: str
    domain = "com.microsoft"

    def __init__(self, report: Report) -> None:
        self.report = report

    def apply(self, model: ir.Model) -> None:
        """Replaces each eligible node of the main graph."""
        for node in list(model.graph):
            if not self.takes(node):
                continue
            reason = self.why_not(node)
            if reason:
                self.report.left(node, reason)
                continue
            becomes = f"{DOMAIN}.{self.becomes_of(node)}"
            taken_in = self.replace(node)
            self.report.replaced(node, becomes)
            for other in taken_in:
                self.report.fused(other, becomes)

    def takes(self, node: ir.Node) -> bool:
        """Whether the rule applies to nodes like `node`."""
        return is_op(node, self.op_type, domain=self.domain)

    def becomes_of(self, node: ir.Node) -> str:
        """The operator that replaces `node`."""
        return self.becomes

    def why_not(self, node: ir.Node) -> str:
        """The reason to leave `node` alone, or an empty string."""
        raise NotImplementedError

    def replace(self, node: ir.Node) -> Sequence[ir.Node]:
        """Replaces `node`, against which `why_not` has no reason, with `becomes`.

        Returns the other nodes that it absorbs.
        """
        inputs, attributes = self.replacement(node)
        put_in_place(node, aie_node(node, self.becomes_of(node), inputs, attributes))
        return ()

    def replacement(self, node: ir.Node) -> tuple[list[ir.Value | None], dict[str, Attribute]]:
        """Inputs and attributes of the op that replaces `node`."""
        raise NotImplementedError


def aie_node(
    old: ir.Node,
    op_type: str,
    inputs: Sequence[ir.Value | None],
    attributes: Mapping[str, Attribute],
    outputs: int = 1,
) -> ir.Node:
    """An aie operator with the name of `old`, not yet in a graph."""
    return ir.node(
        op_type,
        inputs,
        {"format": FORMAT, **attributes},
        num_outputs=outputs,
        domain=DOMAIN,
        version=1,
        name=old.name,
    )


def put_in_place(old: ir.Node, *new: ir.Node) -> None:
    """Puts nodes in place of `old`. The outputs of the last node take the names, types and
    shapes of old's outputs, as far as both have them; nothing reads outputs of `old` that the last
    node lacks."""
    graph = old.graph
    assert isinstance(graph, ir.Graph)
    results = new[-1].outputs[: len(old.outputs)]
    replaced = old.outputs[: len(results)]
    ir.convenience.replace_nodes_and_values(graph, old, [old], new, replaced, results)


def none_value(node: ir.Node) -> ir.Value:
    """The initializer of the node's graph that stands for an absent input before other inputs: ONNX
    Runtime 1.23 crashes on an empty name."""
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    if NONE not in graph.initializers:
        tensor = ir.tensor(np.zeros(0, np.float32), name=NONE)
        graph.register_initializer(ir.val(NONE, const_value=tensor))
    return graph.initializers[NONE]
