"""The calls of pyxrt that the recorder supports, as the binding defines them.

One table for every overload: types of the parameters in order, and the result. Two sources agree on
each: XRT 2.25's src/python/pybind11/src/pyxrt.cpp, and pyxrt.pyi of Debian's python3-xrt
1:2.25.0-4. Versions before 2.25 differ only in names of parameters (they have none), so names are
not accepted here. `wait2` differs between versions and is left out. `runlist` came with XRT's
commit d4a92e8740 of June 2025. The binding cannot wait for it with a time limit.
"""

from __future__ import annotations

import operator
from typing import Any, NamedTuple


class Overloads(NamedTuple):
    parameters: tuple[tuple[str, ...], ...]
    source: str


CPP = "XRT 2.25 src/python/pybind11/src/pyxrt.cpp"

SIGNATURES: dict[str, Overloads] = {
    "enumerate_devices": Overloads(((),), f"{CPP}, m.def(enumerate_devices)"),
    "uuid": Overloads((("str",),), f"{CPP}, py::class_<xrt::uuid>"),
    "uuid.to_string": Overloads(((),), CPP),
    "device": Overloads(((), ("int",), ("str",)), f"{CPP}, py::class_<xrt::device>"),
    "device.register_xclbin": Overloads((("xclbin",),), CPP),
    "device.get_info": Overloads((("xrt_info_device",),), f"{CPP}: one string for every key"),
    "xclbin": Overloads(((), ("str",)), f"{CPP}, py::class_<xrt::xclbin>"),
    "xclbin.get_kernels": Overloads(((),), f"{CPP}: a bound vector of xclbinkernel"),
    "xclbin.get_uuid": Overloads(((),), CPP),
    "xclbinkernel.get_name": Overloads(((),), CPP),
    "xclbinkernel.get_num_args": Overloads(((),), CPP),
    "hw_context": Overloads(((), ("device", "uuid")), f"{CPP}, py::class_<xrt::hw_context>"),
    "kernel": Overloads((("hw_context", "str"),), f"{CPP}; the ones on a device are deprecated"),
    "kernel.group_id": Overloads((("int",),), CPP),
    "run": Overloads(((), ("kernel",)), f"{CPP}, py::class_<xrt::run>"),
    "run.set_arg": Overloads((("int", "bo"), ("int", "int")), f"{CPP}: scalars are a C int"),
    "run.start": Overloads(((),), CPP),
    "run.state": Overloads(((),), CPP),
    "run.wait": Overloads(((), ("unsigned",)), f"{CPP}: milliseconds, 0 and none are for ever"),
    "bo": Overloads(
        (("device", "size", "flags", "unsigned"), ("hw_context", "size", "flags", "unsigned"),
         ("bo", "size", "size")),
        f"{CPP}, py::class_<xrt::bo>",
    ),
    "bo.write": Overloads((("buffer", "size"),), f"{CPP}: py::buffer, seek; none has a default"),
    "bo.read": Overloads((("size", "size"),), f"{CPP}: size, skip; an array of char, int8"),
    "bo.sync": Overloads(
        (("xclBOSyncDirection", "size", "size"), ("xclBOSyncDirection",)), f"{CPP}: size, offset"
    ),
    "bo.map": Overloads(((),), f"{CPP}: a memoryview of bytes"),
    "bo.size": Overloads(((),), CPP),
    "bo.address": Overloads(((),), CPP),
    "runlist": Overloads(((), ("hw_context",)), f"{CPP}, py::class_<xrt::runlist>"),
    "runlist.add": Overloads((("run",),), CPP),
    "runlist.execute": Overloads(((),), CPP),
    # The other overload takes a std::chrono::milliseconds, which pybind11 converts only where its
    # chrono.h is included; pyxrt.cpp has pybind11.h, stl.h, numpy.h and stl_bind.h.
    "runlist.wait": Overloads(((),), f"{CPP}: None; no bad state, it raises"),
}  # fmt: skip

#: Values of enumerations in the order of the binding; the numbers are those of XRT 2.25's ert.h,
#: and values that the driver's interface fixes.
STATES = {
    "NEW": 1, "QUEUED": 2, "COMPLETED": 4, "ERROR": 5, "ABORT": 6, "SUBMITTED": 7, "TIMEOUT": 8,
    "NORESPONSE": 9, "SKERROR": 10, "SKCRASHED": 11,
}  # fmt: skip
FLAGS = {
    "normal": 0, "cacheable": 1 << 24, "device_only": 1 << 28, "host_only": 1 << 29,
    "p2p": 1 << 30, "svm": 1 << 27,
}  # fmt: skip
INFOS = (
    "bdf", "interface_uuid", "kdma", "max_clock_frequency_mhz", "m2m", "name", "nodma", "offline",
    "electrical", "thermal", "mechanical", "memory", "platform", "pcie_info", "host",
    "dynamic_regions", "vmr",
)  # fmt: skip

_LIMITS = {"int": (-(2**31), 2**31 - 1), "unsigned": (0, 2**32 - 1), "size": (0, 2**64 - 1)}


def accepts(kind: str, value: Any) -> bool:
    """Whether pybind11 would accept `value` for a parameter: integers by __index__ and in range,
    strings, contiguous buffers, and instances of the exact class."""
    if kind in _LIMITS:
        try:
            number = operator.index(value)
        except TypeError:
            return False
        low, high = _LIMITS[kind]
        return low <= number <= high and not hasattr(value, "is_enumerator")
    if kind == "str":
        return isinstance(value, str)
    if kind == "buffer":
        try:
            return memoryview(value).contiguous
        except TypeError:
            return False
    return any(c.__name__ == kind for c in type(value).__mro__)


def bind(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, ...]:
    """The overload that accepts the arguments. TypeError, like pybind11's, if there is none."""
    for overload in SIGNATURES[name].parameters:
        if not kwargs and len(overload) == len(args) and all(map(accepts, overload, args)):
            return overload
    raise TypeError(
        f"{name}(): incompatible function arguments. Invoked with: {args} {kwargs}; supported: "
        f"{SIGNATURES[name].parameters}"
    )
