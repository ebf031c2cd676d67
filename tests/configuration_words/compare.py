"""A configuration and its words: every way in which they differ.

    differences(configure(design), decode(words))       # [] if the two say the same

The comparison works both ways: anything that the words contain beyond the configuration is a
difference too, except locks that are cleared and not used. Descriptors are compared by the order of
the words that they visit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

import numpy as np

from configuration_words.switch import TOKEN_PACKET
from configuration_words.view import DescriptorView, TileView, View
from configuration_words.walk import tokens, walk
from ort_aie_ep.npu.simulator.parts import word_offsets
from ort_aie_ep.npu.simulator.registers import LockAction
from ort_aie_ep.npu.terms.configuration import (
    Channel,
    Configuration,
    Descriptor,
    Direction,
    Port,
)
from ort_aie_ep.npu.terms.device import WORD, Tile
from ort_aie_ep.npu.terms.errors import StreamError

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


def differences(configuration: Configuration, view: View) -> list[str]:
    """What the words say differently, what they leave out, and what they add."""
    return list(_differences(configuration, view))


def _differences(configuration: Configuration, view: View) -> Iterator[str]:
    device = configuration.design.device
    said = (view.generation, view.columns, view.rows)
    if said != (device.generation, device.columns, device.rows):
        yield (
            f"the words are for generation, columns and rows {said}; {device.name} has "
            f"{(device.generation, device.columns, device.rows)}"
        )
        return
    locks: dict[Tile, dict[int, int]] = {}
    channels: dict[Tile, list[Channel]] = {}
    for lock in configuration.locks:
        locks.setdefault(lock.tile, {})[lock.id] = lock.initial
    for channel in configuration.channels:
        channels.setdefault(channel.tile, []).append(channel)
    cores = {plan.worker.tile for plan in configuration.workers.values()}
    for tile in sorted({*view.tiles, *locks, *channels, *cores}):
        found = view.tiles.get(tile, TileView())
        own = locks.get(tile, {})
        cleared = {n: value for n, value in found.locks.items() if n in own or value}
        yield from _unlike(f"{tile}: the initial value of lock", own, cleared)
        yield from _rings(configuration, tile, channels.get(tile, []), found)
        wanted = "on" if tile in cores else None
        if found.core != wanted or found.was_reset != (tile in cores):
            yield f"{tile}: the core is {found.core}; the configuration has {wanted} after a reset"
        if found.memory:
            yield f"{tile}: data memory is written at {min(found.memory):#x}"
    yield from _streams(configuration, view)


def _unlike(
    what: str, wanted: Mapping[_Key, _Value], found: Mapping[_Key, _Value]
) -> Iterator[str]:
    for key in sorted({*wanted, *found}, key=str):
        if wanted.get(key) != found.get(key):
            yield f"{what} {key} is {found.get(key)}; the configuration has {wanted.get(key)}"


def _rings(
    configuration: Configuration, tile: Tile, channels: list[Channel], found: TileView
) -> Iterator[str]:
    """Compare rings: the first descriptor, each descriptor's fields, and their order."""
    left = set(found.descriptors)
    queues: set[tuple[Direction, int]] = {*found.queues, *found.channels}
    for channel in channels:
        what = f"{tile}, {channel.direction} {channel.index} (fifo {channel.fifo})"
        queues.discard((channel.direction, channel.index))
        tasks = found.queues.get((channel.direction, channel.index), [])
        first = channel.ring[0].id
        if [(t.descriptor, t.runs, t.token) for t in tasks] != [(first, 1, False)]:
            yield f"{what} starts with {tasks or 'nothing'}; the configuration with BD {first}"
        if (channel.direction, channel.index) not in found.channels:
            yield f"{what} is not switched on"
        packet = configuration.design.fifos[channel.fifo].packet
        sent = packet if channel.direction == "MM2S" else None
        for place, descriptor in enumerate(channel.ring):
            left.discard(descriptor.id)
            view = found.descriptors.get(descriptor.id)
            if view is None:
                yield f"{what}: descriptor {descriptor.id} is not written"
                continue
            following = channel.ring[(place + 1) % len(channel.ring)].id
            for name, is_, wanted in _descriptor(descriptor, view, following, sent):
                if is_ != wanted:
                    yield (
                        f"{what}, descriptor {descriptor.id}: {name} {is_}; the configuration has "
                        f"{wanted}"
                    )
    for number in sorted(left):
        yield f"{tile}: descriptor {number} belongs to no ring"
    for direction, index in sorted(queues):
        yield f"{tile}: {direction} {index} is started, but no fifo uses it"


def _descriptor(
    descriptor: Descriptor, view: DescriptorView, following: int, packet: int | None
) -> Iterator[tuple[str, object, object]]:
    """(field, value in the words, value in the configuration)."""

    yield "words", view.words, descriptor.words
    yield "address", view.address, descriptor.address
    wanted = descriptor.layout.dimensions if descriptor.layout else ((descriptor.words, WORD),)
    if view.words == descriptor.words and not np.array_equal(
        word_offsets(view.dimensions, view.words), word_offsets(wanted, descriptor.words)
    ):
        yield "order", view.dimensions, wanted
    yield "acquires", view.acquire, LockAction(descriptor.acquire.id, -1)
    yield "releases", view.release, LockAction(descriptor.release.id, 1)
    yield "packet id", view.packet, packet
    yield "valid", view.valid, True
    yield "next descriptor", view.next, following


def _streams(configuration: Configuration, view: View) -> Iterator[str]:
    try:
        reached = walk(view)
    except StreamError as error:
        yield f"streams: {error}"
        return
    shims = {port.tile for port in configuration.shim_ports.values()}
    leaving = tokens(view)
    for tile in sorted(shims):
        if TOKEN_PACKET not in leaving.get(tile, ()):
            yield f"{tile}: its completion tokens, packets of id {TOKEN_PACKET}, are lost"
    wanted = {(stream.source, stream.packet): stream for stream in configuration.streams}
    found = {(reach.source, reach.packet): reach for reach in reached}
    sources = {source for source, _ in wanted}
    for key in sorted({*wanted, *found}, key=str):
        source, packet = key
        if key not in wanted and packet is not None and source in sources:
            continue  # a rule matches more ids than are sent
        stream, reach = wanted.get(key), found.get(key)
        should = frozenset(stream.destinations) if stream else frozenset()
        does = reach.destinations if reach else frozenset()
        what = f"{source}" + ("" if packet is None else f" under packet id {packet}")
        if does != should:
            yield (
                f"{what} ({stream.fifo if stream else 'no fifo'}) reaches {_ends(does)}; the "
                f"configuration has {_ends(should)}"
            )
        for place in reach.lost if reach else ():
            yield f"{what}: {place}"


def _ends(ports: frozenset[Port]) -> str:
    return ", ".join(sorted(str(port) for port in ports)) if ports else "nothing"
