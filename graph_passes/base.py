"""What all passes share: the report of each node's fate, and the kinds of passes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter import MatchResult, pattern

from ort_aie_ep import _native
from ort_aie_ep.graph_passes.walk import node_label, producer

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

    `body`: the bodies of If, Loop or Scan that it is in, "then_branch of 'if'"; often none.
    `weight_bytes`, `token_bytes`: of the source, as work.py counts them.
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
    """Outcomes of the nodes that some pass looked at, in graph order of their first look.

    Attributes:
        outcomes: by node.
        layers: float weights that were asked to be replaced, and what each lost once written.
    """

    outcomes: dict[str, NodeOutcome] = field(default_factory=dict)
    layers: FloatLayers | None = None

    def replaced(self, node: ir.Node, becomes: str) -> None:
        """Notes that `node` became an aie.* op."""
        self.outcomes[node_label(node)] = NodeOutcome(node_label(node), node.op_type, becomes, "")

    def fused(self, node: ir.Node, becomes: str) -> None:
        """Notes that `node`, perhaps an aie.* op already, became part of an aie.* op."""
        label = node_label(node)
        before = self.outcomes.get(label)
        op_type = before.op_type if before is not None else node.op_type
        self.outcomes[label] = NodeOutcome(label, op_type, becomes, "")

    def left(self, node: ir.Node, reason: str) -> None:
        """Notes that `node` stays as it is."""
        self.outcomes[node_label(node)] = NodeOutcome(node_label(node), node.op_type, None, reason)


class NodeRule(pattern.RewriteRuleClassBase):
    """A rule for one op of com.microsoft, with whatever optional inputs and attributes it has.

    A subclass names the op, gives the reason against a node (`why_not`, empty for none) and the
    replacement. Refusals go into the report as well as to the rewriter.
    """

    op_type: str
    becomes: str
    outputs = 1

    def __init__(self, report: Report) -> None:
        super().__init__(name=type(self).__name__)
        self.report = report

    def pattern(self, op, first):  # type: ignore[no-untyped-def]  # noqa: D102
        return getattr(op, self.op_type)(
            first,
            _domain="com.microsoft",
            _allow_other_inputs=True,
            _allow_other_attributes=True,
            _outputs=[f"out{i}" for i in range(self.outputs)],
        )

    def check(  # noqa: D102
        self, context: object, out0: ir.Value, **_: ir.Value
    ) -> MatchResult:
        result = MatchResult()
        node = producer(out0)
        reason = self.why_not(node)
        if reason:
            self.report.left(node, reason)
            return result.fail(reason, node)
        return result

    def rewrite(self, op, out0: ir.Value, **_: ir.Value):  # type: ignore[no-untyped-def]  # noqa: D102
        node = producer(out0)
        inputs, attributes = self.replacement(node)
        self.report.replaced(node, f"{DOMAIN}.{self.becomes}")
        return getattr(op, self.becomes)(
            *inputs,
            **attributes,
            format=FORMAT,
            _domain=DOMAIN,
            _version=1,
            _name=node.name,
            _outputs=self.outputs,
        )

    def why_not(self, node: ir.Node) -> str:
        """The reason to leave `node` alone, or an empty string."""
        raise NotImplementedError

    def replacement(self, node: ir.Node) -> tuple[list[ir.Value | None], dict[str, Attribute]]:
        """Inputs and attributes (but `format`) of the op that replaces `node`."""
        raise NotImplementedError


def none_value(node: ir.Node) -> ir.Value:
    """The initializer of the node's graph that stands for an input that is not given, where others
    follow: ONNX Runtime 1.23 crashes on an empty name."""
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    if NONE not in graph.initializers:
        tensor = ir.tensor(np.zeros(0, np.float32), name=NONE)
        shape, float_type = ir.Shape([0]), ir.TensorType(ir.DataType.FLOAT)
        graph.register_initializer(
            ir.Value(name=NONE, shape=shape, type=float_type, const_value=tensor)
        )
    return graph.initializers[NONE]
