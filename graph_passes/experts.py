"""com.microsoft.QMoE -> aie.Q4NXMoE.

Before: QMoE(input, router_probs, fc1.., fc2.., fc3..?, .., router_weights?)
After:  Q4NXMoE(input, router_probs, W_gate, W_down, W_up?, bias_gate?, bias_up?, bias_down?,
        router_weights?) with W (experts, blocks of a form (`formats.q4nx.BlockForm`)) uint8
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from ort_aie_ep.graph_passes.base import Attribute, NodeRule, Report, none_value
from ort_aie_ep.graph_passes.planning import read_experts
from ort_aie_ep.graph_passes.walk import input_at
from ort_aie_ep.graph_passes.weights.expert_weights import PackedExperts

if TYPE_CHECKING:
    from ort_aie_ep._native import _Experts

ROUTER_WEIGHTS = 14


class QMoEToQ4NX(NodeRule):
    """Replaces each eligible QMoE."""

    op_type = "QMoE"
    becomes = "Q4NXMoE"

    def __init__(
        self, report: Report, packed: PackedExperts, *, q4nx_compatible: bool = False
    ) -> None:
        super().__init__(report)
        self.packed = packed
        self.q4nx_compatible = q4nx_compatible

    def _read(self, node: ir.Node) -> _Experts:
        return read_experts(node, q4nx_compatible=self.q4nx_compatible)

    def why_not(self, node: ir.Node) -> str:  # noqa: D102
        return self._read(node)["why_not"]

    def replacement(self, node: ir.Node) -> tuple[list[ir.Value | None], dict[str, Attribute]]:  # noqa: D102
        experts = self._read(node)
        inputs: list[ir.Value | None] = [node.inputs[0], node.inputs[1]]
        inputs += [
            None if constant is None else self.packed.value(node, constant)
            for constant in experts["constants"]
        ]
        inputs.append(input_at(node, ROUTER_WEIGHTS))
        while inputs[-1] is None:
            inputs.pop()
        return [value or none_value(node) for value in inputs], experts["attributes"]
