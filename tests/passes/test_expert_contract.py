"""The contract of QMoE: each attribute, value and input of the installed schema is taken or left
with a reason."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from expert_models import Experts, build, experts_model
from onnxruntime.capi import onnxruntime_pybind11_state as state
from op_models import ORT_VERSION

from ort_aie_ep.graph_passes import run_passes

# Words of the reasons for attributes' other values, by attribute.
OTHER_VALUES: dict[str, tuple[dict[str, Any], str]] = {
    "activation_alpha": ({"activation_alpha": 0.0}, "activation_alpha=0"),
    "activation_type": ({"activation_type": "relu2"}, "activation_type=relu2"),
    "block_size": ({"block_size": 16}, "block_size is 16"),
    "expert_weight_bits": ({"expert_weight_bits": 3}, "fc1 has 3 bits"),
    "fc1_expert_weight_bits": ({"fc1_expert_weight_bits": 3}, "fc1 has 3 bits"),
    "fc2_expert_weight_bits": ({"fc2_expert_weight_bits": 3}, "fc2 has 3 bits"),
    "k": ({"k": 5}, "k=5; expected 1 to 4"),
    "quant_type": ({"quant_type": "fp4"}, "quant_type=fp4"),
    "swiglu_fusion": ({"swiglu_fusion": 3}, "swiglu_fusion=3"),
    "weights_prepacked": ({"weights_prepacked": 1}, "weights_prepacked=1"),
}
# Attributes of which each value is taken, or that are not looked at.
ANY_VALUE = {
    "accuracy_level",
    "activation_beta",
    "fc3_expert_weight_bits",  # test_fc3_has_the_bits_of_fc1
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
OTHER_FORMATS = (
    "fc1_global_scale", "fc2_global_scale", "fc1_act_scale", "fc2_act_scale",
    "fc1_act_block_scale", "fc2_act_block_scale",
)  # fmt: skip


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


@pytest.mark.parametrize("attribute", OTHER_VALUES)
def test_other_values_are_left_with_a_reason(attribute: str) -> None:
    given, words = OTHER_VALUES[attribute]
    assert words in reason(experts_model(Experts(attributes=given)))


@pytest.mark.parametrize("place", range(15, 21))
def test_inputs_of_other_formats_are_left_with_a_reason(place: int) -> None:
    case = Experts(biases=True)
    model = experts_model(case)
    (node,) = model.graph.node
    node.input.extend([""] * (place - len(node.input)))
    node.input.append("fc2_bias")
    name = OTHER_FORMATS[place - 15]
    if ORT_VERSION >= (1, 31):
        assert schema().inputs[place].name == name
    assert f"input {name}" in reason(model)


@pytest.mark.parametrize(
    ("case", "words"),
    [
        (Experts(fc3=True), "fc3 beside swiglu_fusion=1"),
        (Experts(fusion=0), "activation_type=swiglu with swiglu_fusion=0 needs fc3"),
        (Experts(activation="geglu", fusion=0, fc3=True), "swiglu_fusion=0 is not defined"),
    ],
)
def test_combinations_that_have_no_meaning_are_left(case: Experts, words: str) -> None:
    assert words in reason(experts_model(case))


def test_fc3_has_the_bits_of_fc1() -> None:
    case = Experts(activation="silu", fusion=0, fc3=True, bits={"fc1": 4, "fc2": 4, "fc3": 2})
    assert reason(experts_model(case)) == "fc3 has 2 bits, but fc1 has 4"


@pytest.mark.parametrize(
    ("place", "words"),
    [
        (2, "fc1's or fc2's weights are not constant"),
        (3, "fc1's scales are not constant"),
        (4, "fc1's biases are not constant"),
        (5, "fc1's or fc2's weights are not constant"),
        (12, "fc2's zero points are not constant"),
    ],
)
def test_weights_that_a_call_gives_are_left(place: int, words: str) -> None:
    model = experts_model(Experts(biases=True, zero_points=True))
    (node,) = model.graph.node
    (tensor,) = (t for t in model.graph.initializer if t.name == node.input[place])
    value = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
    model.graph.input.append(value)
    model.graph.initializer.remove(tensor)
    assert words in reason(model)


@pytest.mark.parametrize("place", [2, 3, 4, 5, 6, 7, 11, 12])
def test_shapes_that_do_not_fit_are_left_with_both(place: int) -> None:
    case = Experts(biases=True, zero_points=True)
    built = build(case)
    name, array = built.inputs[place]
    built.inputs[place] = (name, array[..., :-1])
    text = reason(experts_model(case, built))
    assert "expected" in text
    shape = ", ".join(str(dim) for dim in array.shape)
    assert place == 2 or f"({shape})" in text


def test_missing_scales_are_left_with_a_reason() -> None:
    model = experts_model(Experts())
    model.graph.node[0].input[3] = ""
    assert reason(model) == "fc1's scales are missing"


def test_more_experts_than_the_op_takes_are_left() -> None:
    case = Experts(experts=65537, hidden=2, inter=2, block_size=0, activation="relu", fusion=0)
    few = build(replace(case, experts=1))
    inputs = {
        place: (name, np.broadcast_to(x, (case.experts, *x.shape[1:])))
        for place, (name, x) in few.inputs.items()
    }
    model = experts_model(case, replace(few, inputs=inputs))
    assert reason(model) == "it has 65537 experts; expected at most 65536"


@pytest.mark.parametrize(("place", "dims"), [(2, (4, 2**62, 0)), (5, (4, 2**62, 0))])
def test_dimensions_of_no_memory_are_left(place: int, dims: tuple[int, ...]) -> None:
    model = experts_model(Experts(activation="relu", fusion=0))
    (tensor,) = (t for t in model.graph.initializer if t.name == model.graph.node[0].input[place])
    tensor.dims[:] = dims
    tensor.raw_data = b""
    assert "memory" in reason(model)
