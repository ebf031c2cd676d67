"""GGUF files with random weights, by family and by type, as the package gguf writes them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter, RopeScalingType, quants
from gguf.constants import GGML_QUANT_SIZES
from tokenizers import pre_tokenizers

from ort_aie_ep.models.shapes import SHAPES, Hybrid, Shape, Yarn

Kind = GGMLQuantizationType
Array = npt.NDArray[Any]
Types = Callable[[str], Kind]
"""The type of each matrix, by its name without ".weight"."""

_LLAMA = replace(
    SHAPES["tiny-llama"], hidden=256, ffn=512, heads=8, kv_heads=2, vocab=320, context=512
)
_QWEN3 = replace(
    SHAPES["tiny-qwen3"], hidden=256, ffn=512, heads=4, kv_heads=2, vocab=320, context=512
)
_HYBRID: dict[str, Any] = {"hidden": 256, "ffn": 512, "heads": 8, "vocab": 320, "context": 512}


@dataclass(frozen=True)
class Model:
    """An architecture, its sizes, and keys of its own."""

    architecture: str
    shape: Shape
    keys: Mapping[str, Any] = field(default_factory=dict)
    divisors: tuple[str, ...] = ()  # of the frequencies of its rotations


# In-features are multiples of 256, a block of K-quants.
MODELS = {
    "llama": Model("llama", replace(_LLAMA, tied=False), divisors=("rope_freqs",)),
    "mistral": Model("llama", replace(_LLAMA, rope_theta=1e6)),
    "qwen2": Model("qwen2", replace(_LLAMA, family="qwen2")),
    "qwen3": Model("qwen3", _QWEN3),
    "gemma3": Model(
        "gemma3",
        replace(SHAPES["tiny-gemma3"], hidden=256, ffn=512, heads=2, vocab=320, layers=7,
                global_every=6, context=512),
        {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0},
    ),
    "phi3": Model(
        "phi3",
        replace(_LLAMA, family="phi3", tied=False, heads=4, kv_heads=2, head_dim=64, rotary=48),
    ),
    # Beyond its first context it rotates differently.
    "phi3-long": Model(
        "phi3",
        replace(_LLAMA, family="phi3", tied=False, heads=4, kv_heads=2, head_dim=64),
        {"rope.scaling.original_context_length": 256, "rope.scaling.attn_factor": 1.2},
        ("rope_factors_long", "rope_factors_short"),
    ),
    "granite": Model(
        "granite",
        replace(_LLAMA, family="granite"),
        {
            "embedding_scale": 3.0,
            "residual_scale": 0.25,
            "logit_scale": 8.0,
            "attention.scale": 0.125,
        },
    ),
    "yarn": Model("qwen3", replace(_QWEN3, yarn=Yarn(factor=4.0, original=128, whole=True))),
    "smollm3": Model("smollm3", replace(_LLAMA, layers=4)),
    "qwen3moe": Model(
        "qwen3moe", replace(_QWEN3, ffn=256, experts=4, experts_per_token=2, tied=False)
    ),
    "gpt-oss": Model(
        "gpt-oss",
        # llama.cpp stretches rotations by whole channels, which gpt-oss does not.
        replace(SHAPES["tiny-gpt-oss"], hidden=256, ffn=256, heads=8, vocab=320, context=512,
                yarn=None),
    ),
    "lfm2": Model("lfm2", replace(SHAPES["tiny-lfm2"], **_HYBRID)),
    "lfm2moe": Model(
        "lfm2moe",
        replace(SHAPES["tiny-lfm2-moe"], **_HYBRID | {"ffn": 256}, dense_ffn=512, experts=4),
    ),
    # Value heads share key heads.
    "qwen35": Model(
        "qwen35",
        replace(SHAPES["tiny-qwen3-5"], **_HYBRID,
                hybrid=Hybrid((3,), 4, 2, 4, 64, sections=(4, 2, 2))),
    ),
}  # fmt: skip

_LINEAR, _YARN = (
    {"rope.scaling.type": each, "rope.scaling.factor": 4.0} for each in ("linear", "yarn")
)
# Keys that llama.cpp reads in some architectures, and in few of these.
_ELSEWHERE = {
    "attention.clamp_kqv": 0.1,
    "attention.layer_norm_epsilon": 0.1,
    "attention.max_alibi_bias": 8.0,
    "attention.scale": 0.5,
    "attention.sliding_window": 16,
    "attn_logit_softcapping": 0.5,
    "embedding_scale": 3.0,
    "expert_weights_scale": 3.0,
    "final_logit_softcapping": 0.5,
    "logit_scale": 8.0,
    "residual_scale": 0.25,
    "rope.freq_base_swa": 500.0,
    "rope.scaling.yarn_attn_factor": 2.0,
    "rope.scaling.yarn_beta_fast": 4.0,
    "rope.scaling.yarn_log_multiplier": 0.5,
}
_SCALES = ("attention.scale", "embedding_scale", "logit_scale", "residual_scale")
_WINDOW = ("attention.sliding_window", "rope.freq_base_swa", "final_logit_softcapping")


def _keyed(name: str, keys: Mapping[str, Any], read: tuple[str, ...] = (), **sizes: Any) -> Model:
    """A small model with these keys, and with all of _ELSEWHERE but those that it reads."""
    model = MODELS[name]
    sizes = {"hidden": 64, "ffn": 64, "layers": 4, "heads": 2, "kv_heads": 1, "head_dim": 32,
             "vocab": 64, "rotary": None, "yarn": None} | sizes  # fmt: skip
    others = {key: value for key, value in _ELSEWHERE.items() if key not in read}
    shape = replace(model.shape, **sizes)
    return replace(model, shape=shape, keys={**model.keys, **others, **keys})


KEYED = {
    "factor": _keyed("mistral", {"rope.scaling.factor": 4.0, "rope.scale_linear": 2.0}),
    "scale_linear": _keyed("mistral", {"rope.scale_linear": 4.0, "rope.freq_base": 500.0}),
    "none": _keyed("mistral", _LINEAR | {"rope.scaling.type": "none"}),
    "attn_factor": _keyed("qwen3", {"rope.scaling.attn_factor": 2.0}),
    "divided": _keyed("llama", _LINEAR),
    "yarn": _keyed("qwen2", _YARN | {"rope.scaling.original_context_length": 32}),
    "yarn-divided": _keyed("llama", _YARN),
    "smollm3": _keyed("smollm3", _YARN | {"rope.scaling.attn_factor": 1.5}),
    "longrope": replace(
        _keyed("llama", {"rope.scaling.type": "longrope", "rope.scaling.factor": 2.0}),
        divisors=("rope_factors_long", "rope_factors_short"),
    ),
    "phi3": _keyed("phi3", _YARN, rotary=24),
    "phi3-long": _keyed("phi3-long", {"rope.scaling.attn_factor": None}),
    "granite": _keyed("granite", _YARN, _SCALES),
    "granite-unrotated": _keyed("granite", {"rope.scaling.finetuned": False}, _SCALES),
    "gemma3": _keyed(
        "gemma3",
        _YARN
        | {
            "attention.sliding_window_pattern": 3,
            "rope.freq_base_swa": 500.0,
            "rope.scaling.attn_factor": 1.5,
        },
        _WINDOW,
    ),
    "gemma3-list": _keyed(
        "gemma3", {"attention.sliding_window_pattern": [True, False, True, False]}, _WINDOW
    ),
    "gemma3-global": _keyed("gemma3", {}, _WINDOW, window=None),
    "qwen3moe": _keyed("qwen3moe", _LINEAR),
    "gpt-oss": _keyed(
        "gpt-oss",
        _LINEAR | {"attention.sliding_window_pattern": 3, "rope.scaling.attn_factor": 1.5},
        _WINDOW[:2],
    ),
    "lfm2": _keyed("lfm2", _LINEAR, _WINDOW[:1]),
    "lfm2moe": _keyed("lfm2moe", _YARN, _WINDOW[:1]),
    "qwen35": _keyed("qwen35", _YARN, rotary=16),
    "qwen35-list": _keyed(
        "qwen35", {"attention.recurrent_layers": [True, False, True, False]}, rotary=16,
        hybrid=Hybrid((1, 3), 2, 2, 2, 32, sections=(4, 2, 2)),
    ),
    # With a block that predicts one token more.
    "qwen35-later": _keyed(
        "qwen35", {"block_count": 5, "nextn_predict_layers": 1}, rotary=16,
        hybrid=Hybrid((3, 4), 4, 2, 4, 32, sections=(4, 2, 2)),
    ),
}  # fmt: skip
"""Models with keys of their architecture that change what llama.cpp computes, and with others that
do not."""

KEYED_TRUTH = Path(__file__).parents[1] / "data" / "gguf_keys.npz"
"""By name in KEYED: logits at POSITIONS of `tokens_of`, by llama.cpp (lab/check_gguf.py)."""
POSITIONS = (7, 60, 200)


TRUTH = Path(__file__).parents[1] / "data" / "gguf_logits.npz"
"""By family: the last LAST logits of `tokens_of` in a file of `mixed` types, by llama.cpp from the
same weights in float32 (lab/check_gguf.py)."""
LAST = 8


def tokens_of(model: Model, count: int = 96) -> list[int]:
    """More than a window of the models has."""
    return np.random.default_rng(0).integers(0, model.shape.vocab, count).tolist()


def mixed(name: str) -> Kind:
    """As llama.cpp's Q4_K_M: some matrices have more bits."""
    return Kind.Q6_K if name.endswith(("attn_v", "ffn_down", "token_embd")) else Kind.Q4_K


