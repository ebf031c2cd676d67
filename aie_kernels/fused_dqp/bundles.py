"""What FusedDQP's kernels ask of the core (fused_dqp.cc)."""

from __future__ import annotations

from ort_aie_ep.aie_kernels import issue_api as api
from ort_aie_ep.aie_kernels.issue import UNPACK, UNPACK_HALF, Body, Value, once


def _codes(body: Body) -> list[Value]:
    """128 codes as bfloat16: two unpacks of each half, and an or."""
    (nibbles,) = api.load(body)
    registers = []
    for _ in range(2):
        wide = body.add(UNPACK, body.add(UNPACK_HALF, nibbles))
        registers += [api.move(body, wide), api.move(body, wide)]
    return registers


def _fold(body: Body, sums: list[Value]) -> Value:
    """Two sums of 64 lanes to 16."""
    both = api.add(body, *sums)
    parts = [api.add(body, both, *api.to_sums(body, [both]), lanes=16) for _ in range(2)]
    return api.add(body, *parts, lanes=16)


def _group(body: Body) -> None:
    """32 in-features of 32 out-features."""
    (x,) = api.load(body)
    low: list[Value | None] = [None, None]
    high: list[Value | None] = [None, None]
    for _ in range(4):
        top, bottom = _codes(body), _codes(body)
        for quad in range(2):
            spread = [api.move(body, api.broadcast(body, x), api.broadcast(body, x)) for _ in "ab"]
            low[quad] = api.multiply(body, *top[2 * quad :][:2], *spread, onto=low[quad])
            high[quad] = api.multiply(body, *bottom[2 * quad :][:2], *spread, onto=high[quad])
    halves = [_fold(body, [s for s in sums if s is not None]) for sums in (low, high)]
    sum_high, sum_low = api.broadcast(body, x), api.broadcast(body, x)
    dot: api.Sums = halves
    for limb in (sum_high, sum_low):
        dot = api.multiply(body, limb, lanes=32, onto=dot)
    assert isinstance(dot, Value)
    dot_high, dot_low = api.limbs(body, [dot], 32)
    scale, minimum = api.load(body), api.load(body)
    total: Value | None = None
    for factor, dots in ((scale, (*dot_high, *dot_low)), (minimum, (sum_high, sum_low))):
        for operand in dots:
            total = api.multiply(body, *factor, operand, lanes=32, onto=total)


def block() -> float:
    """A call of dqp_block: eight groups, whose loop is too long to overlap."""
    return 8 * once(_group)
