"""A design's printed module agrees with `configure`, and its cores do what their bodies do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
from combinations import DESIGNS, SMALLEST
from cores import Interpreter
from generic_form import Operation, read
from printed_form import printed

from ort_aie_ep.aie_kernels.mlir import report
from ort_aie_ep.aie_kernels.mlir.module import object_file, print_module
from ort_aie_ep.npu.terms.configuration import Channel, Configuration, WorkerPlan, configure
from ort_aie_ep.npu.terms.design import Acquire, Call, Core, Design, Parameters, Read, Release
from ort_aie_ep.npu.terms.device import TILES, Tile

BITS = {"i8": 8, "bf16": 16, "i32": 32, "f32": 32}


@cache
def of_design(design: Design) -> Overlay:
    """A design's overlay; its tests only read it."""
    return Overlay(design)


def _smallest_and_largest() -> Iterator[Any]:
    """Every combination, all but the smallest and the largest of a design in turn."""
    size = {id(p): (len(p.values[0].workers), len(p.values[0].fifos)) for p in DESIGNS}
    groups: dict[Any, list[Any]] = {}
    for param in DESIGNS:
        key = param.values[0].name, param.values[0].device.architecture
        groups.setdefault(key, []).append(param)
    for group in groups.values():
        ends = min(group, key=lambda p: size[id(p)]), max(group, key=lambda p: size[id(p)])
        for param in group:
            marks = [] if param in ends else [pytest.mark.in_turn]
            yield pytest.param(*param.values, id=param.id, marks=marks)


class Overlay:
    """A design's printed module, by tiles and addresses."""

    def __init__(self, design: Design) -> None:
        self.text = print_module(design)
        (self.device,) = read(self.text).all("aie.device")
        self.tiles = {
            t.result: Tile(t.attributes["col"], t.attributes["row"]) for t in self.all("aie.tile")
        }
        self.buffers = {b.result: b for b in self.all("aie.buffer")}
        self.locks = {lock.result: lock for lock in self.all("aie.lock")}

    def all(self, name: str) -> list[Operation]:
        return self.device.all(name)

    def tile(self, value: str) -> Tile:
        return self.tiles[value]

    def lock(self, value: str) -> tuple[Tile, int]:
        lock = self.locks[value]
        return self.tile(lock.operands[0]), lock.attributes["lockID"]

    def element_bytes(self, buffer: str) -> int:
        return BITS[self.buffers[buffer].type.split("memref<")[1].rstrip(">").split("x")[1]] // 8


@pytest.mark.parametrize("design", _smallest_and_largest())
def test_everything_is_where_configure_puts_it(design: Design) -> None:
    """As a build compares them with the compiler's result; and the rings."""
    overlay, plan = of_design(design), configure(design)
    assert report.parse(printed(overlay.text)) == report.expected(plan)
    for buffer in overlay.buffers.values():
        tile, address = overlay.tile(buffer.operands[0]), buffer.attributes["address"]
        # AIE2P's widest load reads 64 bytes and drops the low bits of its address.
        assert address % 64 == 0
        banks = 8 if tile.kind == "mem" else 4
        assert buffer.attributes["mem_bank"] == address * banks // TILES[tile.kind].memory
    linked = {f.attributes["sym_name"]: f.attributes["link_with"] for f in overlay.all("func.func")}
    kernels = {k.name: k for w in plan.workers.values() for k in w.worker.kernels}
    assert linked == {name: object_file(kernel) for name, kernel in kernels.items()}
    _check_rings(overlay, plan)


def _check_rings(overlay: Overlay, plan: Configuration) -> None:
    channels = {(c.tile, c.direction, c.index): c for c in plan.channels}
    for name in ("aie.mem", "aie.memtile_dma"):
        for dma in overlay.all(name):
            tile = overlay.tile(dma.operands[0])
            assert name == ("aie.mem" if tile.kind == "core" else "aie.memtile_dma")
            blocks = {block.label: block for block in dma.regions[0]}
            # The chain of starts, each with its own ring.
            block = dma.regions[0][0]
            while block.operations[-1].name != "aie.end":
                (start,) = block.operations
                direction = {0: "S2MM", 1: "MM2S"}[start.attributes["channel_dir"]]
                channel = channels.pop((tile, direction, start.attributes["channel_index"]))
                assert start.attributes["repeat_count"] == 0
                label = first = start.successors[0]
                for descriptor in channel.ring:
                    operations = blocks[label].operations
                    _check_descriptor(overlay, plan.design, channel, descriptor, operations)
                    (label,) = operations[-1].successors
                assert label == first
                block = blocks[start.successors[1]]
    assert not channels


