"""What FlowKV's kernels ask of the core (flow_kv.cc), loop by loop."""

from __future__ import annotations

from functools import cache, partial

from ort_aie_ep.aie_kernels import issue_api as api
from ort_aie_ep.aie_kernels.issue import Body, Carried, Value, carrying, loop, once

CHUNK = 4096


# --- scores ---------------------------------------------------------------------------------------
def _products(body: Body, sums: Carried) -> Carried:
    """8 dimensions of two heads with 16 keys: four products of 64 lanes."""
    keys = [api.load(body, 2) for _ in range(2)]
    queries = [api.move(body, *api.load(body)) for _ in range(2)]
    pairs = [(key, query) for query in queries for key in keys]
    return [
        api.multiply(body, *key, query, onto=total)
        for (key, query), total in zip(pairs, sums, strict=True)
    ]


def _fold_products(body: Body) -> None:
    sums = [api.load_sums(body) for _ in range(4)]
    api.store(body, api.fold_blocks(body, sums, floats=True), 2)


def map_scores(body: Body) -> None:
    """32 scores times the scale, in limbs."""
    x = api.limbs(body, api.load_sums(body, 32), 32)
    api.store(body, api.product_of_limbs(body, x, None, 32), 2)


def _masked(body: Body) -> None:
    """Keys that count, and the maximum of 32 scores."""
    scores = api.each(body, api.load(body, 2))
    api.store(body, scores)
    api.move(body, *api.narrow(body, api.to_sums(body, scores), 32))


def _maximum(body: Body) -> None:
    """The maximum of two heads, as an integer, and what keeps it."""
    (largest,) = api.load(body)
    tops = [api.reduce(body, largest, 16) for _ in range(2)]
    both = api.move(body, *(api.broadcast(body, top) for top in tops))
    m = api.nearest_integer(body, api.widen(body, [both]), 32)
    for register in api.from_sums(body, m, 32):
        api.store(body, [api.lane(body, register)])


def _probabilities(body: Body, lanes: int) -> None:
    differences = api.add_all(body, api.load_sums(body, lanes), lanes=lanes)
    for part in api.exp2(body, differences, lanes, fine=True):
        api.add_all(body, api.widen(body, [part]), lanes=32)
        api.store(body, [part, part])


def _probabilities_of_64(body: Body) -> None:
    _probabilities(body, 64)


def _probabilities_of_32(body: Body) -> None:
    _probabilities(body, 32)


def _sum_of_lanes(body: Body) -> None:
    """fp32 sums of 16 lanes, of two heads: four halvings."""
    for _ in range(2):
        total: Value = api.load_sums(body, 16)[0]
        for _ in range(4):
            total = api.add(body, total, *api.to_sums(body, [api.move(body, total)]), lanes=16)
        api.store(body, [api.lane(body, api.move(body, total))])


def _correction(body: Body) -> None:
    """C and l of all heads."""
    m_left, m = api.load_sums(body, 32), api.load_sums(body, 32)
    moved = api.add_all(body, api.add_all(body, m_left, m, lanes=32), lanes=32)
    c = api.powers_of_two(body, moved, 32)
    left = api.scale_exactly(body, api.load_sums(body, 32), 32, c[0])
    api.store(body, api.add_all(body, left, api.load_sums(body, 32), lanes=32), 2)
    api.store(body, api.widen(body, c), 2)


@cache
def scores(group: int, head_dim: int) -> float:
    """A call of flow_kv_scores without a softcap."""
    pairs = (group + 1) // 2
    steps = CHUNK // head_dim // 16
    products = steps * (carrying(head_dim / 8, 4, _products) + once(_fold_products))
    lanes, trips = (_probabilities_of_32, 1) if steps == 1 else (_probabilities_of_64, steps / 2)
    softmax = (
        loop(steps, map_scores)
        + loop(steps, _masked)
        + once(_maximum)
        + loop(trips, lanes)
        + once(_sum_of_lanes)
    )
    return pairs * (products + softmax) + once(_correction)


# --- values ---------------------------------------------------------------------------------------
def _rescale(body: Body) -> None:
    api.store(body, api.scale_exactly(body, api.load_sums(body, 32), 32, None), 2)


def _values(body: Body, sums: Carried) -> Carried:
    """16 keys and 32 dimensions of the heads whose sums are kept.

    Per 4 keys, halves of four blocks are put side by side: two interleavings of four registers.
    """
    totals = list(sums)
    for _ in range(4):
        halves = [api.load(body)[0] for _ in range(4)]
        left = api.zip_or_unzip(body, *halves[:2])
        right = api.zip_or_unzip(body, *halves[2:])
        for pair in zip(left, right, strict=True):
            rows = api.zip_or_unzip(body, *pair)
            for head in range(len(totals)):
                (weights,) = api.load(body)
                for row in rows:
                    totals[head] = api.multiply(
                        body, row, api.broadcast(body, weights), lanes=32, onto=totals[head]
                    )
    return totals


def _y(body: Body, heads: int) -> None:
    for _ in range(heads):
        api.store(body, api.load_sums(body, 32))


def _heads(heads: int, head_dim: int) -> float:
    """Heads together, all keys of a chunk."""
    trip = carrying(CHUNK / head_dim / 16, heads, _values) + once(partial(_y, heads=heads))
    return head_dim / 32 * trip


@cache
def values(group: int, head_dim: int) -> float:
    """A call of flow_kv_values; a quarter of the calls rescale, as early chunks do."""
    together = [4] * (group // 4) + [2] * (group % 4 // 2) + [1] * (group % 2)
    rescaled = group * loop(head_dim / 32, _rescale) / 4
    return rescaled + sum(_heads(heads, head_dim) for heads in together)
