"""bfp16ebs8, the block floating point of AIE2P's matrix unit: eight values share an exponent.

A block is 9 bytes: the biased exponent e, then eight signed mantissas m, and a value is

    m * 2^(e - 133)

e is the largest exponent field of the eight float32 values, so the largest value has a mantissa of
64 .. 127, and each mantissa is rounded in the core's current mode. If one is rounded up to 128, e
grows by one and all eight are rounded again. Zeros and subnormal values become mantissas of 0; a
block of them has e = 0. Infinities and NaNs are not special: their field is 255, and their
mantissas are those of their significands, 64 and, for the usual NaN, 96.

With the nearest mantissa, a value is off by at most half of its block's unit, and the largest value
has at least 63.75 units. So the error is at most `ERROR` = 2/255 of the largest value; half a unit
in the bfloat16 of the same value is 2^-9 to 2^-8 of the value itself.

Sources: the layout and the rounding of AMD's packer (amd/IRON `flm/packing.py`), which the device's
results equal byte for byte in its tests; every rounding mode, the growth of e, subnormal and
exceptional values of 64 at a time, recorded from a chip by MicroPerceptron/virtio-accel
(`research/bfp16ebs8`). The packer saturates where the chip lets e grow. What a chip makes of a
mantissa of 128 beside the largest finite exponent has not been published; here e becomes 255, the
field of infinities.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ort_aie_ep.errors import AieError

BLOCK = 8
BLOCK_BYTES = 9
#: Largest error of a value rounded to nearest, relative to the largest value of its block.
ERROR = 2 / 255

Array = npt.NDArray[Any]


def encode(values: Array, rounding: Callable[[Array], Array] = np.rint) -> npt.NDArray[np.uint8]:
    """Blocks along the last axis: (..., 8 n) of any float type as (..., 9 n) bytes.

    `rounding` maps float64 to whole numbers; the default is to nearest, ties to even, as all
    kernels here set it. Raises AieError unless the last axis is a multiple of 8.
    """
    if values.shape[-1] % BLOCK:
        raise AieError(f"bfp16: the last axis of {values.shape} must be a multiple of {BLOCK}")
    bits = values.astype(np.float32).view(np.uint32).reshape(*values.shape[:-1], -1, BLOCK)
    field = (bits >> 23 & 0xFF).astype(np.int32)
    significand = np.where(field > 0, bits & 0x7FFFFF | 0x800000, 0).astype(np.float64)
    signed = np.where(bits >> 31 == 1, -significand, significand)

    largest = field.max(axis=-1, keepdims=True)
    grown = largest + (rounding(_shifted(signed, field, largest)) > 127).any(-1, keepdims=True)
    exponent = np.minimum(grown, 255)
    mantissas = np.clip(rounding(_shifted(signed, field, exponent)), -128, 127)

    blocks = np.concatenate([exponent, mantissas.astype(np.int32)], axis=-1).astype(np.uint8)
    return blocks.reshape(*values.shape[:-1], -1)


def _shifted(significand: Array, field: Array, exponent: Array) -> Array:
    """A 24-bit significand in units of a block with this exponent: exact."""
    shifted: Array = np.ldexp(significand, field - exponent - 17)
    return shifted


def decode(blocks: Array) -> Array:
    """The values of blocks, (..., 9 n) bytes as (..., 8 n) float64. Exact."""
    parts = blocks.reshape(*blocks.shape[:-1], -1, BLOCK_BYTES)
    mantissas = parts[..., 1:].astype(np.uint8).view(np.int8).astype(np.float64)
    values: Array = np.ldexp(mantissas, parts[..., :1].astype(np.int32) - 133)
    return values.reshape(*blocks.shape[:-1], -1)
