"""Sequences as instruction streams: what the words do is what the sequence says, and no more."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ort_aie_ep import _native
from ort_aie_ep.npu.sequence import (
    Expr,
    Sequence,
    Value,
    at_most,
    ceil_div,
    equal,
    evaluate,
    less,
    maximum,
    minimum,
    symbol,
)
from ort_aie_ep.npu.txn import (
    AddressPatch,
    BlockWrite,
    MaskWrite,
    Operation,
    QueuePush,
    ShimDescriptor,
    Stream,
    Wait,
    Write,
    core_lock_of,
    core_memory_of,
    decode,
    shim_control_of,
    shim_descriptor_of,
    shim_queue_of,
)

Channel = tuple[int, str, int]
Plan = list[dict[str, Any]]

#: Two columns: three fifos of their own channels, and two that share one by packet id.
FIFOS = {
    "a0": {"column": 0, "channel": 0, "direction": "MM2S", "packet": None},
    "a1": {"column": 0, "channel": 1, "direction": "MM2S", "packet": None},
    "p3": {"column": 1, "channel": 0, "direction": "MM2S", "packet": 3},
    "p7": {"column": 1, "channel": 0, "direction": "MM2S", "packet": 7},
    "y0": {"column": 0, "channel": 0, "direction": "S2MM", "packet": None},
    "y1": {"column": 1, "channel": 1, "direction": "S2MM", "packet": None},
}
WORKERS = {
    "left": {"column": 0, "row": 2, "parameters": ["m", "n"], "address": 1024, "lock": 15},
    "right": {"column": 1, "row": 5, "parameters": [], "address": 65532, "lock": 0},
}


def manifest(*sequences: Sequence, **changes: Any) -> dict[str, Any]:
    return {
        "format": 1,
        "name": "by_hand",
        "device": "npu2_2col",
        "generation": 4,
        "rows": 6,
        "columns": 2,
        "kernel": "MLIR_AIE",
        "clock_hz": 1_000_000_000,
        "ddr_bytes_per_second": 40_000_000_000,
        "fifos": FIFOS,
        "workers": WORKERS,
        "bds": {"0": list(range(16)), "1": list(range(16))},
        "sequences": {s.name: s.to_json() for s in sequences},
        "toolchain": None,
        "uuid": None,
    } | changes


def call(
    sequence: Sequence, parameters: Mapping[str, int] | None = None, **arguments: tuple[int, int]
) -> dict[str, Any]:
    """An invocation; arguments lie at byte 0 of run arguments in their order unless given."""
    views = {a.name: (i, 0) for i, a in enumerate(sequence.arguments)} | arguments
    return {"sequence": sequence.name, "parameters": dict(parameters or {}), "arguments": views}


def build(sequence: Sequence, parameters: Mapping[str, int] | None = None, **changes: Any) -> Any:
    text = json.dumps(manifest(sequence, **changes))
    return _native.npu_build(text, [call(sequence, parameters)])


def sequence_of(*parameters: str, bytes: Value = 1 << 20) -> Sequence:
    """A sequence with an argument to read, "x", and one to write, "y"."""
    s = Sequence("run", parameters)
    s.argument("x", "in", bytes)
    s.argument("y", "out", bytes)
    return s


# --- what a stream does, from its decoded words ---------------------------------------------------


@dataclass
class Pushed:
    """A task that a stream has queued."""

    channel: Channel
    bd: int
    descriptor: ShimDescriptor
    patch: AddressPatch
    runs: int
    token: bool

    def words(self) -> np.ndarray:
        """The byte offsets in the argument's buffer of the words moved, in order."""
        grid = np.zeros(1, dtype=np.int64)
        for count, step in self.descriptor.dimensions:
            grid = (grid[:, None] + step * np.arange(count)[None, :]).ravel()
        assert len(grid) == self.descriptor.length, "the wraps divide the length"
        starts = []
        current = self.descriptor.iteration_current
        for _ in range(self.runs):
            starts.append(current * self.descriptor.iteration_step)
            current = (current + 1) % self.descriptor.iteration_count
        grid = (np.array(starts)[:, None] + grid[None, :]).ravel()
        return grid + self.descriptor.address + self.patch.buffer_offset


