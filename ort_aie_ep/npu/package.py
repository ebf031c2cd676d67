"""Design packages: a folder with `overlay.xclbin` and `manifest.json`.

The manifest is all that the runtime knows of a design: where its fifos meet the shims, where the
run-time parameters of its workers lie, and its sequences. `manifest(design)` makes it from
`configure(design)`; the lowering to IRON pins what is written there and compares it with what the
compiler reports.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
import tempfile
import uuid as uuids
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ort_aie_ep.npu import costs
from ort_aie_ep.npu.configuration import configure
from ort_aie_ep.npu.design import Design
from ort_aie_ep.npu.device import DEVICES, MAX_PACKET_ID, TILES, WORD
from ort_aie_ep.npu.errors import DesignError

FORMAT = 1
OVERLAY = "overlay.xclbin"
MANIFEST = "manifest.json"
KERNEL = "MLIR_AIE"  # mlir-aie's aiecc gives this name to the kernel of every xclbin

# struct axlf of XRT's xclbin.h (2.25): magic, signature length, reserved, key block, unique id,
# then the header, in which the uuid follows lengths, times, versions, mode and platform name.
_XCLBIN_MAGIC = b"xclbin2\0"
_XCLBIN_LENGTH = 304
_XCLBIN_UUID = 416
_XCLBIN_SECTIONS = 448  # their number; the table of sections follows 8 bytes later
_SECTION = struct.Struct("<I16s4xQQ")  # struct axlf_section_header: kind, name, offset, size
_USER_METADATA = 16  # axlf_section_kind
_SIMULATED = uuids.UUID("5a1de09c-5c6e-4d5e-9d0b-6c1f4c8d2b37")  # namespace of their UUIDs


class PackageError(DesignError):
    """A folder that is no design package, or one that does not fit this library or device."""


def manifest(
    design: Design, *, toolchain: Mapping[str, str] | None = None, uuid: str | None = None
) -> dict[str, Any]:
    """The manifest of `design`, as it stands in JSON.

    `toolchain` (name: version) and `uuid` (of the xclbin) are None before a build. Raises
    DesignError where the design cannot be configured.
    """
    device, plan = design.device, configure(design)
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
        "kernel": KERNEL,
        "clock_hz": int(device.clock_hz),
        "ddr_bytes_per_second": int(costs.ddr(device.architecture)[0].value),
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


def xclbin_uuid(path: Path) -> str:
    """The UUID in the header of an xclbin. Raises PackageError if `path` is none."""
    with path.open("rb") as file:
        header = file.read(_XCLBIN_UUID + 16)
    if len(header) < _XCLBIN_UUID + 16 or not header.startswith(_XCLBIN_MAGIC):
        raise PackageError(f"{path} is not an xclbin: it does not start with an axlf header")
    return str(uuids.UUID(bytes=struct.unpack_from("16s", header, _XCLBIN_UUID)[0]))


@dataclass(frozen=True)
class Package:
    """A design package that has been read and validated."""

    folder: Path
    manifest: dict[str, Any]

    @property
    def overlay(self) -> Path:
        """The xclbin."""
        return self.folder / OVERLAY


def write_package(folder: Path, manifest: Mapping[str, Any], overlay: Path) -> Package:
    """Write `manifest` and a copy of the xclbin `overlay` to `folder`, beside and renamed.

    A package that is already there is replaced. Raises PackageError when `folder` is something
    else, or the manifest is not valid.
    """
    validate(manifest, str(folder / MANIFEST))
    if folder.exists() and not (folder / MANIFEST).is_file():
        raise PackageError(f"{folder} exists and is no design package; give another folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as beside:
        new = Path(beside) / "new"
        new.mkdir()
        shutil.copyfile(overlay, new / OVERLAY)
        (new / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
        if folder.exists():
            folder.rename(Path(beside) / "old")
        new.rename(folder)
    return Package(folder, dict(manifest))


def read_package(folder: Path, *, device: str | None = None) -> Package:
    """The package in `folder`. Raises PackageError that names what does not fit.

    With `device`, the package must be for that one: an overlay of another device runs, completes
    and gives zeros.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise PackageError(f"{folder} is no design package: it has no {MANIFEST}")
    try:
        content = json.loads(path.read_text())
    except ValueError as error:
        raise PackageError(f"{path} is not JSON: {error}") from error
    validate(content, str(path))
    if device is not None and content["device"] != device:
        raise PackageError(
            f"{folder} is a package for {content['device']}, and the device is {device}; "
            f"build it with: ort-aie kernels build {content['name']} --device {device}"
        )
    package = Package(folder, content)
    if not package.overlay.is_file():
        raise PackageError(f"{folder} has no {OVERLAY}")
    if content["uuid"] is not None:
        found = xclbin_uuid(package.overlay)
        if found != content["uuid"]:
            raise PackageError(
                f"{path} belongs to the xclbin {content['uuid']}, and {OVERLAY} beside it is "
                f"{found}; build the package again"
            )
    return package


