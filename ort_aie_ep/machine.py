"""What this machine has: its CPU, and an AMD NPU with everything a program needs to use it."""

from __future__ import annotations

import ctypes.util
import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ort_aie_ep import platforms

# PCI ids from amdxdna's tables; chips with the same device id differ in their revision.
_AMD = 0x1022
_NPU1, _NPU2 = 0x1502, 0x17F0
_NPU2_REVISIONS = {0x10: "Strix", 0x11: "Strix Halo", 0x20: "Krackan"}

# Beside the core library, which loads it only when an NPU is requested.
XRT_TARGET = "libort_aie_xrt.so"

_XRT_LIBRARIES = ("xrt_coreutil", "xrt_driver_xdna")

_GET_NPU = (
    "an AMD Ryzen AI processor has one (Phoenix, Hawk Point, Strix, Strix Halo, Krackan); it may "
    "be switched off in the firmware's setup, as NPU or IPU device"
)
_ON_LINUX = "ort_aie_ep uses the NPU on Linux only"
_GET_DRIVER = (
    "the amdxdna driver is part of Linux 6.14 and later (its firmware is in linux-firmware); for "
    "older kernels build it from https://github.com/amd/xdna-driver"
)
_GET_NODE = (
    "the driver has not started the NPU, often because its firmware (linux-firmware, amdnpu/) is "
    "missing: see what 'journalctl -k -g amdxdna' says"
)
_GET_ACCESS = (
    "this user may not open it: run 'sudo usermod -aG {group} $USER' (or with the group that owns "
    "it here) and log in again"
)
_GET_XRT = (
    "install XRT with its NPU plugin: package libxrt-npu2 on Debian and on Ubuntu 26.04, xrt on "
    "Fedora; elsewhere build both from https://github.com/amd/xdna-driver"
)
_GET_MEMLOCK = (
    "the NPU pins buffers: allow unlimited locked memory with '* - memlock unlimited' in "
    "/etc/security/limits.d/, and log in again"
)


@dataclass(frozen=True)
class Finding:
    """One thing that was looked for.

    Attributes:
        name: what it is.
        found: where it is or which one, empty if it is missing.
        remedy: how to get it, empty if it is there or not available.
    """

    name: str
    found: str
    remedy: str = ""


def cpu_model() -> str:
    """The CPU's name, from the kernel."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def physical_cores(sys: Path = Path("/sys")) -> int:
    """Cores that this process may use, counting siblings of a core once: the number of threads
    that ONNX Runtime uses by default. `sys` is the root to look under."""
    cores = set()
    for cpu in platforms.usable_cpus():
        topology = sys / f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        cores.add(topology.read_text() if topology.is_file() else str(cpu))
    return len(cores)


def find_npu(sys: Path = Path("/sys"), dev: Path = Path("/dev")) -> tuple[Finding, ...]:
    """The chain from the chip to the library, with a remedy where it breaks.

    `sys` and `dev` are the roots to look under.
    """
    if platforms.is_windows():
        return (Finding("NPU", "", _ON_LINUX),)
    devices = [path for path in sorted(sys.glob("bus/pci/devices/*")) if _npu_name(path)]
    found = ", ".join(f"{_npu_name(path)} at {path.name}" for path in devices)
    chip = Finding("NPU", found, "" if found else _GET_NPU)
    driver = Finding("amdxdna driver", *_driver(sys))
    nodes = sorted(dev.glob("accel/accel*"))
    node = Finding(
        "device node", ", ".join(map(str, nodes)),
        "" if nodes else _GET_NODE if driver.found else _GET_DRIVER,
    )  # fmt: skip
    xrt = _xrt()
    if not devices:
        # Without the chip, installing anything is of no use.
        return chip, *(Finding(finding.name, finding.found) for finding in (driver, node, xrt))
    started = [_access(nodes), _firmware(devices)] if nodes else []
    return chip, driver, node, *started, xrt, _memlock()


def npu_device(sys: Path = Path("/sys")) -> str:
    """The first NPU's name in design packages, npu1 or npu2; empty without an NPU."""
    for path in sorted(sys.glob("bus/pci/devices/*")):
        if name := _npu_name(path):
            return name.split()[0].lower()
    return ""


def why_no_npu(findings: tuple[Finding, ...]) -> str:
    """The first break of the chain in a few words, or an empty string."""
    for finding in findings:
        if not finding.found:
            return f"no {finding.name} found"
    return ""


def _npu_name(device: Path) -> str:
    vendor, product = _hex(device / "vendor"), _hex(device / "device")
    if vendor != _AMD:
        return ""
    if product == _NPU1:
        return "NPU1 (Phoenix or Hawk Point), 4 columns"
    if product == _NPU2:
        revision = _hex(device / "revision")
        chip = _NPU2_REVISIONS.get(revision, f"revision 0x{revision:02x}")
        return f"NPU2 ({chip}), 8 columns"
    return ""


def _hex(path: Path) -> int:
    try:
        return int(path.read_text(encoding="ascii"), 16)
    except (OSError, ValueError):
        return -1


def _driver(sys: Path) -> tuple[str, str]:
    module = sys / "module" / "amdxdna"
    if not module.is_dir():
        return "", _GET_DRIVER
    version = module / "version"
    return ("loaded, " + version.read_text().strip() if version.is_file() else "loaded"), ""


def _xrt() -> Finding:
    found = [name for library in _XRT_LIBRARIES if (name := _library(library))]
    complete = len(found) == len(_XRT_LIBRARIES)
    return Finding("XRT", ", ".join(found) if complete else "", "" if complete else _GET_XRT)


def _xrt_folders() -> list[Path]:
    """Where to look for XRT after the loader has, as src/targets/loader.cc does: the folder that
    setup.sh names, and where AMD's packages put it."""
    root = os.environ.get("XILINX_XRT", "")
    return [Path(root) / "lib"] * bool(root) + [Path("/opt/xilinx/xrt/lib")]


def _library(name: str) -> str:
    if found := ctypes.util.find_library(name):
        return found
    libraries = (path for at in _xrt_folders() for path in sorted(at.glob(f"lib{name}.so*")))
    return str(next(libraries, ""))


def _access(nodes: Sequence[Path]) -> Finding:
    if any(os.access(node, os.R_OK | os.W_OK) for node in nodes):
        return Finding("access to the device node", "yes")
    try:
        group = nodes[0].group()
    except (KeyError, OSError):
        group = "render"
    return Finding("access to the device node", "", _GET_ACCESS.format(group=group))


def _firmware(devices: Iterable[Path]) -> Finding:
    """The version in the PCI device's driver attributes, which not every driver has."""
    for device in devices:
        try:
            return Finding("firmware", (device / "fw_version").read_text(encoding="ascii").strip())
        except (OSError, ValueError):
            continue
    return Finding("firmware", "started; this driver does not report its version")


def _memlock() -> Finding:
    import resource  # not on Windows, which has no NPU to look for

    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft == resource.RLIM_INFINITY:
        return Finding("unlimited locked memory", "yes")
    return Finding("unlimited locked memory", "", f"{_GET_MEMLOCK} (now {soft} bytes)")
