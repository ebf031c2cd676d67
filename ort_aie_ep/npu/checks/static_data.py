"""Room for the static data of a core's program: constants and tables of its kernels.

mlir-aie's linker script (AIETargetLdScript.cpp) gives .data, .rodata and .bss the largest piece of
the core's memory that stack and buffers leave. Data that does not fit there does not link. Only the
linker knows how much a program needs. The number here is an estimate. It is the size of the same
sections of the same sources, compiled for x86-64 against the stand-in for the AIE API,

    clang++-19 -std=c++20 -Os -ffp-contract=off -D__AIE_ARCH__=21 -Iaie_kernels/host -c SOURCE

and added up as `size -A` shows them. It includes constants of vectors (16 bytes each there, up to
64 on a core, unless the compiler makes them from scalars) and some that only the stand-in needs.
The sources' own tables are 156 bytes in flow_qkv.cc, and at most 20 elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from ort_aie_ep.npu.checks.report import Estimate, Findings
from ort_aie_ep.npu.terms.configuration import Configuration
from ort_aie_ep.npu.terms.design import Worker
from ort_aie_ep.npu.terms.device import STATIC_BYTES, TILES, Tile

_HOST_BYTES = {
    "activations.cc": 939, "copy.cc": 157, "dequant.cc": 450, "dequant_bfp16.cc": 615,
    "flow_kv.cc": 1387,
    "flow_qkv.cc": 1559, "fused_dqp.cc": 834, "gemm.cc": 371,
    "gemm_bfp16.cc": 432,
    "rms_norm.cc": 590, "rope.cc": 715, "row_operators.cc": 1110, "layer_gate.cc": 878,
    "layer_norm.cc": 590, "layer_queries.cc": 190, "layer_rows.cc": 157,
}  # fmt: skip
_BASIS = (
    "static data is the size of the kernels' sections .data, .rodata and .bss on x86-64, of what "
    "the buffers leave in one piece; only the linker knows the real size"
)


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


def estimates(configuration: Configuration) -> Iterator[Estimate]:
    """Estimate what each worker's kernels need of the free piece; skips unknown sources."""
    for worker in configuration.design.workers.values():
        size = host_bytes(worker)
        if size is not None:
            gap = _gap(configuration, worker.tile)
            yield Estimate(worker.tile, "static data bytes", size, size, gap, _BASIS)


def host_bytes(worker: Worker) -> int | None:
    """Static data of the worker's sources on x86-64; None if a source is unknown."""
    sources = {Path(kernel.source).name for kernel in worker.kernels}
    if not sources or not sources <= set(_HOST_BYTES):
        return None
    return sum(_HOST_BYTES[source] for source in sources)


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
