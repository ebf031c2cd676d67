"""The terms of designs: what it refuses, and what its terms become on the device."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from small_designs import COPY, add_worker, empty, move, relay, through_memory

from ort_aie_ep.npu.terms.configuration import Channel, Configuration, Port, configure
from ort_aie_ep.npu.terms.design import Design, Layout, call
from ort_aie_ep.npu.terms.device import Tile
from ort_aie_ep.npu.terms.errors import DesignError
from ort_aie_ep.npu.terms.kernel import Array

CORE, MEM = Tile(0, 2), Tile(0, 1)


def channel(configuration: Configuration, fifo: str, direction: str, tile: Tile) -> Channel:
    (found,) = (
        c
        for c in configuration.channels
        if (c.fifo, c.direction, c.tile) == (fifo, direction, tile)
    )
    return found


def ring(found: Channel) -> list[tuple[int, int, str | None, str | None]]:
    """(address, words, acquired, released) of every descriptor."""
    return [
        (d.address, d.words, d.acquire and d.acquire.name, d.release and d.release.name)
        for d in found.ring
    ]


# --- layouts --------------------------------------------------------------------------------------
def test_a_layout_walks_its_outermost_dimension_slowest() -> None:
    layout = Layout(((2, 8), (3, 16), (2, 4)))
    assert layout.words == 12
    assert layout.offsets().tolist() == [0, 4, 16, 20, 32, 36, 8, 12, 24, 28, 40, 44]


@pytest.mark.parametrize("seed", range(5))
def test_a_layout_is_numpys_transpose(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = (*(int(n) for n in rng.integers(1, 5, 3)), 4)
    words = np.arange(np.prod(shape), dtype=np.int64).reshape(shape)
    order = (*rng.permutation(3), 3)
    strides = [4 * int(np.prod(shape[i + 1 :])) for i in range(4)]
    layout = Layout(tuple((shape[i], strides[i]) for i in order))
    np.testing.assert_array_equal(layout.offsets() // 4, words.transpose(order).ravel())


# --- what a design refuses ------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"column": 8}, r"tile \(8, 2\) is outside of npu2"),
        ({"row": 4}, "npu2 has compute rows 0..3, got 4"),
        ({"name": "taken"}, "two fifos are named 'taken'"),
    ],
)
def test_fifos_that_cannot_be_are_refused(options: dict[str, Any], said: str) -> None:
    design = empty()
    design.fifo("taken", "u8", 64, design.shim(0), design.core(0, 0))
    name = options.pop("name", "new")
    column, row = options.pop("column", 0), options.pop("row", 0)
    with pytest.raises(DesignError, match=said):
        design.fifo(name, "u8", 64, design.shim(0), design.core(column, row, **options))


def test_workers_have_names_of_their_own() -> None:
    with pytest.raises(DesignError, match="'worker0_0'"):
        relay().worker("worker0_0", relay().core(0, 1), move([], []), inputs={}, outputs={})


def test_a_call_has_as_many_arguments_as_its_kernel() -> None:
    with pytest.raises(DesignError, match="copy takes 2 arguments, got 1"):
        call(COPY, None)


# --- what it becomes ------------------------------------------------------------------------------
def test_a_core_end_has_buffers_behind_the_stack_and_a_pair_of_locks() -> None:
    configuration = configure(relay(depth=2))
    assert ring(channel(configuration, "in", "S2MM", CORE)) == [
        (1024, 16, "in free", "in filled"),
        (1088, 16, "in free", "in filled"),
    ]
    assert ring(channel(configuration, "out", "MM2S", CORE)) == [
        (1152, 16, "out filled", "out free"),
        (1216, 16, "out filled", "out free"),
    ]
    assert {lock.name: lock.initial for lock in configuration.locks} == {
        "in free": 2, "in filled": 0, "out free": 2, "out filled": 0, "worker0_0 go": 0,
    }  # fmt: skip


def test_a_forward_receives_before_it_sends() -> None:
    configuration = configure(through_memory(depth=1))
    (received,) = ring(channel(configuration, "a", "S2MM", MEM))
    (sent,) = ring(channel(configuration, "b", "MM2S", MEM))
    assert received[:2] == sent[:2] == (0, 16)
    free, filled = received[2:]
    assert sent[2:] == (filled, free)
    assert {k.name: k.initial for k in configuration.locks if k.tile == MEM} == {free: 1, filled: 0}


def split(sizes: list[int], depth: int = 2) -> Design:
    design = empty()
    whole = design.fifo("whole", "u8", sum(sizes), design.shim(0), design.mem(0, depth))
    parts = [
        design.fifo(f"p{i}", "u8", n, design.mem(0), design.core(0, i)) for i, n in enumerate(sizes)
    ]
    design.split(whole, parts)
    for i, part in enumerate(parts):
        add_worker(design, 0, i, [part], [])
    return design


def test_a_split_has_a_descriptor_and_a_pair_of_locks_for_each_segment() -> None:
    configuration = configure(split([64, 128]))
    assert ring(channel(configuration, "whole", "S2MM", MEM)) == [
        (0, 16, "p0 free", "p0 filled"),
        (64, 32, "p1 free", "p1 filled"),
        (192, 16, "p0 free", "p0 filled"),
        (256, 32, "p1 free", "p1 filled"),
    ]
    assert ring(channel(configuration, "p1", "MM2S", MEM)) == [
        (64, 32, "p1 filled", "p1 free"),
        (256, 32, "p1 filled", "p1 free"),
    ]


def test_a_join_is_a_split_the_other_way_round() -> None:
    design = empty()
    parts = [
        design.fifo(f"p{i}", "u8", n, design.core(0, i), design.mem(0))
        for i, n in enumerate([64, 128])
    ]
    whole = design.fifo("whole", "u8", 192, design.mem(0, 1), design.shim(0))
    design.join(parts, whole)
    for i, part in enumerate(parts):
        add_worker(design, 0, i, [], [part])
    configuration = configure(design)
    assert ring(channel(configuration, "whole", "MM2S", MEM)) == [
        (0, 16, "p0 filled", "p0 free"),
        (64, 32, "p1 filled", "p1 free"),
    ]
    assert ring(channel(configuration, "p1", "S2MM", MEM)) == [(64, 32, "p1 free", "p1 filled")]


def test_descriptors_of_memory_tiles_follow_the_parity_of_their_channel() -> None:
    configuration = configure(split([64, 64, 64]))
    for c in configuration.channels:
        if c.tile == MEM:
            assert all(d.id // 24 == c.index % 2 for d in c.ring)
    ids = [d.id for c in configuration.channels if c.tile == MEM for d in c.ring]
    assert len(set(ids)) == len(ids)


def test_a_shared_fifo_has_one_pool_and_no_stream() -> None:
    design = empty()
    into = design.fifo("in", "u8", 64, design.shim(0), design.core(0, 0))
    fifo = design.fifo("s", "u8", 64, design.core(0, 0, 3), design.core(0, 1), shared=True)
    add_worker(design, 0, 0, [into], [fifo])
    add_worker(design, 0, 1, [fifo], [])
    configuration = configure(design)
    first, second = (configuration.workers[f"worker0_{r}"].pools["s"] for r in range(2))
    assert first == second
    assert first.tile == CORE
    assert len(first.addresses) == 3
    assert [s.fifo for s in configuration.streams] == ["in"]


def test_a_receiver_may_take_smaller_objects() -> None:
    design = relay(size=256, object=Array("u8", 64))
    assert [d.words for d in channel(configure(design), "in", "S2MM", CORE).ring] == [16, 16]


def test_pinned_channels_are_kept_and_others_go_around_them() -> None:
    design = empty()
    fifos = [
        design.fifo(f"in{i}", "u8", 64, design.shim(i), design.core(0, 0, channel=pin))
        for i, pin in enumerate((None, 0))
    ]
    add_worker(design, 0, 0, fifos, [])
    configuration = configure(design)
    assert channel(configuration, "in0", "S2MM", CORE).index == 1
    assert channel(configuration, "in1", "S2MM", CORE).index == 0
    assert configuration.shim_ports == {
        "in0": Port(Tile(0, 0), "MM2S", 0), "in1": Port(Tile(1, 0), "MM2S", 0),
    }  # fmt: skip


def test_buffers_of_a_tile_do_not_overlap_and_are_aligned() -> None:
    items = configure(relay(depth=3, size=100 * 4)).memory_items[CORE]
    spans = sorted((start, start + size) for _, start, size in items)
    assert all(a[1] <= b[0] for a, b in pairwise(spans))
    assert all(start % 64 == 0 for start, _ in spans)
