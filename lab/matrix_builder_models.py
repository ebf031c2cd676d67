"""Families and options of onnxruntime-genai's model builder, as tiny random models.

Recipes for check_model_matrix.py; they need the environment of requirements-models.txt.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import genai_builder
from genai_builder import MAX_POSITIONS, TinyModel, run_builder, tiny_tokenizer, write_mxfp4
from make_test_models import TEST_MODELS

VERSIONS = ("onnxruntime-genai", "transformers", "torch")

COMMON: dict[str, Any] = {
    **genai_builder.COMMON,
    "vocab_size": 500,
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 96}
VISION: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "depth": 1,
    "num_heads": 2,
    "out_hidden_size": 128,
}


def family(
    config: str,
    values: dict[str, Any] | None = None,
    auto: str = "AutoModelForCausalLM",
    **more: Any,
) -> TinyModel:
    """A model with the values of COMMON where `values` has none."""
    return TinyModel(config, COMMON | (values or {}), auto, **more)


@dataclass(frozen=True)
class Case:
    """One folder that the builder makes.

    Attributes:
        name: the case's name.
        family: key of FAMILIES.
        precision: the builder's -p.
        provider: the builder's -e.
        options: the builder's KEY=VALUE options.
        compile: arguments of `ort_aie_ep.compile`.
        values: values of the configuration that replace the family's.
        twin: options with which the builder writes the same weights for ONNX Runtime's CPU
            provider, if that cannot run this model; empty if it can.
    """

    name: str
    family: str
    precision: str = "int4"
    provider: str = "cpu"
    options: tuple[str, ...] = ()
    compile: dict[str, Any] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    twin: tuple[str, ...] = ()


_IMAGES = {"image_size": 28, "patch_size": 14}
_K_QUANT_64 = ("algo_config=k_quant", "block_size=64")
_FULL_CACHES = ("windowed_kv_cache=false",)
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_HALF = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
_GEMMA3_ADAPT = TEST_MODELS["gemma3"].adapt
_GEMMA3 = {
    "num_hidden_layers": 3,
    "head_dim": 64,
    "query_pre_attn_scalar": 48,
    "sliding_window": 16,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}
_GEMMA4 = {
    "num_hidden_layers": 3,
    "sliding_window": 16,
    "head_dim": 32,
    "global_head_dim": 32,
    "hidden_size_per_layer_input": 0,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
}
# transformers 5.23 has these values for each layer.
_GEMMA4_ADAPT = {"head_dim": 32, "global_head_dim": 32, "num_global_key_value_heads": 2}
_LONG = {
    "type": "longrope",
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0 + 0.02 * i for i in range(16)],
    "long_factor": [1.0 + 0.5 * i for i in range(16)],
    "original_max_position_embeddings": 64,
    "factor": 4.0,
}
_LFM2 = {
    "layer_types": ["conv", "full_attention", "conv"],
    "num_hidden_layers": 3,
    "block_ff_dim": 352,
    "conv_L_cache": 3,
}
_QWEN35_TEXT: dict[str, Any] = {
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
}

FAMILIES: dict[str, TinyModel] = {
    "ernie4_5": family("Ernie4_5Config", {"head_dim": 32}),
    "gemma": family("GemmaConfig", {"head_dim": 64}),
    "gemma2": family("Gemma2Config", {"head_dim": 32, "sliding_window": 16}),
    "gemma3": family("Gemma3TextConfig", _GEMMA3, adapt=_GEMMA3_ADAPT),
    "gpt_oss": family(
        "GptOssConfig",
        {"head_dim": 32, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 16},
        prepare=write_mxfp4,
    ),
    "granite": family("GraniteConfig", {"attention_multiplier": 0.3, "logits_scaling": 3.0}),
    "granitemoehybrid": family(
        "GraniteMoeHybridConfig",
        {
            "layer_types": ["attention", "attention"],
            "num_local_experts": 0,
            "shared_intermediate_size": 352,
            "position_embedding_type": "rope",
        },
    ),
    "hunyuan_dense": family("HunYuanDenseV1Config", {"head_dim": 32}),
    "lfm2": family("Lfm2Config", _LFM2),
    "lfm2_moe": family("Lfm2MoeConfig", {**_LFM2, **EXPERTS, "num_dense_layers": 1}),
    "llama": family("LlamaConfig"),
    "llama_tied": family("LlamaConfig", {"tie_word_embeddings": True}),
    "llama_3_rope": family("LlamaConfig", {"rope_parameters": _LLAMA3}),
    "llama_bias": family("LlamaConfig", {"attention_bias": True, "mlp_bias": True}),
    "llama_multi_query": family("LlamaConfig", {"num_key_value_heads": 1, "head_dim": 64}),
    "llama_heads_of_100": family(
        "LlamaConfig", {"hidden_size": 400, "head_dim": 100, "num_key_value_heads": 4}
    ),
    "mistral": family("MistralConfig", {"sliding_window": 24}, options=_FULL_CACHES),
    "nemotron": family("NemotronConfig", {"head_dim": 32}),
    "olmo": family("OlmoConfig", {"clip_qkv": None}),
    "olmo_clip": family("OlmoConfig", {"clip_qkv": 0.8}),
    "phi": family("PhiConfig", {"rope_parameters": _HALF}),
    "phi3": family("Phi3Config", {"original_max_position_embeddings": MAX_POSITIONS}),
    "phi3_long_rope": family(
        "Phi3Config",
        {
            "original_max_position_embeddings": 64,
            "rope_parameters": _LONG,
            "partial_rotary_factor": 1.0,
        },
    ),
    "phimoe": family(
        "PhimoeConfig",
        {
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "original_max_position_embeddings": 64,
            "rope_parameters": {**_LONG, "short_mscale": 1.1, "long_mscale": 1.2},
        },
    ),
    "qwen2": family("Qwen2Config"),
    "qwen3": family("Qwen3Config", {"head_dim": 64, "tie_word_embeddings": True}),
    "smollm3": family("SmolLM3Config", {"num_hidden_layers": 4}),
    "mistral3": family(
        "Mistral3Config",
        {
            "text_config": {**COMMON, "model_type": "mistral", "head_dim": 32},
            "vision_config": {
                **VISION,
                "model_type": "pixtral",
                "image_size": 28,
                "patch_size": 14,
            },
        },
        "AutoModelForImageTextToText",
    ),
    "gemma3_vl": family(
        "Gemma3Config",
        {
            "text_config": {**COMMON, **_GEMMA3},
            "vision_config": {**VISION, **_IMAGES},
            "mm_tokens_per_image": 4,
        },
        "AutoModelForImageTextToText",
        adapt=_GEMMA3_ADAPT,
    ),
    "gemma4": family(
        "Gemma4Config",
        {
            "text_config": {
                **COMMON,
                **_GEMMA4,
                "enable_moe_block": True,
                "num_experts": 4,
                "top_k_experts": 2,
                "moe_intermediate_size": 96,
            },
            "vision_config": None,
            "audio_config": None,
        },
        "AutoModelForImageTextToText",
        adapt=_GEMMA4_ADAPT,
    ),
    "gemma4_unified": family(
        "Gemma4UnifiedConfig",
        {"text_config": {**COMMON, **_GEMMA4}, "vision_config": None, "audio_config": None},
        "AutoModelForImageTextToText",
        adapt=_GEMMA4_ADAPT,
    ),
    "qwen2_5_vl": family(
        "Qwen2_5_VLConfig",
        {
            "text_config": {
                **COMMON,
                "rope_parameters": {
                    "rope_type": "default",
                    "rope_theta": 1000000.0,
                    "mrope_section": [4, 6, 6],
                },
            },
            "vision_config": VISION,
        },
        "AutoModelForImageTextToText",
    ),
    "qwen3_vl": family(
        "Qwen3VLConfig",
        {
            "text_config": {
                **COMMON,
                "head_dim": 32,
                "rope_parameters": {
                    "rope_type": "default",
                    "rope_theta": 1000000.0,
                    "mrope_section": [4, 6, 6],
                },
            },
            "vision_config": {**VISION, "deepstack_visual_indexes": [0]},
        },
        "AutoModelForImageTextToText",
    ),
    "qwen3_5": family(
        "Qwen3_5Config",
        {"text_config": {**COMMON, **_QWEN35_TEXT}, "vision_config": VISION},
        "AutoModelForImageTextToText",
    ),
    "qwen3_5_moe": family(
        "Qwen3_5MoeConfig",
        {
            "text_config": {
                **COMMON,
                **_QWEN35_TEXT,
                **EXPERTS,
                "shared_expert_intermediate_size": 96,
            },
            "vision_config": VISION,
        },
        "AutoModelForImageTextToText",
    ),
    "lfm2_vl": family(
        "Lfm2VlConfig",
        {"text_config": {**COMMON, **_LFM2, "model_type": "lfm2"}, "vision_config": None},
        "AutoModelForImageTextToText",
    ),
    "whisper": family(
        "WhisperConfig",
        {
            "d_model": 128,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 352,
            "decoder_ffn_dim": 352,
            "num_mel_bins": 16,
            "max_source_positions": 64,
            "max_target_positions": 64,
            "decoder_start_token_id": 1,
        },
        "AutoModelForSpeechSeq2Seq",
    ),
}


def cases() -> Iterator[Case]:
    """Each family with its defaults, then options on a few families."""
    for family in FAMILIES:
        yield Case(family, family)
    for family in ("llama", "llama_tied", "qwen2", "qwen3", "gemma3", "phi"):
        for label, options in {
            "block 64": ("block_size=64",),
            "zero points": ("is_symmetric=false", "shared_embeddings=false"),
            "QDQ": ("use_qdq=true",),
        }.items():
            yield Case(f"{family}, {label}", family, options=options)
        # Zero points of k_quant need an even number of blocks.
        yield Case(
            f"{family}, k_quant",
            family,
            options=("algo_config=k_quant",),
            values={"intermediate_size": 384},
        )
    for label, options in {
        "block 16": ("block_size=16",),
        "block 128": ("block_size=128",),
        "block 256": ("block_size=256",),
        "block 128, zero points": ("block_size=128", "is_symmetric=false"),
        "rtn": ("algo_config=rtn",),
        "k_quant, block 64": _K_QUANT_64,
        "k_quant, lm_head in 8 bits": (*_K_QUANT_64, "matmul_mixed_precision=last_matmul:int8"),
        "k_quant mixed": (
            *_K_QUANT_64,
            "matmul_mixed_precision=last_matmul:int8,mixed_layers:int8",
        ),
        "rtn, lm_head in 8 bits": ("algo_config=rtn", "matmul_mixed_precision=last_matmul:int8"),
        "accuracy level 0": ("accuracy_level=0",),
        "accuracy level 1": ("accuracy_level=1",),
        "QDQ, zero points": ("use_qdq=true", "is_symmetric=false"),
        "QKV apart": ("disable_qkv_fusion=true",),
        "gate and up in one": ("fuse_mlp_gate_up=true",),
        "pruned lm_head": ("prune_lm_head=true",),
        "without embedding": ("exclude_embeds=true",),
        "without lm_head": ("exclude_lm_head=true",),
        "hidden states": ("include_hidden_states=true",),
        "lm_head in float": ("nodes_to_exclude=/lm_head/MatMul",),
        "MatMul and Gather": ("op_types_to_quantize=MatMul/Gather",),
        "no shared buffer": ("past_present_share_buffer=false",),
    }.items():
        yield Case(f"llama, {label}", "llama", options=options)
    for family in ("llama_tied", "qwen3", "gemma3"):
        yield Case(f"{family}, pruned lm_head", family, options=("prune_lm_head=true",))
    yield Case("gemma3, full caches", "gemma3", options=_FULL_CACHES)
    yield Case("mistral, windowed caches", "mistral", options=("windowed_kv_cache=true",))
    yield Case("llama_tied, own embedding", "llama_tied", options=("shared_embeddings=false",))
    for family in ("llama", "llama_tied", "qwen3", "gemma3", "phi", "granite"):
        yield Case(f"{family}, int8", family, "int8")
        yield Case(f"{family}, fp32", family, "fp32")
        yield Case(f"{family}, int4 of fp16 (cuda)", family, "int4", "cuda", twin=_twin(family))
    for provider in ("cuda", "webgpu"):
        yield Case(
            f"qwen3, int4 of fp16 ({provider}), norms apart",
            "qwen3",
            "int4",
            provider,
            ("fuse_qk_norm_gqa=false",),
        )
    for family in ("llama", "qwen3"):
        yield Case(f"{family}, fp16", family, "fp16")
        yield Case(f"{family}, bf16", family, "bf16")
        yield Case(f"{family}, int4 of fp16 (webgpu)", family, "int4", "webgpu", twin=_twin(family))
        yield Case(f"{family}, int4 of fp16 (dml)", family, "int4", "dml")
        yield Case(
            f"{family}, int4 of bf16 (cuda)", family, "int4", "cuda", ("use_cuda_bf16=true",)
        )
        for form in ("q4nx", "bf16"):
            yield Case(
                f"{family}, fp32 --quantize {form}", family, "fp32", compile={"quantize": form}
            )
    for family in ("llama", "qwen3", "gemma3"):
        yield Case(f"{family}, --kv f16", family, compile={"kv": "f16"})
        yield Case(f"{family}, --no-fuse", family, compile={"fuse": False})
        yield Case(f"{family}, --last-logits", family, compile={"last_logits": True})


def _twin(family: str) -> tuple[str, ...]:
    # The CPU provider's GroupQueryAttention does not support norms of queries and keys.
    return ("fuse_qk_norm_gqa=false",) if family in ("qwen3", "gemma3") else ()


def build(case: Case, folder: Path) -> None:
    """Writes the genai folder."""
    recipe = FAMILIES[case.family]
    with tempfile.TemporaryDirectory() as scratch:
        hf = Path(scratch, "hf")
        tiny_tokenizer(hf)
        recipe.save(recipe.make(**case.values), hf)
        options = (*recipe.options, *case.options)
        run_builder(hf, folder, options, recipe.adapt, case.precision, case.provider)
