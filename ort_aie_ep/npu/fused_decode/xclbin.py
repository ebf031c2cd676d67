"""The kernel in an xclbin, by the name that XRT will use."""

from __future__ import annotations

import re
from pathlib import Path

from ort_aie_ep.npu.packages.package import KERNEL, xclbin_section
from ort_aie_ep.npu.terms.errors import PackageError

_EMBEDDED_METADATA = 2  # axlf_section_kind: XML, which has the kernels' names
_KERNEL = re.compile(rb'<kernel\b[^>]*\bname="([^"]{1,256})"')


def kernel_of(path: Path) -> str:
    """The name of the one kernel that mlir-aie's tools made.

    Raises PackageError for an xclbin that is damaged, or does not have exactly one such kernel.
    """
    found = _KERNEL.findall(xclbin_section(path, _EMBEDDED_METADATA))
    names: list[str] = [name.decode(errors="replace") for name in found]
    kernels = [name for name in names if KERNEL in name]
    if len(kernels) != 1:
        has = ", ".join(names) or "none"
        raise PackageError(f"{path} must have one kernel with {KERNEL} in its name; it has {has}")
    return kernels[0]
