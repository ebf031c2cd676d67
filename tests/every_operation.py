"""Writes every operation of TXN binaries that `simulator.txn` reads.

Sources: mlir-aie's TxnEncoding.h, aie-rt's xaie_txn.h, aiebu's preprocessor of transactions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ort_aie_ep.npu.terms.configuration import Direction
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


class EveryOperation(TransactionWriter):
    def wait(
        self, column: int, row: int, direction: Direction, channel: int, columns: int = 1,
        rows: int = 1,
    ) -> None:  # fmt: skip
        """Wait for one token from `channel` of every tile of a rectangle."""
        tile = int(direction == "MM2S") | fits(row, 8, "a row") << 8
        rectangle = fits(rows, 8, "rows") << 8 | fits(columns, 8, "columns") << 16
        self.add(
            0x80, 0x10, tile | fits(column, 8, "a column") << 16,
            rectangle | fits(channel, 8, "a channel") << 24,
        )  # fmt: skip

    def address_patch(self, address: int, argument: int, offset: int) -> None:
        """Add the address of argument `argument` of the run, and `offset`, to two words."""
        if not 0 <= argument <= 31:
            raise StreamError(f"an address patch names argument 0 to 31, got {argument}")
        plus = _long(offset + (0x80000000 if argument >= 5 else 0))
        self.add(0x81, 0x30, 0, 0, 0, 0, word(address), 0, argument, 0, *plus)


def _long(value: int) -> tuple[int, int]:
    fits(value, 64, "an address")
    return value & 0xFFFFFFFF, value >> 32


def fits(value: int, bits: int, what: str) -> int:
    """`value`, which must fit in `bits` bits. Raises StreamError."""
    if not 0 <= value < 1 << bits:
        raise StreamError(f"{what} must be 0 to {(1 << bits) - 1}, got {value}")
    return value


def word(value: int) -> int:
    """`value`, which must fit in a word. Raises StreamError."""
    return fits(value, 32, "a word")
