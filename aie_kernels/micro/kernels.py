"""Copies, for measurements. Cycles are a count of stores, one a cycle, see `cycles`."""

from __future__ import annotations

from collections.abc import Callable

from ort_aie_ep.aie_kernels.cycles import CALL, LOAD_BYTES
from ort_aie_ep.npu.terms.kernel import Array, Kernel


def _copied(bytes: int) -> Callable[[str, tuple[int, ...]], float]:
    return lambda arch, scalars: CALL + bytes / LOAD_BYTES[arch]


def _copy(name: str, count: int) -> Kernel:
    return Kernel(
        name, "micro/copy.cc", (Array("bf16", count), Array("bf16", count)), _copied(2 * count)
    )


COPY_LARGE = _copy("copy_large", 4096)
COPY_SMALL = _copy("copy_small", 256)