def by_side(name: str) -> Kind:
    """As a recipe that gives gate, up and down different bits."""
    sides = {"gate": Kind.Q4_K, "up": Kind.Q6_K, "down": Kind.Q5_K}
    return next((kind for side, kind in sides.items() if f"ffn_{side}" in name), Kind.Q8_0)


_FLOATS = ("gate_inp.weight", "conv.weight", "conv1d.weight", "bias")


def write(path: Path, model: Model, types: Types | None, seed: int = 3, **metadata: Any) -> Path:
    """Writes a model, without tensors if there are no types; `metadata` replaces keys, with None:
    leaves them out."""
    shape, rng = model.shape, np.random.default_rng(seed)
    writer = GGUFWriter(path, model.architecture)
    prefix = f"{model.architecture}."
    keys: dict[str, Any] = {
        "context_length": shape.context,
        "embedding_length": shape.hidden,
        "block_count": shape.layers,
        "feed_forward_length": shape.dense_ffn or shape.ffn,
        "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.kv_heads,
        "attention.key_length": shape.head_dim,
        "attention.value_length": shape.head_dim,
        "rope.dimension_count": shape.rotary or shape.head_dim,
        "rope.freq_base": shape.rope_theta,
        "attention.layer_norm_rms_epsilon": shape.epsilon,
        "vocab_size": shape.vocab,
    }
    if shape.window is not None:
        keys["attention.sliding_window"] = shape.window
    if shape.experts:
        keys |= {
            "expert_count": shape.experts,
            "expert_used_count": shape.experts_per_token,
            "expert_feed_forward_length": shape.ffn,
        }
    if (hybrid := shape.hybrid) is not None and hybrid.value_heads:
        keys |= {
            "ssm.conv_kernel": hybrid.taps,
            "ssm.state_size": hybrid.width,
            "ssm.group_count": hybrid.key_heads,
            "ssm.time_step_rank": hybrid.value_heads,
            "ssm.inner_size": hybrid.values,
            "full_attention_interval": hybrid.attention[0] + 1,
            "rope.dimension_sections": [*hybrid.sections, 0],
        }
    elif hybrid is not None:
        keys |= {
            "attention.head_count_kv": [
                shape.kv_heads * shape.has_attention(layer) for layer in range(shape.layers)
            ],
            "shortconv.l_cache": hybrid.taps,
        }
    if shape.dense_layers:
        keys |= {"leading_dense_block_count": shape.dense_layers, "expert_gating_func": 2}
    if shape.yarn is not None:
        keys |= {
            "rope.scaling.type": RopeScalingType.YARN.value,
            "rope.scaling.factor": shape.yarn.factor,
            "rope.scaling.original_context_length": shape.yarn.original,
        }
    values = {prefix + key: value for key, value in (keys | dict(model.keys)).items()}
    values |= {"tokenizer.ggml.model": "none"} | metadata
    for key, value in values.items():
        _add(writer, key, value)
    for name, values_ in tensors(model, rng) if types is not None else ():
        assert types is not None
        stem = name.removesuffix(".weight")
        # As llama-quantize does: vectors and routers stay in float32.
        kind = Kind.F32 if values_.ndim == 1 or name.endswith(_FLOATS) else types(stem)
        data = quantised(values_, kind, rng)
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: GGUFWriter, key: str, value: Any) -> None:
    match value:
        case None:
            return
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case _:
            writer.add_array(key, value)


