"""The machine of a measurement: what its kernel says of it, and how fast it reads memory."""

from __future__ import annotations

import os
import platform
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ort_aie_ep.machine import cpu_model

# The flags in /proc/cpuinfo that kernels of ort_aie_ep or of a peer check.
_FEATURES = (
    "avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512vbmi", "avx512_bf16", "avx512_fp16",
    "amx_int8", "amx_bf16",
)  # fmt: skip


def described(proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> dict[str, str]:
    """This machine by what is said of it; what the kernel does not say is left out. `proc` and
    `sys` are the roots to look under."""
    first: dict[str, str] = {}
    for line in _text(proc / "cpuinfo").split("\n\n")[0].splitlines():
        name, _, value = line.partition(":")
        first[name.strip()] = value.strip()
    flags = first.get("flags", "").split()
    # CPUs of several generations have the same name.
    numbers = (f"{n.removeprefix('cpu ')} {first[n]}" for n in ("cpu family", "model", "stepping")
               if n in first)  # fmt: skip
    memory = [line.split()[1] for line in _text(proc / "meminfo").splitlines()[:1]]
    found = {
        "CPU": ", ".join([first.get("model name") or cpu_model(), *numbers]),
        "instructions": " ".join(name for name in _FEATURES if name in flags),
        "cores": f"{os.cpu_count()}{', virtual' if 'hypervisor' in flags else ''}",
        "caches": ", ".join(_caches(sys / "devices/system/cpu/cpu0/cache")),
        "memory": f"{(int(memory[0]) << 10) / 1e9:.0f} GB" if memory else "",
        "system": f"{platform.system()} {platform.release()}",
    }
    return {name: value for name, value in found.items() if value}


def _caches(folder: Path) -> list[str]:
    found = []
    for index in sorted(folder.glob("index*")):
        level, kind, size = (_text(index / name).strip() for name in ("level", "type", "size"))
        if kind != "Instruction" and size:
            found.append(f"L{level}{'d' if kind == 'Data' else ''} {size}")
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


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
