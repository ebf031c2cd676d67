"""GGUF files: one that is the source itself, or one with an ONNX source's codes.

A Q4_0 block is like the source's: 32 codes and a scale, weight = (code − 8) · scale. A source's
block of 128 becomes four with its scale. Only the scale is rounded, from float32 to float16.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bench_peers.engines import GgufSource, Model, Source
from bench_peers.weights import DecoderWeights, Int4Matrix

BITS = 4.5
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

    return Int4Matrix(permuted(matrix.codes), permuted(matrix.scales))


def gguf_source(file: Path, scratch: Path) -> GgufSource:
    """A file as the model of all engines that read GGUF."""
    from collections import Counter

    import gguf

    reader = gguf.GGUFReader(file)
    architecture = reader.fields["general.architecture"].contents()
    matrices = [t for t in reader.tensors if len(t.shape) > 1]
    of_types: Counter[str] = Counter()
    for tensor in matrices:
        of_types[tensor.tensor_type.name] += int(tensor.n_bytes)
    of = {tensor.name: tensor for tensor in matrices}
    total = sum(of_types.values())
    embedding = of["token_embd.weight"]
    experts = int(_count(reader, architecture, "expert_count", 1))
    chosen = int(_count(reader, architecture, "expert_used_count", 1))
    read = sum(
        int(t.n_bytes) * chosen // experts if "_exps" in t.name else int(t.n_bytes)
        for t in matrices
        if t is not embedding or "output.weight" not in of
    )
    return GgufSource(
        file.absolute(), scratch, int(_count(reader, architecture, "context_length", 0)),
        int(embedding.shape[1]), sum(int(t.n_elements) for t in matrices), total, read,
        ", ".join(f"{name} {100 * size / total:.0f} %" for name, size in of_types.most_common()),
    )  # fmt: skip


def _count(reader: Any, architecture: str, key: str, default: int) -> Any:
    field = reader.fields.get(f"{architecture}.{key}")
    return default if field is None else field.contents()


def gguf_model(source: Source | GgufSource) -> Model:
    """The file; of an ONNX source, writes it without a vocabulary, unless it is there: several
    engines open it."""
    if isinstance(source, GgufSource):
        bits = 8 * source.bytes / source.elements
        return Model(source.file, bits, source.read, source.file.stat().st_size)
    weights, path = source.weights, source.scratch / "model.gguf"
    if not path.exists():
        _write(weights, path)
    read = int(weights.product_elements() * BITS / 8)
    return Model(path, BITS, read, path.stat().st_size)


def _write(weights: DecoderWeights, path: Path) -> None:
    import gguf

    shape, is_llama = weights.shape, weights.shape.family == "llama"
    writer = gguf.GGUFWriter(path, shape.family, use_temp_file=True)
    # The first of a row of frequencies is 1, the last base ** (2 / head size - 1).
    base = float(weights.frequencies[-1] ** (shape.head_dim / (2 - shape.head_dim)))
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
        "rope_freq_base": _ROPE_BASE if is_llama else base,
        "layer_norm_rms_eps": shape.epsilon,
        "vocab_size": shape.vocab,
        "file_type": gguf.LlamaFileType.MOSTLY_Q4_0,
        "tokenizer_model": "none",
    }
    for name, value in settings.items():
        getattr(writer, f"add_{name}")(value)
    for name, values in _tensors(weights):
        if isinstance(values, Int4Matrix):
            kind = gguf.GGMLQuantizationType.Q4_0
            writer.add_tensor(f"{name}.weight", q4_0(values), raw_dtype=kind)
        else:
            writer.add_tensor(f"{name}.weight", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _tensors(weights: DecoderWeights) -> Iterator[tuple[str, npt.NDArray[Any] | Int4Matrix]]:
    """Tensors by their names without .weight."""
    shape = weights.shape
    embedding = weights.embedding()
    if embedding is not None:
        yield "token_embd", embedding.astype(np.float16)
    yield "token_embd" if embedding is None else "output", weights.lm_head()
    yield "output_norm", weights.final_norm()
    # The source pairs the halves of a head in rotations, but llama.cpp's Llama pairs neighbours.
    is_llama = shape.family == "llama"
    if is_llama:
        half = shape.head_dim // 2
        base = _ROPE_BASE ** (-np.arange(half) / half)
        yield "rope_freqs", (base / weights.frequencies).astype(np.float32)
    for index in range(shape.layers):
        layer, name = weights.layer(index), f"blk.{index}"
        yield f"{name}.attn_norm", layer.attention_norm
        yield f"{name}.attn_q", interleaved(layer.q, shape.heads) if is_llama else layer.q
        yield f"{name}.attn_k", interleaved(layer.k, shape.kv_heads) if is_llama else layer.k
        yield f"{name}.attn_v", layer.v
        yield f"{name}.attn_output", layer.o
        if layer.head_norms is not None:
            yield f"{name}.attn_q_norm", layer.head_norms[0]
            yield f"{name}.attn_k_norm", layer.head_norms[1]
        yield f"{name}.ffn_norm", layer.ffn_norm
        for part in ("gate", "up", "down"):
            yield f"{name}.ffn_{part}", getattr(layer, part)
