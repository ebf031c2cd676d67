"""llama.cpp by llama-cpp-python's binding of the C API, on a GGUF file with the source's codes.

A Q4_0 block is what the source's is: 32 codes and a scale, weight = (code − 8) · scale. Only the
scale is rounded, from float32 to float16.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ort_aie_ep.errors import AieError
from ort_aie_ep.tools.bench.peers.engine import Model, Settings, StepEngine

if TYPE_CHECKING:
    from ort_aie_ep.tools.bench.peers.weights import Int4Matrix, LlamaWeights

_BITS = 4.5
# Any base does: the tensor rope_freqs says what each frequency is divided by.
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
    """Rows in the order of llama.cpp's rotation, which pairs neighbours and not halves."""

    def permuted(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        half = rows.shape[0] // heads // 2
        return rows.reshape(heads, 2, half, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)

    return replace(matrix, codes=permuted(matrix.codes), scales=permuted(matrix.scales))


def write_gguf(weights: LlamaWeights, path: Path) -> Model:
    """Writes the model, without a vocabulary.

    Raises:
        AieError: the source's weights do not fit the format.
    """
    import gguf

    sizes = weights.sizes
    writer = gguf.GGUFWriter(path, "llama", use_temp_file=True)
    writer.add_context_length(sizes.context)
    writer.add_embedding_length(sizes.hidden)
    writer.add_block_count(sizes.layers)
    writer.add_feed_forward_length(sizes.ffn)
    writer.add_head_count(sizes.heads)
    writer.add_head_count_kv(sizes.kv_heads)
    writer.add_key_length(sizes.head_size)
    writer.add_value_length(sizes.head_size)
    writer.add_rope_dimension_count(sizes.head_size)
    writer.add_rope_freq_base(_ROPE_BASE)
    writer.add_layer_norm_rms_eps(sizes.epsilon)
    writer.add_vocab_size(sizes.vocabulary)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_0)
    writer.add_tokenizer_model("none")

    def add(name: str, matrix: Int4Matrix) -> None:
        writer.add_tensor(name, q4_0(matrix), raw_dtype=gguf.GGMLQuantizationType.Q4_0)

    embedding = weights.embedding()
    if embedding is None:
        add("token_embd.weight", weights.lm_head())
    else:
        writer.add_tensor("token_embd.weight", embedding.astype(np.float16))
        add("output.weight", weights.lm_head())
    writer.add_tensor("output_norm.weight", weights.final_norm())
    half = sizes.head_size // 2
    base = _ROPE_BASE ** (-np.arange(half) / half)
    writer.add_tensor("rope_freqs.weight", (base / sizes.inverse_frequencies).astype(np.float32))
    for index in range(sizes.layers):
        layer, name = weights.layer(index), f"blk.{index}"
        writer.add_tensor(f"{name}.attn_norm.weight", layer.attention_norm)
        add(f"{name}.attn_q.weight", interleaved(layer.q, sizes.heads))
        add(f"{name}.attn_k.weight", interleaved(layer.k, sizes.kv_heads))
        add(f"{name}.attn_v.weight", layer.v)
        add(f"{name}.attn_output.weight", layer.o)
        writer.add_tensor(f"{name}.ffn_norm.weight", layer.ffn_norm)
        add(f"{name}.ffn_gate.weight", layer.gate)
        add(f"{name}.ffn_up.weight", layer.up)
        add(f"{name}.ffn_down.weight", layer.down)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return gguf_model(weights, path)


def gguf_model(weights: LlamaWeights, path: Path) -> Model:
    """A file that `write_gguf` has written of these weights."""
    read = int(weights.product_elements() * _BITS / 8)
    return Model(path, _BITS, read, path.stat().st_size)


class LlamaCppEngine(StepEngine):
    """A llama_context."""

    def __init__(self, model: Model, settings: Settings, *, flash_attention: bool) -> None:
        """Opens the file.

        Raises:
            AieError: llama.cpp refuses it.
        """
        import llama_cpp

        self._api = api = llama_cpp
        # It logs every tensor while loading; the callback must outlive the library's use of it.
        self._log = api.llama_log_callback(lambda *_: None)
        api.llama_log_set(self._log, ctypes.c_void_p(0))
        api.llama_backend_init()
        self._model = api.llama_model_load_from_file(
            str(model.path).encode(), api.llama_model_default_params()
        )
        if not self._model:
            raise AieError(f"llama.cpp cannot open {model.path}")
        params = api.llama_context_default_params()
        params.n_ctx = settings.capacity
        params.n_batch = settings.capacity
        params.n_threads = params.n_threads_batch = settings.threads
        params.type_k = params.type_v = api.GGML_TYPE_F16
        params.flash_attn_type = (
            api.LLAMA_FLASH_ATTN_TYPE_ENABLED
            if flash_attention
            else api.LLAMA_FLASH_ATTN_TYPE_DISABLED
        )
        self._context = api.llama_init_from_model(self._model, params)
        if not self._context:
            raise AieError(f"llama.cpp makes no context of {settings.capacity} tokens")
        self._vocabulary = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self._model))
        self._description = {
            "version": f"llama-cpp-python {metadata.version('llama-cpp-python')}",
            "build": " ".join(
                part.strip()
                for part in api.llama_print_system_info().decode().split("|")
                if part.strip().endswith("= 1")
            ).replace(" = 1", ""),
            "threads": str(settings.threads),
            "KV": "float16",
            "flash attention": "on" if flash_attention else "off",
            "micro batch": str(api.llama_n_ubatch(self._context)),
        }

    def describe(self) -> dict[str, str]:
        """See `Engine`."""
        return self._description

    def reset(self) -> None:
        """See `StepEngine`."""
        self._api.llama_memory_clear(self._api.llama_get_memory(self._context), False)

    def forward(self, tokens: Sequence[int]) -> int:
        """See `StepEngine`."""
        ids = (ctypes.c_int32 * len(tokens))(*tokens)
        code = self._api.llama_decode(
            self._context, self._api.llama_batch_get_one(ids, len(tokens))
        )
        if code:
            raise AieError(f"llama_decode failed with {code}")
        logits = self._api.llama_get_logits_ith(self._context, -1)
        return int(np.argmax(np.ctypeslib.as_array(logits, shape=(self._vocabulary,))))
