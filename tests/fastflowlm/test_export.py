"""Models written as `.q4nx` files: the bytes of FastFlowLM's converter, and the model's numbers."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy_q4nx as q4nx
import onnx_ir as ir
import pytest
from q4nx_files import TINY, TOOL_TEMPLATE, Imported, config_of, make
from test_import import logits
from typer.testing import CliRunner

import ort_aie_ep
from ort_aie_ep.cli import app
from ort_aie_ep.compiler.fastflowlm import export_q4nx, import_q4nx
from ort_aie_ep.compiler.fastflowlm.container import read_container
from ort_aie_ep.errors import AieError
from ort_aie_ep.tools.synth import synth

DATA = Path(__file__).parent.parent / "data"


def contents(path: Path) -> dict[str, np.ndarray]:
    return {
        name: np.concatenate([*stored.chunks(1 << 20)])
        for name, stored in read_container(path).items()
    }


def header(path: Path) -> bytes:
    data = path.read_bytes()
    return data[: 8 + int.from_bytes(data[:8], "little")]


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_a_converters_file_comes_back_byte_for_byte(name: str, tmp_path: Path) -> None:
    """Order, header and tensors. Q4_0 (signed codes, no minima) comes back as Q4_1 of the same
    weights, which needs no guess."""
    source = DATA / f"q4nx_{name}" / "model.q4nx"
    import_q4nx(source, tmp_path / "imported")
    export_q4nx(tmp_path / "imported", tmp_path / "model.q4nx")
    assert header(tmp_path / "model.q4nx") == header(source)
    written, original = contents(tmp_path / "model.q4nx"), contents(source)
    q4_0 = {key for key in original if key.endswith(("v_proj.weight", "up_proj.weight"))}
    for key, content in original.items():
        if key not in q4_0:
            np.testing.assert_array_equal(written[key], content, err_msg=key)
        else:
            signed = content.reshape(-1, q4nx.BLOCK_BYTES)
            unsigned = written[key].reshape(-1, q4nx.BLOCK_BYTES)
            np.testing.assert_array_equal(unsigned[:, :512], signed[:, :512])
            np.testing.assert_array_equal(unsigned[:, 1024:], signed[:, 1024:] ^ 0x88)
    # From here on, everything stays.
    import_q4nx(tmp_path / "model.q4nx", tmp_path / "again")
    data = [(tmp_path / one / "model.onnx.data").read_bytes() for one in ("imported", "again")]
    assert data[0] == data[1]
    (tmp_path / "third").mkdir()
    export_q4nx(tmp_path / "again", tmp_path / "third" / "model.q4nx")
    assert (tmp_path / "third" / "model.q4nx").read_bytes() == (
        tmp_path / "model.q4nx"
    ).read_bytes()


@pytest.fixture(scope="module", params=["qwen2", "qwen3", "gemma3"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Imported:
    """Its norms, biases and embedding are values of bfloat16."""
    return make(
        request.param, tmp_path_factory.mktemp(request.param), signed=request.param != "llama_asym"
    )


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A compiled Qwen3 with its config.json."""
    folder = tmp_path_factory.mktemp("qwen") / "qwen3"
    ort_aie_ep.compile(DATA / "qwen3", folder)
    write_config(folder)
    (folder / TOOL_TEMPLATE).parent.mkdir()
    (folder / TOOL_TEMPLATE).write_text("{{ tools }}")
    return folder


def write_config(folder: Path, **changed: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(config_of(TINY["qwen3"]) | changed))
    return path


def test_a_compiled_model_comes_back_with_its_logits(made: Imported, tmp_path: Path) -> None:
    config = made.source / "config.json"
    export_q4nx(made.compiled, tmp_path / "model.q4nx", config=config)
    import_q4nx(tmp_path / "model.q4nx", tmp_path / "imported")
    vocab = len(made.tensors["model.embed_tokens.weight"][1])
    np.testing.assert_array_equal(
        logits(tmp_path / "imported", vocab), logits(made.compiled, vocab)
    )
    # And from its source, the same file.
    reference = made.compiled.with_name("reference")
    (tmp_path / "other").mkdir()
    export_q4nx(reference, tmp_path / "other" / "model.q4nx", config=config)
    assert (tmp_path / "other" / "model.q4nx").read_bytes() == (
        tmp_path / "model.q4nx"
    ).read_bytes()


