"""The ONNX standard's node tests through both doors, beside a projection and many to a model.

Whatever ONNX Runtime's CPU execution provider gets right must be right here too, with any installed
ONNX and ONNX Runtime.
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from expanded import expanded
from node_cases import (
    OF_INTEREST,
    RIGHT,
    WRONG,
    NodeCase,
    OpenSession,
    kind,
    load_cases,
    open_on_cpu,
    outcome,
    outcomes_on_cpu,
    quiet_options,
    together,
)
from onnx import TensorProto, helper
from op_models import onnx_tensor
from provider_calls import needs_provider, provider_session, registered

import ort_aie_ep
from ort_aie_ep.runtime.provider import NAME

LEFT = "left, with a reason"


@pytest.fixture(scope="module")
def right_on_cpu() -> list[NodeCase]:
    """The cases that this ONNX Runtime alone runs as the standard expects."""
    outcomes = outcomes_on_cpu()
    return [case for case in load_cases() if outcomes[case.name] == RIGHT]


def test_the_cpu_provider_runs_most(right_on_cpu: list[NodeCase]) -> None:
    """A harness with a mistake in feeding or comparing would pass few cases. Right are 1,203 of
    1,401 in ONNX Runtime 1.32. The rest have types that numpy cannot pass to ONNX Runtime (float8,
    4 and 2 bits), or are newer than ONNX Runtime, as more are in an older one."""
    assert len(right_on_cpu) >= 0.75 * len(load_cases())
    assert set().union(*(case.operators for case in right_on_cpu)) >= OF_INTEREST


def test_a_wrong_output_is_seen() -> None:
    case = next(case for case in load_cases() if case.name == "test_softmax_example")
    ((inputs, (expected,)),) = case.data
    for other in (expected * np.float32(1.01), expected[:, :-1], expected.astype(np.float64)):
        changed = replace(case, data=[(inputs, [other])])
        assert kind(outcome(changed, open_on_cpu)) == WRONG
    assert outcome(case, open_on_cpu) == RIGHT


@pytest.fixture(scope="module")
def all_right(right_on_cpu: list[NodeCase]) -> list[NodeCase]:
    """Models of many cases that are right on the CPU. Those with operators that passes examine are
    there with all inputs but the first as initializers too."""
    constants = [_with_constants(case) for case in right_on_cpu if case.operators & OF_INTEREST]
    right = [case for case in constants if case and outcome(case, open_on_cpu) == RIGHT]
    assert len(right) > 50
    return [*together(right_on_cpu), *together(right)]


@needs_provider
def test_what_the_provider_leaves_stays_right(all_right: list[NodeCase]) -> None:
    def with_provider(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
        session = provider_session(model.SerializeToString())
        parts = session.get_provider_graph_assignment_info()
        assert NAME in {part.ep_name for part in parts}
        return session

    with registered():
        assert _wrong(all_right, with_provider) == {}


@needs_provider
@pytest.mark.in_turn
def test_what_is_not_right_on_cpu_goes_wrong_alike_with_the_provider() -> None:
    """Each case alone, as one that is refused would hide the others."""
    expected = {k: kind(v) for k, v in outcomes_on_cpu().items() if v != RIGHT}
    cases = [case for case in load_cases() if case.name in expected]
    with registered():
        actual = {
            case.name: kind(outcome(case, lambda m: provider_session(m.SerializeToString())))
            for case in cases
        }
    assert _differences(actual, expected) == {}


@pytest.fixture(scope="module")
def attention() -> list[NodeCase]:
    """Without those that are newer than this ONNX Runtime: in 1.23, 20 with nonpad_kv_seqlen and
    windows."""
    cases = [case for case in load_cases() if case.is_one("Attention")]
    return [case for case in cases if case.fits_its_opset()]


def test_attention_is_compiled_and_right(attention: list[NodeCase], tmp_path: Path) -> None:
    """Every case that FlowAttention computes, including those that ONNX Runtime cannot run
    (bfloat16, windows); the others are refused with a reason."""
    expected = {case.name: LEFT if _is_left(case) else RIGHT for case in attention}
    actual = {}
    for case in attention:
        try:
            model = _compile(case.model, tmp_path / case.name)
        except ort_aie_ep.AieError as error:
            reason = re.search(r"has nothing to compile.*\n  Attention -> \w+: .", str(error))
            actual[case.name] = LEFT if reason else str(error)
        else:
            operators = [node.op_type for node in expanded(model.parent, model.name).graph]
            assert operators.count("FlowAttention") == 1, case.name
            assert "Attention" not in operators, case.name
            actual[case.name] = outcome(case, lambda _, path=model: _open(path))
    assert _differences(actual, expected) == {}
    assert list(actual.values()).count(RIGHT) >= 38


@pytest.mark.in_turn
def test_what_the_passes_leave_stays_right(all_right: list[NodeCase], tmp_path: Path) -> None:
    """All passes see the standard's nodes, which have no names, and none may change their
    results."""
    folders = (tmp_path / str(number) for number in count())

    def compiled(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
        return _open(_compile(model, next(folders)))

    assert _wrong(all_right, compiled) == {}


def _wrong(cases: list[NodeCase], open_session: OpenSession) -> dict[str, str]:
    """Names → what went wrong beside a projection, so that there is something to compile."""

    def beside(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
        return open_session(_beside_a_projection(model))

    outcomes = {case.name: outcome(case, beside) for case in cases}
    return {name: result for name, result in outcomes.items() if result != RIGHT}


def _differences(actual: dict[str, str], expected: dict[str, str]) -> dict[str, tuple[str, str]]:
    """Name → (actual, expected)."""
    assert actual.keys() == expected.keys()
    return {k: (actual[k], expected[k]) for k in expected if actual[k] != expected[k]}


def _is_left(case: NodeCase) -> bool:
    """Whether FlowAttention cannot compute it, judging by shapes and attributes."""
    (node,) = case.model.graph.node
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    given = [value.name for value in case.model.graph.input]
    arrays = dict(zip(given, case.data[0][0], strict=True))
    names = [*node.input, *[""] * (7 - len(node.input))]
    q, k, v, mask = (arrays.get(name) for name in names[:4])
    heads = {"q_num_heads": q, "kv_num_heads": v}
    of_q, of_v = (x.shape[-1] // attributes.get(key, 1) for key, x in heads.items())
    total = k.shape[-2] + (arrays[names[4]].shape[-2] if names[4] else 0)
    causal, nonpad = attributes.get("is_causal", 0) == 1, bool(names[6])
    windows = [attributes.get(f"{side}_window_size", -1) >= 0 for side in ("left", "right")]
    return (
        len(node.output) > 3  # the score matrix
        or of_q != of_v
        or of_q % 8 != 0
        or (nonpad and causal)  # places each row's queries differently
        or (nonpad and mask is not None and mask.shape[-1] < total)
        or (mask is not None and mask.ndim < 2)
        or windows[1]
        or (windows[0] and not causal)
    )


def _compile(model: onnx.ModelProto, folder: Path) -> Path:
    """The compiled model's path."""
    folder.mkdir()
    onnx.save(model, folder / "model.onnx")
    ort_aie_ep.compile(folder / "model.onnx", folder / "compiled")
    return folder / "compiled" / "model.onnx"


