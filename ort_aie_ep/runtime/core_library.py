"""The C functions of the ort_aie_ep library."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

import ort_aie_ep


@contextmanager
def logits_of_last(tokens: int) -> Iterator[None]:
    """Runs of this thread in the `with` block compute the logits of a sequence's last `tokens`
    tokens alone, (1, tokens, vocabulary); 0: of all. Batches of several sequences compute all, and
    so do models whose logits are not computed by an aie operator.

    Raises:
        AieError: the package was installed without its library.
    """
    keep = _loaded().ort_aie_keep_logits
    keep.argtypes, keep.restype = [ctypes.c_int64], ctypes.c_int64
    before = keep(tokens)
    try:
        yield
    finally:
        keep(before)


def _loaded() -> ctypes.CDLL:
    return ctypes.CDLL(ort_aie_ep.library_path())


def npu_counters_text() -> str:
    """Counts of the work of this process's NPU targets, in JSON.

    Raises:
        AieError: the package was installed without its library.
    """
    library = _loaded()
    library.ort_aie_npu_counters.restype = ctypes.c_void_p
    return _take(library, library.ort_aie_npu_counters())


def xrt_library() -> str:
    """The XRT file that the xrt target loads; it stays loaded. Empty if the target needs none.

    Raises:
        AieError: the package was installed without its library.
        OSError: the target does not load; the message says why.
    """
    library = _loaded()
    library.ort_aie_xrt_library.restype = ctypes.c_void_p
    error = ctypes.c_void_p()
    found = library.ort_aie_xrt_library(ctypes.byref(error))
    if found is None:
        raise OSError(_take(library, error.value))
    return _take(library, found)


def _take(library: ctypes.CDLL, text: int | None) -> str:
    """Copies a string of the library, and frees it."""
    assert text is not None
    free = library.ort_aie_free
    free.restype = None
    free.argtypes = [ctypes.c_void_p]
    try:
        return ctypes.string_at(text).decode()
    finally:
        free(text)
