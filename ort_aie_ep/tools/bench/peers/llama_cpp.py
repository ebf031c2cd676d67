"""llama.cpp through llama-cpp-python's binding of the C API."""

from __future__ import annotations

import ctypes
import sys
from importlib import metadata
from typing import Any

from ort_aie_ep.errors import AieError
from ort_aie_ep.tools.bench.peers.engine import Model, Settings
from ort_aie_ep.tools.bench.peers.gguf import GgufEngine, features

WITHOUT = "AMX"
"""A value of `Settings.without`."""

# ggml_log_level of warnings and errors. Lower levels report every tensor; a higher one continues
# the last message.
_WORTH_SAYING = (3, 4)
# The buffer where weights are repacked for the CPU's kernels; AMX has a separate one before it.
_REPACKED = b"CPU_REPACK"
# Tensors that are only multiplied. The lm_head may be the embedding, whose rows are looked up.
_PRODUCTS = rb"blk\..*(attn_(q|k|v|output)|ffn_(gate|up|down)(_exps)?)\.weight"


class LlamaCppEngine(GgufEngine):
    """A model with contexts, on the newest API."""

    def __init__(self, model: Model, settings: Settings, *, flash_attention: bool) -> None:
        """Opens the file.

        Raises:
            AieError: llama.cpp refuses it.
        """
        import llama_cpp

        super().__init__(llama_cpp)
        self._capacity, self._settings = settings.capacity, settings
        self._flash_attention = flash_attention
        api = self._api
        # The callback must live as long as the library uses it.
        self._log = api.llama_log_callback(_log)
        api.llama_log_set(self._log, ctypes.c_void_p(0))
        api.llama_backend_init()
        params = api.llama_model_default_params()
        if settings.without == WITHOUT:
            self._without_amx(params)
        self._model = api.llama_model_load_from_file(str(model.path).encode(), params)
        if not self._model:
            raise AieError(f"llama.cpp cannot open {model.path}")
        self._vocabulary = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self._model))
        context, _ = self._open(1)
        self._description = {
            "version": f"llama-cpp-python {metadata.version('llama-cpp-python')}",
            "build": features(api.llama_print_system_info()),
            "threads": str(settings.threads),
            "KV": "float16",
            "flash attention": "on" if flash_attention else "off",
            "micro batch": str(api.llama_n_ubatch(context)),
        }

    def _without_amx(self, params: Any) -> None:
        """Keeps weights out of AMX's buffers: the only way to turn AMX off in a build that has it.

        The blocks' weights go where a CPU without AMX has them; an lm_head that is also the
        embedding stays as it is in the file.
        """
        params.use_extra_bufts = False
        repacked = _extra_buffer(_REPACKED)
        if repacked:
            self._overrides = (_Override * 2)(_Override(_PRODUCTS, repacked))
            params.tensor_buft_overrides = ctypes.cast(self._overrides, ctypes.c_void_p)

    def describe(self) -> dict[str, str]:
        """See `Engine`."""
        return self._description

    def _context(self, sequences: int) -> Any:
        api, settings = self._api, self._settings
        params = api.llama_context_default_params()
        params.n_ctx = params.n_batch = self._capacity * sequences
        params.n_seq_max = sequences
        params.n_threads = params.n_threads_batch = settings.threads
        params.type_k = params.type_v = api.GGML_TYPE_F16
        # Layers with windows keep no more, as by default in llama.cpp's own programs. Its header
        # says that this can be slow with several sequences.
        params.swa_full = sequences > 1
        params.flash_attn_type = (
            api.LLAMA_FLASH_ATTN_TYPE_ENABLED
            if self._flash_attention
            else api.LLAMA_FLASH_ATTN_TYPE_DISABLED
        )
        context = api.llama_init_from_model(self._model, params)
        if not context:
            raise AieError(f"llama.cpp cannot make a context of {params.n_ctx} tokens")
        return context

    def _clear(self, context: Any) -> None:
        self._api.llama_memory_clear(self._api.llama_get_memory(context), False)

    def _forget(self, context: Any, length: int) -> None:
        self._api.llama_memory_seq_rm(self._api.llama_get_memory(context), -1, length, -1)

    def _copy(self, context: Any, target: int) -> None:
        self._api.llama_memory_seq_cp(self._api.llama_get_memory(context), 0, target, -1, -1)


class _Override(ctypes.Structure):
    """llama_model_tensor_buft_override; one without a pattern ends the list."""

    _fields_ = (("pattern", ctypes.c_char_p), ("buffer_type", ctypes.c_void_p))


def _extra_buffer(name: bytes) -> int | None:
    """A buffer type that the CPU has in addition to ordinary memory."""
    from llama_cpp._ggml import libggml

    def function(name: str, result: Any, *arguments: Any) -> Any:
        found = getattr(libggml, name)
        found.restype, found.argtypes = result, arguments
        return found

    pointer, text = ctypes.c_void_p, ctypes.c_char_p
    cpu = function("ggml_backend_dev_by_type", pointer, ctypes.c_int)(0)
    registry = function("ggml_backend_dev_backend_reg", pointer, pointer)(cpu)
    address = function("ggml_backend_reg_get_proc_address", pointer, pointer, text)(
        registry, b"ggml_backend_dev_get_extra_bufts"
    )
    if not address:
        return None
    types = ctypes.CFUNCTYPE(ctypes.POINTER(pointer), pointer)(address)(cpu)
    name_of = function("ggml_backend_buft_name", text, pointer)
    index = 0
    while types and types[index]:
        if name_of(types[index]) == name:
            return int(types[index])
        index += 1
    return None


def _log(level: int, text: bytes, _: Any) -> None:
    """Prints warnings and errors, which may be the last output of a process."""
    if level in _WORTH_SAYING:
        sys.stderr.write(text.decode(errors="replace"))
        sys.stderr.flush()
