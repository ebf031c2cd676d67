"""For tests of streams: a manifest written by hand, the effect of words, and of a sequence."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ort_aie_ep import _npu
from ort_aie_ep.npu.packages import package
from ort_aie_ep.npu.simulator.registers import (
    QueuePush,
    ShimDescriptor,
    core_lock_of,
    core_memory_of,
    shim_control_of,
    shim_descriptor_of,
    shim_queue_of,
)
from ort_aie_ep.npu.simulator.txn import (
    AddressPatch,
    BlockWrite,
    InstructionStream,
    MaskWrite,
    Operation,
    Wait,
    Write,
    decode,
)
from ort_aie_ep.npu.terms.sequence import Sequence, Value, at_most, evaluate, less

Channel = tuple[int, str, int]

#: Two columns: three fifos with their own channels, and two that share one by packet id.
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
#: So small that only bytes and work count, at 4 bytes per cycle.
COSTS = dict.fromkeys(package.LIMITS, 1e-9) | {"stream": 4}


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
        "ddr_write_bytes_per_second": 40_000_000_000,
        "costs": COSTS,
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
    """An invocation; arguments are at byte 0 of the run's arguments, in order, unless given."""
    views = {a.name: (i, 0) for i, a in enumerate(sequence.arguments)} | arguments
    return {"sequence": sequence.name, "parameters": dict(parameters or {}), "arguments": views}


def build(sequence: Sequence, parameters: Mapping[str, int] | None = None, **changes: Any) -> Any:
    text = json.dumps(manifest(sequence, **changes))
    return _npu.build(text, [call(sequence, parameters)])


def sequence_of(*parameters: str, bytes: Value = 1 << 20) -> Sequence:
    """A sequence with an argument to read, "x", and one to write, "y"."""
    s = Sequence("run", parameters)
    s.argument("x", "in", bytes)
    s.argument("y", "out", bytes)
    return s


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


def layered() -> Sequence:
    """n sets rounds and a wrap; k sets lengths, addresses, the statements that run, and
    parameters."""
    s = sequence_of("n", "k")
    n, k = s.symbols()
    with s.loop("r", n) as r:
        s.transfer("a0", "x", offset=r * k * 4, run=k * 4)
        s.transfer("y0", "y", offset=k * 8, run=16, outer=[(n + 1, 64)])
        s.start("left", k, r - n)
        s.wait("a0", "y0")
        with s.when(less(k, 20)):
            s.start("right")
        with s.when(at_most(20, k)):
            s.start("right")
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
    """Runs through a stream and checks the rules of queues, descriptors and tokens.

    `vouched` are the waits after which the sequence vouches for every earlier task. The others
    prove only the tasks of their own channel.
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

    def run(self, stream: InstructionStream, vouched: set[int] = frozenset()) -> Device:  # type: ignore[assignment]
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
                assert (op.value, op.mask) == (15 << 8, 0x1F00)
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
        # If the counter wrapped after a different number of runs, the next push would start
        # elsewhere.
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
        """Byte offsets by (channel, packet id, run argument), in the order in which they move."""
        parts: dict[tuple[Channel, int | None, int], list[np.ndarray]] = defaultdict(list)
        for task in self.pushed:
            packet = task.descriptor.packet_id if task.descriptor.packet_enabled else None
            parts[task.channel, packet, task.patch.argument].append(task.words())
        return {key: np.concatenate(words) for key, words in parts.items()}


def observe(runs: list[dict[str, Any]]) -> Device:
    """What the only run does; a token must prove every completion."""
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
