"""Writes TXN binaries, version 0.1: every operation that `simulator.txn` reads.

    out = TransactionWriter(device("npu2"))
    out.load_pdi(3)
    out.mask_poll(address, value=0, mask=1 << 22)
    words = out.finish()

The C++ encoder (src/npu/txn.cc) writes the streams that run, and has only the operations that they
need. This encoder is for configurations and for tests of the reader. Sources: mlir-aie's
TxnEncoding.h, aie-rt's xaie_txn.h, aiebu's preprocessor of transactions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ort_aie_ep.npu.vocabulary.configuration import Direction
from ort_aie_ep.npu.vocabulary.device import Device
from ort_aie_ep.npu.vocabulary.errors import StreamError

_MEMORY_ROWS = 1


class TransactionWriter:
    """Appends operations; `finish` returns the words, header included.

    Every method raises StreamError for a value that does not fit its field.
    """

    def __init__(self, device: Device, *, columns: int | None = None) -> None:
        self._head = [
            device.rows << 24 | device.generation << 16 | 1 << 8,
            _MEMORY_ROWS << 8 | _fits(device.columns if columns is None else columns, 8, "columns"),
        ]
        self._body: list[int] = []
        self.operations = 0

    def finish(self) -> npt.NDArray[np.uint32]:
        """The words of the transaction."""
        size = 4 * (len(self._body) + 4)
        return np.array([*self._head, self.operations, size, *self._body], dtype=np.uint32)

    def _add(self, *words: int) -> None:
        self._body += words
        self.operations += 1

    def write(self, address: int, value: int) -> None:
        """Write `value` to the register at `address`."""
        self._add(0, 0, _word(address), 0, _word(value), 0x18)

    def block_write(self, address: int, values: Sequence[int]) -> None:
        """Write `values` to the registers from `address` on."""
        if not values:
            raise StreamError("a block write needs at least one word, got none")
        size = 16 + 4 * len(values)
        self._add(1, 0, _word(address), size, *(_word(value) for value in values))

    def mask_write(self, address: int, value: int, mask: int) -> None:
        """Set the bits of `mask` at `address` to those of `value`."""
        self._add(3, 0, _word(address), 0, _word(value), _word(mask), 0x1C)

    def mask_poll(self, address: int, value: int, mask: int, *, busy: bool = False) -> None:
        """Wait until (register & mask) == value; `busy` for the variant that does not yield."""
        self._add(7 if busy else 4, 0, _word(address), 0, _word(value), _word(mask), 0x1C)

    def noop(self) -> None:
        """Do nothing."""
        self._add(5)

    def preempt(self, level: int) -> None:
        """Mark a place for preemption; 0 none, 1 memory tiles, 2 AIE tiles, 3 AIE registers."""
        if not 0 <= level <= 3:
            raise StreamError(f"a level of preemption is 0 to 3, got {level}")
        self._add(6 | level << 8)

    def load_pdi(self, identifier: int, size: int = 0, address: int = 0) -> None:
        """Load the configuration `identifier`; one of the context's if `address` is 0."""
        low, high = _long(address)
        self._add(8 | _fits(identifier, 16, "the id of a PDI") << 16, _word(size), low, high)

    def create_scratchpad(self, usage: int, size: int, address: int = 0) -> None:
        """Create a state table of `size` bytes at `address`."""
        if not 0 <= size <= 128 or size % 4:
            raise StreamError(f"a state table has a multiple of 4 up to 128 bytes, got {size}")
        self._add(10 | _fits(usage, 8, "the usage") << 8, size, *_long(address))

    def update_state_table(self, entry: int, function: int, argument: int) -> None:
        """Apply `function` (0 multiply and add, 1 add, 2 subtract) with `argument` to an entry."""
        self._add(_table(11, entry, function), _word(argument))

    def update_register(self, entry: int, function: int, argument: int, address: int) -> None:
        """Apply `function` of a state table entry and `argument` to the register at `address`."""
        self._add(_table(12, entry, function), _word(argument), _word(address))

    def wait(
        self, column: int, row: int, direction: Direction, channel: int, columns: int = 1,
        rows: int = 1,
    ) -> None:  # fmt: skip
        """Wait for one token from `channel` of every tile of a rectangle."""
        tile = int(direction == "MM2S") | _fits(row, 8, "a row") << 8
        rectangle = _fits(rows, 8, "rows") << 8 | _fits(columns, 8, "columns") << 16
        self._add(
            0x80, 0x10, tile | _fits(column, 8, "a column") << 16,
            rectangle | _fits(channel, 8, "a channel") << 24,
        )  # fmt: skip

    def address_patch(self, address: int, argument: int, offset: int) -> None:
        """Add the address of argument `argument` of the run, and `offset`, to two words."""
        if not 0 <= argument <= 31:
            raise StreamError(f"an address patch names argument 0 to 31, got {argument}")
        plus = _long(offset + (0x80000000 if argument >= 5 else 0))
        self._add(0x81, 0x30, 0, 0, 0, 0, _word(address), 0, argument, 0, *plus)

    def read_registers(self, addresses: Sequence[int]) -> None:
        """Read the registers at `addresses`, each of 32 bits, as mlir-aie writes them."""
        words = [_word(address) for address in addresses]
        self._add(0x82, 12 + 4 * len(words), len(words), *words)


def _table(opcode: int, entry: int, function: int) -> int:
    if not 0 <= entry < 32 or not 0 <= function <= 2:
        raise StreamError(
            f"a state table has entries 0 to 31 and functions 0 to 2, got {entry} and {function}"
        )
    return opcode | entry << 8 | function << 16


def _fits(value: int, bits: int, what: str) -> int:
    if not 0 <= value < 1 << bits:
        raise StreamError(f"{what} must be 0 to {(1 << bits) - 1}, got {value}")
    return value


def _word(value: int) -> int:
    return _fits(value, 32, "a word")


def _long(value: int) -> tuple[int, int]:
    _fits(value, 64, "an address")
    return value & 0xFFFFFFFF, value >> 32
