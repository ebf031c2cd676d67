"""ik_llama.cpp through ik-llama-cpp-python's binding of its C API, which differs from llama.cpp's.

The wheels are for AVX2, and the source archive cannot build anything else. Weights are repacked
when they are loaded (`repack_tensors`), because its fast kernels for prompts need that.
"""

from __future__ import annotations

import ctypes
from importlib import metadata
from typing import Any

from ort_aie_ep.errors import AieError
from ort_aie_ep.tools.bench.peers.engine import Model, Settings
from ort_aie_ep.tools.bench.peers.gguf import GgufEngine, features

WITHOUT = "flash attention"
"""A value of `Settings.without`: the binding warns that this fails assertions on some CPUs."""

_F16 = 1  # of enum ggml_type


class IkLlamaCppEngine(GgufEngine):
    """A model with contexts."""

    def __init__(self, model: Model, settings: Settings) -> None:
        """Opens the file.

        Raises:
            AieError: ik_llama.cpp refuses it.
        """
        from ik_llama_cpp import _ctypes_api

        super().__init__(_ctypes_api)
        self._capacity, self._settings = settings.capacity, settings
        self._flash_attention = settings.without != WITHOUT
        api = self._api
        self._bind(api._lib)
        api.llama_backend_init()
        params = api.llama_model_default_params()
        params.repack_tensors = True
        self._model = api.llama_model_load_from_file(str(model.path).encode(), params)
        if not self._model:
            raise AieError(f"ik_llama.cpp cannot open {model.path}")
        self._vocabulary = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self._model))
        context, _ = self._open(1)
        self._description = {
            "version": f"ik-llama-cpp-python {metadata.version('ik-llama-cpp-python')}",
            "build": features(api._lib.llama_print_system_info()),
            "threads": str(settings.threads),
            "KV": "float16",
            "weights": "repacked",
            "flash attention": "on" if self._flash_attention else "off",
            "micro batch": str(api.llama_n_ubatch(context)),
        }

    @staticmethod
    def _bind(library: Any) -> None:
        """Declares functions that the binding lacks."""
        position, sequence, context = ctypes.c_int32, ctypes.c_int32, ctypes.c_void_p
        library.llama_print_system_info.restype = ctypes.c_char_p
        library.llama_kv_cache_seq_rm.argtypes = (context, sequence, position, position)
        library.llama_kv_cache_seq_cp.argtypes = (context, sequence, sequence, position, position)

    def describe(self) -> dict[str, str]:
        """See `Engine`."""
        return self._description

    def _context(self, sequences: int) -> Any:
        api, settings = self._api, self._settings
        params = api.llama_context_default_params()
        params.n_ctx = params.n_batch = self._capacity * sequences
        params.n_seq_max = sequences
        params.n_threads = params.n_threads_batch = settings.threads
        params.type_k = params.type_v = _F16
        params.flash_attn = self._flash_attention
        context = api.llama_init_from_model(self._model, params)
        if not context:
            raise AieError(f"ik_llama.cpp cannot make a context of {params.n_ctx} tokens")
        return context

    def _clear(self, context: Any) -> None:
        self._api.llama_kv_cache_clear(context)

    def _forget(self, context: Any, length: int) -> None:
        self._api._lib.llama_kv_cache_seq_rm(context, -1, length, -1)

    def _copy(self, context: Any, target: int) -> None:
        self._api._lib.llama_kv_cache_seq_cp(context, 0, target, -1, -1)
