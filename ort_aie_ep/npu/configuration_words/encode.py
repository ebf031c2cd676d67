"""Encodes the result of `configure()` as the words that configure the array.

    words = encode(configure(design))

The result is a transaction (TXN 0.1). It holds the cores in reset and writes locks, descriptors and
the stream switches. Then it queues each ring's first descriptor, starts its channel, and finally
releases the cores. It does not contain the cores' programs. Fields are those of aie-rt's
xaiemlgbl_params.h (AIE2) and xaie2pgbl_params.h (AIE2P), which agree: DMA_BD0_0.., DMA_S2MM_0_CTRL
(in which aie-rt sets bit 0), DMA_S2MM_0_START_QUEUE, LOCK0_VALUE, STREAM_SWITCH_MASTER_CONFIG_..,
_SLAVE_CONFIG_.., _SLAVE_.._SLOT0, CORE_CONTROL; the split of a packet master's configuration into
arbiter and selections is that of xaie_ss.c.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np
import numpy.typing as npt

from ort_aie_ep.npu.checks.ports import Switch, assign_ports
from ort_aie_ep.npu.checks.route import route
from ort_aie_ep.npu.configuration_words.registers import (
    CORE_CONTROL,
    DESCRIPTOR_BYTES,
    LOCK_BYTES,
    PORT_SLOTS_BYTES,
    QUEUE,
    SHIM_DEMUX,
    SHIM_MUX,
    SLAVES,
    SLOT_BYTES,
    SLOTS,
    TILE_REGISTERS,
    address,
)
from ort_aie_ep.npu.configuration_words.transaction import TransactionWriter
from ort_aie_ep.npu.terms.configuration import Channel, Configuration, Descriptor, Lock
from ort_aie_ep.npu.terms.device import MAX_LOCK_VALUE, TILES, WORD, Tile
from ort_aie_ep.npu.terms.errors import DesignError
from ort_aie_ep.npu.terms.switch import TOKENS_OUT, SwitchPort

_ENABLE = 1 << 31
_PACKETS = 1 << 30
_OWN_MEMORY = 0x80000  # of a memory tile in its DMA's view; the west neighbour's memory is below it
_OWN_LOCKS = 64  # likewise
_MUX_BITS = {3: 10, 7: 14}  # south slave of a shim: lowest bit of its selection
_DEMUX_BITS = {2: 4, 3: 6}  # south master
_FROM_DMA = 1


def encode(
    configuration: Configuration, switches: Mapping[Tile, Switch] | None = None
) -> npt.NDArray[np.uint32]:
    """The words of `configuration`; if `switches` is None, `assign_ports` makes them.

    Raises DesignError for values that do not fit a field, and as `assign_ports` does.
    """
    device = configuration.design.device
    if switches is None:
        switches = assign_ports(route(device, configuration.streams))
    out = TransactionWriter(device)
    cores = sorted(plan.worker.tile for plan in configuration.workers.values())
    for tile in cores:
        out.mask_write(address(tile, CORE_CONTROL), 2, 2)
    for lock in configuration.locks:
        _lock(out, lock)
    for channel in configuration.channels:
        _ring(out, channel, configuration.design.fifos[channel.fifo].packet)
    for tile, switch in sorted(switches.items()):
        _switch(out, tile, switch)
    for channel in configuration.channels:
        _start(out, channel)
    for tile in cores:
        out.mask_write(address(tile, CORE_CONTROL), 0, 2)
        out.mask_write(address(tile, CORE_CONTROL), 1, 1)
    return out.finish()


def _lock(out: TransactionWriter, lock: Lock) -> None:
    if not 0 <= lock.id < TILES[lock.tile.kind].locks or not 0 <= lock.initial <= MAX_LOCK_VALUE:
        raise DesignError(
            f"lock {lock.id} ({lock.name}) of {lock.tile} with value {lock.initial}: the tile has "
            f"{TILES[lock.tile.kind].locks}, which hold 0..{MAX_LOCK_VALUE}"
        )
    base = TILE_REGISTERS[lock.tile.kind].locks
    out.write(address(lock.tile, base + LOCK_BYTES * lock.id), lock.initial)


# --- descriptors and queues -----------------------------------------------------------------------


class _Words:
    """Words composed of fields."""

    def __init__(self, count: int, what: str) -> None:
        self.words = [0] * count
        self._what = what

    def put(self, word: int, low: int, bits: int, value: int, field: str) -> None:
        if not 0 <= value < 1 << bits:
            raise DesignError(f"{self._what}: {field} {value} does not fit a field of {bits} bits")
        self.words[word] |= value << low


def _ring(out: TransactionWriter, channel: Channel, packet: int | None) -> None:
    tile, ring = channel.tile, channel.ring
    encode_descriptor = _memory_descriptor if tile.kind == "mem" else _core_descriptor
    sent = packet if channel.direction == "MM2S" else None
    registers = TILE_REGISTERS[tile.kind]
    for place, descriptor in enumerate(ring):
        following = ring[(place + 1) % len(ring)].id
        words = encode_descriptor(channel, descriptor, following, sent)
        at = registers.descriptors + DESCRIPTOR_BYTES * descriptor.id
        out.block_write(address(tile, at), words)


def _start(out: TransactionWriter, channel: Channel) -> None:
    """The ring repeats by itself, so its first descriptor is queued once, without a token."""
    control = TILE_REGISTERS[channel.tile.kind].channel(channel.direction, channel.index)
    out.write(address(channel.tile, control + QUEUE), channel.ring[0].id)
    out.write(address(channel.tile, control), 1)  # as XAie_DmaChannelEnable does


def _core_descriptor(
    channel: Channel, descriptor: Descriptor, following: int, packet: int | None
) -> list[int]:
    """Six words: DMA_BD0_0 to DMA_BD0_5 of a memory module."""
    out = _Words(6, f"descriptor {descriptor.id} of {channel.tile} (fifo {channel.fifo})")
    out.put(0, 0, 14, descriptor.words, "length in words")
    out.put(0, 14, 14, descriptor.address // WORD, "address in words")
    if packet is not None:
        out.put(1, 19, 5, packet, "packet id")
        out.put(1, 30, 1, 1, "packet enable")
    places = (((2, 0), (3, 13)), ((2, 13), (3, 21)), ((3, 0), None))
    for (step, wrap), (count, stride) in zip(
        places, _dimensions(channel, descriptor), strict=False
    ):
        out.put(*step, 13, stride // WORD - 1, "step - 1")
        if wrap is not None:
            out.put(*wrap, 8, count, "wrap")
    if descriptor.acquire is not None:
        out.put(5, 0, 4, descriptor.acquire.id, "acquired lock")
        out.put(5, 5, 7, -1 & 0x7F, "acquired value")  # at least 1
        out.put(5, 12, 1, 1, "acquire enable")
    if descriptor.release is not None:
        out.put(5, 13, 4, descriptor.release.id, "released lock")
        out.put(5, 18, 7, 1, "released value")
    out.put(5, 25, 1, 1, "valid")
    out.put(5, 26, 1, 1, "use next")
    out.put(5, 27, 4, following, "next descriptor")
    return out.words


def _memory_descriptor(
    channel: Channel, descriptor: Descriptor, following: int, packet: int | None
) -> list[int]:
    """Eight words: DMA_BD0_0 to DMA_BD0_7 of a memory tile."""
    out = _Words(8, f"descriptor {descriptor.id} of {channel.tile} (fifo {channel.fifo})")
    out.put(0, 0, 17, descriptor.words, "length in words")
    if packet is not None:
        out.put(0, 23, 5, packet, "packet id")
        out.put(0, 31, 1, 1, "packet enable")
    out.put(1, 0, 19, (_OWN_MEMORY + descriptor.address) // WORD, "address in words")
    out.put(1, 19, 1, 1, "use next")
    out.put(1, 20, 6, following, "next descriptor")
    for word, (count, stride) in enumerate(_dimensions(channel, descriptor), 2):
        out.put(word, 0, 17, stride // WORD - 1, "step - 1")
        if word < 5:
            out.put(word, 17, 10, count, "wrap")
    if descriptor.acquire is not None:
        out.put(7, 0, 8, _OWN_LOCKS + descriptor.acquire.id, "acquired lock")
        out.put(7, 8, 7, -1 & 0x7F, "acquired value")  # at least 1
        out.put(7, 15, 1, 1, "acquire enable")
    if descriptor.release is not None:
        out.put(7, 16, 8, _OWN_LOCKS + descriptor.release.id, "released lock")
        out.put(7, 24, 7, 1, "released value")
    out.put(7, 31, 1, 1, "valid")
    return out.words


def _dimensions(channel: Channel, descriptor: Descriptor) -> list[tuple[int, int]]:
    """(count, stride in bytes), innermost first; empty if the transfer is contiguous anyway."""
    if descriptor.layout is None:
        return []
    dimensions = list(reversed(descriptor.layout.dimensions))
    if len(dimensions) > TILES[channel.tile.kind].dimensions:
        raise DesignError(
            f"fifo {channel.fifo} at {channel.tile}: a layout of {len(dimensions)} dimensions; the "
            f"limit is {TILES[channel.tile.kind].dimensions}"
        )
    inner = [prod(count for count, _ in dimensions[:i]) for i in range(len(dimensions))]
    if all(stride == WORD * n for (_, stride), n in zip(dimensions, inner, strict=True)):
        return []
    return dimensions


# --- stream switches ------------------------------------------------------------------------------


def _switch(out: TransactionWriter, tile: Tile, switch: Switch) -> None:
    registers = TILE_REGISTERS[tile.kind]
    base = address(tile, registers.switch)

    def slave(port: SwitchPort, word: int) -> int:
        number = registers.slave_ports.index(port)
        out.write(base + SLAVES + 4 * number, word)
        if tile.kind == "shim" and port.bundle == "south":
            low = _MUX_BITS[port.channel]
            out.mask_write(address(tile, SHIM_MUX), _FROM_DMA << low, 3 << low)
        return number

    def master(port: SwitchPort, word: int) -> None:
        out.write(base + 4 * registers.master_ports.index(port), word)
        if tile.kind == "shim" and port.bundle == "south" and port != TOKENS_OUT:
            low = _DEMUX_BITS[port.channel]
            out.mask_write(address(tile, SHIM_DEMUX), _FROM_DMA << low, 3 << low)

    for circuit in switch.circuits:
        number = slave(circuit.slave, _ENABLE)
        for port in circuit.masters:
            master(port, _ENABLE | number)
    for packets in switch.packets:
        number = slave(packets.slave, _ENABLE | _PACKETS)
        for slot, rule in enumerate(packets.rules):
            at = base + SLOTS + PORT_SLOTS_BYTES * number + SLOT_BYTES * slot
            out.write(
                at,
                rule.id << 24 | rule.mask << 16 | 1 << 8 | rule.selection << 4 | packets.arbiter,
            )
        for leaving in packets.masters:
            enables = sum(1 << selection for selection in leaving.selections)
            master(
                leaving.port,
                _ENABLE | _PACKETS | int(leaving.drop_header) << 7 | enables << 3
                | packets.arbiter,
            )  # fmt: skip
