"""Puts a model's files into the page cache, and removes them from it without being root."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from ort_aie_ep.errors import AieError

_READ_BYTES = 16 << 20


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
            while file.read(_READ_BYTES):
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