def _open(path: Path) -> onnxruntime.InferenceSession:
    options = quiet_options()
    options.register_custom_ops_library(ort_aie_ep.library_path())
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _beside_a_projection(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with a MatMulNBits beside it that has its own constant input and output."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    k = n = 32
    rng = np.random.default_rng(0)
    constants = {
        "beside_a": np.ones((1, k), np.float32),
        "beside_b": rng.integers(0, 256, (n, 1, 16), dtype=np.uint8),
        "beside_scales": rng.uniform(0.5, 1, n).astype(np.float32),
    }
    copy.graph.initializer.extend(onnx_tensor(name, array) for name, array in constants.items())
    copy.graph.node.append(
        helper.make_node(
            "MatMulNBits",
            list(constants),
            ["beside_y"],
            name="beside",
            domain="com.microsoft",
            K=k,
            N=n,
            bits=4,
            block_size=32,
        )
    )
    copy.graph.output.append(helper.make_tensor_value_info("beside_y", TensorProto.FLOAT, [1, n]))
    copy.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return copy


def _with_constants(case: NodeCase) -> NodeCase | None:
    """The case with all inputs but the first as initializers; None if one has a type that cannot
    be."""
    copy = onnx.ModelProto()
    copy.CopyFrom(case.model)
    (inputs, outputs), *more = case.data
    if more or not all(isinstance(value, np.ndarray) for value in inputs):
        return None
    names = [value.name for value in copy.graph.input]
    for name, value in list(zip(names, inputs, strict=True))[1:]:
        copy.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    del copy.graph.input[1:]
    return replace(case, model=copy, data=[(inputs[:1], outputs)])