@dataclass
class Device:
    """Holds a stream to the rules of queues, descriptors and tokens while it goes through it.

    `vouched` are the waits after which the sequence vouches for every earlier task; all others
    only prove the tasks of their own channel.
    """

    pushed: list[Pushed] = field(default_factory=list)
    memory: dict[tuple[int, int, int], int] = field(default_factory=dict)
    starts: list[tuple[int, int, int]] = field(default_factory=list)
    waits: list[Channel] = field(default_factory=list)
    outstanding: dict[Channel, list[Pushed]] = field(default_factory=lambda: defaultdict(list))
    descriptors: dict[tuple[int, int], BlockWrite] = field(default_factory=dict)
    patches: dict[tuple[int, int], AddressPatch] = field(default_factory=dict)
    named: set[Channel] = field(default_factory=set)

    def in_use(self, column: int, bd: int) -> bool:
        return any(
            task.bd == bd
            for channel, tasks in self.outstanding.items()
            if channel[0] == column
            for task in tasks
        )

    def run(self, stream: Stream, vouched: set[int] = frozenset()) -> Device:  # type: ignore[assignment]
        for op in stream.operations:
            self.step(op)
            if op.index in vouched:
                assert not any(t.token for tasks in self.outstanding.values() for t in tasks)
                self.outstanding.clear()
        return self

    def step(self, op: Operation) -> None:
        match op:
            case BlockWrite():
                at = shim_descriptor_of(op.address)
                assert at is not None
                assert at[2] == 0
                assert len(op.words) == 8
                assert not self.in_use(*at[:2]), "a descriptor in use is not written"
                self.descriptors[at[:2]] = op
                self.patches.pop(at[:2], None)
            case AddressPatch():
                at = shim_descriptor_of(op.address)
                assert at is not None
                assert at[2] == 1
                assert at[:2] in self.descriptors, "the patched words come before"
                self.patches[at[:2]] = op
            case Write() if (port := shim_queue_of(op.address)) is not None:
                self.push(
                    (port.column, port.direction, port.channel), QueuePush.from_word(op.value)
                )
            case Write() if (lock := core_lock_of(op.address)) is not None:
                assert op.value == 1
                self.starts.append(lock)
            case Write():
                place = core_memory_of(op.address)
                assert place is not None
                self.memory[place] = op.value
            case MaskWrite():
                port = shim_control_of(op.address)
                assert port is not None
                assert (op.value, op.mask) == (15 << 8, 0xF00)
                channel = (port.column, port.direction, port.channel)
                assert channel not in self.named, "the controller is named once"
                self.named.add(channel)
            case Wait():
                assert (op.row, op.columns, op.rows) == (0, 1, 1)
                self.wait((op.column, op.direction, op.channel))
            case _:
                raise AssertionError(f"unexpected {op}")

    def push(self, channel: Channel, push: QueuePush) -> None:
        key = (channel[0], push.descriptor)
        assert not self.in_use(*key), "a descriptor in use is not pushed again"
        assert len(self.outstanding[channel]) < 4, "a queue holds four tasks"
        assert channel in self.named or not push.token, "tokens name the controller"
        descriptor = ShimDescriptor.from_words(self.descriptors[key].words)
        assert descriptor.valid
        assert descriptor.next is None
        assert descriptor.acquire is None
        assert descriptor.release is None
        assert not descriptor.suppress_tlast
        assert (descriptor.ax_cache, descriptor.ax_qos, descriptor.smid) == (2, 0, 0)
        # A counter that wraps at another number of runs would start the next push elsewhere.
        assert descriptor.iteration_count in (1, push.runs)
        task = Pushed(
            channel, push.descriptor, descriptor, self.patches[key], push.runs, push.token
        )
        self.pushed.append(task)
        self.outstanding[channel].append(task)

    def wait(self, channel: Channel) -> None:
        self.waits.append(channel)
        tasks = self.outstanding[channel]
        first = next((i for i, task in enumerate(tasks) if task.token), None)
        assert first is not None, "a wait has its token"
        del tasks[: first + 1]

    def finish(self) -> Device:
        assert not any(self.outstanding.values()), "nothing is left under way"
        return self

    def moved(self) -> dict[tuple[Channel, int | None, int], np.ndarray]:
        """Byte offsets by (channel, packet id, run argument), in the order of their moving."""
        parts: dict[tuple[Channel, int | None, int], list[np.ndarray]] = defaultdict(list)
        for task in self.pushed:
            packet = task.descriptor.packet_id if task.descriptor.packet_enabled else None
            parts[task.channel, packet, task.patch.argument].append(task.words())
        return {key: np.concatenate(words) for key, words in parts.items()}


def observe(runs: list[dict[str, Any]]) -> Device:
    """The only run's doings; every completion must be proven by a token."""
    (run,) = runs
    stream = decode(run["words"], device_generation=4)
    assert len(run["sources"]) == len(stream.operations)
    return Device().run(stream).finish()


# --- what a sequence says, by a slow interpreter --------------------------------------------------


def tap_words(offset: int, run: int, outer: list[tuple[int, int]]) -> np.ndarray:
    """The byte offsets of the words of a tap, in order."""
    grid = np.array([offset], dtype=np.int64)
    for count, stride in outer:
        grid = (grid[:, None] + stride * np.arange(count)[None, :]).ravel()
    return (grid[:, None] + np.arange(0, run, 4)[None, :]).ravel()


@dataclass
class Said:
    moved: dict[tuple[Channel, int | None, int], list[np.ndarray]] = field(
        default_factory=lambda: defaultdict(list)
    )
    memory: dict[tuple[int, int, int], int] = field(default_factory=dict)
    starts: list[tuple[int, int, int]] = field(default_factory=list)


def channel_of(fifo: str) -> tuple[Channel, int | None]:
    facts: dict[str, Any] = FIFOS[fifo]
    return (facts["column"], facts["direction"], facts["channel"]), facts["packet"]


def say(sequence: Sequence, invocation: dict[str, Any]) -> Said:
    said = Said()

    def go(body: list[dict[str, Any]], bound: dict[str, int]) -> None:
        for statement in body:
            match statement:
                case {"let": name, "value": value}:
                    bound[name] = evaluate(value, bound)
                case {"for": index, "count": count, "do": inner}:
                    for i in range(evaluate(count, bound)):
                        go(inner, bound | {index: i})
                case {"if": condition, "do": inner}:
                    if evaluate(condition, bound):
                        go(inner, dict(bound))
                case {"transfer": fifo, "argument": argument, "offset": offset, "run": run,
                      "outer": outer}:  # fmt: skip
                    number, base = invocation["arguments"][argument]
                    words = tap_words(
                        base + evaluate(offset, bound),
                        evaluate(run, bound),
                        [(evaluate(n, bound), evaluate(s, bound)) for n, s in outer],
                    )
                    if len(words):
                        said.moved[*channel_of(fifo), number].append(words)
                case {"start": worker, "values": values}:
                    facts: dict[str, Any] = WORKERS[worker]
                    tile = (facts["column"], facts["row"])
                    for i, value in enumerate(values):
                        place = (*tile, facts["address"] + 4 * i)
                        said.memory[place] = evaluate(value, bound) & 0xFFFFFFFF
                    said.starts.append((*tile, facts["lock"]))

    go(sequence.to_json()["body"], dict(invocation["parameters"]))
    return said


def check_same(device: Device, said: Said) -> None:
    moved = device.moved()
    assert moved.keys() == said.moved.keys()
    for key, words in said.moved.items():
        np.testing.assert_array_equal(moved[key], np.concatenate(words))
    assert device.memory == said.memory
    assert device.starts == said.starts


# --- transfers ------------------------------------------------------------------------------------


def span(run: int, outer: list[tuple[int, int]]) -> int:
    return run + sum((count - 1) * stride for count, stride in outer)


