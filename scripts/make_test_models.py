"""Make the tiny int4 genai folders in tests/data, with random weights and the real model builder.

    python -m venv models && models/bin/pip install -r scripts/requirements-models.txt
    models/bin/python scripts/make_test_models.py tests/data

Each family gets one folder of less than 1 MB. Hidden and FFN sizes are multiples of the
quantisation block but not of 256, so tests exercise the padding of K. Every model has more query
heads than key-value heads.

Without a name after the folder, the script makes all of them. It replaces a folder that exists.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from make_demo_model import build_genai_folder, generate, save_tokenizer, train_tokenizer
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    Phi3Config,
    PhiConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from ort_aie_ep.models import corpus

SEED = 7
MAX_POSITIONS = 256

# Wide enough that attention is far from uniform and logits are far from ties.
INITIALIZER_RANGE = 0.1


@dataclass(frozen=True)
class TestModel:
    """A tiny model: its HF config for a vocabulary size, and the builder's non-default options."""

    make_config: Callable[[int], PreTrainedConfig]
    vocab: int = 512
    options: tuple[str, ...] = ()
    adapt: dict[str, object] = field(default_factory=dict)


def _common(vocab: int) -> dict[str, Any]:
    return {
        "vocab_size": vocab,
        "max_position_embeddings": MAX_POSITIONS,
        "initializer_range": INITIALIZER_RANGE,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "pad_token_id": 0,
    }


def _llama(vocab: int) -> PreTrainedConfig:
    return LlamaConfig(
        **_common(vocab),
        hidden_size=192,
        intermediate_size=352,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=32,
        tie_word_embeddings=True,
    )


def _llama_asym(vocab: int) -> PreTrainedConfig:
    return LlamaConfig(
        **_common(vocab),
        hidden_size=192,
        intermediate_size=320,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=64,
        # As in Llama 3, but with a short original context: of 32 wavelengths, this keeps some,
        # blends some and stretches the rest.
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
        tie_word_embeddings=False,
    )


def _qwen2(vocab: int) -> PreTrainedConfig:
    return Qwen2Config(
        **_common(vocab),
        hidden_size=128,
        intermediate_size=224,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        rope_parameters={"rope_type": "default", "rope_theta": 1000000.0},
        tie_word_embeddings=True,
    )


def _mistral(vocab: int) -> PreTrainedConfig:
    return MistralConfig(
        **_common(vocab),
        hidden_size=192,
        intermediate_size=352,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=32,
        sliding_window=24,
        tie_word_embeddings=False,
    )


def _smollm(vocab: int) -> PreTrainedConfig:
    # SmolLM2: a Llama with tied embeddings and heads in threes. Builder 0.18 fails on SmolLM3.
    return LlamaConfig(
        **_common(vocab),
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=3,
        num_key_value_heads=1,
        head_dim=32,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
        tie_word_embeddings=True,
    )


def _qwen3(vocab: int) -> PreTrainedConfig:
    return Qwen3Config(
        **_common(vocab),
        hidden_size=160,
        intermediate_size=352,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        rope_parameters={"rope_type": "default", "rope_theta": 1000000.0},
        tie_word_embeddings=True,
    )


def _gemma3(vocab: int) -> PreTrainedConfig:
    return Gemma3TextConfig(
        **(_common(vocab) | {"max_position_embeddings": 128}),  # keeps the tables small
        hidden_size=96,
        intermediate_size=288,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=256,
        query_pre_attn_scalar=256,
        sliding_window=32,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        tie_word_embeddings=True,
    )


def _phi(vocab: int) -> PreTrainedConfig:
    return PhiConfig(
        **_common(vocab),
        hidden_size=192,
        intermediate_size=416,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5,
        },
        tie_word_embeddings=False,
    )


def _phi3(vocab: int) -> PreTrainedConfig:
    return Phi3Config(
        **_common(vocab),
        original_max_position_embeddings=MAX_POSITIONS,
        hidden_size=192,
        intermediate_size=352,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        tie_word_embeddings=False,
    )


