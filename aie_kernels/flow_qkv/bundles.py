"""What FlowQKV's kernels ask of the core (flow_qkv.cc), loop by loop."""

from __future__ import annotations

from functools import cache, partial

from ort_aie_ep.aie_kernels import issue_api as api
from ort_aie_ep.aie_kernels.flow_kv.bundles import map_scores
from ort_aie_ep.aie_kernels.issue import Body, Carried, Value, carrying, loop, once

CHUNK = 2048


# --- scores ---------------------------------------------------------------------------------------
def _products(body: Body, sums: Carried) -> Carried:
    """8 dimensions of 8 keys with 32 queries: four tiles, whose sums are kept."""
    keys = api.tile_operand(body, api.load(body, 2))
    return [
        api.multiply_tiles(body, keys, api.tile_operand_transposed(body, api.load(body, 2)), total)
        for total in sums
    ]


def _store_products(body: Body) -> None:
    for _ in range(4):
        api.store(body, api.load_sums(body), 4)


def _maxima(body: Body) -> None:
    """The maxima of four tiles so far, in bfloat16."""
    for _ in range(4):
        api.each(body, api.narrow(body, api.load_sums(body)), api.load(body, 2))


def _maximum(body: Body) -> None:
    """Over the keys of four tiles; the integer, and C."""
    blocks = [api.load(body, 2) for _ in range(4)]
    (largest,) = api.fold_blocks(body, blocks)
    m_left = api.load_sums(body, 32)
    (most,) = api.each(body, [largest], api.narrow(body, m_left, 32))
    m = api.nearest_integer(body, api.widen(body, [most]), 32)
    moved = api.add_all(body, api.add_all(body, m_left, m, lanes=32), lanes=32)
    c = api.powers_of_two(body, moved, 32)
    api.store(body, m, 2)
    api.store(body, c)


def _weights(body: Body, sums: Carried) -> Carried:
    """F of a tile: the coarse exponential, transposed, added up by a product with ones."""
    (total,) = sums
    differences = api.add_all(body, api.load_sums(body), lanes=64)
    weights = api.transpose_8x8(body, api.exp2_coarse(body, differences, 64))
    api.store(body, weights)
    return [api.multiply_by_ones(body, api.tile_operand(body, weights), total)]


def _sums(body: Body) -> None:
    blocks = [api.load_sums(body) for _ in range(4)]
    registers = [api.from_sums(body, block, 64) for block in blocks]
    firsts = [[api.move(body, *r[:2]), api.move(body, *r[2:])] for r in registers]
    pairs = [[api.move(body, *firsts[i]), api.move(body, *firsts[i + 1])] for i in (0, 2)]
    sums = api.to_sums(body, [api.move(body, *pair) for pair in pairs])
    left = api.scale_exactly(body, api.load_sums(body, 32), 32, None)
    api.store(body, api.add_all(body, left, sums, lanes=32), 2)
    for _ in range(3):
        api.store(body, api.load_sums(body, 32))


@cache
def scores(head_dim: int, rows: int) -> float:
    """A call of flow_qkv_scores that no mask concerns, without a softcap."""
    blocks = CHUNK // head_dim // 8
    quad = (
        blocks * (carrying(head_dim / 8, 4, _products) + once(_store_products))
        + loop(8 * blocks, map_scores)
        + loop(blocks, _maxima)
        + once(_maximum)
        + carrying(4 * blocks, 1, _weights)
        + once(_sums)
    )
    return (rows + 31) // 32 * quad


# --- values ---------------------------------------------------------------------------------------
def _rescale(body: Body) -> None:
    api.store(body, api.scale_exactly(body, api.load_sums(body), 64, None), 4)


def _values(body: Body, blocks: int) -> None:
    """Four tiles of Y, with each block of 8 keys."""
    sums: list[api.Sums] = [api.load_sums(body) for _ in range(4)]
    for _ in range(blocks):
        weights = api.tile_operand(body, api.load(body, 2))
        for i in range(4):
            values = api.tile_operand_transposed(body, api.load(body, 2))
            sums[i] = api.multiply_tiles(body, weights, values, sums[i])
    for total in sums:
        assert isinstance(total, Value)
        api.store(body, [total], 4)


_VALUES = {blocks: partial(_values, blocks=blocks) for blocks in (1, 2, 4)}


@cache
def values(head_dim: int, rows: int) -> float:
    """A call of flow_qkv_values; a quarter of the calls rescale, as early chunks do."""
    blocks = CHUNK // head_dim // 8
    block = loop(head_dim / 8, _rescale) / 4 + loop(head_dim / 32, _VALUES[blocks])
    return rows / 8 * block
