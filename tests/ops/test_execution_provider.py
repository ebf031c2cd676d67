"""AieExecutionProvider on models as the builder writes them."""

from __future__ import annotations

import contextlib
import gc
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from model_folders import DATA, LEFT, MODELS, NO_CONTEXT, few
from onnx import TensorProto, helper
from op_models import (
    model_of,
    one_op_model,
    onnx_tensor,
    open_session,
    run,
    session_options,
)
from projection_calls import Weights, activations, make_weights, q4nx_model
from provider_calls import devices, needs_provider, provider_session

import ort_aie_ep
from ort_aie_ep.explain.explain import CLAIMS, GONE, LEAVES, explain
from ort_aie_ep.models.folder import find_model
from ort_aie_ep.running.generate import Decoder
from ort_aie_ep.runtime.provider import NAME

Array = npt.NDArray[Any]
pytestmark = [needs_provider, pytest.mark.usefixtures("provider")]


def assigned(open_session_: onnxruntime.InferenceSession) -> Counter[str]:
    """Operators that the provider received."""
    return Counter(
        node.op_type
        for part in open_session_.get_provider_graph_assignment_info()
        if part.ep_name == NAME
        for node in part.get_nodes()
    )


def to_half(model: ir.Model) -> None:
    """Makes every float32 of a builder's model float16, as `-p int4 -e cuda` writes it."""
    single, half = ir.DataType.FLOAT, ir.DataType.FLOAT16
    graph = model.graph
    gates = [node for node in graph if node.op_type == "LinearAttentionGate"]
    kept = {value for gate in gates for value in gate.inputs[1:3]}  # these are float32 in any model
    for value in graph.initializers.values():
        if value in kept:
            continue
        tensor = value.const_value
        if tensor is not None and tensor.dtype == single:
            value.const_value = ir.tensor(tensor.numpy().astype(np.float16), name=value.name)
    nodes = list(graph.all_nodes())  # also of bodies of If
    for node in nodes:
        value = node.attributes.get("value")
        tensor = value.as_tensor() if value is not None else None
        if tensor is not None and tensor.dtype == single:  # of Constant or ConstantOfShape
            node.attributes.add(ir.AttrTensor("value", ir.tensor(tensor.numpy().astype("f2"))))
    values = [*graph.inputs, *graph.initializers.values(), *(v for n in nodes for v in n.outputs)]
    for value in values:
        if value.dtype == single and value not in kept:
            value.type = ir.TensorType(half)


@pytest.mark.parametrize("name", few(MODELS))
def test_whole_float16_models_equal_their_compilation(name: str, tmp_path: Path) -> None:
    shutil.copytree(DATA / name, tmp_path / "source")
    model = ir.load(tmp_path / "source" / "model.onnx")
    to_half(model)
    ir.save(model, tmp_path / "source" / "model.onnx")
    ort_aie_ep.compile(tmp_path / "source", tmp_path / "compiled")
    source, compiled = find_model(tmp_path / "source"), find_model(tmp_path / "compiled")
    ours = Decoder(provider_session(source.model), source, 64)
    theirs = Decoder(open_session(str(compiled.model)), compiled, 64)
    tokens = np.random.default_rng(0).integers(3, ours.vocabulary, 40)
    for part in np.split(tokens, [20, 21, 22, 39]):
        np.testing.assert_array_equal(ours.forward(part), theirs.forward(part))


# Operators with weights or a cache; others are claimed because they are between these.
OPS = {
    f"com.microsoft.{op}"
    for op in ("MatMulNBits", "GroupQueryAttention", "GatherBlockQuantized", "QMoE")
}
# The nodes that compute seqlens_k from the mask; MODELS have no other nodes of these types.
LENGTHS = {"Cast", "Gather", "ReduceSum", "Shape", "Sub"}


# Models in which ONNX Runtime moves Transposes, which makes other steps.
TURNED = {"lfm2", "lfm2_moe"}


@pytest.mark.parametrize("name", few(MODELS, also={*LEFT, "lfm2_moe"}))
def test_both_doors_claim_the_same_nodes(name: str) -> None:
    explanation = explain(DATA / name, provider=True)
    nodes = explanation.nodes
    assert len(explanation.provider_plans) == len(explanation.plans)
    claims = sum(n.provider == CLAIMS for n in nodes)
    assert name in TURNED or sum(explanation.provider_plans) == claims
    doors = {n.node: (n.becomes != "", n.provider) for n in nodes if n.op in OPS}
    assert set(doors.values()) == {(True, CLAIMS)}
    assert {(n.becomes != "", n.provider) for n in nodes if n.provider and n.runs != GONE} == {
        (True, CLAIMS), (False, LEAVES)
    }  # fmt: skip
    # The rest is claimed too, except what ONNX Runtime folded.
    left = {n.op for n in nodes if n.provider == LEAVES}
    assert left == LENGTHS | LEFT.get(name, set())
    claimed = assigned(provider_session(DATA / name / "model.onnx"))
    assert name in TURNED or sum(claimed.values()) == claims


