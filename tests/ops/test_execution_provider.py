"""AieExecutionProvider on models as the builder writes them."""

from __future__ import annotations

import contextlib
import gc
import re
import shutil
import sys
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from model_folders import DATA, LEFT, MODELS, NO_CONTEXT, PLANS, few
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
from provider_calls import devices, needs_provider

import ort_aie_ep
from ort_aie_ep.explain.explain import CLAIMS, LEAVES, explain
from ort_aie_ep.models.folder import find_model
from ort_aie_ep.running.generate import Decoder
from ort_aie_ep.runtime.provider import NAME

Array = npt.NDArray[Any]
pytestmark = [needs_provider, pytest.mark.usefixtures("provider")]


def session(
    model: bytes | str,
    provider: dict[str, str] | None = None,
    level: onnxruntime.GraphOptimizationLevel | None = None,
    fixed: Mapping[str, int] | None = None,
    **config: str,
) -> onnxruntime.InferenceSession:
    options = session_options()
    if level is not None:
        options.graph_optimization_level = level
    options.log_severity_level = 4
    for name, size in (fixed or {}).items():
        options.add_free_dimension_override_by_name(name, size)
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    for key, value in config.items():
        options.add_session_config_entry(key.replace("__", "."), value)
    options.add_provider_for_devices(devices()[:1], provider or {})
    return onnxruntime.InferenceSession(model, options, enable_fallback=False)


def assigned(open_session_: onnxruntime.InferenceSession) -> Counter[str]:
    """Operators that the provider received."""
    return Counter(
        node.op_type
        for part in open_session_.get_provider_graph_assignment_info()
        if part.ep_name == NAME
        for node in part.get_nodes()
    )


def test_a_device_for_the_host_says_what_runs_on_it() -> None:
    (device,) = devices()
    assert device.device.type == onnxruntime.OrtHardwareDeviceType.CPU
    assert device.ep_vendor == "ort_aie_ep"
    assert device.ep_metadata["target"] == "host"
    assert device.ep_metadata["kernels"]


@pytest.mark.parametrize("name", MODELS)
def test_whole_models_equal_their_compilation(name: str, tmp_path: Path) -> None:
    ort_aie_ep.compile(DATA / name, tmp_path / "compiled")
    source, compiled = find_model(DATA / name), find_model(tmp_path / "compiled")
    ours = Decoder(session(str(source.model)), source, 64)
    theirs = Decoder(open_session(str(compiled.model)), compiled, 64)
    tokens = np.random.default_rng(0).integers(3, ours.vocabulary, 40)
    for part in np.split(tokens, [20, 21, 22, 39]):
        np.testing.assert_array_equal(ours.forward(part), theirs.forward(part))


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
    ours = Decoder(session(str(source.model)), source, 64)
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


@pytest.mark.parametrize("name", few(MODELS, also=LEFT))
def test_both_doors_claim_the_same_nodes(name: str) -> None:
    explanation = explain(DATA / name, provider=True)
    nodes = explanation.nodes
    assert len(explanation.provider_plans) == len(explanation.plans)
    assert sum(explanation.provider_plans) == sum(n.provider == CLAIMS for n in nodes)
    doors = {n.node: (n.becomes != "", n.provider) for n in nodes if n.op in OPS}
    assert set(doors.values()) == {(True, CLAIMS)}
    assert {(n.becomes != "", n.provider) for n in nodes if n.provider} == {
        (True, CLAIMS), (False, LEAVES)
    }  # fmt: skip
    # The rest is claimed too, except what ONNX Runtime folded.
    left = {n.op for n in nodes if n.provider == LEAVES}
    assert left == LENGTHS | LEFT.get(name, set())
    claimed = assigned(session(str(DATA / name / "model.onnx")))
    assert sum(claimed.values()) == sum(n.provider == CLAIMS for n in nodes)


LEVELS = onnxruntime.GraphOptimizationLevel


def recipes(model: Path) -> list[str]:
    """The recipes of its aie.Plan or EPContext nodes. EPContext nodes say more about constants,
    which aie.Plan nodes have as inputs; that is left out."""
    attributes = [a for n in onnx.load(model, load_external_data=False).graph.node
                  for a in n.attribute if a.name in ("recipe", "notes")]  # fmt: skip
    return [re.sub(r"^(inputs|constant) .*\n", "", a.s.decode(), flags=re.M) for a in attributes]


@pytest.mark.parametrize("name", few((m for m in MODELS if m not in NO_CONTEXT), also=PLANS))
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
    assert_same_plans(DATA / name, tmp_path, PLANS.get(name, 1), level=level)


def assert_same_plans(source: Path, work: Path, count: int, **options: Any) -> None:
    ort_aie_ep.compile(source, work / "compiled")
    session(
        str(source / "model.onnx"), ep__context_enable="1",
        ep__context_file_path=str(work / "context.onnx"), **options,
    )  # fmt: skip
    plans = recipes(work / "compiled" / "model.onnx")
    assert len(plans) == count
    assert recipes(work / "context.onnx") == plans


@pytest.mark.parametrize("name", ["gemma3", "llama", "phi3", "qwen3"])
def test_fixed_dimensions_change_neither_plan_nor_result(name: str, tmp_path: Path) -> None:
    """As add_free_dimension_override sets them, for a session that only decodes."""
    source = find_model(DATA / name)
    fixed = {"batch_size": 1, "sequence_length": 1}
    assert_same_plans(DATA / name, tmp_path, 1, fixed=fixed)
    free, one = (Decoder(session(str(source.model), fixed=f), source, 64) for f in ({}, fixed))
    for token in np.split(np.random.default_rng(0).integers(3, free.vocabulary, 4), 4):
        np.testing.assert_array_equal(one.forward(token), free.forward(token))


