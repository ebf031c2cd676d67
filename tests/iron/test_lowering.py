"""Every design as an IRON program, against a recorder that has the real names and signatures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from iron_recorder import Recording, execute, install
from iron_rules import AIETileType, array

from ort_aie_ep.aie_kernels.build import find_designs
from ort_aie_ep.aie_kernels.iron import report
from ort_aie_ep.aie_kernels.iron.interface import load
from ort_aie_ep.aie_kernels.iron.program import make_program, object_file
from ort_aie_ep.aie_kernels.iron.sequences import Run, ShapeError
from ort_aie_ep.npu.checks.progress import small_shapes
from ort_aie_ep.npu.packages.package import manifest
from ort_aie_ep.npu.vocabulary.configuration import configure
from ort_aie_ep.npu.vocabulary.design import (
    Acquire,
    Call,
    Core,
    Design,
    Parameters,
    Read,
    Release,
    Worker,
)
from ort_aie_ep.npu.vocabulary.device import DEVICES
from ort_aie_ep.npu.vocabulary.errors import DesignError
from ort_aie_ep.npu.vocabulary.kernel import DTYPES
from ort_aie_ep.npu.vocabulary.sequence import Sequence, evaluate


def cases() -> Iterator[Any]:
    for name, make in find_designs().items():
        for device in DEVICES.values():
            try:
                design = make(device)
            except DesignError:  # not for this architecture or so few columns
                continue
            yield pytest.param(design, id=f"{name}-{device.name}")


DESIGNS = list(cases())


@pytest.fixture
def record(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Recording]:
    def run(design: Design, sequence: Run | None = None) -> Recording:
        install(monkeypatch)
        recorded: Recording = make_program(load(), design, sequence).resolve_program()
        return recorded

    return run


def test_every_design_builds_on_some_device() -> None:
    built = {param.id.rpartition("-")[0] for param in DESIGNS}
    assert built == set(find_designs())


@pytest.mark.parametrize("design", DESIGNS)
def test_fifos_are_where_the_design_puts_them(design: Design, record: Any) -> None:
    recorded = record(design)
    plan = configure(design)
    assert recorded.device in (
        design.device.name.upper(),
        f"{design.device.name[:4].upper()}Col{design.device.columns}",
    )
    assert [f.name for f in recorded.fifos] == list(design.fifos)
    for made, fifo in zip(recorded.fifos, design.fifos.values(), strict=True):
        ends = [fifo.producer, *fifo.consumers]
        for handle, end in zip([made.producer, *made.consumers], ends, strict=True):
            assert handle.tile.place == (end.tile.column, end.tile.row)
            if end.tile.kind == "shim":
                assert handle.given["channel"] == plan.shim_ports[fifo.name].index
            else:
                assert handle.depth == end.depth
                assert handle.given["channel"] == end.channel
                if handle.tile.tile_type == AIETileType.CoreTile:
                    taken = end.object or fifo.object
                    assert array(handle.obj_type) == (taken.count, DTYPES[taken.element])
            layout = None if end.layout is None else end.layout.offsets()
            assert (handle.tap is None) == (layout is None)
            if layout is not None:
                size = array(handle.obj_type)[1].itemsize
                first = handle.tap.elements() * size
                np.testing.assert_array_equal(first[:: max(1, 4 // size)], layout)
        assert made.options["packet_id"] == fifo.packet
        assert (made.options["repeat_count"] or 1) == fifo.repeat
        shares = made.options["delegate_tile"]
        assert (shares is not None) == fifo.shared
        if fifo.shared:
            assert shares.place == (fifo.producer.tile.column, fifo.producer.tile.row)


@pytest.mark.parametrize("design", DESIGNS)
def test_links_divide_objects_at_the_offsets_of_the_design(design: Design, record: Any) -> None:
    recorded = record(design)
    links = {id(h.endpoint): h.endpoint for f in recorded.fifos for h in f.consumers}
    found = {}
    for link in links.values():
        if hasattr(link, "segments"):
            names = [[h.fifo.name for h in side] for side in (link.sources, link.destinations)]
            offsets = link.given["src_offsets"] or link.given["dst_offsets"] or [0]
            size = array(link.sources[0].fifo.obj_type)[1].itemsize
            found[tuple(map(tuple, names))] = (link.tile.place, [o * size for o in offsets])
    wanted = {
        (tuple(f.name for f in link.sources), tuple(f.name for f in link.destinations)): (
            (link.tile.column, link.tile.row),
            list(link.offsets),
        )
        for link in design.links
    }
    assert found == wanted


@pytest.mark.parametrize("design", DESIGNS)
def test_what_the_manifest_promises_is_pinned(design: Design, record: Any) -> None:
    recorded = record(design)
    promised = manifest(design)
    assert report.differences(promised, report.parse(str(recorded))) == []
    for made, worker in zip(recorded.workers, design.workers.values(), strict=True):
        assert made.tile.place == (worker.tile.column, worker.tile.row)
        assert made.options["stack_size"] == worker.stack
        kernels = {leaf.name: leaf for leaf in made.leaves if hasattr(leaf, "object")}
        assert set(kernels) == {k.name for k in worker.kernels}
        assert all(kernels[k.name].object == object_file(k) for k in worker.kernels)


@pytest.mark.parametrize("design", DESIGNS)
def test_buffers_of_workers_are_pinned_where_wide_loads_find_them(
    design: Design, record: Any
) -> None:
    pinned = {b.name: (b.tile.place, b.address) for b in record(design).buffers}
    plan = configure(design)
    for name, worker in design.workers.items():
        for buffer in worker.buffers:
            address = plan.workers[name].buffers[buffer.name]
            assert pinned.pop(f"{name}_{buffer.name}") == (
                (worker.tile.column, worker.tile.row),
                address,
            )
            assert address % design.device.alignment == 0
    assert all(name.endswith("_parameters") for name in pinned)


def test_buffers_that_the_compiler_has_laid_over_another_are_told() -> None:
    promised = manifest(find_designs()["gemm"](DEVICES["npu2_1col"]))
    promised |= {"fifos": {}, "workers": {}}
    text = """
      %t = aie.tile(0, 2)
      %u = aie.tile(0, 3)
      %a = aie.buffer(%t) {address = 1024 : i32, sym_name = "first"} : memref<64xbf16>
      %b = aie.buffer(%t) {address = 1152 : i32, sym_name = "second"} : memref<4x16xf32>
      %c = aie.buffer(%t) {address = 1344 : i32, sym_name = "third"} : memref<1xi32>
      %d = aie.buffer(%u) {address = 1152 : i32, sym_name = "elsewhere"} : memref<8192xi8>
    """
    (line,) = report.differences(promised, report.parse(text))
    assert "buffers second and third of tile (0, 2): the first has 256 bytes from 1152" in line


@pytest.mark.parametrize(("name", "alignment"), [("npu1_1col", 32), ("npu2_1col", 64)])
def test_buffers_that_wide_loads_would_miss_are_told(name: str, alignment: int) -> None:
    promised = manifest(find_designs()["gemm"](DEVICES[name])) | {"fifos": {}, "workers": {}}
    text = """
      %m = aie.tile(0, 1)
      %t = aie.tile(0, 2)
      %a = aie.buffer(%m) {address = 4 : i32, sym_name = "in_memory_tile"} : memref<16xi32>
      %b = aie.buffer(%t) {address = 128 : i32, sym_name = "aligned"} : memref<16xi32>
      %c = aie.buffer(%t) {address = 196 : i32, sym_name = "w_parameters"} : memref<16xi32>
      %d = aie.buffer(%t) {address = 1056 : i32, sym_name = "by_32"} : memref<32xbf16>
      %e = aie.buffer(%t) {address = 2064 : i32, sym_name = "by_16"} : memref<8x16xi8>
      %f = aie.buffer(%t) {address = 4100 : i32, sym_name = "turns"} : memref<2xi32>
    """
    lines = report.differences(promised, report.parse(text))
    wrong = ["by_16"] if alignment == 32 else ["by_16", "by_32"]
    assert [line.split()[1] for line in lines] == wrong
    assert f"tile (0, 2): address 2064, where kernels load {alignment} bytes" in lines[0]


# --- bodies: the recorded code, run on numbers, does what the body itself does --------------------
class Numbers(Core):
    """Drives a body on numbers, without IRON."""

    def __init__(self, worker: Worker, read: Callable[[str, int], int]) -> None:
        self.worker, self.read = worker, read
        self.held: dict[str, int] = {}
        self.done: list[tuple[Any, ...]] = []

    def loop(self, count: Any) -> Any:
        return range(count)

    def buffer(self, name: str) -> Any:
        return ("buffer", f"{self.worker.name}_{name}")

    def run(self) -> list[tuple[Any, ...]]:
        body, answer = self.worker.body(self), None
        while True:
            try:
                answer = self.step(body.send(answer))
            except StopIteration:
                return self.done

    def step(self, step: Any) -> Any:
        match step:
            case Acquire(port, count):
                fifo = self.worker.port(port).name
                self.done.append(("acquire", fifo, count))
                views = [("object", fifo, i) for i in range(count)]
                return views[0] if count == 1 else views
            case Release(port, count):
                self.done.append(("release", self.worker.port(port).name, count))
            case Call(kernel, arguments):
                self.done.append(("call", kernel.name, *arguments))
            case Parameters():
                self.done.append(("lock", f"{self.worker.name}_go", 1))
                names = range(len(self.worker.parameters))
                return tuple(self.read(f"{self.worker.name}_parameters", i) for i in names)
            case Read(buffer, index):
                return self.read(f"{self.worker.name}_{buffer}", index)
        return None


@pytest.mark.parametrize("design", DESIGNS)
def test_workers_do_what_their_bodies_do(design: Design, record: Any) -> None:
    recorded = record(design)
    for made, worker in zip(recorded.workers, design.workers.values(), strict=True):
        for seed in range(2):

            def read(name: str, index: int, seed: int = seed) -> int:
                return 1 + (len(name) + index * (seed + 1) + seed) % 3

            assert execute(made, read) == Numbers(worker, read).run()


# --- sequences ------------------------------------------------------------------------------------
def plain(body: Any, values: dict[str, int]) -> Iterator[tuple[Any, ...]]:
    """A sequence's statements as (fifo, argument, byte of every word), starts and waits."""
    for s in body:
        if "let" in s:
            values[s["let"]] = evaluate(s["value"], values)
        elif "for" in s:
            for i in range(evaluate(s["count"], values)):
                yield from plain(s["do"], values | {s["for"]: i})
        elif "if" in s:
            if evaluate(s["if"], values):
                yield from plain(s["do"], values)
        elif "transfer" in s:
            words = np.array([evaluate(s["offset"], values)])
            for n, stride in [*s["outer"], [["//", s["run"], 4], 4]]:
                steps = np.arange(evaluate(n, values)) * evaluate(stride, values)
                words = (words[:, None] + steps).ravel()
            if words.size:
                yield ("move", s["transfer"], s["argument"], words)
        elif "start" in s:
            yield ("start", s["start"], [evaluate(v, values) for v in s["values"]])
        elif "wait" in s:
            yield ("wait", s["wait"])


