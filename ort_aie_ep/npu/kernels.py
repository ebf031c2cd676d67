"""Calls the kernels of `aie_kernels/`, compiled for this CPU.

    kernels = Kernels("aie2p")
    kernels.call(DQP_BLOCK, block, x, sums, acc, 0)

Each architecture has a library, `libaie_kernels_aie2.so` and `libaie_kernels_aie2p.so`, beside the
compiled parts of this package. The kernels in it are compiled against the stand-in for the AIE API
in `aie_kernels/host/`.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np

from ort_aie_ep import _native, platforms
from ort_aie_ep.npu.terms.errors import SimulationError
from ort_aie_ep.npu.terms.kernel import DTYPES, Array, Kernel

ALIGNMENT = 64  # bytes, of every buffer in L1: the most that a load or store requires

_MAX_ARGUMENTS = 16  # of aie_host_call
_Arguments = ctypes.c_ssize_t * _MAX_ARGUMENTS

_Entry = tuple[ctypes.c_void_p, tuple[tuple[np.dtype[Any], int] | None, ...], Kernel]


class Kernels:
    """The kernels of one architecture ("aie2" or "aie2p"), compiled for this host: those of the
    package, or those of another `library`.

    Raises:
        SimulationError: the library is missing, does not load, or this is Windows.
    """

    def __init__(self, architecture: str, library: Path | None = None) -> None:
        self.architecture = architecture
        if platforms.is_windows():
            raise SimulationError("the NPU's simulator runs on Linux only")
        path = library or Path(_native.__file__).with_name(f"libaie_kernels_{architecture}.so")
        if not path.is_file():
            raise SimulationError(
                f"the kernels for {architecture} are missing: expected {path}; reinstall "
                "the package ort_aie_ep, or run make build in a checkout"
            )
        try:
            self._library = ctypes.CDLL(str(path))
        except OSError as error:
            raise SimulationError(f"{path} does not load: {error}; reinstall ort_aie_ep") from error
        self._call = self._library.aie_host_call
        self._call.restype = ctypes.c_char_p
        self._call.argtypes = [ctypes.c_void_p, _Arguments]
        self._entries: dict[int, _Entry] = {}  # by id: hashing a kernel takes as long as a call

    def call(self, kernel: Kernel, *arguments: Any) -> None:
        """Run a kernel to its end.

        Each call starts with the core as it is after power-up, with rounding to floor. So the
        results show whether a kernel relies on a mode that another kernel set.

        Args:
            kernel: the kernel to call.
            arguments: in the kernel's order, an ndarray for an `Array` (its dtype, C-contiguous, as
                many bytes or more, aligned to 64 bytes) and an int for an int32_t.

        Raises:
            SimulationError: the library has no such kernel, an argument is not as described or
                reaches outside of the buffers (`Kernel.limits`), or the kernel has broken a rule of
                the chip or its compiler, such as an alignment or a loop's least number of
                iterations.
        """
        entry = self._entries.get(id(kernel))
        if entry is None:
            entry = self._entries[id(kernel)] = self._find(kernel)
        function, expected, _ = entry
        if len(arguments) != len(expected):
            raise SimulationError(
                f"{kernel.name} takes {len(expected)} arguments, got {len(arguments)}"
            )
        passed: list[int] = []
        for argument, wanted in zip(arguments, expected, strict=True):
            if wanted is None:
                passed.append(argument)
                continue
            dtype, size = wanted
            if (
                not isinstance(argument, np.ndarray)
                or argument.dtype != dtype
                or argument.nbytes < size
                or not argument.flags.c_contiguous
            ):
                raise SimulationError(_complaint(kernel, len(passed), argument))
            address = argument.__array_interface__["data"][0]
            if address % ALIGNMENT:
                raise SimulationError(_complaint(kernel, len(passed), argument))
            passed.append(address)
        try:
            words = _Arguments(*passed)
        except TypeError as error:
            raise SimulationError(
                f"{kernel.name} takes an int for each scalar argument: {error}"
            ) from error
        if kernel.limits is not None:
            scalars = tuple(a for a, e in zip(passed, expected, strict=True) if e is None)
            if not kernel.limits(scalars):
                raise SimulationError(
                    f"{kernel.name} would reach outside of its buffers with the scalar arguments "
                    f"{scalars}"
                )
        broken = self._call(function, words)
        if broken is not None:
            raise SimulationError(f"{kernel.name} has stopped: {broken.decode()}")

    def _find(self, kernel: Kernel) -> _Entry:
        if self.architecture not in kernel.architectures:
            raise SimulationError(
                f"{kernel.name} exists for {', '.join(kernel.architectures)}, "
                f"not for {self.architecture}"
            )
        if len(kernel.arguments) > _MAX_ARGUMENTS:
            raise SimulationError(
                f"{kernel.name} takes {len(kernel.arguments)} arguments; the host supports up to "
                f"{_MAX_ARGUMENTS}"
            )
        try:
            function = self._library[kernel.name]
        except AttributeError as error:
            raise SimulationError(
                f"the library of kernels for {self.architecture} has no {kernel.name} "
                f"({kernel.source}): reinstall the package ort_aie_ep"
            ) from error
        expected = tuple(
            (DTYPES[a.element], a.bytes) if isinstance(a, Array) else None for a in kernel.arguments
        )
        return ctypes.cast(function, ctypes.c_void_p), expected, kernel


def _complaint(kernel: Kernel, index: int, argument: Any) -> str:
    wanted = kernel.arguments[index]
    assert isinstance(wanted, Array)
    if not isinstance(argument, np.ndarray):
        got = f"a {type(argument).__name__}"
    else:
        offset = argument.__array_interface__["data"][0] % ALIGNMENT
        got = (
            f"{argument.dtype} of {argument.nbytes} bytes, "
            f"{'contiguous' if argument.flags.c_contiguous else 'not contiguous'}, "
            f"{offset} bytes past a multiple of {ALIGNMENT}"
        )
    return (
        f"argument {index} of {kernel.name} must be a contiguous ndarray of "
        f"{DTYPES[wanted.element]} with {wanted.bytes} bytes or more, aligned to "
        f"{ALIGNMENT}; got {got}"
    )