@pytest.mark.parametrize("name", few(name for name in MODELS if name not in PLANS))
def test_a_model_is_one_region_at_every_level_of_optimisation(name: str) -> None:
    """From the embedding to the logits, with the same results."""
    folder = find_model(DATA / name)
    results = []
    for level in (LEVELS.ORT_DISABLE_ALL, LEVELS.ORT_ENABLE_BASIC, LEVELS.ORT_ENABLE_ALL):
        ours = session(str(folder.model), level=level)
        parts = ours.get_provider_graph_assignment_info()
        (region,) = [part for part in parts if part.ep_name == NAME]
        assert OPS & {f"com.microsoft.{node.op_type}" for node in region.get_nodes()}
        left = [node.op_type for part in parts if part.ep_name != NAME for node in part.get_nodes()]
        assert set(left) == LENGTHS | LEFT.get(name, set())
        decoder = Decoder(ours, folder, 32)
        tokens = np.random.default_rng(1).integers(3, decoder.vocabulary, 12)
        results.append([decoder.forward(part) for part in np.split(tokens, [9, 10])])
    for others in results[1:]:
        for one, other in zip(results[0], others, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("provider", "message"),
    [
        (
            {"numeric": "int8"},
            "option 'numeric' is unknown, the nearest is 'numerics'; expected one of target, ",
        ),
        ({"target": "gpu"}, "target=gpu is unknown; expected auto, host, xrt or sim"),
        ({"log": "loud"}, "log=loud is unknown; expected warning, quiet or trace"),
        ({"numerics": "fp8"}, "numerics=fp8 is unknown; expected auto, bf16 or int8"),
    ],
)
def test_wrong_provider_options_are_named(provider: dict[str, str], message: str) -> None:
    with pytest.raises(Exception, match=message):
        session(str(DATA / "llama" / "model.onnx"), provider)


def test_numerics_are_a_provider_option() -> None:
    w, a = make_weights(40, 320), activations(3, 320)
    model = projection(w, a)
    plain, int8 = (run(session(model, p), {"A": a})["Y"] for p in ({}, {"numerics": "int8"}))
    assert not np.array_equal(plain, int8)


def test_a_session_entry_is_an_option_of_the_provider_unless_it_has_that_itself() -> None:
    w, a = make_weights(40, 320), activations(3, 320)
    model = projection(w, a)

    def result(provider: dict[str, str], entry: str) -> Array:
        return run(session(model, provider, ort_aie__numerics=entry), {"A": a})["Y"]

    int8 = run(session(model, {"numerics": "int8"}), {"A": a})["Y"]
    np.testing.assert_array_equal(result({}, "int8"), int8)
    np.testing.assert_array_equal(result({"numerics": "int8"}, "bf16"), int8)
    with pytest.raises(Exception, match=r"'targt'.*'target'"):
        session(model, ort_aie__targt="host")


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
    ours = session(str(tmp_path / "model.onnx"))
    assert assigned(ours) == {"Gather": 1, "MatMulNBits": 1}
    expected = run(session(projection(w, table[:3])), {"A": table[ids]})["Y"]
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
    ours = session(str(tmp_path / "model.onnx"))
    assert assigned(ours) == ({} if external else {"MatMulNBits": 1})
    expected = run(session(projection(w, a)), {"A": a})["Y"]
    actual = run(ours, {"A": a, "on": np.array(True)})["Y"]
    if not external:
        np.testing.assert_array_equal(actual, expected)
    else:  # ONNX Runtime's own; here both are float32 products of weights with bfloat16 scales
        assert np.linalg.norm(actual - expected) <= 0.03 * np.linalg.norm(expected)
    np.testing.assert_array_equal(run(ours, {"A": a, "on": np.array(False)})["Y"], -a)


def test_threads_share_a_session() -> None:
    w = make_weights(96, 512)
    inputs = [activations(rows, 512) for rows in (1, 7, 1, 64)]
    ours = session(projection(w, inputs[0]))
    expected = [run(ours, {"A": a})["Y"] for a in inputs]

    def work(index: int) -> bool:
        return all(
            np.array_equal(run(ours, {"A": inputs[index]})["Y"], expected[index]) for _ in range(30)
        )

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))


def test_threads_share_a_region() -> None:
    """Each has its own temporaries and its own caches."""
    folder = find_model(DATA / "qwen3")
    ours = session(str(folder.model))
    tokens = np.random.default_rng(3).integers(3, 400, (3, 24))

    def decode(sequence: npt.NDArray[np.int64]) -> Array:
        decoder = Decoder(ours, folder, 32)
        return np.concatenate(
            [decoder.forward(part) for part in np.split(sequence, [8, 9, 10, 20])]
        )

    expected = [decode(sequence) for sequence in tokens]
    with ThreadPoolExecutor(3) as pool:
        for _ in range(5):
            for actual, alone in zip(pool.map(decode, tokens), expected, strict=True):
                np.testing.assert_array_equal(actual, alone)


def test_both_doors_in_one_session() -> None:
    """A compiled model needs no registered custom ops if the provider is there."""
    w, a = make_weights(40, 320), activations(3, 320)
    model = q4nx_model(w, a)
    expected = run(open_session(model), {"A": a})["Y"]
    np.testing.assert_array_equal(run(session(model), {"A": a})["Y"], expected)


def test_sessions_come_and_go() -> None:
    w, a = make_weights(40, 320), activations(3, 320)
    model = projection(w, a)
    first = run(session(model), {"A": a})["Y"]
    for _ in range(50):
        np.testing.assert_array_equal(run(session(model), {"A": a})["Y"], first)
