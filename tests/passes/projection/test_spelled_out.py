"""RMS norms that an exporter spelled out: those over the last dimension become one node."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import parser

from ort_aie_ep.graph_passes.projection.spelled_out import collapse_norms

CHANNELS = 16


def collapsed(*, axis: int, shape: str, opset: int) -> bool:
    """Whether x * w / sqrt(mean(x²) + epsilon), its mean over `axis`, becomes one node."""
    mean = {13: f"ReduceMean<axes = [{axis}]>(squares)", 18: "ReduceMean(squares, axes)"}[opset]
    model = parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : {opset}]>
        graph (float{shape} input) => (float{shape} output)
            <float{shape} squares, float[{CHANNELS}] w, int64[1] axes = {{{axis}}},
             float epsilon = {{0.000001}}> {{
            x = Identity(input)
            squares = Mul(x, x)
            mean = {mean}
            more = Add(mean, epsilon)
            root = Sqrt(more)
            normed = Div(x, root)
            y = Mul(w, normed)
            output = Identity(y)
        }}"""
    )
    weight = np.random.default_rng(0).random(CHANNELS, np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    graph_model = ir.from_proto(model)
    collapse_norms(graph_model)
    return any(node.op_type == "SimplifiedLayerNormalization" for node in graph_model.graph)


@pytest.mark.parametrize("opset", [13, 18])
@pytest.mark.parametrize(
    ("axis", "shape"),
    [(-1, "[b,s,16]"), (2, "[b,s,16]"), (3, "[b,4,s,16]"), (-1, "[b,4,s,16]"), (1, "[s,16]")],
)
def test_a_norm_over_the_last_dimension_becomes_one_node(opset: int, axis: int, shape: str) -> None:
    assert collapsed(axis=axis, shape=shape, opset=opset)


@pytest.mark.parametrize("opset", [13, 18])
@pytest.mark.parametrize(
    ("axis", "shape"), [(1, "[b,s,16]"), (-2, "[b,s,16]"), (2, "[b,4,s,16]"), (2, "")]
)
def test_a_norm_over_another_or_an_unknown_dimension_stays(
    opset: int, axis: int, shape: str
) -> None:
    assert not collapsed(axis=axis, shape=shape, opset=opset)
