"""EPContext models of AieExecutionProvider: packed once, opened many times."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from attention_calls import attributes, flow_attention, given_attributes, random_inputs
from model_folders import DATA
from op_models import FLOAT32, one_op_model, run
from projection_calls import activations, make_weights
from provider_calls import needs_provider, provider_session

from ort_aie_ep.runtime.provider import NAME

pytestmark = [needs_provider, pytest.mark.usefixtures("provider")]


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A context model of the test Llama."""
    provider_session(DATA / "llama" / "model.onnx", context=tmp_path / "ctx.onnx")
    return tmp_path / "ctx.onnx"


@pytest.mark.parametrize(
    ("block_size", "zero_points", "block_bytes"),
    [(32, True, 5120), (32, False, 4608), (128, True, 4352), (128, False, 4224)],
)
def test_weights_are_packed_as_small_as_their_source(
    block_size: int, zero_points: bool, block_bytes: int, tmp_path: Path
) -> None:
    n, k = 256, 1024
    w = make_weights(n, k, block_size=block_size, zero_points=zero_points)
    a = activations(1, k)
    inputs = {"A": a, "B": w.b, "scales": w.scales, "zero_points": w.zero_points}
    given = {"K": k, "N": n, "bits": 4, "block_size": block_size}
    model = one_op_model("MatMulNBits", inputs, {"Y": a.dtype}, given, domain="com.microsoft",
                         constants=("B", "scales", "zero_points"))  # fmt: skip
    provider_session(model, context=tmp_path / "ctx.onnx")
    packed = n // 32 * k // 256 * block_bytes
    stored = sum(file.stat().st_size for file in tmp_path.iterdir())
    assert packed <= stored < packed + 8192


def test_a_constant_without_elements_is_kept(tmp_path: Path) -> None:
    """For example the empty past of a model without a cache."""
    a = attributes()
    inputs = random_inputs(a, 5, lengths=(5,), capacity=8)
    past = inputs["past_key"]
    assert past is not None
    empty = np.zeros((1, past.shape[1], 0, past.shape[3]), np.float32)
    inputs |= {"past_key": empty, "past_value": empty}
    outputs = {"output": FLOAT32, "present_key": FLOAT32, "present_value": FLOAT32}
    model = one_op_model("GroupQueryAttention", inputs, outputs, given_attributes(a),
                         domain="com.microsoft",
                         constants=("past_key", "past_value"))  # fmt: skip
    first = run(provider_session(model, context=tmp_path / "ctx.onnx"), inputs)
    again = run(provider_session(tmp_path / "ctx.onnx"), inputs)
    for name, array in flow_attention(a, inputs).items():
        np.testing.assert_array_equal(first[name], array)
        np.testing.assert_array_equal(again[name], array)


def test_an_output_that_is_declared_with_another_type_is_refused(tmp_path: Path) -> None:
    # ONNX Runtime allocates what the model declares, and EPContext takes any type.
    w = make_weights(40, 320, zero_points=False)
    inputs = {"A": activations(3, 320), "B": w.b, "scales": w.scales}
    given = {"K": 320, "N": 40, "bits": 4, "block_size": 32}
    model = one_op_model("MatMulNBits", inputs, {"Y": inputs["A"].dtype}, given,
                         domain="com.microsoft", constants=("B", "scales"))  # fmt: skip
    provider_session(model, context=tmp_path / "ctx.onnx")
    context = onnx.load(tmp_path / "ctx.onnx", load_external_data=False)
    context.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    (tmp_path / "changed.onnx").write_bytes(context.SerializeToString())
    with pytest.raises(Exception, match=r"output 0 .*float16.*float"):
        run(provider_session(tmp_path / "changed.onnx"), {"A": inputs["A"]})


def test_constants_lie_beside_once_and_nothing_else_is_left(written: Path) -> None:
    assert sorted(path.name for path in written.parent.iterdir()) == ["ctx.onnx", "ctx.onnx.aie"]
    graph = onnx.load(written, load_external_data=False).graph
    (notes,) = [a for node in graph.node for a in node.attribute if a.name == "notes"]
    lines = notes.s.decode().splitlines()
    offsets = [line.split()[2] for line in lines if line.startswith("constant ")]
    # Two layers have 11 projections, of which the lm_head is the embedding too, 5 norms, and 2
    # rotary embedding tables, which both layers read.
    assert len(offsets) == len(set(offsets)) == 18
    assert {node.op_type for node in graph.node} == {
        "EPContext", "Cast", "Gather", "ReduceSum", "Shape", "Sub"
    }  # fmt: skip
    assert sum(len(tensor.raw_data) for tensor in graph.initializer) < 100


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
        (
            "missing",
            "ctx.onnx.aie, the weights of the EPContext model, is not at /.*/ctx.onnx.aie; it",
        ),
        ("short", "bytes, expected .*; generate the context model again"),
        ("tiny", "100 bytes are not a context file"),
        ("format", "has format 9 of version .*, but this library reads format 1; generate"),
        ("foreign", "is not a context file; generate the context model again"),
    ],
)
def test_a_damaged_file_is_refused_by_name(written: Path, change: str, message: str) -> None:
    damage(written.with_name("ctx.onnx.aie"), change)
    with pytest.raises(Exception, match=message):
        provider_session(written)