TEST_MODELS = {
    # The vocabulary is not a multiple of 32, so the lm_head's last block of rows has padding.
    "llama": TestModel(_llama, vocab=500),
    "llama_asym": TestModel(
        _llama_asym, vocab=352, options=("is_symmetric=false", "block_size=64")
    ),
    "qwen2": TestModel(_qwen2),
    "qwen3": TestModel(_qwen3),
    # Builder 0.18 expects Gemma 3's rotary settings where transformers 4 had them.
    "gemma3": TestModel(
        _gemma3,
        vocab=480,
        adapt={
            "rope_local_base_freq": 10000.0,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
        },
    ),
    "phi": TestModel(_phi),
    # Builder 0.18 windows Mistral's cache but not its attention, and genai then fails.
    "mistral": TestModel(_mistral, vocab=288, options=("windowed_kv_cache=false",)),
    "smollm": TestModel(_smollm),
    # As in the published weights, gate and up are one tensor, and so are q, k and v.
    "phi3": TestModel(_phi3, vocab=288, options=("fuse_mlp_gate_up=true",)),
}


def randomise_vectors(model: Any) -> None:
    """Set norm weights around their usual values, and non-zero biases.

    transformers initialises them to constants, which would hide a missing norm or bias (and the
    builder leaves all-zero biases out of the graph). The end-of-text token gets a row of zeros in
    the lm_head, so that no greedy text ends early; this also makes blocks whose scale is zero.
    """
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                spread = 0.2 if "norm" in name and name.endswith("weight") else 0.1
                parameter.add_(spread * torch.randn(parameter.shape))
        if model.config.model_type == "gemma3_text":
            # Otherwise embeddings times √hidden would drown the layers, and a tied model would
            # repeat its input.
            model.get_input_embeddings().weight.mul_(0.1)
            model.base_model.norm.weight.add_(8.0)
        head = model.get_output_embeddings()
        head.weight[0] = 0.0
        if getattr(head, "bias", None) is not None:
            head.bias[0] = 0.0


def check_vocabulary(model: Any) -> None:
    """Refuse a vocabulary size that is also a layer's number of outputs.

    The builder treats every linear layer with as many outputs as the vocabulary as the lm_head. The
    model that it writes runs, but its logits are the outputs of the first such layer.
    """
    head = model.get_output_embeddings()
    for name, module in model.named_modules():
        same = isinstance(module, torch.nn.Linear) and module.out_features == head.out_features
        if same and module is not head:
            raise RuntimeError(
                f"{name} has {module.out_features} outputs, the size of the vocabulary. "
                "Choose another vocabulary size."
            )


def make(name: str, destination: Path) -> None:
    """Write the genai folder of one test model."""
    recipe = TEST_MODELS[name]
    with tempfile.TemporaryDirectory() as scratch:
        hf = Path(scratch, "hf")
        # A few modules are enough for 512 tokens.
        texts = itertools.islice(corpus.training_text(), 40)
        save_tokenizer(train_tokenizer(texts, recipe.vocab), hf, MAX_POSITIONS)
        torch.manual_seed(SEED)
        model = AutoModelForCausalLM.from_config(recipe.make_config(recipe.vocab))
        check_vocabulary(model)
        randomise_vectors(model)
        model.save_pretrained(hf)
        if destination.exists():
            shutil.rmtree(destination)
        build_genai_folder(hf, destination, recipe.options, recipe.adapt)


def main() -> None:
    """Make the folders named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(TEST_MODELS))
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    unknown = set(arguments.names) - TEST_MODELS.keys()
    if unknown:
        known = ", ".join(TEST_MODELS)
        parser.error(f"unknown test model: {', '.join(sorted(unknown))}; choose from {known}")
    for name in arguments.names or TEST_MODELS:
        destination = arguments.folder / name
        make(name, destination)
        size = sum(file.stat().st_size for file in destination.iterdir())
        text = generate(destination, "def main(", 8)
        print(f"{name}: {size / 1e6:.2f} MB, continues with {text!r}", flush=True)
        if size >= 1_000_000:
            raise RuntimeError(f"{destination} has {size} bytes; expected less than 1 MB")


if __name__ == "__main__":
    main()
