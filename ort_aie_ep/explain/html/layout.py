"""A graph from top to bottom: rows of nodes, with room for the edges that pass a row.

The method is that of Sugiyama, Tagawa and Toda (1981): rows by the longest path, an invisible node
for each row that an edge passes, an order within rows by the mean position of neighbours, and
positions as near to the neighbours' as order and widths allow. A block (a plan) is a rectangle
without other nodes. Blocks side by side are in zones from left to right; blocks that follow each
other are in the same zone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from itertools import pairwise
from statistics import fmean

WIDTH, HEIGHT = 284.0, 40.0  # pixels of a node
SMALL_WIDTH = 176.0  # of an input or output of the model, or a constant
ROW = 66.0  # from the top of a row to the top of the next
GAP = 18.0  # between nodes of a row
MARGIN = 13.0  # around a block: blocks in consecutive rows touch
_LANE = 14.0  # the width of an edge that passes a row
_SMALL = 0.05  # a small node's weight in the position of its neighbours
_SWEEPS = 12

Point = tuple[float, float]


@dataclass(frozen=True)
class Block:
    """The rectangle around the nodes of a block."""

    block: int
    left: float
    top: float
    width: float
    height: float


@dataclass(frozen=True)
class Layout:
    """Where everything is, in pixels.

    Attributes:
        places: left and top of each node.
        ways: for each edge, the points between its nodes, mostly none.
        blocks: the blocks that have nodes, by number.
    """

    width: float
    height: float
    places: tuple[Point, ...]
    ways: tuple[tuple[Point, ...], ...]
    blocks: tuple[Block, ...]


@dataclass
class _Item:
    """A node, or a place where an edge passes a row."""

    row: int
    zone: int
    width: float
    pull: float = 1.0  # its weight in the position of its neighbours
    above: list[int] = field(default_factory=list)
    below: list[int] = field(default_factory=list)
    x: float = 0.0  # of its middle


def lay_out(
    blocks: Sequence[int | None], edges: Sequence[tuple[int, int]], small: Collection[int] = ()
) -> Layout:
    """Places nodes 0, 1, ...; `blocks` has the block of each, or None if a node is in none.

    `edges` are (from, to), without cycles. `small` nodes are narrow, and hardly move others.
    """
    rows = _rows(len(blocks), edges)
    zones = _zones(rows, blocks, edges)
    items = [_Item(row, zone, WIDTH) for row, zone in zip(rows, zones, strict=True)]
    for node in small:
        items[node].width, items[node].pull = SMALL_WIDTH, _SMALL
    lanes = [_lane(items, source, target) for source, target in edges]
    table: list[list[int]] = [[] for _ in range(max(rows, default=-1) + 1)]
    for number, item in enumerate(items):
        table[item.row].append(number)
    _order(items, table)
    left = 0.0
    for zone in sorted({item.zone for item in items}):
        own = [[i for i in row if items[i].zone == zone] for row in table]
        _place(items, own)
        inside = [items[i] for row in own for i in row]
        shift = left + MARGIN - min(item.x - item.width / 2 for item in inside)
        for item in inside:
            item.x += shift
        left = max(item.x + item.width / 2 for item in inside) + MARGIN + GAP
    return Layout(
        left,
        (max(rows, default=0)) * ROW + HEIGHT + 2 * MARGIN,
        tuple((item.x - item.width / 2, item.row * ROW + MARGIN) for item in items[: len(blocks)]),
        tuple(
            tuple((items[i].x, items[i].row * ROW + MARGIN + HEIGHT / 2) for i in lane)
            for lane in lanes
        ),
        tuple(
            _around(block, [items[node] for node, its in enumerate(blocks) if its == block])
            for block in sorted({block for block in blocks if block is not None})
        ),
    )


def _around(block: int, items: Sequence[_Item]) -> Block:
    left, right = (min(i.x - i.width / 2 for i in items), max(i.x + i.width / 2 for i in items))
    first, last = min(item.row for item in items), max(item.row for item in items)
    return Block(
        block, left - MARGIN, first * ROW, right - left + 2 * MARGIN,
        (last - first) * ROW + HEIGHT + 2 * MARGIN,
    )  # fmt: skip


def _zones(
    rows: Sequence[int], blocks: Sequence[int | None], edges: Iterable[tuple[int, int]]
) -> list[int]:
    """The zone of each node: for a block, the first zone where no other block has one of its rows.

    Connected nodes outside blocks are in the first zone if nothing is beside them there, otherwise
    in the last.
    """
    zones = [0] * len(rows)
    taken: list[set[int]] = [set()]  # rows of each zone

    def between(nodes: Sequence[int]) -> set[int]:
        its = [rows[node] for node in nodes]
        return set(range(min(its), max(its) + 1))

    for block in sorted({block for block in blocks if block is not None}):
        nodes = [node for node, its in enumerate(blocks) if its == block]
        free = (zone for zone, its in enumerate(taken) if not its & between(nodes))
        zone = next(free, len(taken))
        taken += [set()] * (zone == len(taken))
        taken[zone] |= between(nodes)
        for node in nodes:
            zones[node] = zone
    for part in _loose(blocks, edges):
        if taken[0] & between(part):
            for node in part:
                zones[node] = len(taken)
        else:
            taken[0] |= between(part)
    return zones


def _loose(
    blocks: Sequence[int | None], edges: Iterable[tuple[int, int]]
) -> Iterator[Sequence[int]]:
    """Nodes outside blocks, in sets connected by edges."""
    near: dict[int, set[int]] = {node: set() for node, its in enumerate(blocks) if its is None}
    for source, target in edges:
        if source in near and target in near:
            near[source].add(target)
            near[target].add(source)
    while near:
        node = next(iter(near))
        part, waiting = [node], near.pop(node)
        while waiting:
            node = waiting.pop()
            if node in near:
                waiting |= near.pop(node)
                part.append(node)
        yield part


def _rows(count: int, edges: Iterable[tuple[int, int]]) -> list[int]:
    """Rows: a node is one below the lowest that it reads; one that reads nothing is just above its
    readers."""
    above: dict[int, set[int]] = {node: set() for node in range(count)}
    below: dict[int, set[int]] = {node: set() for node in range(count)}
    for source, target in edges:
        above[target].add(source)
        below[source].add(target)
    rows = [0] * count
    for node in TopologicalSorter(above).static_order():
        rows[node] = max((rows[source] + 1 for source in above[node]), default=0)
    for node in range(count):
        if not above[node] and below[node]:
            rows[node] = min(rows[target] for target in below[node]) - 1
    return rows


def _lane(items: list[_Item], source: int, target: int) -> list[int]:
    """Adds an edge's items in the rows between its nodes, and returns their numbers."""
    zone = items[target].zone
    lane = range(len(items), len(items) + items[target].row - items[source].row - 1)
    items.extend(_Item(row, zone, _LANE) for row in range(items[source].row + 1, items[target].row))
    for upper, lower in pairwise((source, *lane, target)):
        items[upper].below.append(lower)
        items[lower].above.append(upper)
    return list(lane)


