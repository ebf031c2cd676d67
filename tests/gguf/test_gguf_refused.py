"""GGUF files that are damaged, or say what is not known: one line names it, nothing is written."""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("gguf")

from gguf import GGMLQuantizationType as Kind
from gguf import GGUFReader
from gguf_files import MODELS, write

import ort_aie_ep
from ort_aie_ep.compiler.gguf.file import read_gguf
from ort_aie_ep.errors import AieError
from ort_aie_ep.models.folder import find_model

TINY = replace(MODELS["mistral"], shape=replace(MODELS["mistral"].shape, layers=1))


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "m.gguf"
    return write(path, TINY, lambda name: Kind.Q4_0).read_bytes()


def refused(path: Path, match: str, **options: Any) -> None:
    with pytest.raises(AieError, match=match) as raised:
        ort_aie_ep.compile(path, path.with_name("compiled"), **options)
    assert "\n" not in str(raised.value)
    assert not [each for each in path.parent.iterdir() if "compiled" in each.name]


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda data: b"GGML" + data[4:], "begins with"),
        (lambda data: b"version https://git-lfs", "git lfs pull"),
        (lambda data: data[:4] + struct.pack("<I", 4) + data[8:], "version 4.*update"),
        (lambda data: data[:4] + struct.pack("<I", 1) + data[8:], "version 1.*convert"),
        (lambda data: data[:4] + struct.pack(">I", 3) + data[8:], "big-endian"),
        (lambda data: data[:6], "not a GGUF file"),
        (lambda data: b"", "not a GGUF file"),
        # A number of keys, and a string, of 2^60.
        (lambda data: data[:16] + struct.pack("<Q", 1 << 60) + data[24:], "truncated|damaged"),
        (lambda data: data[:24] + struct.pack("<Q", 1 << 60) + data[32:], "truncated"),
    ],
)
def test_a_file_that_is_none(
    sound: bytes, change: Callable[[bytes], bytes], match: str, tmp_path: Path
) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(change(sound))
    refused(path, match)


