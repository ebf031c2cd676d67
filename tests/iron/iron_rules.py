"""The ground of the recorder: rules, tiles, patterns, and what has been made so far."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, get_args

import numpy as np
from iron_signatures import bind


class Violation(Exception):
    """A rule of the interface or of the hardware is broken."""


def rule(holds: object, text: str) -> None:
    if not holds:
        raise Violation(text)


class AIETileType(Enum):
    CoreTile = 1
    MemTile = 2
    ShimNOCTile = 3


class Bound:
    """Base of the stand-ins: `self.given` has the arguments by name."""

    fact = ""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.given = bind(self.fact or type(self).__name__, args, kwargs)
        self.setup(**self.given)

    def setup(self, **given: Any) -> None:
        raise NotImplementedError


def array(array_type: Any) -> tuple[int, np.dtype[Any]]:
    """(count, dtype) of `np.ndarray[(count,), np.dtype[T]]`."""
    shape, dtype = get_args(array_type)
    return math.prod(shape), np.dtype(get_args(dtype)[0])


def whole_words(array_type: Any, what: str) -> None:
    # Everything that moves is a multiple of 4 bytes (AM020; mlir-aie's DMA verifier).
    count, dtype = array(array_type)
    rule(count > 0 and count * dtype.itemsize % 4 == 0, f"{what}: {count} x {dtype} is not words")


# --- tiles and devices ----------------------------------------------------------------------------
class Tile(Bound):
    def setup(self, col: int | None, row: int | None, tile_type: AIETileType | None) -> None:
        self.col, self.row, self.tile_type = col, row, tile_type
        rule(col is not None and row is not None, "a tile of ours is always placed")
        kind = {0: AIETileType.ShimNOCTile, 1: AIETileType.MemTile}.get(row or 0)
        rule(tile_type == (kind or AIETileType.CoreTile), f"tile ({col}, {row}) is no {tile_type}")
        STATE.tiles.append(self)

    @property
    def place(self) -> tuple[int, int]:
        return (self.col or 0, self.row or 0)


def check_tiles() -> None:
    # Two Tile objects of one place can become two tiles.
    for place, count in Counter(tile.place for tile in STATE.tiles).items():
        rule(count == 1, f"{count} Tile objects at {place}")


@dataclass
class Device:
    name: str


def make_device(name: str) -> Callable[[], Device]:
    # The classes that python/iron/device generates; NPU2Col8 is not among them for certain.
    known = ["NPU1", "NPU2", *(f"NPU1Col{i}" for i in range(1, 5))]
    known += [f"NPU2Col{i}" for i in range(1, 8)]
    if name not in known:
        raise AttributeError(name)
    return lambda: Device(name)


# --- patterns -------------------------------------------------------------------------------------
class TensorAccessPattern(Bound):
    def setup(self, tensor_dims: Any, offset: int, sizes: Any, strides: Any) -> None:
        rule(len(sizes) == len(strides) > 0, f"{len(sizes)} sizes and {len(strides)} strides")
        rule(all(n >= 1 for n in sizes), f"sizes {sizes}")
        rule(all(s >= 0 for s in strides), f"strides {strides}")
        self.numel = math.prod(tensor_dims)
        self.offset, self.sizes, self.strides = offset, list(sizes), list(strides)
        last = offset + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
        rule(offset >= 0 and last < self.numel, f"pattern ends at {last} of {self.numel}")

    @property
    def moved(self) -> int:
        return math.prod(self.sizes)

    def elements(self) -> np.ndarray[Any, Any]:
        """Indices of the elements, in order."""
        total = np.array([self.offset], dtype=np.int64)
        for n, s in zip(self.sizes, self.strides, strict=True):
            total = (total[:, None] + np.arange(n) * s).ravel()
        return total


def check_walk(
    tap: Any, itemsize: int, dimensions: int, wrap: int, step: int, count: int | None = None
) -> None:
    """4-byte granularity, what a descriptor has room for (field widths: AM020, aie-rt), and, of a
    static one, how many elements mlir-aie counts."""
    words = 4 // itemsize if itemsize < 4 else 1
    sizes, strides = list(tap.sizes), list(tap.strides)
    rule(tap.offset % words == 0, f"offset of {tap.offset * itemsize} bytes")
    rule(
        all(s % words == 0 for s, n in zip(strides[:-1], sizes[:-1], strict=True) if n > 1),
        f"strides {strides} of {itemsize}-byte elements are not words",
    )
    # An innermost stride other than 1 is legal for 4-byte elements only.
    rule(strides[-1] == 1 or itemsize == 4, f"innermost stride {strides[-1]}")
    rule(sizes[-1] % words == 0, f"innermost run of {sizes[-1] * itemsize} bytes")
    rule(len(sizes) <= dimensions, f"{len(sizes)} dimensions, {dimensions} at most")
    inner = [n // words if i == len(sizes) - 1 else n for i, n in enumerate(sizes)]
    rule(all(n <= wrap for n in inner[1:]), f"sizes {inner} in words, {wrap} at most")
    rule(all(s // words <= step for s in strides), f"strides {strides}, {step} words at most")
    if count is not None:
        rule(all(n <= count for n in sizes), f"sizes {sizes} in elements, {count} at most")
        rule(all(s <= tap.numel for s in strides), f"strides {strides} beyond {tap.numel}")


# --- what has been made ---------------------------------------------------------------------------
@dataclass
class State:
    """Everything of the program at hand; `core` and `sequence` are what is being traced."""

    tiles: list[Tile] = field(default_factory=list)
    fifos: list[Any] = field(default_factory=list)
    buffers: list[Any] = field(default_factory=list)
    locks: list[Any] = field(default_factory=list)
    kernels: list[Any] = field(default_factory=list)
    core: Any = None
    sequence: Any = None


STATE = State()


def forget() -> None:
    """Start over: names, tiles and locks of earlier programs no longer count."""
    vars(STATE).update(vars(State()))


def in_core() -> Any:
    rule(STATE.core is not None, "only inside of a core's function")
    return STATE.core


def in_sequence() -> Any:
    rule(STATE.sequence is not None, "only inside of a runtime's sequence")
    return STATE.sequence
