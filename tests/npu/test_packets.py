"""Packets in the stream switches: rules, arbiters, selections and ids, as aiecc counts them."""

from __future__ import annotations

import random

from small_designs import add_worker, empty, refusal

from ort_aie_ep.aie_kernels.build import find_designs
from ort_aie_ep.npu.checks.check import check, examine
from ort_aie_ep.npu.checks.packets import packets
from ort_aie_ep.npu.checks.report import Findings
from ort_aie_ep.npu.checks.route import Hop, Net, Routing
from ort_aie_ep.npu.terms.configuration import Configuration, Port, Stream
from ort_aie_ep.npu.terms.design import Design
from ort_aie_ep.npu.terms.device import PACKET_IDS, Tile, device
from ort_aie_ep.npu.terms.packet_ids import cover, give_packet_ids

HUB = Tile(1, 2)
#: Five ways out of `HUB`'s switch, which packets enter from below.
WAYS = (
    Hop(HUB, "north"), Hop(HUB, "west"), Hop(HUB, "east"),
    Port(HUB, "S2MM", 0), Port(HUB, "S2MM", 1),
)  # fmt: skip


def hub(*sets: tuple[int, ...], ids: tuple[int, ...] = ()) -> Findings:
    """A shim's channel whose packets take different ways in `HUB`; each set of `WAYS` has a packet
    id."""
    source = Port(Tile(1, 0), "MM2S", 0)
    streams = []
    for number, ways in enumerate(sets):
        ends = [
            way if isinstance(way, Port) else Port(way.to, "S2MM", 0)
            for way in (WAYS[i] for i in ways)
        ]
        packet = ids[number] if ids else number
        streams.append(Stream(f"f{number}", source, packet, tuple(ends)))
    up = {Hop(Tile(1, 0), "north"), Hop(Tile(1, 1), "north")}
    hops = up | {way for ways in sets for way in (WAYS[i] for i in ways) if isinstance(way, Hop)}
    findings = Findings()
    routing = Routing((Net(source, tuple(streams), frozenset(hops)),), dict.fromkeys(hops, 1))
    packets(findings, Configuration(empty(), streams=streams), routing)
    return findings


def told(findings: Findings) -> list[str]:
    return [str(violation) for violation in findings.violations]


# --- rules ----------------------------------------------------------------------------------------
def test_four_ways_are_four_rules_and_five_are_refused() -> None:
    assert not told(hub((0,), (1,), (2,), (3,)))
    (text,) = told(hub((0,), (1,), (2,), (3,), (4,)))
    assert text == (
        "core tile (1, 2), packet rules: the packets of f0+f1+f2+f3+f4 part 5 ways and need 5 "
        "rules of the port where they enter; the limit is 4 "
        '(mlir-aie: "slave port packet rules exceed the 4-slot limit")'
    )


def test_ids_that_go_one_way_share_a_rule_where_a_mask_tells_them_apart() -> None:
    ways = ((0,), (0,), (0,), (0,), (1,))
    assert not told(hub(*ways, ids=(0, 1, 2, 3, 4)))
    # Any mask that covers two of 1, 2, 4 and 8 covers 0 too.
    (text,) = told(hub(*ways, ids=(1, 2, 4, 8, 0)))
    assert "5 rules" in text