LEVELS = onnxruntime.GraphOptimizationLevel


def recipes(model: Path) -> list[str]:
    """The recipes of its aie.Plan or EPContext nodes. EPContext nodes say more about constants,
    which aie.Plan nodes have as inputs; that is left out."""
    attributes = [a for n in onnx.load(model, load_external_data=False).graph.node
                  for a in n.attribute if a.name in ("recipe", "notes")]  # fmt: skip
    return [re.sub(r"^(inputs|constant) .*\n", "", a.s.decode(), flags=re.M) for a in attributes]


@pytest.mark.parametrize(
    "name", few((m for m in MODELS if m not in NO_CONTEXT | TURNED), also=LEFT)
)
@pytest.mark.parametrize(
    "level",
    [
        pytest.param(LEVELS.ORT_DISABLE_ALL, marks=pytest.mark.in_turn),
        pytest.param(LEVELS.ORT_ENABLE_BASIC, marks=pytest.mark.in_turn),
        LEVELS.ORT_ENABLE_ALL,
    ],
)
def test_both_doors_make_the_same_plan(
    name: str, level: onnxruntime.GraphOptimizationLevel, tmp_path: Path
) -> None:
    def at_level(options: onnxruntime.SessionOptions) -> None:
        options.graph_optimization_level = level

    assert_same_plans(DATA / name, tmp_path, at_level)


def assert_same_plans(
    source: Path, work: Path, change: Callable[[onnxruntime.SessionOptions], object]
) -> None:
    ort_aie_ep.compile(source, work / "compiled")
    provider_session(source / "model.onnx", context=work / "context.onnx", change=change)
    plans = recipes(work / "compiled" / "model.onnx")
    assert recipes(work / "context.onnx") == plans != []


@pytest.mark.parametrize("name", ["gemma3", "llama", "phi3", "qwen3"])
def test_fixed_dimensions_change_neither_plan_nor_result(name: str, tmp_path: Path) -> None:
    """As add_free_dimension_override sets them, for a session that only decodes."""
    source = find_model(DATA / name)

    def fix(options: onnxruntime.SessionOptions) -> None:
        for dimension in ("batch_size", "sequence_length"):
            options.add_free_dimension_override_by_name(dimension, 1)

    assert_same_plans(DATA / name, tmp_path, fix)
    free, one = (
        Decoder(provider_session(source.model, change=change), source, 64)
        for change in (lambda _: None, fix)
    )
    for token in np.split(np.random.default_rng(0).integers(3, free.vocabulary, 4), 4):
        np.testing.assert_array_equal(one.forward(token), free.forward(token))


def test_numerics_are_a_provider_option() -> None:
    w, a = make_weights(40, 320), activations(3, 320)
    model = projection(w, a)
    plain, int8 = (
        run(provider_session(model, p), {"A": a})["Y"] for p in ({}, {"numerics": "int8"})
    )
    assert not np.array_equal(plain, int8)


def test_a_session_entry_is_an_option_of_the_provider_unless_it_has_that_itself() -> None:
    w, a = make_weights(40, 320), activations(3, 320)
    model = projection(w, a)

    def result(provider: dict[str, str], entry: str) -> Array:
        return run(
            provider_session(model, provider, entries={"ort_aie.numerics": entry}), {"A": a}
        )["Y"]

    int8 = run(provider_session(model, {"numerics": "int8"}), {"A": a})["Y"]
    np.testing.assert_array_equal(result({}, "int8"), int8)
    np.testing.assert_array_equal(result({"numerics": "int8"}, "bf16"), int8)
    with pytest.raises(Exception, match=r"'targt'.*'target'"):
        provider_session(model, entries={"ort_aie.targt": "host"})


def projection(w: Weights, a: Array) -> bytes:
    inputs = {"A": a, "B": w.b, "scales": w.scales}
    given = {"K": w.k, "N": w.n, "bits": 4, "block_size": 32}
    return one_op_model("MatMulNBits", inputs, {"Y": a.dtype}, given, domain="com.microsoft",
                        constants=("B", "scales"))  # fmt: skip


def assert_left(model: bytes, reason: str, capfd: pytest.CaptureFixture[str]) -> None:
    options = session_options()
    options.log_severity_level = 1
    options.add_provider_for_devices(devices()[:1], {})
    # The node then goes to the CPU EP, which refuses it in some versions of ONNX Runtime.
    with contextlib.suppress(Exception):
        onnxruntime.InferenceSession(model, options, enable_fallback=False)
    assert f"'the_node' stays on another execution provider: {reason}" in capfd.readouterr().err


