"""Ports of stream switches: numbers, arbiters and slots for the routes that `route` found."""

from __future__ import annotations

import pytest

from ort_aie_ep.npu.checks.ports import Rule, assign_ports
from ort_aie_ep.npu.checks.route import route
from ort_aie_ep.npu.terms.configuration import Port, Stream
from ort_aie_ep.npu.terms.device import Tile, device
from ort_aie_ep.npu.terms.errors import DesignError
from ort_aie_ep.npu.terms.switch import SwitchPort


def stream(name: str, source: Port, *ends: Port, packet: int | None = None) -> Stream:
    return Stream(name, source, packet, ends)


def send(column: int, row: int, channel: int = 0) -> Port:
    return Port(Tile(column, row), "MM2S", channel)


def take(column: int, row: int, channel: int = 0) -> Port:
    return Port(Tile(column, row), "S2MM", channel)


def test_a_memory_tile_passes_on_under_the_same_number() -> None:
    """The stream that ends at the memory tile comes first, and must not take the passing stream's
    number: there are six ports below, and the two numbers would differ."""
    streams = [
        stream("ends", send(0, 0, 0), take(0, 1, 0)),
        stream("passes", send(0, 0, 1), take(0, 2, 0)),
        stream("starts", send(0, 1, 0), take(0, 2, 1)),
    ]
    switches = assign_ports(route(device("npu2_1col"), streams))
    memory = {c.slave: c.masters for c in switches[Tile(0, 1)].circuits}
    passing = [s for s, masters in memory.items() if masters[0].bundle == "north"]
    assert {(s.bundle, s.channel, memory[s][0].channel) for s in passing} == {
        ("south", 0, 0),
        ("dma", 0, 1),
    }


def test_a_shim_takes_the_ports_behind_which_its_dma_is() -> None:
    streams = [stream("up", send(0, 0, 1), take(0, 1)), stream("down", send(0, 1), take(0, 0, 1))]
    switches = assign_ports(route(device("npu2_1col"), streams))
    circuits = {c.slave: c.masters for c in switches[Tile(0, 0)].circuits}
    assert circuits == {
        SwitchPort("south", 7): (SwitchPort("north", 0),),
        SwitchPort("north", 0): (SwitchPort("south", 3),),
    }


def test_rules_part_packets_with_few_slots() -> None:
    """Ids 0, 1, 3, 5 go north, 2 ends here and 4 goes east. One rule takes all odd ids, so four
    slots suffice; one for each common prefix would be five."""
    ends = {0: (0, 3), 1: (0, 4), 3: (0, 5), 5: (0, 3), 2: (0, 2), 4: (1, 2)}
    channels: dict[tuple[int, int], int] = {}
    streams = []
    for packet, (column, row) in ends.items():
        channel = channels.get((column, row), 0)
        channels[column, row] = channel + 1
        streams.append(stream(f"p{packet}", send(0, 0), take(column, row, channel), packet=packet))
    (packets,) = assign_ports(route(device("npu2_2col"), streams))[Tile(0, 2)].packets
    assert len(packets.rules) == 4
    selections = {
        packet: {rule.selection for rule in packets.rules if rule.matches(packet)}
        for packet in ends
    }
    assert all(len(found) == 1 for found in selections.values())
    assert selections[0] == selections[1] == selections[3] == selections[5]
    assert len({frozenset(found) for found in selections.values()}) == 3


def test_headers_stay_on_the_way_and_are_dropped_at_the_end() -> None:
    streams = [stream("p", send(0, 0), take(0, 3), packet=9)]
    switches = assign_ports(route(device("npu2_1col"), streams))
    dropped = {
        tile: [master.drop_header for packets in switch.packets for master in packets.masters]
        for tile, switch in switches.items()
    }
    assert dropped == {
        Tile(0, 0): [False, False],  # the other is for tokens
        **{Tile(0, row): [row == 3] for row in range(1, 4)},
    }
    assert switches[Tile(0, 3)].packets[0].rules == (Rule(9, 31, 0),)


def test_tokens_leave_the_shims_of_streams() -> None:
    streams = [stream("up", send(1, 0), take(1, 2))]
    switches = assign_ports(route(device("npu2_2col"), streams))
    assert Tile(0, 0) not in switches
    (packets,) = switches[Tile(1, 0)].packets
    assert (packets.slave, packets.rules) == (SwitchPort("control", 0), (Rule(15, 31, 0),))
    assert [(m.port, m.drop_header) for m in packets.masters] == [(SwitchPort("south", 0), False)]


def test_more_rules_than_a_port_has_are_refused() -> None:
    """Ids that no mask can join: 0, 3, 5, 6 differ by two bits each, and 1, 2, 4, 7 go
    elsewhere."""
    streams = [
        stream(f"p{i}", send(0, 0), take(0, 2 if i in (0, 3, 5, 6) else 3, 0), packet=i)
        for i in range(8)
    ]
    with pytest.raises(DesignError, match=r"core tile \(0, 2\): .*8 packet rules"):
        assign_ports(route(device("npu2_1col"), streams))
