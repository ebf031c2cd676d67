"""A bias after a projection -> the projection's input.

Before: Add(P(A, W), bias), P being Q4NXMatMul or GEMM, bias a constant (N)
After:  P(A, W, bias)
"""

from __future__ import annotations

import onnx_ir as ir
from onnxscript.rewriter import MatchResult, RewriteRule, pattern

from ort_aie_ep.graph_passes.base import DOMAIN, Report
from ort_aie_ep.graph_passes.walk import attribute, producer

PROJECTIONS = ("Q4NXMatMul", "GEMM")


class Bias(pattern.RewriteRuleClassBase):
    """Fuses the addition of a bias into the projection before it."""

    def __init__(self, report: Report, projection: str) -> None:
        super().__init__(name=f"Bias_{projection}", remove_nodes=True)
        self.report = report
        self.projection = projection

    def pattern(self, op, a, w, bias):  # type: ignore[no-untyped-def]  # noqa: D102
        product = getattr(op, self.projection)(
            a, w, _domain=DOMAIN, _allow_other_attributes=True, _outputs=["product"]
        )
        return op.Add(product, bias, _outputs=["total"])

    def check(  # noqa: D102
        self, context: object, product: ir.Value, bias: ir.Value, **_: ir.Value
    ) -> MatchResult:
        result = MatchResult()
        n = attribute(producer(product), "N", 0)
        if bias.const_value is None or bias.shape != (n,):
            return result.fail(f"the added value is no constant ({n})")
        if product.dtype is None or bias.dtype != product.dtype:
            return result.fail(f"types differ: {product.dtype} and {bias.dtype}")
        return result

    def rewrite(  # type: ignore[no-untyped-def]  # noqa: D102
        self, op, a, w, bias, product: ir.Value, total: ir.Value
    ):
        projection = producer(product)
        self.report.fused(producer(total), f"{DOMAIN}.{self.projection}")
        return getattr(op, self.projection)(
            a,
            w,
            bias,
            **{name: attr.value for name, attr in projection.attributes.items()},
            _domain=DOMAIN,
            _version=1,
            _name=projection.name,
        )


def bias_rules(report: Report) -> list[RewriteRule]:
    """`Add` matches in either order."""
    rules = [Bias.rule(report, projection) for projection in PROJECTIONS]
    return [variant for rule in rules for variant in rule.commute()]
