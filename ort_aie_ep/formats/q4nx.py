"""Q4NX and Q2NX: weights of 4 and 2 bits in the blocks that AMD Ryzen AI NPUs stream.

A weight matrix (N out-features, K in-features) is cut into blocks of 32 x 256, row-major. A form
says how many in-features share a scale and a minimum, its group (32, 64, 128 or 256), and whether
the minima are stored: those of symmetric weights, -2^(bits-1) * scale, need not be. A block is

    S bytes      scales, bfloat16, index (k // group) * 32 + n; S = 64 * 256 / group
    S bytes      minima, bfloat16, same index, if they are stored
    4,096 bytes  Q4NX: codes, byte (n // 16) * 2048 + k * 8 + (n % 16) // 2, low nibble for even n
    2,048 bytes  Q2NX: two bit planes, byte (k // 4) * 32 + (n // 2) * 2 + plane, low nibble for
                 even n; bit k % 4 of a nibble is bit `plane` of the code

and weight(n, k) = scale * code + min. N and K are padded with scale 0, min 0 and code 0.

Q4NX with groups of 32 and minima, 5,120 bytes, is the order of `.q4nx` files (*Efficient LLM
Decoding on Ryzen AI NPUs*, III-A2). In Q2NX a nibble holds one bit of four codes, and the nibbles
of 32 out-features are adjacent. They are the indices of lookups in a table of 16 sums of four
activations, and of the first of two lookups that dequantise (*T-MAN*, 4.1, the unified layout).

`ort_aie_ep._native` packs, unpacks and dequantises them; tests/numpy_q4nx.py is the definition in
numpy. `_native` also packs Q8NX, weights of 8 bits (docs/weights.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from ort_aie_ep.errors import AieError

BLOCK_ROWS = 32
BLOCK_COLS = 256
BLOCK_WEIGHTS = BLOCK_ROWS * BLOCK_COLS
GROUP = 32
GROUPS = (32, 64, 128, 256)

Array = npt.NDArray[Any]
bfloat16 = np.dtype(ml_dtypes.bfloat16)


@dataclass(frozen=True)
class BlockForm:
    """How quantised weights are stored. The default is that of `.q4nx` files.

    `minima` says whether they are stored; of 8 bits, whether zero points are.

    Raises:
        AieError: bits are not 2, 4 or 8, or the group is not 32, 64, 128 or 256.
    """

    bits: int = 4
    group: int = GROUP
    minima: bool = True

    def __post_init__(self) -> None:
        if self.bits not in (2, 4, 8):
            raise AieError(f"bits must be 2 (Q2NX), 4 (Q4NX) or 8 (Q8NX), got {self.bits}")
        if self.group not in GROUPS:
            raise AieError(f"group must be one of {GROUPS}, got {self.group}")

    @classmethod
    def smallest(cls, bits: int, block_size: int, *, symmetric: bool) -> BlockForm:
        """The smallest form of weights whose scales are for `block_size` in-features each, a
        multiple of 32; symmetric ones have zero point 2^(bits - 1) everywhere."""
        group = next(group for group in reversed(GROUPS) if block_size % group == 0)
        return cls(bits, group, not symmetric)

    def __str__(self) -> str:
        """For people: bits of a code, the group, and stored bits a weight."""
        minima = "zero points" if self.bits == 8 else "minima"
        return (
            f"{self.bits}-bit codes in groups of {self.group}{f', {minima}' * self.minima}: "
            f"{self.bits_a_weight:.3g} bits a weight"
        )

    @property
    def scales(self) -> int:
        """Scales of a block, and as many minima."""
        return BLOCK_COLS // self.group * BLOCK_ROWS

    @property
    def block_bytes(self) -> int:
        """Bytes of a block."""
        number = 4 + self.minima if self.bits == 8 else 2 + 2 * self.minima
        return BLOCK_WEIGHTS * self.bits // 8 + number * self.scales

    @property
    def bits_a_weight(self) -> float:
        """Stored bits of a weight, with its part of scales and minima."""
        return 8 * self.block_bytes / BLOCK_WEIGHTS

    def blocks_shape(self, n: int, k: int) -> tuple[int, int, int]:
        """Shape of the packed tensor: (ceil(n / 32), ceil(k / 256), block_bytes)."""
        return -(-n // BLOCK_ROWS), -(-k // BLOCK_COLS), self.block_bytes

    def attributes(self) -> dict[str, int]:
        """The attributes of an op with such weights: bits unless it is 4; format 1, or 2 with group
        and minima."""
        given = {} if self.bits == 4 else {"bits": self.bits}
        if self.group == GROUP and self.minima:
            return given | {"format": 1}
        return given | {"format": 2, "group": self.group, "minima": int(self.minima)}

    @classmethod
    def of(cls, attributes: Mapping[str, int]) -> BlockForm:
        """The form that an op's attributes state."""
        return cls(
            attributes.get("bits", 4),
            attributes.get("group", GROUP),
            bool(attributes.get("minima", 1)),
        )

    def check(self, blocks: Array, n: int, k: int) -> None:
        """Raises AieError when blocks are not a packed (n, k) matrix of this form."""
        if blocks.dtype != np.uint8 or blocks.shape != self.blocks_shape(n, k):
            raise AieError(
                f"blocks of a ({n}, {k}) matrix must be uint8 {self.blocks_shape(n, k)}, "
                f"got {blocks.dtype} {blocks.shape}"
            )


#: All forms of Q4NX.
FORMS = tuple(BlockForm(4, group, minima) for group in GROUPS for minima in (True, False))
# The form of `.q4nx` files, and the places in its blocks.
SHIPPING = BlockForm()
BLOCK_BYTES = SHIPPING.block_bytes
MINIMA_BYTES = 512
CODES_OFFSET = 1024


def blocks_shape(n: int, k: int, bits: int = 4) -> tuple[int, int, int]:
    """`BlockForm.blocks_shape` with groups of 32 and minima."""
    return BlockForm(bits).blocks_shape(n, k)
