"""A bias after a projection -> the projection's input.

Before: Add(Q4NXMatMul(A, W), bias), bias a constant (N)
After:  Q4NXMatMul(A, W, bias)
"""

from __future__ import annotations

import onnx_ir as ir
from onnxscript.rewriter import MatchResult, RewriteRule, pattern

from ort_aie_ep.graph_passes.base import DOMAIN, Report, attribute, producer

BECOMES = "Q4NXMatMul"


class Bias(pattern.RewriteRuleClassBase):
    """Fuses the addition of a bias into the projection before it."""

    def __init__(self, report: Report) -> None:
        super().__init__(name="Bias", remove_nodes=True)
        self.report = report

    def pattern(self, op, a, w, bias):  # type: ignore[no-untyped-def]  # noqa: D102
        product = op.Q4NXMatMul(
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
        self.report.fused(producer(total), f"{DOMAIN}.{BECOMES}")
        return getattr(op, BECOMES)(
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
    return list(Bias.rule(report).commute())
