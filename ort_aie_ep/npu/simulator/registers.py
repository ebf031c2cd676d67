"""What the addresses and words of a stream mean: registers, shim descriptors, queues.

Sources: AM020's register reference, mlir-aie's AIETargetModel, aie-rt's parameter headers
(release/main_aig, xaiemlgbl_params.h for AIE2 and xaie2pgbl_params.h for AIE2P, which agree). The
streams that run are encoded in C++, with a table of its own (src/npu/registers.h).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ort_aie_ep.npu.terms.configuration import Direction
from ort_aie_ep.npu.terms.device import TILES, Kind, Tile
from ort_aie_ep.npu.terms.errors import StreamError

# Offsets in a tile, in bytes.
LOCKS: dict[Kind, int] = {"shim": 0x14000, "mem": 0xC0000, "core": 0x1F000}
LOCK_BYTES = 0x10
SHIM_DESCRIPTORS = 0x1D000
DESCRIPTOR_BYTES = 0x20
SHIM_CHANNELS = 0x1D200  # each a control, then its task queue
_CHANNEL_BYTES = 8
# In the order of their registers.
_CHANNELS: tuple[tuple[Direction, int], ...] = (("S2MM", 0), ("S2MM", 1), ("MM2S", 0), ("MM2S", 1))


def split_address(address: int) -> tuple[int, int, int]:
    """(column, row, offset) of `address`."""
    return address >> 25, address >> 20 & 0x1F, address & 0xFFFFF


@dataclass(frozen=True, slots=True)
class ShimChannel:
    """A DMA channel of the shim tile of `column`."""

    column: int
    direction: Direction
    channel: int

    def __str__(self) -> str:
        return f"column {self.column} {self.direction} {self.channel}"


def shim_descriptor_of(address: int) -> tuple[int, int, int] | None:
    """(column, descriptor, word) when `address` is in a shim's descriptors, else None."""
    column, row, offset = split_address(address)
    number, byte = divmod(offset - SHIM_DESCRIPTORS, DESCRIPTOR_BYTES)
    if row != 0 or not 0 <= number < TILES["shim"].descriptors or byte % 4:
        return None
    return column, number, byte // 4


def _shim_channel(address: int, register: int) -> ShimChannel | None:
    column, row, offset = split_address(address)
    index, rest = divmod(offset - SHIM_CHANNELS, _CHANNEL_BYTES)
    if row != 0 or not 0 <= index < len(_CHANNELS) or rest != register:
        return None
    return ShimChannel(column, *_CHANNELS[index])


def shim_control_of(address: int) -> ShimChannel | None:
    """The channel whose control register `address` is, else None."""
    return _shim_channel(address, 0)


def shim_queue_of(address: int) -> ShimChannel | None:
    """The channel whose task queue `address` is, else None."""
    return _shim_channel(address, 4)


def core_lock_of(address: int) -> tuple[int, int, int] | None:
    """(column, row, lock) when `address` is the value of a compute tile's lock, else None."""
    column, row, offset = split_address(address)
    index, rest = divmod(offset - LOCKS["core"], LOCK_BYTES)
    if Tile(column, row).kind != "core" or not 0 <= index < TILES["core"].locks or rest:
        return None
    return column, row, index


def core_memory_of(address: int) -> tuple[int, int, int] | None:
    """(column, row, byte) when `address` is in a compute tile's data memory, else None."""
    column, row, offset = split_address(address)
    if Tile(column, row).kind != "core" or offset >= TILES["core"].memory:
        return None
    return column, row, offset


def register_name(address: int) -> str:
    """A name for `address`, for people: "shim 0 BD 3 word 1", or the tile and offset."""
    if (descriptor := shim_descriptor_of(address)) is not None:
        return "shim {} BD {} word {}".format(*descriptor)
    if (channel := shim_queue_of(address)) is not None:
        return f"shim {channel.column} {channel.direction} {channel.channel} queue"
    if (channel := shim_control_of(address)) is not None:
        return f"shim {channel.column} {channel.direction} {channel.channel} control"
    if (lock := core_lock_of(address)) is not None:
        return "tile ({}, {}) lock {}".format(*lock)
    if (memory := core_memory_of(address)) is not None:
        return "tile ({}, {}) memory {:#x}".format(*memory)
    return "tile ({}, {}) register {:#x}".format(*split_address(address))


