"""Types that a model file omits: which follow from schemas, and which do not."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest
from onnx import parser

from ort_aie_ep.graph_passes.value_types import infer_types

LOOP = """
    <ir_version: 9, opset_import: ["" : 20]>
    graph (float[4] x, int64 n, bool on) => (float[4] y) {
        last, count = Loop(n, on, x, n) <body = step (
            int64 i, bool more, float[4] value, int64 number
        ) => (bool again, float[4] next, int64 after) {
            again = Identity(more) next = Neg(value) after = Add(number, number)
        }>
        y = Identity(last)
    }
"""
IF = """
    <ir_version: 9, opset_import: ["" : 20]>
    graph (float[4] x, bool on) => (float[4] y) {
        number, place = If(on) <
            then_branch = yes () => (float[4] a, int64[1] b) { a = Neg(x) b = Shape(x) },
            else_branch = no () => (float[4] c, int64[1] d) { c = Abs(x) d = Shape(x) }
        >
        y = Identity(number)
    }
"""
SPLIT = """
    <ir_version: 9, opset_import: ["" : 20]>
    graph (float16[4] x) => (float16[2] y) {
        first, second = Split<num_outputs = 2>(x)
        y = Add(first, second)
    }
"""


def types(text: str) -> dict[str | None, ir.DataType | None]:
    model = ir.from_proto(parser.parse_model(text))
    infer_types(model)
    return {value.name: value.dtype for node in model.graph for value in node.outputs}


@pytest.mark.parametrize(("text", "names"), [(LOOP, ("last", "count")), (IF, ("number", "place"))])
def test_values_that_come_out_of_a_body_have_the_types_of_its_outputs(
    text: str, names: tuple[str, str]
) -> None:
    onnx.checker.check_model(parser.parse_model(text))
    found = types(text)
    assert found.pop("y") == ir.DataType.FLOAT
    assert found == dict(zip(names, (ir.DataType.FLOAT, ir.DataType.INT64), strict=True))


def test_outputs_of_one_type_have_the_inputs() -> None:
    assert types(SPLIT) == dict.fromkeys(["first", "second", "y"], ir.DataType.FLOAT16)
