"""`.q4nx` files as compiled folders give the compiled model's numbers, in each host."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import numpy.typing as npt
import numpy_q4nx as q4nx
import onnx_ir as ir
import pytest
from expanded import expanded
from q4nx_files import (
    TINY,
    TOOL_TEMPLATE,
    Imported,
    config_of,
    make,
    sizes_of_one_layer,
    with_signed_codes,
    write_container,
)
from text_host import Host
from typer.testing import CliRunner

from ort_aie_ep.cli import app
from ort_aie_ep.compiler.fastflowlm import import_q4nx
from ort_aie_ep.errors import AieError
from ort_aie_ep.models.shapes import SHAPES

# Test models; their tensors are written as Q4_0 unless told otherwise.
CASES = ("llama", "llama Q4_1", "qwen2", "qwen3", "gemma3")
TEXT = (40, 1, 1, 9, 1)  # a prompt, tokens, a later turn, a token

Array = npt.NDArray[np.float32]


@pytest.fixture(scope="module", params=CASES)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Imported:
    name, _, kind = request.param.partition(" ")
    work = tmp_path_factory.mktemp(name)
    made = make(name, work, signed=not kind)
    import_q4nx(made.source / "model.q4nx", work / "imported")
    return made


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Imported:
    return make("llama", tmp_path_factory.mktemp("llama"))


def imported(made: Imported) -> Path:
    return made.compiled.with_name("imported")


def logits(folder: Path, vocab: int, numerics: str = "bf16") -> Array:
    """Logits (sum(TEXT), vocab) of seeded tokens, passing the KV cache from call to call."""
    host, rng = Host(folder / "model.onnx", numerics=numerics), np.random.default_rng(5)
    return np.concatenate([host(rng.integers(0, vocab, (1, length)))[0] for length in TEXT])


@pytest.mark.parametrize("numerics", ["bf16", "int8"])
def test_logits_are_those_of_the_compiled_model_bit_for_bit(made: Imported, numerics: str) -> None:
    vocab = len(made.tensors["model.embed_tokens.weight"][1])
    actual = logits(imported(made), vocab, numerics)
    assert np.isfinite(actual).all()
    np.testing.assert_array_equal(actual, logits(made.compiled, vocab, numerics))


def test_the_folder_is_a_compiled_one_with_the_tokenizer(made: Imported) -> None:
    folder = imported(made)
    ours, theirs = (
        json.loads((one / "genai_config.json").read_text()) for one in (folder, made.compiled)
    )
    assert ours == theirs
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json", TOOL_TEMPLATE):
        assert (folder / name).read_bytes() == (made.source / name).read_bytes()
    graph = ir.load(folder / "model.onnx").graph
    assert not {"MatMulNBits", "GroupQueryAttention"} & {node.op_type for node in graph}
    assert not [name for name in graph.initializers if name.endswith(("_Q4", "_scales"))]
    for value in graph.initializers.values():
        tensor = value.const_value
        if isinstance(tensor, ir.ExternalTensor):
            assert (tensor.offset or 0) % 4096 == 0


def test_options_change_what_they_change_when_compiling(llama: Imported, tmp_path: Path) -> None:
    source = llama.source / "model.q4nx"
    import_q4nx(source, tmp_path / "m", kv="f16", last_logits=True, fuse=False)
    graph = expanded(tmp_path / "m").graph
    types = {entry.dtype for entry in graph.inputs if entry.name.startswith("past")}
    assert types == {ir.DataType.FLOAT16}
    assert graph.outputs[0].shape == ("batch_size", 1, 500)
    assert "Q4NXGatedMLP" not in {node.op_type for node in graph}


def test_a_cache_of_codes_is_calibrated_with_its_tokenizer(llama: Imported, tmp_path: Path) -> None:
    import_q4nx(llama.source / "model.q4nx", tmp_path / "m", kv="int8")
    graph = ir.load(tmp_path / "m" / "model.onnx").graph
    types = {entry.dtype for entry in graph.inputs if entry.name.startswith("past")}
    assert types == {ir.DataType.INT8}


def test_the_command_writes_what_the_function_does(
    made: Imported, tmp_path: Path, ends: Callable[[str], dict[str, str]]
) -> None:
    source, config = made.source / "model.q4nx", made.source / "config.json"
    words = ["import-q4nx", str(source), str(tmp_path / "m"), "--config", str(config)]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert "ort-aie run" in result.stderr
    assert list(ends(result.stderr)) == ["import-q4nx"]
    for name in ("model.onnx", "model.onnx.data", "genai_config.json"):
        assert (tmp_path / "m" / name).read_bytes() == (imported(made) / name).read_bytes()
    again = CliRunner().invoke(app, words)
    assert again.exit_code == 1
    assert str(tmp_path) in again.stderr


# --- Q4_0 ---


def blocks_of(folder: Path, name: str) -> tuple[npt.NDArray[np.uint8], int]:
    """An imported projection's blocks, and its attribute `symmetric`."""
    graph = expanded(folder).graph
    value = graph.initializers[f"{name}.MatMul.weight_Q4_q4nx"]
    assert value.const_value is not None
    (node,) = value.consumers()
    return value.const_value.numpy(), node.attributes["symmetric"].as_int()


