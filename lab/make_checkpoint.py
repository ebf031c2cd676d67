"""Make a checkpoint with random weights: a tiny Llama, or laid out like a well-known model.

    models/bin/python lab/make_checkpoint.py tiny TINY
    models/bin/python lab/make_checkpoint.py qwen3-0.6b Qwen3-0.6B [--layers 4]

tests/data/olive and tests/data/quark were made from the tiny one, as docs/hosts/olive.md and
docs/hosts/quark.md describe; its feed-forward width is an odd number of quantisation blocks.

Of a well-known model, config.json has the fields and values of the published one, from before
transformers wrote them in another way, and the weights have its names, shapes and type. The
tokenizer is a small one of tests/data, since vocabularies are published with their models only. So
text is noise, while everything else is as with the real checkpoint. docs/checkpoints.md shows what
commands print.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, LlamaConfig

TOKENIZER = Path(__file__).parent.parent / "tests" / "data" / "llama"
SEED = 7
COMMON = {"attention_bias": False, "attention_dropout": 0.0, "initializer_range": 0.02,
          "torch_dtype": "bfloat16", "use_cache": True}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "llama-3.2-1b": {
        **COMMON,
        "architectures": ["LlamaForCausalLM"],
        "bos_token_id": 128000,
        "eos_token_id": [128001, 128008, 128009],
        "head_dim": 64,
        "hidden_act": "silu",
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "max_position_embeddings": 131072,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": 32,
        "num_hidden_layers": 16,
        "num_key_value_heads": 8,
        "pretraining_tp": 1,
        "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "factor": 32.0,
            "high_freq_factor": 4.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
        "rope_theta": 500000.0,
        "tie_word_embeddings": True,
        "vocab_size": 128256,
    },
    "qwen3-0.6b": {
        **COMMON,
        "architectures": ["Qwen3ForCausalLM"],
        "bos_token_id": 151643,
        "eos_token_id": 151645,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "max_position_embeddings": 40960,
        "max_window_layers": 28,
        "model_type": "qwen3",
        "num_attention_heads": 16,
        "num_hidden_layers": 28,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "sliding_window": None,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
        "vocab_size": 151936,
    },
    "gemma-3-1b": {
        **COMMON,
        "architectures": ["Gemma3ForCausalLM"],
        "attn_logit_softcapping": None,
        "bos_token_id": 2,
        "cache_implementation": "hybrid",
        "eos_token_id": [1, 106],
        "final_logit_softcapping": None,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 1152,
        "intermediate_size": 6912,
        "max_position_embeddings": 32768,
        "model_type": "gemma3_text",
        "num_attention_heads": 4,
        "num_hidden_layers": 26,
        "num_key_value_heads": 1,
        "pad_token_id": 0,
        "query_pre_attn_scalar": 256,
        "rms_norm_eps": 1e-06,
        "rope_local_base_freq": 10000,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "sliding_window": 512,
        "sliding_window_pattern": 6,
        "vocab_size": 262144,
    },
}
# Norms of Gemma are stored without the 1 that is added to them.
NORM = {"gemma3_text": 0.0}
# The published Qwen3 stores its lm_head, although the embedding has the same weights.
STORED_LM_HEAD = ("qwen3",)


def shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the tensors."""
    hidden, wide, head = (config[name] for name in ("hidden_size", "intermediate_size", "head_dim"))
    queries, keys = head * config["num_attention_heads"], head * config["num_key_value_heads"]
    kind = config["model_type"]
    norms = ["input_layernorm", "post_attention_layernorm"]
    if kind == "gemma3_text":
        norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    found: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config["vocab_size"], hidden)
    }
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        found |= {f"{at}.{name}.weight": (hidden,) for name in norms}
        attention, mlp = f"{at}.self_attn", f"{at}.mlp"
        found[f"{attention}.q_proj.weight"] = (queries, hidden)
        found[f"{attention}.k_proj.weight"] = (keys, hidden)
        found[f"{attention}.v_proj.weight"] = (keys, hidden)
        found[f"{attention}.o_proj.weight"] = (hidden, queries)
        if kind != "llama":
            found |= {f"{attention}.{name}_norm.weight": (head,) for name in "qk"}
        found[f"{mlp}.gate_proj.weight"] = (wide, hidden)
        found[f"{mlp}.up_proj.weight"] = (wide, hidden)
        found[f"{mlp}.down_proj.weight"] = (hidden, wide)
    found["model.norm.weight"] = (hidden,)
    return found


def write_published(config: dict[str, Any], folder: Path) -> None:
    """config.json as published, and random weights."""
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    norm = NORM.get(config["model_type"], 1.0)
    tensors = {
        name: torch.full(shape, norm, dtype=torch.bfloat16)
        if len(shape) == 1
        else torch.empty(shape, dtype=torch.bfloat16).normal_(0.0, 0.02)
        for name, shape in shapes(config).items()
    }
    if config["model_type"] in STORED_LM_HEAD:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def write_tiny(folder: Path) -> None:
    """A Llama of two layers, whose norms are not all ones."""
    config = LlamaConfig(
        vocab_size=500,
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=128,
        initializer_range=0.15,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
        tie_word_embeddings=False,
    )
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.2 * torch.randn(parameter.shape))
        model.lm_head.weight[0] = 0.0  # so that no greedy text ends early
    model.save_pretrained(folder)


def main() -> None:
    """Write the folder named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", choices=("tiny", *CONFIGS))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, help="fewer layers than a well-known model has")
    arguments = parser.parse_args()
    arguments.folder.mkdir()
    torch.manual_seed(SEED)
    if arguments.model == "tiny":
        write_tiny(arguments.folder)
    else:
        config = CONFIGS[arguments.model]
        if arguments.layers:
            config["num_hidden_layers"] = arguments.layers
        write_published(config, arguments.folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TOKENIZER / name, arguments.folder)


if __name__ == "__main__":
    main()