@pytest.mark.parametrize("name", ["qwen2", "qwen3"])
def test_an_embedding_in_the_lm_heads_blocks_is_written_as_rows(name: str, tmp_path: Path) -> None:
    """Tied, as the builder writes it."""
    shape = TINY[name]
    (tmp_path / "config.json").write_text(json.dumps(config_of(shape)))
    export_q4nx(DATA / name, tmp_path / "model.q4nx", config=tmp_path / "config.json")
    written = contents(tmp_path / "model.q4nx")
    blocks = written["lm_head.weight"].reshape(q4nx.blocks_shape(shape.vocab, shape.hidden))
    rows = q4nx.dequantize(blocks, shape.vocab, shape.hidden).astype(ml_dtypes.bfloat16)
    table = written["model.embed_tokens.weight"].view(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(table.reshape(rows.shape), rows)


def test_qwen2s_feed_forward_width_is_padded_as_the_converter_does(tmp_path: Path) -> None:
    shape = TINY["qwen2"]
    (tmp_path / "config.json").write_text(json.dumps(config_of(shape)))
    export_q4nx(DATA / "qwen2", tmp_path / "model.q4nx", config=tmp_path / "config.json")
    width = -(-shape.ffn // 512) * 512
    assert width > shape.ffn
    tensors = read_container(tmp_path / "model.q4nx")
    for role, n, k in (("up", width, shape.hidden), ("down", shape.hidden, width)):
        stored = tensors[f"model.layers.0.mlp.{role}_proj.weight"]
        assert stored.shape == (n // 32 * -(-k // 256), q4nx.BLOCK_BYTES)
        data = np.concatenate([*stored.chunks(1 << 20)]).reshape(q4nx.blocks_shape(n, k))
        weights = q4nx.dequantize(data, n, k)
        assert weights[
            : shape.ffn if role == "up" else n, : shape.ffn if role == "down" else k
        ].any()
        assert not (weights[shape.ffn :] if role == "up" else weights[:, shape.ffn :]).any()


def test_float_weights_are_quantised_if_asked(tmp_path: Path) -> None:
    synth("tiny-qwen3", tmp_path / "float", int4=False)
    config = write_config(tmp_path)
    with pytest.raises(AieError, match=r"qkv_proj.*FLOAT"):
        export_q4nx(tmp_path / "float", tmp_path / "model.q4nx", config=config)
    export_q4nx(tmp_path / "float", tmp_path / "model.q4nx", config=config, quantize="q4nx")
    ort_aie_ep.compile(tmp_path / "float", tmp_path / "compiled", quantize="q4nx")
    export_q4nx(tmp_path / "compiled", tmp_path / "other.q4nx", config=config)
    assert (tmp_path / "other.q4nx").read_bytes() == (tmp_path / "model.q4nx").read_bytes()
    blocks = contents(tmp_path / "model.q4nx")["model.layers.1.mlp.down_proj.weight"]
    graph = ir.load(tmp_path / "compiled" / "model.onnx").graph
    value = graph.initializers["model.layers.1.mlp.down_proj.MatMul.weight_q4nx"].const_value
    assert value is not None
    np.testing.assert_array_equal(blocks, value.numpy().ravel())


# --- refusals ---


def refused(source: Path, tmp_path: Path, message: str, **options: Any) -> None:
    before = sorted(tmp_path.iterdir())
    with pytest.raises(AieError, match=message):
        export_q4nx(source, tmp_path / "refused.q4nx", **options)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("form", "kind"), [("q2nx", "2 bits"), ("q8nx", "8 bits"), ("bf16", "type BFLOAT16")]
)
def test_weights_of_other_widths_are_refused(form: str, kind: str, tmp_path: Path) -> None:
    synth("tiny-qwen3", tmp_path / "float", int4=False)
    ort_aie_ep.compile(tmp_path / "float", tmp_path / "compiled", quantize=form)
    config = write_config(tmp_path)
    refused(tmp_path / "compiled", tmp_path, f"has weights of {kind}", config=config)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model_type": "phi3"}, r"model_type .phi3. cannot be imported"),
        ({"num_hidden_layers": 1}, "has 2 aie.FlowAttention|lacks"),
        ({"num_hidden_layers": 3}, "lacks .model.layers.2.input_layernorm.weight."),
        ({"intermediate_size": 224}, "by config.json"),
        ({"vocab_size": 500}, r"is \(500, 160\); a .q4nx file has rows in blocks of 32"),
        ({"rope_theta": 1e4}, "'cos_cache' is not the rotary embedding of config.json"),
        ({"rms_norm_eps": 1e-5}, "LayerNorm|has norm_epsilon"),
        ({"model_type": "llama"}, "cannot hold: model.layers.0.attn.k_norm"),
    ],
)
def test_a_model_that_config_json_does_not_describe_is_refused(
    changed: dict[str, Any], message: str, qwen: Path, tmp_path: Path
) -> None:
    refused(qwen, tmp_path, message, config=write_config(tmp_path, **changed))


