"""llama.cpp on a GGUF file, by llama-cpp-python's binding of the C API, for `ort-aie bench`."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from ort_aie_ep.errors import AieError
from ort_aie_ep.running.generate import Tokens

NAME = "llama.cpp"


def is_there() -> bool:
    """Whether llama-cpp-python is installed in this Python."""
    return find_spec("llama_cpp") is not None


class LlamaCpp:
    """A file in llama.cpp, with a cache of float16 and flash attention."""

    def __init__(self, path: Path, capacity: int, threads: int) -> None:
        """Opens the file with room for `capacity` tokens. Raises AieError if it cannot be."""
        with _quiet():
            import llama_cpp as api

            self._api: Any = api
            params = api.llama_model_default_params()
            self._model = api.llama_model_load_from_file(str(path).encode(), params)
            if not self._model:
                raise AieError(f"{NAME} cannot open {path}")
            about = api.llama_context_default_params()
            about.n_ctx = about.n_batch = capacity
            about.n_threads = about.n_threads_batch = threads
            about.flash_attn_type = api.LLAMA_FLASH_ATTN_TYPE_ENABLED
            self._context = api.llama_init_from_model(self._model, about)
        if not self._context:
            raise AieError(f"{NAME} cannot make a context of {capacity} tokens")

    def speeds(self, tokens: Tokens, length: int, new_tokens: int) -> tuple[float, float]:
        """(prefill, decode) tokens per second of one run: see `bench.Timed`."""
        api = self._api
        api.llama_memory_clear(api.llama_get_memory(self._context), False)
        start = time.perf_counter()
        self._decode(tokens[:length])
        first = time.perf_counter()
        for at in range(length, length + new_tokens):
            self._decode(tokens[at : at + 1])
        return length / (first - start), new_tokens / (time.perf_counter() - first)

    def _decode(self, tokens: Tokens) -> None:
        ids = np.ascontiguousarray(tokens, np.int32)
        of_c = ids.ctypes.data_as(self._api.llama_token_p)
        batch = self._api.llama_batch_get_one(of_c, len(ids))
        if code := self._api.llama_decode(self._context, batch):
            raise AieError(f"llama_decode failed with {code}")
        self._api.llama_synchronize(self._context)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without what the library writes on stderr of each tensor."""
    kept = os.dup(2)
    with Path(os.devnull).open("w") as nothing:
        os.dup2(nothing.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
