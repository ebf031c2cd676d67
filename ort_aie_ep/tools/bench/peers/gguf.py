"""A GGUF file with the source's codes.

A Q4_0 block is like the source's: 32 codes and a scale, weight = (code − 8) · scale. A source's
block of 128 becomes four with its scale. Only the scale is rounded, from float32 to float16.

llama.cpp computes gpt-oss's rotation slightly differently. It blends stretched and other channels
between whole numbers of channels, the model between fractions, and no key of the file changes this.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ort_aie_ep.tools.bench.peers.engines import Model, Source
from ort_aie_ep.tools.bench.peers.weights import GPT_OSS, DecoderWeights, Int4Matrix

_BITS = 4.5
# Any base works: the tensor rope_freqs holds the divisor of each frequency.
_ROPE_BASE = 10000.0


def q4_0(matrix: Int4Matrix) -> npt.NDArray[np.uint8]:
    """(N, K/32 · 18) uint8: a block is a float16 scale and 16 bytes, code i low and i + 16 high."""
    matrix = matrix.in_blocks_of_32()
    codes = matrix.unpacked()
    n, blocks, _ = codes.shape
    packed = np.empty((n, blocks, 18), np.uint8)
    packed[:, :, :2] = matrix.scales.astype(np.float16)[:, :, None].view(np.uint8)
    packed[:, :, 2:] = codes[:, :, :16] | codes[:, :, 16:] << 4
    return packed.reshape(n, blocks * 18)


def interleaved(matrix: Int4Matrix, heads: int) -> Int4Matrix:
    """Rows in the order of llama.cpp's rotation, which pairs neighbours instead of halves."""

    def permuted(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        half = rows.shape[0] // heads // 2
        return rows.reshape(heads, 2, half, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)

    return replace(matrix, codes=permuted(matrix.codes), scales=permuted(matrix.scales))


def gguf_model(source: Source) -> Model:
    """Writes the model, without a vocabulary, unless the file is there: several engines open it."""
    weights, path = source.weights, source.scratch / "model.gguf"
    if not path.exists():
        _write(weights, path)
    read = int(weights.product_elements() * _BITS / 8)
    return Model(path, _BITS, read, path.stat().st_size)


def _write(weights: DecoderWeights, path: Path) -> None:
    import gguf

    shape = weights.shape
    family = "qwen3moe" if shape.family == "qwen3" and shape.experts else shape.family
    writer = gguf.GGUFWriter(path, "gpt-oss" if family == GPT_OSS else family, use_temp_file=True)
    settings = {
        "context_length": shape.context,
        "embedding_length": shape.hidden,
        "block_count": shape.layers,
        "feed_forward_length": shape.ffn,
        "head_count": shape.heads,
        "head_count_kv": shape.kv_heads,
        "key_length": shape.head_dim,
        "value_length": shape.head_dim,
        "rope_dimension_count": shape.head_dim,
        "rope_freq_base": _ROPE_BASE if shape.family == "llama" else shape.rope_theta,
        "layer_norm_rms_eps": shape.epsilon,
        "vocab_size": shape.vocab,
        "file_type": gguf.LlamaFileType.MOSTLY_Q4_0,
        "tokenizer_model": "none",
    }
    if shape.experts:
        settings |= {
            "expert_count": shape.experts,
            "expert_used_count": shape.experts_per_token,
            "expert_feed_forward_length": shape.ffn,
        }
    if shape.yarn is not None:
        settings |= {
            "rope_scaling_type": gguf.RopeScalingType.YARN,
            "rope_scaling_factor": shape.yarn.factor,
            "rope_scaling_orig_ctx_len": shape.yarn.original,
        }
    if shape.window is not None:
        settings["sliding_window"] = shape.window
    for name, value in settings.items():
        getattr(writer, f"add_{name}")(value)
    for name, values in _tensors(weights):
        if not isinstance(values, Int4Matrix):
            writer.add_tensor(name, values)
            continue
        stack = (shape.experts,) if name.endswith("_exps") else ()
        blocks = q4_0(values)
        blocks = blocks.reshape(*stack, -1, blocks.shape[-1])
        kind = gguf.GGMLQuantizationType.Q4_0
        writer.add_tensor(f"{name}.weight", blocks, raw_dtype=kind)
        if values.bias is not None:
            writer.add_tensor(f"{name}.bias", values.bias.reshape(*stack, -1))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _tensors(weights: DecoderWeights) -> Iterator[tuple[str, npt.NDArray[Any] | Int4Matrix]]:
    """Float tensors by name, and matrices by their names without .weight and .bias."""
    shape = weights.shape
    embedding = weights.embedding()
    if embedding is not None:
        yield "token_embd.weight", embedding.astype(np.float16)
    yield "token_embd" if embedding is None else "output", weights.lm_head()
    yield "output_norm.weight", weights.final_norm()
    # The source pairs the halves of a head in rotations, but llama.cpp's Llama pairs neighbours.
    is_llama = shape.family == "llama"
    if is_llama:
        half = shape.head_dim // 2
        base = _ROPE_BASE ** (-np.arange(half) / half)
        yield "rope_freqs.weight", (base / weights.frequencies).astype(np.float32)
    for index in range(shape.layers):
        layer, name = weights.layer(index), f"blk.{index}"
        yield f"{name}.attn_norm.weight", layer.attention_norm
        yield f"{name}.attn_q", interleaved(layer.q, shape.heads) if is_llama else layer.q
        yield f"{name}.attn_k", interleaved(layer.k, shape.kv_heads) if is_llama else layer.k
        yield f"{name}.attn_v", layer.v
        yield f"{name}.attn_output", layer.o
        if layer.head_norms is not None:
            yield f"{name}.attn_q_norm.weight", layer.head_norms[0]
            yield f"{name}.attn_k_norm.weight", layer.head_norms[1]
        if layer.sinks is not None:
            yield f"{name}.attn_sinks.weight", layer.sinks
        norm = "post_attention_norm" if shape.family == GPT_OSS else "ffn_norm"
        yield f"{name}.{norm}.weight", layer.ffn_norm
        suffix, router = "_exps" if shape.experts else "", layer.router
        if router is not None:  # in float, as in the files that people have
            yield f"{name}.ffn_gate_inp.weight", router.dequantised()
            if router.bias is not None:
                yield f"{name}.ffn_gate_inp.bias", router.bias
        for part in ("gate", "up", "down"):
            yield f"{name}.ffn_{part}{suffix}", getattr(layer, part)