def test_covers_match_their_ids_and_no_others() -> None:
    rng = random.Random(5)
    for _ in range(200):
        ids = rng.sample(range(32), rng.randint(2, 9))
        own, others = ids[: len(ids) // 2], ids[len(ids) // 2 :]
        rules = cover(own, others)
        assert len(rules) <= len(own)
        assert all(any(i & mask == value for mask, value in rules) for i in own)
        assert not any(i & mask == value for i in others for mask, value in rules)


def test_covers_are_the_smallest() -> None:
    assert len(cover([0, 1, 2, 3], [4])) == 1
    assert len(cover([0, 1, 2], [3])) == 2
    assert len(cover([1, 2, 4, 7], [0])) == 3
    assert len(cover([1, 2, 4, 8], [0])) == 4
    assert cover([5], []) == [(31, 5)]


# --- arbiters and selections ----------------------------------------------------------------------
def test_ways_with_nothing_in_common_have_arbiters_of_their_own_and_tokens_one() -> None:
    uses = {u.tile: u.used for u in hub((0,), (1,), (2, 3)).uses if u.resource == "packet arbiters"}
    assert uses[HUB] == 3
    assert uses[Tile(1, 0)] == 2  # the packets that go north, and the tokens


def test_packets_with_many_ends_need_the_lowest_ids() -> None:
    assert not told(hub((0, 1), (0,), (1,)))
    (text,) = told(hub((0,), (0, 1), (1,)))
    assert text.startswith("shim tile (1, 0), packet ids: fifo f1 has 2 ends and a higher id than")
    (text, _) = told(hub((0,), (1,), (0, 1)))
    assert text.startswith("core tile (1, 2), packet arbiters: the packets of f2 leave by ports")
    # The ends are as many, but there are still two arbiters.
    (text,) = told(hub((0, 1), (2, 3), (1, 2)))
    assert "f2" in text
    # In the order of ids, not of fifos.
    assert not told(hub((0,), (1,), (0, 1), ids=(1, 2, 0)))


def test_a_seventh_arbiter_is_refused() -> None:
    """Six channels of a memory tile send packets north, and one of the shim's sends through its
    switch."""
    sources = [Port(Tile(1, 1), "MM2S", i) for i in range(6)] + [Port(Tile(1, 0), "MM2S", 0)]
    streams = [
        Stream(f"f{i}", source, i, (Port(Tile(1, 2), "S2MM", i),))
        for i, source in enumerate(sources)
    ]
    north = Hop(Tile(1, 1), "north")
    nets = [
        Net(s.source, (s,), frozenset({north} | {Hop(s.source.tile, "north")})) for s in streams
    ]
    findings = Findings()
    packets(findings, Configuration(empty(), streams=streams), Routing(tuple(nets), {}))
    assert any(
        text.startswith("mem tile (1, 1), packet arbiters: 7 used; the limit is 6")
        for text in told(findings)
    )


def test_a_fifth_selection_of_an_arbiter_is_refused() -> None:
    """Sets that share ports are selections of one arbiter."""
    sets = ((0, 1), (0, 2), (0, 3), (0,))
    assert not told(hub(*sets))
    texts = told(hub((0, 4), *sets))
    assert any("packet selections: 5" in t for t in texts)


# --- ids ------------------------------------------------------------------------------------------
def two_sources(*ids: int) -> Design:
    design = empty()
    for column, packet in enumerate(ids):
        fifo = design.fifo(
            f"in{column}", "u8", 64, design.shim(column), design.core(column, 0), packet=packet
        )
        add_worker(design, column, 0, [fifo], [])
    return design


def test_an_id_of_two_sources_is_refused_while_there_are_others() -> None:
    assert check(two_sources(3, 4)).passed
    text = refusal(two_sources(3, 3))
    assert "packet ids: id 3 has 2 sources: fifos in0, in1" in text


def test_with_more_fifos_than_ids_it_is_noted() -> None:
    streams = [
        Stream(f"f{i}", Port(Tile(i % 8, 0), "MM2S", 0), i // 8 * 4, (Port(HUB, "S2MM", i),))
        for i in range(32)
    ]
    findings = Findings()
    packets(findings, Configuration(empty(), streams=streams), Routing((), {}))
    assert not told(findings)
    assert findings.notes[0].startswith("packet id 0 has 8 sources: fifos f0, ")


def sharing(*counts: int) -> Design:
    """The given number of fifos on each of the shims' channels."""
    design = empty()
    for number, count in enumerate(counts):
        for i in range(count):
            end = design.shim(number // 2, number % 2)
            design.fifo(f"f{number}_{i}", "u8", 64, end, design.core(i % 8, i // 8))
    give_packet_ids(design)
    return design


def ids_of(design: Design, channel: int) -> list[int | None]:
    return [f.packet for f in design.fifos.values() if f.name.startswith(f"f{channel}_")]


def test_fifos_that_share_a_channel_get_ids_of_their_own_in_blocks() -> None:
    design = sharing(1, 2, 6, 3)
    assert ids_of(design, 0) == [None]
    assert ids_of(design, 1) == [6, 7]
    assert ids_of(design, 2) == [0, 1, 2, 3, 4, 5]
    assert ids_of(design, 3) == [8, 9, 10]


def test_broadcasts_come_before_those_that_share_their_ways() -> None:
    """mlir-aie's router would lose an end of a broadcast whose id is higher than those of two fifos
    to its ends."""
    design = empty()
    ends = {"a": [(0, 0)], "b": [(1, 0)], "both": [(0, 1), (1, 1)]}
    for name, cores in ends.items():
        design.fifo(name, "u8", 64, design.shim(0, 0), [design.core(*core) for core in cores])
    give_packet_ids(design)
    assert design.fifos["both"].packet == 0


def test_ids_are_not_a_controllers_and_unique_while_there_are_enough() -> None:
    for counts in [(13, 13), (2,) * 13, (3,) * 8, (26,), (5, 5, 5, 5, 5)]:
        design = sharing(*counts)
        ids = [f.packet for f in design.fifos.values()]
        assert len(set(ids)) == sum(counts)
        assert set(ids) <= set(PACKET_IDS)
    design = sharing(20, 20)
    assert all(len(set(ids_of(design, channel))) == 20 for channel in range(2))
    assert {f.packet for f in design.fifos.values()} <= set(PACKET_IDS)


def test_decode_leaves_one_arbiter_free() -> None:
    report = examine(find_designs()["decode"](device("npu2")))
    uses = [u.used for u in report.uses if u.resource == "packet arbiters"]
    assert max(uses) == 5