@st.composite
def taps(draw: st.DrawFn) -> tuple[int, int, list[tuple[int, int]]]:
    """Taps that a shim can say: a run of up to 1023 words, or the product of two such."""
    small = st.integers(1, 7)
    wide = draw(st.sampled_from(["none", "run", "middle", "outermost", "repeat"]))
    run = 4 * draw(st.integers(1, 9))
    depth = draw(st.integers(0, 3))
    if wide == "run":
        run = 4 * draw(st.sampled_from([1024, 1536, 2002, 1023 * 3]))
        depth = min(depth, 2)
    counts = [draw(small) for _ in range(depth)]
    strides = [4 * draw(st.integers(1, 50)) for _ in range(depth)]
    if wide == "middle" and depth == 2:
        counts[1] = draw(st.sampled_from([1024, 1400, 1023]))
    if wide == "outermost" and depth:
        counts[0] = draw(st.integers(60, 200))
    if wide == "repeat" and depth:
        counts, strides = counts[:3], [0, *strides[1:3]]
        counts[0] = draw(st.integers(2, 600))
    return 4 * draw(st.integers(0, 5)), run, list(zip(counts, strides, strict=True))


@given(taps(), st.sampled_from(["a0", "p7", "y1"]))
@settings(max_examples=200)
def test_words_move_in_the_order_of_the_tap(
    tap: tuple[int, int, list[tuple[int, int]]], fifo: str
) -> None:
    offset, run, outer = tap
    s = sequence_of(bytes=offset + span(run, outer))
    argument = "y" if fifo.startswith("y") else "x"
    s.transfer(fifo, argument, offset=offset, run=run, outer=list(outer))
    s.wait(fifo)
    check_same(observe(build(s)), say(s, call(s)))


def pushes(runs: list[dict[str, Any]]) -> list[Pushed]:
    return observe(runs).pushed


def one_transfer(
    offset: int, run: int, outer: list[tuple[Value, Value]], bytes: int = 1 << 30, **changes: Any
) -> list[Pushed]:
    s = sequence_of(bytes=bytes)
    s.transfer("a0", "x", offset=offset, run=run, outer=outer)
    s.wait("a0")
    return pushes(build(s, **changes))


def test_contiguous_taps_become_linear_descriptors() -> None:
    (task,) = one_transfer(64, 4096, [(3, 40960), (10, 4096)], ddr_bytes_per_second=10**12)
    assert task.descriptor.dimensions == ((30720, 4),)
    assert task.descriptor.wraps == (0, 0)
    assert (task.runs, task.patch.buffer_offset) == (1, 64)


def test_long_runs_are_divided_by_the_largest_divisor_that_a_wrap_holds() -> None:
    (task,) = one_transfer(0, 4 * 2560, [(5, 65536)])
    assert task.descriptor.dimensions == ((5, 65536), (4, 2560), (640, 4))


def test_fourth_dimension_iterates() -> None:
    (task,) = one_transfer(0, 16, [(5, 4096), (4, 512), (3, 64)])
    assert task.descriptor.dimensions == ((4, 512), (3, 64), (4, 4))
    assert (task.runs, task.descriptor.iteration_count, task.descriptor.iteration_step) == (
        5,
        5,
        4096,
    )


def test_more_than_64_iterations_become_several_tasks() -> None:
    tasks = one_transfer(8, 16, [(130, 4096), (4, 512), (3, 64)])
    assert [task.runs for task in tasks] == [64, 64, 2]
    assert [task.patch.buffer_offset for task in tasks] == [8, 8 + 64 * 4096, 8 + 128 * 4096]


def test_outermost_stride_of_0_repeats_the_task() -> None:
    tasks = one_transfer(0, 16, [(300, 0), (4, 512), (3, 64)])
    assert [task.runs for task in tasks] == [256, 44]
    assert all(task.descriptor.iteration_count == 1 for task in tasks)


def test_published_descriptors_come_out_of_transfers() -> None:
    # Xilinx/mlir-aie, dma_to_npu_iter_repeat: 64 words of argument 0 on column 0's MM2S 0, pushed
    # to run four times as BD 1 on npu1. BLOCKWRITE data, queue address, queue word.
    s = sequence_of()
    s.transfer("a0", "x", offset=0, run=256, outer=[(4, 0)])
    s.wait("a0")
    bds = {"0": [1], "1": [1]}
    (run,) = build(s, bds=bds, generation=3)
    block, patch, _, push, _ = decode(run["words"], device_generation=3).operations
    assert isinstance(block, BlockWrite)
    assert isinstance(push, Write)
    assert block.words == (64, 0, 0, 0, 0x80000000, 33554432, 0, 33554432)
    assert (push.address, push.value & 0x7FFFFFFF) == (119316, 196609)
    # nod-ai/iree-amd-aie, controlcode_to_transaction: sizes 4, 16, 16 and strides 64, 8, 1 from
    # word 8 on, packet id 1, BD 2 of column 1. There the offset stands in the descriptor, which the
    # address patch of this library adds, and AxCACHE is 0 (2 in newer streams of mlir-aie).
    s = sequence_of()
    s.transfer("p3", "x", offset=32, run=64, outer=[(4, 256), (16, 32)])
    s.wait("p3")
    fifos = FIFOS | {"p3": FIFOS["p3"] | {"packet": 1}}
    (run,) = build(s, bds={"0": [0], "1": [2]}, generation=3, fifos=fifos)
    block, patch, *_ = decode(run["words"], device_generation=3).operations
    assert isinstance(block, BlockWrite)
    assert isinstance(patch, AddressPatch)
    published = [0x400, 0x20, 0x40080000, 0x01000000, 0x81000007, 0x3F, 0, 0x02000000]
    published[1] -= patch.plus
    published[5] |= 2 << 24
    assert (block.address, block.words) == (0x0201D040, tuple(published))


def test_published_descriptor_moves_the_same_bytes() -> None:
    # mlir-aie's npu_dma_memcpy: sizes 2, 32, 32 and strides 2048, 64, 1 from word 4096 on. Here the
    # outer two, which continue each other, become one.
    (task,) = one_transfer(16384, 128, [(2, 8192), (32, 256)])
    published = np.array([2048, 0, 0, 33554432, -2113929153, 2047, 0, 33554432]).astype(np.uint32)
    theirs = replace(task, descriptor=ShimDescriptor.from_words(published))
    np.testing.assert_array_equal(task.words(), theirs.words())


