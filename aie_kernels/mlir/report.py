"""Compare the printed module with the compiler's result.

`aiecc --get-input-with-addresses` writes the design after buffers, locks and descriptors have been
assigned. Since nothing was left to assign, everything must be unchanged: buffers, locks,
descriptors, streams, stacks, the shims' channels. They are parsed in their printed form (mlir-aie
include/aie/Dialect/AIE/IR/AIEOps.td).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from ort_aie_ep.aie_kernels.mlir.placement import named_locks, placed_buffers
from ort_aie_ep.aie_kernels.mlir.toolchain import ToolchainError
from ort_aie_ep.npu.terms.configuration import Configuration
from ort_aie_ep.npu.terms.device import WORD

_TILE = re.compile(r"%(\w+) = aie\.tile\((\d+), (\d+)\)")
_BUFFER = re.compile(
    r"%(\w+) = aie\.buffer\(%(\w+)\)\s*\{([^}]*)\}\s*:\s*memref<((?:\d+x)*)\D+(\d+)\b"
)
_LOCK = re.compile(r"aie\.lock\(%(\w+), (\d+)\)\s*\{([^}]*)\}")
_SHIM = re.compile(r"aie\.shim_dma_allocation @(\w+)\s*\(%(\w+), (MM2S|S2MM), (\d+)")
_FLOW = re.compile(r"aie\.flow\(%(\w+), DMA : (\d+), %(\w+), DMA : (\d+)\)")
_PACKET = re.compile(r"aie\.packet_flow\((0x[0-9a-fA-F]+|\d+)\)\s*\{([^}]*)\}")
_SOURCE = re.compile(r"aie\.packet_source<%(\w+), DMA : (\d+)>")
_DESTINATION = re.compile(r"aie\.packet_dest<%(\w+), DMA : (\d+)>")
_DESCRIPTOR = re.compile(r"aie\.dma_bd\(%(\w+) : [^)]*\)\s*\{[^}]*\bbd_id = (\d+)[^}]*\}")
_OFFSET = re.compile(r" offset = (\d+)")
_LENGTH = re.compile(r" len = (\d+)")
_CORE = re.compile(
    r"^( *)%\w+ = aie\.core\(%(\w+)\) \{$.*?^\1\}([^\n]*)$", re.MULTILINE | re.DOTALL
)
_STACK = re.compile(r"\bstack_size = (\d+)")
_STATIC = re.compile(r"aie\.shim_dma\(%(\w+)\)")
_NAME = re.compile(r'sym_name = "(\w+)"')
_ADDRESS = re.compile(r"\baddress = (\d+)")
_INITIAL = re.compile(r"\binit = (\d+)")

Place = tuple[int, int]  # column, row
Way = tuple[Place, int, Place, int, int | None]  # from channel to channel, the packet's id


@dataclass
class Assigned:
    """What is where; all numbers are bytes."""

    buffers: dict[str, tuple[Place, int, int]] = field(default_factory=dict)  # address, size
    locks: dict[str, tuple[Place, int, int]] = field(default_factory=dict)  # id, first value
    descriptors: dict[tuple[Place, int], tuple[str, int, int]] = field(default_factory=dict)
    shims: dict[str, tuple[Place, str, int]] = field(default_factory=dict)  # direction, channel
    streams: set[Way] = field(default_factory=set)
    stacks: dict[Place, int] = field(default_factory=dict)
    static: set[int] = field(default_factory=set)  # columns whose shim has descriptors of its own


def expected(plan: Configuration) -> Assigned:
    """What was printed."""
    out = Assigned()
    buffers = placed_buffers(plan)
    for buffer in buffers:
        out.buffers[buffer.name] = (_place(buffer), buffer.start, buffer.content.bytes)
    for name, lock in named_locks(plan):
        out.locks[name] = (_place(lock), lock.id, lock.initial)
    for channel in plan.channels:
        for entry in channel.ring:
            (within,) = (
                b for b in buffers if b.tile == channel.tile and b.start <= entry.address < b.end
            )
            out.descriptors[_place(channel), entry.id] = (
                within.name, entry.address - within.start, entry.words * WORD,
            )  # fmt: skip
    for fifo, port in plan.shim_ports.items():
        out.shims[fifo] = (_place(port), port.direction, port.index)
    for stream in plan.streams:
        source = stream.source
        for end in stream.destinations:
            way = (_place(source), source.index, _place(end), end.index, stream.packet)
            out.streams.add(way)
    for worker in plan.workers.values():
        out.stacks[_place(worker.worker)] = worker.worker.stack
    return out


def _place(what: Any) -> Place:
    return (what.tile.column, what.tile.row)


def parse(text: str) -> Assigned:
    """The contents of `input_with_addresses.mlir`."""
    tiles = {name: (int(column), int(row)) for name, column, row in _TILE.findall(text)}
    out = Assigned()
    values: dict[str, tuple[str, Place, int]] = {}  # of buffers: name, place, bytes an element
    for value, tile, attributes, shape, bits in _BUFFER.findall(text):
        name, address = _NAME.search(attributes), _ADDRESS.search(attributes)
        if name and tile in tiles:
            size = int(bits) // 8
            values[value] = (name[1], tiles[tile], size)
            if address:
                counts = (int(count) for count in shape.split("x")[:-1])
                out.buffers[name[1]] = (tiles[tile], int(address[1]), math.prod(counts) * size)
    for tile, number, attributes in _LOCK.findall(text):
        name, initial = _NAME.search(attributes), _INITIAL.search(attributes)
        if name and tile in tiles:
            out.locks[name[1]] = (tiles[tile], int(number), int(initial[1]) if initial else 0)
    for found in _DESCRIPTOR.finditer(text):
        if found[1] in values:
            buffer, place, size = values[found[1]]
            offset, length = (
                int(match[1]) * size if match else 0
                for match in (_OFFSET.search(found[0]), _LENGTH.search(found[0]))
            )
            out.descriptors[place, int(found[2])] = (buffer, offset, length)
    for name_, tile, direction, channel in _SHIM.findall(text):
        if tile in tiles:
            out.shims[name_] = (tiles[tile], direction, int(channel))
    for source, first, end, second in _FLOW.findall(text):
        if source in tiles and end in tiles:
            out.streams.add((tiles[source], int(first), tiles[end], int(second), None))
    for number, flow in _PACKET.findall(text):
        for source, first in _SOURCE.findall(flow):
            for end, second in _DESTINATION.findall(flow):
                if source in tiles and end in tiles:
                    way = (tiles[source], int(first), tiles[end], int(second), int(number, 0))
                    out.streams.add(way)
    for _, tile, behind in _CORE.findall(text):
        stack = _STACK.search(behind)
        if stack and tile in tiles:
            out.stacks[tiles[tile]] = int(stack[1])
    out.static = {tiles[tile][0] for tile in _STATIC.findall(text) if tile in tiles}
    return out


def differences(promised: Assigned, found: Assigned) -> list[str]:
    """The differences between the compiler's assignment and the printed one, one line each."""
    lines: list[str] = []

    def compare(what: str, ours: Mapping[Any, Any], theirs: Mapping[Any, Any]) -> None:
        for key, value in ours.items():
            if key not in theirs:
                lines.append(f"{what} {_words(key)}: {_words(value)} printed, not reported")
            elif theirs[key] != value:
                there = _words(theirs[key])
                lines.append(f"{what} {_words(key)}: {_words(value)} printed, {there} reported")

    compare("buffer", promised.buffers, found.buffers)
    compare("lock", promised.locks, found.locks)
    compare("descriptor", promised.descriptors, found.descriptors)
    compare("shim channel of fifo", promised.shims, found.shims)
    for way in sorted(promised.streams - found.streams, key=str):
        lines.append(f"stream {_words(way)}: printed, not reported")
    compare("stack of the core", promised.stacks, found.stacks)
    # Buffers that the compiler adds would need room too.
    placed = sorted(
        (place, address, size, name) for name, (place, address, size) in found.buffers.items()
    )
    for (place, start, size, name), (beside, address, _, after) in pairwise(placed):
        if place == beside and start + size > address:
            lines.append(
                f"buffers {name} and {after} of tile {place}: the first has {size} bytes from "
                f"{start}, the second begins at {address}"
            )
    columns = {place[0] for place, _, _ in promised.shims.values()}
    for column in sorted(found.static & columns):
        lines.append(f"descriptors of the shim of column {column}: all were free, some are in use")
    return lines


def _words(value: Any) -> str:
    return " ".join(str(v) for v in value) if isinstance(value, tuple) else str(value)


def compare(plan: Configuration, text: str) -> None:
    """Raise ToolchainError, which lists the differences, if `text` is not the printed `plan`."""
    lines = differences(expected(plan), parse(text))
    if lines:
        raise ToolchainError(
            f"the compiler's overlay is not what was printed of {plan.design.name}; streams for it "
            "would write to the wrong places:\n  " + "\n  ".join(lines)
        )