def test_blocked_weights_are_left_with_their_reason(capfd: pytest.CaptureFixture[str]) -> None:
    """ONNX Runtime makes a MatMulNBits of the pair, but only after it has asked the provider."""
    codes = helper.make_tensor("codes", TensorProto.INT4, (64, 32), np.zeros(64 * 32, np.int8))
    scales = onnx_tensor("scales", np.ones((2, 32), np.float32))
    nodes = [
        helper.make_node("DequantizeLinear", ["codes", "scales"], ["W"], name="the_node", axis=0,
                         block_size=32),
        helper.make_node("MatMul", ["A", "W"], ["Y"]),
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("A", 1, ["rows", 64])],
        [helper.make_tensor_value_info("Y", 1, None)],
        [codes, scales],
    )
    assert_left(
        model_of(graph).SerializeToString(),
        "ONNX Runtime merges it with the MatMul after it into a MatMulNBits",
        capfd,
    )


def mapped(path: Path) -> bool:
    """Whether this process has a file mapped into its memory."""
    return any(
        line.endswith(f" {path}")
        for line in Path("/proc/self/maps").read_text(errors="replace").split("\n")
    )


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_a_large_table_is_mapped_from_the_data_file(tmp_path: Path) -> None:
    w = make_weights(64, 64)
    table = np.random.default_rng(2).normal(size=(4096, 64)).astype(np.float32)  # 1 MB
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["A"]),
        helper.make_node("MatMulNBits", ["A", "B", "scales"], ["Y"], domain="com.microsoft",
                         K=64, N=64, bits=4, block_size=32),
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["rows"])],
        [helper.make_tensor_value_info("Y", 1, None)],
        [onnx_tensor("table", table), onnx_tensor("B", w.b), onnx_tensor("scales", w.scales)],
    )
    onnx.save_model(
        model_of(graph), tmp_path / "model.onnx", save_as_external_data=True, location="data"
    )
    ids = np.array([7, 0, 4095])
    ours = provider_session(tmp_path / "model.onnx")
    assert assigned(ours) == {"Gather": 1, "MatMulNBits": 1}
    expected = run(provider_session(projection(w, table[:3])), {"A": table[ids]})["Y"]
    np.testing.assert_array_equal(run(ours, {"ids": ids})["Y"], expected)
    assert mapped(tmp_path / "data")
    del ours
    gc.collect()
    assert not mapped(tmp_path / "data")


@pytest.mark.parametrize("held_by", ["branch", "main graph", "data file of the main graph"])
def test_nodes_of_a_branch_are_taken_where_their_weights_are_seen(
    held_by: str, tmp_path: Path
) -> None:
    w, a = make_weights(320, 320), activations(3, 320)
    tensors = [onnx_tensor("B", w.b), onnx_tensor("scales", w.scales)]
    given = {"K": 320, "N": 320, "bits": 4, "block_size": 32}
    product = helper.make_node(
        "MatMulNBits", ["A", "B", "scales"], ["P"], domain="com.microsoft", **given
    )
    result = helper.make_tensor_value_info("P", TensorProto.FLOAT, [None, 320])
    own = tensors if held_by == "branch" else []
    yes = helper.make_graph([product], "yes", [], [result], own)
    no = helper.make_graph([helper.make_node("Neg", ["A"], ["P"])], "no", [], [result])
    inputs = [
        helper.make_tensor_value_info("A", TensorProto.FLOAT, [None, 320]),
        helper.make_tensor_value_info("on", TensorProto.BOOL, []),
    ]
    node = helper.make_node("If", ["on"], ["Y"], then_branch=yes, else_branch=no)
    y = helper.make_tensor_value_info("Y", TensorProto.FLOAT, [None, 320])
    graph = helper.make_graph([node], "g", inputs, [y], [] if own else tensors)
    external = held_by.startswith("data file")
    onnx.save_model(
        model_of(graph), tmp_path / "model.onnx", save_as_external_data=external, location="data"
    )
    ours = provider_session(tmp_path / "model.onnx")
    assert assigned(ours) == ({} if external else {"MatMulNBits": 1})
    expected = run(provider_session(projection(w, a)), {"A": a})["Y"]
    actual = run(ours, {"A": a, "on": np.array(True)})["Y"]
    if not external:
        np.testing.assert_array_equal(actual, expected)
    else:  # ONNX Runtime's own; here both are float32 products of weights with bfloat16 scales
        assert np.linalg.norm(actual - expected) <= 0.03 * np.linalg.norm(expected)
    np.testing.assert_array_equal(run(ours, {"A": a, "on": np.array(False)})["Y"], -a)


def test_both_doors_in_one_session() -> None:
    """A compiled model needs no registered custom ops if the provider is there."""
    w, a = make_weights(40, 320), activations(3, 320)
    model = q4nx_model(w, a)
    expected = run(open_session(model), {"A": a})["Y"]
    np.testing.assert_array_equal(run(provider_session(model), {"A": a})["Y"], expected)
