"""Decodes the words of a configuration into what they say of each tile.

    view = decode(words)            # a transaction, as mlir-aie's tools write it

Fields are those of aie-rt's xaiemlgbl_params.h (AIE2) and xaie2pgbl_params.h (AIE2P), which agree:
DMA_BD0_0.., DMA_S2MM_0_CTRL (in which aie-rt sets bit 0), DMA_S2MM_0_START_QUEUE, LOCK0_VALUE,
STREAM_SWITCH_MASTER_CONFIG_.., _SLAVE_CONFIG_.., _SLAVE_.._SLOT0, CORE_CONTROL; the split of a
packet master's configuration into arbiter and selections is that of xaie_ss.c. An unknown register,
or a bit without a meaning, raises StreamError with the tile and the register.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy.typing as npt

from configuration_words.registers import (
    CHANNEL_BYTES,
    CORE_CONTROL,
    DESCRIPTOR_BYTES,
    LOCK_BYTES,
    PORT_SLOTS_BYTES,
    SHIM_DEMUX,
    SHIM_MUX,
    SLAVES,
    SLOT_BYTES,
    SLOTS,
    TILE_REGISTERS,
)
from configuration_words.view import (
    DescriptorView,
    MasterView,
    SlaveView,
    SlotView,
    TileView,
    View,
)
from ort_aie_ep.npu.simulator import txn
from ort_aie_ep.npu.simulator.registers import LockAction, QueuePush, split_address
from ort_aie_ep.npu.terms.configuration import Direction
from ort_aie_ep.npu.terms.device import TILES, WORD, Tile
from ort_aie_ep.npu.terms.errors import StreamError


class _Field(NamedTuple):
    word: int
    high: int
    low: int


_CORE = {
    "words": _Field(0, 13, 0), "address": _Field(0, 27, 14),
    "packet_id": _Field(1, 23, 19), "packet": _Field(1, 30, 30),
    "step0": _Field(2, 12, 0), "step1": _Field(2, 25, 13), "step2": _Field(3, 12, 0),
    "wrap0": _Field(3, 20, 13), "wrap1": _Field(3, 28, 21),
    "acquire": _Field(5, 3, 0), "acquire_value": _Field(5, 11, 5), "acquires": _Field(5, 12, 12),
    "release": _Field(5, 16, 13), "release_value": _Field(5, 24, 18),
    "valid": _Field(5, 25, 25), "chained": _Field(5, 26, 26), "next": _Field(5, 30, 27),
}  # fmt: skip
_MEMORY = {
    "words": _Field(0, 16, 0), "packet_id": _Field(0, 27, 23), "packet": _Field(0, 31, 31),
    "address": _Field(1, 18, 0), "chained": _Field(1, 19, 19), "next": _Field(1, 25, 20),
    "step0": _Field(2, 16, 0), "wrap0": _Field(2, 26, 17),
    "step1": _Field(3, 16, 0), "wrap1": _Field(3, 26, 17),
    "step2": _Field(4, 16, 0), "wrap2": _Field(4, 26, 17), "step3": _Field(5, 16, 0),
    "acquire": _Field(7, 7, 0), "acquire_value": _Field(7, 14, 8), "acquires": _Field(7, 15, 15),
    "release": _Field(7, 23, 16), "release_value": _Field(7, 30, 24), "valid": _Field(7, 31, 31),
}  # fmt: skip
# A memory tile's DMA sees the memories and locks of three tiles; its own are the second.
_MEMORY_TILE_WORDS, _MEMORY_TILE_LOCKS = 0x20000, 64

# Other contents of a descriptor: no design uses them, so they have no names here.
_UNUSED = "packet type, out-of-order id, compression, padding, iteration or TLAST suppression"


def decode(words: npt.ArrayLike) -> View:
    """The configuration in `words`, a transaction.

    Raises StreamError for a malformed transaction, for an operation that configures nothing, and
    for registers and bits that no configuration of a design has.
    """
    stream = txn.decode(words)
    reader = _Reader(stream.header.columns, stream.header.rows)
    for operation in stream.operations:
        what = f"operation {operation.index}"
        match operation:
            case txn.Write():
                reader.write(what, operation.address, [operation.value])
            case txn.BlockWrite():
                reader.write(what, operation.address, operation.words)
            case txn.MaskWrite():
                reader.mask_write(what, operation.address, operation.value, operation.mask)
            case txn.Other(name="NOOP"):
                pass
            case _:
                raise StreamError(f"{what}, {type(operation).__name__}: configures nothing")
    return View(
        stream.header.generation, stream.header.columns, stream.header.rows, reader.finish()
    )


class _Reader:
    """Collects registers as they are written, then interprets them tile by tile."""

    def __init__(self, columns: int, rows: int) -> None:
        self._columns, self._rows = columns, rows
        self._registers: dict[Tile, dict[int, int]] = {}
        self._tiles: dict[Tile, TileView] = {}

    def _tile(self, what: str, address: int) -> tuple[Tile, int]:
        column, row, offset = split_address(address)
        if column >= self._columns or row >= self._rows:
            raise StreamError(f"{what} writes to tile ({column}, {row}), which does not exist")
        tile = Tile(column, row)
        self._tiles.setdefault(tile, TileView())
        return tile, offset

    def write(self, what: str, address: int, values: Sequence[int]) -> None:
        for index, value in enumerate(values):
            tile, offset = self._tile(what, address + WORD * index)
            if offset % WORD:
                raise StreamError(f"{what} writes to offset {offset:#x} of {tile}, within a word")
            view = self._tiles[tile]
            queue = _queue_of(tile, offset)
            if queue is not None:
                view.queues.setdefault(queue, []).append(_task(tile, value, what))
            elif tile.kind != "shim" and offset < TILES[tile.kind].memory:
                view.memory[offset] = value
            else:
                self._registers.setdefault(tile, {})[offset] = value
                self._note(tile, offset, value)

    def mask_write(self, what: str, address: int, value: int, mask: int) -> None:
        tile, offset = self._tile(what, address)
        if _queue_of(tile, offset) is not None:
            raise StreamError(f"{what} masks a task queue of {tile}, which is not a plain register")
        if value & ~mask:
            raise StreamError(f"{what} has bits {value & ~mask:#x} outside of its mask {mask:#x}")
        registers = self._registers.setdefault(tile, {})
        registers[offset] = registers.get(offset, 0) & ~mask | value
        self._note(tile, offset, registers[offset])

    def _note(self, tile: Tile, offset: int, value: int) -> None:
        if tile.kind == "core" and offset == CORE_CONTROL and value & 2:
            self._tiles[tile].was_reset = True

    def finish(self) -> dict[Tile, TileView]:
        for tile, registers in self._registers.items():
            _Tile(tile, dict(registers), self._tiles[tile]).read()
        return dict(sorted(self._tiles.items()))


def _queue_of(tile: Tile, offset: int) -> tuple[Direction, int] | None:
    registers, facts = TILE_REGISTERS[tile.kind], TILES[tile.kind]
    directions: tuple[tuple[Direction, int, int], ...] = (
        ("S2MM", registers.s2mm, facts.s2mm), ("MM2S", registers.mm2s, facts.mm2s),
    )  # fmt: skip
    for direction, first, count in directions:
        index, rest = divmod(offset - first, CHANNEL_BYTES)
        if 0 <= index < count and rest == WORD:
            return direction, index
    return None


def _task(tile: Tile, word: int, what: str) -> QueuePush:
    descriptor = word & (0x3F if tile.kind == "mem" else 0xF)
    if word & ~(0x80FF0000 | descriptor):
        raise StreamError(f"{what}: {word:#010x} has bits that a queue of {tile} does not have")
    return QueuePush(descriptor, (word >> 16 & 0xFF) + 1, bool(word >> 31))


def _signed(value: int) -> int:
    return value - 0x80 if value & 0x40 else value


class _Tile:
    """The registers of one tile; reading one removes it, so any that remain are unknown."""

    def __init__(self, tile: Tile, registers: dict[int, int], view: TileView) -> None:
        self._tile = tile
        self._left = registers
        self._view = view

    def read(self) -> None:
        tile, view = self._tile, self._view
        facts, registers = TILES[tile.kind], TILE_REGISTERS[tile.kind]
        for number in range(facts.locks):
            value = self._left.pop(registers.locks + LOCK_BYTES * number, None)
            if value is not None:
                if value > 63:
                    raise StreamError(f"lock {number} of {tile} is {value}; a lock holds 0..63")
                view.locks[number] = value
        if tile.kind != "shim":
            for number in range(facts.descriptors):
                words = self._take(
                    registers.descriptors + DESCRIPTOR_BYTES * number, registers.descriptor_words,
                    f"descriptor {number}",
                )  # fmt: skip
                if words is not None:
                    view.descriptors[number] = self._descriptor(number, words)
        self._channels()
        self._switch()
        if tile.kind == "shim":
            self._multiplexers()
        if tile.kind == "core":
            control = self._left.pop(CORE_CONTROL, None)
            if control is not None:
                if control & ~3:
                    raise StreamError(f"core control of {tile} is {control:#x}; it has two bits")
                view.core = "reset" if control & 2 else "on" if control & 1 else "off"
        if self._left:
            raise StreamError(
                f"{tile}: no register of a configuration is at "
                + ", ".join(f"{offset:#x}" for offset in sorted(self._left))
            )

    def _take(self, first: int, count: int, what: str) -> list[int] | None:
        found = [self._left.pop(first + WORD * i, None) for i in range(count)]
        if all(word is None for word in found):
            return None
        words = [word for word in found if word is not None]
        if len(words) < count:
            raise StreamError(f"{what} of {self._tile} has {len(words)} of its {count} words")
        return words

    def _descriptor(self, number: int, words: list[int]) -> DescriptorView:
        fields = _MEMORY if self._tile.kind == "mem" else _CORE
        what = f"descriptor {number} of {self._tile}"
        known = [0] * len(words)
        values = {}
        for name, (word, high, low) in fields.items():
            mask = (1 << high - low + 1) - 1
            known[word] |= mask << low
            values[name] = words[word] >> low & mask
        for index, (word, meant) in enumerate(zip(words, known, strict=True)):
            if word & ~meant:
                raise StreamError(
                    f"{what}, word {index}: {word & ~meant:#x} has contents that no design uses: "
                    f"{_UNUSED}"
                )
        address, acquire, release = values["address"], values["acquire"], values["release"]
        acquires, released = values["acquires"], _signed(values["release_value"])
        if self._tile.kind == "mem":
            own = range(_MEMORY_TILE_LOCKS, 2 * _MEMORY_TILE_LOCKS)
            if (acquires and acquire not in own) or (released and release not in own):
                raise StreamError(f"{what} uses a lock of a neighbour")
            if address not in range(_MEMORY_TILE_WORDS, 2 * _MEMORY_TILE_WORDS):
                raise StreamError(f"{what} is in the memory of a neighbour")
            address -= _MEMORY_TILE_WORDS
            acquire, release = acquire - _MEMORY_TILE_LOCKS, release - _MEMORY_TILE_LOCKS
            idle = -_MEMORY_TILE_LOCKS
        else:
            idle = 0
        for active, name, fixed in (
            (acquires, "acquire", acquire == idle and values["acquire_value"] == 0),
            (released, "release", release == idle),
            (values["packet"], "packet", values["packet_id"] == 0),
            (values["chained"], "next", values["next"] == 0),
        ):
            if not active and not fixed:
                raise StreamError(f"{what} names a {name} that is not switched on")
        return DescriptorView(
            words=values["words"],
            address=WORD * address,
            dimensions=_dimensions(what, values),
            acquire=LockAction(acquire, _signed(values["acquire_value"])) if acquires else None,
            release=LockAction(release, released) if released else None,
            packet=values["packet_id"] if values["packet"] else None,
            valid=bool(values["valid"]),
            next=values["next"] if values["chained"] else None,
        )

    def _channels(self) -> None:
        registers, facts = TILE_REGISTERS[self._tile.kind], TILES[self._tile.kind]
        directions: tuple[tuple[Direction, int, int], ...] = (
            ("S2MM", registers.s2mm, facts.s2mm), ("MM2S", registers.mm2s, facts.mm2s),
        )  # fmt: skip
        for direction, first, count in directions:
            for index in range(count):
                word = self._left.pop(first + CHANNEL_BYTES * index, 0)
                if word & ~1:
                    raise StreamError(
                        f"{self._tile}, control of {direction} {index}: {word:#x} says something "
                        "that no design says: a controller's id, modes or a reset"
                    )
                if word:
                    self._view.channels.add((direction, index))

    # --- switches ---
    def _switch(self) -> None:
        tile, view = self._tile, self._view
        registers = TILE_REGISTERS[tile.kind]
        for number, port in enumerate(registers.slave_ports):
            word = self._left.pop(registers.switch + SLAVES + WORD * number, 0)
            slots = self._slots(number, f"{tile}, slave {port}")
            if word & 0x3FFFFFFF or (word and not word >> 31):
                raise StreamError(f"{tile}, slave {port}: {word:#010x} is not a valid word")
            packets = bool(word >> 30 & 1)
            if slots and not packets:
                raise StreamError(f"{tile}, slave {port} has packet slots but takes no packets")
            if word:
                view.slaves[port] = SlaveView(packets, slots)
        for number, port in enumerate(registers.master_ports):
            word = self._left.pop(registers.switch + WORD * number, 0)
            if word:
                view.masters[port] = self._master(f"{tile}, master {port}", word)

    def _slots(self, number: int, what: str) -> tuple[SlotView, ...]:
        base = TILE_REGISTERS[self._tile.kind].switch + SLOTS + PORT_SLOTS_BYTES * number
        slots = []
        for slot in range(PORT_SLOTS_BYTES // SLOT_BYTES):
            word = self._left.pop(base + SLOT_BYTES * slot, 0)
            if word & 0xE0E0FEC8 or (word and not word >> 8 & 1):
                raise StreamError(f"{what}, slot {slot}: {word:#010x} is not a packet rule")
            if word:
                slots.append(
                    SlotView(word >> 24 & 0x1F, word >> 16 & 0x1F, word & 7, word >> 4 & 3)
                )
        return tuple(slots)

    def _master(self, what: str, word: int) -> MasterView:
        slaves = TILE_REGISTERS[self._tile.kind].slave_ports
        if word & 0x3FFFFF00 or not word >> 31:
            raise StreamError(f"{what}: {word:#010x} is not a valid word")
        if word >> 30 & 1:
            selections = frozenset(i for i in range(4) if word >> 3 & 1 << i)
            return MasterView(None, word & 7, selections, bool(word >> 7 & 1))
        if word & 0x80 or word & 0x7F >= len(slaves):
            raise StreamError(f"{what}: {word:#010x} names no slave")
        return MasterView(slaves[word & 0x7F])

    def _multiplexers(self) -> None:
        """Two bits each: 1 is the DMA. (South 2, 3, 6, 7 in; south 2, 3, 4, 5 out.)"""
        for offset, first, ports, found in (
            (SHIM_MUX, 8, (2, 3, 6, 7), self._view.from_dma),
            (SHIM_DEMUX, 4, (2, 3, 4, 5), self._view.to_dma),
        ):
            word = self._left.pop(offset, 0)
            for place, port in enumerate(ports):
                chosen = word >> first + 2 * place & 3
                word &= ~(3 << first + 2 * place)
                if chosen > 1:
                    raise StreamError(f"{self._tile}, south {port}: attached to {chosen}, not DMA")
                if chosen:
                    found.add(port)
            if word:
                raise StreamError(f"{self._tile}: {word:#x} at {offset:#x} means nothing")


def _dimensions(what: str, values: dict[str, int]) -> tuple[tuple[int, int], ...]:
    """(count, step in bytes), outermost first, from the wraps and steps of a descriptor."""
    wraps = [values[f"wrap{i}"] for i in range(3) if f"wrap{i}" in values]
    steps = [WORD * (values[f"step{i}"] + 1) for i in range(4) if f"step{i}" in values]
    if any(not inner and outer for inner, outer in pairwise(wraps)):
        raise StreamError(f"{what}: a wrap is set outside of a dimension without one")
    counts = [wrap for wrap in wraps if wrap]
    dimensions: list[tuple[int, int]] = []
    left = values["words"]
    for count, step in zip(counts, steps, strict=False):
        if left % count:
            raise StreamError(f"{what}: wraps {counts} do not divide {values['words']} words")
        dimensions.insert(0, (count, step))
        left //= count
    for step in steps[len(counts) + 1 :]:
        if step != WORD:
            raise StreamError(f"{what}: a step is set outside of the outermost dimension")
    if left > 1 or not counts:
        dimensions.insert(0, (left, steps[len(counts)]))
    elif steps[len(counts)] != WORD:
        raise StreamError(f"{what}: the outermost dimension has a step but one element")
    return tuple(dimensions)