def test_stream_of_one_transfer_word_for_word() -> None:
    # From the field tables: BD 2 of column 1, argument 6 (so the aperture is folded in) at byte
    # 0x100 + 0x40, 6 x 8 words with a stride of 32 bytes more, packet 3, burst 3 on generation 4.
    s = sequence_of()
    s.transfer("p3", "x", offset=0x40, run=32, outer=[(6, 64)])
    s.start("left", -1, 7)
    s.wait("p3")
    text = json.dumps(manifest(s, bds={"0": [0], "1": [2]}))
    (run,) = _native.npu_build(text, [call(s, x=(6, 0x100))])
    expected = [
        *(0x06040100, 0x00000102, 8, 4 * 63),
        *(1, 0, 0x0201D040, 0x30),
        *(48, 0, 1 << 30 | 3 << 19, 8 << 20, 3 << 30 | 6 << 20 | 15, 2 << 24, 0, 1 << 25),
        *(0x81, 0x30, 0, 0, 0, 0, 0x0201D044, 0, 6, 0, 0x80000140, 0),
        *(3, 0, 0x0201D210, 0, 0xF00, 0xF00, 0x1C),
        *(0, 0, 0x0201D214, 0, 1 << 31 | 2, 0x18),
        *(0, 0, 0x00200400, 0, 0xFFFFFFFF, 0x18),
        *(0, 0, 0x00200404, 0, 7, 0x18),
        *(0, 0, 0x0021F0F0, 0, 1, 0x18),
        *(0x80, 0x10, 1 << 16 | 1, 0x00010100),
    ]
    assert run["words"].tolist() == expected
    assert run["variable"].tolist() == [8, 26, 27, 45, 51]
    assert run["sources"] == ["[0] run body[0]"] * 4 + ["[0] run body[1]"] * 3 + ["[0] run body[2]"]


@pytest.mark.parametrize(
    ("offset", "run", "outer", "message"),
    [
        (0, 16, [(2, 8192), (2, 2048), (2, 512), (2, 128)], "has 5 dimensions"),
        (0, 16, [(3, 0), (2, 2048), (2, 512), (2, 128)], "has 5 dimensions"),
        (0, 4 * 2048, [(2, 1 << 18), (2, 1 << 16), (2, 1 << 14)], "has 5 dimensions"),
        (0, 4 * 1031, [(2, 1 << 16), (2, 1 << 14)], "has 5 dimensions"),
        (0, 16, [(2, (1 << 22) + 4), (2, 64)], "D2 has a stride of 4194308 bytes, .* 4194304"),
        (0, 16, [(2, 1 << 23), (2, 4096), (2, 256)], "iteration has a stride of 8388608"),
        (0, 16, [(2, 4096), (2, 0), (2, 64)], "has a stride of 0"),
        (2, 16, [], "offset must be a multiple of 4 bytes and not negative, got 2"),
        (-4, 16, [], "offset must be .* got -4"),
        (0, 6, [], "the run must be a multiple of 4 bytes and not negative, got 6"),
        (0, 16, [(2, 6)], "stride of outer dimension 0 must be a multiple of 4 .* got 6"),
        (0, 16, [(-1, 16)], "count of outer dimension 0 must not be negative, got -1"),
        (0, 1 << 30, [(2, 4)], "touches bytes up to 1073741828 of a buffer of 1073741824"),
        (4, 1 << 30, [], "touches bytes up to 1073741828"),
        (0, 4, [(1 << 62, 1 << 40)], "overflows 64 bits"),
        (0, 4, [(1 << 62, 0)], "more than 4194304 tasks can"),
    ],
)
def test_transfers_that_a_shim_cannot_make_are_refused(
    offset: int, run: int, outer: list[tuple[Value, Value]], message: str
) -> None:
    with pytest.raises(ValueError, match=message) as error:
        one_transfer(offset, run, outer)
    assert 'sequence "run" (), body[0]: fifo "a0", argument "x": ' in str(error.value)


@given(taps())
def test_buffer_one_word_too_small_is_refused(tap: tuple[int, int, list[tuple[int, int]]]) -> None:
    offset, run, outer = tap
    with pytest.raises(ValueError, match="touches bytes up to"):
        one_transfer(offset, run, list(outer), bytes=offset + span(run, outer) - 4)


# --- whole sequences ------------------------------------------------------------------------------


@st.composite
def sequences(draw: st.DrawFn) -> Sequence:
    """Nested loops, conditions, lets and starts over transfers whose offsets depend on them."""
    s = sequence_of("n", "k", bytes=1 << 20)
    used: set[str] = set()
    symbols: list[Expr] = list(s.symbols())
    names = iter(f"v{i}" for i in range(1000))

    def value() -> Expr:
        a = draw(st.sampled_from(symbols))
        b = draw(st.one_of(st.integers(1, 5), st.sampled_from(symbols)))
        combine = draw(
            st.sampled_from(
                [
                    lambda: a + b, lambda: a * b, lambda: b - a, lambda: a // 3, lambda: a % 4,
                    lambda: ceil_div(a, 2), lambda: minimum(a, b), lambda: maximum(a, b),
                    lambda: less(a, b), lambda: at_most(a, b), lambda: equal(a, b),
                ]
            )
        )  # fmt: skip
        return combine()

    def words(limit: int) -> Expr:
        """A value from 0 to limit - 1; remainders are never negative."""
        return value() % limit

    def body(depth: int) -> None:
        for _ in range(draw(st.integers(1, 4))):
            kind = draw(
                st.sampled_from(["transfer"] * 4 + ["loop", "when", "let", "start", "wait"])
            )
            before = len(symbols)
            if kind == "transfer":
                fifo = draw(st.sampled_from(sorted(FIFOS)))
                used.add(fifo)
                s.transfer(
                    fifo,
                    "y" if fifo.startswith("y") else "x",
                    offset=words(64) * 4,
                    run=words(6) * 4,
                    outer=[(words(5), (words(30) + 1) * 4) for _ in range(draw(st.integers(0, 2)))],
                )
            elif kind == "loop" and depth < 2:
                with s.loop(next(names), words(5)) as index:
                    symbols.append(index)
                    body(depth + 1)
                del symbols[before:]
            elif kind == "when" and depth < 2:
                with s.when(less(words(4), 2)):
                    body(depth + 1)
                del symbols[before:]
            elif kind == "let":
                symbols.append(s.let(next(names), minimum(maximum(value(), -9), 9)))
            elif kind == "start":
                s.start("left", value(), words(9)) if draw(st.booleans()) else s.start("right")
            elif kind == "wait":
                s.wait(*sorted(FIFOS))

    body(0)
    s.wait(*sorted(FIFOS))
    return s


