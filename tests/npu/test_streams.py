"""Sequences as instruction streams: the words do what the sequence says, and no more."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stream_checks import (
    FIFOS,
    Device,
    build,
    call,
    check_same,
    manifest,
    observe,
    rounds,
    say,
    sequence_of,
)
from time_only import TimeOnly

from ort_aie_ep import _npu
from ort_aie_ep.aie_kernels.build import find_designs, make_design
from ort_aie_ep.npu.checks.progress import small_shapes
from ort_aie_ep.npu.packages import package
from ort_aie_ep.npu.simulator.txn import AddressPatch, Wait, decode
from ort_aie_ep.npu.terms import costs
from ort_aie_ep.npu.terms.arguments import together
from ort_aie_ep.npu.terms.device import device
from ort_aie_ep.npu.terms.errors import DesignError
from ort_aie_ep.npu.terms.sequence import (
    Expr,
    Sequence,
    at_most,
    ceil_div,
    equal,
    less,
    maximum,
    minimum,
)


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
        """A value from 0 to limit - 1 (remainders are never negative)."""
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
    runs = _npu.build(text, [invocation])
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


def test_what_has_arrived_frees_its_descriptors() -> None:
    s = sequence_of()
    for i in range(2):
        s.transfer("y0", "y", offset=64 * i, run=64)
    s.arrive("y0")
    for i in range(2):
        s.transfer("a0", "x", offset=64 * i, run=64)
    s.wait("a0")
    device = observe(build(s, bds={"0": [5, 9], "1": [0]}))
    assert [task.bd for task in device.pushed] == [5, 9, 5, 9]
    assert device.waits == [(0, "S2MM", 0), (0, "MM2S", 0)]


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
    with pytest.raises(ValueError, match="1 transfers"):
        build(s)
    s.cut()
    with pytest.raises(ValueError, match=r"body\[1\]: .*1 transfers"):
        build(s)


def test_a_wait_for_fifos_that_moved_nothing_proves_nothing() -> None:
    s = sequence_of("n")
    (n,) = s.symbols()
    s.transfer("a0", "x", offset=0, run=64)
    s.transfer("y0", "y", offset=0, run=n)
    s.wait("y0")
    with pytest.raises(ValueError, match="1 transfers"):
        build(s, {"n": 0})
    assert len(build(s, {"n": 4})) == 1
    # Transfers before the last wait do not count either.
    s.transfer("a0", "x", offset=0, run=64)
    s.wait("y0")
    with pytest.raises(ValueError, match=r"body\[4\]: .*fifos"):
        build(s, {"n": 4})


# --- prediction and runs --------------------------------------------------------------------------


def test_prediction_is_the_slowest_of_channel_work_and_memory() -> None:
    def seconds(cycles: int, ddr: int, write: int = 10**12) -> float:
        s = sequence_of()
        s.transfer("a0", "x", offset=0, run=4000)
        s.transfer("a1", "x", offset=0, run=2000, outer=[(2, 0)])
        s.transfer("y0", "y", offset=0, run=8000)
        s.work(cycles)
        s.wait("a0", "a1", "y0")
        (run,) = build(s, ddr_bytes_per_second=ddr, ddr_write_bytes_per_second=write)
        return run["predicted_seconds"]

    # At 1 GHz: 8000 bytes at 4 bytes a cycle; then work; then 4000 + 4000 bytes read.
    assert math.isclose(seconds(100, 10**12), 100e-6 + 2e-6)
    assert math.isclose(seconds(5000, 10**12), 100e-6 + 5e-6)
    assert math.isclose(seconds(100, 10**9), 100e-6 + 8e-6)
    # 8000 bytes written.
    assert math.isclose(seconds(100, 10**12, 5 * 10**8), 100e-6 + 16e-6)


LONG = {"gemm", "gemm_bfp16", "fused_layer"}
# Seconds after which the driver's watchdog may end a run.
WATCHDOG = 4.0


@pytest.mark.parametrize("name", [pytest.param("npu1", marks=pytest.mark.in_turn), "npu2"])
@pytest.mark.parametrize(
    "design",
    [pytest.param(d, marks=pytest.mark.in_turn if d in LONG else []) for d in find_designs()],
)
def test_no_run_takes_so_much_longer_than_predicted_that_it_is_ended(
    name: str, design: str
) -> None:
    """Runs are divided so that none is predicted to take more than the budget. So a run ends in
    time if it takes no more than the watchdog's share of that. The prediction leaves out the first
    objects on their way through memory tiles, and results after the work."""
    try:
        made = make_design(design, device(name))
    except DesignError:
        pytest.skip(f"{design} is not for {name}")
    own = package.predicted(package.manifest(made), made.device)
    text, session = json.dumps(own), TimeOnly(made)
    for title, sequence in made.sequences.items():
        for shape in small_shapes(sequence):
            views = together(sequence.argument_bytes(shape))
            plan = {"sequence": title, "parameters": shape, "arguments": views}
            runs = _npu.build(text, [plan])
            predicted = sum(run["predicted_seconds"] - 100e-6 for run in runs)
            results = session.time(title, shape)
            simulated = sum(result.seconds for result in results)
            assert simulated < predicted * WATCHDOG / costs.WATCHDOG_BUDGET.value, (title, shape)


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
        # Each run is complete: it names the controller of the channel with tokens.
        assert device.named == {(0, "S2MM", 0)}
        starts += [task.patch.plus for task in device.pushed if task.channel[1] == "MM2S"]
    assert starts == [64 * r for r in range(10)]


def test_a_stream_longer_than_any_that_has_run_is_divided() -> None:
    s = rounds()
    runs = build(s, {"rounds": 9000, "cycles": 1})
    lengths = [len(run["words"]) for run in runs]
    # A round has 82 words: two tasks of 12 + 12 + 6, two parameters and a lock of 6, a wait of 4.
    # A run's first round names its token's channel, in 7 words.
    rounds_of = [(length - 4 - 7) / 82 for length in lengths]
    assert sum(rounds_of) == 9000
    assert rounds_of[:-1] == [(166_210 - 4 - 7) // 82] * (len(runs) - 1)


def test_a_stretch_that_cannot_be_divided_is_refused() -> None:
    with pytest.raises(ValueError, match=r"0\.51 s") as error:
        build(rounds(), {"rounds": 2, "cycles": 510_000_000})
    assert 'sequence "run" (cycles=510000000, rounds=2)' in str(error.value)


def test_invocations_of_a_plan_share_a_run() -> None:
    s = rounds()
    plan = [call(s, {"rounds": n, "cycles": 1000}, x=(n, 0)) for n in (1, 2, 3)]
    (run,) = _npu.build(json.dumps(manifest(s)), plan)
    assert math.isclose(run["predicted_seconds"], 100e-6 + 6e-6)
    patches = [op for op in decode(run["words"]).operations if isinstance(op, AddressPatch)]
    assert [op.argument for op in patches[::2]] == [1, 2, 2, 3, 3, 3]
    assert {source.split()[0] for source in run["sources"]} == {"[0]", "[1]", "[2]"}


def test_a_plan_of_more_buffers_than_a_run_has_is_divided() -> None:
    s = rounds()
    text = json.dumps(manifest(s))
    shape = {"rounds": 2, "cycles": 1000}

    def plan(places: list[int]) -> list[dict[str, Any]]:
        views = [(place, 256 * i) for i, place in enumerate(places)]
        return [call(s, shape, x=view, y=view) for view in views]

    # With up to five buffers, a run has all of them, used or not. With more, each run has those
    # that it touches, in the order in which it touches them.
    (run,) = _npu.build(text, plan([4, 2]))
    assert run["buffers"] == [0, 1, 2, 3, 4]
    first, second = _npu.build(text, plan([8, 0, 1, 8, 2, 3, 4, 0, 5]))
    assert first["buffers"] == [8, 0, 1, 2, 3]
    assert second["buffers"] == [4, 0, 5]
    for run, places in ((first, [0, 1, 2, 0, 3, 4]), (second, [0, 1, 2])):
        patches = [op for op in decode(run["words"]).operations if isinstance(op, AddressPatch)]
        assert [op.argument for op in patches[::4]] == places
    assert [op.plus for op in patches[::4]] == [256 * i for i in (6, 7, 8)]
    assert {source.split()[0] for source in second["sources"]} == {"[6]", "[7]", "[8]"}


def test_a_stretch_of_more_buffers_than_a_run_has_is_refused() -> None:
    s = sequence_of()
    names = [f"b{i}" for i in range(6)]
    for name in names:
        s.transfer("a0", s.argument(name, "in", 64), offset=0, run=64)
    s.wait("a0")
    views = {name: (i, 0) for i, name in enumerate(["x", "y", *names])}
    with pytest.raises(ValueError, match="5 buffers"):
        _npu.build(json.dumps(manifest(s)), [call(s, {}, **views)])


def test_a_plan_that_does_nothing_has_no_runs() -> None:
    assert build(rounds(), {"rounds": 0, "cycles": 0}) == []
