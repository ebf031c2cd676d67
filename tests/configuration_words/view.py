"""What the words of a configuration say, tile by tile: plain facts, as `decode` found them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from configuration_words.switch import SwitchPort
from ort_aie_ep.npu.simulator.registers import LockAction, QueuePush
from ort_aie_ep.npu.terms.configuration import Direction
from ort_aie_ep.npu.terms.device import Tile


@dataclass(frozen=True)
class DescriptorView:
    """A descriptor of a compute or memory tile. Addresses and steps are in bytes.

    `address` is in the tile's own memory. `dimensions` are (count, step), outermost first; where
    the wraps leave the outermost count open, it follows from the length.
    """

    words: int
    address: int
    dimensions: tuple[tuple[int, int], ...]
    acquire: LockAction | None
    release: LockAction | None
    packet: int | None
    valid: bool
    next: int | None


@dataclass(frozen=True)
class SlotView:
    """A slot of a slave: packets of this `id`, in the bits of `mask`, go to the selection."""

    id: int
    mask: int
    arbiter: int
    selection: int


@dataclass(frozen=True)
class SlaveView:
    """A slave that is on."""

    packets: bool
    slots: tuple[SlotView, ...]


@dataclass(frozen=True)
class MasterView:
    """A master that is on: part of a circuit from `slave`, or of an arbiter's `selections`."""

    slave: SwitchPort | None
    arbiter: int = 0
    selections: frozenset[int] = frozenset()
    drop_header: bool = False


@dataclass
class TileView:
    """The configuration of one tile."""

    locks: dict[int, int] = field(default_factory=dict)
    descriptors: dict[int, DescriptorView] = field(default_factory=dict)
    queues: dict[tuple[Direction, int], list[QueuePush]] = field(default_factory=dict)
    channels: set[tuple[Direction, int]] = field(default_factory=set)  # that are on
    slaves: dict[SwitchPort, SlaveView] = field(default_factory=dict)
    masters: dict[SwitchPort, MasterView] = field(default_factory=dict)
    from_dma: set[int] = field(default_factory=set)  # a shim's south slaves that its DMA feeds
    to_dma: set[int] = field(default_factory=set)  # south masters that feed its DMA
    core: str | None = None  # "on", "off" or "reset"; None where the words do not say
    was_reset: bool = False  # before the core was released
    memory: dict[int, int] = field(default_factory=dict)  # word by byte address


@dataclass(frozen=True)
class View:
    """A decoded configuration."""

    generation: int
    columns: int
    rows: int
    tiles: Mapping[Tile, TileView]
