"""Design packages on this machine: where the xrt target looks for them, and which fit."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ort_aie_ep import platforms
from ort_aie_ep.formats.q4nx import FORMS, BlockForm
from ort_aie_ep.npu.packages.package import MANIFEST, Package, package_of, read_package
from ort_aie_ep.npu.terms.errors import PackageError

# What a device needs for all that it can do: the first decodes, the others are for prompts.
DESIGNS: Mapping[str, tuple[str, ...]] = {
    "npu1": ("fused_dqp", "dequant", "gemm"),  # attention has no kernels for AIE2
    "npu2": ("decode", "dequant", "gemm", "flow_qkv"),
}
FUSED_LAYER = "fused_layer"  # beside `decode`, for whole layers of a token


def packages(forms: Iterable[BlockForm] = FORMS) -> frozenset[str]:
    """The packages that the executor uses if they are there, for weights of these forms."""
    from ort_aie_ep import _npu

    return frozenset(name for form in forms for name in _npu.packages(form.group, form.minima))


@dataclass(frozen=True)
class Overlays:
    """The overlays for a device.

    Attributes:
        found: design → folder of the package that is used.
        refused: why packages that were found are not used.
        missing: designs without a package.
    """

    found: Mapping[str, Path]
    refused: tuple[str, ...]
    missing: tuple[str, ...]


def overlay_folders() -> tuple[Path, ...]:
    """The folders to look in, in this order.

    Those of ORT_AIE_OVERLAYS (separated by :), then `overlays` in this package's folder, then
    `ort_aie_ep/overlays` in the user's cache.
    """
    given = [Path(word) for word in os.environ.get("ORT_AIE_OVERLAYS", "").split(":") if word]
    cached = platforms.cache_home() / "ort_aie_ep" / "overlays"
    return (*given, Path(__file__).parents[1] / "overlays", cached)


def find_overlays(device: str, folders: Sequence[Path], designs: Collection[str] = ()) -> Overlays:
    """The packages of `designs` for `device` (npu1 or npu2), found as the xrt target finds them.

    Without `designs`, those of DESIGNS.

    A design's package is F/DESIGN or F/DEVICE/DESIGN, with F one of `folders`; the first that fits
    is used. No overlay is loaded.
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
    name, uuid = package_of(package.manifest), package.manifest["uuid"]
    if name != design:
        raise PackageError(f"{package.folder / MANIFEST} is for the design {name}, not {design}")
    if uuid is None:
        raise PackageError(f"{package.folder / MANIFEST} has no uuid: the package was never built")
