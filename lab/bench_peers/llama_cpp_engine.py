"""llama.cpp and ik_llama.cpp through their Python bindings of the C API, on a GGUF file.

`llama-cpp-python` has the newest API. ik_llama.cpp's differs, and `ik-llama-cpp-python`'s wheels
are for AVX2 (its source archive cannot build anything else).
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import numpy as np
import numpy.typing as npt

from bench_peers.engines import Model, Settings, StepEngine
from ort_aie_ep.errors import AieError

# ggml_log_level of warnings and errors. Lower levels report every tensor; a higher one continues
# the last message.
_WORTH_SAYING = (3, 4)
_F16 = 1  # of enum ggml_type


@dataclass(frozen=True)
class Library:
    """What the two libraries do differently: their names, the C API, what the page says of their
    settings, how options of a model and of a context are set, and how a context is emptied."""

    name: str
    package: str
    api: Any
    facts: dict[str, str]
    set_model: Callable[[Any], None]
    set_context: Callable[[Any], None]
    system_info: Callable[[], bytes]
    clear: Callable[[Any], None]


class GgufEngine(StepEngine):
    """A model with a context of `sequences`, each with room for the capacity."""

    def __init__(
        self, library: Library, model: Model, settings: Settings, sequences: int = 1
    ) -> None:
        """Opens the file; AieError if the library refuses it."""
        self._library, self._sequences, api = library, sequences, library.api
        api.llama_backend_init()
        params = api.llama_model_default_params()
        library.set_model(params)
        self._model = api.llama_model_load_from_file(str(model.path).encode(), params)
        if not self._model:
            raise AieError(f"{library.name} cannot open {model.path}")
        self._vocabulary = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self._model))
        rows = settings.capacity * sequences
        params = api.llama_context_default_params()
        params.n_ctx = params.n_batch = rows
        params.n_seq_max = sequences
        params.n_threads = params.n_threads_batch = settings.threads
        params.type_k = params.type_v = _F16
        library.set_context(params)
        self._context = api.llama_init_from_model(self._model, params)
        if not self._context:
            raise AieError(f"{library.name} cannot make a context of {rows} tokens")
        self._batch = api.llama_batch_init(rows, 0, 1)
        self._length = 0
        parts = (part.strip() for part in library.system_info().decode().split("|"))
        features = (part.removesuffix(" = 1") for part in parts if part.endswith("= 1"))
        self.description = {
            "version": f"{library.package} {metadata.version(library.package)}",
            "build": " ".join(features),
            "threads": str(settings.threads),
            "KV": "float16",
            **library.facts,
            "micro batch": str(api.llama_n_ubatch(self._context)),
        }

    def reset(self) -> None:
        """See `StepEngine`."""
        self._library.clear(self._context)
        self._length = 0

    def forward(self, tokens: Sequence[int]) -> int:
        """See `StepEngine`."""
        places = np.arange(self._length, self._length + len(tokens))
        self._length += len(tokens)
        return int(np.argmax(self._decode(tokens, places, np.zeros_like(places), 1)))

    def steps_of_all(self, length: int, count: int) -> float:
        """Seconds for `count` steps, each with a token of every sequence, after `length` tokens
        that they share; llama.cpp only."""
        self.reset()
        self.forward([1] * length)
        api, all_of_them = self._library.api, np.arange(self._sequences)
        for target in all_of_them[1:]:
            api.llama_memory_seq_cp(api.llama_get_memory(self._context), 0, int(target), -1, -1)
        start = time.perf_counter()
        for step in range(count):
            places = np.full_like(all_of_them, length + step)
            # Different tokens, because equal ones would choose equal experts.
            self._decode(all_of_them + 1, places, all_of_them, self._sequences)
        return time.perf_counter() - start

    def _decode(
        self, tokens: Any, places: Any, sequences: Any, logits: int
    ) -> npt.NDArray[np.float32]:
        """Logits for the last token; the library computes them for the last `logits` ones."""
        rows, batch = len(tokens), self._batch

        def fill(field: Any, values: Any) -> None:
            np.ctypeslib.as_array(field, (rows,))[:] = values

        batch.n_tokens = rows
        fill(batch.token, np.asarray(tokens, np.int32))
        fill(batch.pos, places)
        fill(batch.n_seq_id, 1)
        fill(batch.logits, np.arange(rows) >= rows - logits)
        for row, sequence in enumerate(sequences):
            batch.seq_id[row][0] = int(sequence)
        code = self._library.api.llama_decode(self._context, batch)
        if code:
            raise AieError(f"llama_decode failed with {code}")
        found = self._library.api.llama_get_logits_ith(self._context, rows - 1)
        values: npt.NDArray[np.float32] = np.ctypeslib.as_array(found, (self._vocabulary,))
        return values


def llama_cpp_engine(
    model: Model, settings: Settings, *, flash_attention: bool = True, sequences: int = 1
) -> GgufEngine:
    """llama.cpp, with flash attention or without: on CPUs, either may be faster."""
    import llama_cpp as api

    kept.append(api.llama_log_callback(_log))
    api.llama_log_set(kept[-1], ctypes.c_void_p(0))
    which = "ENABLED" if flash_attention else "DISABLED"

    def set_context(params: Any) -> None:
        params.flash_attn_type = getattr(api, f"LLAMA_FLASH_ATTN_TYPE_{which}")

    library = Library(
        "llama.cpp", "llama-cpp-python", api,
        facts={"flash attention": "on" if flash_attention else "off"},
        set_model=lambda params: None,
        set_context=set_context,
        system_info=api.llama_print_system_info,
        clear=lambda context: api.llama_memory_clear(api.llama_get_memory(context), False),
    )  # fmt: skip
    return GgufEngine(library, model, settings, sequences)


def ik_llama_cpp_engine(model: Model, settings: Settings) -> GgufEngine:
    """ik_llama.cpp, with flash attention."""
    from ik_llama_cpp import _ctypes_api as api

    own = api._lib
    own.llama_print_system_info.restype = ctypes.c_char_p  # the binding lacks it

    def set_model(params: Any) -> None:
        params.repack_tensors = True  # its fast kernels for prompts need that

    def set_context(params: Any) -> None:
        params.flash_attn = True

    library = Library(
        "ik_llama.cpp", "ik-llama-cpp-python", api,
        facts={"weights": "repacked", "flash attention": "on"},
        set_model=set_model,
        set_context=set_context,
        system_info=own.llama_print_system_info,
        clear=api.llama_kv_cache_clear,
    )  # fmt: skip
    return GgufEngine(library, model, settings)


kept: list[Any] = []
"""Callbacks, which must live as long as the library."""


def _log(level: int, text: bytes, _: Any) -> None:
    """Prints warnings and errors, which may be the last output of a process."""
    if level in _WORTH_SAYING:
        sys.stderr.write(text.decode(errors="replace"))
        sys.stderr.flush()
