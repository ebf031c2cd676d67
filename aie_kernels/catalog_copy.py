"""Copies, for measurements. Cycles are a count of stores, one a cycle, as in `catalog_linear`."""

from __future__ import annotations

from collections.abc import Callable

from ort_aie_ep.npu.vocabulary.kernel import Array, Kernel

from .catalog_linear import CALL

_STORE_BYTES = {"aie2": 32, "aie2p": 64}


def _copied(bytes: int) -> Callable[[str, tuple[int, ...]], float]:
    return lambda arch, scalars: CALL + bytes / _STORE_BYTES[arch]


def _copy(name: str, count: int) -> Kernel:
    return Kernel(name, "copy.cc", (Array("bf16", count), Array("bf16", count)), _copied(2 * count))


COPY_LARGE = _copy("copy_large", 4096)
COPY_SMALL = _copy("copy_small", 256)
