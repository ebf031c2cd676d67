"""What FlowKV's kernels ask of the core (flow_kv.cc), loop by loop."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial

from ort_aie_ep.aie_kernels import issue_api as api
from ort_aie_ep.aie_kernels.issue import PRODUCT_32, Body, Carried, Value, carrying, loop, once

CHUNK = 4096
_HEADS = 8  # whose scores are kept at a time


# --- products -------------------------------------------------------------------------------------
def rows(body: Body, sums: Carried) -> Carried:
    """8 rows of two blocks a strip, times 8 factors of each of two heads.

    A product of 64 lanes reads pairs of registers, so a factor of both halves is there twice.
    """
    strips = len(sums) // 2
    totals = list(sums)
    eights = [api.move(body, *api.load(body)) for _ in range(2)]
    for _ in range(2):
        factors = []
        for eight in eights:
            half = api.move(body, eight)
            factors.append((half, api.move(body, half)))
        for strip in range(strips):
            rows = api.load(body, 2)
            for head, factor in enumerate(factors):
                at = head * strips + strip
                totals[at] = api.multiply(body, *rows, *factor, onto=totals[at])
    return totals


def _fold(body: Body, strips: Sequence[Value]) -> Value:
    """Sums over the rows of two strips. Quarters of a sum are registers."""
    halves = [api.move(body, api.add(body, strip, lanes=16)) for strip in strips for _ in range(2)]
    (total,) = api.fold(body, halves[:2], halves[2:], floats=True, keep=False)
    return total


# --- scores ---------------------------------------------------------------------------------------
def _transpose(body: Body) -> None:
    api.store(body, api.transpose_8x8(body, api.load(body, 2)))


def map_scores(body: Body) -> None:
    """32 scores times the scale, in limbs."""
    x = api.limbs(body, api.load_sums(body, 32), 32)
    api.store(body, api.product_of_limbs(body, x, None, 32), 2)


def _largest(body: Body, largest: Carried) -> Carried:
    """The maxima so far, with 32 scores of each of four pairs."""
    return [
        api.move(body, *api.narrow(body, api.load_sums(body, 32), 32), so_far) for so_far in largest
    ]


def _maxima(body: Body) -> None:
    """Maxima of 8 heads, as integers, and each 16 times."""
    pairs = [api.load(body) for _ in range(4)]
    largest = api.fold_heads(body, pairs, floats=False)
    known = api.narrow(body, api.load_sums(body, 32), 32)
    largest = api.each(body, largest, known)
    m = api.nearest_integer(body, api.widen(body, largest), 32)
    registers = api.from_sums(body, m, 32)
    api.store(body, registers[:1])
    api.store(body, [api.broadcast(body, registers[0]) for _ in range(_HEADS)])


def begin_exponential(body: Body) -> None:
    """32 exponentials up to the first step of the polynomial."""
    differences = api.add_all(body, api.load_sums(body, 32), api.load_sums(body, 32), lanes=32)
    api.store(body, api.begin_exp2(body, differences, 32))


def end_exponential(body: Body) -> None:
    """The rest of 32 exponentials."""
    fraction, total = ((api.load(body), api.load(body)) for _ in range(2))
    api.store(body, api.end_exp2(body, fraction, total, api.load(body), 32))


def _sums(body: Body, sums: Carried) -> Carried:
    """The sums so far, with 32 probabilities of each of four pairs."""
    return [body.add(PRODUCT_32, sums=[*api.load_widened(body, 32), so_far]) for so_far in sums]


def _sums_of_heads(body: Body) -> None:
    pairs = [api.from_sums(body, api.load_sums(body, 32), 32) for _ in range(4)]
    api.store(body, api.fold_heads(body, pairs, floats=True)[:1])


def _correction(body: Body) -> None:
    """C and l of all heads."""
    m_left, m = api.load_sums(body, 32), api.load_sums(body, 32)
    moved = api.add_all(body, api.add_all(body, m_left, m, lanes=32), lanes=32)
    c = api.powers_of_two(body, moved, 32)
    left = api.scale_exactly(body, api.load_sums(body, 32), 32, c[0])
    api.store(body, api.add_all(body, left, api.load_sums(body, 32), lanes=32), 2)
    api.store(body, api.widen(body, c), 2)


def _keys(body: Body, strips: int) -> None:
    for _ in range(strips):
        ends = [api.load_sums(body)[0] for _ in range(2)]
        api.store(body, [_fold(body, ends)], 2)


_FOLDS = {strips: partial(_keys, strips=strips) for strips in (1, 2)}


def products(head_dim: int) -> float:
    """Of two heads, with the keys of a chunk."""
    steps = CHUNK // head_dim // 16
    strips = min(2, steps)
    trip = carrying(head_dim / 8, 2 * strips, rows) + once(_FOLDS[strips])
    return steps / strips * trip


def _vectors(group: int, head_dim: int) -> list[int]:
    """Of scores, for up to 8 heads at a time."""
    steps = CHUNK // head_dim // 16
    return [(min(_HEADS, group - first) + 1) // 2 * steps for first in range(0, group, _HEADS)]


@cache
def exponentials(group: int, head_dim: int) -> float:
    """F of a chunk and its sums."""
    sums = carrying(CHUNK // head_dim // 16, 4, _sums) + once(_sums_of_heads)
    return sum(
        loop(vectors, begin_exponential) + loop(vectors, end_exponential) + sums
        for vectors in _vectors(group, head_dim)
    )


@cache
def scores(group: int, head_dim: int) -> float:
    """A call of flow_kv_scores without a softcap, all of whose keys count."""
    maxima = carrying(CHUNK // head_dim // 16, 4, _largest) + once(_maxima)
    return (
        loop(CHUNK / 64, _transpose)
        + (group + 1) // 2 * products(head_dim)
        + sum(loop(vectors, map_scores) + maxima for vectors in _vectors(group, head_dim))
        + exponentials(group, head_dim)
        + once(_correction)
    )


# --- values ---------------------------------------------------------------------------------------
def _rescale(body: Body) -> None:
    api.store(body, api.scale_exactly(body, api.load_sums(body, 32), 32, None), 2)


def _values(body: Body, blocks: int, parts: int) -> None:
    """32 dimensions of two heads, `parts` times, with all blocks of keys."""
    for _ in range(parts):
        sums: Carried = (None,) * 4
        for _ in range(blocks):
            sums = rows(body, sums)
        for head in range(2):
            strips = [total for total in sums[2 * head : 2 * head + 2] if total is not None]
            y = api.add(body, *api.load_sums(body, 32), _fold(body, strips), lanes=32)
            api.store(body, [y], 2)


_VALUES = {
    blocks: partial(_values, blocks=blocks, parts=2 if blocks == 2 else 1) for blocks in (2, 4, 8)
}


@cache
def values(group: int, head_dim: int) -> float:
    """A call of flow_kv_values; a quarter of the calls rescale, as early chunks do."""
    blocks = CHUNK // head_dim // 8
    dims = 64 if blocks == 2 else 32
    rescaled = group * loop(head_dim / 32, _rescale) / 4
    return rescaled + (group + 1) // 2 * loop(head_dim / dims, _VALUES[blocks])
