"""Packet ids for the fifos that share a shim's channel into the array."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import combinations

from ort_aie_ep.npu.terms.design import Design, Fifo
from ort_aie_ep.npu.terms.device import MAX_PACKET_ID, PACKET_IDS, Tile


def give_packet_ids(design: Design) -> None:
    """Give a packet id to every fifo that shares a shim's MM2S channel with others.

    Ids are unique while there are enough. The ids of a channel are in a block of a power of two,
    and fifos with the same ends get adjacent ids: switches compare ids under masks and have four
    rules for a port. The fifos with most ends get the lowest ids. The reason is that mlir-aie
    assigns arbiters in the order of ids. If packets with lower ids have already taken the ports
    where a packet leaves, each port with its own arbiter, then that packet loses one of its ends
    (AIECreatePathFindFlows.cpp, 7e00b579; since f05e903b this is an error).
    """
    channels: dict[tuple[Tile, int], list[Fifo]] = defaultdict(list)
    for fifo in design.fifos.values():
        end = fifo.producer
        if end.tile.kind == "shim" and end.channel is not None:
            channels[end.tile, end.channel].append(fifo)
    sharing = [
        sorted(fifos, key=lambda f: (-len(f.consumers), sorted(e.tile for e in f.consumers)))
        for _, fifos in sorted(channels.items())
        if len(fifos) > 1
    ]
    free = list(PACKET_IDS)
    for fifos in sorted(sharing, key=len, reverse=True):
        ids = _block(free, len(fifos)) or free[: len(fifos)]
        if len(ids) < len(fifos):  # too many for unique ids: their paths must keep them apart
            ids = _block(list(PACKET_IDS), len(fifos)) or list(PACKET_IDS)
        for fifo, packet in zip(fifos, ids, strict=False):
            fifo.packet = packet
        free = [packet for packet in free if packet not in ids]


def _block(free: list[int], count: int) -> list[int]:
    """The first `count` ids of a block of a power of two, all of them free; or None."""
    size = 1 << (count - 1).bit_length()
    for first in range(0, PACKET_IDS[-1] + 1, size):
        ids = list(range(first, first + count))
        if set(ids) <= set(free):
            return ids
    return []


def cover(ids: Iterable[int], others: Iterable[int]) -> list[tuple[int, int]]:
    """The fewest rules (mask, value) of a slave port that match `ids`, and none of `others`.

    Exactly one rule matches each id: the switch would send an id that two rules match by both.
    """
    own, avoided = list(ids), list(others)
    by_ids: dict[frozenset[int], tuple[int, int]] = {}
    for mask in range(MAX_PACKET_ID, -1, -1):  # of two rules that match the same ids, the stricter
        for packet in own:
            if any((other ^ packet) & mask == 0 for other in avoided):
                continue
            matched = frozenset(i for i in own if (i ^ packet) & mask == 0)
            by_ids.setdefault(matched, (mask, packet & mask))
    for count in range(1, len(own)):
        for chosen in combinations(by_ids, count):
            if sum(map(len, chosen)) == len(own) and frozenset().union(*chosen) == set(own):
                return [by_ids[matched] for matched in chosen]
    return [(MAX_PACKET_ID, packet) for packet in own]
