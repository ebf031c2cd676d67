"""Which ports of the stream switches a routing uses, and how packets find their way through them.

`route` counts ports; this module numbers them. A net has its own port on every hop. A memory tile
passes a stream on between south and north only under the same number, so nets that pass are
numbered first.

A switch sends packets by rules. A slave's slot that matches a packet's id names an arbiter and one
of its four selections, and every master of that arbiter with that selection sends the packet on.
Each net of packets has its own arbiter in every switch, so no two nets wait for each other, and a
selection for each set of outputs. The header stays on the way and is dropped where a DMA channel
receives. In the shims of a design's columns, one arbiter is reserved for completion tokens, which
the control port sends south. aiecc routes differently. This module shows that ports, arbiters and
slots suffice, and which words express that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from ort_aie_ep.npu.checks.route import ARBITERS, RULE_SLOTS, Hop, Net, Routing
from ort_aie_ep.npu.terms.configuration import Port
from ort_aie_ep.npu.terms.device import MAX_PACKET_ID, Tile
from ort_aie_ep.npu.terms.errors import DesignError
from ort_aie_ep.npu.terms.packet_ids import cover
from ort_aie_ep.npu.terms.switch import (
    OPPOSITE,
    SELECTIONS,
    TOKEN_PACKET,
    TOKENS_IN,
    TOKENS_OUT,
    SwitchPort,
    dma_master,
    dma_slave,
    legal,
)


@dataclass(frozen=True)
class Rule:
    """A slave's slot: packets whose id is `id` in the bits of `mask` take `selection`."""

    id: int
    mask: int
    selection: int

    def matches(self, packet: int) -> bool:
        """Whether the rule matches a packet with this id."""
        return packet & self.mask == self.id & self.mask


@dataclass(frozen=True)
class PacketMaster:
    """A master of an arbiter: its selections, and whether it drops the header."""

    port: SwitchPort
    selections: frozenset[int]
    drop_header: bool


@dataclass(frozen=True)
class Circuit:
    """A stream that enters at `slave` leaves at all `masters`."""

    slave: SwitchPort
    masters: tuple[SwitchPort, ...]


@dataclass(frozen=True)
class PacketSwitch:
    """A packet that enters at `slave` goes where its rules send it, through `arbiter`."""

    slave: SwitchPort
    arbiter: int
    rules: tuple[Rule, ...]
    masters: tuple[PacketMaster, ...]


@dataclass(frozen=True)
class Switch:
    """The configuration of one tile's stream switch."""

    circuits: tuple[Circuit, ...]
    packets: tuple[PacketSwitch, ...]


def assign_ports(routing: Routing) -> dict[Tile, Switch]:
    """The switches of `routing`, by tile; tokens leave every shim where a stream starts or ends.

    Raises DesignError where ports, arbiters, selections or slots do not suffice, or a switch cannot
    join two ports.
    """
    numbers = _numbers(routing)
    circuits: dict[Tile, list[Circuit]] = defaultdict(list)
    packets: dict[Tile, list[PacketSwitch]] = defaultdict(list)
    ports = [p for n in routing.nets for s in n.streams for p in (s.source, *s.destinations)]
    for shim in {port.tile for port in ports if port.tile.kind == "shim"}:
        out = PacketMaster(TOKENS_OUT, frozenset({0}), drop_header=False)
        rules = (Rule(TOKEN_PACKET, MAX_PACKET_ID, 0),)
        packets[shim].append(PacketSwitch(TOKENS_IN, 0, rules, (out,)))
    for net in routing.nets:
        leaves = net.outputs()
        for tile, slave in _slaves(net, numbers).items():
            outputs = leaves[tile]
            masters = {
                out: SwitchPort(out.heading, numbers[net.source, out])
                if isinstance(out, Hop)
                else dma_master(tile.kind, out.index)
                for out in sorted({o for outs in outputs.values() for o in outs}, key=str)
            }
            for master in masters.values():
                if not legal(tile.kind, slave, master):
                    raise DesignError(
                        f"{tile} cannot pass fifo {net.streams[0].fifo} on from {slave} to {master}"
                    )
            if net.streams[0].packet is None:
                circuits[tile].append(Circuit(slave, tuple(sorted(masters.values()))))
            else:
                arbiter = len(packets[tile])
                packets[tile].append(_packet_switch(net, tile, arbiter, slave, outputs, masters))
    return {
        tile: Switch(tuple(circuits[tile]), tuple(packets[tile]))
        for tile in sorted({*circuits, *packets})
    }


def _numbers(routing: Routing) -> dict[tuple[Port, Hop], int]:
    """The number of the port that each net takes on each hop."""
    taken: dict[Hop, set[int]] = defaultdict(set)
    numbers: dict[tuple[Port, Hop], int] = {}

    def take(net: Net, hops: Iterable[Hop]) -> None:
        together = list(hops)
        number = 0
        while any(number in taken[hop] for hop in together):
            number += 1
        for hop in together:
            if number >= hop.ports:
                raise DesignError(
                    f"{hop.tile} has {hop.ports} ports {hop.heading}, and fifo "
                    f"{net.streams[0].fifo} needs one more"
                )
            taken[hop].add(number)
            numbers[net.source, hop] = number

    for net in routing.nets:
        for hop in sorted(net.hops):
            onwards = Hop(hop.to, hop.heading)
            if hop.to.kind == "mem" and onwards in net.hops:
                take(net, (hop, onwards))
    for net in routing.nets:
        for hop in sorted(net.hops):
            if (net.source, hop) not in numbers:
                take(net, (hop,))
    return numbers


def _slaves(net: Net, numbers: dict[tuple[Port, Hop], int]) -> dict[Tile, SwitchPort]:
    """The port where the net enters each switch on its way."""
    source = net.source
    slaves = {source.tile: dma_slave(source.tile.kind, source.index)}
    for hop in net.hops:
        slaves[hop.to] = SwitchPort(OPPOSITE[hop.heading], numbers[source, hop])
    return slaves


def _packet_switch(
    net: Net,
    tile: Tile,
    arbiter: int,
    slave: SwitchPort,
    outputs: dict[int | None, frozenset[Hop | Port]],
    masters: dict[Hop | Port, SwitchPort],
) -> PacketSwitch:
    ids: dict[frozenset[Hop | Port], list[int]] = defaultdict(list)
    for packet, outs in sorted(outputs.items(), key=lambda item: item[0] or 0):
        assert packet is not None
        ids[outs].append(packet)
    rules = [
        Rule(value, mask, selection)
        for selection, own in enumerate(ids.values())
        for mask, value in cover(own, [i for other in ids.values() if other != own for i in other])
    ]
    name = "+".join(stream.fifo for stream in net.streams)
    for what, used, limit in (
        ("arbiters", arbiter + 1, ARBITERS),
        ("selections", len(ids), SELECTIONS),
        ("packet rules", len(rules), RULE_SLOTS),
    ):
        if used > limit:
            raise DesignError(f"{tile}: packets of {name} need {used} {what}; the limit is {limit}")
    return PacketSwitch(
        slave,
        arbiter,
        tuple(rules),
        tuple(
            PacketMaster(
                port,
                frozenset(i for i, outs in enumerate(ids) if out in outs),
                isinstance(out, Port),
            )
            for out, port in sorted(masters.items(), key=lambda item: item[1])
        ),
    )
