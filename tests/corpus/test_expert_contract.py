"""The contract of QMoE: what the installed schema names is in the corpus; and which operators the
installed ONNX Runtime has no kernels of."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from expert_models import Experts, build, experts_model
from experts import OTHER_FORMATS, OTHER_VALUES
from onnxruntime.capi import onnxruntime_pybind11_state as state
from op_models import ORT_VERSION
from recurrences import ELSEWHERE

from ort_aie_ep.graph_passes import run_passes

# Attributes of which each value is taken, or that are not looked at.
ANY_VALUE = {
    "accuracy_level",
    "activation_beta",
    "fc3_expert_weight_bits",
    "normalize_routing_weights",
    "swiglu_limit",
    "swiglu_limit_after_activation",
    "use_sparse_mixer",
}
INPUTS = {
    "input", "router_probs", "router_weights",
    *(f"fc{n}_{what}" for n in (1, 2, 3)
      for what in ("experts_weights", "scales", "experts_bias", "zero_points")),
}  # fmt: skip
ACTIVATIONS = {"swiglu", "geglu", "silu", "gelu", "relu", "identity"}


def schema() -> Any:
    """The installed ONNX Runtime's text of QMoE."""
    return next(s for s in state.get_all_operator_schema() if s.name == "QMoE")


def reason(model: onnx.ModelProto) -> str:
    """Why the QMoE stays, or an empty text."""
    (outcome,) = run_passes(ir.from_proto(model)).outcomes.values()
    assert (outcome.becomes is None) == bool(outcome.reason)
    return outcome.reason


def test_each_attribute_and_input_of_the_schema_is_in_the_contract() -> None:
    assert set(schema().attributes) <= set(OTHER_VALUES) | ANY_VALUE
    assert {value.name for value in schema().inputs} <= INPUTS | set(OTHER_FORMATS)


def test_each_activation_of_the_schema_is_in_the_contract() -> None:
    text = schema().attributes["activation_type"].description
    named = set(re.findall(r"\b(relu2?|gelu|geglu|silu|swiglu|identity)\b", text))
    assert named <= ACTIVATIONS | {OTHER_VALUES["activation_type"][0]["activation_type"]}


def test_more_experts_than_the_op_takes_are_left() -> None:
    case = Experts(experts=65537, hidden=2, inter=2, block_size=0, activation="relu", fusion=0)
    few = build(replace(case, experts=1))
    inputs = {
        place: (name, np.broadcast_to(x, (case.experts, *x.shape[1:])))
        for place, (name, x) in few.inputs.items()
    }
    model = experts_model(case, replace(few, inputs=inputs))
    assert reason(model) == "it has 65537 experts; expected at most 65536"


@pytest.mark.parametrize(
    ("place", "dims", "case"),
    [
        (2, (4, 2**62, 0), Experts(activation="relu", fusion=0)),
        (5, (4, 2**62, 0), Experts(activation="relu", fusion=0)),
        (5, (4, 2**62, 1), Experts(fp4=True)),
    ],
)
def test_dimensions_of_no_memory_are_left(place: int, dims: tuple[int, ...], case: Experts) -> None:
    model = experts_model(case)
    (tensor,) = (t for t in model.graph.initializer if t.name == model.graph.node[0].input[place])
    tensor.dims[:] = dims
    tensor.raw_data = b""
    assert "memory" in reason(model)


@pytest.mark.skipif(ORT_VERSION < (1, 32), reason="has fewer operators")
def test_operators_that_are_said_to_be_elsewhere_have_no_kernel() -> None:
    known = {schema.name for schema in state.get_all_operator_schema()}
    assert known >= set(ELSEWHERE)
    assert {kernel.op_name for kernel in state.get_all_opkernel_def()}.isdisjoint(ELSEWHERE)
