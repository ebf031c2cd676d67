"""Families and options of onnxruntime-genai's model builder, as tiny random models.

Recipes for check_model_matrix.py; they need the environment of requirements-models.txt.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from make_demo_model import save_tokenizer
from make_test_models import TEST_MODELS, randomise_vectors, write_mxfp4
from tokenizers import Tokenizer

TOKENIZER = Path(__file__).parent.parent / "tests" / "data" / "llama" / "tokenizer.json"
VERSIONS = ("onnxruntime-genai", "transformers", "torch")
SEED = 7
MAX_POSITIONS = 256
VOCABULARY = 500

COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": MAX_POSITIONS,
    "initializer_range": 0.1,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
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


@dataclass(frozen=True)
class Family:
    """A model of a family.

    Attributes:
        config: name of the configuration's class in transformers.
        values: values of the configuration, in addition to COMMON.
        model: the auto class that makes the model.
        adapt: attributes of the configuration that this builder expects and this transformers does
            not write.
        options: options that the builder needs for this family.
        prepare: changes the HF folder before the builder reads it.
    """

    config: str
    values: dict[str, Any] = field(default_factory=dict)
    model: str = "AutoModelForCausalLM"
    adapt: dict[str, Any] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    prepare: Callable[[Path], None] | None = None

    def make_config(self, **changed: Any) -> Any:
        """The configuration."""
        return getattr(transformers, self.config)(**{**COMMON, **self.values, **changed})


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


def _text(**values: Any) -> dict[str, Any]:
    return {**COMMON, **values}


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

FAMILIES: dict[str, Family] = {
    "ernie4_5": Family("Ernie4_5Config", {"head_dim": 32}),
    "gemma": Family("GemmaConfig", {"head_dim": 64}),
    "gemma2": Family("Gemma2Config", {"head_dim": 32, "sliding_window": 16}),
    "gemma3": Family("Gemma3TextConfig", _GEMMA3, adapt=_GEMMA3_ADAPT),
    "gpt_oss": Family(
        "GptOssConfig",
        {"head_dim": 32, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 16},
        prepare=write_mxfp4,
    ),
    "granite": Family("GraniteConfig", {"attention_multiplier": 0.3, "logits_scaling": 3.0}),
    "granitemoehybrid": Family(
        "GraniteMoeHybridConfig",
        {
            "layer_types": ["attention", "attention"],
            "num_local_experts": 0,
            "shared_intermediate_size": 352,
            "position_embedding_type": "rope",
        },
    ),
    "hunyuan_dense": Family("HunYuanDenseV1Config", {"head_dim": 32}),
    "lfm2": Family("Lfm2Config", _LFM2),
    "lfm2_moe": Family("Lfm2MoeConfig", {**_LFM2, **EXPERTS, "num_dense_layers": 1}),
    "llama": Family("LlamaConfig"),
    "llama_tied": Family("LlamaConfig", {"tie_word_embeddings": True}),
    "llama_3_rope": Family("LlamaConfig", {"rope_parameters": _LLAMA3}),
    "llama_bias": Family("LlamaConfig", {"attention_bias": True, "mlp_bias": True}),
    "llama_multi_query": Family("LlamaConfig", {"num_key_value_heads": 1, "head_dim": 64}),
    "llama_heads_of_100": Family(
        "LlamaConfig", {"hidden_size": 400, "head_dim": 100, "num_key_value_heads": 4}
    ),
    "mistral": Family("MistralConfig", {"sliding_window": 24}, options=_FULL_CACHES),
    "nemotron": Family("NemotronConfig", {"head_dim": 32}),
    "olmo": Family("OlmoConfig", {"clip_qkv": None}),
    "olmo_clip": Family("OlmoConfig", {"clip_qkv": 0.8}),
    "phi": Family("PhiConfig", {"rope_parameters": _HALF}),
    "phi3": Family("Phi3Config", {"original_max_position_embeddings": MAX_POSITIONS}),
    "phi3_long_rope": Family(
        "Phi3Config",
        {
            "original_max_position_embeddings": 64,
            "rope_parameters": _LONG,
            "partial_rotary_factor": 1.0,
        },
    ),
    "phimoe": Family(
        "PhimoeConfig",
        {
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "original_max_position_embeddings": 64,
            "rope_parameters": {**_LONG, "short_mscale": 1.1, "long_mscale": 1.2},
        },
    ),
    "qwen2": Family("Qwen2Config"),
    "qwen3": Family("Qwen3Config", {"head_dim": 64, "tie_word_embeddings": True}),
    "smollm3": Family("SmolLM3Config", {"num_hidden_layers": 4}),
    "mistral3": Family(
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
    "gemma3_vl": Family(
        "Gemma3Config",
        {
            "text_config": {**COMMON, **_GEMMA3},
            "vision_config": {**VISION, **_IMAGES},
            "mm_tokens_per_image": 4,
        },
        "AutoModelForImageTextToText",
        adapt=_GEMMA3_ADAPT,
    ),
    "gemma4": Family(
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
    "gemma4_unified": Family(
        "Gemma4UnifiedConfig",
        {"text_config": {**COMMON, **_GEMMA4}, "vision_config": None, "audio_config": None},
        "AutoModelForImageTextToText",
        adapt=_GEMMA4_ADAPT,
    ),
    "qwen2_5_vl": Family(
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
    "qwen3_vl": Family(
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
    "qwen3_5": Family(
        "Qwen3_5Config",
        {"text_config": {**COMMON, **_QWEN35_TEXT}, "vision_config": VISION},
        "AutoModelForImageTextToText",
    ),
    "qwen3_5_moe": Family(
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
    "lfm2_vl": Family(
        "Lfm2VlConfig",
        {"text_config": {**COMMON, **_LFM2, "model_type": "lfm2"}, "vision_config": None},
        "AutoModelForImageTextToText",
    ),
    "whisper": Family(
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
    from onnxruntime_genai.models.builder import create_model, parse_extra_options

    family = FAMILIES[case.family]
    with tempfile.TemporaryDirectory() as scratch:
        hf, cache = Path(scratch, "hf"), Path(scratch, "cache")
        save_tokenizer(Tokenizer.from_file(str(TOKENIZER)), hf, MAX_POSITIONS)
        torch.manual_seed(SEED)
        model = getattr(transformers, family.model).from_config(family.make_config(**case.values))
        randomise_vectors(model)
        model.save_pretrained(hf)
        if family.prepare is not None:
            family.prepare(hf)
        arguments = ("", str(hf), str(folder), case.precision, case.provider, str(cache))
        prepared = parse_extra_options(*arguments, [*family.options, *case.options])
        config = prepared["hf_details"]["hf_config"]
        for name, value in family.adapt.items():
            for part in (config, getattr(config, "text_config", None)):
                if part is not None:
                    setattr(part, name, value)
        create_model(*arguments, **prepared)
