"""A stand-in for the module pyxrt whose device is the simulator.

`Recorder(...)` is the module: names and signatures are `pyxrt_signatures`, everything else raises
AttributeError. It is as strict as the driver: the host's and the device's bytes of a buffer are
separate and start as poison, flags and groups are checked, and a context starts empty. Rules cite
XRT 2.25 (xrt_bo.h, xrt_kernel.h) and the amdxdna shim.
"""

from __future__ import annotations

import enum
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from pyxrt_signatures import FLAGS, INFOS, STATES, bind

from ort_aie_ep.npu.packages.package import xclbin_uuid
from ort_aie_ep.npu.simulator.pdis import Pdis
from ort_aie_ep.npu.terms import costs
from ort_aie_ep.npu.terms.design import Design

POISON = 0xA5
HOST_GROUP, SRAM_GROUP = 0, 1  # banks of mlir-aie's xclbin
DISPATCH = costs.DISPATCH.value
SWITCH = 100e-6
CHAINED = 20e-6  # for each further run of a list


class _Enumerator(enum.IntEnum):
    @property
    def is_enumerator(self) -> bool:  # pybind11's enumerations are not integers for it
        return True


def _enumeration(name: str, values: dict[str, int]) -> Any:
    return _Enumerator(name, values)


@dataclass
class Recorder:
    """`designs` by kernel, by the UUID of their overlays; `names` of the devices. Each call passes
    its name to `fail`, which may raise or return a state; `corrupt` changes a run's results."""

    designs: dict[str, dict[str, Design]]
    names: tuple[str, ...] = ("NPU Strix",)
    fail: Callable[[str], str | None] = lambda call: None
    corrupt: Callable[[dict[int, np.ndarray]], None] = lambda buffers: None
    lists: bool = True  # whether the binding has runlists
    longest_list: int = 24  # runs of a list that are executed; others are silently dropped
    cold: bool = False  # whether the channels of the shims restart with every run
    calls: Counter[str] = field(default_factory=Counter)
    now: float = 0.0  # seconds of the modelled host

    def __post_init__(self) -> None:
        self.ert_cmd_state = _enumeration(
            "ert_cmd_state", {f"ERT_CMD_STATE_{name}": n for name, n in STATES.items()}
        )
        self.xclBOSyncDirection = _enumeration(
            "xclBOSyncDirection", {"XCL_BO_SYNC_BO_TO_DEVICE": 0, "XCL_BO_SYNC_BO_FROM_DEVICE": 1}
        )
        self.xrt_info_device = _enumeration(
            "xrt_info_device", {name + "_": i for i, name in enumerate(INFOS)}
        )
        self.xrt_info_device = _Infos(self.xrt_info_device)
        for made in _classes(self)[: None if self.lists else -1]:
            setattr(self, made.__name__, made)
        self.active: Any = None  # the context that ran last

    def clock(self) -> float:
        """Replaces time.perf_counter."""
        return self.now

    def enumerate_devices(self, *args: Any, **kwargs: Any) -> int:
        self.called("enumerate_devices", args, kwargs)
        return len(self.names)

    def called(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
        bind(name, args, kwargs)
        self.calls[name] += 1
        return self.fail(name)


class _Infos:
    """`name` and `value` are attributes of Python's enumerations, and members of this one."""

    def __init__(self, members: Any) -> None:
        self._members = members

    def __getattr__(self, name: str) -> Any:
        return self._members[name + "_"]


def _classes(module: Recorder) -> list[type]:
    class Bound:
        """Checks the constructor's arguments against the table, then sets up."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            module.called(type(self).__name__, args, kwargs)
            self.setup(*args)

        def setup(self, *args: Any) -> None:
            pass

        def check(self, call: str, *args: Any, **kwargs: Any) -> str | None:
            return module.called(f"{type(self).__name__}.{call}", args, kwargs)

    class uuid(Bound):
        def setup(self, text: str) -> None:
            self.text = text

        def to_string(self, *args: Any) -> str:
            self.check("to_string", *args)
            return self.text

    class device(Bound):
        def setup(self, index: int) -> None:
            if index >= len(module.names):
                raise RuntimeError(f"No such device with index '{index}'")
            self.name = module.names[index]

        def register_xclbin(self, *args: Any) -> Any:
            self.check("register_xclbin", *args)
            return args[0].get_uuid()

        def get_info(self, *args: Any) -> str:
            self.check("get_info", *args)
            answers = {
                "name_": self.name, "bdf_": "0000:c5:00.1", "max_clock_frequency_mhz_": "1660",
                "host_": json.dumps({"version": "2.25.0", "hash": "abc"}),
            }  # fmt: skip
            if args[0].name not in answers:
                raise RuntimeError("query request not supported")
            return answers[args[0].name]

    class xclbinkernel(Bound):
        def __init__(self, name: str) -> None:
            self._name = name

        def get_name(self, *args: Any) -> str:
            self.check("get_name", *args)
            return self._name

    class xclbin(Bound):
        def setup(self, path: str) -> None:
            self.uuid = xclbin_uuid(Path(path))

        def get_uuid(self, *args: Any) -> Any:
            self.check("get_uuid", *args)
            return uuid(self.uuid)

        def get_kernels(self, *args: Any) -> list[Any]:
            self.check("get_kernels", *args)
            return [xclbinkernel(f"{name}:main") for name in module.designs.get(self.uuid, ["?"])]

    class hw_context(Bound):
        def setup(self, on: Any, overlay: Any) -> None:
            if overlay.text not in module.designs:
                raise RuntimeError("no such xclbin is registered")
            its = module.designs[overlay.text]
            self.kernels = {f"{name}:main": design for name, design in its.items()}
            self.pdis = Pdis(self.kernels)

    class kernel(Bound):
        def setup(self, context: Any, name: str) -> None:
            if name not in context.kernels:
                raise RuntimeError(f"no kernel {name}")
            self.context, self.name = context, name

        def group_id(self, *args: Any) -> int:
            self.check("group_id", *args)
            if not (args[0] == 1 or 3 <= args[0] < 8):
                raise IndexError(f"argument {args[0]} is not a global argument")
            return SRAM_GROUP if args[0] == 1 else HOST_GROUP

    class bo(Bound):
        def setup(self, on: Any, size: int, flags: Any, group: int) -> None:
            # amdxdna's shim accepts these two, for instructions and for data.
            wanted = {module.bo.cacheable: SRAM_GROUP, module.bo.host_only: HOST_GROUP}
            if flags not in wanted or group != wanted[flags]:
                raise RuntimeError(f"unsupported buffer type: {flags!r} in group {group}")
            if size == 0:
                raise RuntimeError("a buffer of no bytes")
            self.flag = flags
            self.host, self.device = (np.full(size, POISON, np.uint8) for _ in range(2))

        def write(self, *args: Any) -> None:
            self.check("write", *args)
            raw = np.frombuffer(args[0], np.uint8)
            if args[1] + raw.size > self.host.size:
                raise RuntimeError("attempting to write past buffer size")
            self.host[args[1] : args[1] + raw.size] = raw

        def read(self, *args: Any) -> np.ndarray:
            self.check("read", *args)
            size, skip = args
            if size + skip > self.host.size:
                raise RuntimeError("attempting to read past buffer size")
            return self.host[skip : skip + size].copy().view(np.int8)

        def sync(self, *args: Any) -> None:
            self.check("sync", *args)
            to_device = args[0] == module.xclBOSyncDirection.XCL_BO_SYNC_BO_TO_DEVICE
            source, target = (self.host, self.device) if to_device else (self.device, self.host)
            target[:] = source

        def size(self, *args: Any) -> int:
            self.check("size", *args)
            return self.host.size

    class run(Bound):
        def setup(self, its: Any) -> None:
            self.kernel, self.arguments, self.started, self.lists = its, {}, False, 0

        def set_arg(self, *args: Any) -> None:
            self.check("set_arg", *args)
            self.arguments[args[0]] = args[1]

        def start(self, *args: Any) -> None:
            self.check("start", *args)
            if self.lists:
                raise RuntimeError(
                    "Run object belongs to a runlist and cannot be explicitly started"
                )
            if self.started:
                raise RuntimeError("the run is still going on")
            self.started = True

        def wait(self, *args: Any) -> Any:
            state = self.check("wait", *args)
            if not args or args[0] == 0:
                raise AssertionError("a wait without a limit")
            if not self.started:
                raise RuntimeError("the run was not started")
            if state is not None:
                module.now += args[0] / 1000 if state == "TIMEOUT" else 0.0
                return module.ert_cmd_state[f"ERT_CMD_STATE_{state}"]
            self.execute()
            self.started = False
            return module.ert_cmd_state.ERT_CMD_STATE_COMPLETED

        def execute(self, dispatch: float = DISPATCH) -> None:
            opcode, instructions, count = (self.arguments[i] for i in range(3))
            assert opcode == 3, "a transaction stream"
            assert instructions.flag == module.bo.cacheable
            assert count * 4 == instructions.device.size
            buffers = {i: b for i, b in self.arguments.items() if i >= 3}
            assert list(buffers) == list(range(3, 3 + len(buffers))), "no gaps"
            assert len(buffers) <= 5
            assert all(b.flag == module.bo.host_only for b in buffers.values())
            words = instructions.device.view(np.uint32).copy()
            pdis = self.kernel.context.pdis
            module.now += pdis.select(self.kernel.name)
            machine = pdis.machine
            for endpoint in machine.endpoints.values() if module.cold else ():
                endpoint._started = False
            result = machine.run(words, [(str(i), b.device) for i, b in buffers.items()])
            if module.active not in (None, self.kernel.context):
                module.now += SWITCH
            module.active = self.kernel.context
            module.now += dispatch + result.seconds
            module.corrupt({i - 3: b.device for i, b in buffers.items()})

    class runlist(Bound):
        """A list for which `add` binds the buffers (runlist_impl::add calls bind_at)."""

        def setup(self, *args: Any) -> None:
            if not args:
                raise AssertionError("a list without a context is of no use")
            self.context, self.runs, self.running = args[0], [], False

        def add(self, *args: Any) -> None:
            self.check("add", *args)
            if self.running:
                raise RuntimeError("runlist must be idle before adding run objects")
            its = args[0]
            if its.kernel.context is not self.context or len(its.arguments) < 4:
                raise AssertionError("a run of another context, or without its arguments")
            its.lists += 1
            self.runs.append((its, dict(its.arguments)))

        def execute(self, *args: Any) -> None:
            self.check("execute", *args)
            if self.running:
                raise RuntimeError("runlist must be idle before submitting for execution")
            self.running = True

        def wait(self, *args: Any) -> None:
            state = self.check("wait", *args)
            self.running = False
            if state is not None:
                module.now += 2.0 if state == "TIMEOUT" else 0.0  # the driver's watchdog
                raise RuntimeError(f"runlist failed execution (ERT_CMD_STATE_{state})")
            for place, (its, bound) in enumerate(self.runs[: module.longest_list]):
                if its.arguments != bound:
                    raise AssertionError("an argument changed after the run was added")
                its.execute(CHAINED if place else DISPATCH)

    for flag, value in FLAGS.items():
        setattr(bo, flag, _enumeration("flags", FLAGS)(value))
    return [uuid, device, xclbin, hw_context, kernel, bo, run, runlist]