SEQUENCES = [
    pytest.param(param.values[0], name, id=f"{param.id}-{name}")
    for param in DESIGNS
    for name in param.values[0].sequences
]


# Of sequences whose small shapes are more tasks than the compiler queues.
MORE_SHAPES = {
    "append_rows": {
        "M": 64, "kv_heads": 4, "head_dim": 128, "rotary_dim": 128, "interleaved": 0, "norm": 1,
        "eps_bits": 0, "x_stride": 512, "position": 8, "capacity": 72,
    },
}  # fmt: skip


@pytest.mark.parametrize(("design", "name"), SEQUENCES)
def test_a_sequence_moves_the_same_bytes_and_starts_the_same_workers(
    design: Design, name: str, record: Any
) -> None:
    sequence = design.sequences[name]
    compared = 0
    for shape in [*small_shapes(sequence), *([MORE_SHAPES[name]] if name in MORE_SHAPES else [])]:
        try:
            recorded = record(design, Run(sequence, shape))
        except ShapeError:  # our own streams can, the compiler's cannot
            continue
        _compare(sequence, shape, recorded)
        compared += 1
    assert compared > 0


def _compare(sequence: Sequence, shape: dict[str, int], recorded: Recording) -> None:
    arguments = [a.name for a in sequence.arguments]
    events = iter(recorded.runtime.events)
    awaited: set[str] = set()
    moved: set[str] = set()
    for kind, *wanted in plain(sequence.body, dict(shape)):
        if kind == "move":
            what, fifo, argument, tap, wait = next(events)
            assert (what, fifo, arguments[argument]) == ("move", *wanted[:2])
            np.testing.assert_array_equal(tap.elements() * 4, wanted[2])
            moved.add(fifo)
            awaited |= {fifo} if wait else set()
        elif kind == "start":
            worker, values = wanted
            for i, value in enumerate(values):
                assert next(events) == ("write", f"{worker}_parameters", i, value)
            assert next(events) == ("set", f"{worker}_go", 1)
        else:
            assert next(events) == ("finish",)
            assert awaited == moved & set(wanted[0])
            moved.clear()
            awaited.clear()
    assert list(events) in ([], [("finish",)])


@pytest.mark.parametrize("design", DESIGNS[:1])
def test_without_a_shape_a_runtime_binds_every_shim_and_moves_nothing(
    design: Design, record: Any
) -> None:
    recorded = record(design)
    assert recorded.runtime.events == []
    shims = [n for n in configure(design).shim_ports]
    bound = {leaf.fifo.name for leaf in recorded.runtime.leaves if hasattr(leaf, "fifo")}
    assert bound == set(shims)
