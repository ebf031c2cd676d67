"""How fast this machine reads memory, measured while the engines are idle."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

# For all threads together; larger than any cache of the machines this runs on.
_BYTES = 512 << 20
# Large enough to make a call's cost negligible; no thread waits long for the slowest.
_PIECE = 4 << 20


class ReadProbe:
    """A buffer for each thread, which all threads sum at the same time."""

    def __init__(self, threads: int) -> None:
        size = _BYTES // threads // _PIECE * _PIECE
        self._buffers = [np.full(size // 4, 1.0, np.float32) for _ in range(threads)]
        self._pool = ThreadPoolExecutor(threads)

    def measure(self, seconds: float = 0.2) -> float:
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
