"""Bodies of workers, run without data: what is refused in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from small_designs import COPY, GIVE, TAKE, refusal, relay, steps

from ort_aie_ep.npu.checks.check import check
from ort_aie_ep.npu.terms.design import Acquire, Buffer, Call, Core, Parameters, Read, Release, call
from ort_aie_ep.npu.terms.kernel import Array, Kernel


def scaled(arguments: tuple[Any, ...]) -> Kernel:
    return Kernel("scaled", "scaled.cc", arguments, lambda arch, scalars: 1.0)


WIDE = scaled((Array("u8", 68), int))
BF16 = scaled((Array("bf16", 32), int))
FINE = scaled((Array("u8", 64), int))


def calling(*arguments: Any, kernel: Kernel = FINE) -> Callable[[Core], Iterator[Any]]:
    """A body that calls with `arguments`; "in" stands for the object of port in."""

    def body(core: Core) -> Iterator[Any]:
        given = {"in": (yield Acquire("in")), "out": (yield Acquire("out"))}
        for name in ("spare",):
            given[name] = core.buffer(name)
        yield Call(kernel, tuple(given.get(a, a) if isinstance(a, str) else a for a in arguments))
        yield Release("in")
        yield Release("out")

    return body


@pytest.mark.parametrize(
    ("body", "kernel", "said"),
    [
        (calling("in", 3), FINE, ""),
        (calling("spare", -5), FINE, ""),
        (calling("in", 3, kernel=WIDE), WIDE, "expected 68 u8, but an object of port in has 64 u8"),
        (
            calling("in", 3, kernel=BF16),
            BF16,
            "expected 32 bf16, but an object of port in",
        ),
        (calling("in"), FINE, "kernel scaled takes 2 arguments, got 1"),
        (calling("in", "out"), FINE, "argument 1: expected an integer, got an object of port out"),
        (calling(4, 4), FINE, "argument 0: expected 64 u8, got int"),
        (calling("in", 1.5), FINE, "argument 1: expected an integer, got float"),
        (calling("in", 2**31), FINE, "does not fit an int32"),
        (calling("in", 3), COPY, "calls scaled, which is not among the worker's kernels"),
    ],
)
def test_calls_are_held_to_the_kernels_signature(
    body: Callable[[Core], Any], kernel: Kernel, said: str
) -> None:
    design = relay(body=body, kernels=[kernel], buffers=[Buffer("spare", Array("u8", 64))])
    if not said:
        assert check(design).passed
    else:
        text = refusal(design)
        assert "worker worker0_0 at core tile (0, 2), body: " in text
        assert said in text


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (steps(*TAKE, Acquire("out")), "ends while it holds 1 objects of port out"),
        (steps(*TAKE, *GIVE, Release("in")), "Release('in', 1) while 0 are held"),
        (steps(*TAKE), "never acquires port out"),
        (steps(*TAKE, *GIVE, Acquire("w")), "no port is named 'w'; the ports are: in, out"),
        (steps(*TAKE, *GIVE, Acquire("in", 0)), "the count must be at least 1"),
        (steps(*TAKE, *GIVE, "stop"), "yields 'stop', which is not a step"),
        (steps(*TAKE, *GIVE, Read("n", 0)), "no buffer is named 'n'"),
    ],
)
def test_steps_that_cannot_be_are_refused(body: Callable[[Core], Any], said: str) -> None:
    assert said in refusal(relay(body=body))


def test_an_object_is_not_used_after_its_release() -> None:
    def body(core: Core) -> Iterator[Any]:
        taken = yield Acquire("in")
        given = yield Acquire("out")
        yield Release("in")
        yield call(COPY, taken, given)
        yield Release("out")

    assert "port in" in refusal(relay(body=body))


def test_a_body_does_not_branch_on_run_time_values() -> None:
    def body(core: Core) -> Iterator[Any]:
        (count,) = yield Parameters()
        if count > 3:
            yield Acquire("in")

    assert "run-time" in refusal(relay(body=body, parameters=["n"]))


def test_a_body_that_raises_is_refused_with_its_error() -> None:
    def body(core: Core) -> Iterator[Any]:
        _, _ = yield Parameters()
        yield Acquire("in")

    assert "ValueError" in refusal(relay(body=body, parameters=["n"]))


def test_parameters_that_are_never_taken_are_refused() -> None:
    assert "parameters" in refusal(relay(parameters=["n"]))
