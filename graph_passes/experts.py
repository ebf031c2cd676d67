"""com.microsoft.QMoE -> aie.Q4NXMoE.

Before: QMoE(input, router_probs, fc1.., fc2.., fc3..?, .., router_weights?)
After:  Q4NXMoE(input, router_probs, W_gate, W_down, W_up?, bias_gate?, bias_up?, bias_down?,
        router_weights?) with W (experts, ceil(N/32), ceil(K/256), 5120; of 2 bits 3072, of 8 bits
        9472) uint8
"""

from __future__ import annotations

import onnx_ir as ir

from ort_aie_ep.graph_passes.base import Attribute, NodeRule, Report, none_value
from ort_aie_ep.graph_passes.planning import read_experts
from ort_aie_ep.graph_passes.walk import input_at
from ort_aie_ep.graph_passes.weights.expert_weights import PackedExperts

ROUTER_WEIGHTS = 14


class QMoEToQ4NX(NodeRule):
    """Replaces each eligible QMoE."""

    op_type = "QMoE"
    becomes = "Q4NXMoE"

    def __init__(self, report: Report, packed: PackedExperts) -> None:
        super().__init__(report)
        self.packed = packed

    def why_not(self, node: ir.Node) -> str:  # noqa: D102
        return read_experts(node)["why_not"]

    def replacement(self, node: ir.Node) -> tuple[list[ir.Value | None], dict[str, Attribute]]:  # noqa: D102
        experts = read_experts(node)
        inputs: list[ir.Value | None] = [node.inputs[0], node.inputs[1]]
        inputs += [
            None if constant is None else self.packed.value(node, constant)
            for constant in experts["constants"]
        ]
        inputs.append(input_at(node, ROUTER_WEIGHTS))
        while inputs[-1] is None:
            inputs.pop()
        return [value or none_value(node) for value in inputs], experts["attributes"]