_NORMED = ("qwen3", "qwen3moe", "gemma3", "lfm2", "lfm2moe", "qwen35")


def tensors(model: Model, rng: np.random.Generator) -> Iterator[tuple[str, Array]]:
    """Names and float32 values, scaled so that activations stay near one."""
    shape = model.shape

    def matrix(*sizes: int, gain: float = 1.0) -> Array:
        deviation = gain / math.sqrt(sizes[-1])
        return rng.standard_normal(sizes, np.float32) * np.float32(deviation)

    def vector(size: int, mean: float = 1.0) -> Array:
        return rng.standard_normal(size, np.float32) * np.float32(0.1) + np.float32(mean)

    yield "token_embd.weight", matrix(shape.vocab, shape.hidden, gain=1.5)
    if not shape.tied:
        yield "output.weight", matrix(shape.vocab, shape.hidden, gain=1.5)
    lfm2 = model.architecture.startswith("lfm2")
    yield f"{'token_embd' if lfm2 else 'output'}_norm.weight", vector(shape.hidden)
    for place, name in enumerate(model.divisors):
        count = (shape.rotary or shape.head_dim) // 2
        yield f"{name}.weight", np.linspace(1, 8 - 3 * place, count, dtype=np.float32)
    branch = 1 / math.sqrt(2 * shape.layers)
    oss = model.architecture == "gpt-oss"
    for layer in range(model.keys.get("block_count", shape.layers)):
        name = f"blk.{layer}."
        if layer == shape.layers:
            yield f"{name}nextn.eh_proj.weight", matrix(shape.hidden, 2 * shape.hidden)
            for each in "eh":
                yield f"{name}nextn.{each}norm.weight", vector(shape.hidden)
        yield f"{name}attn_norm.weight", vector(shape.hidden)
        if not shape.has_attention(layer):
            yield from _state(shape, name, matrix, vector, branch)
        elif model.architecture == "phi3":
            yield f"{name}attn_qkv.weight", matrix(shape.queries + 2 * shape.keys, shape.hidden)
        else:
            queries = shape.queries * (2 if model.architecture == "qwen35" else 1)
            for each, n in (("q", queries), ("k", shape.keys), ("v", shape.keys)):
                yield f"{name}attn_{each}.weight", matrix(n, shape.hidden)
                if oss or model.architecture == "qwen2":
                    yield f"{name}attn_{each}.bias", vector(n, 0.0)
        if shape.has_attention(layer):
            yield f"{name}attn_output.weight", matrix(shape.hidden, shape.queries, gain=branch)
        if oss:
            yield f"{name}attn_output.bias", vector(shape.hidden, 0.0)
            yield f"{name}attn_sinks.weight", vector(shape.heads, 0.0)
        if model.architecture in _NORMED and shape.has_attention(layer):
            for each in "qk":
                yield f"{name}attn_{each}_norm.weight", vector(shape.head_dim)
        if model.architecture == "gemma3":
            for each in ("post_attention_norm", "post_ffw_norm"):
                yield f"{name}{each}.weight", vector(shape.hidden)
        norm = "post_attention_norm" if model.architecture in ("gpt-oss", "qwen35") else "ffn_norm"
        yield f"{name}{norm}.weight", vector(shape.hidden)
        experts, ffn = shape.has_experts(layer), shape.ffn_of(layer)
        if experts:
            yield f"{name}ffn_gate_inp.weight", matrix(shape.experts, shape.hidden, gain=3.0)
            if lfm2:  # large, so that few choices are close
                yield f"{name}exp_probs_b.bias", 16 * vector(shape.experts, 0.0)
            if oss:
                yield f"{name}ffn_gate_inp.bias", vector(shape.experts, 0.0)
        stack, suffix = ((shape.experts,), "_exps") if experts else ((), "")
        sizes = {"gate": (ffn, shape.hidden), "up": (ffn, shape.hidden)}
        if model.architecture == "phi3":
            sizes = {"up": (2 * shape.ffn, shape.hidden)}
        for each, size in (sizes | {"down": (shape.hidden, ffn)}).items():
            gain = branch if each == "down" else 1.0
            yield f"{name}ffn_{each}{suffix}.weight", matrix(*stack, *size, gain=gain)
            if oss:
                bias = vector(shape.experts * size[0], 0.0).reshape(shape.experts, -1)
                yield f"{name}ffn_{each}{suffix}.bias", bias


