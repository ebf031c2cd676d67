"""Design packages on this machine: where the xrt target looks for them, and which ones fit."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ort_aie_ep.npu.packages.package import MANIFEST, Package, read_package
from ort_aie_ep.npu.vocabulary.errors import PackageError

# What the executor asks for: the first decodes, the others are for prompts.
DESIGNS: Mapping[str, tuple[str, ...]] = {
    "npu1": ("fused_dqp", "dequant", "gemm"),  # attention has no kernels for AIE2
    "npu2": ("decode", "dequant", "gemm", "flow_qkv"),
}
# What it takes where it is there: parts of `decode` by themselves too.
TAKEN = ("decode", "fused_dqp", "flow_kv", "dequant", "gemm", "flow_qkv")


@dataclass(frozen=True)
class Overlays:
    """What there is for a device.

    Attributes:
        found: design to folder of the package that is taken.
        refused: why packages that were found are not taken.
        missing: designs that were looked for and have no package.
    """

    found: Mapping[str, Path]
    refused: tuple[str, ...]
    missing: tuple[str, ...]


def overlay_folders() -> tuple[Path, ...]:
    """The folders that are looked into, in this order.

    Those of ORT_AIE_OVERLAYS (with : between), then `overlays` in this package's folder, then
    `ort_aie_ep/overlays` in the user's cache.
    """
    given = [Path(word) for word in os.environ.get("ORT_AIE_OVERLAYS", "").split(":") if word]
    cache = os.environ.get("XDG_CACHE_HOME", "")
    home = Path(cache) if cache.startswith("/") else Path.home() / ".cache"
    return (*given, Path(__file__).parents[1] / "overlays", home / "ort_aie_ep" / "overlays")


def find_overlays(device: str, folders: Sequence[Path], designs: Sequence[str] = ()) -> Overlays:
    """The packages of `designs` for `device` (npu1 or npu2), found as the xrt target does it.

    Without `designs`, those of DESIGNS.

    A design's package is F/DESIGN or F/DEVICE/DESIGN, F being one of `folders`; the first that fits
    is taken. No overlay is loaded.
    """
    found: dict[str, Path] = {}
    refused = []
    wanted = tuple(designs) or DESIGNS[device]
    for design in wanted:
        places = [place / design for folder in folders for place in (folder, folder / device)]
        for place in places:
            if design in found or not (place / MANIFEST).is_file():
                continue
            try:
                _check(read_package(place, device=device), design)
            except PackageError as error:
                refused.append(str(error))
            else:
                found[design] = place
    missing = tuple(design for design in wanted if design not in found)
    return Overlays(found, tuple(refused), missing)


def _check(package: Package, design: str) -> None:
    name, uuid = package.manifest["name"], package.manifest["uuid"]
    if name != design:
        raise PackageError(f"{package.folder / MANIFEST} is of the design {name}, not of {design}")
    if uuid is None:
        raise PackageError(f"{package.folder / MANIFEST} has no uuid: the package was never built")
