"""`check`: every resource at its limit and one beyond it, and what a refusal says."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from small_designs import COPY, add_worker, empty, refusal, relay, through_memory

from ort_aie_ep.aie_kernels.fused_dqp import design as fused_dqp  # fmt: skip
from ort_aie_ep.npu import peano
from ort_aie_ep.npu.checks.check import check, examine
from ort_aie_ep.npu.terms.design import (
    Acquire,
    Buffer,
    Core,
    Design,
    Layout,
    Release,
)  # fmt: skip
from ort_aie_ep.npu.terms.device import (
    DEVICES,
    STATIC_BYTES,
    WORD,
    Tile,
    device,
)  # fmt: skip
from ort_aie_ep.npu.terms.errors import DesignError
from ort_aie_ep.npu.terms.kernel import DTYPES, Array, ElementType

CORE, MEM, SHIM = Tile(0, 2), Tile(0, 1), Tile(0, 0)


# --- whole designs --------------------------------------------------------------------------------
@pytest.mark.parametrize("name", DEVICES)
def test_fused_dqp_passes_on_every_device(name: str) -> None:
    report = check(fused_dqp.build(device(name)))
    assert report.passed
    assert len(report.proved) >= 3
    assert check(fused_dqp.build(device(name), device(name).columns)).passed


def test_small_designs_pass() -> None:
    for design in (relay(), through_memory()):
        assert any("the design has no sequence" in note for note in check(design).notes)


# --- resources: (a design by size, the last that fits, tile, resource, limit) ---------------------
def l1(n: int) -> Design:
    # The parameters (there are none) begin after the buffer, at the next multiple of 64.
    return relay(buffers=[Buffer("much", Array("u8", n))])


def l2(depth: int) -> Design:
    return through_memory(size=65536, depth=depth, part=1024)


def core_inputs(n: int) -> Design:
    design = empty()
    fifos = [design.fifo(f"in{i}", "u8", 64, design.shim(i), design.core(0, 0)) for i in range(n)]
    out = design.fifo("out", "u8", 64, design.core(0, 0), design.shim(0))
    add_worker(design, 0, 0, fifos, [out])
    return design


def memory_outputs(n: int) -> Design:
    design = empty()
    whole = design.fifo("whole", "u8", 64 * n, design.shim(0), design.mem(0, 1))
    parts = [
        design.fifo(f"part{i}", "u8", 64, design.mem(0, 1), design.core(0, i // 2, 1))
        for i in range(n)
    ]
    design.split(whole, parts)
    for row in range((n + 1) // 2):
        add_worker(design, 0, row, parts[2 * row : 2 * row + 2], [])
    return design


def shim_inputs(n: int) -> Design:
    design = empty()
    for row in range(n):
        fifo = design.fifo(f"in{row}", "u8", 64, design.shim(0), design.core(0, row))
        add_worker(design, 0, row, [fifo], [])
    return design


def core_descriptors(n: int) -> Design:
    """8 for `in`, n - 8 for `out`."""
    design = empty()
    into = design.fifo("in", "u8", 64, design.shim(0), design.core(0, 0, 8))
    out = design.fifo("out", "u8", 64, design.core(0, 0, n - 8), design.shim(0))
    add_worker(design, 0, 0, [into], [out])
    return design


def memory_descriptors(n: int) -> Design:
    """Both channels of the link are even, with `n` descriptors in all."""
    return through_memory(depth=n // 2)


def core_locks(n: int) -> Design:
    """`go` and `in` take 3, and every shared fifo takes 2."""
    design = empty()
    into = design.fifo("in", "u8", 64, design.shim(0), design.core(0, 0))
    shared = [
        design.fifo(f"s{i}", "u8", 64, design.core(0, 0), design.core(0, 1), shared=True)
        for i in range((n - 3) // 2)
    ]
    add_worker(design, 0, 0, [into], shared)
    add_worker(design, 0, 1, shared, [])
    return design


def lock_value(n: int) -> Design:
    design = empty()
    into = design.fifo("in", "u8", 64, design.shim(0), design.core(0, 0))
    shared = design.fifo("s", "u8", 64, design.core(0, 0, n), design.core(0, 1, n), shared=True)
    add_worker(design, 0, 0, [into], [shared])
    add_worker(design, 0, 1, [shared], [])
    return design


def core_dimensions(n: int) -> Design:
    return relay(layout=Layout(((2, 32), (2, 16), (2, 8), (2, 4))[4 - n :]), size=4 << n)


def memory_dimensions(n: int) -> Design:
    layout = Layout(((2, 64), (2, 32), (2, 16), (2, 8), (2, 4))[5 - n :])
    return through_memory(layout=layout, size=4 << n, part=4 << n)


def at_core(element: ElementType, words: int, *dimensions: tuple[int, int]) -> Design:
    """An object that the worker receives in a given order."""
    design = empty()
    array = Array(element, words * WORD // DTYPES[element].itemsize)
    end = design.core(0, 0, 1, layout=Layout(dimensions))
    fifo = design.fifo("in", element, array.count, design.shim(0), end)
    add_worker(design, 0, 0, [fifo], [])
    return design


def at_memory(element: ElementType, words: int, *dimensions: tuple[int, int]) -> Design:
    """An object that goes through a memory tile in a given order, in parts."""
    design = empty()
    count = words * WORD // DTYPES[element].itemsize
    end = design.mem(0, 1, layout=Layout(dimensions))
    whole = design.fifo("whole", element, count, design.shim(0), end)
    here = Array(element, count // math.gcd(count, 64))
    part = design.fifo("part", element, count, design.mem(0, 1), design.core(0, 0, 1, object=here))
    design.forward(whole, part)
    add_worker(design, 0, 0, [part], [])
    return design


def core_count(n: int) -> Design:
    return at_core("f32", 2 * n, (2, 4 * n), (n, 4))


def core_elements(n: int) -> Design:
    return at_core("bf16", n, (2, 2 * n), (n // 2, 4))


def core_outermost(n: int) -> Design:
    return at_core("f32", 2 * n, (n, 8), (2, 4))


def memory_count(n: int) -> Design:
    return at_memory("f32", 2 * n, (2, 4 * n), (n, 4))


def memory_elements(n: int) -> Design:
    return at_memory("bf16", n, (2, 2 * n), (n // 2, 4))


def core_step(n: int) -> Design:
    return at_core("f32", 8192, (1, 4 * n), (64, 512), (128, 4))


def core_stride(n: int) -> Design:
    return at_core("f32", 16, (1, 4 * n), (16, 4))


def memory_stride(n: int) -> Design:
    return at_memory("f32", 16, (1, 4 * n), (16, 4))


def memory_length(n: int) -> Design:
    return through_memory(size=4 * n, depth=1, part=4 * n // (4096 if n % 4096 == 0 else n // 257))


def south_ports(n: int) -> Design:
    """One output from every core of a column to its memory tile, and a second one from the
    lowest."""
    design = empty("npu2_1col")
    parts = [
        design.fifo(f"y{i}", "u8", 64, design.core(0, i % 4, 1), design.mem(0, 1)) for i in range(n)
    ]
    whole = design.fifo("y", "u8", 64 * n, design.mem(0, 1), design.shim(0))
    design.join(parts, whole)
    for row in range(4):
        add_worker(design, 0, row, [], parts[row::4])
    return design


def packet_id(n: int) -> Design:
    design = empty()
    for row, packet in enumerate((0, n)):
        fifo = design.fifo(
            f"in{row}", "u8", 64, design.shim(0, 0), design.core(0, row), packet=packet
        )
        add_worker(design, 0, row, [fifo], [])
    return design


def pin(n: int) -> Design:
    return relay(channel=n)


def acquired(n: int) -> Design:
    def body(core: Core) -> Iterator[Any]:
        yield Acquire("in", n)
        yield Acquire("out")
        yield Release("in", n)
        yield Release("out")

    return relay(depth=3, body=body)


L1_FREE = 65536 - 1024 - 4 * 64  # after the stack and the objects, all multiples of 64

LIMITS: dict[str, tuple[Callable[[int], Design], int, int, tuple[str, ...]]] = {
    "static data": (
        l1,
        L1_FREE - STATIC_BYTES,
        L1_FREE - STATIC_BYTES + 4,
        ("core tile (0, 2)", "static data bytes", "leave 2,044 bytes in one piece", "2,048 must"),
    ),
    "L1": (
        l1,
        L1_FREE - STATIC_BYTES,
        L1_FREE + 4,
        ("core tile (0, 2)", "memory bytes: 65,600", "65,536"),
    ),
    "L2": (l2, 8, 9, ("mem tile (0, 1)", "memory bytes: 589,824", "524,288")),
    "core channels": (core_inputs, 2, 3, ("core tile (0, 2)", "S2MM channels: 3", "limit is 2")),
    "mem channels": (memory_outputs, 6, 7, ("mem tile (0, 1)", "MM2S channels: 7", "limit is 6")),
    "shim channels": (shim_inputs, 2, 3, ("shim tile (0, 0)", "MM2S channels: 3", "limit is 2")),
    "core BDs": (core_descriptors, 16, 17, ("core tile (0, 2)", "descriptors: 17", "is 16")),
    "mem BDs": (memory_descriptors, 24, 26, ("mem tile (0, 1)", "even channels: 26", "is 24")),
    "core locks": (core_locks, 15, 17, ("core tile (0, 2)", "locks: 17", "limit is 16")),
    "lock value": (lock_value, 63, 64, ("core tile (0, 2)", "s free starts at 64", "is 63")),
    "core dimensions": (core_dimensions, 3, 4, ("core tile (0, 2)", "4 dimensions", "is 3")),
    "mem dimensions": (memory_dimensions, 4, 5, ("mem tile (0, 1)", "5 dimensions", "is 4")),
    "core count": (core_count, 255, 256, ("core tile (0, 2)", "counts 256", "mlir-aie is 255")),
    "core elements": (core_elements, 254, 256, ("core tile (0, 2)", "counts 256 el", "is 255")),
    "core outermost": (core_outermost, 255, 256, ("core tile (0, 2)", "dimension 0", "is 255")),
    "mem count": (memory_count, 512, 513, ("mem tile (0, 1)", "counts 513", "mlir-aie is 512")),
    "mem elements": (memory_elements, 512, 576, ("mem tile (0, 1)", "counts 576 el", "is 512")),
    "core step": (core_step, 8192, 8193, ("core tile (0, 2)", "8,193 words", "is 8,192")),
    "core stride": (core_stride, 16, 17, ("core tile (0, 2)", "68 bytes", "object's 64")),
    "mem stride": (memory_stride, 16, 17, ("mem tile (0, 1)", "68 bytes", "object's 64")),
    "mem length": (memory_length, 131070, 131072, ("mem tile (0, 1)", "131,072", "is 131,071")),
    "ports": (south_ports, 4, 5, ("core tile (0, 2)", "stream ports south: 5", "limit is 4")),
    "packet id": (packet_id, 28, 32, ("shim tile (0, 0)", "packet id", "32", "0..31")),
    "controller's id": (packet_id, 14, 15, ("shim tile (0, 0)", "15 is the id of a tile as a con")),
    "pin": (pin, 1, 2, ("core tile (0, 2)", "S2MM channels", "channel 2", "0..1")),
    "acquire": (acquired, 3, 4, ("core tile (0, 2)", "Acquire('in', 4)", "depth 3")),
}


@pytest.mark.parametrize("name", LIMITS)
def test_within_the_limit_passes_and_beyond_is_refused(name: str) -> None:
    build, last, beyond, said = LIMITS[name]
    good, bad = build(last), build(beyond)
    assert check(good).passed
    text = refusal(bad)
    for part in said:
        assert part in text


def test_a_source_that_peano_compiles_wrongly_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peano, "mistakes_of", lambda source: ("line 1: chess_storage",))
    (violation,) = examine(relay()).violations
    assert (violation.resource, violation.text) == ("source", "line 1: chess_storage")


def test_a_report_counts_what_the_configuration_uses() -> None:
    report = check(through_memory(depth=3))
    assert report.use(MEM, "descriptors of even channels").used == 6
    assert report.use(MEM, "locks").used == 2
    assert report.use(MEM, "memory bytes").used == 3 * 64
    assert report.use(CORE, "descriptors").used == 4
    assert report.use(CORE, "locks").used == 5
    assert report.use(SHIM, "MM2S channels").used == 1
    with pytest.raises(KeyError):
        report.use(SHIM, "locks")


def test_every_violation_is_listed() -> None:
    design = core_inputs(3)
    into = design.fifos["in0"]
    into.consumers[0] = dataclasses.replace(into.consumers[0], depth=17)
    design.workers["worker0_0"].stack = 70_000
    text = refusal(design)
    assert text.startswith("design small is refused for npu2, 4 violations:\n")
    for part in ("S2MM channels: 3", "descriptors: 2", "memory bytes: 7", "address"):
        assert part in text


# --- layouts, channels, packets -------------------------------------------------------------------
@pytest.mark.parametrize(
    ("dimensions", "said"),
    [
        (((2, 32), (8, 8)), "must be contiguous words (stride 4)"),
        (((2, 16), (8, 4)), "visits some words of the object twice"),
        (((2, 64), (8, 4)), "reaches bytes 0..95 of an object of 64"),
        (((2, 0), (8, 4)), "stride 0 bytes in dimension 0"),
        (((2, 30), (8, 4)), "stride 30 bytes in dimension 0"),
        (((2, -32), (8, 4)), "stride -32 bytes in dimension 0"),
    ],
)
def test_a_layout_that_is_not_a_reordering_is_refused(
    dimensions: tuple[tuple[int, int], ...], said: str
) -> None:
    text = refusal(relay(layout=Layout(dimensions)))
    assert "core tile (0, 2), layout: fifo in" in text
    assert said in text


def test_a_layout_at_a_shim_is_the_sequences() -> None:
    design = relay()
    fifo = design.fifos["in"]
    fifo.producer = dataclasses.replace(fifo.producer, layout=Layout(((16, 4),)))
    assert "shim tile (0, 0), layout" in refusal(design)


def test_two_fifos_pinned_to_one_channel_are_refused() -> None:
    design = empty()
    fifos = [
        design.fifo(f"in{i}", "u8", 64, design.shim(i), design.core(0, 0, channel=1))
        for i in range(2)
    ]
    add_worker(design, 0, 0, fifos, [])
    assert "S2MM 1 of core tile (0, 2)" in refusal(design)


def test_only_shims_share_channels() -> None:
    design = empty()
    fifos = [
        design.fifo(f"in{i}", "u8", 64, design.shim(i), design.core(0, 0, channel=1), packet=i)
        for i in range(2)
    ]
    add_worker(design, 0, 0, fifos, [])
    assert "fifos in0, in1 share channel 1" in refusal(design)


def test_packets_of_one_channel_need_ids_of_their_own() -> None:
    text = refusal(packet_id(0))
    assert "shim tile (0, 0), packet ids: fifos in0, in1" in text


# --- structure ------------------------------------------------------------------------------------
def test_an_end_that_nobody_serves_is_refused() -> None:
    design = relay()
    design.fifo("stray", "u8", 64, design.shim(1), [design.core(0, 0), design.core(0, 1)])
    text = refusal(design)
    assert "core tile (0, 2), worker: fifo stray" in text
    assert "core tile (0, 3), worker: fifo stray" in text


def test_a_memory_tile_end_without_link_is_refused() -> None:
    design = through_memory()
    design.links.clear()
    assert "mem tile (0, 1), link: fifo a" in refusal(design)


Change = Callable[[Design], None]


def moved(fifo: str, place: str, **fields: Any) -> Change:
    def change(design: Design) -> None:
        target = design.fifos[fifo]
        if place == "producer":
            target.producer = dataclasses.replace(target.producer, **fields)
        else:
            target.consumers[0] = dataclasses.replace(target.consumers[0], **fields)

    return change


def assigned(fifo: str, **fields: Any) -> Change:
    def change(design: Design) -> None:
        for name, value in fields.items():
            setattr(design.fifos[fifo], name, value)

    return change


CHANGES: dict[str, tuple[Change, str]] = {
    "depth 0": (moved("b", "consumer", depth=0), "depth: fifo b: 0"),
    "depth of one side of a link": (moved("a", "consumer", depth=3), "not {'b': 2, 'a': 3}"),
    "consumer elsewhere": (moved("b", "consumer", tile=Tile(0, 3)), "0 ports of workers"),
    "consumer outside": (moved("b", "consumer", tile=Tile(9, 3)), "npu2 has columns 0..7"),
    "producer elsewhere": (moved("b", "producer", tile=Tile(1, 1)), "fifo b does not start here"),
    "link end elsewhere": (moved("a", "consumer", tile=Tile(1, 1)), "fifo a does not end here"),
    "output elsewhere": (moved("out", "producer", tile=Tile(1, 2)), "fifo out does not start"),
    "shim to shim": (moved("out", "producer", tile=Tile(1, 0)), "both ends are shims"),
    "size at a link": (assigned("a", object=Array("u8", 128)), "segments of [128] bytes"),
    "odd size": (assigned("out", object=Array("u8", 63)), "63 bytes; it must be a positive mult"),
    "no consumer": (assigned("out", consumers=[]), "consumers: fifo out: it has no consumers"),
    "object of a sender": (
        moved("out", "producer", object=Array("u8", 32)),
        "a worker sends the fifo's own",
    ),
    "other object": (moved("b", "consumer", object=Array("u8", 48)), "whole parts or whole mult"),
    "object at a link": (moved("a", "consumer", object=Array("u8", 32)), "segments of [32] bytes"),
    "packet id": (assigned("a", packet=40), "ids are 0..31"),
    "shared memory": (assigned("out", shared=True), "cannot reach it"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_description_is_refused(name: str) -> None:
    change, said = CHANGES[name]
    design = through_memory()
    change(design)
    assert said in refusal(design)


def test_shared_memory_has_one_depth() -> None:
    design = core_locks(5)
    moved("s0", "consumer", depth=4)(design)
    assert "core tile (0, 2), depth: fifo s0" in refusal(design)


def test_a_broadcast_to_a_tile_twice_is_refused() -> None:
    design = relay()
    fifo = design.fifos["in"]
    fifo.consumers.append(fifo.consumers[0])
    assert "core tile (0, 2), ends: fifo in" in refusal(design)


def test_a_worker_on_anothers_tile_is_refused() -> None:
    design = core_locks(5)
    design.workers["worker0_1"].tile = CORE
    assert "core tile (0, 2), workers: 2" in refusal(design)


def test_kernels_of_the_other_architecture_are_refused() -> None:
    only = dataclasses.replace(COPY, architectures=("aie2",))
    with pytest.raises(DesignError, match="kernel copy is written for aie2, but npu2 is aie2p"):
        relay(kernels=[only])
