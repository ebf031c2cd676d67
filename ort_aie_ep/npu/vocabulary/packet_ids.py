"""Packet ids for the fifos that share a shim's channel into the array."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import combinations

from ort_aie_ep.npu.vocabulary.design import Design, Fifo
from ort_aie_ep.npu.vocabulary.device import MAX_PACKET_ID, PACKET_IDS, Tile


def give_packet_ids(design: Design) -> None:
    """Give every fifo that shares a shim's MM2S channel with others a packet id.

    No two fifos have the same one while there are enough, and those of a channel lie in a block of
    a power of two, those with the same ends side by side: switches compare ids under masks, and
    have four rules for a port. Those with most ends come first: mlir-aie gives out arbiters in the
    order of ids, and a packet that should leave where two with lower ids leave alone, each through
    an arbiter of its own, then loses one of its ends (AIECreatePathFindFlows.cpp, 7e00b579; since
    f05e903b it is refused).
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
        if len(ids) < len(fifos):  # too many for ids of their own: apart by their ways
            ids = _block(list(PACKET_IDS), len(fifos)) or list(PACKET_IDS)
        for fifo, packet in zip(fifos, ids, strict=False):
            fifo.packet = packet
        free = [packet for packet in free if packet not in ids]


def _block(free: list[int], count: int) -> list[int]:
    """The first `count` ids of a block of a power of two, all of them free; or none."""
    size = 1 << (count - 1).bit_length()
    for first in range(0, PACKET_IDS[-1] + 1, size):
        ids = list(range(first, first + count))
        if set(ids) <= set(free):
            return ids
    return []


def cover(ids: Iterable[int], others: Iterable[int]) -> list[tuple[int, int]]:
    """The fewest rules (mask, value) of a slave port, of which each of `ids` matches one, and none
    of `others` any: an id that two rules match would be sent by both."""
    own, avoided = list(ids), list(others)
    by_ids: dict[frozenset[int], tuple[int, int]] = {}
    for mask in range(MAX_PACKET_ID, -1, -1):  # of two that match the same, the stricter
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
