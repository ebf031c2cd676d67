"""The recorder itself: a program that breaks a rule of the interface is refused."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import iron_recorder
import numpy as np
import pytest
from iron_recorder import install
from iron_rules import AIETileType, Violation
from iron_signatures import SIGNATURES, signature

WORDS: Any = np.ndarray[(16,), np.dtype[np.int32]]
HALF: Any = np.ndarray[(8,), np.dtype[np.int32]]


@dataclass
class Program:
    """One core between two fifos of one shim; tests change one thing at a time."""

    in_options: dict[str, Any] = field(default_factory=dict)
    out_options: dict[str, Any] = field(default_factory=dict)
    body: Callable[..., None] | None = None
    sequence: Callable[..., None] | None = None
    worker_arguments: Callable[[list[Any]], list[Any]] = lambda given: given
    runtime_arguments: Callable[[list[Any]], list[Any]] = lambda given: given
    kernel_type: Any = WORDS
    consumers: int = 1

    def resolve(self) -> Any:
        iron = sys.modules["aie.iron"]
        tile = sys.modules["aie.iron.device"].Tile
        shim = tile(0, 0, tile_type=AIETileType.ShimNOCTile)
        core = tile(0, 2, tile_type=AIETileType.CoreTile)
        fin = iron.ObjectFifo(WORDS, **{"name": "in", **self.in_options})
        fout = iron.ObjectFifo(WORDS, name="out", **self.out_options)
        taken = [fin.cons() for _ in range(self.consumers)]
        kernel = iron.Kernel("f", "f.o", [self.kernel_type, WORDS, np.int32])
        words = iron.Buffer(WORDS, name="p", tile=core, use_write_rtp=True)
        lock = iron.Lock(core, lock_id=15, name="go")
        worker = iron.Worker(
            self.body or body,
            self.worker_arguments([taken[0], fout.prod(), kernel, words, lock]),
            tile=core,
        )
        bound = self.runtime_arguments(
            [fin.prod(channel=0, tile=shim), fout.cons(channel=0, tile=shim), words, lock]
        )
        runtime = iron.Runtime(self.sequence or sequence, [WORDS, WORDS, *bound])
        device = sys.modules["aie.iron.device"].NPU2Col1()
        return iron.Program(device, runtime, workers=[worker]).resolve_program()


def body(fin: Any, fout: Any, kernel: Any, words: Any, lock: Any) -> None:
    lock.acquire(1)
    count = words[0]
    for i in iron_recorder.range_(count):
        a, b = fin.acquire(1), fout.acquire(1)
        kernel(a, b, iron_recorder.index_cast(i, to="i32"))
        fin.release(1)
        fout.release(1)


def pattern(
    *sizes: int, strides: tuple[int, ...] | None = None, offset: int = 0, of: int = 16
) -> Any:
    return iron_recorder.TensorAccessPattern((of,), offset, list(sizes), list(strides or (1,)))


def sequence(a: Any, b: Any, fin: Any, fout: Any, words: Any, lock: Any) -> None:
    group = iron_recorder.TaskGroup()
    words[0] = 1
    lock.set(1)
    fin.fill(a, tap=pattern(16), group=group)
    fout.drain(b, tap=pattern(16), wait=True, group=group)
    group.finish()


@pytest.fixture(autouse=True)
def _recorder(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)


def refused(match: str, **changes: Any) -> None:
    with pytest.raises(Violation, match=match):
        Program(**changes).resolve()


def test_the_unchanged_program_is_accepted() -> None:
    assert len(Program().resolve().workers) == 1


@pytest.mark.parametrize("name", SIGNATURES)
def test_an_unknown_keyword_is_a_type_error(name: str) -> None:
    with pytest.raises(TypeError):
        signature(name).bind(*[0] * 3, placement=None)


@pytest.mark.parametrize("old", ["dims_to_stream", "default_depth"])
def test_keywords_of_older_interfaces_do_not_exist(old: str) -> None:
    with pytest.raises(TypeError, match=old):
        Program(in_options={old: None}).resolve()


def test_arguments_that_are_keyword_only_are_not_taken_by_position() -> None:
    with pytest.raises(TypeError, match="positional"):
        iron_recorder.ObjectFifo(WORDS, 2, "name")


def test_a_handle_that_the_core_uses_must_be_among_its_arguments() -> None:
    other: list[Any] = []

    def uses_another(*given: Any) -> None:
        other[0].acquire(1)

    def keep(given: list[Any]) -> list[Any]:
        other.append(given[0])
        return given[1:]

    refused("bound to nothing", body=uses_another, worker_arguments=keep)
    iron_recorder.forget()
    other.clear()

    def keep_words(given: list[Any]) -> list[Any]:
        other.append(given[3])
        return [*given[:3], given[4]]

    def reads(*given: Any) -> None:
        other[0][0]

    refused("not among the worker's arguments", body=reads, worker_arguments=keep_words)


def test_a_handle_that_the_sequence_uses_must_be_among_its_arguments() -> None:
    def other_handle(a: Any, b: Any, fin: Any, *rest: Any) -> None:
        group = iron_recorder.TaskGroup()
        fin.fifo.cons().drain(a, tap=pattern(16), group=group)

    refused("not among fn_args", sequence=other_handle)


def test_every_call_of_cons_is_a_consumer_that_needs_an_end() -> None:
    refused("consumer of fifo in is bound to nothing", consumers=2)


def test_a_fifo_has_one_producer() -> None:
    fifo = iron_recorder.ObjectFifo(WORDS, name="f")
    assert fifo.prod(channel=0) is fifo.prod()
    with pytest.raises(Violation, match="re-pinned"):
        fifo.prod(channel=1)


def test_a_handle_has_one_end() -> None:
    refused("already has an endpoint", runtime_arguments=lambda g: [g[0].fifo.consumers[0], *g[1:]])


def test_an_acquire_above_the_depth_is_refused() -> None:
    def three(fin: Any, *_: Any) -> None:
        fin.acquire(3)

    refused(r"acquire\(3\) at depth 2", body=three)


def test_a_release_of_what_is_not_held_is_refused() -> None:
    def early(fin: Any, *_: Any) -> None:
        fin.release(1)

    refused(r"release\(1\) of 0 held", body=early)


def test_acquire_is_absolute() -> None:
    def twice(fin: Any, *_: Any) -> None:
        fin.acquire(1)
        fin.acquire(1)
        fin.release(2)

    refused(r"release\(2\) of 1 held", body=twice)


def test_a_buffer_is_not_used_after_its_release() -> None:
    def late(fin: Any, fout: Any, kernel: Any, *_: Any) -> None:
        a, b = fin.acquire(1), fout.acquire(1)
        fin.release(1)
        kernel(a, b, 0)

    refused("already released", body=late)


def test_the_types_of_a_call_are_those_of_the_kernel() -> None:
    refused("f, argument 0", kernel_type=HALF)


def test_an_index_is_no_i32() -> None:
    def uncast(fin: Any, fout: Any, kernel: Any, *_: Any) -> None:
        for i in iron_recorder.range_(2):
            kernel(fin.acquire(1), fout.acquire(1), i)

    refused("no i32", body=uncast)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"packet_id": 3}, "without packet"),
        ({"packet": True, "packet_id": 32}, "packet id 32"),
        ({"consumer_obj_type": np.ndarray[(5,), np.dtype[np.int32]]}, "5 of 16"),
        ({"depth": 0}, "depth 0"),
        ({"to_stream": [(4, 4), (4, 1)]}, "a pattern only"),
    ],
)
def test_options_of_a_fifo(options: dict[str, Any], match: str) -> None:
    refused(match, in_options=options)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: pattern(8), "8 of 16"),  # not the whole object
        (lambda: pattern(2, 8, strides=(8, 1), of=32), "of 32"),
        (lambda: pattern(2, 2, 2, 2, strides=(8, 4, 2, 1)), "dimensions"),
    ],
)
def test_a_walk_covers_one_object_in_the_dimensions_of_its_tile(make: Any, match: str) -> None:
    refused(match, out_options={"to_stream": make()})


def test_an_object_is_whole_words() -> None:
    with pytest.raises(Violation, match="not words"):
        iron_recorder.ObjectFifo(np.ndarray[(6,), np.dtype[np.uint8]], name="f")


@pytest.mark.parametrize(
    ("sizes", "strides", "itemsize", "match"),
    [
        ((8, 2), (5, 1), 2, "are not words"),
        ((8, 3), (4, 1), 2, "run of 6 bytes"),
        ((8, 2), (2, 8), 2, "innermost stride"),
        ((2, 300, 1), (1, 2, 1), 4, "255 at most"),
    ],
)
def test_what_moves_are_words_within_the_fields_of_a_descriptor(
    sizes: tuple[int, ...], strides: tuple[int, ...], itemsize: int, match: str
) -> None:
    tap = pattern(*sizes, strides=strides, of=1024)
    with pytest.raises(Violation, match=match):
        iron_recorder.check_walk(tap, itemsize, 3, 255, 1 << 13)


@pytest.mark.parametrize("offsets", [[0, 4], [4, 8], [0, 8, 12]])
def test_segments_of_a_link_are_exact(offsets: list[int]) -> None:
    tile = iron_recorder.Tile(0, 1, tile_type=AIETileType.MemTile)
    whole = iron_recorder.ObjectFifo(WORDS, name="whole")
    parts = [iron_recorder.ObjectFifo(HALF, name=f"part{i}") for i in range(len(offsets))]
    with pytest.raises(Violation, match=r"segment|offsets"):
        iron_recorder.ObjectFifoLink(
            [whole.cons()], [p.prod() for p in parts], tile=tile, dst_offsets=offsets
        )


def test_two_tile_objects_of_one_place_are_refused() -> None:
    iron_recorder.Tile(0, 2, tile_type=AIETileType.CoreTile)
    refused(r"2 Tile objects at \(0, 2\)")


@pytest.mark.parametrize(
    ("number", "match"), [(5, "5 tasks at once"), (1, "16 bytes are no objects")]
)
def test_transfers_of_a_sequence(number: int, match: str) -> None:
    def fills(a: Any, b: Any, fin: Any, *_: Any) -> None:
        group = iron_recorder.TaskGroup()
        for _i in range(number):
            fin.fill(a, tap=pattern(16 if number > 1 else 4), group=group)
        group.finish()

    refused(match, sequence=fills)


def test_parameters_are_written_before_the_start() -> None:
    def late(a: Any, b: Any, fin: Any, fout: Any, words: Any, lock: Any) -> None:
        lock.set(1)
        words[0] = 1

    refused("written after its start", sequence=late)


def test_a_group_must_be_finished() -> None:
    def leaves(a: Any, b: Any, fin: Any, *_: Any) -> None:
        fin.fill(a, tap=pattern(16), group=iron_recorder.TaskGroup())

    refused("not finished", sequence=leaves)


def test_directions_of_fill_and_drain() -> None:
    def turned(a: Any, b: Any, fin: Any, *_: Any) -> None:
        fin.drain(a, tap=pattern(16), group=iron_recorder.TaskGroup())

    refused(r"drain\(\) on the producer", sequence=turned)


def test_circuit_switched_fifos_do_not_share_a_shim_channel() -> None:
    fin = iron_recorder.ObjectFifo(WORDS, name="other")
    tile = iron_recorder.Tile(1, 2, tile_type=AIETileType.CoreTile)
    worker = iron_recorder.Worker(lambda *_: None, [fin.cons()], tile=tile)
    assert worker.tile is tile

    def also(given: list[Any]) -> list[Any]:
        return [*given, fin.prod(channel=0, tile=given[0].given["tile"])]

    refused("on one channel", runtime_arguments=also)
