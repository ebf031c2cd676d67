"""Exports of optimum, as tiny random models: the recipes of check_optimum.py, and more of them.

Recipes for check_model_matrix.py; they need the environment of requirements-optimum.txt.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from check_optimum import EVEN, OTHERS, SIZES
from make_optimum_models import DYNAMO, FAMILIES, FLOAT16, export
from optimum_models import quantise
from transformers import (
    ArceeConfig,
    BloomConfig,
    CodeGenConfig,
    DeepseekV3Config,
    FalconConfig,
    GPT2Config,
    GPTBigCodeConfig,
    GPTNeoConfig,
    GPTNeoXConfig,
    GptOssConfig,
    LlamaConfig,
    MptConfig,
    OlmoConfig,
    PhiConfig,
    PretrainedConfig,
    Qwen3MoeConfig,
)

VERSIONS = ("optimum", "optimum-onnx", "transformers", "torch")
EVEN_HEADS = {"vocab_size": 500, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
GPT = {**EVEN_HEADS, "n_embd": 128, "n_layer": 2, "n_head": 4, "n_positions": 256}
# Families that lab/check_optimum.py does not have.
MORE: dict[str, Callable[[], PretrainedConfig]] = {
    "arcee": lambda: ArceeConfig(**SIZES),
    "bloom": lambda: BloomConfig(**EVEN_HEADS, hidden_size=128, n_layer=2, n_head=4),
    "codegen": lambda: CodeGenConfig(**GPT, rotary_dim=16),
    "deepseek_v3": lambda: DeepseekV3Config(
        **EVEN | {"moe_intermediate_size": 96},
        q_lora_rank=64,
        kv_lora_rank=32,
        qk_rope_head_dim=16,
        qk_nope_head_dim=16,
        v_head_dim=32,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=1,
        topk_group=1,
        first_k_dense_replace=1,
    ),
    "falcon_new": lambda: FalconConfig(
        **SIZES, alibi=False, new_decoder_architecture=True, num_kv_heads=4
    ),
    "falcon_alibi": lambda: FalconConfig(**SIZES, alibi=True),
    "gpt2": lambda: GPT2Config(**GPT),
    "gpt_bigcode": lambda: GPTBigCodeConfig(**GPT),
    "gpt_neo": lambda: GPTNeoConfig(
        **EVEN_HEADS,
        hidden_size=128,
        num_layers=2,
        num_heads=4,
        attention_types=[[["global", "local"], 1]],
        window_size=16,
        max_position_embeddings=256,
    ),
    "gpt_neox": lambda: GPTNeoXConfig(**EVEN),
    "gpt_oss": lambda: GptOssConfig(
        **SIZES, head_dim=32, num_local_experts=4, num_experts_per_tok=2, sliding_window=16
    ),
    "internlm_like": lambda: LlamaConfig(**SIZES, attention_bias=True),
    "llama_heads_of_100": lambda: LlamaConfig(**EVEN | {"hidden_size": 400}, head_dim=100),
    "mpt": lambda: MptConfig(**EVEN_HEADS, d_model=128, n_heads=4, n_layers=2, max_seq_len=256),
    "olmo_clip": lambda: OlmoConfig(**EVEN, clip_qkv=0.8),
    "phi_qk_layernorm": lambda: PhiConfig(**EVEN, qk_layernorm=True),
    "qwen3_moe": lambda: Qwen3MoeConfig(
        **SIZES, head_dim=32, moe_intermediate_size=96, num_experts=4, num_experts_per_tok=2
    ),
}


@dataclass(frozen=True)
class Case:
    """One export.

    Attributes:
        name: the case's name.
        family: key of RECIPES.
        dtype: "fp16", or None for float32.
        quantised: None, "MatMulNBits" or "QDQ", with 4 bits in blocks of 32 and zero points.
        compile: arguments of `ort_aie_ep.compile`.
    """

    name: str
    family: str
    dtype: str | None = None
    quantised: str | None = None
    compile: dict[str, Any] = field(default_factory=dict)


# Every family has a separate case for float16.
RECIPES = {k: v for k, v in {**FAMILIES, **OTHERS, **MORE}.items() if not k.endswith(FLOAT16)}


def cases() -> Iterator[Case]:
    """Each family as exported, in 4 bits and in float16, then options on a few families."""
    for family in RECIPES:
        yield Case(family, family)
        yield Case(f"{family}, int4", family, quantised="MatMulNBits")
        yield Case(f"{family}, fp16", family, dtype="fp16")
    for family in ("llama", "llama_dynamo", "qwen3", "gemma3", "phi"):
        yield Case(f"{family}, int4 QDQ", family, quantised="QDQ")
        for form in ("q4nx", "bf16"):
            yield Case(f"{family} --quantize {form}", family, compile={"quantize": form})
        yield Case(f"{family}, int4 --kv f16", family, None, "MatMulNBits", {"kv": "f16"})


def build(case: Case, folder: Path) -> None:
    """Writes the folder that optimum exports, quantised if the case says so."""
    by_dynamo = case.family.endswith(DYNAMO)
    if case.quantised is None:
        export(RECIPES[case.family](), folder, dtype=case.dtype, by_dynamo=by_dynamo)
        return
    exported = folder.with_name("export")
    export(RECIPES[case.family](), exported, dtype=case.dtype, by_dynamo=by_dynamo)
    quantise(exported, folder, qdq=case.quantised == "QDQ")
    shutil.rmtree(exported)
