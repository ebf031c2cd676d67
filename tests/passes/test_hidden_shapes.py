"""Shapes of hidden states: which are computed from the tokens, and which stay."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import parser
from optimum_models import quantise, write_export

from ort_aie_ep.explain.explain import explain
from ort_aie_ep.graph_passes.hidden_shapes import read_shapes_off_tokens

ASKED = """
    <ir_version: 9, opset_import: ["" : 20]>
    graph (int64[{tokens}] {name}, float[7, 6] table) => (int64[{rank}] shape)
    <float[{tokens}, 12] wide> {{
        hidden = Gather(table, {name})
        wide = Concat<axis = -1>(hidden, hidden)
        asked = Shape{attributes}(wide)
        shape = Identity(asked)
    }}
"""


def asked(**changes: str) -> ir.Model:
    given = {"tokens": "batch, sequence", "name": "input_ids", "rank": "3", "attributes": ""}
    model = ir.from_proto(parser.parse_model(ASKED.format(**given | changes)))
    read_shapes_off_tokens(model)
    return model


def read(model: ir.Model) -> str | None:
    """The name of the value that the model's Shape reads."""
    (shape,) = (node for node in model.graph if node.op_type == "Shape")
    value = shape.inputs[0]
    assert value is not None
    return value.name


def test_the_shape_of_a_hidden_state_is_that_of_the_tokens_and_its_width() -> None:
    model = asked()
    assert read(model) == "input_ids"
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString())
    feeds = {"input_ids": np.zeros((2, 5), np.int64), "table": np.zeros((7, 6), np.float32)}
    assert session.run(None, feeds)[0].tolist() == [2, 5, 12]


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "others"},
        {"tokens": "?, ?"},
        {"tokens": "sequence", "rank": "2"},
        {"attributes": "<start = 1>", "rank": "2"},
    ],
)
def test_other_shapes_stay(changes: dict[str, str]) -> None:
    assert read(asked(**changes)) == "wide"


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_an_export_is_one_plan(name: str, tmp_path: Path) -> None:
    export = quantise(write_export(name, tmp_path / "export"), tmp_path / "quantised")
    (plan,) = explain(export).plans
    assert len(plan.steps) > 15
