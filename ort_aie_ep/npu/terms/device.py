"""NPUs and their partitions as data.

The numbers are those of mlir-aie's target model, aie-rt's register headers and AMD's AM020, which
agree on them. As mlir-aie does, this module assumes that AIE2P has AIE-ML's descriptor fields.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from ort_aie_ep.npu.terms.errors import DesignError

Architecture = Literal["aie2", "aie2p"]
Kind = Literal["shim", "mem", "core"]

WORD = 4  # bytes: the granularity of every DMA


@dataclass(frozen=True, order=True)
class Tile:
    """A tile by (column, row): row 0 is the shim, 1 the memory tile, 2 to 5 compute."""

    column: int
    row: int

    @property
    def kind(self) -> Kind:
        """The kind of tile in this row."""
        if self.row == 0:
            return "shim"
        return "mem" if self.row == 1 else "core"

    def __str__(self) -> str:
        return f"{self.kind} tile ({self.column}, {self.row})"


@dataclass(frozen=True)
class TileFacts:
    """Resources of one kind of tile.

    `wrap_bits` and `step_bits` are field widths of the data dimensions of a buffer descriptor (the
    outermost dimension has no wrap field: the length decides); `length_bits` counts 32-bit words.
    `max_count` is the largest count that mlir-aie's verifier accepts in a dimension of a static
    descriptor. The verifier counts elements of the buffer, not words, and checks the outermost
    dimension too. Versions of 2026 disagree (512 on every tile; 1,023 and on cores 255): this is
    the count that all of them accept.
    """

    memory: int  # bytes
    mm2s: int
    s2mm: int
    descriptors: int
    locks: int
    dimensions: int
    wrap_bits: int
    step_bits: int
    length_bits: int
    max_count: int

    @property
    def max_wrap(self) -> int:
        """The largest count of a dimension, except the outermost."""
        return (1 << self.wrap_bits) - 1

    @property
    def max_step(self) -> int:
        """The largest stride in words."""
        return 1 << self.step_bits

    @property
    def max_words(self) -> int:
        """The longest transfer of one descriptor, in words."""
        return (1 << self.length_bits) - 1


TILES: dict[Kind, TileFacts] = {
    "core": TileFacts(
        memory=64 * 1024, mm2s=2, s2mm=2, descriptors=16, locks=16, dimensions=3, wrap_bits=8,
        step_bits=13, length_bits=14, max_count=255,
    ),
    "mem": TileFacts(
        memory=512 * 1024, mm2s=6, s2mm=6, descriptors=48, locks=64, dimensions=4, wrap_bits=10,
        step_bits=17, length_bits=17, max_count=512,
    ),
    "shim": TileFacts(
        memory=0, mm2s=2, s2mm=2, descriptors=16, locks=16, dimensions=3, wrap_bits=10,
        step_bits=20, length_bits=32, max_count=512,
    ),
}  # fmt: skip

MAX_LOCK_VALUE = 63  # a 6-bit register

#: Tasks of a shim's channel that may be under way, including the running one; a task pushed beyond
#: this number is lost without an error. The queue has 4 places (AM020; aie-rt,
#: XAIE_DMA_MAX_QUEUE_SIZE). mlir-air measured that 6 pass and 7 hang, because the array had buffers
#: for two; it still awaits the task before the last 4 (AIRRtToNpuPass.cpp, boundShimFeedBursts). A
#: limit of 4 is always safe.
MAX_QUEUED_TASKS = 4

MAX_PACKET_ID = 31
#: Ids of the tiles of a column as controllers (AIETargetModel.cpp, getTileToControllerIdMap): aiecc
#: routes the tokens of every shim under 15.
CONTROLLER_PACKET_IDS = frozenset({15, 26, 27, 29, 30, 31})
#: Ids that a design can give to its fifos.
PACKET_IDS = tuple(i for i in range(MAX_PACKET_ID + 1) if i not in CONTROLLER_PACKET_IDS)

#: Bytes of a run's buffer that descriptors can reach: mlir-aie's address patch has 32 bits
#: (TxnEncoding.h, txn_append_address_patch), and mlir-air divides larger buffers.
BUFFER_REACH = 1 << 32

#: Bytes that the buffers of a core must leave in one piece: the linker puts constants and tables of
#: the kernels there (.data, .rodata, .bss; AIETargetLdScript.cpp). Only the linker knows how many.
STATIC_BYTES = 2048
DEFAULT_STACK = 1024  # bytes; mlir-aie's default


@dataclass(frozen=True)
class Device:
    """An NPU, or a partition of whole columns of one.

    `generation` is aie-rt's device generation in the header of a stream; `alignment` is the
    alignment of a 512-bit access to L1 (bytes); `clock_hz` is the array clock at the highest power
    level.
    """

    name: str
    architecture: Architecture
    generation: int
    columns: int
    clock_hz: float
    alignment: int
    core_rows: int = 4
    rows: int = 6

    @cached_property
    def cores(self) -> tuple[Tile, ...]:
        """Compute tiles, column by column."""
        return tuple(Tile(c, 2 + r) for c in range(self.columns) for r in range(self.core_rows))

    def tile(self, column: int, row: int) -> Tile:
        """The tile at (column, row). Raises DesignError outside of the partition."""
        if not (0 <= column < self.columns and 0 <= row < self.rows):
            raise DesignError(
                f"tile ({column}, {row}) is outside of {self.name}: "
                f"columns 0..{self.columns - 1}, rows 0..{self.rows - 1}"
            )
        return Tile(column, row)

    def neighbour_memory(self, core: Tile) -> tuple[Tile, ...]:
        """The compute tiles whose data memory `core` reaches by load and store.

        These are its own tile and its south, west and north neighbours.
        """
        near = [core, Tile(core.column, core.row - 1), Tile(core.column - 1, core.row),
                Tile(core.column, core.row + 1)]  # fmt: skip
        return tuple(
            t
            for t in near
            if t.kind == "core" and 0 <= t.column < self.columns and t.row < self.rows
        )


def _npu1(name: str, columns: int) -> Device:
    return Device(name, "aie2", 3, columns, clock_hz=1.6e9, alignment=32)


def _npu2(name: str, columns: int) -> Device:
    return Device(name, "aie2p", 4, columns, clock_hz=1.8e9, alignment=64)


DEVICES: dict[str, Device] = {
    d.name: d
    for d in (
        _npu1("npu1", 4), _npu1("npu1_1col", 1), _npu1("npu1_2col", 2),
        _npu2("npu2", 8), _npu2("npu2_1col", 1), _npu2("npu2_2col", 2), _npu2("npu2_4col", 4),
    )
}  # fmt: skip


def device(name: str) -> Device:
    """The device `name`. Raises DesignError, which lists the known ones."""
    if name not in DEVICES:
        raise DesignError(f"unknown device {name!r}; known: {', '.join(DEVICES)}")
    return DEVICES[name]