@dataclass(frozen=True, slots=True)
class QueuePush:
    """A write to a task queue: run `descriptor` `runs` times, optionally with a token."""

    descriptor: int
    runs: int
    token: bool

    @classmethod
    def from_word(cls, word: int) -> QueuePush:
        """Decode a task queue's word. Raises StreamError for bits without a meaning."""
        if word & 0x7F00FFF0:
            raise StreamError(
                f"task queue word: expected a descriptor in 3:0, runs - 1 in 23:16 and the token "
                f"in 31, found {word:#010x}"
            )
        return cls(word & 0xF, (word >> 16 & 0xFF) + 1, bool(word >> 31))


@dataclass(frozen=True, slots=True)
class LockAction:
    """A lock that a descriptor acquires or releases, with the signed value of the field."""

    id: int
    value: int

    def __str__(self) -> str:
        return f"lock {self.id} {self.value:+d}"


@dataclass(frozen=True, slots=True)
class ShimDescriptor:
    """A shim tile's buffer descriptor, decoded.

    The length is in words of 4 bytes; address and steps are in bytes. The hardware fields of steps
    and of the iteration's count hold the value less one; here they have the full value. A wrap of 0
    means that its dimension continues to the end. The iteration counter advances with every run and
    starts over at its count.
    """

    length: int
    address: int
    steps: tuple[int, int, int]  # D0 (innermost), D1, D2
    wraps: tuple[int, int]  # D0, D1
    iteration_step: int
    iteration_count: int
    iteration_current: int
    packet_enabled: bool
    packet_type: int
    packet_id: int
    out_of_order_id: int
    burst: int  # 0 is 64 bytes, 1 is 128, 2 is 256, 3 is 512
    ax_cache: int
    ax_qos: int
    smid: int
    secure: bool
    acquire: LockAction | None
    release: LockAction | None
    valid: bool
    next: int | None  # descriptor that follows
    suppress_tlast: bool

    @classmethod
    def from_words(cls, words: Sequence[int] | npt.NDArray[np.uint32]) -> ShimDescriptor:
        """Decode a descriptor's eight words. Raises StreamError for another number of words."""
        if len(words) != 8:
            raise StreamError(f"shim descriptor: expected 8 words, found {len(words)}")

        def bits(word: int, high: int, low: int) -> int:
            return int(words[word]) >> low & (1 << high - low + 1) - 1

        def signed(value: int) -> int:
            return value - 128 if value & 64 else value

        acquire = LockAction(bits(7, 3, 0), signed(bits(7, 11, 5)))
        release = LockAction(bits(7, 16, 13), signed(bits(7, 24, 18)))
        return cls(
            length=bits(0, 31, 0),
            address=bits(2, 15, 0) << 32 | bits(1, 31, 2) << 2,
            steps=(4 * bits(3, 19, 0) + 4, 4 * bits(4, 19, 0) + 4, 4 * bits(5, 19, 0) + 4),
            wraps=(bits(3, 29, 20), bits(4, 29, 20)),
            iteration_step=4 * bits(6, 19, 0) + 4,
            iteration_count=bits(6, 25, 20) + 1,
            iteration_current=bits(6, 31, 26),
            packet_enabled=bool(bits(2, 30, 30)),
            packet_type=bits(2, 18, 16),
            packet_id=bits(2, 23, 19),
            out_of_order_id=bits(2, 29, 24),
            burst=bits(4, 31, 30),
            ax_cache=bits(5, 27, 24),
            ax_qos=bits(5, 23, 20),
            smid=bits(5, 31, 28),
            secure=bool(bits(3, 30, 30)),
            acquire=acquire if bits(7, 12, 12) else None,
            release=release if release.value else None,
            valid=bool(bits(7, 25, 25)),
            next=bits(7, 30, 27) if bits(7, 26, 26) else None,
            suppress_tlast=bool(bits(7, 31, 31)),
        )

    @property
    def dimensions(self) -> tuple[tuple[int, int], ...]:
        """(count, step in bytes) of the dimensions of one run, outermost first.

        ((length, 4),) when the run is contiguous. Where the wraps do not divide the length, the run
        ends within the last round of the outermost dimension.
        """
        dims: list[tuple[int, int]] = []
        left = self.length
        for wrap, step in zip((*self.wraps, 0), self.steps, strict=True):
            if wrap == 0:
                return ((left, step), *dims)
            dims.insert(0, (wrap, step))
            left = -(-left // wrap)
        raise AssertionError("the last dimension has no wrap")
