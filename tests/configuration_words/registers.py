"""Where the registers of a tile are that configure it.

Sources: aie-rt (branch release/main_aig) driver/src/global/xaiemlgbl_params.h for AIE2 and
xaie2pgbl_params.h for AIE2P, which agree on all of these. The order of switch ports is that of
their STREAM_SWITCH_MASTER_CONFIG and _SLAVE_CONFIG registers. An address is
(column << 25) | (row << 20) | offset.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from configuration_words.switch import Bundle, SwitchPort
from ort_aie_ep.npu.terms.device import Kind

LOCK_BYTES = 0x10
DESCRIPTOR_BYTES = 0x20
CHANNEL_BYTES = 8  # control, then the task queue
SLAVES = 0x100  # from the masters of a switch
SLOTS = 0x200
SLOT_BYTES = 4
PORT_SLOTS_BYTES = 0x10

CORE_CONTROL = 0x32000
SHIM_MUX = 0x1F000  # for streams that enter the switch from the south
SHIM_DEMUX = 0x1F004  # for streams that leave it to the south


@dataclass(frozen=True)
class TileRegisters:
    """Offsets of one kind of tile, and the ports of its switch in the order of their registers."""

    locks: int
    descriptors: int
    descriptor_words: int
    s2mm: int  # control of the first channel
    mm2s: int
    switch: int
    masters: tuple[tuple[Bundle, int], ...]  # (bundle, how many)
    slaves: tuple[tuple[Bundle, int], ...]

    @cached_property
    def master_ports(self) -> tuple[SwitchPort, ...]:
        """The master ports, by number."""
        return tuple(SwitchPort(b, i) for b, count in self.masters for i in range(count))

    @cached_property
    def slave_ports(self) -> tuple[SwitchPort, ...]:
        """The slave ports, by number."""
        return tuple(SwitchPort(b, i) for b, count in self.slaves for i in range(count))


TILE_REGISTERS: dict[Kind, TileRegisters] = {
    "shim": TileRegisters(
        locks=0x14000, descriptors=0x1D000, descriptor_words=8, s2mm=0x1D200, mm2s=0x1D210,
        switch=0x3F000,
        masters=(("control", 1), ("fifo", 1), ("south", 6), ("west", 4), ("north", 6), ("east", 4)),
        slaves=(
            ("control", 1), ("fifo", 1), ("south", 8), ("west", 4), ("north", 4), ("east", 4),
            ("trace", 1),
        ),
    ),
    "mem": TileRegisters(
        locks=0xC0000, descriptors=0xA0000, descriptor_words=8, s2mm=0xA0600, mm2s=0xA0630,
        switch=0xB0000,
        masters=(("dma", 6), ("control", 1), ("south", 4), ("north", 6)),
        slaves=(("dma", 6), ("control", 1), ("south", 6), ("north", 4), ("trace", 1)),
    ),
    "core": TileRegisters(
        locks=0x1F000, descriptors=0x1D000, descriptor_words=6, s2mm=0x1DE00, mm2s=0x1DE10,
        switch=0x3F000,
        masters=(
            ("core", 1), ("dma", 2), ("control", 1), ("fifo", 1), ("south", 4), ("west", 4),
            ("north", 6), ("east", 4),
        ),
        slaves=(
            ("core", 1), ("dma", 2), ("control", 1), ("fifo", 1), ("south", 6), ("west", 4),
            ("north", 4), ("east", 4), ("trace", 2),
        ),
    ),
}  # fmt: skip
