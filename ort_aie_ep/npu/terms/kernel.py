"""What a design and the simulator know of a kernel: its symbol, its arguments, its cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import ml_dtypes
import numpy as np

ElementType = Literal["u8", "bf16", "i32", "f32"]

DTYPES: dict[str, np.dtype] = {
    "u8": np.dtype(np.uint8),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "i32": np.dtype(np.int32),
    "f32": np.dtype(np.float32),
}


@dataclass(frozen=True)
class Array:
    """A buffer in L1 that a kernel takes by pointer: `count` elements of `element`."""

    element: ElementType
    count: int

    @property
    def bytes(self) -> int:
        """Size in bytes."""
        return self.count * DTYPES[self.element].itemsize

    def __str__(self) -> str:
        return f"{self.count} {self.element}"


@dataclass(frozen=True)
class Kernel:
    """One `extern "C"` entry point of a source in `aie_kernels/`.

    `arguments` has an `Array` for each pointer and `int` for each `int32_t`, in the order of the C
    signature. `cycles(arch, scalars)` is the modelled time of a call in core cycles, given the
    architecture ("aie2", "aie2p") and the scalar arguments in order; its module says what each
    model is based on. `architectures` are those for which the source compiles. `limits(scalars)`
    says whether the scalar arguments keep a call inside its buffers. It is None where nothing
    can tell; callers must then not invent scalar arguments.
    """

    name: str
    source: str
    arguments: tuple[Array | type[int], ...]
    cycles: Callable[[str, tuple[int, ...]], float]
    architectures: tuple[str, ...] = ("aie2", "aie2p")
    limits: Callable[[tuple[int, ...]], bool] | None = None
