"""The calls of pyxrt that the recorder supports, as the binding defines them.

One table for every overload: types of the parameters in order, and the result. Two sources agree on
each: XRT 2.25's src/python/pybind11/src/pyxrt.cpp, and pyxrt.pyi of Debian's python3-xrt
1:2.25.0-4. Versions before 2.25 differ only in names of parameters (they have none), so names are
not accepted here. `wait2` differs between versions and is left out. `runlist` came with XRT's
commit d4a92e8740 of June 2025. The binding cannot wait for it with a time limit.
"""

from __future__ import annotations

import operator
from typing import Any

SIGNATURES: dict[str, tuple[tuple[str, ...], ...]] = {
    "enumerate_devices": ((),),
    "uuid": (("str",),), "uuid.to_string": ((),),
    "device": ((), ("int",), ("str",)),
    "device.register_xclbin": (("xclbin",),), "device.get_info": (("xrt_info_device",),),
    "xclbin": ((), ("str",)), "xclbin.get_kernels": ((),), "xclbin.get_uuid": ((),),
    "xclbinkernel.get_name": ((),), "xclbinkernel.get_num_args": ((),),
    "hw_context": ((), ("device", "uuid")),
    "kernel": (("hw_context", "str"),),  # the ones on a device are deprecated
    "kernel.group_id": (("int",),),
    "run": ((), ("kernel",)),
    "run.set_arg": (("int", "bo"), ("int", "int")),  # scalars are a C int
    "run.start": ((),), "run.state": ((),),
    "run.wait": ((), ("unsigned",)),  # milliseconds, 0 and none are for ever
    "bo": (("device", "size", "flags", "unsigned"), ("hw_context", "size", "flags", "unsigned"),
           ("bo", "size", "size")),
    "bo.write": (("buffer", "size"),), "bo.read": (("size", "size"),),  # none has a default
    "bo.sync": (("xclBOSyncDirection", "size", "size"), ("xclBOSyncDirection",)),
    "bo.map": ((),), "bo.size": ((),), "bo.address": ((),),
    "runlist": ((), ("hw_context",)), "runlist.add": (("run",),), "runlist.execute": ((),),
    # The other overload takes a std::chrono::milliseconds, which pybind11 converts only where its
    # chrono.h is included; pyxrt.cpp has pybind11.h, stl.h, numpy.h and stl_bind.h.
    "runlist.wait": ((),),
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
    for overload in SIGNATURES[name]:
        if not kwargs and len(overload) == len(args) and all(map(accepts, overload, args)):
            return overload
    raise TypeError(
        f"{name}(): incompatible function arguments. Invoked with: {args} {kwargs}; supported: "
        f"{SIGNATURES[name]}"
    )
