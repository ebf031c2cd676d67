"""LoRA adapters: in the model, as the builder's `adapter_path` writes them, or from a host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from adapters import with_branches, write_adapter
from builder_nodes import matmul_nbits, projection_weights
from onnx import TensorProto, helper
from op_models import model_of, onnx_tensor, open_session, run, session_options
from provider_calls import devices, needs_provider, registered

import ort_aie_ep
from ort_aie_ep.errors import AieError

LLAMA = Path(__file__).parent.parent / "data" / "llama"
BRANCHES = ("qkv_proj", "o_proj", "down_proj")
TOKENS = np.random.default_rng(0).integers(3, 500, 24)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """A model with LoRA branches, its compilation, and an adapter."""
    work = tmp_path_factory.mktemp("adapters")
    values = with_branches(LLAMA, work / "source", *BRANCHES)
    ort_aie_ep.compile(work / "source", work / "compiled")
    return work / "source", work / "compiled", write_adapter(values, work / "lora.onnx_adapter")


def logits(session: onnxruntime.InferenceSession, adapter: Path | None) -> Any:
    feeds: dict[str, Any] = {
        "input_ids": TOKENS[None],
        "attention_mask": np.ones((1, len(TOKENS)), np.int64),
    }
    for value in session.get_inputs():
        if value.name.startswith("past"):
            feeds[value.name] = np.zeros((1, value.shape[1], 0, 32), np.float32)
    options, loaded = onnxruntime.RunOptions(), onnxruntime.LoraAdapter()
    if adapter is not None:
        loaded.Load(str(adapter))
        options.add_active_adapter(loaded)
    return session.run(["logits"], feeds, options)[0][0]


def test_the_base_is_compiled_and_the_branches_stay(tmp_path: Path) -> None:
    with_branches(LLAMA, tmp_path / "source", *BRANCHES)
    result = ort_aie_ep.compile(tmp_path / "source", tmp_path / "compiled")
    kinds = {o.becomes for o in result.outcomes if o.op_type == "MatMulNBits"}
    assert kinds <= {"aie.Q4NXMatMul", "aie.Q4NXGatedMLP"}
    compiled = onnx.load(tmp_path / "compiled" / "model.onnx", load_external_data=False)
    assert sum(node.op_type == "MatMul" for node in compiled.graph.node) == 2 * 3 * 2


def test_an_adapter_that_is_loaded_takes_effect(made: tuple[Path, Path, Path]) -> None:
    source, compiled, adapter = made
    session = onnxruntime.InferenceSession(source / "model.onnx", session_options())
    ours = open_session(str(compiled / "model.onnx"))
    plain, adapted = logits(session, None), logits(session, adapter)
    assert np.abs(adapted - plain).max() > 0.5 * plain.std()
    for expected, given in ((plain, None), (adapted, adapter)):
        actual = logits(ours, given)
        # Activations of int8 on both sides, with different groups.
        assert np.sqrt(np.mean((actual - expected) ** 2)) < 0.03 * expected.std()
    # A session serves calls with and without it, in any order.
    np.testing.assert_array_equal(logits(ours, None), logits(ours, None))


@needs_provider
def test_the_provider_leaves_the_branches(made: tuple[Path, Path, Path]) -> None:
    source, compiled, adapter = made
    with registered():
        options = session_options()
        options.add_provider_for_devices(devices()[:1], {})
        session = onnxruntime.InferenceSession(str(source / "model.onnx"), options)
        ours = open_session(str(compiled / "model.onnx"))
        for given in (None, adapter):
            np.testing.assert_array_equal(logits(session, given), logits(ours, given))
        del session


def test_onnxruntime_genai_loads_adapters(made: tuple[Path, Path, Path]) -> None:
    og = pytest.importorskip("onnxruntime_genai")

    model = og.Model(str(made[1]))
    adapters = og.Adapters(model)
    adapters.load(str(made[2]), "lora")
    session = open_session(str(made[1] / "model.onnx"))
    for name in (None, "lora", None):
        params = og.GeneratorParams(model)
        params.set_search_options(max_length=40, do_sample=False)
        generator = og.Generator(model, params)
        if name is not None:
            generator.set_active_adapter(adapters, name)
        generator.append_tokens(TOKENS.astype(np.int32))
        expected = logits(session, made[2] if name else None)[-1]
        np.testing.assert_array_equal(generator.get_logits()[0, -1], expected)


# --- branches in the model, and weights that calls may replace ------------------------------------


def branch_model(rank: int, k: int, n: int, as_inputs: tuple[str, ...] = ()) -> onnx.ModelProto:
    """x -> MatMulNBits + MatMulNBits(MatMulNBits(x)), as the builder writes an adapter in int4.
    `as_inputs` names weights that are inputs with defaults."""
    base = projection_weights(n, k, prefix="base")
    a = projection_weights(rank, k, prefix="lora_A", seed=1)
    b = projection_weights(n, rank, prefix="lora_B", seed=2)
    nodes = [
        matmul_nbits("x", "a", a, rank, k, name="/q_proj/lora_A/MatMul_Q4", accuracy_level=0),
        matmul_nbits("a", "b", b, n, rank, name="/q_proj/lora_B/MatMul_Q4", accuracy_level=0),
        matmul_nbits("x", "base", base, n, k, name="/q_proj/MatMul_Q4", accuracy_level=0),
        helper.make_node("Add", ["base", "b"], ["y"], name="/q_proj/lora/Add"),
    ]
    weights = base | a | b
    graph = helper.make_graph(
        nodes,
        "main_graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "sequence", k])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", "sequence", n])],
        [onnx_tensor(name, array) for name, array in weights.items()],
    )
    for name in as_inputs:
        tensor = next(t for t in graph.initializer if t.name == name)
        graph.input.append(helper.make_tensor_value_info(name, tensor.data_type, list(tensor.dims)))
    return model_of(graph)


@pytest.mark.parametrize("rank", [4, 8, 16, 64])
def test_an_adapter_in_the_model_is_compiled(rank: int, tmp_path: Path) -> None:
    model = branch_model(rank, 320, 96)
    onnx.save(model, tmp_path / "model.onnx")
    result = ort_aie_ep.compile(tmp_path / "model.onnx", tmp_path / "compiled")
    assert [o.becomes for o in result.outcomes] == ["aie.Q4NXMatMul"] * 3 + ["aie.Add"]
    x = np.random.default_rng(0).standard_normal((2, 5, 320)).astype(np.float32)
    expected = run(open_session(model.SerializeToString()), {"x": x})["y"]
    for rows in (x, x[:1, :1]):
        session = open_session(str(tmp_path / "compiled" / "model.onnx"))
        actual = run(session, {"x": rows})["y"]
        wanted = expected[: rows.shape[0], : rows.shape[1]]
        # bfloat16 rounds the activations of both products of the branch.
        error = np.linalg.norm(actual - wanted) / np.linalg.norm(wanted)
        assert error < 2.0**-7


@pytest.mark.parametrize(
    "as_inputs", [("base.B", "base.scales"), ("lora_A.B", "lora_A.scales"), ("lora_B.scales",)]
)
def test_weights_that_a_call_may_replace_stay(as_inputs: tuple[str, ...], tmp_path: Path) -> None:
    model = branch_model(32, 320, 96, as_inputs)
    onnx.save(model, tmp_path / "model.onnx")
    result = ort_aie_ep.compile(tmp_path / "model.onnx", tmp_path / "compiled")
    left = [o for o in result.outcomes if o.becomes is None]
    assert [o.reason for o in left] == ["B, scales or zero_points are not constant"]
    x = np.random.default_rng(0).standard_normal((1, 5, 320)).astype(np.float32)
    given = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    given = {name: np.ascontiguousarray(given[name][::-1]) for name in as_inputs}
    ours = open_session(str(tmp_path / "compiled" / "model.onnx"))
    theirs = open_session(model.SerializeToString())
    for feeds in ({"x": x}, {"x": x, **given}):
        actual, expected = (session.run(["y"], feeds)[0] for session in (ours, theirs))
        assert np.linalg.norm(actual - expected) / np.linalg.norm(expected) < 2.0**-7
    assert np.abs(ours.run(["y"], {"x": x})[0] - actual).max() > 1


def test_nothing_else_to_compile_names_the_reason(tmp_path: Path) -> None:
    names = [f"{part}.{what}" for part in ("base", "lora_A", "lora_B") for what in ("B", "scales")]
    onnx.save(branch_model(32, 320, 96, tuple(names)), tmp_path / "model.onnx")
    with pytest.raises(AieError, match="constant"):
        ort_aie_ep.compile(tmp_path / "model.onnx", tmp_path / "compiled")
