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
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx_ir as ir
import torch
from genai_builder import (
    COMMON,
    TinyModel,
    add_head,
    build_genai_folder,
    generate,
    save_tokenizer,
    train_tokenizer,
    write_mxfp4,
)

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from ort_aie_ep.models import corpus


def _sizes(
    vocab: int, hidden: int, ffn: int, layers: int, heads: int, kv_heads: int, *, tied: bool = True
) -> dict[str, Any]:
    return COMMON | {
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "tie_word_embeddings": tied,
    }


def _rope(theta: float, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": theta, **more}}


def _qwen3_5(**more: Any) -> TinyModel:
    text = _sizes(480, 128, 352, 4, 4, 2) | {
        "layer_types": ["linear_attention"] * 3 + ["full_attention"],
        "head_dim": 64,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
    }
    rotation = _rope(
        1000000.0, partial_rotary_factor=0.25, mrope_interleaved=True, mrope_section=[4, 2, 2]
    )
    vision = {
        "depth": 1,
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_heads": 1,
        "out_hidden_size": 128,
    }
    values = {
        "text_config": text | rotation | more,
        "vision_config": vision,
        "tie_word_embeddings": True,
    }
    return TinyModel("Qwen3_5Config", values, auto="AutoModelForImageTextToText")


def leave_out_rotation(model: ir.Model) -> None:
    """SmolLM3's last layer does not rotate. Builder 0.18 fails on such a layer (KeyError:
    'position_ids'), so it gets a model in which every layer rotates."""
    attention = [node for node in model.graph if node.op_type == "GroupQueryAttention"][-1]
    attention.attributes.add(ir.AttrInt64("do_rotary", 0))
    for index in (7, 8):
        attention.replace_input_with(index, None)


# Global layers have wider heads, fewer of them, and their keys are also their values.
_GEMMA4_HEADS: dict[str, Any] = {
    "head_dim": 32,
    "global_head_dim": 64,
    "num_global_key_value_heads": 1,
    "attention_k_eq_v": True,
    "allow_global_per_layer_attribute_access": True,
}

TEST_MODELS = {
    # The vocabulary is not a multiple of 32, so the lm_head's last block of rows has padding.
    "llama": TinyModel("LlamaConfig", _sizes(500, 192, 352, 2, 6, 2) | {"head_dim": 32}),
    # As in Llama 3, but with a short original context: of 32 wavelengths, this keeps some, blends
    # some and stretches the rest.
    "llama_asym": TinyModel(
        "LlamaConfig",
        _sizes(352, 192, 320, 2, 4, 1, tied=False)
        | {
            "head_dim": 64,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 500000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        },
        options=("is_symmetric=false", "block_size=64"),
    ),
    "qwen2": TinyModel("Qwen2Config", _sizes(512, 128, 224, 2, 4, 2) | _rope(1000000.0)),
    "qwen3": TinyModel(
        "Qwen3Config", _sizes(512, 160, 352, 2, 4, 2) | _rope(1000000.0) | {"head_dim": 64}
    ),
    # Builder 0.18 expects Gemma 3's rotary settings where transformers 4 had them.
    "gemma3": TinyModel(
        "Gemma3TextConfig",
        _sizes(480, 96, 288, 3, 2, 1)
        | {
            "max_position_embeddings": 128,  # keeps the tables small
            "head_dim": 256,
            "query_pre_attn_scalar": 256,
            "sliding_window": 32,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
        adapt={"rope_local_base_freq": 10000.0} | _rope(1000000.0),
    ),
    "phi": TinyModel(
        "PhiConfig",
        _sizes(512, 192, 416, 2, 6, 2, tied=False) | _rope(10000.0, partial_rotary_factor=0.5),
    ),
    # Builder 0.18 windows Mistral's cache but not its attention, and genai then fails.
    "mistral": TinyModel(
        "MistralConfig",
        _sizes(288, 192, 352, 2, 6, 2, tied=False) | {"head_dim": 32, "sliding_window": 24},
        options=("windowed_kv_cache=false",),
    ),
    # SmolLM2: a Llama with tied embeddings and heads in threes.
    "smollm": TinyModel(
        "LlamaConfig", _sizes(512, 96, 256, 3, 3, 1) | _rope(100000.0) | {"head_dim": 32}
    ),
    # As in the published weights, gate and up are one tensor, and so are q, k and v.
    "phi3": TinyModel(
        "Phi3Config",
        _sizes(288, 192, 352, 2, 6, 2, tied=False)
        | {"original_max_position_embeddings": COMMON["max_position_embeddings"]},
        options=("fuse_mlp_gate_up=true",),
    ),
    # As published, three layers of four have linear attention.
    "qwen3_5": _qwen3_5(),
    "heads/qwen3_5": replace(_qwen3_5(mtp_num_hidden_layers=1), prepare=add_head),
    "lfm2": TinyModel(
        "Lfm2Config",
        _sizes(480, 128, 352, 4, 4, 2)
        | {
            "block_auto_adjust_ff_dim": False,
            "layer_types": ["conv", "conv", "full_attention", "conv"],
            "conv_L_cache": 3,
        },
    ),
    "lfm2_moe": TinyModel(
        "Lfm2MoeConfig",
        _sizes(480, 128, 352, 3, 4, 2)
        | {
            "layer_types": ["conv", "full_attention", "conv"],
            "conv_L_cache": 3,
            "num_dense_layers": 1,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 96,
        },
    ),
    # Builder 0.18 writes attention for every layer, and fails on a layer of type mamba.
    "granite4": TinyModel(
        "GraniteMoeHybridConfig",
        {k: v for k, v in _sizes(480, 128, 0, 2, 4, 2).items() if k != "intermediate_size"}
        | {
            "shared_intermediate_size": 352,
            "num_local_experts": 0,
            "layer_types": ["attention", "attention"],
            "position_embedding_type": "rope",
            "attention_multiplier": 0.2,
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.4,
            "logits_scaling": 0.5,
        },
    ),
    # As in the published model, three quarters of a head are rotated, and contexts beyond the
    # original length have another table, whose wavelengths are stretched more the longer they are.
    "phi4mini": TinyModel(
        "Phi3Config",
        _sizes(288, 192, 352, 2, 3, 1)
        | {
            "original_max_position_embeddings": 64,
            "partial_rotary_factor": 0.75,
            "rope_parameters": {
                "type": "longrope",
                "rope_type": "longrope",
                "rope_theta": 10000.0,
                "partial_rotary_factor": 0.75,
                "short_factor": [1.0 + 0.02 * i for i in range(24)],
                "long_factor": [1.0 + 0.5 * i for i in range(24)],
                "original_max_position_embeddings": 64,
                "factor": 4.0,
            },
        },
    ),
    # transformers 5.23 writes the heads of global layers for each layer.
    "gemma4": TinyModel(
        "Gemma4UnifiedConfig",
        {
            "text_config": _sizes(480, 128, 352, 3, 4, 2)
            | {
                "sliding_window": 24,
                "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
            }
            | _GEMMA4_HEADS,
            "vision_config": None,
            "audio_config": None,
        },
        adapt=_GEMMA4_HEADS,
        auto="AutoModelForImageTextToText",
    ),
    "gpt_oss": TinyModel(
        "GptOssConfig",
        _sizes(288, 128, 96, 2, 4, 2, tied=False)
        | {
            "head_dim": 32,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": 24,
        },
        prepare=write_mxfp4,
    ),
    "smollm3": TinyModel(
        "SmolLM3Config",
        _sizes(288, 96, 192, 4, 3, 1) | {"no_rope_layers": [1, 1, 1, 0]},
        adapt={"no_rope_layers": [1, 1, 1, 1]},
        finish=leave_out_rotation,
    ),
}


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
    vocab = recipe.values.get("text_config", recipe.values)["vocab_size"]
    with tempfile.TemporaryDirectory() as scratch:
        hf = Path(scratch, "hf")
        # A few modules are enough for 512 tokens.
        texts = itertools.islice(corpus.training_text(), 40)
        save_tokenizer(train_tokenizer(texts, vocab), hf)
        model = recipe.make()
        check_vocabulary(model)
        recipe.save(model, hf)
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
        # genai 0.18 does not open a model on a CPU that shares tensors with its head.
        alone = not (destination / "mtp.onnx").exists()
        text = repr(generate(destination, "def main(", 8)) if alone else "a head"
        print(f"{name}: {size / 1e6:.2f} MB, continues with {text}", flush=True)
        if size >= 1_000_000:
            raise RuntimeError(f"{destination} has {size} bytes; expected less than 1 MB")


if __name__ == "__main__":
    main()
