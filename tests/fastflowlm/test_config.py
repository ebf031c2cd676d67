"""config.json: what it must hold, and rotary frequencies according to their definitions."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from q4nx_files import DATA, TINY, config_of

from ort_aie_ep.compiler.fastflowlm.config import ModelConfig, read_config
from ort_aie_ep.errors import AieError
from ort_aie_ep.models.builder.weights import rotary_rows

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def read(tmp_path: Path, model: str = "llama", **changes: Any) -> ModelConfig:
    """A test model's configuration with changes; None removes a value."""
    values = config_of(TINY[model]) | changes
    values = {name: value for name, value in values.items() if value is not None}
    (tmp_path / "config.json").write_text(json.dumps(values))
    return read_config(tmp_path / "config.json")


@pytest.mark.parametrize("model", TINY)
def test_sizes_are_those_of_the_model(tmp_path: Path, model: str) -> None:
    shape, expected = read(tmp_path, model).shape, TINY[model]
    names = ("hidden", "ffn", "layers", "heads", "kv_heads", "head_dim", "vocab", "context")
    for name in (*names, "family", "epsilon", "window"):
        assert getattr(shape, name) == getattr(expected, name)
    assert [shape.is_local(i) for i in range(6)] == [expected.is_local(i) for i in range(6)]


def test_head_dim_follows_from_hidden_and_heads(tmp_path: Path) -> None:
    assert read(tmp_path, head_dim=None).shape.head_dim == 192 // 6


def test_layer_types_give_the_pattern(tmp_path: Path) -> None:
    types = ["sliding_attention", "full_attention", "sliding_attention"]
    shape = read(tmp_path, "gemma3", layer_types=types, sliding_window_pattern=None).shape
    assert [shape.is_local(layer) for layer in range(3)] == [True, False, True]
    local = ["sliding_attention"] * 3
    shape = read(tmp_path, "gemma3", layer_types=local, sliding_window_pattern=None).shape
    assert all(shape.is_local(layer) for layer in range(3))


def test_the_text_model_of_one_that_sees_is_read(tmp_path: Path) -> None:
    text = config_of(TINY["gemma3"])
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "gemma3", "text_config": text, "vision_config": {}})
    )
    assert read_config(tmp_path / "config.json").shape == read(tmp_path, "gemma3").shape


def llama3_frequency(frequency: float) -> float:
    """One frequency by Llama 3.1's rule, spelled out (transformers' `llama3` rotary type)."""
    wavelength = 2 * math.pi / frequency
    if wavelength < 8192 / 4:
        return frequency
    if wavelength > 8192 / 1:
        return frequency / 32
    smooth = (8192 / wavelength - 1) / (4 - 1)
    return (1 - smooth) * frequency / 32 + smooth * frequency


@pytest.mark.parametrize("newer", [False, True], ids=["transformers 4", "transformers 5"])
@pytest.mark.parametrize("kind", ["default", "linear", "llama3"])
def test_frequencies_follow_their_definition(tmp_path: Path, kind: str, newer: bool) -> None:
    theta = 500000.0
    scaling = {
        "default": {"rope_type": "default"},
        "linear": {"rope_type": "linear", "factor": 8.0},
        "llama3": LLAMA3,
    }[kind]
    if newer:
        changes = {"rope_theta": None, "rope_parameters": {"rope_theta": theta, **scaling}}
    else:
        changes = {"rope_theta": theta, "rope_scaling": scaling}
    rotary = read(tmp_path, head_dim=64, **changes).rotary[""]
    plain = [theta ** (-2 * i / 64) for i in range(32)]
    rule = {
        "default": lambda frequency: frequency,
        "linear": lambda frequency: frequency / 8,
        "llama3": llama3_frequency,
    }[kind]
    # float32 powers, and a few roundings after them.
    np.testing.assert_allclose(rotary.frequencies, [rule(one) for one in plain], rtol=2e-6)
    np.testing.assert_allclose(rotary.unscaled, plain, rtol=2e-6)


def test_scaled_tables_are_the_builders(tmp_path: Path) -> None:
    """tests/data/llama_asym has Llama 3.1's scaling; the settings are those of its script."""
    scaling = LLAMA3 | {"factor": 8.0, "original_max_position_embeddings": 64}
    rotary = read(tmp_path, head_dim=64, rope_theta=500000.0, rope_scaling=scaling).rotary[""]
    tables = ir.load(DATA / "llama_asym" / "model.onnx").graph.initializers
    for name, function in (("cos_cache", np.cos), ("sin_cache", np.sin)):
        expected = tables[name].const_value
        assert expected is not None
        rows = rotary_rows(function, rotary.frequencies)(np.random.default_rng(0), 0, 256)
        # The angle of position 255 has a float32 spacing of 1.5e-5; frequencies may differ by one
        # step.
        np.testing.assert_allclose(rows, expected.numpy(), atol=4e-5)


