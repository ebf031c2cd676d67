"""EPContext models of AieExecutionProvider: packed once, opened many times."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest
from attention_calls import attributes, flow_attention, given_attributes, random_inputs
from op_models import FLOAT32, NEEDS_QUANTISED_CACHES, one_op_model, run, session_options
from projection_calls import activations, make_weights
from provider_calls import DATA, MODELS, devices, needs_provider, registered

from ort_aie_ep.models.folder import find_model
from ort_aie_ep.running.generate import Decoder
from ort_aie_ep.runtime.provider import NAME

Array = npt.NDArray[Any]
pytestmark = needs_provider


@pytest.fixture(scope="module", autouse=True)
def library() -> Iterator[None]:
    with registered():
        yield


def session(
    model: Path | bytes, context: Path | None = None, **config: str
) -> onnxruntime.InferenceSession:
    options = session_options()
    options.log_severity_level = 4
    if context is not None:
        options.add_session_config_entry("ep.context_enable", "1")
        options.add_session_config_entry("ep.context_file_path", str(context))
    for key, value in config.items():
        options.add_session_config_entry(f"ep.{key}", value)
    options.add_provider_for_devices(devices()[:1], {})
    source = model if isinstance(model, bytes) else str(model)
    return onnxruntime.InferenceSession(source, options, enable_fallback=False)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A context model of the test Llama."""
    session(DATA / "llama" / "model.onnx", tmp_path / "ctx.onnx")
    return tmp_path / "ctx.onnx"


@pytest.mark.parametrize("name", MODELS)
def test_a_context_model_gives_the_same_logits(name: str, tmp_path: Path) -> None:
    source = find_model(DATA / name)
    first = Decoder(session(source.model, tmp_path / "ctx.onnx"), source, 64)
    again = Decoder(session(tmp_path / "ctx.onnx"), source, 64)
    tokens = np.random.default_rng(0).integers(3, first.vocabulary, 40)
    for part in np.split(tokens, [20, 21, 39]):
        np.testing.assert_array_equal(again.forward(part), first.forward(part))
    graph = onnx.load(tmp_path / "ctx.onnx", load_external_data=False).graph
    left = {node.op_type for node in graph.node}
    assert "EPContext" in left
    assert not left & {"MatMulNBits", "GroupQueryAttention"}


@pytest.mark.parametrize("zero_points", [False, True])
@pytest.mark.parametrize("dtype", [np.dtype(np.float32), np.dtype(np.float16)])
def test_bias_and_zero_points_are_kept(
    zero_points: bool, dtype: np.dtype[Any], tmp_path: Path
) -> None:
    w = make_weights(40, 320, zero_points=zero_points, dtype=dtype)
    a, bias = activations(3, 320, dtype=dtype), activations(40, dtype=dtype)
    inputs = {"A": a, "B": w.b, "scales": w.scales, "zero_points": w.zero_points, "g_idx": None,
              "bias": bias}  # fmt: skip
    given = {"K": 320, "N": 40, "bits": 4, "block_size": 32}
    model = one_op_model("MatMulNBits", inputs, {"Y": a.dtype}, given, domain="com.microsoft",
                         constants=("B", "scales", "zero_points", "bias"))  # fmt: skip
    expected = run(session(model, tmp_path / "ctx.onnx"), {"A": a})["Y"]
    np.testing.assert_array_equal(run(session(tmp_path / "ctx.onnx"), {"A": a})["Y"], expected)


@NEEDS_QUANTISED_CACHES
@pytest.mark.parametrize("bits", [8, 4])
def test_a_quantised_cache_and_its_scales_are_kept(bits: int, tmp_path: Path) -> None:
    a = attributes(k_quant_type="PER_TENSOR", v_quant_type="PER_CHANNEL", kv_cache_bit_width=bits)
    inputs = random_inputs(a, 3, lengths=(20,), capacity=32)
    cache = inputs["past_key"]
    assert cache is not None
    outputs = {"output": FLOAT32, "present_key": cache.dtype, "present_value": cache.dtype}
    model = one_op_model("GroupQueryAttention", inputs, outputs, given_attributes(a),
                         domain="com.microsoft", constants=("k_scale", "v_scale"),
                         dims={"past_key": cache.shape})  # fmt: skip
    expected = run(session(model, tmp_path / "ctx.onnx"), inputs)
    results = run(session(tmp_path / "ctx.onnx"), inputs)
    custom = flow_attention(a, inputs)
    for name, array in results.items():
        np.testing.assert_array_equal(array, expected[name])
        np.testing.assert_array_equal(array, custom[name])


