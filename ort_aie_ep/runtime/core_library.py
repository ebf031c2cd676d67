"""Information that the ort_aie_ep library returns as text through its C functions."""

from __future__ import annotations

import ctypes

import ort_aie_ep


def npu_counters_text() -> str:
    """Counts of the work of this process's NPU targets, in JSON.

    Raises:
        AieError: the package was installed without its library.
    """
    library = ctypes.CDLL(ort_aie_ep.library_path())
    library.ort_aie_npu_counters.restype = ctypes.c_void_p
    return _take(library, library.ort_aie_npu_counters())


def xrt_library() -> str:
    """The XRT file that the xrt target loads; it stays loaded. Empty if the target needs none.

    Raises:
        AieError: the package was installed without its library.
        OSError: the target does not load; the message says why.
    """
    library = ctypes.CDLL(ort_aie_ep.library_path())
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