# --- packages for the modelled NPU -----------------------------------------------------------------
@dataclass(frozen=True)
class SimulatedOverlay:
    """What stands in an overlay for the modelled NPU, in the place of a configuration.

    `design` is the name under which `aie_kernels` has the design, `digest` that of its manifest: an
    overlay that another version of this library made is told by it.
    """

    design: str
    device: str
    digest: str

    @property
    def content(self) -> bytes:
        """The section of the xclbin."""
        fields = {"design": self.design, "device": self.device, "manifest": self.digest}
        return json.dumps({"simulated": fields}).encode()

    @property
    def uuid(self) -> str:
        """The UUID, which follows from the content."""
        return str(uuids.uuid5(_SIMULATED, self.content.hex()))


def simulated_overlay(name: str, design: Design) -> SimulatedOverlay:
    """The overlay for the modelled NPU of the design that `aie_kernels` has as `name`."""
    digest = hashlib.sha256(json.dumps(manifest(design), sort_keys=True).encode()).hexdigest()
    return SimulatedOverlay(name, design.device.name, digest)


def write_simulated_package(folder: Path, name: str, design: Design) -> Package:
    """Write a package for the modelled NPU, as `simulated_overlay`; no compiler is needed.

    Its overlay is an xclbin in form: an axlf header with a UUID, and one section that names the
    design. Raises PackageError as `write_package` does.
    """
    overlay = simulated_overlay(name, design)
    start = _XCLBIN_SECTIONS + 8 + _SECTION.size
    head = bytearray(start)
    head[: len(_XCLBIN_MAGIC)] = _XCLBIN_MAGIC
    struct.pack_into("<i", head, 8, -1)  # no signature
    struct.pack_into("<Q", head, _XCLBIN_LENGTH, start + len(overlay.content))
    head[_XCLBIN_UUID : _XCLBIN_UUID + 16] = uuids.UUID(overlay.uuid).bytes
    struct.pack_into("<I", head, _XCLBIN_SECTIONS, 1)
    _SECTION.pack_into(
        head, _XCLBIN_SECTIONS + 8, _USER_METADATA, b"simulated", start, len(overlay.content)
    )
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / OVERLAY
        path.write_bytes(head + overlay.content)
        return write_package(folder, manifest(design, uuid=overlay.uuid), path)


def read_simulated_overlay(path: Path) -> SimulatedOverlay:
    """What a simulated overlay holds.

    Raises PackageError for an xclbin of a real NPU, and for a file that is damaged.
    """
    found = xclbin_uuid(path)
    data = path.read_bytes()
    count = struct.unpack_from("<I", data, _XCLBIN_SECTIONS)[0] if len(data) > 456 else 0
    if struct.unpack_from("<Q", data, _XCLBIN_LENGTH)[0] != len(data) or count < 1:
        raise PackageError(f"{path} is damaged: its length is not the one in its header")
    kind, name, start, size = _SECTION.unpack_from(data, _XCLBIN_SECTIONS + 8)
    if kind != _USER_METADATA or not name.startswith(b"simulated"):
        raise PackageError(
            f"{path} is an overlay for a real NPU; the modelled one takes packages that "
            "ort_aie_ep.npu.device_process.write_packages makes"
        )
    try:
        fields = json.loads(data[start : start + size])["simulated"]
        overlay = SimulatedOverlay(fields["design"], fields["device"], fields["manifest"])
    except (ValueError, KeyError, TypeError) as error:
        raise PackageError(f"{path} is damaged: {error}") from error
    if overlay.uuid != found:
        raise PackageError(f"{path} is damaged: its UUID {found} does not fit its content")
    return overlay


