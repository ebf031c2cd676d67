"""The operations of an instruction stream (`txn` reads them), as frozen dataclasses.

Addresses are the array's: (column << 25) | (row << 20) | offset; `registers` decodes them.
"""

from __future__ import annotations

from dataclasses import dataclass

from ort_aie_ep.npu.terms.configuration import Direction


@dataclass(frozen=True, slots=True)
class Header:
    """The first four words: version, device, number of operations, size in bytes."""

    major: int
    minor: int
    generation: int
    rows: int
    columns: int
    memory_rows: int
    operations: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation: its number in the stream, and the index of its first word."""

    index: int
    offset: int


@dataclass(frozen=True, slots=True)
class Write(Operation):
    """Write `value` to the register at `address`."""

    address: int
    value: int


@dataclass(frozen=True, slots=True)
class BlockWrite(Operation):
    """Write `words` to the registers from `address` on."""

    address: int
    words: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MaskWrite(Operation):
    """Set the bits of `mask` at `address` to those of `value`."""

    address: int
    value: int
    mask: int


@dataclass(frozen=True, slots=True)
class Wait(Operation):
    """Wait for a completion token (TCT) from `channel` of every tile of a rectangle."""

    column: int
    row: int
    columns: int
    rows: int
    direction: Direction
    channel: int


@dataclass(frozen=True, slots=True)
class AddressPatch(Operation):
    """Add the address of run argument `argument`, and `plus` bytes, to a descriptor's address.

    `address` is the address of the descriptor's word 1 (shim and memory tiles), which an earlier
    BlockWrite in the stream wrote. From argument 5 on, `plus` contains 0x80000000 (`aperture`),
    which the firmware adds for the first five.
    """

    address: int
    argument: int
    plus: int

    @property
    def aperture(self) -> int:
        """The part of `plus` that is the array's view of DDR and not an offset, in bytes."""
        return 0x80000000 if self.argument >= 5 else 0

    @property
    def buffer_offset(self) -> int:
        """Bytes from the start of the argument's buffer."""
        return self.plus - self.aperture


@dataclass(frozen=True, slots=True)
class LoadPdi(Operation):
    """Load the configuration `id` of `bytes` bytes from `address`."""

    id: int
    bytes: int
    address: int


@dataclass(frozen=True, slots=True)
class Other(Operation):
    """An operation that no stream of this project has: its name in the format, and its words."""

    name: str
    words: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Stream:
    """A decoded stream."""

    header: Header
    operations: tuple[Operation, ...]
