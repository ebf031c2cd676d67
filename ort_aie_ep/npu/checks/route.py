"""Paths of streams over the stream switches: does the array have the ports for them all?

Switches are joined to their neighbours by a number of ports in each direction
(`_PORTS`; memory tiles have none sideways). A circuit-switched stream has the ports
of its path to itself. A multicast is a tree and uses one port on every segment that its branches
share. Packet streams that leave one DMA channel share that channel's tree. A memory tile passes a
stream on between south and north only under the same port number (mlir-aie's target model).
Counting is still sufficient: streams that pass can be numbered first, and those that start or end
there take the remaining numbers.

The paths come from negotiated congestion (McMurchie and Ebeling, PathFinder, FPGA 1995): every net
takes its cheapest tree, overused ports become more expensive, and all nets are routed again until
no port is overused. aiecc finds its own paths; this module shows that paths exist.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from ort_aie_ep.npu.terms.configuration import Port, Stream
from ort_aie_ep.npu.terms.device import Device, Kind, Tile

Heading = Literal["north", "south", "west", "east"]

_ROUNDS = 40  # of ripping up; designs that fit settle within a few
#: The change of (column, row) for a step in each direction.
_MOVES: dict[Heading, tuple[int, int]] = {
    "north": (0, 1), "south": (0, -1), "west": (-1, 0), "east": (1, 0),
}  # fmt: skip
#: How many ports lead out of a switch in each direction.
_PORTS: dict[Kind, dict[Heading, int]] = {
    "shim": {"south": 6, "west": 4, "north": 6, "east": 4},
    "mem": {"south": 4, "north": 6},
    "core": {"south": 4, "west": 4, "north": 6, "east": 4},
}


@dataclass(frozen=True, order=True)
class Hop:
    """The ports by which streams leave `tile` for its neighbour."""

    tile: Tile
    heading: Heading

    @property
    def ports(self) -> int:
        """How many ports there are."""
        return _PORTS[self.tile.kind].get(self.heading, 0)

    @property
    def to(self) -> Tile:
        """The neighbour."""
        column, row = _MOVES[self.heading]
        return Tile(self.tile.column + column, self.tile.row + row)


@dataclass(frozen=True)
class Net:
    """The data that leaves one DMA channel: one stream, or packet streams that share it."""

    source: Port
    streams: tuple[Stream, ...]
    hops: frozenset[Hop]

    def paths(self) -> dict[str, tuple[Hop, ...]]:
        """The sorted hops of each fifo: those of the tree that lead to its ends."""
        before = {hop.to: hop for hop in self.hops}
        out = {}
        for stream in self.streams:
            taken: set[Hop] = set()
            for port in stream.destinations:
                tile = port.tile
                while tile != self.source.tile:
                    taken.add(before[tile])
                    tile = before[tile].tile
            out[stream.fifo] = tuple(sorted(taken))
        return out

    def outputs(self) -> dict[Tile, dict[int | None, frozenset[Hop | Port]]]:
        """Where packets of each id, or the circuit (None), go in each switch."""
        paths = self.paths()
        out: dict[Tile, dict[int | None, set[Hop | Port]]] = defaultdict(lambda: defaultdict(set))
        for stream in self.streams:
            for hop in paths[stream.fifo]:
                out[hop.tile][stream.packet].add(hop)
            for port in stream.destinations:
                out[port.tile][stream.packet].add(port)
        return {
            tile: {packet: frozenset(outs) for packet, outs in by.items()}
            for tile, by in out.items()
        }


@dataclass(frozen=True)
class Routing:
    """A tree for every net, and the ports that the trees use together."""

    nets: tuple[Net, ...]
    used: dict[Hop, int]

    @property
    def overfull(self) -> list[Hop]:
        """Hops that need more ports than they have; empty if the routing is possible."""
        return sorted(hop for hop, used in self.used.items() if used > hop.ports)

    def through(self, hop: Hop) -> list[str]:
        """The fifos whose net uses `hop`."""
        return [s.fifo for net in self.nets if hop in net.hops for s in net.streams]

    def packet_outputs(self) -> Iterator[tuple[Net, Tile, dict[frozenset[Hop | Port], list[int]]]]:
        """For nets of packets, at every switch: the ids by the ports where they leave."""
        for net in self.nets:
            if any(s.packet is None for s in net.streams):
                continue
            for tile, by in sorted(net.outputs().items()):
                ids: dict[frozenset[Hop | Port], list[int]] = defaultdict(list)
                for packet, out in by.items():
                    assert packet is not None
                    ids[out].append(packet)
                yield net, tile, ids

    def longest(self) -> tuple[int, str]:
        """The most switches on the way to one end of a stream, and that stream's fifo."""
        most = (0, "")
        for net in self.nets:
            before = {hop.to: hop.tile for hop in net.hops}
            for stream in net.streams:
                for port in stream.destinations:
                    tile, switches = port.tile, 1
                    while tile != net.source.tile:
                        tile, switches = before[tile], switches + 1
                    most = max(most, (switches, stream.fifo))
        return most


