"""Deadlocks and sequences: what runs to its end, and what is reported if it does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from small_designs import COPY, GIVE, TAKE, add_worker, empty, move, refusal, relay, steps

from ort_aie_ep.aie_kernels.flow_qkv import design as flow_qkv
from ort_aie_ep.npu.checks.check import check
from ort_aie_ep.npu.terms.design import (
    Acquire,
    Core,
    Design,
    Parameters,
    Release,
    call,
)
from ort_aie_ep.npu.terms.device import device
from ort_aie_ep.npu.terms.sequence import at_most, symbol

SYMBOL = symbol("k")


# --- deadlocks ------------------------------------------------------------------------------------
def moving(design: Design, inwards: int) -> Design:
    """The design with a sequence that sends `inwards` objects on `in`, and takes one from `out`."""
    s = design.sequence("run")
    a = s.argument("a", "inout", 64 * inwards)
    s.transfer("in", a, offset=0, run=64 * inwards)
    s.transfer("out", a, offset=0, run=64)
    s.wait("out")
    return design


def ring_of_two(first: Callable[[Core], Any]) -> Design:
    """Two workers that send to each other."""
    design = empty()
    into = design.fifo("in", "u8", 64, design.shim(0), design.core(0, 0))
    there = design.fifo("there", "u8", 64, design.core(0, 0), design.core(0, 1), shared=True)
    back = design.fifo("back", "u8", 64, design.core(0, 1), design.core(0, 0))
    out = design.fifo("out", "u8", 64, design.core(0, 0), design.shim(0))
    add_worker(design, 0, 0, [into, back], [there, out], first)
    add_worker(design, 0, 1, [there], [back])
    return moving(design, 1)


def test_a_loop_in_which_all_wait_first_is_refused() -> None:
    text = refusal(ring_of_two(move(["in", "back"], ["there", "out"])))
    assert "sequence run, progress: deadlock:" in text
    assert "worker worker0_0 waits for lock" in text
    assert "(back filled)" in text


def test_a_loop_that_a_worker_starts_passes() -> None:
    body = steps(*TAKE, Acquire("there"), Release("there"), Acquire("back"), Release("back"), *GIVE)
    assert check(ring_of_two(body)).proved


def two_paths(depth: int) -> Design:
    """The first worker sends three objects on `f`, then one on `g`; the second takes `g` first."""
    design = empty()
    into = design.fifo("in", "u8", 64, design.shim(0), design.core(0, 0))
    f = design.fifo("f", "u8", 64, design.core(0, 0, depth), design.core(0, 1, depth), shared=True)
    g = design.fifo("g", "u8", 64, design.core(0, 0), design.core(0, 1))
    out = design.fifo("out", "u8", 64, design.core(0, 1), design.shim(0))
    give_f, give_g = (Acquire("f"), Release("f")), (Acquire("g"), Release("g"))
    add_worker(design, 0, 0, [into], [f, g], steps(*TAKE, *give_f * 3, *give_g))
    add_worker(design, 0, 1, [f, g], [out], steps(*give_g, *give_f * 3, *GIVE))
    return moving(design, 1)


def test_paths_that_meet_need_the_depth_of_their_orders() -> None:
    assert check(two_paths(3)).passed
    text = refusal(two_paths(2))
    assert "(f free), now 0" in text
    assert "the instruction stream waits for a token of S2MM 0" in text


def broadcast(depth: int) -> Design:
    """x goes to both. The second sends the first a result of two x before the first takes x."""
    design = empty()
    x = design.fifo("in", "u8", 64, design.shim(0), [design.core(0, r, depth) for r in range(2)])
    y = design.fifo("y", "u8", 64, design.core(0, 1), design.core(0, 0))
    out = design.fifo("out", "u8", 64, design.core(0, 0), design.shim(0))
    give = Acquire("y"), Release("y")
    add_worker(design, 0, 0, [x, y], [out], steps(*give, *TAKE * 4, *GIVE))
    add_worker(design, 0, 1, [x], [y], steps(*TAKE * 4, *give))
    return moving(design, 4)


def test_a_broadcast_holds_all_that_its_slowest_consumer_lets_wait() -> None:
    assert check(broadcast(4)).passed
    assert "MM2S 0 of shim tile (0, 0) has 64 bytes to send" in refusal(broadcast(3))


def test_what_the_simulator_has_no_model_of_is_noted() -> None:
    """Two workers send to one channel of a shim."""
    design = empty()
    for row in range(2):
        end = design.shim(0, 0)
        fifo = design.fifo(f"out{row}", "u8", 64, design.core(0, row), end, packet=row)
        add_worker(design, 0, row, [], [fifo])
    s = design.sequence("run")
    a = s.argument("a", "out", 128)
    for row in range(2):
        s.transfer(f"out{row}", a, offset=64 * row, run=64)
    s.wait("out0", "out1")
    report = check(design)
    assert not report.proved
    assert any("order" in note for note in report.notes)
    assert any("whether it makes progress was not checked" in note for note in report.notes)


# --- sequences ------------------------------------------------------------------------------------
def run(core: Core) -> Iterator[Any]:
    (count,) = yield Parameters()
    for _ in core.loop(count):
        source = yield Acquire("in")
        destination = yield Acquire("out")
        yield call(COPY, source, destination)
        yield Release("in")
        yield Release("out")


def counted(fill: Callable[[Any, Any, Any], None]) -> Design:
    """A relay of n objects. `fill` writes its sequence, given the sequence, n and the argument."""
    design = relay(body=run, parameters=["count"])
    s = design.sequence("run", "n")
    (n,) = s.symbols()
    fill(s, n, s.argument("a", "inout", 64 * n))
    return design


def good(s: Any, n: Any, a: str) -> None:
    s.transfer("in", a, offset=0, run=64 * n)
    s.start("worker0_0", n)
    s.transfer("out", a, offset=0, run=64 * n)
    s.wait("out")
    s.cut()


def test_a_sequence_is_run_at_small_shapes() -> None:
    assert check(counted(good)).proved == (
        "sequence run at n=1: every transfer completes and nothing is left over",
        "sequence run at n=4: every transfer completes and nothing is left over",
    )


def without(skipped: str) -> Callable[[Any, Any, Any], None]:
    def fill(s: Any, n: Any, a: str) -> None:
        good(s, n, a)
        s.body = [statement for statement in s.body if skipped not in statement]

    return fill


def late_output(s: Any, n: Any, a: str) -> None:
    s.start("worker0_0", n)
    for _ in range(8):
        s.transfer("in", a, offset=0, run=64 * n)
    s.transfer("out", a, offset=0, run=64 * n)
    s.wait("out")


def twice_started(s: Any, n: Any, a: str) -> None:
    s.transfer("in", a, offset=0, run=64 * n)
    s.start("worker0_0", n)
    good(s, n, a)


def too_far(s: Any, n: Any, a: str) -> None:
    good(s, n, a)
    s.transfer("in", a, offset=64, run=64 * n)


def too_few(s: Any, n: Any, a: str) -> None:
    s.transfer("in", a, offset=0, run=64 * n - 4)
    s.start("worker0_0", n)
    s.transfer("out", a, offset=0, run=64 * n)
    s.wait("out")


def too_many(s: Any, n: Any, a: str) -> None:
    good(s, n, a)
    s.transfer("in", a, offset=0, run=64)


@pytest.mark.parametrize(
    ("fill", "said"),
    [
        (without("start"), "the instruction stream waits for a token of S2MM 0"),
        (too_few, "worker worker0_0 waits for lock"),
        (too_far, "touches bytes up to 128 of a buffer of 64"),
        (too_many, "ends while 1 transfers are under way"),
        (late_output, "the instruction stream waits for a token of MM2S 0"),
        (twice_started, "the run left work behind"),
    ],
)
def test_a_sequence_that_does_not_come_to_its_end_is_refused(
    fill: Callable[[Any, Any, Any], None], said: str
) -> None:
    text = refusal(counted(fill))
    assert "sequence run at n=1, progress: " in text
    assert said in text


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda s, n, a: s.transfer("w", a, offset=0, run=4), 'names the fifo "w"'),
        (lambda s, n, a: s.start("worker0_0", n, n), "has 2 values, expected 1"),
        (lambda s, n, a: s.let("m", n + SYMBOL), '"k", which has no value here'),
    ],
)
def test_statements_are_read_as_the_runtime_reads_them(
    wrong: Callable[[Any, Any, Any], None], said: str
) -> None:
    def fill(s: Any, n: Any, a: str) -> None:
        wrong(s, n, a)
        good(s, n, a)

    text = refusal(counted(fill))
    assert "sequences, statement: the manifest: manifest.sequences.run.body[0]" in text
    assert said in text


def test_a_wait_is_for_what_comes_out() -> None:
    assert "waits for fifo in, which goes into the array" in refusal(
        counted(lambda s, n, a: (good(s, n, a), s.wait("in")))
    )


def test_shapes_meet_the_requirements_of_a_sequence() -> None:
    def fill(s: Any, n: Any, a: str) -> None:
        s.require(at_most(6, n), "n={n} must be at least 6")
        good(s, n, a)

    assert check(counted(fill)).proved[0].startswith("sequence run at n=6:")


def test_counts_that_an_integer_kernel_makes_are_followed() -> None:
    """flow_qkv's cores ask a kernel for the number of chunks, so the check calls that kernel."""
    report = check(flow_qkv.build(device("npu2_2col")))
    assert not any("progress" in note for note in report.notes)
    assert len(report.proved) >= 2
