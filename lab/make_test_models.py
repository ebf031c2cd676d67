"""Make the tiny int4 genai folders in tests/data, with random weights and the real model builder.

    python -m venv models && models/bin/pip install -r lab/requirements-models.txt
    models/bin/python lab/make_test_models.py tests/data

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

import onnx_ir as ir
import torch
import transformers
from make_demo_model import build_genai_folder, generate, save_tokenizer, train_tokenizer
from safetensors.torch import load_file, save_file
from transformers import (
    Gemma3TextConfig,
    Gemma4UnifiedConfig,
    GptOssConfig,
    GraniteMoeHybridConfig,
    Lfm2Config,
    Lfm2MoeConfig,
    LlamaConfig,
    MistralConfig,
    Phi3Config,
    PhiConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3_5Config,
    Qwen3Config,
    SmolLM3Config,
)

from ort_aie_ep.models import corpus

SEED = 7
MAX_POSITIONS = 256

# Wide enough that attention is far from uniform and logits are far from ties.
INITIALIZER_RANGE = 0.1


@dataclass(frozen=True)
class TestModel:
    """A tiny model: its HF config for a vocabulary size, and the builder's non-default options.

    `auto` is the class of transformers that makes the model that the builder expects. `prepare`
    changes the HF folder before the builder reads it, `finish` the builder's graph.
    """

    make_config: Callable[[int], PreTrainedConfig]
    vocab: int = 512
    options: tuple[str, ...] = ()
    adapt: dict[str, object] = field(default_factory=dict)
    auto: str = "AutoModelForCausalLM"
    prepare: Callable[[Path], None] | None = None
    finish: Callable[[ir.Model], None] | None = None


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


def _qwen3_5(vocab: int) -> PreTrainedConfig:
    # As published, three layers of four have linear attention.
    text = _common(vocab) | {
        "hidden_size": 128,
        "intermediate_size": 352,
        "num_hidden_layers": 4,
        "layer_types": ["linear_attention"] * 3 + ["full_attention"],
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1000000.0,
            "partial_rotary_factor": 0.25,
            "mrope_interleaved": True,
            "mrope_section": [4, 2, 2],
        },
        "tie_word_embeddings": True,
    }
    vision = {
        "depth": 1,
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_heads": 1,
        "out_hidden_size": 128,
    }
    return Qwen3_5Config(text_config=text, vision_config=vision, tie_word_embeddings=True)


def _lfm2(vocab: int) -> PreTrainedConfig:
    return Lfm2Config(
        **_common(vocab),
        hidden_size=128,
        intermediate_size=352,
        block_auto_adjust_ff_dim=False,
        num_hidden_layers=4,
        layer_types=["conv", "conv", "full_attention", "conv"],
        conv_L_cache=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )


def _lfm2_moe(vocab: int) -> PreTrainedConfig:
    return Lfm2MoeConfig(
        **_common(vocab),
        hidden_size=128,
        intermediate_size=352,
        num_hidden_layers=3,
        layer_types=["conv", "full_attention", "conv"],
        conv_L_cache=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_dense_layers=1,
        num_experts=8,
        num_experts_per_tok=2,
        moe_intermediate_size=96,
        tie_word_embeddings=True,
    )


def _granite4(vocab: int) -> PreTrainedConfig:
    # Builder 0.18 writes attention for every layer, and fails on a layer of type mamba.
    return GraniteMoeHybridConfig(
        **_common(vocab),
        hidden_size=128,
        shared_intermediate_size=352,
        num_local_experts=0,
        num_hidden_layers=2,
        layer_types=["attention", "attention"],
        position_embedding_type="rope",
        num_attention_heads=4,
        num_key_value_heads=2,
        attention_multiplier=0.2,
        embedding_multiplier=3.0,
        residual_multiplier=0.4,
        logits_scaling=0.5,
        tie_word_embeddings=True,
    )


def _phi4mini(vocab: int) -> PreTrainedConfig:
    # As in the published model, three quarters of a head are rotated, and contexts beyond the
    # original length have another table, whose wavelengths are stretched more the longer they are.
    return Phi3Config(
        **_common(vocab),
        original_max_position_embeddings=64,
        hidden_size=192,
        intermediate_size=352,
        num_hidden_layers=2,
        num_attention_heads=3,
        num_key_value_heads=1,
        partial_rotary_factor=0.75,
        rope_parameters={
            "type": "longrope",
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.75,
            "short_factor": [1.0 + 0.02 * i for i in range(24)],
            "long_factor": [1.0 + 0.5 * i for i in range(24)],
            "original_max_position_embeddings": 64,
            "factor": 4.0,
        },
        tie_word_embeddings=True,
    )


# Global layers have wider heads, fewer of them, and their keys are also their values.
_GEMMA4_HEADS: dict[str, object] = {
    "head_dim": 32,
    "global_head_dim": 64,
    "num_global_key_value_heads": 1,
    "attention_k_eq_v": True,
    "allow_global_per_layer_attribute_access": True,
}


def _gemma4(vocab: int) -> PreTrainedConfig:
    return Gemma4UnifiedConfig(
        text_config={
            **_common(vocab),
            "hidden_size": 128,
            "intermediate_size": 352,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "sliding_window": 24,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
            "tie_word_embeddings": True,
            **_GEMMA4_HEADS,
        },
        vision_config=None,
        audio_config=None,
    )


def _gpt_oss(vocab: int) -> PreTrainedConfig:
    return GptOssConfig(
        **_common(vocab),
        hidden_size=128,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=24,
        tie_word_embeddings=False,
    )


def _smollm3(vocab: int) -> PreTrainedConfig:
    return SmolLM3Config(
        **_common(vocab),
        hidden_size=96,
        intermediate_size=192,
        num_hidden_layers=4,
        num_attention_heads=3,
        num_key_value_heads=1,
        no_rope_layers=[1, 1, 1, 0],
        tie_word_embeddings=True,
    )


def leave_out_rotation(model: ir.Model) -> None:
    """SmolLM3's last layer does not rotate. Builder 0.18 fails on such a layer (KeyError:
    'position_ids'), so it gets a model in which every layer rotates."""
    attention = [node for node in model.graph if node.op_type == "GroupQueryAttention"][-1]
    attention.attributes.add(ir.AttrInt64("do_rotary", 0))
    for index in (7, 8):
        attention.replace_input_with(index, None)


# Values of the codes of MXFP4, whose highest bit is the sign.
_MAGNITUDES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
_MXFP4 = torch.cat([_MAGNITUDES, -_MAGNITUDES])


def write_mxfp4(hf: Path) -> None:
    """Gives the experts random weights in MXFP4, as they are published.

    The builder reads gate_up_proj_blocks (experts, outputs, inputs / 32, 16), in which a byte has
    two codes, the first in its low half, and gate_up_proj_scales, exponents with a bias of 127. The
    tensors that transformers reads get the same values.
    """
    file = hf / "model.safetensors"
    tensors = load_file(file)
    names = ("experts.gate_up_proj", "experts.down_proj")
    for name in [key for key in tensors if key.endswith(names)]:
        experts, inputs, outputs = tensors[name].shape
        codes = torch.randint(0, 16, (experts, outputs, inputs // 32, 32), dtype=torch.uint8)
        scales = torch.randint(121, 124, codes.shape[:3], dtype=torch.uint8)  # 2^-6 to 2^-4
        values = _MXFP4[codes.long()] * torch.exp2(scales.float() - 127)[..., None]
        tensors[name] = values.reshape(experts, outputs, inputs).transpose(1, 2).contiguous()
        tensors[f"{name}_blocks"] = codes[..., 0::2] | codes[..., 1::2] << 4
        tensors[f"{name}_scales"] = scales
    save_file(tensors, file, {"format": "pt"})


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
    "qwen3_5": TestModel(_qwen3_5, vocab=480, auto="AutoModelForImageTextToText"),
    "lfm2": TestModel(_lfm2, vocab=480),
    "lfm2_moe": TestModel(_lfm2_moe, vocab=480),
    "granite4": TestModel(_granite4, vocab=480),
    "phi4mini": TestModel(_phi4mini, vocab=288),
    # transformers 5.23 writes the heads of global layers for each layer.
    "gemma4": TestModel(
        _gemma4, vocab=480, adapt=_GEMMA4_HEADS, auto="AutoModelForImageTextToText"
    ),
    "gpt_oss": TestModel(_gpt_oss, vocab=288, prepare=write_mxfp4),
    "smollm3": TestModel(
        _smollm3, vocab=288, adapt={"no_rope_layers": [1, 1, 1, 1]}, finish=leave_out_rotation
    ),
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
        for name, buffer in model.named_buffers():
            if name.endswith("layer_scalar"):  # ONNX Runtime drops a product with 1
                buffer.mul_(0.9)
        if model.config.model_type in ("gemma3_text", "gemma4_unified"):
            # Otherwise embeddings times √hidden would drown the layers, and a tied model would
            # repeat its input.
            model.get_input_embeddings().weight.mul_(0.1)
            model.get_decoder().norm.weight.add_(8.0)
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
        auto = getattr(transformers, recipe.auto)
        model = auto.from_config(recipe.make_config(recipe.vocab))
        check_vocabulary(model)
        randomise_vectors(model)
        model.save_pretrained(hf)
        if recipe.prepare is not None:
            recipe.prepare(hf)
        if destination.exists():
            shutil.rmtree(destination)
        build_genai_folder(hf, destination, recipe.options, recipe.adapt)
        if recipe.finish is not None:
            graph = ir.load(destination / "model.onnx")
            recipe.finish(graph)
            ir.save(graph, destination / "model.onnx")


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
