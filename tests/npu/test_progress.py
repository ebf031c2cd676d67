"""Loops, deadlocks and sequences: what runs to its end, and what is reported if it does not."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from small_designs import COPY, GIVE, TAKE, add_worker, empty, move, refusal, relay, steps

from ort_aie_ep.aie_kernels.flow_qkv import design as flow_qkv
from ort_aie_ep.npu.checks.check import check
from ort_aie_ep.npu.terms.design import (
    Acquire,
    Buffer,
    Core,
    Design,
    Parameters,
    Read,
    Release,
    call,
)
from ort_aie_ep.npu.terms.device import device
from ort_aie_ep.npu.terms.kernel import Array
from ort_aie_ep.npu.terms.sequence import at_most, symbol

SYMBOL = symbol("k")


# --- loops and deadlocks --------------------------------------------------------------------------
def ring_of_two(first: Callable[[Core], Any]) -> Design:
    """Two workers that send to each other."""
    design = empty()
    there = design.fifo("there", "u8", 64, design.core(0, 0), design.core(0, 1), shared=True)
    back = design.fifo("back", "u8", 64, design.core(0, 1), design.core(0, 0))
    add_worker(design, 0, 0, [back], [there], first)
    add_worker(design, 0, 1, [there], [back])
    return design


def test_a_loop_in_which_all_wait_first_is_refused() -> None:
    text = refusal(ring_of_two(move(["back"], ["there"])))
    assert "loop of fifos: " in text
    assert "there" in text
    assert "back" in text


def test_a_loop_that_a_worker_starts_is_noted() -> None:
    body = steps(Acquire("there"), Release("there"), Acquire("back"), Release("back"))
    report = check(ring_of_two(body))
    assert any("loop" in n for n in report.notes)
    assert report.proved


def two_paths(depth: int) -> Design:
    """The first worker sends three objects on `f`, then one on `g`; the second takes `g` first."""
    design = empty()
    into = design.fifo("in", "u8", 64, design.shim(0), design.core(0, 0))
    f = design.fifo("f", "u8", 64, design.core(0, 0, depth), design.core(0, 1, depth), shared=True)
    g = design.fifo("g", "u8", 64, design.core(0, 0), design.core(0, 1))
    add_worker(
        design, 0, 0, [into], [f, g],
        steps(*TAKE, *(Acquire("f"), Release("f")) * 3, Acquire("g"), Release("g")),
    )  # fmt: skip
    add_worker(
        design,
        0,
        1,
        [f, g],
        [],
        steps(Acquire("g"), Release("g"), *(Acquire("f"), Release("f")) * 3),
    )
    return design


def test_paths_that_meet_need_the_depth_of_their_orders() -> None:
    assert check(two_paths(3)).passed
    text = refusal(two_paths(2))
    assert "design, deadlock" in text
    assert "worker worker0_0 waits for 1 free object(s) of fifo f" in text
    assert "worker worker0_1 waits for 1 filled object(s) of fifo g" in text


def broadcast(depth: int) -> Design:
    """x goes to both. The second sends the first a result of two x before the first takes x."""
    design = empty()
    x = design.fifo("x", "u8", 64, design.shim(0), [design.core(0, r, depth) for r in range(2)])
    y = design.fifo("y", "u8", 64, design.core(0, 1), design.core(0, 0))
    take, give = (Acquire("x"), Release("x")), (Acquire("y"), Release("y"))
    add_worker(design, 0, 0, [x, y], [], steps(*give, *take * 4))
    add_worker(design, 0, 1, [x], [y], steps(*take * 4, *give))
    return design


def test_a_broadcast_holds_all_that_its_slowest_consumer_lets_wait() -> None:
    assert check(broadcast(4)).passed
    text = refusal(broadcast(3))
    assert "fifo x has" in text
    assert "S2MM 0 of core tile (0, 2)" in text


def test_a_part_that_stands_still_shows_beside_one_that_goes_on() -> None:
    design = two_paths(2)
    into = design.fifo("apart", "u8", 64, design.shim(3), design.core(3, 0))
    add_worker(design, 3, 0, [into], [])
    assert "deadlock" in refusal(design)


def test_fifos_that_share_a_receiving_channel_keep_the_sequences_order() -> None:
    """Two workers send to one channel of a shim, and the second is ready before its turn."""

    def shared(after_first: bool) -> Design:
        design = empty()
        ends = design.shim(0, 0)
        fifos = [
            design.fifo(f"out{r}", "u8", 64, design.core(0, r), ends, packet=r) for r in range(2)
        ]
        for row, fifo in enumerate(fifos):
            name = fifo.name
            body = steps(Parameters(), Acquire(name), Release(name))
            add_worker(design, 0, row, [], [fifo], body)
        s = design.sequence("run")
        a = s.argument("a", "out", 128)
        s.transfer("out0", a, offset=0, run=64)
        if not after_first:
            s.transfer("out1", a, offset=64, run=64)
            s.start("worker0_1")
        s.start("worker0_0")
        s.wait("out0")
        if after_first:
            s.transfer("out1", a, offset=64, run=64)
            s.start("worker0_1")
            s.wait("out1")
        return design

    notes = check(shared(True)).notes
    assert any("order" in n for n in notes)
    assert "fifo out1 can send to S2MM 0 of shim tile (0, 0)" in refusal(shared(False))


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
    report = check(counted(good))
    assert len(report.proved) == 3
    assert report.proved[0] == (
        "sequence run at n=1: every transfer completes and nothing is left over"
    )
    report = check(counted(good), {"run": [{"n": 77}]})
    assert any("n=77" in line for line in report.proved)


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
        (without("start"), "the wait for fifo out never ends"),
        (too_few, "the wait for fifo out never ends"),
        (too_far, "touches bytes 64 to 128"),
        (too_many, "remain at core tile (0, 2): lock in filled"),
        (late_output, "can never be issued: all 4 tasks queued on MM2S 0 of shim tile (0, 0)"),
        (twice_started, "worker worker0_0 is started again with no wait in between"),
    ],
)
def test_a_sequence_that_does_not_come_to_its_end_is_refused(
    fill: Callable[[Any, Any, Any], None], said: str
) -> None:
    text = refusal(counted(fill))
    assert "sequence run at n=1, progress: " in text
    assert said in text


def stated(make: Callable[[Any, Any, Any], None]) -> Callable[[Any, Any, Any], None]:
    def fill(s: Any, n: Any, a: str) -> None:
        make(s, n, a)
        good(s, n, a)

    return fill


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda s, n, a: s.transfer("w", a, offset=0, run=4), "on fifo w: no fifo has that name"),
        (lambda s, n, a: s.transfer("in", "b", offset=0, run=4), "no argument has that name"),
        (lambda s, n, a: s.transfer("in", a, offset=2, run=4), "offset 2 is not a multiple of 4"),
        (
            lambda s, n, a: s.transfer("in", a, offset=0, run=4, outer=[(2, 4), (2, 0)]),
            "stride 0 in dimension 1; only the outermost can repeat",
        ),
        (lambda s, n, a: s.start("nobody"), "it starts worker 'nobody'"),
        (lambda s, n, a: s.start("worker0_0", n, n), "2 values; its parameters are 1: count"),
        (lambda s, n, a: s.wait("in"), "it waits for fifo in, which goes into the array"),
        (lambda s, n, a: s.wait("y"), "the wait for fifo y: no fifo has that name"),
        (lambda s, n, a: s.cut(), "a cut must come right after a wait"),
        (lambda s, n, a: s.let("m", n + SYMBOL), "let m uses 'k'"),
        (lambda s, n, a: s.require(n, "no {m}"), "names unbound 'm'"),
        (lambda s, n, a: s.body.append({"jump": 1}), "is not a statement"),
        (lambda s, n, a: s.argument("a", "in", 4), "two arguments are named 'a'"),
        (lambda s, n, a: s.argument("c", "in", SYMBOL), "the size of c uses 'k'"),
    ],
)
def test_statements_are_checked_without_a_shape(
    make: Callable[[Any, Any, Any], None], said: str
) -> None:
    text = refusal(counted(stated(make)))
    assert "sequence run, statement: " in text
    assert said in text


def test_directions_of_arguments_are_kept() -> None:
    design = counted(good)
    sequence = design.sequences["run"]
    sequence.arguments[0] = dataclasses.replace(sequence.arguments[0], direction="in")
    assert "'in'" in refusal(design)
    sequence.arguments[0] = dataclasses.replace(sequence.arguments[0], direction="out")
    assert "'out'" in refusal(design)


def test_symbols_end_with_their_block() -> None:
    def fill(s: Any, n: Any, a: str) -> None:
        with s.loop("i", n) as i:
            s.let("inner", i)
        s.work(i)
        good(s, n, a)

    assert "'i'" in refusal(counted(fill))


def test_shapes_meet_the_requirements_of_a_sequence() -> None:
    def fill(s: Any, n: Any, a: str) -> None:
        s.require(at_most(6, n), "n={n} must be at least 6")
        good(s, n, a)

    assert check(counted(fill)).proved[0].startswith("sequence run at n=6:")


def test_progress_that_depends_on_data_is_not_called_proved() -> None:
    def body(core: Core) -> Iterator[Any]:
        count = yield Read("plan", 0)
        for _ in core.loop(count):
            yield from steps(*TAKE, *GIVE)(core)

    design = relay(body=body, buffers=[Buffer("plan", Array("i32", 4))])
    report = check(design)
    assert not report.proved
    assert any("worker worker0_0" in note for note in report.notes)


def test_counts_that_an_integer_kernel_makes_are_followed() -> None:
    """flow_qkv's cores ask a kernel for the number of chunks, so the check calls that kernel."""
    report = check(flow_qkv.build(device("npu2_2col")))
    assert not any("progress" in note for note in report.notes)
    assert len(report.proved) >= 3
