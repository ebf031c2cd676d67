"""Design packages: a folder with `overlay.xclbin` and `manifest.json`.

The runtime knows a design by its manifest alone: where its fifos meet the shims, where the run-time
parameters of its workers are, and its sequences. `manifest(design)` derives it from
`configure(design)`, from which the compiler's MLIR is derived too, and a build compares the
addresses that the compiler reports.

An xclbin can hold the configurations (PDIs) of several designs, each behind its own kernel
(aiecc's --xclbin-input and --xclbin-kernel-name). Each design then has a package with a copy of the
xclbin and the name of its kernel. Packages whose xclbins have the same UUID share a hardware
context; the firmware loads another PDI there when a run uses another kernel.
"""

from __future__ import annotations

import json
import shutil
import struct
import tempfile
import uuid as uuids
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ort_aie_ep import platforms
from ort_aie_ep.formats.q4nx import SHIPPING, BlockForm
from ort_aie_ep.models.checked_json import Field, read_json
from ort_aie_ep.models.files import is_regular, open_regular
from ort_aie_ep.npu.terms import costs
from ort_aie_ep.npu.terms.configuration import configure
from ort_aie_ep.npu.terms.design import Design, package_name
from ort_aie_ep.npu.terms.device import DEVICES, TILES, Device
from ort_aie_ep.npu.terms.errors import DesignError, PackageError

OVERLAY = "overlay.xclbin"
MANIFEST = "manifest.json"
FORMAT = 1  # of manifests
KERNEL = "MLIR_AIE"  # the name that mlir-aie's aiecc gives a kernel by default
MAX_KERNEL_NAME = 31  # xclbinutil keeps it twice, as name:name, in 64 characters

#: The costs by which the runtime divides streams into runs, so that each ends before the driver's
#: watchdog acts: those of the slowest machine that was published. Cycles, and bytes per cycle.
LIMITS = {
    "write32": costs.WRITE32, "maskwrite": costs.MASKWRITE, "blockwrite": costs.BLOCKWRITE,
    "blockwrite_word": costs.BLOCKWRITE_WORD, "ddr_patch": costs.DDR_PATCH,
    "tct_wait": costs.TCT_WAIT, "gate_idle": costs.SLOWEST_GATE_IDLE,
    "gate_pipelined": costs.GATE_PIPELINED, "stream": costs.STREAM,
}  # fmt: skip

# struct axlf of XRT's xclbin.h (2.25): magic, signature length, reserved, key block, unique id,
# then the header, in which the uuid follows lengths, times, versions, mode and platform name.
XCLBIN_MAGIC = b"xclbin2\0"
XCLBIN_UUID = 416
XCLBIN_SECTIONS = 448  # their number; the table of sections follows 8 bytes later
SECTION = struct.Struct("<I16s4xQQ")  # struct axlf_section_header: kind, name, offset, size


def manifest(
    design: Design,
    *,
    toolchain: Mapping[str, str] | None = None,
    uuid: str | None = None,
    kernel: str = KERNEL,
) -> dict[str, Any]:
    """The manifest of `design`, as JSON values.

    `toolchain` (name: version) and `uuid` (of the xclbin) are None before a build; `kernel` is the
    design's kernel in an xclbin that has several. Raises DesignError where the design cannot be
    configured.
    """
    device, plan, form = design.device, configure(design), design.form
    # Without it, weights are in the shipping form, or there are none that are quantised.
    stated = design.package != design.name
    weights = {"weights": {"group": form.group, "minima": int(form.minima)}} if stated else {}
    memory = costs.DDR_NPU1 if device.architecture == "aie2" else costs.SLOWEST_DDR
    fifos = {
        name: {
            "column": port.tile.column,
            "channel": port.index,
            "direction": port.direction,
            "packet": design.fifos[name].packet,
        }
        for name, port in plan.shim_ports.items()
    }
    return {
        "format": FORMAT,
        "name": design.name,
        "device": device.name,
        "generation": device.generation,
        "rows": device.rows,
        "columns": device.columns,
        "kernel": kernel,
        **weights,
        "clock_hz": int(device.clock_hz),
        "ddr_bytes_per_second": int(memory.value),
        "ddr_write_bytes_per_second": int(memory.value),
        "costs": {name: cost.value for name, cost in LIMITS.items()},
        "fifos": fifos,
        "workers": {
            name: {
                "column": w.worker.tile.column,
                "row": w.worker.tile.row,
                "parameters": list(w.worker.parameters),
                "address": w.parameters,
                "lock": w.go.id,
            }
            for name, w in plan.workers.items()
        },
        # Nothing on a shim is static: object fifos leave all of its descriptors to the streams.
        "bds": {
            str(column): list(range(TILES["shim"].descriptors))
            for column in sorted({port.tile.column for port in plan.shim_ports.values()})
        },
        "sequences": {name: s.to_json() for name, s in design.sequences.items()},
        "toolchain": None if toolchain is None else dict(toolchain),
        "uuid": uuid,
    }