def test_attention_that_config_json_does_not_describe_is_refused(tmp_path: Path) -> None:
    shutil.copytree(DATA / "qwen3", tmp_path / "window")
    model = ir.load(tmp_path / "window" / "model.onnx")
    for node in model.graph:
        if node.op_type == "GroupQueryAttention":
            node.attributes.add(ir.AttrInt64("local_window_size", 24))
    ir.save(model, tmp_path / "window" / "model.onnx")
    config = write_config(tmp_path)
    refused(tmp_path / "window", tmp_path, "has local_window_size 24; by config", config=config)


def test_sinks_of_attention_are_refused(tmp_path: Path) -> None:
    """They are fewer values than any weight has."""
    shutil.copytree(DATA / "qwen3", tmp_path / "sinks")
    model = ir.load(tmp_path / "sinks" / "model.onnx")
    for node in model.graph:
        if node.op_type == "GroupQueryAttention":
            heads = node.attributes["num_heads"].as_int()
            sinks = ir.tensor(np.ones(heads, np.float32), name=f"{node.name}.sinks")
            value = ir.Value(name=sinks.name, const_value=sinks)
            model.graph.register_initializer(value)
            node.resize_inputs(max(12, len(node.inputs)))
            node.replace_input_with(11, value)
    ir.save(model, tmp_path / "sinks" / "model.onnx")
    config = write_config(tmp_path)
    refused(tmp_path / "sinks", tmp_path, "has head_sink '.*sinks', which a", config=config)


def test_codes_that_a_reader_would_take_as_signed_are_refused(tmp_path: Path) -> None:
    ort_aie_ep.compile(DATA / "qwen3", tmp_path / "positive", q4nx_compatible=True)
    write_config(tmp_path / "positive")
    model = ir.load(tmp_path / "positive" / "model.onnx")
    value = model.graph.initializers["model.layers.1.attn.o_proj.MatMul.weight_Q4_q4nx"]
    assert value.const_value is not None
    blocks = value.const_value.numpy().copy()
    blocks[..., 512:1024] = 0
    value.const_value = ir.tensor(blocks, name=value.name)
    ir.save(model, tmp_path / "positive" / "model.onnx")
    refused(tmp_path / "positive", tmp_path, "o_proj.*readers take its codes as signed")


def test_what_is_missing_or_there_already_is_named(qwen: Path, tmp_path: Path) -> None:
    refused(DATA / "qwen3", tmp_path, "pass the model's config.json with --config")
    refused(qwen, tmp_path, "is compiled already: omit quantize", quantize="q4nx")
    refused(qwen, tmp_path, "a .q4nx file has 4-bit weights", quantize="bf16")
    (tmp_path / "refused.q4nx").touch()
    refused(qwen, tmp_path, "already exists")
    with pytest.raises(AieError, match="nowhere"):
        export_q4nx(qwen, tmp_path / "nowhere" / "model.q4nx")
    with pytest.raises(AieError, match="File name too long"):
        export_q4nx(qwen, tmp_path / ("q" * 254))


def test_a_file_that_cannot_be_written_leaves_nothing(
    qwen: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: Path, destination: Path) -> None:
        destination.write_text("half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(shutil, "copyfile", full)
    refused(qwen, tmp_path, "writing .*config.json failed: No space left on device")


def test_the_command_copies_what_the_folder_needs_and_leaves_what_is_there(
    qwen: Path, tmp_path: Path, ends: Callable[[str], dict[str, str]]
) -> None:
    (tmp_path / "tokenizer.json").write_text("mine")
    result = CliRunner().invoke(app, ["export-q4nx", str(qwen), str(tmp_path / "model.q4nx")])
    assert result.exit_code == 0, result.output
    assert "model.q4nx: 25 tensors" in result.stdout
    assert "config.json, tokenizer_config.json" in result.stderr
    assert "tokenizer.json" in result.stderr
    assert list(ends(result.stderr)) == ["export-q4nx"]
    assert (tmp_path / "tokenizer.json").read_text() == "mine"
    assert (tmp_path / "config.json").read_bytes() == (qwen / "config.json").read_bytes()
    assert (tmp_path / TOOL_TEMPLATE).read_bytes() == (qwen / TOOL_TEMPLATE).read_bytes()
    import_q4nx(tmp_path / "model.q4nx", tmp_path / "imported")