@given(
    sequences(),
    st.integers(0, 6),
    st.integers(0, 6),
    st.lists(st.integers(0, 15), min_size=1, max_size=16, unique=True),
)
@settings(max_examples=150)
def test_streams_do_what_sequences_say(s: Sequence, n: int, k: int, bds: list[int]) -> None:
    invocation = call(s, {"n": n, "k": k}, y=(4, 64))
    text = json.dumps(manifest(s, bds={"0": bds, "1": bds}))
    runs = _native.npu_build(text, [invocation])
    said = say(s, invocation)
    if not runs:
        check_same(Device(), said)
        return
    device = observe(runs)
    check_same(device, said)
    assert {task.bd for task in device.pushed} <= set(bds)


def waits_of(run: dict[str, Any], statement: str) -> set[int]:
    """The operations of the wait statement at the path `statement`."""
    ops = decode(run["words"]).operations
    return {
        op.index
        for op, source in zip(ops, run["sources"], strict=True)
        if isinstance(op, Wait) and source.endswith(f" {statement}")
    }


def test_a_wait_for_outputs_vouches_for_the_inputs() -> None:
    s = sequence_of()
    for _ in range(2):
        for i in range(4):
            s.transfer("a0", "x", offset=64 * i, run=64)
            s.transfer("a1", "x", offset=64 * i, run=64)
        s.transfer("y0", "y", offset=0, run=64)
        s.wait("y0")
    (run,) = build(s, bds={"0": list(range(9)), "1": [0]})
    device = Device().run(
        decode(run["words"]), waits_of(run, "body[9]") | waits_of(run, "body[19]")
    )
    device.finish()
    assert device.waits == [(0, "S2MM", 0)] * 2
    assert [task.channel for task in device.pushed if task.token] == [(0, "S2MM", 0)] * 2
    # Every descriptor came back.
    assert [task.bd for task in device.pushed] == [*range(9), *range(9)]


def test_a_full_queue_waits_for_its_oldest_task() -> None:
    s = sequence_of()
    for i in range(6):
        s.transfer("a0", "x", offset=64 * i, run=64)
    s.wait("a0")
    device = observe(build(s))
    assert [task.token for task in device.pushed] == [True, True, False, False, False, True]
    assert device.waits == [(0, "MM2S", 0)] * 3


def test_a_shortage_of_descriptors_waits_for_the_columns_oldest_task() -> None:
    s = sequence_of()
    s.transfer("a0", "x", offset=0, run=64)
    s.transfer("a1", "x", offset=0, run=64)
    s.transfer("p3", "x", offset=0, run=64)  # another column
    s.transfer("a1", "x", offset=64, run=64)
    s.wait("a0", "a1", "p3")
    device = observe(build(s, bds={"0": [5, 9], "1": [0]}))
    assert [task.bd for task in device.pushed] == [5, 9, 0, 5]
    assert [task.token for task in device.pushed] == [True, False, True, True]
    assert device.waits[0] == (0, "MM2S", 0)


def test_one_token_serves_fifos_that_share_a_channel() -> None:
    s = sequence_of()
    s.transfer("p3", "x", offset=0, run=64)
    s.transfer("p7", "x", offset=64, run=64)
    s.wait("p3", "p7")
    device = observe(build(s))
    assert [task.token for task in device.pushed] == [False, True]
    assert [task.descriptor.packet_id for task in device.pushed] == [3, 7]


def test_transfers_without_a_wait_are_refused() -> None:
    s = sequence_of()
    s.transfer("a0", "x", offset=0, run=64)
    with pytest.raises(ValueError, match="ends while 1 transfers are under way, expected a wait"):
        build(s)
    s.cut()
    with pytest.raises(ValueError, match=r"body\[1\]: is cut while 1 transfers are under way"):
        build(s)


def test_a_wait_for_fifos_that_moved_nothing_proves_nothing() -> None:
    s = sequence_of("n")
    (n,) = s.symbols()
    s.transfer("a0", "x", offset=0, run=64)
    s.transfer("y0", "y", offset=0, run=n)
    s.wait("y0")
    with pytest.raises(ValueError, match="have moved nothing, while 1 transfers"):
        build(s, {"n": 0})
    assert len(build(s, {"n": 4})) == 1


# --- prediction and runs --------------------------------------------------------------------------


def test_prediction_is_the_slowest_of_channel_work_and_memory() -> None:
    def seconds(cycles: int, ddr: int) -> float:
        s = sequence_of()
        s.transfer("a0", "x", offset=0, run=4000)
        s.transfer("a1", "x", offset=0, run=2000, outer=[(2, 0)])
        s.transfer("y0", "y", offset=0, run=8000)
        s.work(cycles)
        s.wait("a0", "a1", "y0")
        (run,) = build(s, ddr_bytes_per_second=ddr)
        return run["predicted_seconds"]

    # At 1 GHz: 8000 bytes at 4 bytes a cycle; then work; then 4000 + 4000 bytes read.
    assert math.isclose(seconds(100, 10**12), 100e-6 + 2e-6)
    assert math.isclose(seconds(5000, 10**12), 100e-6 + 5e-6)
    assert math.isclose(seconds(100, 10**9), 100e-6 + 8e-6)