def predicted(manifest: Mapping[str, Any], device: Device) -> dict[str, Any]:
    """A manifest of `device` with the costs of predictions instead of the limits of runs."""
    read, written = costs.ddr(device.architecture)
    clock = costs.clock_hz(device)
    own = {"gate_idle": costs.GATE_IDLE.value, "stream": costs.shim_rate(device) / clock}
    return {
        **manifest,
        "clock_hz": int(clock),
        "ddr_bytes_per_second": int(read.value),
        "ddr_write_bytes_per_second": int(written.value),
        "costs": {**manifest["costs"], **own},
    }


def validate(manifest: Mapping[str, Any], where: str) -> None:
    """Raise PackageError, naming the place, unless this library can read `manifest`.

    The runtime takes the number of rows and columns and the generation from the manifest, without
    knowing devices; so those of `device` are compared here.
    """
    from ort_aie_ep import _npu  # finding packages does without

    try:
        _npu.StreamCache(manifest_text(manifest))
    except ValueError as error:
        raise PackageError(f"{where}: {error}") from error
    read = Field(manifest, where, "", PackageError)
    device = DEVICES[read.field("device").one_of(DEVICES)]
    for key in ("generation", "rows", "columns"):
        expected = getattr(device, key)
        read.field(key).require(manifest[key] == expected, f"{expected} for {device.name}")


def build_runs(
    manifest: Mapping[str, Any],
    sequence: str,
    parameters: Mapping[str, int],
    places: Mapping[str, tuple[int, int]] | None = None,
) -> list[Any]:
    """The runs of a sequence for a shape, as `_npu.build` gives them.

    `places` are (buffer, byte offset) of the arguments; without them each has its own buffer, in
    order. Raises DesignError for a shape that the sequence refuses.
    """
    from ort_aie_ep import _npu

    names = [a["name"] for a in manifest["sequences"][sequence]["arguments"]]
    places = places or {name: (index, 0) for index, name in enumerate(names)}
    step = {"sequence": sequence, "parameters": dict(parameters), "arguments": dict(places)}
    try:
        return list(_npu.build(manifest_text(manifest), [step]))
    except ValueError as error:
        raise DesignError(str(error)) from error


def form_of(manifest: Mapping[str, Any]) -> BlockForm:
    """The form of Q4NX that the design of a manifest reads."""
    stated = manifest.get("weights")
    return BlockForm(4, stated["group"], bool(stated["minima"])) if stated else SHIPPING


def package_of(manifest: Mapping[str, Any]) -> str:
    """The name of a manifest's package."""
    return package_name(manifest["name"], form_of(manifest))


def xclbin_uuid(path: Path) -> str:
    """The UUID in the header of an xclbin. Raises PackageError if `path` cannot be read as one."""
    header = read_bytes(path, XCLBIN_UUID + 16)
    if len(header) < XCLBIN_UUID + 16 or not header.startswith(XCLBIN_MAGIC):
        raise PackageError(f"{path} is not an xclbin: it does not start with an axlf header")
    return str(uuids.UUID(bytes=struct.unpack_from("16s", header, XCLBIN_UUID)[0]))


