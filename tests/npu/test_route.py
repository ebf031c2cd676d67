"""Paths of streams: they share ports where allowed, and never use more than there are."""

from __future__ import annotations

import pytest

from ort_aie_ep.aie_kernels.fused_dqp import design as fused_dqp
from ort_aie_ep.npu.checks.route import Hop, Routing, route
from ort_aie_ep.npu.terms.configuration import Port, Stream, configure
from ort_aie_ep.npu.terms.device import DEVICES, Tile, device


def stream(
    name: str, source: Tile, *ends: Tile, channel: int = 0, packet: int | None = None
) -> Stream:
    return Stream(
        name, Port(source, "MM2S", channel), packet, tuple(Port(tile, "S2MM", 0) for tile in ends)
    )


def reaches(routing: Routing, name: str, source: Tile, ends: list[Tile]) -> bool:
    """Whether the path is a tree from `source` to exactly the ends, without other branches."""
    (net,) = (net for net in routing.nets if name in [s.fifo for s in net.streams])
    hops = net.paths()[name]
    entered = [hop.to for hop in hops]
    left = {hop.tile for hop in hops}
    inner = left - {source}
    leaves = set(entered) - left
    return (
        len(set(entered)) == len(entered)
        and inner <= set(entered)
        and leaves <= set(ends)
        and set(ends) - {source} <= set(entered)
    )


def test_a_multicast_takes_a_shared_segment_once() -> None:
    ends = [Tile(column, row) for column in range(4) for row in range(2, 6)]
    routing = route(device("npu2"), [stream("x", Tile(0, 0), *ends)])
    assert set(routing.used.values()) == {1}
    # A tree over the sixteen cores, the shim and the memory tile between them.
    assert len(routing.used) == 17
    assert reaches(routing, "x", Tile(0, 0), ends)


def test_memory_tiles_have_no_ports_sideways() -> None:
    routing = route(device("npu2"), [stream("a", Tile(0, 1), Tile(3, 1))])
    assert not [
        hop for hop in routing.used if hop.tile.row == 1 and hop.heading in ("west", "east")
    ]
    assert reaches(routing, "a", Tile(0, 1), [Tile(3, 1)])


def test_packets_of_one_channel_share_their_way() -> None:
    ends = {0: Tile(0, 4), 1: Tile(0, 5)}
    routing = route(
        device("npu2"), [stream(f"p{i}", Tile(0, 0), end, packet=i) for i, end in ends.items()]
    )
    assert set(routing.used.values()) == {1}
    (net,) = routing.nets
    assert len(net.paths()["p0"]) == 4
    assert len(net.paths()["p1"]) == 5
    # Packets go two ways at the switch where they part, and only there.
    apart = {tile: sorted(ids.values()) for _, tile, ids in routing.packet_outputs()}
    assert {tile: ids for tile, ids in apart.items() if len(ids) > 1} == {Tile(0, 4): [[0], [1]]}


def test_a_full_segment_is_gone_around() -> None:
    """Five streams from the lowest core into its memory tile: one enters from below."""
    streams = [stream(f"s{i}", Tile(0, 2), Tile(0, 1), channel=i) for i in range(5)]
    routing = route(device("npu2_2col"), streams)
    assert not routing.overfull
    assert routing.used[Hop(Tile(0, 2), "south")] == 4
    assert routing.used[Hop(Tile(0, 0), "north")] == 1
    assert all(reaches(routing, s.fifo, Tile(0, 2), [Tile(0, 1)]) for s in streams)


def test_without_a_way_around_the_segment_is_named() -> None:
    streams = [stream(f"s{i}", Tile(0, 2), Tile(0, 1), channel=i) for i in range(5)]
    routing = route(device("npu2_1col"), streams)
    assert routing.overfull == [Hop(Tile(0, 2), "south")]
    assert len(routing.through(Hop(Tile(0, 2), "south"))) == 5


@pytest.mark.parametrize("name", DEVICES)
def test_fused_dqp_has_a_path_for_every_stream(name: str) -> None:
    design = fused_dqp.build(device(name), device(name).columns)
    streams = configure(design).streams
    routing = route(design.device, streams)
    assert not routing.overfull
    assert all(used <= h.ports for h, used in routing.used.items())
    for s in streams:
        ends = [port.tile for port in s.destinations]
        assert reaches(routing, s.fifo, s.source.tile, ends), s.fifo