@pytest.mark.parametrize("newer", [False, True], ids=["transformers 4", "transformers 5"])
def test_gemma_scales_global_layers_alone(tmp_path: Path, newer: bool) -> None:
    linear = {"rope_type": "linear", "factor": 8.0}
    changes: dict[str, Any] = {"rope_scaling": linear}
    if newer:
        changes = {
            "rope_theta": None,
            "rope_local_base_freq": None,
            "rope_parameters": {
                "full_attention": {"rope_theta": 1e6, **linear},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        }
    rotary = read(tmp_path, "gemma3", **changes).rotary
    assert rotary.keys() == {"_global", "_local"}
    assert rotary["_global"].frequencies[0] == np.float32(1 / 8)
    assert rotary["_local"].frequencies[0] == 1
    width = TINY["gemma3"].head_dim
    assert rotary["_global"].frequencies[1] == pytest.approx(1e6 ** (-2 / width) / 8, rel=1e-6)
    assert rotary["_local"].frequencies[1] == pytest.approx(1e4 ** (-2 / width), rel=1e-6)


def test_tokens_and_search_come_from_the_generation_config_first(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text(
        json.dumps({"eos_token_id": [7, 8], "do_sample": True, "top_p": 0.9, "top_k": None})
    )
    config = read(tmp_path, bos_token_id=None, pad_token_id=None)
    assert config.tokens == {"bos_token_id": 1, "eos_token_id": [7, 8], "pad_token_id": 7}
    assert config.search == {"do_sample": True, "top_p": 0.9}


def test_a_token_that_the_generation_config_leaves_open_is_the_models(tmp_path: Path) -> None:
    tokens = {"bos_token_id": 3, "eos_token_id": 4, "pad_token_id": 5}
    (tmp_path / "generation_config.json").write_text(json.dumps(dict.fromkeys(tokens)))
    assert read(tmp_path, **tokens).tokens == tokens


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "phi3"}, "model_type 'phi3' cannot be imported; expected one of llama"),
        ({"model_type": None}, "model_type None cannot be imported"),
        ({"model_type": ["llama"]}, "cannot be imported"),
        ({"hidden_size": None}, "config.json: hidden_size is missing"),
        ({"hidden_size": "192"}, "hidden_size must be a whole number of at least 1, got '192'"),
        ({"hidden_size": True}, "hidden_size must be a whole number of at least 1, got True"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be a whole number of at least 1, got 0"),
        ({"vocab_size": 1.5}, "vocab_size must be a whole number of at least 1, got 1.5"),
        ({"head_dim": 33}, "head_dim must be even, got 33"),
        ({"num_key_value_heads": 4}, "num_attention_heads 6 is not a multiple of"),
        ({"hidden_act": "relu"}, "hidden_act must be 'silu', got ['relu']"),
        ({"hidden_act": None}, "hidden_act must be 'silu', got []"),
        ({"attention_bias": True}, "attention_bias True is not supported"),
        ({"mlp_bias": True}, "mlp_bias True is not supported"),
        ({"use_sliding_window": True}, "use_sliding_window True is not supported"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping 30.0 is not supported"),
        ({"model_type": "mistral", "sliding_window": 4096}, "sliding_window 4096 on every layer"),
        ({"rope_theta": None}, "rope_theta is missing"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "rope_type 'yarn' is not supported; expected one "
         "of default, linear, llama3"),
        ({"rope_scaling": {"rope_type": ["linear"]}}, "rope_type ['linear'] is not supported"),
        ({"rope_scaling": {"type": "linear"}}, "factor is missing"),
        ({"rope_scaling": LLAMA3 | {"high_freq_factor": 1.0}}, "high_freq_factor must be above"),
        ({"rope_scaling": "llama3"}, "rope_scaling must be an object, got 'llama3'"),
        ({"eos_token_id": None}, "eos_token_id is missing"),
        ({"eos_token_id": "</s>"}, "eos_token_id must be a token id or a list of them, got '</s>'"),
        ({"eos_token_id": []}, "eos_token_id must be a token id or a list of them, got []"),
        ({"layer_types": ["sliding_attention"] * 2}, "is not supported in a llama"),
        ({"layer_types": True}, "layer_types must be a list, got True"),
    ],
)  # fmt: skip
def test_what_is_missing_or_not_supported_is_named(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(AieError) as error:
        read(tmp_path, **changes)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_activation": "gelu"}, "hidden_activation must be 'gelu_pytorch_tanh'"),
        ({"query_pre_attn_scalar": 1}, "query_pre_attn_scalar 1 differs from head_dim"),
        ({"sliding_window": None}, "sliding_window is missing"),
        ({"sliding_window_pattern": None}, "sliding_window_pattern is missing"),
        ({"rope_local_base_freq": None}, "rope_local_base_freq is missing"),
        ({"layer_types": ["full_attention", "sliding_attention", "full_attention"]},
         "has a full_attention every 1"),
        ({"layer_types": "full_attention"}, "layer_types must be a list, got 'full_attention'"),
        ({"layer_types": 3}, "layer_types must be a list, got 3"),
        ({"layer_types": {"full_attention": 1}}, "layer_types must be a list"),
        ({"rope_parameters": {"rope_theta": 1e6}}, "must hold full_attention and sliding"),
    ],
)  # fmt: skip
def test_what_gemma_lacks_is_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(AieError) as error:
        read(tmp_path, "gemma3", **changes)
    assert message in str(error.value)


@pytest.mark.parametrize("content", ["[]", "{", "\xff"])
def test_a_file_that_is_not_an_object_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content, encoding="latin-1")
    with pytest.raises(AieError, match=r"object|JSON"):
        read_config(tmp_path / "config.json")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(AieError, match=r"config\.json .*--config"):
        read_config(tmp_path / "config.json")
