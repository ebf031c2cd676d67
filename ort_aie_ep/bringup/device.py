"""An NPU through pyxrt, XRT's Python binding: contexts, buffers, runs with bounded waits.

This module uses only what the binding already had before 2.25, with positional arguments, because
parameter names came with that version. Every failure is a Fault with its kind. Every wait has a
limit except that of a chain, for which the binding offers none.
"""

from __future__ import annotations

import importlib
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ort_aie_ep.errors import AieError
from ort_aie_ep.models.checked_json import parse_json
from ort_aie_ep.npu.packages.package import Package

#: Milliseconds. The driver's watchdog looks every 2 s, and ends a run that hangs 4 to 6 s after its
#: submission (kJobTimeout in src/targets/npu/xrt/runs.h).
WAIT = 8000
OPCODE = 3  # a transaction stream
FIRST_BUFFER = 3  # arguments 0 to 2 of the kernel: opcode, instructions, their count
MAX_BUFFERS = 5
MAX_CHAIN = 24  # runs that XRT submits to the driver as one command (runlist_impl)
# From amdxdna's tables, and from older user space ("RyzenAI-npu4").
NPU1 = 3  # a generation
_GENERATIONS = {
    NPU1: ("phoenix", "hawk", "npu1"),
    4: ("strix", "krackan", "gorgon", "npu2", "npu3", "npu4", "npu5", "npu6"),
}
_PCI_GENERATIONS = {0x1502: NPU1, 0x17F0: 4}

HOW_TO_GET_PYXRT = (
    "pyxrt, XRT's Python binding, is missing from this Python. Debian (sid), Ubuntu (26.04 and "
    "later): apt install python3-xrt libxrt-npu2; Fedora: dnf install python3-xrt xrt; AMD's own "
    "packages: source /opt/xilinx/xrt/setup.sh. It is built for the distribution's python3: use "
    "that one (a venv with --system-site-packages)"
)


class Fault(AieError):
    """A failure of a device, its driver or the binding.

    `kind` is for programs: "binding", "no device", "context", "allocation", "timeout", "state" or
    "run".
    """

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


@dataclass(frozen=True)
class Identity:
    """The facts about a device that a report needs; an empty string means unknown."""

    name: str  # XRT's, such as "NPU Strix"
    address: str  # PCI
    generation: int  # as in manifests; 0 is unknown
    clock_mhz: int  # at rest, 0 is unknown
    xrt: str
    xrt_hash: str
    driver: str
    firmware: str
    kernel: str  # of Linux
    python: str


def load_binding() -> ModuleType:
    """The module pyxrt. Raises Fault, which says how to get it."""
    try:
        return importlib.import_module("pyxrt")
    except ImportError as error:
        raise Fault("binding", f"{HOW_TO_GET_PYXRT}. ({error})") from error


class Npu:
    """The first NPU that XRT lists. Raises Fault if there is none."""

    def __init__(self, pyxrt: ModuleType, sys: Path = Path("/sys")) -> None:
        self.pyxrt = pyxrt
        count = _call("no device", "enumerate_devices", pyxrt.enumerate_devices)
        found = []
        for index in range(count):
            device = _call("no device", f"device({index})", pyxrt.device, index)
            self.device, self.identity = device, _identify(pyxrt, device, sys)
            if self.identity.generation:
                return
            found.append(self.identity.name or "one without a name")
        raise Fault(
            "no device",
            f"XRT lists {', '.join(found)}, none of which is a known NPU"
            if found
            else "XRT lists no device; `ort-aie doctor` shows where the chain breaks "
            "(driver, /dev/accel/accel0 and its permissions, libxrt-npu2, locked memory)",
        )

    def clock_hz(self) -> float:
        """The array's current clock, or 0.0 if XRT does not say."""
        text = _info(self.pyxrt, self.device, "max_clock_frequency_mhz")
        return float(text) * 1e6 if text.isdecimal() else 0.0

    @property
    def has_chains(self) -> bool:
        """Whether this Python's binding has runlists."""
        return hasattr(self.pyxrt, "runlist")

    def open(self, package: Package, beside: Context | None = None) -> Context:
        """A hardware context for a package. Raises Fault.

        It is a new context, or that of `beside`, whose package has the same xclbin and another
        kernel.
        """
        return Context(self, package, beside)