def route(device: Device, streams: Iterable[Stream]) -> Routing:
    """Paths for `streams`; `Routing.overfull` is not empty where it found none."""
    channels: dict[tuple[Port, str], list[Stream]] = defaultdict(list)
    for stream in streams:
        channels[stream.source, stream.fifo if stream.packet is None else ""].append(stream)
    # Nets with many ends first: they have the least choice.
    groups = sorted(channels.values(), key=lambda group: -sum(len(s.destinations) for s in group))
    ends = [{port.tile for s in group for port in s.destinations} for group in groups]
    trees: list[frozenset[Hop]] = [frozenset()] * len(groups)
    used: Counter[Hop] = Counter()
    history: Counter[Hop] = Counter()
    best, least = trees, float("inf")
    for attempt in range(_ROUNDS):

        def price(hop: Hop, weight: int = attempt + 1) -> float:
            return (1 + history[hop]) * (1 + weight * max(0, used[hop] + 1 - hop.ports))

        for i, group in enumerate(groups):
            used.subtract(trees[i])
            trees[i] = _tree(device, group[0].source.tile, ends[i], price)
            used.update(trees[i])
        excess = {hop: n - hop.ports for hop, n in used.items() if n > hop.ports}
        if sum(excess.values()) < least:
            best, least = list(trees), sum(excess.values())
        if not excess:
            break
        history.update(excess)
    nets = tuple(
        Net(group[0].source, tuple(group), tree) for group, tree in zip(groups, best, strict=True)
    )
    return Routing(nets, dict(Counter(hop for tree in best for hop in tree)))


def _tree(
    device: Device, source: Tile, ends: set[Tile], price: Callable[[Hop], float]
) -> frozenset[Hop]:
    """A cheap tree from `source` to `ends`: the nearest end joins the tree first, then the next."""
    tree: set[Hop] = set()
    reached = {source}
    missing = ends - reached
    while missing:
        cost = dict.fromkeys(reached, 0.0)
        came: dict[Tile, Hop] = {}
        queue = [(0.0, tile) for tile in sorted(reached)]
        while queue:
            so_far, tile = heapq.heappop(queue)
            if so_far > cost[tile]:
                continue
            if tile in missing:
                break
            for hop in _hops(device, tile):
                total = so_far + price(hop)
                if total < cost.get(hop.to, float("inf")):
                    cost[hop.to], came[hop.to] = total, hop
                    heapq.heappush(queue, (total, hop.to))
        missing.remove(tile)
        while tile not in reached:
            reached.add(tile)
            tree.add(came[tile])
            tile = came[tile].tile
    return frozenset(tree)


def _hops(device: Device, tile: Tile) -> Iterator[Hop]:
    for heading in _MOVES:
        hop = Hop(tile, heading)
        to = hop.to
        if hop.ports and 0 <= to.column < device.columns and 0 <= to.row < device.rows:
            yield hop
