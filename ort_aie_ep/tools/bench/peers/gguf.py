"""A GGUF file with the source's codes, and how llama.cpp and its relatives are driven on it.

A Q4_0 block is like the source's: 32 codes and a scale, weight = (code − 8) · scale. Only the scale
is rounded, from float32 to float16.

llama.cpp computes gpt-oss's rotation slightly differently. It blends stretched and other channels
between whole numbers of channels, the model between fractions, and no key of the file changes this.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ort_aie_ep.errors import AieError
from ort_aie_ep.tools.bench.peers.engine import Model, StepEngine, different_tokens

if TYPE_CHECKING:
    from ort_aie_ep.tools.bench.peers.weights import (
        DecoderSizes,
        DecoderWeights,
        Floats,
        Int4Matrix,
    )

_BITS = 4.5
# Any base works: the tensor rope_freqs holds the divisor of each frequency.
_ROPE_BASE = 10000.0


def q4_0(matrix: Int4Matrix) -> npt.NDArray[np.uint8]:
    """(N, K/32 · 18) uint8: a block is a float16 scale and 16 bytes, code i low and i + 16 high."""
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


def _architecture(sizes: DecoderSizes) -> str:
    """llama.cpp's name of the family."""
    if sizes.family == "qwen3" and sizes.experts:
        return "qwen3moe"
    return {"llama": "llama", "qwen3": "qwen3", "gptoss": "gpt-oss"}[sizes.family]


def write_gguf(weights: DecoderWeights, path: Path) -> Model:
    """Writes the model, without a vocabulary.

    Raises:
        AieError: the source's weights do not fit the format.
    """
    import gguf

    from ort_aie_ep.tools.bench.peers.weights import GPT_OSS, Experts

    sizes = weights.sizes
    # The source pairs the halves of a head in rotations, but llama.cpp's Llama pairs neighbours.
    is_llama = sizes.family == "llama"
    writer = gguf.GGUFWriter(path, _architecture(sizes), use_temp_file=True)
    writer.add_context_length(sizes.context)
    writer.add_embedding_length(sizes.hidden)
    writer.add_block_count(sizes.layers)
    writer.add_feed_forward_length(sizes.ffn)
    if sizes.experts:
        writer.add_expert_count(sizes.experts)
        writer.add_expert_used_count(sizes.experts_per_token)
        writer.add_expert_feed_forward_length(sizes.ffn)
    writer.add_head_count(sizes.heads)
    writer.add_head_count_kv(sizes.kv_heads)
    writer.add_key_length(sizes.head_size)
    writer.add_value_length(sizes.head_size)
    writer.add_rope_dimension_count(sizes.head_size)
    writer.add_layer_norm_rms_eps(sizes.epsilon)
    writer.add_vocab_size(sizes.vocabulary)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_0)
    writer.add_tokenizer_model("none")

    def add_bias(name: str, bias: Floats | None, *stack: int) -> None:
        if bias is not None:
            writer.add_tensor(f"{name}.bias", bias.reshape(*stack, -1))

    def add(name: str, matrix: Int4Matrix, *stack: int) -> None:
        blocks = q4_0(matrix)
        blocks = blocks.reshape(*stack, -1, blocks.shape[-1])
        writer.add_tensor(f"{name}.weight", blocks, raw_dtype=gguf.GGMLQuantizationType.Q4_0)
        add_bias(name, matrix.bias, *stack)

    embedding = weights.embedding()
    if embedding is None:
        add("token_embd", weights.lm_head())
    else:
        writer.add_tensor("token_embd.weight", embedding.astype(np.float16))
        add("output", weights.lm_head())
    writer.add_tensor("output_norm.weight", weights.final_norm())
    half = sizes.head_size // 2
    if is_llama:
        writer.add_rope_freq_base(_ROPE_BASE)
        base = _ROPE_BASE ** (-np.arange(half) / half)
        frequencies = (base / sizes.inverse_frequencies).astype(np.float32)
        writer.add_tensor("rope_freqs.weight", frequencies)
    else:
        writer.add_rope_freq_base(sizes.rope_base)
    if sizes.yarn is not None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(sizes.yarn.factor)
        writer.add_rope_scaling_orig_ctx_len(sizes.yarn.original)
    if sizes.window is not None:
        writer.add_sliding_window(sizes.window)
    for index in range(sizes.layers):
        layer, name = weights.layer(index), f"blk.{index}"
        q, k = layer.q, layer.k
        if is_llama:
            q, k = interleaved(q, sizes.heads), interleaved(k, sizes.kv_heads)
        writer.add_tensor(f"{name}.attn_norm.weight", layer.attention_norm)
        add(f"{name}.attn_q", q)
        add(f"{name}.attn_k", k)
        add(f"{name}.attn_v", layer.v)
        add(f"{name}.attn_output", layer.o)
        if layer.head_norms is not None:
            writer.add_tensor(f"{name}.attn_q_norm.weight", layer.head_norms[0])
            writer.add_tensor(f"{name}.attn_k_norm.weight", layer.head_norms[1])
        if layer.sinks is not None:
            writer.add_tensor(f"{name}.attn_sinks.weight", layer.sinks)
        norm = "post_attention_norm" if sizes.family == GPT_OSS else "ffn_norm"
        writer.add_tensor(f"{name}.{norm}.weight", layer.ffn_norm)
        ffn = layer.ffn
        if isinstance(ffn, Experts):
            # As in the files that people have.
            writer.add_tensor(f"{name}.ffn_gate_inp.weight", ffn.router.dequantised())
            add_bias(f"{name}.ffn_gate_inp", ffn.router.bias)
            for part in ("gate", "up", "down"):
                add(f"{name}.ffn_{part}_exps", getattr(ffn, part), sizes.experts)
            continue
        for part, matrix in zip(("gate", "up", "down"), ffn, strict=True):
            add(f"{name}.ffn_{part}", matrix)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return gguf_model(weights, path)