def _order(items: Sequence[_Item], table: list[list[int]]) -> None:
    """Orders each row by zone, and within it by the mean position of neighbours."""
    position = {i: float(at) for row in table for at, i in enumerate(row)}
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        for row in table if down else reversed(table):

            def wanted(i: int, *, down: bool = down) -> tuple[int, float]:
                near = items[i].above if down else items[i].below
                return items[i].zone, fmean(position[n] for n in near) if near else position[i]

            row.sort(key=wanted)
            position.update({i: float(at) for at, i in enumerate(row)})


def _place(items: Sequence[_Item], rows: Sequence[Sequence[int]]) -> None:
    """Moves the items of a zone near their neighbours within it, in the order of their rows."""
    for row in rows:
        _settle([items[i] for i in row], [0.0] * len(row))
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        for row in rows if down else reversed(rows):
            wanted = []
            for i in row:
                near = items[i].above if down else items[i].below
                near = [n for n in near if items[n].zone == items[i].zone]
                wanted.append(
                    fmean([items[n].x for n in near], [items[n].pull for n in near])
                    if near
                    else items[i].x
                )
            _settle([items[i] for i in row], wanted)


def _settle(row: Sequence[_Item], wanted: Sequence[float]) -> None:
    """The positions nearest to `wanted` (least squares, by pull) at which nothing overlaps.

    After subtracting the least distances from the first item, the positions must not decrease. This
    is isotonic regression, which merges neighbours that violate the order into one at their mean.
    """
    offsets = [0.0]
    for left, right in pairwise(row):
        offsets.append(offsets[-1] + (left.width + right.width) / 2 + GAP)
    pools: list[tuple[float, float, int]] = []  # mean, pull, how many
    for item, want, offset in zip(row, wanted, offsets, strict=False):
        mean, pull, count = want - offset, item.pull, 1
        while pools and pools[-1][0] > mean:
            before, more, others = pools.pop()
            mean = (before * more + mean * pull) / (more + pull)
            pull, count = pull + more, count + others
        pools.append((mean, pull, count))
    means = [mean for mean, _, count in pools for _ in range(count)]
    for item, mean, offset in zip(row, means, offsets, strict=False):
        item.x = mean + offset