# --- validation -----------------------------------------------------------------------------------
def validate(manifest: Any, where: str) -> None:
    """Raise PackageError, naming the place, unless `manifest` is one that this library reads."""
    check = _Checker(where)
    check.table(manifest, "the manifest", {"format": int})
    if manifest["format"] != FORMAT:
        raise PackageError(
            f"{where}: format {manifest['format']}, and this library reads format {FORMAT}; "
            "build the package again with this version"
        )
    check.table(
        manifest, "the manifest",
        {
            "name": str, "device": str, "generation": int, "rows": int, "columns": int,
            "kernel": str, "clock_hz": int, "ddr_bytes_per_second": int, "fifos": dict,
            "workers": dict, "bds": dict, "sequences": dict, "toolchain": (dict, type(None)),
            "uuid": (str, type(None)),
        },
    )  # fmt: skip
    device = DEVICES.get(manifest["device"])
    check.that(device is not None, "device", manifest["device"], f"one of {', '.join(DEVICES)}")
    assert device is not None
    for key, want in (
        ("generation", device.generation), ("rows", device.rows), ("columns", device.columns),
    ):  # fmt: skip
        check.that(manifest[key] == want, key, manifest[key], f"{want} for {device.name}")
    columns = range(device.columns)
    for name, fifo in manifest["fifos"].items():
        at = f"fifos.{name}"
        check.table(
            fifo, at,
            {"column": int, "channel": int, "direction": str, "packet": (int, type(None))},
        )  # fmt: skip
        check.inside(fifo, at, column=columns, channel=range(TILES["shim"].mm2s))
        check.that(
            fifo["direction"] in ("MM2S", "S2MM"), f"{at}.direction", fifo["direction"],
            "MM2S or S2MM",
        )  # fmt: skip
        if fifo["packet"] is not None:
            check.inside(fifo, at, packet=range(MAX_PACKET_ID + 1))
    for name, worker in manifest["workers"].items():
        at = f"workers.{name}"
        check.table(
            worker, at,
            {"column": int, "row": int, "parameters": list, "address": int, "lock": int},
        )  # fmt: skip
        room = TILES["core"].memory - WORD * len(worker["parameters"])
        check.inside(
            worker, at, column=columns, row=range(2, device.rows),
            address=range(0, room + 1, WORD), lock=range(TILES["core"].locks),
        )  # fmt: skip
    for column, ids in manifest["bds"].items():
        legal = column.isdecimal() and int(column) in columns and isinstance(ids, list)
        legal = legal and all(i in range(TILES["shim"].descriptors) for i in ids)
        check.that(legal, f"bds.{column}", ids, "a column: BD ids 0..15")
    for name, sequence in manifest["sequences"].items():
        at = f"sequences.{name}"
        check.table(sequence, at, {"parameters": list, "arguments": list, "body": list})
        names = []
        for i, argument in enumerate(sequence["arguments"]):
            here = f"{at}.arguments[{i}]"
            check.table(argument, here, {"name": str, "direction": str, "bytes": object})
            names.append(argument["name"])
        check.body(sequence["body"], f"{at}.body", manifest, names)


class _Checker:
    def __init__(self, where: str) -> None:
        self._where = where

    def that(self, legal: object, at: str, found: object, wanted: str) -> None:
        if not legal:
            raise PackageError(f"{self._where}: {at} is {found!r}; expected {wanted}")

    def table(self, value: Any, at: str, keys: Mapping[str, type | tuple[type, ...]]) -> None:
        self.that(isinstance(value, dict), at, value, "an object")
        for key, kind in keys.items():
            if key not in value:
                raise PackageError(f"{self._where}: {at} has no key {key!r}")
            kinds = kind if isinstance(kind, tuple) else (kind,)
            legal = isinstance(value[key], kinds) and not isinstance(value[key], bool)
            self.that(legal, f"{key!r} of {at}", value[key], " or ".join(k.__name__ for k in kinds))

    def inside(self, value: Mapping[str, Any], at: str, **ranges: range) -> None:
        for key, legal in ranges.items():
            step = "" if legal.step == 1 else f", a multiple of {legal.step}"
            wanted = f"{legal.start}..{legal[-1]}{step}" if len(legal) else "nothing: no room"
            self.that(value[key] in legal, f"{at}.{key}", value[key], wanted)

    def body(
        self, body: Iterable[Any], at: str, manifest: Mapping[str, Any], arguments: list[str]
    ) -> None:
        fifos, workers = manifest["fifos"], manifest["workers"]
        for i, statement in enumerate(body):
            here = f"{at}[{i}]"
            self.that(isinstance(statement, dict), here, statement, "a statement")
            kind = next((k for k in _STATEMENTS if k in statement), None)
            self.that(kind, here, sorted(statement), f"one of {', '.join(_STATEMENTS)}")
            assert kind is not None
            self.table(statement, here, _STATEMENTS[kind])
            if kind == "transfer":
                self._known(statement["transfer"], f"{here}.transfer", fifos)
                self._known(statement["argument"], f"{here}.argument", arguments)
            elif kind == "start":
                self._known(statement["start"], f"{here}.start", workers)
                want = len(workers[statement["start"]]["parameters"])
                self.that(
                    len(statement["values"]) == want, f"{here}.values", statement["values"],
                    f"{want} values, as worker {statement['start']} has parameters",
                )  # fmt: skip
            elif kind == "wait":
                for name in statement["wait"]:
                    self._known(name, f"{here}.wait", fifos)
            elif "do" in statement:
                self.body(statement["do"], f"{here}.do", manifest, arguments)

    def _known(self, name: str, at: str, names: Iterable[str]) -> None:
        self.that(name in names, at, name, f"one of {', '.join(names)}")


_STATEMENTS: dict[str, dict[str, type | tuple[type, ...]]] = {
    "let": {"let": str, "value": object},
    "require": {"require": object, "message": str},
    "for": {"for": str, "count": object, "do": list},
    "if": {"if": object, "do": list},
    "transfer": {"transfer": str, "argument": str, "offset": object, "run": object, "outer": list},
    "start": {"start": str, "values": list},
    "wait": {"wait": list},
    "work": {"work": object},
    "cut": {},
}