def _check_descriptor(
    overlay: Overlay, design: Design, channel: Channel, wanted: Any, operations: list[Operation]
) -> None:
    constants = {o.result: o.attributes["value"] for o in operations if o.name == "arith.constant"}
    rest = [o for o in operations if o.name != "arith.constant"]
    at = next(i for i, o in enumerate(rest) if o.name == "aie.dma_bd")
    for lock, action, steps in (
        (wanted.acquire, 2, rest[:at]), (wanted.release, 1, rest[at + 1 : -1]),
    ):  # fmt: skip
        assert len(steps) == (lock is not None)
        for use in steps:
            assert use.attributes["action"] == action
            assert overlay.lock(use.operands[0]) == (lock.tile, lock.id)
            assert constants[use.operands[1]] == 1
    descriptor = rest[at].attributes
    (buffer,) = rest[at].operands
    size = overlay.element_bytes(buffer)
    start = overlay.buffers[buffer].attributes["address"]
    assert overlay.tile(overlay.buffers[buffer].operands[0]) == channel.tile
    assert start + descriptor["static_offset"] * size == wanted.address
    assert descriptor["static_len"] * size == wanted.words * 4
    assert descriptor["bd_id"] == wanted.id
    assert ("static_sizes" in descriptor) == (wanted.layout is not None)
    if wanted.layout is not None:
        offsets = np.zeros(1, dtype=np.int64)
        pairs = zip(descriptor["static_sizes"], descriptor["static_strides"], strict=True)
        for count, stride in pairs:
            # All versions of mlir-aie's verifier accept this many elements.
            assert count <= TILES[channel.tile.kind].max_count
            offsets = (offsets[:, None] + np.arange(count) * stride * size).ravel()
        np.testing.assert_array_equal(offsets[:: 4 // size], wanted.layout.offsets())
    packet = design.fifos[channel.fifo].packet if channel.direction == "MM2S" else None
    header = None if packet is None else f"#aie.packet_info<pkt_type = 0, pkt_id = {packet}>"
    assert descriptor.get("packet") == header


# --- bodies: the printed code, run on numbers, does what the body itself does ---------------------
class Numbers(Core):
    """Drives a body on numbers, with the rings of its ports."""

    def __init__(self, plan: WorkerPlan, read: Callable[[str, int], int]) -> None:
        self.plan, self.worker, self.read = plan, plan.worker, read
        self.turn = dict.fromkeys(plan.pools, 0)
        self.held = dict.fromkeys(plan.pools, 0)
        self.done: list[tuple[Any, ...]] = []

    def loop(self, count: Any) -> Any:
        return range(count)

    def buffer(self, name: str) -> Any:
        return (self.worker.tile, self.plan.buffers[name])

    def run(self, passes: int) -> list[tuple[Any, ...]]:
        for _ in range(passes):
            body, answer = self.worker.body(self), None
            while True:
                try:
                    answer = self.step(body.send(answer))
                except StopIteration:
                    break
        return self.done

    def step(self, step: Any) -> Any:
        match step:
            case Acquire(port, count):
                pool = self.plan.pools[port]
                if count > self.held[port]:
                    take = pool.consume if port in self.worker.inputs else pool.produce
                    self.done.append(("acquire", (take.tile, take.id), count - self.held[port]))
                    self.held[port] = count
                turns = [(self.turn[port] + i) % len(pool.addresses) for i in range(count)]
                views = [(pool.tile, pool.addresses[turn]) for turn in turns]
                return views[0] if count == 1 else views
            case Release(port, count):
                pool = self.plan.pools[port]
                give = pool.produce if port in self.worker.inputs else pool.consume
                self.done.append(("release", (give.tile, give.id), count))
                self.held[port] -= count
                self.turn[port] = (self.turn[port] + count) % len(pool.addresses)
            case Call(kernel, arguments):
                self.done.append(("call", kernel.name, *arguments))
            case Parameters():
                go = self.plan.go
                self.done.append(("acquire", (go.tile, go.id), 1))
                words = (self.worker.tile, self.plan.parameters)
                return tuple(self.read(words, i) for i in range(len(self.worker.parameters)))
            case Read(buffer, index):
                return self.read(self.buffer(buffer), index)
        return None


@pytest.mark.parametrize("design", SMALLEST)
def test_cores_do_what_the_bodies_do(design: Design) -> None:
    overlay, plan = of_design(design), configure(design)
    places: dict[str, Any] = {
        value: (overlay.tile(b.operands[0]), b.attributes["address"])
        for value, b in overlay.buffers.items()
    }
    places |= {value: overlay.lock(value) for value in overlay.locks}
    cores = {overlay.tile(c.operands[0]): c for c in overlay.all("aie.core")}
    for worker in plan.workers.values():
        for seed in range(2):

            def read(where: Any, index: int, seed: int = seed) -> int:
                # Different numbers of turns at each place, none of them 0 with the first seed.
                return (1 if seed == 0 else 0) + (where[1] // 64 + 5 * index + seed) % 4

            tile = worker.worker.tile
            core = Interpreter(places, read, (worker.go.tile, worker.go.id))
            # Three passes, so that rings are at other positions when the body begins again.
            assert core.run(cores[tile], 3) == Numbers(worker, read).run(3)