def test_an_output_that_is_declared_with_another_type_is_refused(tmp_path: Path) -> None:
    # ONNX Runtime allocates what the model declares, and EPContext takes any type.
    w = make_weights(40, 320, zero_points=False)
    inputs = {"A": activations(3, 320), "B": w.b, "scales": w.scales}
    given = {"K": 320, "N": 40, "bits": 4, "block_size": 32}
    model = one_op_model("MatMulNBits", inputs, {"Y": inputs["A"].dtype}, given,
                         domain="com.microsoft", constants=("B", "scales"))  # fmt: skip
    session(model, tmp_path / "ctx.onnx")
    context = onnx.load(tmp_path / "ctx.onnx", load_external_data=False)
    context.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    (tmp_path / "changed.onnx").write_bytes(context.SerializeToString())
    with pytest.raises(Exception, match="output 0 is float16 in the model, expected float"):
        run(session(tmp_path / "changed.onnx"), {"A": inputs["A"]})


def test_weights_lie_beside_once_and_nothing_else_is_left(written: Path) -> None:
    assert sorted(path.name for path in written.parent.iterdir()) == ["ctx.onnx", "ctx.onnx.aie"]
    # Q4NX of the model is 10 tensors; the tied embedding shares one.
    graph = onnx.load(written, load_external_data=False).graph
    offsets = [
        line.split()[1]
        for node in graph.node
        for attribute in node.attribute
        if attribute.name == "notes"
        for line in attribute.s.decode().splitlines()
        if line.startswith("weights")
    ]
    assert len(offsets) == len(set(offsets)) + 1


def test_constants_of_attention_lie_beside_once_too(written: Path) -> None:
    graph = onnx.load(written, load_external_data=False).graph
    assert not {"cos_cache", "sin_cache"} & {tensor.name for tensor in graph.initializer}
    notes = [
        attribute.s.decode()
        for node in graph.node
        for attribute in node.attribute
        if attribute.name == "notes" and "op FlowAttention" in attribute.s.decode()
    ]
    assert len(notes) == 2
    places = [[line for line in note.splitlines() if line.startswith("constant")] for note in notes]
    assert places[0] == places[1]
    assert [line.split()[1] for line in places[0]] == ["7", "8"]


def damage(path: Path, change: str) -> None:
    data = bytearray(path.read_bytes())
    if change == "missing":
        path.unlink()
        return
    if change == "short":
        data = data[:-4096]
    elif change == "tiny":
        data = data[:100]
    elif change == "format":
        data = bytearray(bytes(data).replace(b"format 1\n", b"format 9\n", 1))
    elif change == "foreign":
        data[:18] = b"something different"[:18]
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("missing", "ctx.onnx.aie, the weights of the EPContext model, cannot be opened: No such"),
        ("short", "bytes, expected .*; generate the context model again"),
        ("tiny", "100 bytes are no context file"),
        ("format", "has format 9 of version .*, this library reads format 1; generate"),
        ("foreign", "is no context file; generate the context model again"),
    ],
)
def test_a_damaged_file_is_refused_by_name(written: Path, change: str, message: str) -> None:
    damage(written.with_name("ctx.onnx.aie"), change)
    with pytest.raises(Exception, match=message):
        session(written)


def test_a_file_of_another_generation_is_refused(written: Path, tmp_path: Path) -> None:
    session(DATA / "llama" / "model.onnx", tmp_path / "other.onnx")
    other = tmp_path / "other.onnx.aie"
    other.rename(written.with_name("ctx.onnx.aie"))
    with pytest.raises(Exception, match="belongs to another generation of the model"):
        session(written)