def gguf_model(weights: DecoderWeights, path: Path) -> Model:
    """A file that `write_gguf` has written for these weights."""
    read = int(weights.product_elements() * _BITS / 8)
    return Model(path, _BITS, read, path.stat().st_size)


def features(system_info: bytes) -> str:
    """The features that `llama_print_system_info` reports, by name."""
    parts = (part.strip() for part in system_info.decode().split("|"))
    return " ".join(part.removesuffix(" = 1") for part in parts if part.endswith("= 1"))


class GgufEngine(StepEngine):
    """A llama_context, through a module with the C API's names.

    A subclass sets `_vocabulary` and `_capacity`, and defines how to make a context and change its
    cache, because the libraries have different names for this.
    """

    _vocabulary: int
    _capacity: int

    def __init__(self, api: Any) -> None:
        self._api = api
        self._contexts: dict[int, tuple[Any, Any]] = {}  # with a batch, by number of sequences
        self._length = 0

    @abstractmethod
    def _context(self, sequences: int) -> Any:
        """A new context with room for `_capacity` tokens in each of `sequences` sequences."""

    @abstractmethod
    def _clear(self, context: Any) -> None:
        """Forgets everything."""

    @abstractmethod
    def _forget(self, context: Any, length: int) -> None:
        """Forgets everything after the first `length` tokens of each sequence."""

    @abstractmethod
    def _copy(self, context: Any, target: int) -> None:
        """Copies sequence 0 to sequence `target`."""

    def _open(self, sequences: int) -> tuple[Any, Any]:
        if sequences not in self._contexts:
            rows = self._capacity * sequences
            opened = self._context(sequences), self._api.llama_batch_init(rows, 0, 1)
            self._contexts[sequences] = opened
        return self._contexts[sequences]

    def reset(self) -> None:
        """See `StepEngine`."""
        self._clear(self._open(1)[0])
        self._length = 0

    def forward(self, tokens: Sequence[int]) -> int:
        """See `StepEngine`."""
        logits = self._decode(tokens, self._length)
        self._length += len(tokens)
        return int(np.argmax(logits))

    def batch_at(self, length: int, sequences: int, tokens: int, count: int) -> float:
        """See `Batching`.

        Raises:
            AieError: the library fails.
        """
        context, _ = self._open(sequences)
        self._clear(context)
        self._decode([1] * length, 0, context_of=sequences)
        for target in range(1, sequences):
            self._copy(context, target)
        rows, start = different_tokens(sequences, tokens).ravel(), 0.0
        for call in range(count + 1):
            if call == 1:
                start = time.perf_counter()
            self._decode(rows, length, context_of=sequences, sequences=sequences)
            self._forget(context, length)
        return time.perf_counter() - start

    def _decode(
        self,
        tokens: Sequence[int] | npt.NDArray[np.int64],
        first: int,
        *,
        context_of: int = 1,
        sequences: int = 0,
    ) -> npt.NDArray[np.float32]:
        """Logits for the last of the tokens that the sequences get at the position `first`.

        The tokens of each sequence follow those of the one before. Without `sequences`, the first
        sequence gets them, with logits of only the last token.
        """
        context, batch = self._open(context_of)
        rows, count = len(tokens), len(tokens) // max(1, sequences)

        def fill(field: Any, values: Any) -> None:
            np.ctypeslib.as_array(field, (rows,))[:] = values

        batch.n_tokens = rows
        fill(batch.token, np.asarray(tokens, np.int32))
        fill(batch.pos, np.tile(np.arange(first, first + count), max(1, sequences)))
        fill(batch.n_seq_id, 1)
        fill(batch.logits, 1 if sequences else np.arange(rows) == rows - 1)
        for row in range(rows):
            batch.seq_id[row][0] = row // count
        code = self._api.llama_decode(context, batch)
        if code:
            raise AieError(f"llama_decode failed with {code}")
        logits = self._api.llama_get_logits_ith(context, rows - 1)
        values: npt.NDArray[np.float32] = np.ctypeslib.as_array(logits, (self._vocabulary,))
        return values
