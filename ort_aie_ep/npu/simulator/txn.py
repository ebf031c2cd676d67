"""Reads instruction streams: the words of a TXN binary back into operations and descriptors.

    stream = decode(words)                          # words: (n,) uint32, a run's, header included
    for op in stream.operations:
        match op:
            case BlockWrite() if shim_descriptor_of(op.address) is not None:
                descriptor = ShimDescriptor.from_words(op.words)
            case Write() if shim_queue_of(op.address) is not None:
                push = QueuePush.from_word(op.value)
            case Wait(): ...
    print(format_stream(stream))                    # as text, with the names of registers

The decoder was written from the tables of the format (mlir-aie's TxnEncoding and AIETargetNPU,
aie-rt, AM020), independently of the encoder in src/npu, so that each is evidence for the other. It
reads versions 0.1 and 1.0. A malformed stream raises StreamError, which names the operation, the
word, what was expected and what was found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from ort_aie_ep.npu.simulator.registers import (
    QueuePush,
    ShimDescriptor,
    register_name,
    shim_descriptor_of,
    shim_queue_of,
)
from ort_aie_ep.npu.terms.configuration import Direction
from ort_aie_ep.npu.terms.errors import StreamError

#: The device generations that a header can name.
GENERATIONS = {3: "NPU1", 4: "NPU2"}

HEADER_WORDS = 4


def _integer(value: int, low: int, bits: int) -> int:
    return value >> low & (1 << bits) - 1


# --- operations -----------------------------------------------------------------------------------
# Addresses are the array's: (column << 25) | (row << 20) | offset; `registers` decodes them.
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
class Other(Operation):
    """An operation that no stream of this project has: its name in the format, and its words."""

    name: str
    words: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class InstructionStream:
    """A decoded stream."""

    header: Header
    operations: tuple[Operation, ...]


#: The fixed word counts of the operations of both versions that have no size word.
_UNSIZED_WORDS = {5: 1, 6: 1, 8: 4, 9: 2, 10: 4, 11: 2, 12: 3, 13: 1}

_NAMES = {
    0: "WRITE",
    1: "BLOCKWRITE",
    2: "BLOCKSET",
    3: "MASKWRITE",
    4: "MASKPOLL",
    5: "NOOP",
    6: "PREEMPT",
    7: "MASKPOLL_BUSY",
    8: "LOADPDI",
    9: "LOAD_PM_START",
    10: "CREATE_SCRATCHPAD",
    11: "UPDATE_STATE_TABLE",
    12: "UPDATE_REG",
    13: "UPDATE_SCRATCH",
    0x80: "TCT",
    0x81: "DDR_PATCH",
    0x82: "READ_REGS",
    0x83: "RECORD_TIMER",
    0x84: "MERGE_SYNC",
}


class _Decoder:
    """Goes through the words once. `at` is the first word of the current operation."""

    def __init__(self, words: list[int], short: bool) -> None:
        self.words = words
        self.short = short  # the layouts of version 1.0
        self.index = 0
        self.at = HEADER_WORDS

    def fail(self, word: int, expected: str, found: str) -> StreamError:
        """The error for word `word` of the operation."""
        opcode = self.words[self.at] & 0xFF if self.at < len(self.words) else -1
        return StreamError(
            f"operation {self.index} ({_NAMES.get(opcode, 'no known opcode')}), word "
            f"{self.at + word}: expected {expected}, found {found}"
        )

    def take(self, count: int) -> list[int]:
        """The operation's words; there must be `count`."""
        left = len(self.words) - self.at
        if left < count:
            raise self.fail(left, f"{count} words of the operation", f"the end after {left}")
        return self.words[self.at : self.at + count]

    def require(self, word: int, found: int, expected: Iterable[int], what: str) -> None:
        allowed = list(expected)
        if found not in allowed:
            choice = " or ".join(f"{value:#x}" for value in allowed)
            raise self.fail(word, f"{what} {choice}", f"{found:#x}")

    def require_zero(self, ops: list[int], *places: int) -> None:
        for place in places:
            self.require(place, ops[place], [0], "zero:")

    def next(self) -> Operation:
        """Decode the operation at `at`, and advance to the next one."""
        opcode = self.take(1)[0] & 0xFF  # aie-rt leaves other bytes of the word non-zero
        if opcode not in _NAMES:
            raise self.fail(0, "a known opcode", f"{opcode:#x}")
        operation, count = self.READERS.get(opcode, _Decoder.other)(self, opcode)
        self.at += count
        self.index += 1
        return operation

    def write(self, opcode: int) -> tuple[Operation, int]:
        if self.short:
            ops = self.take(3)
            return Write(self.index, self.at, ops[1], ops[2]), 3
        ops = self.take(6)
        self.require_zero(ops, 1, 3)
        self.require(5, ops[5], [0x18], "a size of")
        return Write(self.index, self.at, ops[2], ops[4]), 6

    def masked(self, opcode: int) -> tuple[Operation, int]:
        if self.short:
            ops = self.take(4)
            address, value, mask, count = ops[1], ops[2], ops[3], 4
        else:
            ops = self.take(7)
            self.require_zero(ops, 1, 3)
            # aie-rt's structure has a word of padding after the size.
            self.require(6, ops[6], [0x1C, 0x20], "a size of")
            address, value, mask, count = ops[2], ops[4], ops[5], ops[6] // 4
            self.take(count)
        if opcode == 3:
            return MaskWrite(self.index, self.at, address, value, mask), count
        return self._other(opcode, self.take(count))

    def block_write(self, opcode: int) -> tuple[Operation, int]:
        head = 3 if self.short else 4
        ops = self.take(head)
        address = ops[head - 2]
        size = ops[head - 1]
        if not self.short and ops[1] != 0:
            self.require(
                1, ops[1], [address >> 25 | (address >> 20 & 0x1F) << 8], "zero or the tile"
            )
        count = size // 4
        if size % 4 != 0 or count <= head:
            expected = f"a multiple of 4 above {4 * head:#x} as size"
            raise self.fail(head - 1, expected, f"{size:#x}")
        data = self.take(count)[head:]
        return BlockWrite(self.index, self.at, address, tuple(data)), count

    def sized(self, *sizes: int) -> list[int]:
        """The words of a custom operation, whose second word is its size, one of `sizes`."""
        size = self.take(2)[1]
        self.require(1, size, sizes, "a size of")
        return self.take(size // 4)

    def wait(self, opcode: int) -> tuple[Operation, int]:
        ops = self.sized(0x10)
        tile, rectangle = ops[2], ops[3]
        self.require(2, tile & 0xFF, [0, 1], "a direction of")
        self.require(2, tile >> 24, [0], "an upper byte of")
        self.require(3, rectangle & 0xFF, [0], "a low byte of")
        rows, columns = _integer(rectangle, 8, 8), _integer(rectangle, 16, 8)
        if rows == 0 or columns == 0:
            raise self.fail(3, "at least one row and column", f"{rows} and {columns}")
        return Wait(
            self.index,
            self.at,
            column=_integer(tile, 16, 8),
            row=_integer(tile, 8, 8),
            columns=columns,
            rows=rows,
            direction="MM2S" if tile & 0xFF else "S2MM",
            channel=rectangle >> 24,
        ), len(ops)

    def address_patch(self, opcode: int) -> tuple[Operation, int]:
        ops = self.sized(0x30, 0x18) if self.short else self.sized(0x30)
        if len(ops) == 6:
            address, argument, low, high = ops[2:]
            place = 3
        else:
            self.require_zero(ops, 2, 3, 4, 5, 7, 9)
            address, argument, low, high = ops[6], ops[8], ops[10], ops[11]
            place = 8
        if argument > 31:
            raise self.fail(place, "an argument index of at most 31", str(argument))
        plus = high << 32 | low
        if argument >= 5 and plus < 0x80000000:
            expected = "0x80000000 within the offset, as the argument's index is 5 or more"
            raise self.fail(place + 2, expected, f"{plus:#x}")
        return AddressPatch(self.index, self.at, address, argument, plus), len(ops)

    def other(self, opcode: int) -> tuple[Operation, int]:
        if opcode in _UNSIZED_WORDS:
            return self._other(opcode, self.take(_UNSIZED_WORDS[opcode]))
        size = self.take(2)[1]
        if size % 4 or size < 8:
            raise self.fail(1, "a multiple of 4 from 8 on as size", f"{size:#x}")
        return self._other(opcode, self.take(size // 4))

    def _other(self, opcode: int, ops: list[int]) -> tuple[Operation, int]:
        return Other(self.index, self.at, _NAMES[opcode], tuple(ops)), len(ops)

    READERS: ClassVar[dict[int, Callable[[_Decoder, int], tuple[Operation, int]]]] = {
        0: write,
        1: block_write,
        2: block_write,
        3: masked,
        4: masked,
        7: masked,
        0x80: wait,
        0x81: address_patch,
    }


def _decode_header(words: list[int], generation: int | None) -> Header:
    def fail(word: int, expected: str, found: str) -> StreamError:
        return StreamError(f"header, word {word}: expected {expected}, found {found}")

    if len(words) < HEADER_WORDS:
        raise fail(len(words), f"{HEADER_WORDS} words", f"the end after {len(words)}")
    header = Header(
        major=words[0] & 0xFF,
        minor=_integer(words[0], 8, 8),
        generation=_integer(words[0], 16, 8),
        rows=words[0] >> 24,
        columns=words[1] & 0xFF,
        memory_rows=_integer(words[1], 8, 8),
        operations=words[2],
        bytes=words[3],
    )
    if (header.major, header.minor) not in ((0, 1), (1, 0)):
        raise fail(0, "version 0.1 or 1.0", f"{header.major}.{header.minor}")
    if generation is not None and header.generation != generation:
        raise fail(0, f"device generation {generation}", str(header.generation))
    if header.generation not in GENERATIONS:
        raise fail(0, "device generation 3 or 4", str(header.generation))
    if header.rows == 0 or header.columns == 0:
        raise fail(0, "at least one row and column", f"{header.rows} and {header.columns}")
    if words[1] >> 16:
        raise fail(1, "zero padding", f"{words[1] >> 16:#x}")
    if header.bytes != 4 * len(words):
        raise fail(3, f"a size of {4 * len(words):#x} bytes", f"{header.bytes:#x}")
    return header


def decode(words: npt.ArrayLike, device_generation: int | None = None) -> InstructionStream:
    """Decode the operations of a stream.

    `words` is (n,), integers of 32 bits; `device_generation` is 3 (NPU1) or 4 (NPU2) when the
    stream must be for that device. Raises StreamError for a malformed stream.
    """
    array = np.asarray(words)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise StreamError(
            f"a stream is a list of 32-bit words, got {array.dtype} of shape {array.shape}"
        )
    if array.size and (array.min() < 0 or array.max() > 0xFFFFFFFF):
        raise StreamError("a stream is a list of 32-bit words, got one outside of 0 to 0xFFFFFFFF")
    plain: list[int] = array.tolist()
    header = _decode_header(plain, device_generation)
    decoder = _Decoder(plain, short=header.major == 1)
    operations = []
    while decoder.at < len(plain):
        if decoder.index == header.operations:
            raise StreamError(
                f"header, word 2: expected the end after {header.operations} operations, found "
                f"{len(plain) - decoder.at} more words at word {decoder.at}"
            )
        operations.append(decoder.next())
    if decoder.index != header.operations:
        raise StreamError(
            f"header, word 2: expected a count of {decoder.index}, the operations that follow, "
            f"found {header.operations}"
        )
    return InstructionStream(header, tuple(operations))


# --- for people -----------------------------------------------------------------------------------


def _describe(op: Operation) -> str:
    match op:
        case BlockWrite() if (
            len(op.words) == 8 and (at := shim_descriptor_of(op.address)) is not None
        ):
            if at[2] != 0:
                return f"BLOCKWRITE {register_name(op.address)}"
            descriptor = ShimDescriptor.from_words(op.words)
            dims = " ".join(f"{count}x{step}" for count, step in descriptor.dimensions)
            text = (
                f"BLOCKWRITE {register_name(op.address)}: {4 * descriptor.length} bytes as {dims}"
            )
            if descriptor.iteration_count > 1:
                text += f", iterating {descriptor.iteration_count}x{descriptor.iteration_step}"
            if descriptor.packet_enabled:
                text += f", packet {descriptor.packet_id}"
            return text if descriptor.valid else f"{text}, not valid"
        case BlockWrite():
            return f"BLOCKWRITE {register_name(op.address)}: {len(op.words)} words"
        case Write() if shim_queue_of(op.address) is not None:
            push = QueuePush.from_word(op.value & 0x80FF000F)
            token = ", token" if push.token else ""
            return f"WRITE {register_name(op.address)}: BD {push.descriptor} x{push.runs}{token}"
        case Write():
            return f"WRITE {register_name(op.address)} = {op.value:#x}"
        case MaskWrite():
            return f"MASKWRITE {register_name(op.address)} = {op.value:#x} & {op.mask:#x}"
        case Wait():
            tiles = f"({op.column}, {op.row})"
            if (op.columns, op.rows) != (1, 1):
                tiles += f" and {op.columns}x{op.rows} tiles from it"
            return f"WAIT {tiles} {op.direction} {op.channel}"
        case AddressPatch():
            what = f"argument {op.argument} + {op.buffer_offset:#x}"
            return f"PATCH {register_name(op.address)} += {what}"
        case Other():
            return f"{op.name} " + " ".join(f"{word:#x}" for word in op.words)
    fields = {name: getattr(op, name) for name in op.__slots__}
    return type(op).__name__ + "".join(f" {name}={value!r}" for name, value in fields.items())


def format_stream(stream: InstructionStream) -> str:
    """The stream as text: a line for the header, and one for every operation."""
    header = stream.header
    lines = [
        f"TXN {header.major}.{header.minor}, {GENERATIONS[header.generation]}, {header.columns} "
        f"columns, {header.rows} rows: {header.operations} operations, {header.bytes} bytes"
    ]
    lines += [f"{op.index:6d} {op.offset:8d}  {_describe(op)}" for op in stream.operations]
    return "\n".join(lines)