def test_signed_codes_become_the_same_weights(tmp_path: Path) -> None:
    """Every code, with scales of both signs, zero and subnormal ones included."""
    rng = np.random.default_rng(3)
    shape = TINY["llama"]
    made = make("llama", tmp_path, signed=True)
    codes = rng.integers(0, 16, (shape.hidden, shape.ffn)).astype(np.uint8)
    scales = rng.normal(0, 0.1, (shape.hidden, shape.ffn // 32))
    scales[0], scales[1] = 0, 1e-39
    signed = q4nx.pack((codes ^ 8), scales, np.zeros_like(scales))
    name = "model.layers.1.mlp.down_proj"
    tensors = made.tensors | {f"{name}.weight": ("I8", signed.reshape(-1, 5120))}
    write_container(made.source / "model.q4nx", tensors)
    import_q4nx(made.source / "model.q4nx", tmp_path / "imported")
    blocks, symmetric = blocks_of(tmp_path / "imported", name)
    assert symmetric == 1
    rounded = scales.astype(ml_dtypes.bfloat16).astype(np.float32).repeat(32, axis=1)
    expected = rounded * (codes.astype(np.float32) - 8)
    np.testing.assert_array_equal(q4nx.dequantize(blocks, *expected.shape), expected)


def test_a_q4_0_tensor_in_a_q4_1_model_is_recognised(llama: Imported, tmp_path: Path) -> None:
    """Also if it is joined with others: v is Q4_0, q and k are not."""
    name = "model.layers.0.self_attn.v_proj.weight"
    tensors = llama.tensors | {name: ("I8", with_signed_codes(llama.tensors[name][1]))}
    (tmp_path / "config.json").write_text(json.dumps(config_of(TINY["llama"])))
    write_container(tmp_path / "model.q4nx", tensors)
    import_q4nx(tmp_path / "model.q4nx", tmp_path / "imported")
    blocks, symmetric = blocks_of(tmp_path / "imported", "model.layers.0.attn.qkv_proj")
    parts = [llama.tensors[name.replace("v_proj", one)][1] for one in ("q_proj", "k_proj")]
    parts.append(llama.tensors[name][1])
    np.testing.assert_array_equal(
        blocks.reshape(-1, 5120)[:, 1024:], np.concatenate(parts)[:, 1024:]
    )
    np.testing.assert_array_equal(blocks.reshape(-1, 5120)[:, :512], np.concatenate(parts)[:, :512])
    n = 32 * len(blocks)
    whole = np.concatenate(parts).reshape(blocks.shape).view(np.uint8)
    np.testing.assert_array_equal(q4nx.dequantize(blocks, n, 192), q4nx.dequantize(whole, n, 192))
    assert symmetric == 1  # q's and k's minima are -8 times the scale


def test_minima_of_their_own_are_copied(llama: Imported, tmp_path: Path) -> None:
    name = "model.layers.1.mlp.down_proj"
    content = llama.tensors[f"{name}.weight"][1].copy()
    content[:, 512:1024] = content[:, :512]
    tensors = llama.tensors | {f"{name}.weight": ("I8", content)}
    write_container(tmp_path / "model.q4nx", tensors)
    import_q4nx(tmp_path / "model.q4nx", tmp_path / "imported", config=llama.source / "config.json")
    blocks, symmetric = blocks_of(tmp_path / "imported", name)
    assert symmetric == 0
    np.testing.assert_array_equal(blocks.reshape(content.shape), content)


# --- sizes ---


def test_a_padded_feed_forward_width_is_taken_from_the_file(
    llama: Imported, tmp_path: Path
) -> None:
    """352 is padded to 512 with zeros, as the converter pads some models; the logits stay the
    same."""
    tensors = dict(llama.tensors)
    zero = np.zeros((1, 5120), np.uint8)
    for name, (_, content) in llama.tensors.items():
        if "gate_proj" in name or "up_proj" in name:
            # K is 192: one block per row of blocks.
            padding = zero.repeat((512 - 352) // 32, axis=0)
            tensors[name] = ("I8", np.concatenate([content, padding]))
    # down's K of 352 has two blocks already, as 512 has.
    (tmp_path / "config.json").write_text(json.dumps(config_of(TINY["llama"])))
    write_container(tmp_path / "model.q4nx", tensors)
    import_q4nx(tmp_path / "model.q4nx", tmp_path / "padded")
    import_q4nx(llama.source / "model.q4nx", tmp_path / "plain")
    np.testing.assert_array_equal(logits(tmp_path / "padded", 500), logits(tmp_path / "plain", 500))


MEASURE = """
import resource, sys
import ort_aie_ep.compiler.fastflowlm as fastflowlm

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

before = peak()
fastflowlm.import_q4nx(*sys.argv[1:])
print(peak() - before)
"""


@pytest.mark.in_turn  # tests/passes/test_compile_memory.py has the compiler with each change
def test_importing_holds_a_few_megabytes(tmp_path: Path) -> None:
    """One layer of Llama-3.2-1B, all zeros: an embedding of 134 MB and an lm_head of 42 MB."""
    shape = replace(SHAPES["llama-3.2-1b"], layers=1, vocab=32768, context=64)
    place = "model.layers.0"
    norms = (f"{place}.input_layernorm", f"{place}.post_attention_layernorm", "model.norm")
    sizes = sizes_of_one_layer(shape)
    places = {name: ("I8", q4nx.blocks_shape(*size)) for name, size in sizes.items()}
    places |= {name: ("BF16", (shape.hidden,)) for name in norms}
    places["model.embed_tokens"] = ("BF16", (shape.vocab, shape.hidden))
    header, offset = {}, 0
    for name, (dtype, dims) in places.items():
        end = offset + math.prod(dims) * (2 if dtype == "BF16" else 1)
        header[f"{name}.weight"] = {"dtype": dtype, "shape": dims, "data_offsets": [offset, end]}
        offset = end
    source = tmp_path / "model.q4nx"
    write_container(source, {}, header=header)
    with source.open("r+b") as file:
        file.truncate(source.stat().st_size + offset)
    (tmp_path / "config.json").write_text(json.dumps(config_of(shape)))
    result = subprocess.run(
        [sys.executable, "-c", MEASURE, str(source), str(tmp_path / "imported")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    # Pieces of 15 MB, and the copies that a step makes of a piece.
    assert int(result.stdout) < 80e6


# --- weights that do not fit ---


def broken(llama: Imported, folder: Path, tensors: dict[str, tuple[str, npt.NDArray]]) -> str:
    """The error of importing changed tensors; None removes one."""
    (folder / "config.json").write_text(json.dumps(config_of(TINY["llama"])))
    merged = {name: entry for name, entry in (llama.tensors | tensors).items() if entry is not None}
    write_container(folder / "model.q4nx", merged)
    before = sorted(folder.iterdir())
    with pytest.raises(AieError) as error:
        import_q4nx(folder / "model.q4nx", folder / "imported")
    assert sorted(folder.iterdir()) == before
    return str(error.value)


GATE = "model.layers.1.mlp.gate_proj.weight"
NORM = "model.layers.0.input_layernorm.weight"


def nan_scale(blocks: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    changed = blocks.copy()
    changed.view(np.uint16)[-1, 7] = 0x7FC0
    return changed


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({GATE: None}, f"lacks tensor '{GATE}'"),
        ({NORM: None}, f"lacks tensor '{NORM}'"),
        ({GATE: ("I8", np.zeros((3, 5120), "u1"))}, f"tensor '{GATE}' is (3, 5120), 15360 bytes; "
         "by config.json it must be (352, 192), which is (11, 1, 5120) as Q4NX, 56320 bytes"),
        # 8 bits: two blocks of 32 x 128 instead of one in Q4NX.
        ({GATE: ("I8", np.zeros((11, 2, 5120), "u1"))}, f"tensor '{GATE}' is (11, 2, 5120)"),
        ({GATE: ("I8", np.zeros((56320,), "u1"))}, f"tensor '{GATE}' is (56320,)"),
        ({GATE: ("BF16", np.zeros((352, 192), "u2"))}, f"tensor '{GATE}' is BF16; expected I8"),
        ({NORM: ("I8", np.zeros((192,), "u1"))}, f"tensor '{NORM}' is I8; expected BF16"),
        ({NORM: ("BF16", np.zeros((64,), "u2"))}, f"tensor '{NORM}' is (64,); by config.json it "
         "must be (192,)"),
        ({NORM: ("BF16", np.full((192,), 0x7FC0, "u2"))}, f"tensor '{NORM}' holds NaN"),
        ({"model.layers.0.self_attn.q_proj.bias": ("BF16", np.zeros((192,), "u2"))},
         "has tensors that a llama with 2 layers does not have: "
         "model.layers.0.self_attn.q_proj.bias"),
        ({"model.layers.2.mlp.up_proj.weight": ("I8", np.zeros((11, 5120), "u1"))},
         "does not have: model.layers.2.mlp.up_proj.weight"),
        ({"rope_freqs.weight": ("BF16", np.full((16,), 0x4100, "u2"))},
         "'rope_freqs.weight' does not match the rotary embedding of config.json"),
    ],
)  # fmt: skip
def test_weights_that_do_not_fit_are_named(
    llama: Imported, tmp_path: Path, changes: dict, message: str
) -> None:
    assert message in broken(llama, tmp_path, changes)


def test_weights_that_are_not_finite_leave_nothing_behind(llama: Imported, tmp_path: Path) -> None:
    message = broken(llama, tmp_path, {GATE: ("I8", nan_scale(llama.tensors[GATE][1]))})
    assert f"'{GATE}' has scales" in message


def test_a_signed_scale_too_large_for_its_minimum_is_refused(
    llama: Imported, tmp_path: Path
) -> None:
    blocks = with_signed_codes(llama.tensors[GATE][1])
    blocks.view(np.uint16)[0, 0] = 0x7F00  # 2^127
    message = broken(llama, tmp_path, {GATE: ("I8", blocks)})
    assert f"'{GATE}' has minima" in message


def test_rows_that_cannot_be_joined_are_named(llama: Imported, tmp_path: Path) -> None:
    """Heads of 8: 48 rows of q, half a block more than fits before k."""
    place = "model.layers.0.self_attn"
    sizes = {"q_proj": (2, 5120), "k_proj": (1, 5120), "v_proj": (1, 5120)}
    changes = {
        f"{place}.{name}.weight": ("I8", np.zeros(size, "u1")) for name, size in sizes.items()
    }
    write_container(tmp_path / "model.q4nx", llama.tensors | changes)
    config = config_of(TINY["llama"]) | {"head_dim": 8}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(AieError, match=r"q_proj\.weight' .*48 rows"):
        import_q4nx(tmp_path / "model.q4nx", tmp_path / "imported")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": 2**62}, "has 2 layers; config.json has num_hidden_layers 46"),
        ({"head_dim": 2**40}, "q_proj.weight' is .* it must be \\(6597069766656, 192\\)"),
        ({"num_attention_heads": 3 * 2**40}, "q_proj.weight' is .* by config.json it must be"),
        ({"hidden_size": 2**40}, r"embed_tokens.weight' is .* it must be \(500, 1099511"),
        ({"vocab_size": 2**62}, "embed_tokens.weight' is .* by config.json it must be"),
        ({"intermediate_size": 2**62}, "gate_proj.weight' is .* by config.json it must be"),
        ({"max_position_embeddings": 2**62}, "model.onnx need [0-9.]* [kMGT]*B, but the disk of "),
        ({"num_hidden_layers": 2**64}, "num_hidden_layers must be a whole number of at least 1"),
        ({"rms_norm_eps": 10**320}, "rms_norm_eps must be a positive number"),
        ({"rope_theta": 10**320}, "rope_theta must be a positive number"),
    ],
)  # fmt: skip
def test_sizes_that_the_file_does_not_vouch_for_cost_nothing(
    llama: Imported, tmp_path: Path, changes: dict[str, int], message: str
) -> None:
    config = config_of(TINY["llama"]) | changes
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(AieError, match=message):
        import_q4nx(
            llama.source / "model.q4nx", tmp_path / "imported", config=tmp_path / "config.json"
        )
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


def test_a_file_that_is_missing_is_named(llama: Imported, tmp_path: Path) -> None:
    with pytest.raises(AieError, match=r"nowhere\.q4nx .*No such file"):
        import_q4nx(tmp_path / "nowhere.q4nx", tmp_path / "m")
    source, config = llama.source / "model.q4nx", tmp_path / "other.json"
    with pytest.raises(AieError, match=r"other\.json .*No such file"):
        import_q4nx(source, tmp_path / "m", config=config)


def test_a_tokenizer_that_is_a_link_to_elsewhere_is_named(llama: Imported, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config_of(TINY["llama"])))
    (tmp_path / "tokenizer.json").symlink_to("/etc/passwd")
    result = import_q4nx(
        llama.source / "model.q4nx", tmp_path / "imported", config=tmp_path / "config.json"
    )
    (note,) = result.notes
    assert note.startswith("tokenizer.json is not copied: it is a link to /etc/passwd")
    assert not (tmp_path / "imported" / "tokenizer.json").exists()


def test_a_destination_that_exists_is_refused(llama: Imported, tmp_path: Path) -> None:
    with pytest.raises(AieError, match=re.escape(str(tmp_path))):
        import_q4nx(llama.source / "model.q4nx", tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("folder", [".", "..", "/"])
def test_a_folder_is_answered_with_the_file_to_give(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(AieError, match=r"model\.q4nx$"):
        import_q4nx(folder, tmp_path / "imported")
