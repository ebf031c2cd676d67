"""What packets need of the stream switches: slots for rules, arbiters, selections.

Counted as aiecc counts (mlir-aie's AIECreatePathFindFlows.cpp), over the ways that `route` finds:

* A packet that enters a switch is matched with the rules of the port where it enters, (id & mask)
  == value, of which a port has 4. Ids that leave by the same ports share rules where a mask covers
  them and no other id of the port.
* A port where packets leave belongs to one of 6 arbiters. Ids that leave by ports with nothing in
  common have an arbiter each. aiecc would let the seventh share one; then two streams wait for each
  other that have nothing to do with each other, so here it is refused.
* Each set of ports is a selection of its arbiter, which has 4.
* aiecc adds a stream of its own to every used column, which the design does not have: completion
  tokens, from the shim as a controller to its port south 0. It takes an arbiter of the shim.

Packets of several sources under one id are legal, and unambiguous while their ways are apart; but
support is recent, and a trace of packets could not tell them apart. So ids are unique while there
are enough.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import combinations

from ort_aie_ep.npu.checks import real_words
from ort_aie_ep.npu.checks.report import Findings
from ort_aie_ep.npu.checks.route import ARBITERS, RULE_SLOTS, Hop, Routing
from ort_aie_ep.npu.vocabulary.configuration import Configuration, Port
from ort_aie_ep.npu.vocabulary.device import MAX_PACKET_ID, PACKET_IDS, Tile
from ort_aie_ep.npu.vocabulary.switch import SELECTIONS

Masters = frozenset[tuple[Port, Hop] | Port]


def packets(findings: Findings, configuration: Configuration, routing: Routing) -> None:
    """Look at every switch that packets pass, with the tokens of the used columns."""
    names: dict[Tile, dict[Masters, list[str]]] = defaultdict(lambda: defaultdict(list))
    for net, tile, outputs in routing.packet_outputs():
        name = "+".join(stream.fifo for stream in net.streams)
        rules = sum(
            len(cover(ids, [i for o in outputs.values() if o is not ids for i in o]))
            for ids in outputs.values()
        )
        if rules > RULE_SLOTS:
            findings.refuse(
                tile, "packet rules",
                f"the packets of {name} part {len(outputs)} ways and need {rules} rules of the "
                f"port where they enter, the limit is {RULE_SLOTS}",
                real_words.RULES.format(limit=RULE_SLOTS),
            )  # fmt: skip
        for ports, ids in outputs.items():
            # Two nets have ports of their own on a hop; channels where both end are the same.
            masters = frozenset((net.source, p) if isinstance(p, Hop) else p for p in ports)
            names[tile][masters] += [s.fifo for s in net.streams if s.packet in ids]
    used = {tile.column for tile in _tiles(configuration)}
    for tile in sorted({*names, *(Tile(column, 0) for column in used)}):
        groups = list(_joined(names[tile]))
        for group in groups:
            if len(group) > SELECTIONS:
                fifos = sorted({f for ports in group for f in names[tile][ports]})
                findings.refuse(
                    tile, "packet selections",
                    f"{len(group)} sets of ports with ports in common ({', '.join(fifos)}), the "
                    f"limit is {SELECTIONS} for an arbiter",
                    real_words.SELECTIONS,
                )  # fmt: skip
        by = ["+".join(f for ports in group for f in names[tile][ports]) for group in groups]
        if tile.kind == "shim":
            by.append("completion tokens")
        findings.use(tile, "packet arbiters", len(by), ARBITERS, ", ".join(by))
    _unique(findings, configuration)


def _tiles(configuration: Configuration) -> Iterator[Tile]:
    for stream in configuration.streams:
        yield from (port.tile for port in (stream.source, *stream.destinations))
    yield from (worker.tile for worker in configuration.design.workers.values())


def _joined(sets: Iterable[Masters]) -> Iterator[list[Masters]]:
    """`sets` in groups that have no port in common."""
    groups: list[list[Masters]] = []
    for ports in sets:
        apart = [group for group in groups if not any(ports & other for other in group)]
        near = [other for group in groups if group not in apart for other in group]
        groups = [*apart, [*near, ports]]
    yield from groups


def _unique(findings: Findings, configuration: Configuration) -> None:
    """Ids of fifos of their own while there are enough."""
    by: dict[int, list[str]] = defaultdict(list)
    for stream in configuration.streams:
        if stream.packet is not None:
            by[stream.packet].append(stream.fifo)
    count = sum(map(len, by.values()))
    for packet, fifos in sorted(by.items()):
        if len(fifos) == 1:
            continue
        text = f"id {packet} has {len(fifos)} sources: fifos {', '.join(fifos)}"
        if count <= len(PACKET_IDS):
            findings.refuse(
                "design", "packet ids",
                f"{text}; {len(PACKET_IDS)} ids suffice for {count} fifos (give_packet_ids)",
            )  # fmt: skip
        else:
            findings.notes.append(f"packet {text}, whose ways are apart")


def cover(ids: Iterable[int], others: Iterable[int]) -> list[tuple[int, int]]:
    """The fewest (mask, value) that match all of `ids` and none of `others`."""
    wanted, avoided = set(ids), set(others)
    best: dict[frozenset[int], tuple[int, int]] = {}
    for mask in range(MAX_PACKET_ID, -1, -1):
        for value in {i & mask for i in wanted}:
            if not any(i & mask == value for i in avoided):
                # Later masks have fewer bits or other ones; of those that match the same ids the
                # first is as good.
                best.setdefault(frozenset(i for i in wanted if i & mask == value), (mask, value))
    for number in range(1, len(wanted) + 1):
        for matched in combinations(best, number):
            if frozenset().union(*matched) == wanted:
                return [best[ids] for ids in matched]
    return []
