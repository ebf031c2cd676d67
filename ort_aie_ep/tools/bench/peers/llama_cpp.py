"""llama.cpp and ik_llama.cpp through their Python bindings of the C API, on a GGUF file.

`llama-cpp-python` has the newest API. ik_llama.cpp's differs, and `ik-llama-cpp-python`'s wheels
are for AVX2 (its source archive cannot build anything else).
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from importlib import metadata
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from ort_aie_ep.errors import AieError
from ort_aie_ep.tools.bench.peers import engines
from ort_aie_ep.tools.bench.peers.engines import Model, Settings

# ggml_log_level of warnings and errors. Lower levels report every tensor; a higher one continues
# the last message.
_WORTH_SAYING = (3, 4)
# The buffer where weights are repacked for the CPU's kernels; AMX has a separate one before it.
_REPACKED = b"CPU_REPACK"
# Tensors that are only multiplied. The lm_head may be the embedding, whose rows are looked up.
_PRODUCTS = rb"blk\..*(attn_(q|k|v|output)|ffn_(gate|up|down)(_exps)?)\.weight"
_F16 = 1  # of enum ggml_type


class GgufEngine(engines.StepEngine):
    """A model with contexts.

    `api` has the names of the C API, and `calls` what the two libraries do differently:
    set_model(params) and set_context(params, sequences) set the options of a model and of a
    context; clear(context) removes all tokens, forget(context, length) those after the first
    `length`, and copy(context, target) copies the first sequence to another.
    """

    def __init__(
        self, name: str, package: str, api: Any, calls: Any, model: Model, settings: Settings
    ) -> None:
        """Opens the file; AieError if the library refuses it."""
        self._name, self._api, self._calls, self._settings = name, api, calls, settings
        self._contexts: dict[int, tuple[Any, Any]] = {}  # with a batch, by number of sequences
        self._length = 0
        api.llama_backend_init()
        params = api.llama_model_default_params()
        calls.set_model(params)
        self._model = api.llama_model_load_from_file(str(model.path).encode(), params)
        if not self._model:
            raise AieError(f"{name} cannot open {model.path}")
        self._vocabulary = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self._model))
        context, _ = self._open(1)
        parts = (part.strip() for part in calls.system_info().decode().split("|"))
        features = (part.removesuffix(" = 1") for part in parts if part.endswith("= 1"))
        self.description = {
            "version": f"{package} {metadata.version(package)}",
            "build": " ".join(features),
            "threads": str(settings.threads),
            "KV": "float16",
            **calls.facts,
            "micro batch": str(api.llama_n_ubatch(context)),
        }

    def _open(self, sequences: int) -> tuple[Any, Any]:
        """A context with room for the capacity in each sequence, and a batch; kept for later."""
        if sequences not in self._contexts:
            api, rows = self._api, self._settings.capacity * sequences
            params = api.llama_context_default_params()
            params.n_ctx = params.n_batch = rows
            params.n_seq_max = sequences
            params.n_threads = params.n_threads_batch = self._settings.threads
            params.type_k = params.type_v = _F16
            self._calls.set_context(params, sequences)
            context = api.llama_init_from_model(self._model, params)
            if not context:
                raise AieError(f"{self._name} cannot make a context of {rows} tokens")
            self._contexts[sequences] = context, api.llama_batch_init(rows, 0, 1)
        return self._contexts[sequences]

    def reset(self) -> None:
        """See `StepEngine`."""
        self._calls.clear(self._open(1)[0])
        self._length = 0

    def forward(self, tokens: Sequence[int]) -> int:
        """See `StepEngine`."""
        logits = self._decode(tokens, self._length)
        self._length += len(tokens)
        return int(np.argmax(logits))

    def batch_at(self, length: int, sequences: int, tokens: int, count: int) -> float:
        """See `Engine`."""
        context, _ = self._open(sequences)
        self._calls.clear(context)
        self._decode([1] * length, 0, context_of=sequences)
        for target in range(1, sequences):
            self._calls.copy(context, target)
        rows = engines.different_tokens(sequences, tokens).ravel()

        def call() -> None:
            self._decode(rows, length, context_of=sequences, sequences=sequences)
            self._calls.forget(context, length)

        return engines.seconds_after_one(call, count)

    def _decode(
        self, tokens: Any, first: int, *, context_of: int = 1, sequences: int = 0
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


def llama_cpp_engine(model: Model, settings: Settings, *, flash_attention: bool) -> GgufEngine:
    """llama.cpp; without AMX if the settings say so."""
    import llama_cpp as api

    kept = [api.llama_log_callback(_log)]  # what must live as long as the library uses it

    def set_model(params: Any) -> None:
        """Without AMX, weights stay out of its buffers: the only way to turn it off in a build.

        The blocks' weights go where a CPU without AMX has them; an lm_head that is also the
        embedding stays as it is in the file.
        """
        if settings.without:
            params.use_extra_bufts = False
            if repacked := _extra_buffer(_REPACKED):
                kept.append((_Override * 2)(_Override(_PRODUCTS, repacked)))
                params.tensor_buft_overrides = ctypes.cast(kept[-1], ctypes.c_void_p)

    def set_context(params: Any, sequences: int) -> None:
        # Layers with windows keep no more, as by default in llama.cpp's own programs. Its header
        # says that this can be slow with several sequences.
        params.swa_full = sequences > 1
        which = "ENABLED" if flash_attention else "DISABLED"
        params.flash_attn_type = getattr(api, f"LLAMA_FLASH_ATTN_TYPE_{which}")

    api.llama_log_set(kept[0], ctypes.c_void_p(0))
    memory = api.llama_get_memory
    calls = SimpleNamespace(
        facts={"flash attention": "on" if flash_attention else "off"},
        set_model=set_model,
        set_context=set_context,
        system_info=api.llama_print_system_info,
        clear=lambda context: api.llama_memory_clear(memory(context), False),
        forget=lambda context, length: api.llama_memory_seq_rm(memory(context), -1, length, -1),
        copy=lambda context, to: api.llama_memory_seq_cp(memory(context), 0, to, -1, -1),
    )
    return GgufEngine("llama.cpp", "llama-cpp-python", api, calls, model, settings)


def ik_llama_cpp_engine(model: Model, settings: Settings) -> GgufEngine:
    """ik_llama.cpp, with flash attention unless the settings say otherwise: its binding warns that
    it fails assertions on some CPUs."""
    from ik_llama_cpp import _ctypes_api as api

    own = api._lib
    # Functions that the binding lacks.
    position, sequence, context = ctypes.c_int32, ctypes.c_int32, ctypes.c_void_p
    own.llama_print_system_info.restype = ctypes.c_char_p
    own.llama_kv_cache_seq_rm.argtypes = (context, sequence, position, position)
    own.llama_kv_cache_seq_cp.argtypes = (context, sequence, sequence, position, position)
    flash_attention = not settings.without

    def set_model(params: Any) -> None:
        params.repack_tensors = True  # its fast kernels for prompts need that

    def set_context(params: Any, _: int) -> None:
        params.flash_attn = flash_attention

    calls = SimpleNamespace(
        facts={"weights": "repacked", "flash attention": "on" if flash_attention else "off"},
        set_model=set_model,
        set_context=set_context,
        system_info=own.llama_print_system_info,
        clear=api.llama_kv_cache_clear,
        forget=lambda context, length: own.llama_kv_cache_seq_rm(context, -1, length, -1),
        copy=lambda context, to: own.llama_kv_cache_seq_cp(context, 0, to, -1, -1),
    )
    return GgufEngine("ik_llama.cpp", "ik-llama-cpp-python", api, calls, model, settings)


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