def rounds() -> Sequence:
    s = sequence_of("rounds", "cycles")
    count, cycles = s.symbols()
    with s.loop("r", count) as r:
        s.transfer("a0", "x", offset=r * 64, run=64)
        s.transfer("y0", "y", offset=r * 64, run=64)
        s.start("left", r, count)
        s.work(cycles)
        s.wait("y0")
        s.cut()
    return s


def test_long_work_is_divided_into_runs_of_at_most_half_a_second() -> None:
    s = rounds()
    # 0.12 s a round: four fit beside the dispatch.
    runs = build(s, {"rounds": 10, "cycles": 120_000_000})
    assert [round(run["predicted_seconds"], 6) for run in runs] == [0.4801, 0.4801, 0.2401]
    starts = []
    for run in runs:
        stream = decode(run["words"])
        waits = {op.index for op in stream.operations if isinstance(op, Wait)}
        device = Device().run(stream, vouched=waits).finish()
        # Each run is complete: it names the controller of the channel with tokens itself.
        assert device.named == {(0, "S2MM", 0)}
        starts += [task.patch.plus for task in device.pushed if task.channel[1] == "MM2S"]
    assert starts == [64 * r for r in range(10)]


def test_a_stretch_that_cannot_be_divided_is_refused() -> None:
    with pytest.raises(ValueError, match=r"without a cut is predicted to take 0\.51 s") as error:
        build(rounds(), {"rounds": 2, "cycles": 510_000_000})
    assert 'sequence "run" (cycles=510000000, rounds=2)' in str(error.value)
    assert "split the shape" in str(error.value)


def test_invocations_of_a_plan_share_a_run() -> None:
    s = rounds()
    plan = [call(s, {"rounds": n, "cycles": 1000}, x=(n, 0)) for n in (1, 2, 3)]
    (run,) = _native.npu_build(json.dumps(manifest(s)), plan)
    assert math.isclose(run["predicted_seconds"], 100e-6 + 6e-6)
    patches = [op for op in decode(run["words"]).operations if isinstance(op, AddressPatch)]
    assert [op.argument for op in patches[::2]] == [1, 2, 2, 3, 3, 3]
    assert {source.split()[0] for source in run["sources"]} == {"[0]", "[1]", "[2]"}


def test_a_plan_that_does_nothing_has_no_runs() -> None:
    assert build(rounds(), {"rounds": 0, "cycles": 0}) == []


# --- bad plans and shapes -------------------------------------------------------------------------


def test_refused_shapes_say_why() -> None:
    s = sequence_of("n", "k")
    n, _ = s.symbols()
    s.let("rest", n % 512)
    s.require(equal(n % 512, 0), "N must be a multiple of 512, got {n} ({rest} over) at K={k}")
    with pytest.raises(ValueError, match=r"got 600 \(88 over\) at K=7") as error:
        build(s, {"n": 600, "k": 7})
    assert 'sequence "run" (k=7, n=600), body[1]: N must be' in str(error.value)


def test_errors_in_loops_say_in_which_round() -> None:
    s = sequence_of("n", bytes=128)
    (n,) = s.symbols()
    with s.loop("i", n) as i, s.loop("j", 2) as j:
        s.transfer("a0", "x", offset=i * 64 + j * 32, run=32)
        s.wait("a0")
    with pytest.raises(ValueError, match=r"body\[0\]\.do\[0\]\.do\[0\] at i=2, j=0: fifo"):
        build(s, {"n": 3})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sequence": "walk"}, 'sequence "walk" .*: the manifest of by_hand has run'),
        ({"parameters": {"rounds": 1}}, 'no value for the parameter "cycles"'),
        ({"parameters": {"rounds": 1, "cycles": 1, "m": 2}}, 'has no parameter "m"'),
        ({"arguments": {"x": (0, 0)}}, 'no buffer for the argument "y"'),
        ({"arguments": {"x": (0, 0), "y": (1, 0), "z": (2, 0)}}, 'has no argument "z"'),
        ({"arguments": {"x": (32, 0), "y": (1, 0)}}, '"x" is run argument 32, expected 0 to 31'),
        ({"arguments": {"x": (0, 2), "y": (1, 0)}}, '"x" starts at byte 2'),
        ({"arguments": {"x": (0, -4), "y": (1, 0)}}, '"x" starts at byte -4'),
        ({"buffers": {}}, 'an invocation has no "buffers"'),
    ],
)  # fmt: skip
def test_plans_that_do_not_fit_are_refused(changes: dict[str, Any], message: str) -> None:
    s = rounds()
    invocation = call(s, {"rounds": 1, "cycles": 1}) | changes
    with pytest.raises(ValueError, match=message):
        _native.npu_build(json.dumps(manifest(s)), [invocation])


def test_empty_and_incomplete_plans_are_refused() -> None:
    text = json.dumps(manifest(rounds()))
    with pytest.raises(ValueError, match="at least one invocation"):
        _native.npu_build(text, [])
    with pytest.raises(ValueError, match="a sequence, parameters and arguments, got 1 of these"):
        _native.npu_build(text, [{"sequence": "run"}])