def test_an_existing_context_model_and_its_weights_stay(written: Path) -> None:
    before = {path.name: path.read_bytes() for path in written.parent.iterdir()}
    with pytest.raises(Exception, match="exists already"):
        session(DATA / "llama" / "model.onnx", written)
    assert {path.name: path.read_bytes() for path in written.parent.iterdir()} == before


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (b"outputs 0", b"outputs 7", "it has 1 outputs, expected one at 7"),
        (b"outputs 0", b"outputs -5", "it has 1 outputs, expected one at -5"),
        (b"outputs 0", b"outputs -1", "output 0 of Q4NXMatMul is missing"),
        (b"outputs 0", b"outputs 0 0", "Q4NXMatMul has 1 outputs, the recipe 2"),
        (b"inputs 0 -1 -1", b"inputs 9 -1 -1", "it has 1 inputs, expected one at 9"),
        (b"inputs 0 -1 -1", b"inputs 0 -1", "Q4NXMatMul has 3 inputs, the recipe 2"),
        (b"inputs 0 -1 -1", b"inputs 0 -1 x", "line 'inputs 0 -1 x' is not understood"),
        (b"op Q4NXMatMul", b"op Conv", "line 'op Conv' is not understood"),
        (b"op Q4NXMatMul\n", b"", "no operator is named"),
        (b"op Q4NXMatMul", b"op Q4NXMatMul\nop Q4NXMatMul", "line 'op Q4NXMatMul' is not"),
        (b"int bits 4", b"int bits 1", "attribute bits of Q4NXMatMul is 1, expected 2 to 4"),
        (b"int bits 4", b"int bits 4\nint bits 4", "line 'int bits 4' is not understood"),
        (b"int bits 4", b"int bits 4 4", "line 'int bits 4 4' is not understood"),
        (b"int bits 4", b"int speed 4", "Q4NXMatMul has no attribute speed"),
        (b"int bits 4", b"float scale 0x1p-3", "Q4NXMatMul has no attribute scale"),
        (b"int format 1\n", b"", "attribute format of Q4NXMatMul is missing"),
        (b"int format 1", b"int format 2", "the model has format 2, this library reads format 1"),
        (b"weights", b"# weights", "is not understood"),
        (b"op Q", b"constant 2 0 4096 4 1\nop Q", r"the bias is \(1\), expected \("),
        (b"op Q", b"constant 2 9 4096 4 1\nop Q", "line 'constant 2 9 4096 4 1' is not understood"),
        (
            b"op Q",
            b"constant 2 5 4096 8 1\nop Q",
            "input 2 of Q4NXMatMul cannot be a constant int64",
        ),
        (
            b"op Q",
            b"constant 0 0 4096 8 1\nop Q",
            "input 0 of Q4NXMatMul cannot be a constant float",
        ),
        (b"op Q", b"constant 3 0 4096 4 1\nop Q", "Q4NXMatMul has no input 3"),
    ],
)
def test_a_damaged_recipe_is_refused(
    written: Path, before: bytes, after: bytes, message: str
) -> None:
    model = onnx.load(written, load_external_data=False)
    notes = [a for node in model.graph.node for a in node.attribute if a.name == "notes"]
    damaged = next(a for a in notes if b"op Q4NXMatMul" in a.s)
    assert before in damaged.s
    damaged.s = damaged.s.replace(before, after)
    onnx.save(model, written)
    with pytest.raises(Exception, match=message):
        session(written)


def test_embedding_and_unwritable_places_are_refused(tmp_path: Path) -> None:
    source = DATA / "llama" / "model.onnx"
    with pytest.raises(Exception, match=r"ep\.context_embed_mode=1: weights are written to a"):
        session(source, tmp_path / "ctx.onnx", context_embed_mode="1")
    with pytest.raises(Exception, match=r"ctx\.onnx"):
        session(source, tmp_path / "nowhere" / "ctx.onnx")
    assert not list(tmp_path.iterdir())


def test_compatibility_is_that_of_the_format(written: Path) -> None:
    metadata = {p.key: p.value for p in onnx.load(written, load_external_data=False).metadata_props}
    assert metadata[f"ep_compatibility_info.{NAME}"] == "format=1"
