"""GGUF files as compiled folders: logits of llama.cpp, forms of weights, options, sessions."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest

pytest.importorskip("gguf")

from expanded import expanded
from gguf import GGMLQuantizationType as Kind
from gguf import GGUFReader, GGUFWriter, quants
from gguf_files import (
    KEYED,
    KEYED_TRUTH,
    LAST,
    MODELS,
    POSITIONS,
    TRUTH,
    dequantised,
    mixed,
    tokens_of,
    write,
)

import ort_aie_ep
from ort_aie_ep import machine
from ort_aie_ep.compiler.fastflowlm import export_q4nx, exporter
from ort_aie_ep.errors import AieError
from ort_aie_ep.formats.file_forms import FILE_FORMS
from ort_aie_ep.graph_passes.walk import attribute
from ort_aie_ep.models.folder import find_model
from ort_aie_ep.prediction.compiled import read_plans
from ort_aie_ep.running.generate import Decoder
from ort_aie_ep.running.loop import sampling_of
from ort_aie_ep.running.turns import Sampling
from ort_aie_ep.runtime.sessions import Options, open_session

Array = npt.NDArray[Any]
TINY = replace(MODELS["mistral"], shape=replace(MODELS["mistral"].shape, layers=1))


def logits(folder: Path, ids: list[int]) -> Array:
    found = find_model(folder)
    session = open_session(found.model, Options(numerics="bf16"))
    return Decoder(session, found, len(ids)).forward(np.array(ids))


def relative(actual: Array, expected: Array) -> float:
    return float(np.sqrt(np.mean((actual - expected) ** 2) / np.mean(expected**2)))


def test_tokens_are_chosen_as_the_publisher_says_or_as_llama_cpp_does(tmp_path: Path) -> None:
    said = {"general.sampling.temp": 0.6, "general.sampling.top_k": 20}
    for name, keys, expected in (
        ("said", said, Sampling(0.6, 0.95, 20, 0.05)),
        ("default", {}, Sampling(0.8, 0.95, 40, 0.05)),
        ("greedy", {"general.sampling.temp": 0.0}, Sampling()),
    ):
        path = write(tmp_path / f"{name}.gguf", TINY, mixed, **keys)
        ort_aie_ep.compile(path, tmp_path / name)
        assert sampling_of(find_model(tmp_path / name)) == expected, name
        search = json.loads((tmp_path / name / "genai_config.json").read_text())["search"]
        assert search["do_sample"] is (expected.temperature > 0)  # for onnxruntime-genai
    path = write(tmp_path / "bad.gguf", TINY, mixed, **{"general.sampling.temp": "hot"})
    with pytest.raises(AieError, match=r"general\.sampling\.temp must be a number"):
        ort_aie_ep.compile(path, tmp_path / "bad")


@pytest.mark.parametrize("family", MODELS)
def test_logits_are_those_of_llama_cpp(family: str, tmp_path: Path) -> None:
    model = MODELS[family]
    path = write(tmp_path / "m.gguf", model, mixed)
    result = ort_aie_ep.compile(path, tmp_path / "compiled")
    assert not [outcome.node for outcome in result.outcomes if outcome.becomes is None]
    # The truth is float32. In bfloat16 activations and weights are rounded by up to 2^-8 of them in
    # each of some ten products, one after the other; what is in a wrong place is over 0.3.
    actual = logits(result.path, tokens_of(model))
    assert relative(actual[-LAST:], np.load(TRUTH)[family]) < 10 * 2**-8


def test_floats_compute_as_the_same_weights_in_the_builders_graph(tmp_path: Path) -> None:
    path = dequantised(write(tmp_path / "q.gguf", MODELS["llama"], mixed), tmp_path / "m.gguf")
    result = ort_aie_ep.compile(path, tmp_path / "compiled")
    actual = logits(result.path, tokens_of(MODELS["llama"]))
    # In float32, one after the other in another order than in llama.cpp.
    assert relative(actual[-LAST:], np.load(TRUTH)["llama"]) < 1e-4
    quantised = ort_aie_ep.compile(path, tmp_path / "quantised", quantize="q8nx")
    assert {layer.form for layer in quantised.layers} == {"q8nx"}


@pytest.mark.parametrize("name", KEYED)
def test_keys_change_logits_as_in_llama_cpp(name: str, tmp_path: Path) -> None:
    model = KEYED[name]
    path = write(tmp_path / "m.gguf", model, lambda name: Kind.F32)
    result = ort_aie_ep.compile(path, tmp_path / "compiled")
    actual = logits(result.path, tokens_of(model, POSITIONS[-1] + 1))[list(POSITIONS)]
    # Floats as above; llama.cpp reads GELU from a table in float16, once in each layer.
    limit = model.shape.layers * 2**-11 if model.architecture == "gemma3" else 1e-4
    assert relative(actual, np.load(KEYED_TRUTH)[name]) < limit
    ignored = next(note for note in result.notes if note.startswith("not used, as in llama.cpp: "))
    assert f"{model.architecture}.attention.clamp_kqv" in ignored


def weights_of(folder: Path) -> dict[str, set[tuple[str, int, int]]]:
    """Type, bits, and whether minima are stored, by operator."""
    found: dict[str, set[tuple[str, int, int]]] = {}
    for node in expanded(folder).graph:
        if node.op_type.startswith("Q4NX"):
            kind = attribute(node, "type", "")
            bits, minima = (attribute(node, each, 0) for each in ("bits", "minima"))
            found.setdefault(node.op_type, set()).add((kind, bits, minima))
    return found


@pytest.mark.parametrize("kind", [form.upper() for form in FILE_FORMS])
def test_a_file_keeps_its_bits(kind: str, tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", MODELS["mistral"], lambda name: Kind[kind])
    result = ort_aie_ep.compile(path, tmp_path / "compiled")
    assert not result.layers
    # The embedding is that of the lm_head: the same blocks.
    assert weights_of(result.path) == {
        op: {(kind.lower(), 0, 0)} for op in ("Q4NXGather", "Q4NXMatMul", "Q4NXGatedMLP")
    }
    form, stored = FILE_FORMS[kind.lower()], ir.load(result.path / "model.onnx").graph.initializers
    blocks = {name: value for name, value in stored.items() if name.endswith(f"_{form.name}")}
    tensors = {each.name: each for each in GGUFReader(path).tensors}
    matrices = [each for each in tensors.values() if each.tensor_type == Kind[kind]]
    assert sum(each.const_value.nbytes for each in blocks.values()) == sum(
        each.n_bytes for each in matrices
    )
    for ours, theirs in (
        ("lm_head", "token_embd"),
        ("model.layers.1.mlp.down_proj", "blk.1.ffn_down"),
    ):
        tensor = tensors[f"{theirs}.weight"]
        k, n = map(int, tensor.shape)
        data = blocks[f"{ours}.MatMul.weight_{form.name}"].const_value.numpy()
        actual = form.dequantize(np.ascontiguousarray(data), n, k)
        np.testing.assert_array_equal(actual, quants.dequantize(tensor.data, Kind[kind]))


@pytest.mark.parametrize(
    ("gate", "up", "down"),
    [("Q4_K", "Q4_K", "Q6_K"), ("Q4_0", "Q6_K", "Q8_0"), ("BF16", "Q4_K", "F16")],
)
def test_experts_keep_their_bits(gate: str, up: str, down: str, tmp_path: Path) -> None:
    model, kinds = MODELS["gpt-oss"], {"gate": gate, "up": up, "down": down}

    def types(name: str) -> Kind:
        return Kind[kinds[name.split("_")[1]] if "exps" in name else "Q8_0"]

    path = write(tmp_path / "m.gguf", model, types)
    result = ort_aie_ep.compile(path, tmp_path / "compiled")
    assert not result.layers
    reader = {each.name: each for each in GGUFReader(path).tensors}
    tensors = {side: reader[f"blk.0.ffn_{side}_exps.weight"] for side in kinds}
    values = {
        side: quants.dequantize(each.data, each.tensor_type) for side, each in tensors.items()
    }
    (node, *_) = [each for each in expanded(result.path).graph if "MoE" in each.op_type]
    inputs = [None if each is None else each.const_value for each in node.inputs]
    if node.op_type == "MoE":
        gate_up = np.stack([values["gate"], values["up"]], 2).reshape(inputs[2].shape)
        np.testing.assert_array_equal(inputs[2].numpy(), gate_up)
        np.testing.assert_array_equal(inputs[4].numpy(), values["down"])
        quantised = ort_aie_ep.compile(path, tmp_path / "quantised", quantize="q8nx")
        assert {name for layer in quantised.layers for name in layer.node.split(", ")} == {
            name for name in reader if name.endswith("_exps.weight")
        }
        return
    given = [attribute(node, each, "") for each in ("type", "up_type", "down_type")]
    assert given == [gate.lower(), up.lower() if up != gate else "", down.lower()]
    assert attribute(node, "accuracy_level", 0) == 4
    for place, side in ((2, "gate"), (3, "down"), (4, "up")):
        form, (experts, *size) = FILE_FORMS[kinds[side].lower()], values[side].shape
        for expert in range(experts):
            blocks = np.ascontiguousarray(inputs[place].numpy()[expert])
            np.testing.assert_array_equal(form.dequantize(blocks, *size), values[side][expert])


@pytest.mark.parametrize(
    ("kind", "dtype"), [("F16", "FLOAT16"), ("BF16", "BFLOAT16"), ("Q6_K", "")]
)
def test_an_embedding_of_its_own_keeps_its_bits(kind: str, dtype: str, tmp_path: Path) -> None:
    model = replace(TINY, shape=replace(TINY.shape, tied=False))
    path = write(tmp_path / "m.gguf", model, lambda name: Kind[kind if "embd" in name else "Q4_0"])
    result = ort_aie_ep.compile(path, tmp_path / "compiled")
    if not dtype:
        assert weights_of(result.path)["Q4NXGather"] == {(kind.lower(), 0, 0)}
        return
    table = ir.load(result.path / "model.onnx").graph.initializers["model.embed_tokens.weight"]
    assert table.dtype == ir.DataType[dtype]


@pytest.mark.parametrize(
    ("kind", "bits"), [("Q4_0", 4), ("Q4_K", 4), ("Q5_0", 8), ("Q6_K", 8), ("IQ4_XS", 8)]
)
def test_an_npu_gets_codes_and_a_report_of_their_errors(
    kind: str, bits: int, tmp_path: Path
) -> None:
    path = write(tmp_path / "m.gguf", TINY, lambda name: Kind[kind])
    result = ort_aie_ep.compile(path, tmp_path / "compiled", q4nx_compatible=True)
    report = json.loads((result.path / "ort_aie_report.json").read_text())
    errors = {layer["node"]: layer["relative"] for layer in report["layers"]}
    found = weights_of(result.path).values()
    assert {each for forms in found for each in forms} == {("", bits if bits > 4 else 0, 0)}
    if kind == "Q5_0":
        assert not errors
    else:
        assert errors.keys() >= {"token_embd.weight", "blk.0.ffn_down.weight"}
        assert all(0 < error < 0.01 for error in errors.values())


@pytest.mark.parametrize(
    ("family", "expected"), [("gemma3", {"_global": 128, "_local": 128}), ("qwen35", {"": 8})]
)
def test_rotations_are_frequencies_and_no_tables(
    family: str, expected: dict[str, int], tmp_path: Path
) -> None:
    model = MODELS[family]
    path = write(tmp_path / "m.gguf", model, lambda name: Kind.Q8_0)
    result = ort_aie_ep.compile(path, tmp_path / "compiled")
    stored = ir.load(result.path / "model.onnx").graph.initializers
    sizes = {name: value.const_value.size for name, value in stored.items() if "_cache" in name}
    assert sizes == {f"cos_cache{which}.frequencies": size for which, size in expected.items()}
    assert read_plans(result.path).positions == model.shape.context


@pytest.mark.parametrize(
    ("npu", "xrt", "target", "option", "form", "note"),
    [
        ("", "xrt", "", None, "q4_1", "no NPU found: weights keep the file's bits"),
        ("npu2", "", "", None, "q4_1", "no XRT found: weights keep the file's bits"),
        ("npu2", "xrt", "", None, "", "an NPU works here: weights are in Q4NX and Q8NX"),
        ("npu2", "xrt", "auto", None, "", "an NPU works here: weights are in Q4NX and Q8NX"),
        (
            "npu2",
            "xrt",
            "host",
            None,
            "q4_1",
            "ORT_AIE_TARGET is host: weights keep the file's bits",
        ),
        ("", "", "sim", None, "", "ORT_AIE_TARGET is sim: weights are in Q4NX and Q8NX"),
        ("npu2", "xrt", "", False, "q4_1", ""),
        ("", "", "", True, "", ""),
    ],
)
def test_an_npu_that_works_decides_unless_an_option_does(
    npu: str,
    xrt: str,
    target: str,
    option: bool | None,
    form: str,
    note: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine, "npu_device", lambda: npu)
    monkeypatch.setattr(machine, "find_npu", lambda: (machine.Finding("XRT", xrt),))
    monkeypatch.setenv("ORT_AIE_TARGET", target)
    path = write(tmp_path / "m.gguf", TINY, lambda name: Kind.Q4_1)
    result = ort_aie_ep.compile(path, tmp_path / "compiled", q4nx_compatible=option)
    assert {kind for kind, _, _ in weights_of(result.path)["Q4NXMatMul"]} == {form}
    said = [each.partition(";")[0] for each in result.notes if "weights" in each]
    assert said == [note] * bool(note)


def test_options_do_what_they_do_for_other_models(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", TINY, lambda name: Kind.Q4_0)
    result = ort_aie_ep.compile(
        path, tmp_path / "compiled", kv="f16", last_logits=True, q4nx_compatible=True
    )
    graph = expanded(result.path).graph
    assert {v.dtype for v in graph.inputs if v.name.startswith("past")} == {ir.DataType.FLOAT16}
    assert weights_of(result.path)["Q4NXMatMul"] == {("", 0, 0)}
    other = ort_aie_ep.compile(path, tmp_path / "other")
    with pytest.raises(ort_aie_ep.AieError, match=r"are q4_0 as in a GGUF.*--q4nx-compatible"):
        exporter._load(other.path / "model.onnx", None)


@pytest.mark.parametrize("same", [True, False])
def test_a_q4nx_file_is_written_if_the_rotations_are_the_configs(
    same: bool, tmp_path: Path
) -> None:
    model = MODELS["qwen3"]
    path = write(tmp_path / "m.gguf", model, lambda name: Kind.Q4_0)
    compiled = ort_aie_ep.compile(path, tmp_path / "compiled", q4nx_compatible=True).path
    shape = model.shape
    config = {
        "model_type": "qwen3", "hidden_size": shape.hidden, "intermediate_size": shape.ffn,
        "num_hidden_layers": shape.layers, "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads, "head_dim": shape.head_dim,
        "vocab_size": shape.vocab, "max_position_embeddings": shape.context,
        "rms_norm_eps": shape.epsilon, "rope_theta": shape.rope_theta * (1 if same else 2),
        "hidden_act": "silu", "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0,
    }  # fmt: skip
    (compiled / "config.json").write_text(json.dumps(config))
    if same:
        assert export_q4nx(compiled, tmp_path / "m.q4nx").path.is_file()
        return
    with pytest.raises(ort_aie_ep.AieError, match="'cos_cache' is not the rotary embedding of"):
        export_q4nx(compiled, tmp_path / "m.q4nx")


def test_a_split_file_is_read_whole_from_any_part(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", TINY, lambda name: Kind.Q8_0)
    reader = GGUFReader(path)
    writer = GGUFWriter(tmp_path / "s.gguf", "llama", split_max_tensors=5)
    for name, each in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            writer.add_key_value(name, each.contents(), each.types[0])
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    parts = sorted(tmp_path.glob("s-*.gguf"))
    assert len(parts) > 1
    whole = ort_aie_ep.compile(path, tmp_path / "whole").path / "model.onnx.data"
    split = ort_aie_ep.compile(parts[1], tmp_path / "split").path / "model.onnx.data"
    assert split.read_bytes() == whole.read_bytes()
    parts[-1].unlink()
    with pytest.raises(ort_aie_ep.AieError, match=parts[-1].name):
        ort_aie_ep.compile(parts[0], tmp_path / "missing")


def test_a_session_compiles_a_file_once_known_by_its_first_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "model", TINY, lambda name: Kind.Q4_0)
    for _ in range(2):
        session = ort_aie_ep.session(path, cache_dir=tmp_path / "cache")
        assert session.get_outputs()[0].name == "logits"
    entries = [*(tmp_path / "cache").glob("*/model.onnx")]
    assert len(entries) == 1
    monkeypatch.setattr(machine, "npu_device", lambda: "npu2")
    monkeypatch.setattr(machine, "find_npu", lambda: (machine.Finding("NPU", "NPU2"),))
    ort_aie_ep.session(path, cache_dir=tmp_path / "cache")
    assert len([*(tmp_path / "cache").glob("*/model.onnx")]) == 2
