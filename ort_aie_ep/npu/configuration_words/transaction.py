"""Writes configurations as TXN binaries, version 0.1.

    out = TransactionWriter(device("npu2"))
    out.write(address, value)
    words = out.finish()

The C++ encoder (src/npu/txn.cc) writes the streams that run. Sources: mlir-aie's TxnEncoding.h,
aie-rt's xaie_txn.h.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ort_aie_ep.npu.terms.device import Device
from ort_aie_ep.npu.terms.errors import StreamError

_MEMORY_ROWS = 1


class TransactionWriter:
    """Appends operations; `finish` returns the words, header included.

    Every method raises StreamError for a value that does not fit its field.
    """

    def __init__(self, device: Device, *, columns: int | None = None) -> None:
        self._head = [
            device.rows << 24 | device.generation << 16 | 1 << 8,
            _MEMORY_ROWS << 8 | fits(device.columns if columns is None else columns, 8, "columns"),
        ]
        self._body: list[int] = []
        self.operations = 0

    def finish(self) -> npt.NDArray[np.uint32]:
        """The words of the transaction."""
        size = 4 * (len(self._body) + 4)
        return np.array([*self._head, self.operations, size, *self._body], dtype=np.uint32)

    def add(self, *words: int) -> None:
        """Append an operation of these words."""
        self._body += words
        self.operations += 1

    def write(self, address: int, value: int) -> None:
        """Write `value` to the register at `address`."""
        self.add(0, 0, word(address), 0, word(value), 0x18)

    def block_write(self, address: int, values: Sequence[int]) -> None:
        """Write `values` to the registers from `address` on."""
        if not values:
            raise StreamError("a block write needs at least one word, got none")
        size = 16 + 4 * len(values)
        self.add(1, 0, word(address), size, *(word(value) for value in values))

    def mask_write(self, address: int, value: int, mask: int) -> None:
        """Set the bits of `mask` at `address` to those of `value`."""
        self.add(3, 0, word(address), 0, word(value), word(mask), 0x1C)


def fits(value: int, bits: int, what: str) -> int:
    """`value`, which must fit in `bits` bits. Raises StreamError."""
    if not 0 <= value < 1 << bits:
        raise StreamError(f"{what} must be 0 to {(1 << bits) - 1}, got {value}")
    return value


def word(value: int) -> int:
    """`value`, which must fit in a word. Raises StreamError."""
    return fits(value, 32, "a word")
