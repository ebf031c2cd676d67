"""The modelled NPU as a separate process, which the stand-in for XRT starts and talks to.

    python -m ort_aie_ep.modelled_npu --device npu2 --socket 3 --memory 4

The memory of the device is a memfd that both processes map. Requests and replies are JSON objects,
one a line, over a socket. The reply is {"ok": true, ...} if the request works, otherwise
{"ok": false, "kind": ..., "error": ...}:

    {"op": "hello"}                                     device, name
    {"op": "load", "overlay": path, "uuid": u}          context
    {"op": "run", "context": n, "kernel": name, "words": [offset, count],
     "arguments": [[offset, bytes], ...]}
                                                        seconds of the device
    {"op": "release", "context": n}
    {"op": "packages", "folder": path}                  designs
    {"op": "stop"}

The kind of a failed run is "timeout" if the watchdog of the device ended it, otherwise "error".
After either, the array is configured again. Killing this process is like removing the device.

For tests, "load" accepts "wrong": true, as if the overlay were one of another NPU, and "run"
accepts "fault": "timeout" or "error". Such a run leaves garbage in place of results, and its reply
has the "operation" at which it stopped.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import numpy.typing as npt

from ort_aie_ep.aie_kernels.build import designs_on, make_design
from ort_aie_ep.errors import AieError
from ort_aie_ep.models.checked_json import Field, parse_json
from ort_aie_ep.npu.packages.package import (
    MANIFEST,
    OVERLAY,
    xclbin_uuid,
)  # fmt: skip
from ort_aie_ep.npu.packages.simulated import (
    SimulatedOverlay,
    read_simulated_overlay,
    simulated_overlay,
    write_simulated_packages,
)  # fmt: skip
from ort_aie_ep.npu.simulator.machine import Machine
from ort_aie_ep.npu.simulator.parts import Process
from ort_aie_ep.npu.simulator.pdis import Pdis
from ort_aie_ep.npu.terms.design import Design
from ort_aie_ep.npu.terms.device import Device, device
from ort_aie_ep.npu.terms.errors import DesignError, PackageError, SimulationError, StreamError

WATCHDOG = 2.0  # the longest run in seconds: the driver's `timeout_in_sec`
GARBAGE = 0xFF  # what a failed run leaves: not-a-number as bf16, fp16 and fp32

NAMES = {"aie2": "NPU Phoenix (simulated)", "aie2p": "NPU Strix (simulated)"}

_PR_SET_PDEATHSIG = 1

Bytes = npt.NDArray[np.uint8]


class RequestError(AieError):
    """A malformed request."""


class WatchdogError(SimulationError):
    """A run that took longer than the driver allows."""


@dataclass
class Context:
    """The array as one hardware context sees it.

    `kernels` is None for an overlay made for another NPU. Such an overlay configures nothing, so
    its runs complete and write nothing.
    """

    kernels: dict[str, Design] | None
    pdis: Pdis | None = field(init=False)

    def __post_init__(self) -> None:
        self.pdis = None if self.kernels is None else Pdis(self.kernels)

    def reset(self) -> None:
        """Configure the array again."""
        if self.pdis is not None:
            self.pdis.reset()

    def run(
        self, kernel: str, words: npt.NDArray[np.uint32], arguments: list[tuple[str, Bytes]]
    ) -> float:
        """Execute a stream; returns seconds of the device.

        Raises WatchdogError, SimulationError or StreamError; then the context must be reset.
        """
        if self.pdis is None:
            return 0.0
        change = self.pdis.select(kernel)
        _start_watchdog(self.pdis.machine)
        try:
            return change + self.pdis.machine.run(words, arguments).seconds
        except SimulationError as error:
            if str(error).startswith("deadlock"):  # to the driver, a run that does not end
                raise WatchdogError(str(error)) from error
            raise


def _start_watchdog(machine: Machine) -> None:
    """Make the next run fail after `WATCHDOG` seconds of the device."""
    env = machine.env

    def watchdog() -> Process:
        yield env.timeout(WATCHDOG)
        if env.peek() != float("inf"):  # otherwise the run is over, or deadlocked
            machine.failed.append(WatchdogError(f"the run is not over after {WATCHDOG} s"))

    env.process(watchdog())


def _overlays_for(target: Device) -> dict[str, tuple[Design, SimulatedOverlay]]:
    found = {}
    for name, design in designs_on(target).items():
        with suppress(DesignError):  # its layout does not suit this device
            found[name] = design, simulated_overlay({name: design})
    return found


def write_packages(folder: Path, target: Device) -> list[str]:
    """Write the packages of all designs for the modelled NPU; existing ones are kept.

    Returns the names: those of the folders in `folder` and of the manifests.
    """
    names = []
    for name, (design, overlay) in _overlays_for(target).items():
        package = folder / design.package
        if not _fits(package, overlay):
            try:
                write_simulated_packages(folder, {name: design})
            except OSError:
                if not _fits(package, overlay):  # another process was faster
                    raise
        names.append(design.package)
    return names


def _fits(package: Path, overlay: SimulatedOverlay) -> bool:
    try:
        uuid = xclbin_uuid(package / OVERLAY)
    except PackageError:
        return False
    # The UUID covers the manifest's text, so a manifest in another form is another package.
    return (package / MANIFEST).is_file() and uuid == overlay.uuid


class DeviceProcess:
    """The modelled device: its contexts and its answers to requests. `memory` is (n,) uint8."""

    def __init__(self, target: Device, memory: Bytes) -> None:
        self._device = target
        self._memory = memory
        self._contexts: dict[int, Context] = {}
        self._next = 1
        self._operations: dict[str, Callable[[Field], dict[str, Any]]] = {
            "hello": self._hello,
            "load": self._load,
            "run": self._run,
            "release": self._release,
            "packages": self._packages,
        }

    def answer(self, request: Any) -> dict[str, Any]:
        """The reply to a request; never raises for an error that a request can cause."""
        try:
            fields = Field(request, "the request", "", RequestError)
            operation = fields.field("op").one_of(self._operations)
            return {"ok": True, **self._operations[operation](fields)}
        except WatchdogError as error:
            return _failure("timeout", str(error))
        except (AieError, OSError) as error:
            return _failure("error", f"{type(error).__name__}: {error}")

    def _hello(self, _: Field) -> dict[str, Any]:
        return {"device": self._device.name, "name": NAMES[self._device.architecture]}

    def _load(self, request: Field) -> dict[str, Any]:
        path, uuid = Path(request.field("overlay").text()), request.field("uuid").text()
        overlay = read_simulated_overlay(path)
        if overlay.uuid != uuid:
            raise PackageError(f"{path} is the overlay {overlay.uuid}, but {uuid} was registered")
        wrong = request.find("wrong")
        kernels = None if wrong is not None and wrong.boolean() else self._kernels(path, overlay)
        self._contexts[self._next] = Context(kernels)
        self._next += 1
        return {"context": self._next - 1}

    def _kernels(self, path: Path, overlay: SimulatedOverlay) -> dict[str, Design] | None:
        """The designs of the overlay in `path` by kernel; None if it is for another NPU."""
        target = device(overlay.device)
        if target.generation != self._device.generation:
            return None
        if target.columns > self._device.columns:
            raise PackageError(
                f"{path} is for {target.columns} columns; {self._device.name} has "
                f"{self._device.columns}"
            )
        designs = {kernel.design: make_design(kernel.design, target) for kernel in overlay.kernels}
        if not designs or simulated_overlay(designs) != overlay:
            raise PackageError(
                f"{path} was made by another version of ort_aie_ep; delete the package, and it is "
                "made again"
            )
        return {kernel.name: designs[kernel.design] for kernel in overlay.kernels}

    def _run(self, request: Field) -> dict[str, Any]:
        context = self._contexts[self._context(request)]
        words = self._view(request.field("words"), 4).view(np.uint32)
        arguments = [
            (f"argument {i}", self._view(span))
            for i, span in enumerate(request.field("arguments").elements())
        ]
        kernel = request.field("kernel")
        name = kernel.text() if context.kernels is None else kernel.one_of(context.kernels)
        asked = request.find("fault")
        fault = asked.one_of(("timeout", "error")) if asked is not None else ""
        before = [data.copy() for _, data in arguments] if fault else []
        try:
            seconds = context.run(name, words, arguments)
        except (SimulationError, StreamError):
            context.reset()
            raise
        if fault:
            for (_, data), old in zip(arguments, before, strict=True):
                data[data != old] = GARBAGE
            context.reset()
            # As if what the stream waits for at its end never came. Word 2 counts its operations.
            return _failure(fault, f"injected fault: {fault}") | {"operation": int(words[2]) - 1}
        return {"seconds": seconds}

    def _context(self, request: Field) -> int:
        context = request.field("context")
        context.require(context.integer() in self._contexts, "a context that is loaded")
        return context.integer()

    def _view(self, span: Field, item_bytes: int = 1) -> Bytes:
        """A part of the memory, given as [offset in bytes, number of items]."""
        ends = span.elements()
        span.require(len(ends) == 2, "a pair [offset, count]")
        offset = ends[0].integer(0, self._memory.size)
        size = ends[1].integer(0, (self._memory.size - offset) // item_bytes) * item_bytes
        return self._memory[offset : offset + size]

    def _release(self, request: Field) -> dict[str, Any]:
        del self._contexts[self._context(request)]
        return {}

    def _packages(self, request: Field) -> dict[str, Any]:
        folder = Path(request.field("folder").text())
        return {"designs": write_packages(folder, self._device)}


def _failure(kind: str, text: str) -> dict[str, Any]:
    return {"ok": False, "kind": kind, "error": text}


def serve(process: DeviceProcess, reader: TextIO, writer: TextIO) -> None:
    """Answer requests until a stop, or until the other end closes."""
    for line in reader:
        try:
            request = parse_json(line.encode(), "the request", RequestError).value
        except RequestError as error:
            reply = _failure("error", str(error))
        else:
            if request == {"op": "stop"}:
                return
            reply = process.answer(request)
        writer.write(json.dumps(reply) + "\n")
        writer.flush()


def main() -> None:
    """Serve the process that started this one, and end with it."""
    parser = argparse.ArgumentParser(description="Run the modelled NPU for the stand-in for XRT.")
    parser.add_argument("--device", required=True, help="a device of `ort-aie kernels list`")
    parser.add_argument("--socket", type=int, required=True, help="file descriptor of the requests")
    parser.add_argument("--memory", type=int, required=True, help="file descriptor of the memory")
    arguments = parser.parse_args()

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    with (
        suppress(BrokenPipeError, ConnectionResetError),  # the host has ended, or given this up
        socket.socket(fileno=arguments.socket) as channel,
        channel.makefile("r", encoding="utf-8") as reader,
        channel.makefile("w", encoding="utf-8") as writer,
    ):
        shared = mmap.mmap(arguments.memory, os.fstat(arguments.memory).st_size)
        memory = np.frombuffer(shared, dtype=np.uint8)
        try:
            target = device(arguments.device)
        except DesignError as error:
            reader.readline()
            writer.write(json.dumps(_failure("error", str(error))) + "\n")
            return
        serve(DeviceProcess(target, memory), reader, writer)
