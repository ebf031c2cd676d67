"""How fast this machine reads memory, and which files are in its page cache; without root."""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ort_aie_ep.errors import AieError

# For all threads together; larger than any cache of the machines this runs on.
_PROBE_BYTES = 512 << 20
# Large enough to make a call's cost negligible; no thread waits long for the slowest.
_PIECE = 4 << 20


class ReadProbe:
    """A buffer for each thread, which all threads sum at the same time."""

    def __init__(self, threads: int) -> None:
        size = _PROBE_BYTES // threads // _PIECE * _PIECE
        self._buffers = [np.full(size // 4, 1.0, np.float32) for _ in range(threads)]
        self._pool = ThreadPoolExecutor(threads)

    def measure(self, seconds: float = 0.1) -> float:
        """Bytes per second in the best pass over the buffers within about `seconds`."""
        best, end = 0.0, time.perf_counter() + seconds
        total = sum(buffer.nbytes for buffer in self._buffers)
        while time.perf_counter() < end:
            start = time.perf_counter()
            list(self._pool.map(_read, self._buffers))
            best = max(best, total / (time.perf_counter() - start))
        return best


def _read(buffer: npt.NDArray[np.float32]) -> float:
    step = _PIECE // 4
    # A dot product with itself is BLAS's widest loop that reads one stream and writes nothing.
    parts = (buffer[first : first + step] for first in range(0, len(buffer), step))
    return sum(float(np.dot(part, part)) for part in parts)


def files_of(model: Path) -> list[Path]:
    """All files of a model: a folder's, or those beside a file that share its name."""
    found = model.rglob("*") if model.is_dir() else model.parent.glob(f"{model.stem}.*")
    files = sorted(path for path in found if path.is_file())
    if not files:
        raise AieError(f"{model} has no files")
    return files


def warm(files: Iterable[Path]) -> None:
    """Reads the files from start to end."""
    for path in files:
        with path.open("rb", buffering=0) as file:
            while file.read(16 << 20):
                pass


def drop(files: Iterable[Path]) -> float:
    """Asks the kernel to drop the files; returns the share of their bytes that it kept, 0 to 1.

    It keeps files that a process has mapped, and everything on a file system in memory (tmpfs).
    """
    kept = total = 0
    for path in files:
        with path.open("rb") as file:
            # Only pages that are on the disk can be dropped.
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        kept += _resident_pages(path)
        total += _pages(path)
    return kept / total if total else 0.0


def _pages(path: Path) -> int:
    return -(-path.stat().st_size // mmap.PAGESIZE)


def _resident_pages(path: Path) -> int:
    """Pages of a file that are in memory, by mincore(2)."""
    if not _pages(path):
        return 0
    mapped = np.memmap(path, np.uint8, "r")
    resident = np.zeros(_pages(path), np.uint8)
    libc = ctypes.CDLL(None, use_errno=True)
    address, length = ctypes.c_void_p(mapped.ctypes.data), ctypes.c_size_t(mapped.nbytes)
    if libc.mincore(address, length, ctypes.c_void_p(resident.ctypes.data)):
        raise AieError(f"mincore of {path} failed: {os.strerror(ctypes.get_errno())}")
    return int(np.count_nonzero(resident & 1))
