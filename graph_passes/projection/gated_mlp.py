"""gate, up, activation and multiply -> aie.Q4NXGatedMLP or aie.GatedGEMM.

Before: Mul(activation(P(A, W_gate)), P(A, W_up)), P being Q4NXMatMul or GEMM, the activation
        SiLU as Mul(gate, Sigmoid(gate)), or Gelu(gate, approximate="tanh"), or FastGelu(gate); or
        gate, up = Split(MatMulNBits(A, B, ...)) and Mul(activation(gate), up): B holds both
After:  Q4NXGatedMLP(A, W_gate, W_up), or GatedGEMM of two GEMM

Saves three tensors as wide as the MLP, which for a long prompt is most of a layer's memory traffic
outside of the weights, and up to four nodes a layer.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import onnx_ir as ir
from onnxscript.rewriter import MatchResult, RewriteRule, pattern

from ort_aie_ep.graph_passes.base import DOMAIN, FORMAT, Attribute, Report
from ort_aie_ep.graph_passes.projection.matmul_nbits import matmul_weights, why_not_matmul
from ort_aie_ep.graph_passes.walk import attribute, input_at, producer
from ort_aie_ep.graph_passes.weights.packed import PackedWeights

BECOMES = {"Q4NXMatMul": "Q4NXGatedMLP", "GEMM": "GatedGEMM"}
ACTIVATIONS = {"Sigmoid": "silu", "Gelu": "gelu_tanh", "FastGelu": "gelu_tanh"}
COMMON = ("K", "N", "bits", "accuracy_level")  # attributes that gate and up must share


class _GatedRule(pattern.RewriteRuleClassBase):
    """What follows gate and up, and the node that takes its place. `function` is a node's type."""

    def __init__(self, report: Report, function: str) -> None:
        super().__init__(name=f"{type(self).__name__}_{function}", remove_nodes=True)
        self.report = report
        self.function = function

    def product(self, op: Any, gate: Any, up: Any) -> Any:
        """The pattern of what follows."""
        if self.function == "Sigmoid":
            activated = op.Mul(gate, op.Sigmoid(gate))
        elif self.function == "Gelu":
            activated = op.Gelu(gate, approximate="tanh")
        else:
            activated = op.FastGelu(gate, _domain="com.microsoft")
        return op.Mul(activated, up, _outputs=["product"])

    def fused(
        self,
        op: Any,
        becomes: str,
        projections: list[ir.Node],
        inputs: tuple[ir.Value, ir.Value, ir.Value],
        attributes: dict[str, Attribute],
        gate: ir.Value,
        product: ir.Value,
    ) -> ir.Value:
        """`becomes` of A, W_gate and W_up, which computes `product`."""
        last = producer(product)
        for node in (*projections, *gate.consumers(), last):  # the activation reads gate alone
            self.report.fused(node, f"{DOMAIN}.{becomes}")
        fused: ir.Value = getattr(op, becomes)(
            *inputs,
            **attributes,
            activation=ACTIVATIONS[self.function],
            format=FORMAT,
            _domain=DOMAIN,
            _version=1,
            _name=last.name,
        )
        return fused


class GatedMLP(_GatedRule):
    """Fuses two projections of one input; those with a bias stay as they are."""

    def __init__(self, report: Report, function: str, projection: str) -> None:
        super().__init__(report, function)
        self.projection = projection

    def pattern(self, op, a, w_gate, w_up):  # type: ignore[no-untyped-def]  # noqa: D102
        gate, up = (
            getattr(op, self.projection)(
                a, w, _domain=DOMAIN, _allow_other_attributes=True, _outputs=[name]
            )
            for w, name in ((w_gate, "gate"), (w_up, "up"))
        )
        return self.product(op, gate, up)

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
        projections = [producer(gate), producer(up)]
        given = projections[0].attributes
        attributes: dict[str, Attribute] = {
            name: attribute(projections[0], name, 0) for name in COMMON if name in given
        }
        if "symmetric" in given:
            attributes["symmetric"] = min(attribute(node, "symmetric", 0) for node in projections)
        becomes = BECOMES[self.projection]
        return self.fused(op, becomes, projections, (a, w_gate, w_up), attributes, gate, product)


class PackedGatedMLP(_GatedRule):
    """Fuses one projection whose first half is the gate; runs before MatMulNBits is replaced.

    Without a bias, as above. The builder writes it with fuse_mlp_gate_up=true.
    """

    def __init__(self, report: Report, function: str, packed: PackedWeights) -> None:
        super().__init__(report, function)
        self.packed = packed

    def pattern(self, op, a):  # type: ignore[no-untyped-def]  # noqa: D102
        both = op.MatMulNBits(
            a,
            _domain="com.microsoft",
            _allow_other_inputs=True,
            _allow_other_attributes=True,
            _outputs=["both"],
        )
        gate, up = op.Split(
            both, _allow_other_inputs=True, _allow_other_attributes=True, _outputs=["gate", "up"]
        )
        return self.product(op, gate, up)

    def check(self, context: object, both: ir.Value, gate: ir.Value, **_: ir.Value) -> MatchResult:  # noqa: D102
        result = MatchResult()
        projection, split = producer(both), producer(gate)
        reason = why_not_matmul(projection)
        if reason:
            return result.fail(reason)
        if input_at(projection, 5) is not None:
            return result.fail("gate and up have a bias")
        n, rank = attribute(projection, "N", 0), len(both.shape) if both.shape is not None else 0
        if attribute(split, "axis", 0) not in (-1, rank - 1):
            return result.fail("the split is not along the out-features")
        sizes = input_at(split, 1)
        halves = sizes is None or (
            sizes.const_value is not None and sizes.const_value.numpy().tolist() == [n // 2] * 2
        )
        if n % 2 or not halves:
            return result.fail("the split is not in halves")
        return result

    def rewrite(  # type: ignore[no-untyped-def]  # noqa: D102
        self, op, a, both: ir.Value, gate: ir.Value, up: ir.Value, product: ir.Value
    ):
        projection, split = producer(both), producer(gate)
        weights = matmul_weights(projection)
        half = weights.n // 2
        halves = [replace(weights, rows=range(first, first + half)) for first in (0, half)]
        w_gate, w_up = (self.packed.value(projection, rows) for rows in halves)
        attributes: dict[str, Attribute] = {
            **halves[0].attributes(),
            "accuracy_level": attribute(projection, "accuracy_level", 0),
            "symmetric": int(weights.zero_points is None),
        }
        return self.fused(
            op,
            BECOMES["Q4NXMatMul"],
            [projection, split],
            (a, w_gate, w_up),
            attributes,
            gate,
            product,
        )


def gated_mlp_rules(report: Report) -> list[RewriteRule]:
    """A rule for each activation and projection; `Mul` matches in either order."""
    rules = [
        GatedMLP.rule(report, function, projection)
        for function in ACTIVATIONS
        for projection in BECOMES
    ]
    return [variant for rule in rules for variant in rule.commute()]


def packed_gated_mlp_rules(report: Report, packed: PackedWeights) -> list[RewriteRule]:
    """The same for gate and up in one tensor."""
    rules = [PackedGatedMLP.rule(report, function, packed) for function in ACTIVATIONS]
    return [variant for rule in rules for variant in rule.commute()]
