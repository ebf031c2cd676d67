"""Ports of stream switches, and where DMA channels and neighbours are attached to them.

A switch has slaves, where streams enter, and masters, where they leave. Ports of a bundle are
numbered. Master `north` n of a tile is slave `south` n of the tile above, and likewise in the other
directions. A shim's DMA enters its switch at south 3 and 7, and leaves it at south 2 and 3, through
a multiplexer (aie-rt, XAie_EnableShimDmaToAieStrmPort and XAie_EnableAieToShimDmaStrmPort).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ort_aie_ep.npu.terms.device import Kind

Bundle = Literal["core", "dma", "control", "fifo", "south", "west", "north", "east", "trace"]
Heading = Literal["north", "south", "west", "east"]

#: The change of (column, row) for a step in each direction.
MOVES: dict[Heading, tuple[int, int]] = {
    "north": (0, 1), "south": (0, -1), "west": (-1, 0), "east": (1, 0),
}  # fmt: skip
OPPOSITE: dict[Heading, Heading] = {
    "north": "south", "south": "north", "west": "east", "east": "west",
}  # fmt: skip

#: The packet id under which a shim's control port sends completion tokens south, to the firmware:
#: aiecc adds that route to every column it uses (AIEGenerateColumnControlOverlay.cpp).
TOKEN_PACKET = 15

_SHIM_SLAVES = (3, 7)  # of MM2S 0 and 1
_SHIM_MASTERS = (2, 3)  # of S2MM 0 and 1


@dataclass(frozen=True, order=True)
class SwitchPort:
    """Port `channel` of a bundle; the context says whether it is a master or a slave."""

    bundle: Bundle
    channel: int

    def __str__(self) -> str:
        return f"{self.bundle} {self.channel}"


#: The ports where they enter a shim's switch, and leave it.
TOKENS_IN, TOKENS_OUT = SwitchPort("control", 0), SwitchPort("south", 0)


def dma_slave(kind: Kind, channel: int) -> SwitchPort:
    """The port where the data that MM2S `channel` sends enters the switch."""
    if kind == "shim":
        return SwitchPort("south", _SHIM_SLAVES[channel])
    return SwitchPort("dma", channel)


def dma_master(kind: Kind, channel: int) -> SwitchPort:
    """The port where the data that S2MM `channel` receives leaves the switch."""
    if kind == "shim":
        return SwitchPort("south", _SHIM_MASTERS[channel])
    return SwitchPort("dma", channel)


def legal(kind: Kind, slave: SwitchPort, master: SwitchPort) -> bool:
    """Whether the crossbar of a tile joins the two, for the ports that designs use.

    Source: mlir-aie's AIE2TargetModel::isLegalTileConnection. A memory tile passes a stream on
    between south and north only under the same number, and from DMA to DMA likewise. On other
    tiles, a stream that came from a side goes back there only under the same number.
    """
    if kind == "mem" and slave.bundle in ("south", "north") and master.bundle in ("south", "north"):
        return slave.channel == master.channel
    if slave.bundle == master.bundle and not (kind == "shim" and slave.bundle == "south"):
        return slave.channel == master.channel
    return True
