"""Packages for the modelled NPU: xclbins in form, whose one section names designs.

They need no compiler. In place of a configuration they hold the name of the design in
`aie_kernels`, so that the simulator can configure itself.
"""

from __future__ import annotations

import hashlib
import json
import struct
import tempfile
import uuid as uuids
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ort_aie_ep.models.checked_json import parse_json
from ort_aie_ep.npu.packages.package import (
    KERNEL,
    MAX_KERNEL_NAME,
    OVERLAY,
    SECTION,
    XCLBIN_MAGIC,
    XCLBIN_SECTIONS,
    XCLBIN_UUID,
    Package,
    manifest,
    manifest_text,
    read_bytes,
    write_package,
    xclbin_uuid,
)
from ort_aie_ep.npu.terms.design import Design
from ort_aie_ep.npu.terms.errors import PackageError

# struct axlf of XRT's xclbin.h (2.25).
_LENGTH = 304
_USER_METADATA = 16  # axlf_section_kind
_NAMESPACE = uuids.UUID("5a1de09c-5c6e-4d5e-9d0b-6c1f4c8d2b37")  # of their UUIDs


@dataclass(frozen=True)
class SimulatedKernel:
    """A kernel of a simulated overlay, and the design that is its PDI.

    `design` is the design's name for `make_design`, `digest` the digest of its manifest, which
    reveals an overlay that another version of this library made.
    """

    name: str
    design: str
    digest: str


@dataclass(frozen=True)
class SimulatedOverlay:
    """The contents of an overlay for the modelled NPU. The PDIs have ids from 1, in this order."""

    device: str
    kernels: tuple[SimulatedKernel, ...]

    @property
    def content(self) -> bytes:
        """The section of the xclbin."""
        kernels = [
            {"name": kernel.name, "design": kernel.design, "manifest": kernel.digest}
            for kernel in self.kernels
        ]
        return json.dumps({"simulated": {"device": self.device, "kernels": kernels}}).encode()

    @property
    def uuid(self) -> str:
        """The UUID, which follows from the content."""
        return str(uuids.uuid5(_NAMESPACE, self.content.hex()))


def simulated_overlay(designs: Mapping[str, Design]) -> SimulatedOverlay:
    """The overlay for designs of one device, by their names for `make_design`.

    A single design has the kernel name that aiecc gives by default; each of several has a kernel
    with its own name.
    """
    kernels = []
    for name, design in designs.items():
        digest = hashlib.sha256(manifest_text(manifest(design)).encode()).hexdigest()
        kernels.append(SimulatedKernel(kernel_name(design, len(designs)), name, digest))
    return SimulatedOverlay(next(iter(designs.values())).device.name, tuple(kernels))


def kernel_name(design: Design, together: int) -> str:
    """The kernel of a design in an xclbin of `together` designs."""
    return KERNEL if together == 1 else design.package[:MAX_KERNEL_NAME]


def write_simulated_packages(folder: Path, designs: Mapping[str, Design]) -> list[Package]:
    """Write packages `folder`/<package> that share the xclbin `simulated_overlay` for `designs`.

    Raises PackageError as `write_package` does.
    """
    overlay = simulated_overlay(designs)
    packages = []
    for design in designs.values():
        kernel = kernel_name(design, len(designs))
        content = manifest(design, uuid=overlay.uuid, kernel=kernel)
        with tempfile.TemporaryDirectory() as scratch:
            path = Path(scratch) / OVERLAY
            path.write_bytes(_xclbin(overlay))
            packages.append(write_package(folder / design.package, content, path))
    return packages


def _xclbin(overlay: SimulatedOverlay) -> bytes:
    """An axlf header with a UUID, and one section."""
    content = overlay.content
    start = XCLBIN_SECTIONS + 8 + SECTION.size
    head = bytearray(start)
    head[: len(XCLBIN_MAGIC)] = XCLBIN_MAGIC
    struct.pack_into("<i", head, 8, -1)  # no signature
    struct.pack_into("<Q", head, _LENGTH, start + len(content))
    head[XCLBIN_UUID : XCLBIN_UUID + 16] = uuids.UUID(overlay.uuid).bytes
    struct.pack_into("<I", head, XCLBIN_SECTIONS, 1)
    SECTION.pack_into(head, XCLBIN_SECTIONS + 8, _USER_METADATA, b"simulated", start, len(content))
    return bytes(head + content)


def read_simulated_overlay(path: Path) -> SimulatedOverlay:
    """The contents of a simulated overlay.

    Raises PackageError for an xclbin of a real NPU, and for a file that is damaged.
    """
    found = xclbin_uuid(path)
    data = read_bytes(path)
    count = struct.unpack_from("<I", data, XCLBIN_SECTIONS)[0] if len(data) > 456 else 0
    # The table of sections follows the number of sections.
    if (
        count < 1
        or struct.unpack_from("<Q", data, _LENGTH)[0] != len(data)
        or len(data) < XCLBIN_SECTIONS + 8 + SECTION.size
    ):
        raise PackageError(f"{path} is damaged: its length does not match its header")
    kind, name, start, size = SECTION.unpack_from(data, XCLBIN_SECTIONS + 8)
    if kind != _USER_METADATA or not name.startswith(b"simulated"):
        raise PackageError(
            f"{path} is an overlay for a real NPU; the modelled NPU needs packages that "
            "ort_aie_ep.modelled_npu.device_process.write_packages makes"
        )
    content = parse_json(
        data[start : start + size], f"{path} is damaged: its section", PackageError
    ).field("simulated")
    kernels = tuple(
        SimulatedKernel(*(kernel.field(key).text() for key in ("name", "design", "manifest")))
        for kernel in content.field("kernels").elements()
    )
    overlay = SimulatedOverlay(content.field("device").text(), kernels)
    if overlay.uuid != found:
        raise PackageError(f"{path} is damaged: its UUID {found} does not match its content")
    return overlay
