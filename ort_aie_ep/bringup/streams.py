"""Instruction streams for measurements: operations as `_npu.encode` takes them, made and rewritten.

Their writes have no effect: they go to a shim's descriptor that no task uses, and to a worker's
parameters, which the worker reads only when it starts, after its stream has written them again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ort_aie_ep import _npu
from ort_aie_ep.npu.packages.package import build_runs
from ort_aie_ep.npu.simulator import txn as op
from ort_aie_ep.npu.simulator.registers import (
    DESCRIPTOR_BYTES,
    SHIM_CHANNELS,
    SHIM_DESCRIPTORS,
    QueuePush,
    ShimDescriptor,
    shim_descriptor_of,
    shim_queue_of,
    split_address,
)
from ort_aie_ep.npu.simulator.txn import decode
from ort_aie_ep.npu.terms.errors import DesignError

Operations = list[tuple[Any, ...]]
Words = NDArray[np.uint32]

_SPARE = 15
_TOKEN = 1 << 31


def encode(manifest: Mapping[str, Any], operations: Operations) -> Words:
    """The words of a run. Raises DesignError for operations that the format cannot express."""
    device = manifest["generation"], manifest["rows"], manifest["columns"]
    try:
        return _npu.encode(*device, operations)
    except ValueError as error:
        raise DesignError(str(error)) from error


def build_one(manifest: Mapping[str, Any], sequence: str, parameters: Mapping[str, int]) -> Words:
    """The words of a sequence that needs only one run. Raises DesignError for the shape."""
    runs = build_runs(manifest, sequence, parameters)
    if len(runs) != 1:
        raise DesignError(f"the sequence {sequence} takes {len(runs)} runs; expected one")
    words: Words = runs[0]["words"]
    return words


# --- single operations ----------------------------------------------------------------------------
def _first_column(manifest: Mapping[str, Any]) -> int:
    if not manifest["bds"]:
        raise DesignError("this design uses no shim")
    return min(map(int, manifest["bds"]))


def _descriptor_word(manifest: Mapping[str, Any], number: int, word: int, column: int = -1) -> int:
    column = _first_column(manifest) if column < 0 else column
    return _npu.register(column, 0, SHIM_DESCRIPTORS + DESCRIPTOR_BYTES * number + 4 * word)


def write(manifest: Mapping[str, Any]) -> tuple[Any, ...]:
    """A write to a shim's register."""
    return "write", _descriptor_word(manifest, _SPARE, 0), 0


def parameter_write(manifest: Mapping[str, Any]) -> tuple[Any, ...]:
    """A write to a worker's parameters. Raises DesignError where no worker has any."""
    for worker in manifest["workers"].values():
        if worker["parameters"]:
            at = _npu.register(worker["column"], worker["row"], worker["address"])
            return "write", at, 0
    raise DesignError("no worker of this design has parameters")


def masked_write(manifest: Mapping[str, Any]) -> tuple[Any, ...]:
    """A masked write that changes no bit."""
    column = _first_column(manifest)
    return "mask_write", _npu.register(column, 0, SHIM_CHANNELS), 0, 0


def block_write(manifest: Mapping[str, Any], words: int) -> tuple[Any, ...]:
    """A block write of up to 8 words to a descriptor."""
    return "block_write", _descriptor_word(manifest, _SPARE, 0), [0] * words


def patch(manifest: Mapping[str, Any]) -> tuple[Any, ...]:
    """A patch that adds the address of argument 0 to a descriptor's address."""
    return "address_patch", _descriptor_word(manifest, _SPARE, 1), 0, 0


# --- rewriting a stream ---------------------------------------------------------------------------
def operations_of(words: Words) -> Operations:
    """A stream's operations. Raises DesignError for one that src/npu's encoder does not write."""
    return [_again(each) for each in decode(words).operations]


def _again(each: op.Operation) -> tuple[Any, ...]:
    match each:
        case op.Write():
            return "write", each.address, each.value
        case op.BlockWrite():
            return "block_write", each.address, list(each.words)
        case op.MaskWrite():
            return "mask_write", each.address, each.value, each.mask
        case op.AddressPatch():
            return "address_patch", each.address, each.argument, each.plus
        case op.Wait():
            return (
                "wait", each.column, each.row, each.direction, each.channel, each.columns, each.rows
            )  # fmt: skip
    raise DesignError(f"{type(each).__name__} in a stream of this library")


