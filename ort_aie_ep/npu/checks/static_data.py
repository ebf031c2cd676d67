"""Room for the static data of a core's program: constants and tables of its kernels.

mlir-aie's linker script (AIETargetLdScript.cpp) gives .data, .rodata and .bss the largest piece of
the core's memory that stack and buffers leave. Data that does not fit there does not link. Only the
linker knows how much a program needs.
"""

from __future__ import annotations

from collections.abc import Iterable

from ort_aie_ep.npu.checks.report import Findings
from ort_aie_ep.npu.terms.configuration import Configuration
from ort_aie_ep.npu.terms.device import STATIC_BYTES, TILES, Tile


def static_data(findings: Findings, configuration: Configuration) -> None:
    """Refuse cores whose buffers fit but leave less than `STATIC_BYTES` in one piece."""
    for worker in configuration.design.workers.values():
        gap = _gap(configuration, worker.tile)
        if gap < STATIC_BYTES and configuration.memory[worker.tile] <= TILES["core"].memory:
            findings.refuse(
                worker.tile, "static data bytes",
                f"stack and buffers leave {gap:,} bytes in one piece for what the linker places "
                f"(constants of the kernels); at least {STATIC_BYTES:,} must be left",
            )  # fmt: skip


def _gap(configuration: Configuration, tile: Tile) -> int:
    items = configuration.memory_items[tile]
    return largest_gap([(a, size) for _, a, size in items], TILES[tile.kind].memory)


def largest_gap(items: Iterable[tuple[int, int]], memory: int) -> int:
    """The size in bytes of the largest piece of `memory` that no (address, size) uses."""
    largest = reached = 0
    for address, size in [*sorted(item for item in items if item[1]), (memory, 0)]:
        largest = max(largest, address - reached)
        reached = max(reached, address + size)
    return largest
