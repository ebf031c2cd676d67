"""How much of a model's weights the system holds in pages of 2 MB (docs/performance.md)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ort_aie_ep.disk import size_text
from ort_aie_ep.machine import Finding

_REMEDY = (
    "none of the {} in memory. The next session changes that, unless another program uses the file "
    "or this kernel or file system has no such pages for files; then ort_aie.weights=copied has "
    "them, for as much memory again"
)


def weight_pages(files: Iterable[Path]) -> Finding | None:
    """The share of what is in memory of data files; None where the system does not tell."""
    from ort_aie_ep import _native

    known = [found for file in files if (found := _native.cached_bytes(str(file))) is not None]
    if not known:
        return None
    cached, large = (sum(counts) for counts in zip(*known, strict=True))
    name = "weights in pages of 2 MB"
    if not cached:
        return Finding(name, "not in memory now")
    if not large:
        return Finding(name, "", _REMEDY.format(size_text(cached)))
    return Finding(name, f"{large / cached:.0%} of the {size_text(cached)} in memory")