class Context:
    """A package on the device."""

    def __init__(self, npu: Npu, package: Package, beside: Context | None) -> None:
        self.npu = npu
        # Kept: in some versions the kernel needs them alive.
        self._xclbin, self._uuid, self.handle = (
            _context(npu, package) if beside is None else beside.whole
        )
        names = [k.get_name() for k in _call("context", "its kernels", self._xclbin.get_kernels)]
        kernel = package.manifest["kernel"]
        # Names written by tools may have a suffix.
        wanted = [kernel] * (kernel in names) or [n for n in names if n.startswith(kernel)]
        if not wanted:
            have = ", ".join(names) or "none"
            raise Fault("context", f"{package.overlay} has no kernel {kernel}; it has {have}")
        self.kernel = _call(
            "context", f"kernel {wanted[0]}", npu.pyxrt.kernel, self.handle, wanted[0]
        )

    @property
    def whole(self) -> tuple[Any, Any, Any]:
        """What kernels of one xclbin share."""
        return self._xclbin, self._uuid, self.handle

    def buffer(self, index: int, data: NDArray[Any]) -> Buffer:
        """Buffer argument `index` (0 to 4) with the bytes of `data`, on the device."""
        return Buffer(self, FIRST_BUFFER + index, self.npu.pyxrt.bo.host_only, data)

    def program(self, words: NDArray[np.uint32], buffers: Sequence[Buffer]) -> Program:
        """A stream that can be run many times."""
        return Program(self, words, buffers)

    def chain(self, programs: Sequence[Program]) -> Chain:
        """Programs that are submitted together, and no longer by themselves.

        Raises Fault where the binding has no runlist.
        """
        return Chain(self, programs)


def _context(npu: Npu, package: Package) -> tuple[Any, Any, Any]:
    """xclbin, UUID and hardware context. Raises Fault."""
    path = str(package.overlay)
    xclbin = _call("context", f"reading {path}", npu.pyxrt.xclbin, path)
    uuid = _call("context", f"registering {path}", npu.device.register_xclbin, xclbin)
    handle = _call(
        "context", f"a hardware context for {path} (are all columns busy?)",
        npu.pyxrt.hw_context, npu.device, uuid,
    )  # fmt: skip
    return xclbin, uuid, handle


class Buffer:
    """Memory of the device for kernel argument `argument`; a sync copies the host's copy to it."""

    def __init__(self, context: Context, argument: int, flags: Any, data: NDArray[Any]) -> None:
        raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        self._pyxrt = context.npu.pyxrt
        self._bytes, self._shape, self._dtype = raw.size, data.shape, data.dtype
        group = _call("allocation", "group_id", context.kernel.group_id, argument)
        size = max(raw.size, 4)  # an empty argument still needs an address
        self.bo = _call(
            "allocation", f"a buffer of {size} bytes (is locked memory unlimited?)",
            self._pyxrt.bo, context.npu.device, size, flags, group,
        )  # fmt: skip
        self.write(data)

    def write(self, data: NDArray[Any]) -> None:
        """Replace the contents, on the host and on the device."""
        raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        if raw.size:
            _call("run", "bo.write", self.bo.write, raw, 0)
        self._sync("XCL_BO_SYNC_BO_TO_DEVICE")

    def read(self) -> NDArray[Any]:
        """The device's contents, in the shape and dtype of the data put there."""
        self._sync("XCL_BO_SYNC_BO_FROM_DEVICE")
        if not self._bytes:
            return np.zeros(self._shape, self._dtype)
        raw = np.asarray(_call("run", "bo.read", self.bo.read, self._bytes, 0))
        return raw.view(np.uint8).view(self._dtype).reshape(self._shape)

    def _sync(self, direction: str) -> None:
        way = getattr(self._pyxrt.xclBOSyncDirection, direction)
        _call("run", "bo.sync", self.bo.sync, way)


