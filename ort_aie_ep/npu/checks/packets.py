"""What packets need in the stream switches: slots for rules, arbiters, selections.

The counts follow aiecc (mlir-aie's AIECreatePathFindFlows.cpp), over the paths that `route` finds:

* A switch matches a packet with the rules of the port where it enters, (id & mask) == value. A port
  has 4 rules. Ids that leave by the same ports share rules where a mask covers them and no other id
  of the port. No id matches two rules, as in the encoded words (`ports`).
* A port where packets leave belongs to one of 6 arbiters. Ids that leave by disjoint sets of ports
  have an arbiter each. aiecc would let a seventh set share an arbiter. Two unrelated streams would
  then wait for each other, so this module refuses that.
* Arbiters are assigned in the order of ids. A packet that leaves by ports of two arbiters loses
  some of its ends, without an error (7e00b579). aiecc's paths differ from those here. So among the
  fifos of a channel, those with more ends must have the lower ids, wherever they part.
* Each set of ports is a selection of its arbiter, which has 4.
* aiecc adds a stream to every used column, which is not in the design: completion tokens, from the
  shim as a controller to its port south 0. It uses an arbiter of the shim.

Packets of several sources under one id are legal, and unambiguous while their paths do not meet.
But mlir-aie's support for them is recent, and a trace of packets could not tell them apart. So ids
are unique while there are enough.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from ort_aie_ep.npu.checks import real_words
from ort_aie_ep.npu.checks.report import Findings
from ort_aie_ep.npu.checks.route import Hop, Net, Routing
from ort_aie_ep.npu.terms.configuration import Configuration, Port, Stream
from ort_aie_ep.npu.terms.device import PACKET_IDS, Tile
from ort_aie_ep.npu.terms.packet_ids import cover

RULE_SLOTS = 4  # of a port where packets enter
ARBITERS = 6  # of a switch
SELECTIONS = 4  # of an arbiter: sets of masters that a rule can name (msel)

Masters = frozenset[tuple[Port, Hop] | Port]

#: By the ports where packets leave a switch, in the order of their ids: their fifos.
Leaving = dict[Masters, list[str]]


def packets(findings: Findings, configuration: Configuration, routing: Routing) -> None:
    """Check every switch that packets pass, including the tokens of the used columns."""
    leaving: dict[Tile, Leaving] = defaultdict(lambda: defaultdict(list))
    for net, tile, outputs in routing.packet_outputs():
        _rules(findings, net, tile, list(outputs.values()))
        for ports, ids in sorted(outputs.items(), key=lambda item: min(item[1])):
            # Nets have separate ports on a hop, but share a DMA channel where both end.
            masters = frozenset((net.source, p) if isinstance(p, Hop) else p for p in ports)
            leaving[tile][masters] += [s.fifo for s in net.streams if s.packet in ids]
    used = {tile.column for tile in _tiles(configuration)}
    for tile in sorted({*leaving, *(Tile(column, 0) for column in used)}):
        _switch(findings, tile, leaving[tile])
    _unique(findings, configuration)
    _ordered(findings, configuration)


def _rules(findings: Findings, net: Net, tile: Tile, groups: list[list[int]]) -> None:
    """Check the slots of the port where a net enters: ids in `groups` leave by the same ports."""
    rules = sum(
        len(cover(ids, [i for other in groups if other is not ids for i in other]))
        for ids in groups
    )
    if rules > RULE_SLOTS:
        findings.refuse(
            tile, "packet rules",
            f"the packets of {'+'.join(s.fifo for s in net.streams)} part {len(groups)} ways and "
            f"need {rules} rules of the port where they enter; the limit is {RULE_SLOTS}",
            real_words.RULES.format(limit=RULE_SLOTS),
        )  # fmt: skip


def _switch(findings: Findings, tile: Tile, leaving: Leaving) -> None:
    """Check arbiters and selections."""
    groups, between = _arbiters(leaving)
    for masters in between:
        findings.refuse(
            tile, "packet arbiters",
            f"the packets of {'+'.join(leaving[masters])} leave by ports that packets with lower "
            "ids have given to several arbiters, and would lose an end; give those with the most "
            "ends the lowest ids (give_packet_ids)",
        )  # fmt: skip
    by = ["+".join(fifo for masters in group for fifo in leaving[masters]) for group in groups]
    for group, fifos in zip(groups, by, strict=True):
        if len(group) > SELECTIONS:
            findings.refuse(
                tile, "packet selections",
                f"{len(group)} sets of ports with ports in common ({fifos}); the limit is "
                f"{SELECTIONS} for an arbiter",
                real_words.SELECTIONS,
            )  # fmt: skip
    if tile.kind == "shim":
        by.append("completion tokens")
    findings.use(tile, "packet arbiters", len(by), ARBITERS, ", ".join(by))


def _tiles(configuration: Configuration) -> Iterator[Tile]:
    for stream in configuration.streams:
        yield from (port.tile for port in (stream.source, *stream.destinations))
    yield from (worker.tile for worker in configuration.design.workers.values())


def _arbiters(sets: Iterable[Masters]) -> tuple[list[list[Masters]], list[Masters]]:
    """Assign `sets` to arbiters, in order; also returns those that would need several arbiters."""
    groups: list[list[Masters]] = []
    between = []
    for ports in sets:
        near = [group for group in groups if any(ports & other for other in group)]
        if not near:
            groups.append([ports])
        else:
            near[0].append(ports)
            between += [ports] if len(near) > 1 else []
    return groups, between


def _unique(findings: Findings, configuration: Configuration) -> None:
    """Check that ids are unique to a fifo while there are enough ids."""
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
            findings.notes.append(f"packet {text}: the router must keep their paths apart")


def _ordered(findings: Findings, configuration: Configuration) -> None:
    """Check the fifos of a channel: those with more ends need the lower ids."""
    channels: dict[Port, list[Stream]] = defaultdict(list)
    for stream in configuration.streams:
        if stream.packet is not None:
            channels[stream.source].append(stream)
    for port, streams in channels.items():
        for stream in streams:
            lower = [
                s.fifo
                for s in streams
                if (s.packet or 0) < (stream.packet or 0)
                and len(s.destinations) < len(stream.destinations)
            ]
            if lower:
                findings.refuse(
                    port.tile, "packet ids",
                    f"fifo {stream.fifo} has {len(stream.destinations)} ends and a higher id than "
                    f"{', '.join(lower)} on {port}: where their arbiters meet it would lose some "
                    "(give_packet_ids)",
                )  # fmt: skip
