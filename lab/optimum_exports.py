"""Tiny random models of many families, and their exports by optimum.

What `make_optimum_models.py`, `check_optimum.py` and the model matrix share; it needs the
environment of requirements-optimum.txt.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import transformers
from optimum.exporters.onnx import main_export
from transformers import AutoModelForCausalLM, PretrainedConfig

SEED = 7
TASK = "text-generation-with-past"

COMMON: dict[str, Any] = {
    "vocab_size": 500,  # not a multiple of 32, so the lm_head's last block of rows has padding
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "max_position_embeddings": 256,
    # Wide enough that attention is far from uniform and logits are far from ties.
    "initializer_range": 0.1,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}

Config = Callable[[], PretrainedConfig]


def _config(kind: str, values: dict[str, Any], **more: Any) -> Config:
    """Makes transformers' configuration `kind` with these values."""
    return lambda: getattr(transformers, f"{kind}Config")(**values | more)


SIZES = {**COMMON, "intermediate_size": 320, "num_attention_heads": 4, "num_key_value_heads": 2}
# optimum-onnx 0.1.0 runs some families only with as many key-value heads as query heads.
EVEN = {**SIZES, "num_key_value_heads": 4}
PLAIN = {"vocab_size": 500, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
GPT_SIZES = {"vocab_size": 500, "n_embd": 128, "n_layer": 2, "n_head": 4, "n_positions": 256}
GPT = PLAIN | GPT_SIZES

# For torch's other exporter, which optimum-onnx 0.1.0 turns off with dynamo=False.
DYNAMO = "_dynamo"
FLOAT16 = "_float16"

_LLAMA = _config("Llama", SIZES, intermediate_size=352)
RECORDED: dict[str, Config] = {
    "llama": _LLAMA,
    f"llama{DYNAMO}": _LLAMA,
    f"llama{FLOAT16}": _LLAMA,
    # optimum assumes head_dim = hidden / heads, whatever the configuration says.
    "qwen3": _config(
        "Qwen3", SIZES, tie_word_embeddings=True, intermediate_size=288, num_key_value_heads=1,
        head_dim=32, rope_theta=1000000.0,
    ),
    "gemma3": _config(
        "Gemma3Text", SIZES, num_hidden_layers=3, intermediate_size=288, head_dim=64,
        query_pre_attn_scalar=48, sliding_window=16,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    ),
    "phi": _config(
        "Phi", COMMON, intermediate_size=320, num_attention_heads=4, partial_rotary_factor=0.5
    ),
    "mistral": _config("Mistral", SIZES, sliding_window=12),
}  # fmt: skip
"""Families whose graphs are in tests/data/optimum."""


def _scaled(kind: str, **more: float) -> Config:
    scaling = {"rope_type": kind, "factor": 8.0, "original_max_position_embeddings": 64, **more}
    return _config("Llama", SIZES, rope_scaling=scaling)


OTHERS: dict[str, Config] = {
    **{f"{name}{DYNAMO}": RECORDED[name] for name in ("qwen3", "phi", "mistral")},
    "llama_3_rope": _scaled("llama3", low_freq_factor=1.0, high_freq_factor=4.0),
    "llama_yarn": _scaled("yarn"),
    "cohere": _config("Cohere", SIZES),
    "falcon": _config("Falcon", SIZES, alibi=False),
    "gemma": _config("Gemma", SIZES, head_dim=64),
    "gemma2": _config("Gemma2", EVEN, head_dim=32, sliding_window=16),
    "glm": _config("Glm", SIZES, head_dim=32),
    "gptj": _config("GPTJ", GPT_SIZES, rotary_dim=16),
    "gpt_neo": _config(
        "GPTNeo", PLAIN, hidden_size=128, num_layers=2, num_heads=4,
        attention_types=[[["global", "local"], 1]], window_size=16, max_position_embeddings=256,
    ),
    "granite": _config("Granite", SIZES, attention_multiplier=0.3),
    "helium": _config("Helium", SIZES, head_dim=32),
    "nemotron": _config("Nemotron", SIZES, head_dim=32),
    "olmo": _config("Olmo", EVEN),
    "olmo_clip": _config("Olmo", EVEN, clip_qkv=0.8),
    "olmo2": _config("Olmo2", EVEN),
    "opt": _config("OPT", COMMON, ffn_dim=320, num_attention_heads=4, word_embed_proj_dim=128),
    "phi3": _config("Phi3", EVEN, sliding_window=20),
    "phi3_long_window": _config("Phi3", EVEN, sliding_window=262144),
    "qwen2": _config("Qwen2", SIZES),
    "smollm3": _config("SmolLM3", SIZES),
    "stablelm": _config("StableLm", SIZES),
}  # fmt: skip
"""Other families whose attention is recognised."""

MORE: dict[str, Config] = {
    "arcee": _config("Arcee", SIZES),
    "bloom": _config("Bloom", PLAIN, hidden_size=128, n_layer=2, n_head=4),
    "codegen": _config("CodeGen", GPT, rotary_dim=16),
    "deepseek_v3": _config(
        "DeepseekV3", EVEN, moe_intermediate_size=96, q_lora_rank=64, kv_lora_rank=32,
        qk_rope_head_dim=16, qk_nope_head_dim=16, v_head_dim=32, n_routed_experts=4,
        num_experts_per_tok=2, n_group=1, topk_group=1, first_k_dense_replace=1,
    ),
    "falcon_new": _config(
        "Falcon", SIZES, alibi=False, new_decoder_architecture=True, num_kv_heads=4
    ),
    "falcon_alibi": _config("Falcon", SIZES, alibi=True),
    "gpt2": _config("GPT2", GPT),
    "gpt_bigcode": _config("GPTBigCode", GPT),
    "gpt_neox": _config("GPTNeoX", EVEN),
    "gpt_oss": _config(
        "GptOss", SIZES, head_dim=32, num_local_experts=4, num_experts_per_tok=2, sliding_window=16
    ),
    "internlm_like": _config("Llama", SIZES, attention_bias=True),
    "llama_heads_of_100": _config("Llama", EVEN, hidden_size=400, head_dim=100),
    "mpt": _config("Mpt", PLAIN, d_model=128, n_heads=4, n_layers=2, max_seq_len=256),
    "phi_qk_layernorm": _config("Phi", EVEN, qk_layernorm=True),
    "qwen3_moe": _config(
        "Qwen3Moe", SIZES, head_dim=32, moe_intermediate_size=96, num_experts=4,
        num_experts_per_tok=2,
    ),
}  # fmt: skip
"""The rest of the model matrix."""


def randomise_vectors(model: Any) -> None:
    """Set norm weights around their usual values, and non-zero biases.

    transformers initialises them to constants, which would hide a missing norm or bias.
    """
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                spread = 0.2 if "norm" in name and name.endswith("weight") else 0.1
                parameter.add_(spread * torch.randn(parameter.shape))
        if model.config.model_type == "gemma3_text":
            # Embeddings times √hidden would drown the layers.
            model.get_input_embeddings().weight.mul_(0.1)


@contextmanager
def dynamo() -> Iterator[None]:
    """Make optimum export with dynamo=True."""
    original = torch.onnx.export

    def exported(model: Any, arguments: Any, **options: Any) -> Any:
        changed = {"dynamo": True, "external_data": False, "verbose": False}
        del options["do_constant_folding"]
        return original(model, arguments, **options | changed)

    with mock.patch.object(torch.onnx, "export", exported):
        yield


def export(
    config: PretrainedConfig,
    destination: Path,
    *,
    dtype: str | None = None,
    by_dynamo: bool = False,
) -> None:
    """Write the folder that `optimum-cli export onnx` makes of a seeded random model."""
    torch.manual_seed(SEED)
    model = AutoModelForCausalLM.from_config(config)
    randomise_vectors(model)
    with tempfile.TemporaryDirectory() as scratch, dynamo() if by_dynamo else nullcontext():
        model.save_pretrained(scratch)
        main_export(scratch, destination, task=TASK, do_validation=False, dtype=dtype)