class Program:
    """Instruction words on the device, and a run object for them."""

    def __init__(
        self, context: Context, words: NDArray[np.uint32], buffers: Sequence[Buffer]
    ) -> None:
        if len(buffers) > MAX_BUFFERS:
            raise Fault("run", f"{len(buffers)} buffers; the kernel takes {MAX_BUFFERS}")
        pyxrt = context.npu.pyxrt
        self._pyxrt = pyxrt
        self._instructions = Buffer(context, 1, pyxrt.bo.cacheable, words)
        self._buffers = list(buffers)  # must live as long as the run
        self.run = _call("run", "run(kernel)", pyxrt.run, context.kernel)
        arguments = [OPCODE, self._instructions.bo, len(words), *(b.bo for b in buffers)]
        for index, value in enumerate(arguments):
            _call("run", f"set_arg {index}", self.run.set_arg, index, value)

    def __call__(self) -> float:
        """Run once: seconds from the start to the end of the wait. Raises Fault.

        After a Fault the context is useless: the run may still be going on.
        """
        start = perf_counter()
        _call("run", "run.start", self.run.start)
        state = _call("run", "run.wait", self.run.wait, WAIT)
        seconds = perf_counter() - start
        states = self._pyxrt.ert_cmd_state
        if state != states.ERT_CMD_STATE_COMPLETED:
            timeout = state == states.ERT_CMD_STATE_TIMEOUT
            raise Fault(
                "timeout" if timeout else "state",
                f"the run did not end within {WAIT // 1000} s" if timeout
                else f"the run ended in state {state.name} ({int(state)})",
            )  # fmt: skip
        return seconds


class Chain:
    """Runs that are submitted as one list. XRT takes the buffers of a run when it is added."""

    def __init__(self, context: Context, programs: Sequence[Program]) -> None:
        pyxrt = context.npu.pyxrt
        if not context.npu.has_chains:
            raise Fault("binding", "this pyxrt has no runlist; XRT's has it since June 2025")
        self._programs = list(programs)  # must live as long as the list
        self._list = _call("run", "runlist(context)", pyxrt.runlist, context.handle)
        for program in programs:
            _call("run", "runlist.add", self._list.add, program.run)

    def __call__(self) -> float:
        """Run all once: seconds from the start to the end of the wait. Raises Fault.

        The wait has no limit of its own: the binding's limit is a C++ duration, which Python cannot
        pass (pyxrt.cpp does not include pybind11's chrono.h). The driver's watchdog ends a chain
        that hangs.
        """
        start = perf_counter()
        _call("run", "runlist.execute", self._list.execute)
        _call("state", "runlist.wait", self._list.wait)
        return perf_counter() - start


# --- identity -------------------------------------------------------------------------------------
def _identify(pyxrt: ModuleType, device: Any, sys: Path) -> Identity:
    name, address = _info(pyxrt, device, "name"), _info(pyxrt, device, "bdf")
    clock = _info(pyxrt, device, "max_clock_frequency_mhz")
    # XRT's own versions, as JSON (core/common/sysinfo.cpp).
    host = _json(_info(pyxrt, device, "host"))
    pci = sys / "bus" / "pci" / "devices" / address
    return Identity(
        name=name,
        address=address,
        generation=_generation(name, _text(pci / "device") if address else ""),
        clock_mhz=int(clock) if clock.isdecimal() else 0,
        xrt=str(host.get("version", "")),
        xrt_hash=str(host.get("hash", "")),
        driver=_text(sys / "module" / "amdxdna" / "version"),
        firmware=_text(pci / "fw_version") if address else "",  # amdxdna_sysfs.c
        kernel=platform.release(),
        python=platform.python_version(),
    )


def _generation(name: str, pci_id: str) -> int:
    for generation, words in _GENERATIONS.items():
        if any(word in name.lower() for word in words):
            return generation
    try:
        return _PCI_GENERATIONS.get(int(pci_id, 16), 0)
    except ValueError:
        return 0


def _info(pyxrt: ModuleType, device: Any, key: str) -> str:
    """A property of the device as text, or "" if unknown: reports do without."""
    try:
        return str(device.get_info(getattr(pyxrt.xrt_info_device, key)))
    except Exception:  # XRT throws for what a driver does not tell
        return ""


def _json(text: str) -> Mapping[str, Any]:
    try:
        return parse_json(text.encode(), "XRT's answer").object()
    except AieError:
        return {}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def _call(kind: str, what: str, function: Any, *arguments: Any) -> Any:
    """Call the binding, and turn any exception into a Fault.

    pybind11 turns C++ exceptions into RuntimeError, MemoryError and others, and calls that do not
    match into TypeError.
    """
    try:
        return function(*arguments)
    except Exception as error:
        raise Fault(kind, f"{what}: {type(error).__name__}: {error}") from error
