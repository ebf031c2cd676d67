"""What the compiler made of what the manifest promises.

`aiecc --get-input-with-addresses` writes the design after buffers, locks and channels have been
assigned. Read here are the operations `aie.tile`, `aie.buffer`, `aie.lock`,
`aie.shim_dma_allocation`, `aie.packet_flow` and `aie.shim_dma`, by their printed form (mlir-aie
include/aie/Dialect/AIE/IR/AIEOps.td and its tests).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from ort_aie_ep.aie_kernels.iron.toolchain import ToolchainError
from ort_aie_ep.npu.vocabulary.device import DEVICES, Tile

_TILE = re.compile(r"%(\w+) = aie\.tile\((\d+), (\d+)\)")
_BUFFER = re.compile(r"aie\.buffer\(%(\w+)\)\s*\{([^}]*)\}\s*:\s*memref<((?:\d+x)*)\D+(\d+)\b")
_LOCK = re.compile(r"aie\.lock\(%(\w+)(?:, (\d+))?\)\s*(?:\{([^}]*)\})?")
_SHIM = re.compile(r"aie\.shim_dma_allocation @(\w+)\s*\(%(\w+), (MM2S|S2MM), (\d+)")
_PACKET = re.compile(r"aie\.packet_flow\((0x[0-9a-fA-F]+|\d+)\)\s*\{([^}]*)\}")
_SOURCE = re.compile(r"aie\.packet_source<%(\w+), DMA : (\d+)>")
_STATIC = re.compile(r"aie\.shim_dma\(%(\w+)\)")
_NAME = re.compile(r'sym_name = "(\w+)"')
_ADDRESS = re.compile(r"\baddress = (\d+)")


@dataclass
class Assigned:
    """By name: (column, row, number), the number an address, a lock's id or a channel."""

    buffers: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)  # of the buffers, bytes
    locks: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    shims: dict[str, tuple[int, str, int]] = field(default_factory=dict)  # column, direction, ..
    packets: set[tuple[int, int, int, int]] = field(default_factory=set)  # column, row, ch., id
    static: set[int] = field(default_factory=set)  # columns whose shim has descriptors of its own


def parse(text: str) -> Assigned:
    """What `input_with_addresses.mlir` says."""
    tiles = {name: (int(column), int(row)) for name, column, row in _TILE.findall(text)}
    found = Assigned()
    for tile, attributes, shape, bits in _BUFFER.findall(text):
        name, address = _NAME.search(attributes), _ADDRESS.search(attributes)
        if name and address and tile in tiles:
            found.buffers[name[1]] = (*tiles[tile], int(address[1]))
            counts = (int(count) for count in shape.split("x")[:-1])
            found.sizes[name[1]] = math.prod(counts) * int(bits) // 8
    for tile, number, attributes in _LOCK.findall(text):
        name = _NAME.search(attributes)
        if name and number and tile in tiles:
            found.locks[name[1]] = (*tiles[tile], int(number))
    for name, tile, direction, channel in _SHIM.findall(text):
        if tile in tiles:
            found.shims[name.removesuffix("_shim_alloc")] = (
                tiles[tile][0], direction, int(channel),
            )  # fmt: skip
    for number, flow in _PACKET.findall(text):
        for tile, channel in _SOURCE.findall(flow):
            if tile in tiles:
                found.packets.add((*tiles[tile], int(channel), int(number, 0)))
    found.static = {tiles[tile][0] for tile in _STATIC.findall(text) if tile in tiles}
    return found


def differences(manifest: Mapping[str, Any], assigned: Assigned) -> list[str]:
    """Where the compiler's assignment is not the manifest's, one line each."""
    lines = []

    def compare(what: str, promised: Any, found: Any) -> None:
        if found is None:
            lines.append(f"{what}: {promised} in the manifest, not named by the compiler")
        elif found != promised:
            lines.append(f"{what}: {promised} in the manifest, {found} by the compiler")

    for name, fifo in manifest["fifos"].items():
        at = (fifo["column"], fifo["direction"], fifo["channel"])
        compare(f"shim channel of fifo {name}", at, assigned.shims.get(name))
        if fifo["packet"] is not None:
            source = (fifo["column"], 0, fifo["channel"], fifo["packet"])
            if fifo["direction"] == "MM2S" and source not in assigned.packets:
                lines.append(f"packet id of fifo {name}: no flow {fifo['packet']} leaves {at}")
    for name, worker in manifest["workers"].items():
        place = (worker["column"], worker["row"])
        if worker["parameters"]:
            compare(
                f"address of the parameters of worker {name}",
                (*place, worker["address"]),
                assigned.buffers.get(f"{name}_parameters"),
            )
        compare(
            f"go lock of worker {name}",
            (*place, worker["lock"]),
            assigned.locks.get(f"{name}_go"),
        )
    # A wide load drops the low bits of its address: no error, the neighbour's bytes. The allocator
    # of aiecc promises 32 bytes, and AIE2P's 512-bit accesses need 64 (aie_api, vector_ldst_align).
    alignment = DEVICES[manifest["device"]].alignment
    for name, (column, row, address) in sorted(assigned.buffers.items()):
        if (
            Tile(column, row).kind == "core"
            and not name.endswith("_parameters")  # read word by word
            and assigned.sizes[name] >= alignment  # nor are the compiler's counters of turns
            and address % alignment
        ):
            lines.append(
                f"buffer {name} of tile ({column}, {row}): address {address}, where kernels load "
                f"{alignment} bytes at once and it must be a multiple of that"
            )
    # Some allocators that go by banks know a pinned buffer in the bank where it begins only.
    placed = sorted((at, name) for name, at in assigned.buffers.items())
    for (first, name), (second, after) in pairwise(placed):
        if first[:2] == second[:2] and first[2] + assigned.sizes[name] > second[2]:
            lines.append(
                f"buffers {name} and {after} of tile {first[:2]}: the first has "
                f"{assigned.sizes[name]} bytes from {first[2]}, the second begins at {second[2]}"
            )
    for column in sorted(assigned.static & {int(c) for c in manifest["bds"]}):
        lines.append(
            f"BDs of the shim of column {column}: free in the manifest, in use by the compiler"
        )
    return lines


def compare(manifest: Mapping[str, Any], text: str) -> None:
    """Raise ToolchainError that lists where `text` and the manifest differ."""
    lines = differences(manifest, parse(text))
    if lines:
        raise ToolchainError(
            f"the compiler's overlay is not what the manifest of {manifest['name']} says; streams "
            "for it would write to the wrong places:\n  " + "\n  ".join(lines)
        )