def _state(
    shape: Shape,
    name: str,
    matrix: Callable[..., Array],
    vector: Callable[..., Array],
    branch: float,
) -> Iterator[tuple[str, Array]]:
    """Of a layer that has a state in place of attention."""
    hybrid, hidden = shape.hybrid, shape.hidden
    assert hybrid is not None
    if not hybrid.value_heads:
        yield f"{name}shortconv.in_proj.weight", matrix(3 * hidden, hidden)
        yield f"{name}shortconv.conv.weight", matrix(hidden, hybrid.taps)
        yield f"{name}shortconv.out_proj.weight", matrix(hidden, hidden, gain=branch)
        return
    channels = 2 * hybrid.keys + hybrid.values
    yield f"{name}attn_qkv.weight", matrix(channels, hidden)
    yield f"{name}attn_gate.weight", matrix(hybrid.values, hidden)
    for each in ("alpha", "beta"):
        yield f"{name}ssm_{each}.weight", matrix(hybrid.value_heads, hidden)
    yield f"{name}ssm_conv1d.weight", matrix(channels, hybrid.taps)
    yield f"{name}ssm_dt.bias", vector(hybrid.value_heads, 0.0)
    yield f"{name}ssm_a", vector(hybrid.value_heads, -0.5)
    yield f"{name}ssm_norm.weight", vector(hybrid.width)
    yield f"{name}ssm_out.weight", matrix(hidden, hybrid.values, gain=branch)


BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())


def byte_level(*added: str, type_: int = 3, **changes: Any) -> dict[str, Any]:
    """A vocabulary of bytes and a few merges, whose texts end with <stop>."""
    tokens = [*BYTES, "he", "hel", "Ġhe", "<start>", "<stop>", "  ", *added]
    metadata = {
        "model": "gpt2",
        "pre": "llama-bpe",
        "tokens": tokens,
        "token_type": [1] * (len(BYTES) + 3) + [3, 3, 4] + [type_] * len(added),
        "merges": ["h e", "he l", "Ġ he"],
        "bos_token_id": tokens.index("<start>"),
        "eos_token_id": tokens.index("<stop>"),
    }
    return {f"tokenizer.ggml.{key}": value for key, value in (metadata | changes).items()}


def sentencepiece(
    pieces: Sequence[str], *, added: Sequence[str] = (), type_: int = 3, **changes: Any
) -> dict[str, Any]:
    """A vocabulary of SentencePiece's kind: bytes, and pieces, the best first."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), *pieces, *added]
    metadata = {
        "model": "llama",
        "tokens": tokens,
        "scores": [float(-i) for i in range(len(tokens))],
        "token_type": [2, 3, 3, *[6] * 256, *[1] * len(pieces), *[type_] * len(added)],
        "add_space_prefix": True,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in (metadata | changes).items()}


# Texts that llama.cpp knows, in groups that have no influence on each other.
_GROUPS = (
    (
        *("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|return|>", "<|call|>", "<|calls|>"),
        *("<|flush|>", "<|endoftext|>", "<|end_of_text|>", "<end_of_turn>", "<EOT>", "_<EOT>"),
        *("[EOT]", "[EOS]", "<eos>", "<turn|>", "<|tool_response>", "<end_of_utterance>", "[e~["),
        "<｜end▁of▁sentence｜>",
    ),
    (
        *("<|end|>", "</s>", "<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"),
        *("<|im_start|>", "<|user|>", "<pad>", "<|eot|>", "<unused3>", "[INST]", "<|plamo:eos|>"),
    ),
    # Of those that enclose code to fill in, it looks for one of each kind.
    *zip(
        (
            *(
                "<|fim_prefix|>",
                "<fim-prefix>",
                "<fim_prefix>",
                "<｜fim▁begin｜>",
                "<PRE>",
                "▁<PRE>",
            ),
            *("<|code_prefix|>", "<|prefix|>"),
        ),
        (
            *(
                "<|fim_suffix|>",
                "<fim-suffix>",
                "<fim_suffix>",
                "<｜fim▁hole｜>",
                "<SUF>",
                "▁<SUF>",
            ),
            *("<|code_suffix|>", "<|suffix|>"),
        ),
        (
            *("<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>"),
            *("<|code_middle|>", "<|middle|>"),
        ),
        strict=True,
    ),
    *zip(
        ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
        ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
        ("<|file_sep|>", "<file_sep>", "<filename>", "<|fim_sep|>", "<SEP>"),
        strict=True,
    ),
)


def vocabularies() -> dict[str, dict[str, Any]]:
    """Vocabularies by name: with the tokens that llama.cpp knows, in each type; with several that
    mean something else together; and with keys."""
    found = {
        f"group {i} {name}": byte_level(*group, type_=number)
        for i, group in enumerate(_GROUPS)
        for name, number in {"NORMAL": 1, "CONTROL": 3, "USER_DEFINED": 4}.items()
    }
    found["UNUSED"] = byte_level(*_GROUPS[0], type_=5)
    for together in (
        ("<|return|>", "<|call|>", "<|end|>"),
        ("<|flush|>", "<|calls|>", "<|end|>"),
        ("<|return|>", "<|end|>"),
        ("<|call|>", "<|end|>"),
        ("<|flush|>", "<|return|>", "<|end|>"),
        ("</s>", "<|tool_response>"),
        ("</s>", "<|plamo:eos|>"),
    ):
        found[" ".join(together)] = byte_level(*together)
        last = len(BYTES) + 6 + len(together) - 1
        found[f"{' '.join(together)}, the last ends"] = byte_level(*together, eos_token_id=last)
    first = len(BYTES) + 6
    for role in ("eot", "eom", "fim_pre", "fim_pad", "fim_rep", "fim_sep", "padding"):
        keys = {f"{role}_token_id": first + 1}
        found[f"{role} by its key"] = byte_level("<|file_sep|>", "xyz", type_=1, **keys)
    found["out of the vocabulary"] = byte_level(padding_token_id=9999, eot_token_id=9999)
    found["two are empty"] = byte_level("", "")
    for key in ("eos", "bos"):
        found[f"pieces, {key} not in the vocabulary"] = sentencepiece(
            ["▁", *"hel"], **{f"{key}_token_id": 9999}
        )
    found["pieces, no key"] = sentencepiece(["▁", *"hel"])
    # Names that decide which tokens take the spaces beside them.
    found["<mask>"] = byte_level("<mask>", "[MASK]", pre="jina-v2-de")
    found["[MASK]"] = byte_level("<mask>", "[MASK]") | {"general.name": "my Modern-BERT"}
    for name in ("Phi-3-mini", "my PHI3", "Phi 3 mini"):
        added = ["<|end|>", "<|endoftext|>", "<|user|>"]
        phi = sentencepiece(["▁", *"hel", "▁h"], added=added)
        found[name] = phi | {"general.name": name}
    return found


VOCABULARIES = Path(__file__).parents[1] / "data" / "gguf_vocabularies.json"
"""By name in `vocabularies`: ids that end a text, and those of a text with all added tokens in it,
by llama.cpp (lab/check_gguf.py)."""


def text_with(metadata: Mapping[str, Any]) -> str:
    """A text with all tokens that were added to a vocabulary, and with spaces around them."""
    tokens = metadata["tokenizer.ggml.tokens"]
    pieces = metadata["tokenizer.ggml.model"] == "llama"
    added = tokens[:3] + tokens[-3:] if pieces else tokens[len(BYTES) + 3 :]
    return "".join(f"he {token} \n hel" for token in added if token)


_VALUES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113])
_CODEBOOK = float(np.sqrt(np.mean(_VALUES**2.0)))
# Types to which the package does not quantise: where a block has its scale in float16, the
# deviation of weights from random bytes with a scale of one, and, if a scale of minima follows, the
# mean code.
_DRAWN = {
    Kind.Q2_K: (80, 8.8 * math.hypot(1.1, 1.5 / 2), 1.5),
    Kind.Q3_K: (108, 18.5 * 2.3, 0),
    Kind.Q4_K: (0, 36 * math.hypot(4.6, 7.5 / 2), 7.5),
    Kind.Q5_K: (0, 36 * math.hypot(9.2, 15.5 / 2), 15.5),
    Kind.Q6_K: (208, 74 * 18.5, 0),
    Kind.IQ4_NL: (0, _CODEBOOK, 0),
    Kind.IQ4_XS: (0, 18.5 * _CODEBOOK, 0),
}


def quantised(values: Array, kind: Kind, rng: np.random.Generator) -> Array:
    """Values in a type, or random blocks of about the same deviation."""
    if kind.name == "NVFP4":  # scales of 1 / 8 to 1 / 4, and any codes
        blocks = rng.integers(0, 256, (values.size // 64, 36), np.uint8)
        blocks[:, :4] = rng.integers(32, 40, (len(blocks), 4))
        return blocks.reshape(*values.shape[:-1], -1)
    if kind not in _DRAWN:
        return np.asarray(quants.quantize(values, kind))
    at, unit, mean = _DRAWN[kind]
    block, size = GGML_QUANT_SIZES[kind]
    count = values.size // block
    blocks = rng.integers(0, 256, (count, size), np.uint8)
    deviation = float(np.std(values)) / unit

    def halves(size: float) -> Array:
        drawn = np.float32(size) * rng.uniform(0.7, 1.4, count).astype(np.float32)
        return drawn.astype(np.float16)[:, None].view(np.uint8)

    blocks[:, at : at + 2] = halves(deviation)
    if mean:
        blocks[:, at + 2 : at + 4] = halves(deviation * mean)
    return blocks.reshape(*values.shape[:-1], -1)


def dequantised(path: Path, to: Path) -> Path:
    """The same file with all tensors in float32."""
    reader = GGUFReader(path)
    architecture = str(reader.fields["general.architecture"].contents())
    writer = GGUFWriter(to, architecture)
    for name, each in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            sub = each.types[-1] if len(each.types) > 1 else None
            writer.add_key_value(name, each.contents(), each.types[0], sub)
    for tensor in reader.tensors:
        values = quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        writer.add_tensor(tensor.name, values.reshape(tensor.shape[::-1]))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return to


TEXTS = Path(__file__).parents[1] / "data" / "gguf_texts.json"
"""Greedy texts of real files, by llama.cpp in float32 (lab/check_gguf.py): for each prompt the
tokens, the next best ones, and how far apart their logits are, over the root mean square logit."""