def xclbin_section(path: Path, kind: int) -> bytes:
    """The first section of a kind (axlf_section_kind) of an xclbin.

    Raises PackageError if `path` is not an xclbin, is damaged, or has no such section.
    """
    data = read_bytes(path)
    xclbin_uuid(path)
    table = XCLBIN_SECTIONS + 8  # follows the number of sections
    count = struct.unpack_from("<I", data, XCLBIN_SECTIONS)[0] if len(data) >= table else 0
    if len(data) < table + count * SECTION.size:
        raise PackageError(f"{path} is damaged: its table of {count} sections is cut off")
    for i in range(count):
        found, _, start, size = SECTION.unpack_from(data, table + i * SECTION.size)
        if found == kind:
            if start + size > len(data):
                raise PackageError(f"{path} is damaged: section {i} is cut off")
            return data[start : start + size]
    raise PackageError(f"{path} has no section of kind {kind}")


def read_bytes(path: Path, size: int = -1) -> bytes:
    """The first `size` bytes of a file, or all. Raises PackageError if it cannot be read."""
    try:
        with open_regular(path) as file:
            return file.read(size)
    except OSError as error:
        raise PackageError(f"{path} cannot be read: {error.strerror}") from error


@dataclass(frozen=True)
class Package:
    """A design package that has been read and validated."""

    folder: Path
    manifest: dict[str, Any]

    @property
    def overlay(self) -> Path:
        """The xclbin."""
        return self.folder / OVERLAY


def manifest_text(manifest: Mapping[str, Any]) -> str:
    """The manifest as it is in the file."""
    return json.dumps(manifest) + "\n"


def write_package(folder: Path, manifest: Mapping[str, Any], overlay: Path) -> Package:
    """Write `manifest` and a copy of the xclbin `overlay` to `folder`, atomically.

    The files are written beside `folder` and then renamed. This replaces a package that is already
    there; if several processes write at once, the result is one of their packages. Raises
    PackageError when `folder` exists and is not a package, or the manifest is not valid or too
    long.
    """
    validate(manifest, str(folder / MANIFEST))
    with replaced_folder(folder, MANIFEST) as new:
        shutil.copyfile(overlay, new / OVERLAY)
        (new / MANIFEST).write_text(manifest_text(manifest))
    return Package(folder, dict(manifest))


def require_replaceable(folder: Path, manifest: str) -> None:
    """Raise PackageError if `folder` exists and is not a package, with a file `manifest`."""
    if folder.exists() and not (folder / manifest).is_file():
        raise PackageError(f"{folder} exists and is not a design package; choose another folder")


@contextmanager
def replaced_folder(folder: Path, manifest: str) -> Iterator[Path]:
    """A folder that becomes `folder` when the block ends, and disappears when it fails.

    It replaces a `folder` that has a file `manifest`. Raises PackageError if `folder` has none.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (
        # Other writers stay out while one checks the contents and replaces them.
        platforms.locked_folder(folder.parent, wait=True),
        tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as beside,
    ):
        require_replaceable(folder, manifest)
        new = Path(beside) / "new"
        new.mkdir()
        yield new
        with suppress(FileNotFoundError):
            folder.rename(Path(beside) / "old")
        new.rename(folder)


def read_package(folder: Path, *, device: str | None = None) -> Package:
    """The package in `folder`. Raises PackageError, which names what does not fit.

    With `device`, the package must be for that device: an overlay of another one runs, completes
    and returns zeros.
    """
    path = folder / MANIFEST
    if not is_regular(path):
        raise PackageError(f"{folder} is not a design package: it has no {MANIFEST}")
    content = read_json(path, PackageError).object()
    validate(content, str(path))
    if device is not None and content["device"] != device:
        raise PackageError(
            f"{folder} is a package for {content['device']}, but the device is {device}; "
            f"build it with: ort-aie kernels build {package_of(content)} --device {device}"
        )
    package = Package(folder, content)
    if not package.overlay.is_file():
        raise PackageError(f"{folder} has no {OVERLAY}")
    if content["uuid"] is not None:
        found = xclbin_uuid(package.overlay)
        if found != content["uuid"]:
            raise PackageError(
                f"{path} belongs to the xclbin {content['uuid']}, but {OVERLAY} beside it is "
                f"{found}; build the package again"
            )
    return package
