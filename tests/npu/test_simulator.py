"""The simulator on designs without kernels: what descriptors, locks, queues and streams do."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import simpy
from stream_words import Words

from ort_aie_ep.npu.simulator.machine import Machine
from ort_aie_ep.npu.simulator.parts import Ddr
from ort_aie_ep.npu.terms import costs
from ort_aie_ep.npu.terms.design import Acquire, Core, Design, Layout, Parameters, Release
from ort_aie_ep.npu.terms.device import device
from ort_aie_ep.npu.terms.errors import DesignError, SimulationError, StreamError

IN, OUT = ("MM2S", 0), ("S2MM", 0)


def numbers(words: int) -> npt.NDArray[np.uint8]:
    return np.arange(1, words + 1, dtype=np.uint32).view(np.uint8)


def through_memory_tile(objects: int = 16, layout: Layout | None = None) -> Design:
    """Host -> memory tile -> host, objects of `objects` words."""
    d = Design("loop", device("npu2_1col"))
    come = d.fifo("come", "i32", objects, d.shim(0), d.mem(0))
    go = d.fifo("go", "i32", objects, d.mem(0, layout=layout), d.shim(0))
    d.forward(come, go)
    return d


def run(
    design: Design, words: Words, *buffers: npt.NDArray[np.uint8], trace: bool = False
) -> Machine:
    machine = Machine(design, trace=trace)
    machine.run(words.words(), [(f"b{i}", b) for i, b in enumerate(buffers)])
    return machine


def test_bytes_go_through_a_memory_tile() -> None:
    source, target = numbers(64), np.zeros(256, np.uint8)
    w = Words()
    w.move(0, IN, 0, 64, 0)
    w.move(0, OUT, 1, 64, 1, token=True)
    w.wait(0, OUT)
    run(through_memory_tile(), w, source, target)
    np.testing.assert_array_equal(source, target)


def test_a_descriptor_with_dimensions_transposes() -> None:
    source, target = numbers(32), np.zeros(128, np.uint8)
    w = Words()
    # 4 rows of 8 words, read by columns: D0 over rows, D1 over columns.
    w.move(0, IN, 0, 32, 0, dimensions=[(4, 8), (8, 1)])
    w.move(0, OUT, 1, 32, 1, token=True)
    w.wait(0, OUT)
    run(through_memory_tile(), w, source, target)
    expected = source.view(np.uint32).reshape(4, 8).T
    np.testing.assert_array_equal(target.view(np.uint32).reshape(8, 4), expected)


def test_repeats_of_a_task_send_the_same_bytes_again() -> None:
    source, target = numbers(16), np.zeros(192, np.uint8)
    w = Words()
    w.descriptor(0, 0, 16)
    w.patch(0, 0, 0)
    w.push(0, IN, 0, runs=3)
    w.move(0, OUT, 1, 48, 1, token=True)
    w.wait(0, OUT)
    run(through_memory_tile(), w, source, target)
    np.testing.assert_array_equal(target, np.tile(source, 3))


def test_split_and_join_keep_the_order_of_segments() -> None:
    d = Design("pair", device("npu2_1col"))
    whole = d.fifo("whole", "i32", 16, d.shim(0), d.mem(0))
    parts = [d.fifo(f"p{i}", "i32", 8, d.mem(0), d.core(0, i)) for i in range(2)]
    d.split(whole, parts)
    backs = [d.fifo(f"q{i}", "i32", 8, d.core(0, i), d.mem(0)) for i in range(2)]

    def body(core: Core):  # type: ignore[no-untyped-def]
        (count,) = yield Parameters()
        for _ in core.loop(count):
            a = yield Acquire("in")
            b = yield Acquire("out")
            b[:] = a + 100
            yield Release("in")
            yield Release("out")

    for i in range(2):
        d.worker(
            f"w{i}", d.core(0, i), body, inputs={"in": parts[i]}, outputs={"out": backs[i]},
            parameters=["count"],
        )  # fmt: skip
    joined = d.fifo("joined", "i32", 16, d.mem(0), d.shim(0))
    d.join(backs, joined)
    machine = Machine(d)
    source, target = numbers(64), np.zeros(256, np.uint8)
    w = Words()
    for plan in machine.configuration.workers.values():
        tile = plan.worker.tile
        w.write(tile.column, tile.row, plan.parameters, 4)
        w.write(tile.column, tile.row, 0x1F000 + 16 * plan.go.id, 1)
    w.move(0, IN, 0, 64, 0)
    w.move(0, OUT, 1, 64, 1, token=True)
    w.wait(0, OUT)
    machine.run(w.words(), [("in", source), ("out", target)])
    np.testing.assert_array_equal(target.view(np.uint32), source.view(np.uint32) + 100)


def test_packets_share_a_channel() -> None:
    d = Design("packets", device("npu2_1col"))
    a = d.fifo("a", "i32", 8, d.shim(0, 0), d.mem(0), packet=3)
    b = d.fifo("b", "i32", 8, d.shim(0, 0), d.mem(0), packet=5)
    d.forward(a, d.fifo("oa", "i32", 8, d.mem(0), d.shim(0, 0)))
    d.forward(b, d.fifo("ob", "i32", 8, d.mem(0), d.shim(0, 1)))
    source, first, second = numbers(16), np.zeros(32, np.uint8), np.zeros(32, np.uint8)
    w = Words()
    w.move(0, IN, 0, 8, 0, packet=5)
    w.move(0, IN, 1, 8, 0, 32, packet=3)
    w.move(0, ("S2MM", 0), 2, 8, 1, token=True)
    w.move(0, ("S2MM", 1), 3, 8, 2, token=True)
    w.wait(0, ("S2MM", 0))
    w.wait(0, ("S2MM", 1))
    run(d, w, source, first, second)
    np.testing.assert_array_equal(second, source[:32])
    np.testing.assert_array_equal(first, source[32:])


def test_an_argument_above_the_fifth_comes_with_its_base_folded_in() -> None:
    buffers = [np.zeros(64, np.uint8) for _ in range(7)]
    buffers[5][:] = numbers(16)
    w = Words()
    w.move(0, IN, 0, 16, 5)
    w.move(0, OUT, 1, 16, 6, token=True)
    w.wait(0, OUT)
    run(through_memory_tile(), w, *buffers)
    np.testing.assert_array_equal(buffers[5], buffers[6])


def deadlock(words: Words, *buffers: npt.NDArray[np.uint8]) -> str:
    with pytest.raises(SimulationError) as caught:
        run(through_memory_tile(), words, *buffers)
    return str(caught.value)


def test_a_deadlock_says_who_waits_for_what() -> None:
    w = Words()
    w.move(0, IN, 0, 64, 0)  # four objects, two buffers, and nothing takes them
    w.move(0, OUT, 1, 80, 1, token=True)  # wants one more than arrives
    w.wait(0, OUT)
    text = deadlock(w, numbers(64), np.zeros(320, np.uint8))
    assert "deadlock" in text
    assert "S2MM 0 of shim tile (0, 0)" in text


def test_a_full_buffer_that_nobody_drains_is_shown_with_its_lock() -> None:
    w = Words()
    w.move(0, IN, 0, 64, 0, token=True)
    w.wait(0, IN)
    text = deadlock(w, numbers(64), np.zeros(4, np.uint8))
    assert "MM2S 0 of shim tile (0, 0) has 128 bytes to send" in text


def test_a_fifth_task_under_way_is_dropped() -> None:
    source, target = numbers(320), np.zeros(1280, np.uint8)
    w = Words()
    for i in range(5):  # one running, three waiting, one dropped
        w.move(0, IN, i, 64, 0, 256 * i)
    w.move(0, OUT, 8, 320, 1, token=True)
    w.wait(0, OUT)
    text = deadlock(w, source, target)
    assert "MM2S 0 of shim tile (0, 0): its queue was full" in text


@pytest.mark.parametrize("chained", [False, True])
def test_a_descriptor_waits_for_its_lock(chained: bool) -> None:
    source, target = numbers(32), np.zeros(128, np.uint8)
    w = Words()
    if chained:
        w.descriptor(0, 2, 16, following=0)
        w.patch(0, 2, 0)
        w.descriptor(0, 0, 16, acquire=(3, -1))
        w.patch(0, 0, 0, 64)
    else:
        w.descriptor(0, 0, 32, acquire=(3, -1))
        w.patch(0, 0, 0)
    w.push(0, IN, 2 if chained else 0)
    w.move(0, OUT, 1, 32, 1, token=True)
    held = Words(operations=list(w.operations))
    held.wait(0, OUT)
    assert "deadlock" in deadlock(held, source, target)
    w.write(0, 0, 0x14030, 1)
    w.wait(0, OUT)
    run(through_memory_tile(), w, source, target)
    np.testing.assert_array_equal(source, target)


def test_an_acquire_of_an_exact_value_is_refused() -> None:
    w = Words()
    w.descriptor(0, 0, 16, acquire=(3, 1))
    w.patch(0, 0, 0)
    w.push(0, IN, 0)
    w.wait(0, OUT)
    with pytest.raises(SimulationError, match="lock 3"):
        run(through_memory_tile(), w, numbers(16))


def test_a_channel_is_not_reset() -> None:
    for name_it in (0xF00, 0x1F00):  # the controller's id, as FastFlowLM and mlir-aie write it
        w = Words()
        w.mask_write(0, 0x1D210, 0xF00, name_it)
        run(through_memory_tile(), w)
    w.mask_write(0, 0x1D210, 2, 2)
    with pytest.raises(StreamError, match=r"operation 1 .*0x2"):
        run(through_memory_tile(), w)


def test_a_worker_that_is_not_started_again_is_shown() -> None:
    d = Design("twice", device("npu2_1col"))
    x = d.fifo("x", "i32", 16, d.shim(0), d.core(0, 0))
    y = d.fifo("y", "i32", 16, d.core(0, 0), d.shim(0))

    def body(core: Core) -> Iterator[Any]:
        yield Acquire("x")
        yield Parameters()
        yield Release("x")
        yield Acquire("y")
        yield Release("y")

    d.worker("w", d.core(0, 0), body, inputs={"x": x}, outputs={"y": y})
    w = Words()
    w.move(0, IN, 0, 16, 0)
    w.move(0, OUT, 1, 16, 1, token=True)
    w.wait(0, OUT)
    with pytest.raises(SimulationError, match=r"worker w .*core tile \(0, 2\)"):
        run(d, w, numbers(16), np.zeros(64, np.uint8))


def test_what_a_run_leaves_behind_is_an_error() -> None:
    w = Words()
    w.move(0, IN, 0, 32, 0)
    w.move(0, OUT, 1, 16, 1, token=True)
    w.wait(0, OUT)
    text = deadlock(w, numbers(32), np.zeros(64, np.uint8))
    assert "left work behind" in text


def test_a_descriptor_in_use_is_not_rewritten() -> None:
    w = Words()
    w.move(0, IN, 0, 64, 0)
    w.move(0, IN, 0, 16, 0)
    with pytest.raises(SimulationError, match="descriptor 0 of shim tile"):
        run(through_memory_tile(), w, numbers(64), np.zeros(4, np.uint8))


def test_bytes_outside_of_the_buffers_are_refused() -> None:
    w = Words()
    w.move(0, IN, 0, 65, 0)
    with pytest.raises(SimulationError, match="outside of the run's buffers"):
        run(through_memory_tile(), w, numbers(64))


def test_a_stream_for_another_device_is_refused() -> None:
    with pytest.raises(StreamError, match="3; npu2_1col is 4"):
        run(through_memory_tile(), Words(generation=3))


def test_a_stream_for_other_rows_is_refused() -> None:
    words = Words().words()
    words[1] = 2 << 8 | 1
    with pytest.raises(StreamError, match="2 of memory tiles; npu2_1col"):
        Machine(through_memory_tile()).run(words, [])


def test_a_descriptor_that_is_not_valid_is_refused() -> None:
    w = Words()
    w.descriptor(0, 0, 16, valid=False)
    w.patch(0, 0, 0)
    w.push(0, IN, 0)
    w.wait(0, OUT)
    with pytest.raises(SimulationError, match="not marked valid"):
        run(through_memory_tile(), w, numbers(16))


def test_a_write_that_the_model_does_not_know_is_refused() -> None:
    w = Words()
    w.write(0, 2, 0x32000, 1)
    with pytest.raises(StreamError, match="0x32000 of core tile"):
        run(through_memory_tile(), w)


def test_a_channel_of_a_shim_has_its_rate() -> None:
    words = 1 << 16
    source, target = numbers(words), np.zeros(4 * words, np.uint8)
    w = Words()
    w.move(0, IN, 0, words, 0)
    w.move(0, OUT, 1, words, 1, token=True)
    w.wait(0, OUT)
    machine = Machine(through_memory_tile(1024))
    result = machine.run(w.words(), [("in", source), ("out", target)])
    least = 4 * words / costs.SHIM_CHANNEL.value
    # At most as if nothing left the memory tile before all of it was in.
    gates = 2 * costs.GATE_IDLE.value / costs.CLOCK.value
    assert least < result.seconds < 2 * least + gates


@pytest.mark.parametrize(("run", "seconds"), [(256, 4), (64, 4), (32, 8), (4, 64)])
def test_memory_moves_whole_bursts(run: int, seconds: int) -> None:
    env = simpy.Environment()
    env.run(Ddr(env, 64).transfer(256, run, 0))
    assert env.now == seconds


def test_streams_that_join_at_one_port_are_refused() -> None:
    d = Design("join", device("npu2_1col"))
    a = d.fifo("a", "i32", 8, d.shim(0, 0), d.mem(0, channel=0), packet=1)
    b = d.fifo("b", "i32", 8, d.shim(0, 1), d.mem(0, channel=0), packet=2)
    d.forward(a, d.fifo("oa", "i32", 8, d.mem(0), d.shim(0, 0)))
    d.forward(b, d.fifo("ob", "i32", 8, d.mem(0), d.shim(0, 1)))
    with pytest.raises(DesignError, match=r"S2MM 0 of mem tile \(0, 1\)"):
        Machine(d)


def test_without_simpy_the_message_says_what_to_install() -> None:
    code = "import sys; sys.modules['simpy'] = None; import ort_aie_ep.npu.simulator.machine"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "needs SimPy" in done.stderr.splitlines()[-1]