@dataclass(frozen=True)
class Parts:
    """The operations of a stream with one task in each direction, to be put into another order."""

    to_device: Operations
    from_device: Operations
    starts: Operations
    waits: Operations


def parts(operations: Operations) -> Parts:
    """The parts of a stream. Raises DesignError where descriptors stand apart from their push."""
    found = Parts([], [], [], [])
    written: Operations = []  # descriptors that are not pushed yet
    for each in operations:
        channel = shim_queue_of(each[1]) if each[0] == "write" else None
        if each[0] == "wait":
            found.waits.append(each)
        elif channel is not None:
            to = found.to_device if channel.direction == "MM2S" else found.from_device
            to += [*written, each]
            written = []
        elif split_address(each[1])[1] == 0:
            written.append(each)
        else:
            found.starts.append(each)
    if written:
        raise DesignError("the stream ends with a descriptor that it does not push")
    return found


def with_waits(operations: Operations, count: int, delay: Operations) -> Operations:
    """Insert `delay` before the waits at the end, of which the first `count` stay.

    Tasks without a wait issue no token; the delay must be longer than they take.
    """
    waits = [each for each in operations if each[0] == "wait"]
    awaited = {
        (column, direction, channel)
        for _, first, _, direction, channel, columns, _ in waits[:count]
        for column in range(first, first + columns)
    }
    kept: Operations = []
    for each in operations:
        if each[0] == "wait":
            continue
        channel = shim_queue_of(each[1]) if each[0] == "write" else None
        if channel and (channel.column, channel.direction, channel.channel) not in awaited:
            each = ("write", each[1], each[2] & ~_TOKEN)
        kept.append(each)
    return [*kept, *delay, *waits[:count]]


def split_tasks(
    manifest: Mapping[str, Any], operations: Operations, direction: str, pieces: int
) -> Operations:
    """The same transfers with `pieces` tasks in place of each task of a direction.

    All but the last are a sixteenth of the transfer: so a wait for a later part of it waits for all
    of the additional tasks. The stream must be of one column, with contiguous transfers of a
    multiple of 16 words, and have spare descriptors; otherwise raises DesignError.
    """
    blocks: dict[int, tuple[Any, ...]] = {}
    patches: dict[int, tuple[Any, ...]] = {}
    for each in operations:
        place = shim_descriptor_of(each[1]) if each[0] in ("block_write", "address_patch") else None
        if place is not None:
            (blocks if each[0] == "block_write" else patches)[place[1]] = each
    spare: Iterator[int] = (n for n in range(_SPARE + 1) if n not in blocks)
    divided = set()
    for each in operations:
        channel = shim_queue_of(each[1]) if each[0] == "write" else None
        if channel is not None and channel.direction == direction:
            divided.add(QueuePush.from_word(each[2]).descriptor)
    made: Operations = []
    for each in operations:
        place = shim_descriptor_of(each[1]) if each[0] in ("block_write", "address_patch") else None
        if place is not None and place[1] in divided:
            continue
        channel = shim_queue_of(each[1]) if each[0] == "write" else None
        if channel is None or channel.direction != direction:
            made.append(each)
            continue
        number = QueuePush.from_word(each[2]).descriptor
        if number not in blocks or number not in patches:
            raise DesignError(f"the stream does not write descriptor {number}, which it pushes")
        words, address = list(blocks[number][2]), patches[number]
        length = words[0]
        if ShimDescriptor.from_words(words).dimensions != ((length, 4),) or length % 16:
            raise DesignError(f"descriptor {number} of the stream is not 16 equal runs")
        part = length // 16
        for piece in range(pieces):
            own = number if piece == 0 else next(spare, None)
            if own is None:
                raise DesignError("the stream leaves too few descriptors")
            last = piece == pieces - 1
            words[0] = length - piece * part if last else part
            column = channel.column
            made += [
                ("block_write", _descriptor_word(manifest, own, 0, column), list(words)),
                ("address_patch", _descriptor_word(manifest, own, 1, column), address[2],
                 address[3] + 4 * part * piece),
                ("write", each[1], own | (each[2] & _TOKEN if last else 0)),
            ]  # fmt: skip
    return made
