"""The part of mlir-aie's Python interface that the lowering uses, of the newest generation only.

The interface changed three times in 2026: up to 1.3 (a runtime with `rt.sequence`, placers), 1.4.0
to 1.4.3 (sequence functions, `dims_to_stream`), and 1.4.4 on (`to_stream`, keyword-only arguments,
tiles with types). Only the last is spoken here. The version is looked at first, then the signatures
that matter, because development versions carry the next release's number before they are there.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import numpy as np

from ort_aie_ep.aie_kernels.iron.toolchain import INSTALL, ToolchainError

MINIMUM = (1, 4, 4)

# What must be there, by object. A parameter that is missing is an older interface.
_NEEDED: dict[str, tuple[str, ...]] = {
    "ObjectFifo": (
        "depth", "name", "to_stream", "repeat_count", "delegate_tile", "via_DMA",
        "consumer_obj_type", "packet", "packet_id",
    ),
    "ObjectFifo.prod": ("depth", "channel", "tile"),
    "ObjectFifo.cons": ("depth", "from_stream", "channel", "tile"),
    "ObjectFifoLink": ("srcs", "dsts", "tile", "src_offsets", "dst_offsets"),
    "Worker": ("fn_args", "tile", "stack_size", "dynamic_objfifo_lowering"),
    "Buffer": ("name", "tile", "use_write_rtp", "address"),
    "Lock": ("tile", "lock_id", "init", "name"),
    "Runtime": ("seq_fn", "fn_args"),
    "Program": ("workers",),
    "Tile": ("tile_type",),
}  # fmt: skip


@dataclass(frozen=True)
class Iron:
    """mlir-aie's classes and functions under their own names; `version` is the package's."""

    version: str
    ObjectFifo: Any
    ObjectFifoLink: Any
    Worker: Any
    Kernel: Any
    Buffer: Any
    Lock: Any
    Runtime: Any
    Program: Any
    TaskGroup: Any
    Tile: Any
    AIETileType: Any
    TensorAccessPattern: Any
    range_: Callable[..., Any]
    devices: Any
    _index_cast: Callable[..., Any]
    _types: Any

    def device(self, name: str) -> Any:
        """The device `name` ("npu2", "npu2_4col") as an object of IRON's.

        IRON's classes are NPU1, NPU1Col1 .., NPU2, NPU2Col1 .. (python/iron/device).
        """
        base, _, columns = name.partition("_")
        called = base.upper() + (f"Col{columns.removesuffix('col')}" if columns else "")
        return getattr(self.devices, called)()

    def to_i32(self, index: Any) -> Any:
        """A loop's index as the i32 that kernels take: `range_` gives MLIR's index type."""
        return self._index_cast(index, to=self._types.i32())


def array_of(count: int, dtype: np.dtype[Any]) -> Any:
    """IRON's type of an array: `np.ndarray[(count,), np.dtype[T]]`."""
    array: Any = np.ndarray
    element: Any = np.dtype
    return array[(count,), element[dtype.type]]


def installed_version() -> str:
    """The version of mlir_aie. Raises ToolchainError when it is missing or too old."""
    try:
        version = metadata.version("mlir_aie")
    except metadata.PackageNotFoundError:
        raise ToolchainError(f"mlir_aie is not installed in this Python.\n{INSTALL}") from None
    numbers = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    if numbers is None or tuple(int(n) for n in numbers.groups()) < MINIMUM:
        raise ToolchainError(
            f"mlir_aie {version} is installed; 1.4.4 or later is needed, because its Python "
            f"interface is another one before that.\n{INSTALL}"
        )
    return version


def load() -> Iron:
    """Import mlir-aie. Raises ToolchainError when it is missing or has another interface."""
    version = installed_version()
    try:
        iron = importlib.import_module("aie.iron")
        device = importlib.import_module("aie.iron.device")
        loaded = Iron(
            version=version,
            ObjectFifo=iron.ObjectFifo,
            ObjectFifoLink=importlib.import_module("aie.iron.dataflow").ObjectFifoLink,
            Worker=iron.Worker,
            Kernel=iron.Kernel,
            Buffer=iron.Buffer,
            Lock=iron.Lock,
            Runtime=iron.Runtime,
            Program=iron.Program,
            TaskGroup=iron.TaskGroup,
            Tile=device.Tile,
            AIETileType=importlib.import_module("aie.dialects._aie_enum_gen").AIETileType,
            TensorAccessPattern=importlib.import_module("aie.helpers.taplib").TensorAccessPattern,
            range_=importlib.import_module("aie.iron.controlflow").range_,
            devices=device,
            _index_cast=importlib.import_module("aie.extras.dialects.arith").index_cast,
            _types=importlib.import_module("aie.extras.types"),
        )
    except (ImportError, AttributeError) as error:
        raise ToolchainError(
            f"mlir_aie {version} does not have what is needed of it: {error}.\n{INSTALL}"
        ) from error
    for name, parameters in _NEEDED.items():
        found: Any = loaded
        for part in name.split("."):
            found = getattr(found, part)
        missing = set(parameters) - set(inspect.signature(found).parameters)
        if missing:
            raise ToolchainError(
                f"mlir_aie {version}: {name} has no parameter {', '.join(sorted(missing))}, as the "
                f"interface of 1.4.4 and later has.\n{INSTALL}"
            )
    return loaded
