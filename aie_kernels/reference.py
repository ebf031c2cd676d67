"""What the operators' references share: numbers, their roundings, and what a problem is.

Kernels' tests, designs' tests and `ort-aie validate` compare with the references of the operators'
folders, in numpy and float64. A tolerance is derived from the roundings of a kernel, never tuned;
each function names these roundings. Operands are float64 arrays of values that bfloat16 can
represent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ort_aie_ep import _native
from ort_aie_ep.formats import bfp16 as block_format
from ort_aie_ep.formats.q4nx import BLOCK_COLS, BLOCK_ROWS, SHIPPING, BlockForm
from ort_aie_ep.npu.terms.design import Design
from ort_aie_ep.npu.terms.device import Device
from ort_aie_ep.npu.terms.errors import DesignError
from ort_aie_ep.npu.terms.sequence import evaluate

BF16 = np.dtype(ml_dtypes.bfloat16)

# Largest relative error of rounding to bfloat16 (8 significant bits) to nearest.
U_BF16 = 2.0**-8
# Largest error of bfp16, relative to the largest value of a block of 8.
U_BFP16 = block_format.ERROR
# Largest relative error of a product of two limbs each (float_math.h).
U_LIMBS = 2.0**-15
# Below the smallest normal bfloat16 relative errors mean nothing.
TINY = 2.0**-120
EPS = 1e-6
MAX_BYTES = 1 << 30  # several times the weights of the largest projection that is tried

Doubles = NDArray[np.float64]
Buffers = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Reference:
    """`exact`, and for each element how far a result may be from it; arrays of the same shape."""

    exact: Doubles
    tolerance: Doubles


def exactly(values: NDArray[Any]) -> Reference:
    """No error is allowed."""
    exact = doubles(values)
    return Reference(exact, np.zeros_like(exact))


# --- numbers --------------------------------------------------------------------------------------
def bits(value: float) -> int:
    """The bit pattern of an fp32 scalar, as a kernel takes it."""
    return int(np.float32(value).view(np.int32))


def value(pattern: int) -> float:
    """The fp32 scalar of a bit pattern."""
    return float(np.int32(pattern).view(np.float32))


def bf16(values: NDArray[Any] | float) -> Doubles:
    """Rounded to bfloat16."""
    narrowed: Doubles = np.asarray(values, np.float32).astype(BF16).astype(np.float64)
    return narrowed


def bfp16(values: Doubles, axis: int) -> Doubles:
    """Rounded to bfp16: along `axis`, 8 values share the exponent of the largest."""
    rounded = block_format.decode(block_format.encode(np.moveaxis(values, axis, -1)))
    return np.moveaxis(rounded, -1, axis)


def rounded(exact: Doubles, relative: float, mass: Doubles | None = None) -> Reference:
    """One rounding to bfloat16 of a value whose error is `relative` of its `mass` (itself)."""
    mass = np.abs(exact) if mass is None else mass
    return Reference(exact, U_BF16 * np.abs(exact) + relative * mass + TINY)


def doubles(values: NDArray[Any]) -> Doubles:
    """float64 values, as the references need them."""
    with np.errstate(invalid="ignore"):  # NaN, where nobody wrote
        return values.astype(np.float64)


def random_blocks(
    rng: np.random.Generator, n: int, k: int, form: BlockForm = SHIPPING
) -> NDArray[np.uint8]:
    """Q4NX (n/32 * k/256 * block bytes,) uint8: random codes, scales for outputs around one."""
    blocks = n // BLOCK_ROWS * (k // BLOCK_COLS)
    scales = (rng.uniform(0.5, 1.5, (blocks, form.scales)) / (4 * np.sqrt(k))).astype(BF16)
    mins = (-7.5 * scales.astype(np.float64)).astype(BF16)
    codes = rng.integers(0, 256, (blocks, 4096), dtype=np.uint8)
    parts = [scales.view(np.uint8), *([mins.view(np.uint8)] if form.minima else []), codes]
    return np.ascontiguousarray(np.concatenate(parts, axis=1)).reshape(-1)


def dequantized(blocks: NDArray[np.uint8], n: int, k: int, form: BlockForm) -> NDArray[np.float32]:
    """Weights (n, k) of blocks, of any shape, in a form."""
    shaped = blocks.reshape(form.blocks_shape(n, k))
    return _native.dequantize(shaped, n, k, form.group, form.minima)


# --- problems -------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Output:
    """A part of a result: `got` and the reference, of the same shape."""

    name: str
    got: Doubles
    reference: Reference


@dataclass(frozen=True)
class Problem:
    """A call of `sequence`: `buffers` by argument; `judge` receives them after the run.

    Outputs hold NaN before the run, so that elements that nobody wrote are detected.
    """

    sequence: str
    parameters: dict[str, int]
    buffers: Buffers
    judge: Callable[[Mapping[str, NDArray[Any]]], list[Output]]


@dataclass(frozen=True)
class Context:
    """A device, and the arguments of a sequence."""

    device: Device
    places: dict[str, Any]  # bytes of each argument, as the manifest has them
    form: BlockForm = SHIPPING  # of quantised weights

    @staticmethod
    def of(design: Design, sequence: str) -> Context:
        """That of a sequence of a design."""
        arguments = design.sequences[sequence].to_json()["arguments"]
        return Context(design.device, {a["name"]: a["bytes"] for a in arguments}, design.form)

    def size(self, argument: str, parameters: Mapping[str, int]) -> int:
        """Bytes that an argument needs. Raises DesignError if the sequence has no such argument."""
        if argument not in self.places:
            raise DesignError(f"the sequence has no argument {argument}")
        return argument_bytes(argument, self.places[argument], parameters)


def argument_bytes(name: str, bytes: Any, parameters: Mapping[str, int]) -> int:
    """The size of an argument. Raises DesignError for one that no shape here can have."""
    size = evaluate(bytes, parameters)
    if not 0 <= size <= MAX_BYTES:
        raise DesignError(
            f"the sequence's argument {name} has {size} bytes; expected 0 to {MAX_BYTES}"
        )
    return size


def generator(parameters: Mapping[str, int]) -> np.random.Generator:
    """Random numbers that depend only on the shape."""
    return np.random.default_rng([abs(value) for value in parameters.values()])


def nan(*shape: int) -> NDArray[Any]:
    """An output that nobody has written."""
    return np.full(shape, np.nan, BF16)