def test_a_truncated_file_says_so_wherever_it_ends(sound: bytes, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    for end in [*range(8, 1200, 37), len(sound) // 2, len(sound) - 1]:
        path.write_bytes(sound[:end])
        with pytest.raises(AieError, match="truncated"):
            read_gguf(path)


def test_changed_bytes_of_a_header_are_read_or_refused(sound: bytes, tmp_path: Path) -> None:
    path, rng = tmp_path / "m.gguf", np.random.default_rng(1)
    for _ in range(150):
        data = bytearray(sound)
        for at in rng.integers(8, 2000, 3):
            data[at] = rng.integers(256)
        path.write_bytes(data)
        with suppress(AieError):  # no other exception
            read_gguf(path)


@pytest.mark.parametrize(
    ("metadata", "match"),
    [
        ({"general.architecture": "bert"}, "'bert' is not known; known are llama, qwen2"),
        ({"llama.block_count": 2}, "lacks tensor 'blk.1"),
        ({"llama.block_count": 1 << 30}, "block_count"),
        ({"llama.attention.head_count": 0}, "head_count"),
        ({"llama.attention.head_count": 3}, "head_count_kv"),
        ({"llama.feed_forward_length": 256}, "ffn_gate.*by the metadata"),
        ({"llama.embedding_length": 128}, "embedding_length"),
        ({"llama.context_length": "many"}, "context_length"),
        ({"llama.attention.layer_norm_rms_epsilon": 0.0}, "epsilon"),
        ({"llama.expert_count": 8}, "expert_count"),
        ({"llama.rope.scaling.type": "dynamic"}, "rope.scaling.type"),
        ({"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 0.5}, "scaling.factor"),
        ({"llama.attention.causal": False}, "attention.causal must be True"),
        ({"llama.nextn_predict_layers": 1}, "nextn_predict_layers"),
        ({"llama.expert_group_count": 2}, "expert_group_count"),
        ({"llama.rope.dimension_count": 16}, "dimension_count"),
        ({"split.count": 3}, "one of 3 parts"),
        ({"tokenizer.ggml.model": "t5", "tokenizer.ggml.tokens": ["a"]}, "tokenizer.ggml.model"),
        (
            {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": ["a"],
             "tokenizer.ggml.merges": ["a a"], "tokenizer.ggml.pre": "new"},
            "tokenizer.ggml.pre 'new' is not known",
        ),
        (
            {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": ["a"],
             "tokenizer.ggml.merges": ["b c"], "tokenizer.ggml.pre": "llama-bpe"},
            "tokenizer is damaged",
        ),
    ],
)  # fmt: skip
def test_metadata_that_does_not_fit(metadata: dict[str, Any], match: str, tmp_path: Path) -> None:
    architecture = metadata.pop("general.architecture", None)
    model = TINY if architecture is None else replace(TINY, architecture=architecture)
    refused(write(tmp_path / "m.gguf", model, lambda name: Kind.Q4_0, **metadata), match)


@pytest.mark.parametrize(
    ("name", "keys", "match"),
    [
        ("lfm2", {"attention.head_count_kv": [0, 1, 2, 0]}, "the same in all layers"),
        ("lfm2", {"attention.head_count_kv": [0, 0, 0, 0]}, "head_count_kv"),
        ("lfm2", {"attention.head_count_kv": [0, 2]}, "4 whole numbers"),
        ("lfm2", {"attention.sliding_window": 16}, "sliding_window must be 0"),
        ("lfm2", {"shortconv.l_cache": 4}, "shortconv.conv.*by the metadata"),
        ("lfm2moe", {"expert_gating_func": 1}, "expert_gating_func must be 2"),
        ("lfm2moe", {"leading_dense_block_count": 2}, "lacks tensor 'blk.1"),
        ("qwen35", {"ssm.inner_size": 128}, "inner_size must be 256"),
        ("qwen35", {"ssm.time_step_rank": 3, "ssm.inner_size": 192}, "a multiple of ssm.group"),
        ("qwen35", {"full_attention_interval": 2}, "lacks tensor 'blk.1.attn_q"),
        ("qwen35", {"rope.dimension_sections": [4, 4, 4, 0]}, "dimension_sections must be 8"),
        ("qwen35", {"nextn_predict_layers": 4}, "less than block_count"),
    ],
)
def test_states_that_do_not_fit(
    name: str, keys: dict[str, Any], match: str, tmp_path: Path
) -> None:
    model = MODELS[name]
    model = replace(model, keys={**model.keys, **keys})
    refused(write(tmp_path / "m.gguf", model, lambda name: Kind.Q4_0), match)


@pytest.mark.parametrize(
    ("family", "key", "value"),
    [
        ("gemma3", "final_logit_softcapping", 30.0),
        ("gemma3", "attention.key_length_swa", 16),
        ("gemma3", "attention.sliding_window_pattern", [True, True, False, False, True, True]),
        ("gpt-oss", "rope.freq_base_swa", 10000.0),
        ("gpt-oss", "attention.sliding_window", 0),
        ("granite", "residual_scale", 1e-30),
    ],
)
def test_keys_that_would_change_another_familys_numbers(
    family: str, key: str, value: Any, tmp_path: Path
) -> None:
    keys = {f"{family}.{key}": value}
    path = write(tmp_path / "m.gguf", MODELS[family], lambda name: Kind.Q8_0, **keys)
    refused(path, f"{family}.{key} must be")


@pytest.mark.parametrize(
    ("number", "match"),
    [
        (Kind.TQ2_0, "is TQ2_0; known types are F32"),
        (Kind.IQ2_XS, "is IQ2_XS; known types are F32"),
        (999, "has type 999, which the installed package gguf does not know"),
    ],
)
def test_a_type_that_is_not_known_is_named(number: int, match: str, tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", TINY, lambda name: Kind.Q8_0)
    data = path.read_bytes()
    # The type follows the name, the number of dimensions, and two dimensions.
    at = data.index(b"blk.0.attn_q.weight") + len(b"blk.0.attn_q.weight") + 4 + 16
    path.write_bytes(data[:at] + struct.pack("<I", number) + data[at + 4 :])
    refused(path, f"tensor 'blk.0.attn_q.weight' {match}")


def test_rows_that_are_not_whole_blocks_are_named(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", TINY, lambda name: Kind.Q4_K)
    data = path.read_bytes()
    at = data.index(b"blk.0.attn_q.weight") + len(b"blk.0.attn_q.weight") + 4
    path.write_bytes(data[:at] + struct.pack("<Q", 255) + data[at + 8 :])
    refused(
        path, "tensor 'blk.0.attn_q.weight' has rows of 255 weights; expected a multiple of 256"
    )


@pytest.mark.parametrize("compatible", [False, True])
@pytest.mark.parametrize("kind", [Kind.Q4_K, Kind.Q6_K])
def test_scales_that_are_not_numbers_are_named(
    kind: Kind, compatible: bool, tmp_path: Path
) -> None:
    path = write(tmp_path / "m.gguf", TINY, lambda name: kind)
    tensor = next(t for t in GGUFReader(path).tensors if t.name == "blk.0.ffn_down.weight")
    at = tensor.data_offset + 7 * tensor.data.shape[-1] - (2 if kind == Kind.Q6_K else 144)
    data = path.read_bytes()
    path.write_bytes(data[:at] + struct.pack("<e", np.inf) + data[at + 2 :])
    refused(path, "tensor 'blk.0.ffn_down.weight' has a scale", q4nx_compatible=compatible)


def test_a_tensor_that_nothing_uses_is_named(tmp_path: Path) -> None:
    path = write(
        tmp_path / "m.gguf", replace(TINY, divisors=("rope_freqs",)), lambda name: Kind.Q4_0
    )
    path.write_bytes(path.read_bytes().replace(b"rope_freqs.weight", b"rope_other.weight"))
    refused(path, "rope_other")


@pytest.mark.parametrize("options", [{"vision": "bf16"}, {"quantize": "q4nx", "importance": ""}])
def test_options_that_are_not_for_it(options: dict[str, Any], sound: bytes, tmp_path: Path) -> None:
    path, text = tmp_path / "m.gguf", tmp_path / "text"
    path.write_bytes(sound)
    text.write_text("x")
    if "importance" in options:
        options = options | {"importance": text}
    refused(path, "cannot be used with a GGUF file", **options)


def test_an_option_that_is_for_nothing_else(tmp_path: Path) -> None:
    with pytest.raises(AieError, match="gguf_pre is for GGUF files"):
        ort_aie_ep.compile(tmp_path / "m.onnx", tmp_path / "compiled", gguf_pre="gpt-2")


def test_other_commands_say_that_it_must_be_compiled(sound: bytes, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(sound)
    with pytest.raises(AieError, match="ort-aie compile"):
        find_model(path)