def test_a_file_of_another_generation_is_refused(written: Path, tmp_path: Path) -> None:
    provider_session(DATA / "llama" / "model.onnx", context=tmp_path / "other.onnx")
    other = tmp_path / "other.onnx.aie"
    other.rename(written.with_name("ctx.onnx.aie"))
    with pytest.raises(Exception, match="generation"):
        provider_session(written)


def test_a_context_model_in_memory_finds_its_weights(written: Path, tmp_path: Path) -> None:
    """Beside the model, in the folder for external initializers, or else where the hint says."""
    model = written.read_bytes()
    folder = "session.model_external_initializers_file_folder_path"
    hint = "ep.context_file_path"
    other = tmp_path / "other"
    other.mkdir()
    absent, there = str(other / written.name), str(written)
    inside, elsewhere = f"{there}.aie", f"{absent}.aie"
    for given in (
        {hint: there},
        {folder: str(tmp_path)},
        {folder: str(tmp_path), hint: absent},
        {folder: str(other), hint: there},
    ):
        provider_session(model, entries=given)
    shutil.move(inside, tmp_path / "away")
    for given, places in (
        ({}, f"{written.name}.aie"),
        ({hint: absent}, elsewhere),
        ({folder: str(other)}, elsewhere),
        ({folder: str(other), hint: there}, f"{elsewhere} or {inside}"),
        ({folder: str(tmp_path), hint: there}, inside),
    ):
        expected = f"is not at {re.escape(places)}; .* give the path of the model in {hint}"
        with pytest.raises(Exception, match=expected):
            provider_session(model, entries=given)


def test_a_context_model_of_a_context_model_is_refused(written: Path, tmp_path: Path) -> None:
    (tmp_path / "again").mkdir()
    with pytest.raises(Exception, match="EPContext"):
        provider_session(written, context=tmp_path / "again" / "ctx.onnx")
    assert not list((tmp_path / "again").iterdir())


def test_an_existing_context_model_and_its_weights_stay(written: Path) -> None:
    before = {path.name: path.read_bytes() for path in written.parent.iterdir()}
    with pytest.raises(Exception, match="ctx"):
        provider_session(DATA / "llama" / "model.onnx", context=written)
    assert {path.name: path.read_bytes() for path in written.parent.iterdir()} == before


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (r"^recipe 2", "op Q4NXMatMul", "it begins with 'op Q4NXMatMul', expected 'recipe 1'"),
        (r"^outputs ", "outputs -1 ", "its recipe has 6 outputs, but the node has 5"),
        (r"^int format 2", "int format 2\nint bits 1", "bits of Q4NX.* is 1, expected 2 to 8"),
        (r"^int format 1\n", "", "attribute format of .* is missing"),
        (r"^int format 1", "int format 2", "has format 2, but this library reads format 1"),
        (r"^constant 2 (\d+) (\d+)", r"constant 2 \1 9\2", "a constant has 9.* bytes, expected "),
        (r"^constant 2 \d+", "constant 2 9", "ctx.onnx.aie has no tensor of .* bytes at 9"),
        (r"^constant 2 \d+", "constant 2 4096000000", "has no tensor of .* bytes at 4096000000"),
    ],
)
def test_a_damaged_recipe_is_refused(written: Path, before: str, after: str, message: str) -> None:
    model = onnx.load(written, load_external_data=False)
    (notes,) = [a for node in model.graph.node for a in node.attribute if a.name == "notes"]
    damaged, times = re.subn(before, after, notes.s.decode(), count=1, flags=re.MULTILINE)
    assert times == 1
    notes.s = damaged.encode()
    onnx.save(model, written)
    again = "; (generate the context model|compile the model) again"
    with pytest.raises(Exception, match=message + ".*" + again):
        provider_session(written)


def test_a_node_with_other_inputs_than_its_recipe_is_refused(written: Path) -> None:
    model = onnx.load(written, load_external_data=False)
    (node,) = [node for node in model.graph.node if node.op_type == "EPContext"]
    node.input.append(node.input[0])
    onnx.save(model, written)
    with pytest.raises(Exception, match=r"recipe has \d+ inputs, but the node has \d+"):
        provider_session(written)


def test_embedding_and_unwritable_places_are_refused(tmp_path: Path) -> None:
    source = DATA / "llama" / "model.onnx"
    with pytest.raises(Exception, match=r"ep\.context_embed_mode=1"):
        provider_session(source, context=tmp_path / "ctx.onnx", context_embed_mode="1")
    with pytest.raises(Exception, match=r"ctx\.onnx"):
        provider_session(source, context=tmp_path / "nowhere" / "ctx.onnx")
    assert not list(tmp_path.iterdir())


def test_compatibility_is_that_of_the_format(written: Path) -> None:
    metadata = {p.key: p.value for p in onnx.load(written, load_external_data=False).metadata_props}
    assert metadata[f"ep_compatibility_info.{NAME}"] == "format=1 recipe=1"