def test_values_that_do_not_fit_are_refused() -> None:
    s = sequence_of("n")
    (n,) = s.symbols()
    s.start("left", n, 0)
    for value in (-(1 << 31), (1 << 31) - 1):
        (run,) = build(s, {"n": value})
        assert Device().run(decode(run["words"])).memory[0, 2, 1024] == value & 0xFFFFFFFF
    with pytest.raises(ValueError, match='"m" of the worker "left" has 32 bits, got 2147483648'):
        build(s, {"n": 1 << 31})
    s = sequence_of("n")
    (n,) = s.symbols()
    s.work(n // (n - 4))
    with pytest.raises(ValueError, match=r"body\[0\]: division by 0"):
        build(s, {"n": 4})
    s = sequence_of()
    s.work(-1)
    with pytest.raises(ValueError, match="work of -1 cycles"):
        build(s)


def test_loops_without_end_are_refused() -> None:
    s = sequence_of("n")
    (n,) = s.symbols()
    with s.loop("i", n), s.loop("j", n):
        pass
    with pytest.raises(ValueError, match="goes through more than 16777216 statements"):
        build(s, {"n": 1 << 40})
    s = sequence_of("n")
    (n,) = s.symbols()
    s.work(n * n)
    with pytest.raises(ValueError, match="overflows 64 bits"):
        build(s, {"n": 1 << 40})


# --- the cache ------------------------------------------------------------------------------------


def layered() -> Sequence:
    """Rounds by n, lengths and addresses by k, a parameter by both."""
    s = sequence_of("n", "k")
    n, k = s.symbols()
    with s.loop("r", n) as r:
        s.transfer("a0", "x", offset=r * k * 4, run=k * 4)
        s.transfer("y0", "y", offset=k * 8, run=16, outer=[(k, 64)])
        s.start("left", k, r - n)
        s.wait("a0", "y0")
    return s


@given(
    st.lists(
        st.tuples(st.integers(1, 3), st.integers(2, 40), st.integers(0, 2), st.integers(0, 3)),
        min_size=1,
        max_size=12,
    )
)
@settings(max_examples=60)
def test_patched_streams_equal_fresh_ones(walk: list[tuple[int, int, int, int]]) -> None:
    s = layered()
    text = json.dumps(manifest(s))
    cache = _native.NpuStreamCache(text, capacity=3)
    kept: dict[int, list[np.ndarray]] = {}
    for n, k, argument, offset in walk:
        plan = [call(s, {"n": n, "k": k}, x=(argument, 4 * offset))]
        found = cache.get(plan)
        fresh = _native.npu_build(text, plan)
        assert len(found["runs"]) == len(fresh)
        for a, b in zip(found["runs"], fresh, strict=True):
            np.testing.assert_array_equal(a["words"], b["words"])
            assert a["predicted_seconds"] == b["predicted_seconds"]
            assert a["sources"] == b["sources"]
        words = [run["words"] for run in fresh]
        if found["outcome"] == "encoded":
            assert found["id"] not in kept
        else:
            # Exactly the words within the reported ranges changed, and they may.
            before = kept[found["id"]]
            changed = set()
            for run, begin, end in found["changed"]:
                changed |= {(run, word) for word in range(begin, end)}
            differing = {
                (run, int(word))
                for run, (old, new) in enumerate(zip(before, words, strict=True))
                for word in np.flatnonzero(old != new)
            }
            assert changed == differing
            assert all(word in fresh[run]["variable"] for run, word in changed)
            assert found["outcome"] == "patched" or not changed
        kept[found["id"]] = words


def test_only_lengths_addresses_and_parameters_are_patched() -> None:
    s = layered()
    cache = _native.NpuStreamCache(json.dumps(manifest(s)))

    def get(n: int, k: int, **arguments: tuple[int, int]) -> Any:
        return cache.get([call(s, {"n": n, "k": k}, **arguments)])

    first = get(2, 8)
    assert first["outcome"] == "encoded"
    assert get(2, 8)["outcome"] == "same"
    moved = get(2, 8, x=(0, 1 << 33))
    assert (moved["outcome"], moved["id"]) == ("patched", first["id"])
    # Only the high half of the two addresses in x.
    assert [end - begin for _, begin, end in moved["changed"]] == [1, 1]
    # Another wrap, another number of rounds, another buffer: other streams.
    assert get(2, 9)["outcome"] == "encoded"
    assert get(3, 8)["outcome"] == "encoded"
    assert get(2, 8, x=(2, 0))["outcome"] == "encoded"
    again = get(2, 8, x=(0, 4))
    assert (again["outcome"], again["id"]) == ("patched", first["id"])


def test_the_stream_used_longest_ago_is_dropped() -> None:
    s = layered()
    cache = _native.NpuStreamCache(json.dumps(manifest(s)), capacity=2)

    def outcome(n: int) -> str:
        return cache.get([call(s, {"n": n, "k": 8})])["outcome"]

    assert [outcome(n) for n in (1, 2, 1, 3)] == ["encoded", "encoded", "same", "encoded"]
    assert [outcome(n) for n in (1, 2)] == ["same", "encoded"]
    with pytest.raises(ValueError, match="capacity of 0"):
        _native.NpuStreamCache(json.dumps(manifest(s)), capacity=0)


def test_a_plan_that_is_refused_leaves_the_cache_as_it_was() -> None:
    s = layered()
    cache = _native.NpuStreamCache(json.dumps(manifest(s)))
    plan = [call(s, {"n": 1, "k": 8})]
    cache.get(plan)
    with pytest.raises(ValueError, match="touches bytes"):
        cache.get([call(s, {"n": 1, "k": 1 << 20})])
    assert cache.get(plan)["outcome"] == "same"


# --- malformed manifests --------------------------------------------------------------------------


def changed(path: str, value: Any) -> dict[str, Any]:
    """The manifest of `layered` with `value` at a path such as "fifos.a0.column"."""
    result = json.loads(json.dumps(manifest(layered())))
    *parents, last = [int(p) if p.isdigit() and "bds" not in path else p for p in path.split(".")]
    at = result
    for parent in parents:
        at = at[parent]
    if value is ...:
        del at[last]
    else:
        at[last] = value
    return result


RUN = "sequences.run"


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("format", 2, "manifest.format must be an integer from 1 to 1, got 2"),
        ("format", True, "manifest.format must be an integer"),
        ("kernel", ..., 'manifest has no "kernel"'),
        ("colour", "red", 'manifest has an unknown key "colour"'),
        ("name", 3, "manifest.name must be a string, got 3"),
        ("generation", 5, "manifest.generation must be an integer from 3 to 4, got 5"),
        ("columns", 9, "manifest.columns must be an integer from 1 to 8"),
        ("rows", 2.5, "manifest.rows must be an integer from 3 to 6, got 2.5"),
        ("clock_hz", 0, "manifest.clock_hz must be a positive number, got 0"),
        ("ddr_bytes_per_second", "fast", "must be a positive number, got \"fast\""),
        ("toolchain", "1.4", "manifest.toolchain must be an object"),
        ("uuid", 5, "manifest.uuid must be a string"),
        ("fifos", [], r"manifest.fifos must be an object, got \[\]"),
        ("fifos.a0.column", 2, "manifest.fifos.a0.column must be an integer from 0 to 1, got 2"),
        ("fifos.a0.direction", "up", 'fifos.a0.direction must be "MM2S" or "S2MM", got "up"'),
        ("fifos.a0.packet", 32, "fifos.a0.packet must be an integer from 0 to 31, got 32"),
        ("fifos.a0.packet", ..., 'manifest.fifos.a0 has no "packet"'),
        ("fifos.a1.channel", 0, "fifos.a0 and manifest.fifos.a1 share a channel"),
        ("fifos.p7.packet", 3, "share a channel, expected packet ids that keep them apart"),
        ("workers.left.row", 1, "workers.left.row must be an integer from 2 to 5, got 1"),
        ("workers.left.lock", 16, "workers.left.lock must be an integer from 0 to 15, got 16"),
        ("workers.left.address", 1026, "address must be a multiple of 4 .* got 1026"),
        ("workers.left.address", 65532, "room for 2 words below 65536, got 65532"),
        ("workers.left.parameters", ["m"], 'has 2 values, expected 1 for the worker "left"'),
        ("bds.2", [0], "manifest.bds.2 is no shim column, expected 0 to 1"),
        ("bds.0", [16], "manifest.bds.0 must be an integer from 0 to 15, got 16"),
        ("bds.0", [3, 3], "manifest.bds.0 has descriptor 3 twice"),
        ("bds.0", [], 'has no descriptors for column 0, which the fifo "a0" uses'),
        ("bds.1", ..., "has no descriptors for column 1"),
        (f"{RUN}.parameters", ["n", "n"], 'parameters has "n" twice'),
        (f"{RUN}.arguments.0.direction", "both", 'must be "in", "out" or "inout"'),
        (f"{RUN}.arguments.0.direction", "out", r'do\[0\] reads the argument "x", .* "out"'),
        (f"{RUN}.arguments.1.name", "x", 'repeats the argument "x"'),
        (f"{RUN}.arguments.0.bytes", "r", 'names the symbol "r", which has no value here'),
        (f"{RUN}.arguments.0.bytes", [1, 2, 3], "must be an integer, a symbol or"),
        (f"{RUN}.arguments.0.bytes", 1 << 63, "must be an integer from"),
        (f"{RUN}.arguments.0.bytes", True, "must be an integer, a symbol or"),
        (f"{RUN}.arguments.0.bytes", ["^", 1, 2], r'bytes: unknown operator "\^"'),
        (f"{RUN}.body.0.for", "n", 'gives the name "n" again'),
        (f"{RUN}.body.0.do.0.transfer", "a9", 'names the fifo "a9", expected one of: a0, a1'),
        (f"{RUN}.body.0.do.0.argument", "z", 'names the argument "z", expected one of: x, y'),
        (f"{RUN}.body.0.do.0.outer", [[1]], r"must be pairs \[count, stride\]"),
        (f"{RUN}.body.0.do.2.start", "up", 'names the worker "up"'),
        (f"{RUN}.body.0.do.3.wait", [], "must be a list of at least one fifo"),
        (f"{RUN}.body.0.do.3", {"cut": False}, "cut must be true, got false"),
        (f"{RUN}.body.0.do.3", {"jump": 1}, "is no statement, expected one of let"),
        (f"{RUN}.body.0.do.3", {"work": 1, "cut": True}, 'has an unknown key "cut"'),
        (f"{RUN}.body.0.do.3", {"require": 1, "message": "{m}"}, r'has "\{m", expected \{name\}'),
        (f"{RUN}.body.0.do.3", 5, r"body\[0\]\.do\[3\] must be an object, got 5"),
    ],
)  # fmt: skip
def test_malformed_manifests_name_the_key_and_what_came(
    path: str, value: Any, message: str
) -> None:
    s = layered()
    with pytest.raises(ValueError, match=message):
        _native.npu_build(json.dumps(changed(path, value)), [call(s, {"n": 1, "k": 8})])


