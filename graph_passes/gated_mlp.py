"""gate, up, activation and multiply -> aie.Q4NXGatedMLP.

Before: Mul(activation(Q4NXMatMul(A, W_gate)), Q4NXMatMul(A, W_up)), the activation being
        SiLU as Mul(gate, Sigmoid(gate)), or Gelu(gate, approximate="tanh")
After:  Q4NXGatedMLP(A, W_gate, W_up)

Saves three tensors as wide as the MLP, which for a long prompt is most of a layer's memory traffic
outside of the weights, and up to four nodes a layer.
"""

from __future__ import annotations

import onnx_ir as ir
from onnxscript.rewriter import MatchResult, RewriteRule, pattern

from ort_aie_ep.graph_passes.base import DOMAIN, FORMAT, Report, attribute, producer

BECOMES = "Q4NXGatedMLP"
COMMON = ("K", "N", "bits", "accuracy_level")  # attributes that gate and up must share


class GatedMLP(pattern.RewriteRuleClassBase):
    """Fuses two projections of one input; those with a bias stay as they are."""

    def __init__(self, report: Report, activation: str) -> None:
        super().__init__(name=f"GatedMLP_{activation}", remove_nodes=True)
        self.report = report
        self.activation = activation

    def pattern(self, op, a, w_gate, w_up):  # type: ignore[no-untyped-def]  # noqa: D102
        gate, up = (
            op.Q4NXMatMul(a, w, _domain=DOMAIN, _allow_other_attributes=True, _outputs=[name])
            for w, name in ((w_gate, "gate"), (w_up, "up"))
        )
        if self.activation == "silu":
            activated = op.Mul(gate, op.Sigmoid(gate))
        else:
            activated = op.Gelu(gate, approximate="tanh")
        return op.Mul(activated, up, _outputs=["product"])

    def check(self, context: object, gate: ir.Value, up: ir.Value, **_: ir.Value) -> MatchResult:  # noqa: D102
        result = MatchResult()
        for name in COMMON:
            values = [attribute(producer(value), name, 0) for value in (gate, up)]
            if values[0] != values[1]:
                return result.fail(f"{name} of gate and up differ: {values}")
        return result

    def rewrite(  # type: ignore[no-untyped-def]  # noqa: D102
        self, op, a, w_gate, w_up, gate: ir.Value, up: ir.Value, product: ir.Value
    ):
        projections, last = [producer(gate), producer(up)], producer(product)
        for node in (*projections, *gate.consumers(), last):  # the activation reads gate alone
            self.report.fused(node, f"{DOMAIN}.{BECOMES}")
        given = projections[0].attributes
        attributes = {name: attribute(projections[0], name, 0) for name in COMMON if name in given}
        return getattr(op, BECOMES)(
            a,
            w_gate,
            w_up,
            **attributes,
            symmetric=min(attribute(node, "symmetric", 0) for node in projections),
            activation=self.activation,
            format=FORMAT,
            _domain=DOMAIN,
            _version=1,
            _name=last.name,
        )


def gated_mlp_rules(report: Report) -> list[RewriteRule]:
    """A rule for each activation; `Mul` matches in either order."""
    rules = [GatedMLP.rule(report, activation) for activation in ("silu", "gelu_tanh")]
    return [variant for rule in rules for variant in rule.commute()]