def test_text_that_is_no_manifest_is_refused() -> None:
    for text, message in [
        ("{", "manifest is not JSON"),
        ("[]", "manifest must be an object"),
        ("[" * 100_000, "nested more than 1024 deep"),
    ]:
        with pytest.raises(ValueError, match=message):
            _native.NpuStreamCache(text)
    deep: Any = 1
    for _ in range(400):
        deep = ["+", deep, 1]
    with pytest.raises(ValueError, match="nested more than 256 deep"):
        _native.NpuStreamCache(json.dumps(changed(f"{RUN}.arguments.0.bytes", deep)))


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(inner, (*path, key))


@given(st.data())
@settings(max_examples=200)
def test_damaged_manifests_are_refused_or_work(data: st.DataObject) -> None:
    s = layered()
    damaged = json.loads(json.dumps(manifest(s)))
    path = data.draw(st.sampled_from(list(leaves(damaged))))
    at = damaged
    for key in path[:-1]:
        at = at[key]
    junk = st.sampled_from([None, True, -1, 0, 7, 2**40, 2**63, 1.5, "x", "n", [], {}, ["+", 1, 2]])
    at[path[-1]] = data.draw(junk)
    try:
        runs = _native.npu_build(json.dumps(damaged), [call(s, {"n": 2, "k": 8})])
    except ValueError:
        return
    for run in runs:
        decode(run["words"])


def test_names_hold_within_their_block() -> None:
    s = sequence_of("n")
    (n,) = s.symbols()
    s.let("m", n + 1)
    s.let("m", n + 2)  # the same block: what follows has the new value
    s.start("left", symbol("m"), 0)
    with s.when(n):
        s.let("inner", n * 3)
        s.start("left", symbol("inner"), 0)
    (run,) = build(s, {"n": 5})
    writes = [op for op in decode(run["words"]).operations if isinstance(op, Write)]
    assert [op.value for op in writes[::3]] == [7, 15]
    s.start("left", symbol("inner"), 0)
    with pytest.raises(ValueError, match='names the symbol "inner", which has no value here'):
        build(s, {"n": 5})
