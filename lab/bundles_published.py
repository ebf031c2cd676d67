"""Kernels whose bundles others have published, by what their sources need.

All are mlir-air's (`programming_examples/fused_decode/kernels`), compiled by Peano for AIE2P and
counted by its authors in the disassembly, most of them fully unrolled (docs/DFlashFeasibility.md at
080f108e, and the heads of the sources at 08eeb7ba and e972f294). The descriptions here are this
project's words for what those sources ask of the core.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ort_aie_ep.aie_kernels import issue_api as api
from ort_aie_ep.aie_kernels.issue import LOAD_SCALAR, Body, Form, Slot, Value

CALL = Form((Slot.ALU,), 6, vectors=1)  # a call with its delay slots; its own body is not counted


@dataclass(frozen=True)
class Published:
    """A kernel, the bundles its authors count, and its description.

    `parts` are bodies with how often each runs. `level` is the compiler's optimisation level.
    """

    name: str
    bundles: int
    parts: Callable[[], tuple[tuple[int, Body], ...]]
    level: int


# --- projections ----------------------------------------------------------------------------------
def gemv_group(signed: bool) -> Body:
    """16 outputs by 32 inputs: codes of 4 bits to bfloat16, then 32 products that wait in turn."""
    body = Body()
    (x,) = api.load(body)
    (scales,) = api.load(body)
    total: Value | None = None
    for _ in range(4):
        (codes,) = api.load(body)
        if signed:
            codes = api.move(body, codes)
        for half in api.floats_of_nibbles(body, codes):
            floats = api.add(body, half) if signed else half
            for register in api.narrow(body, [floats]):
                for column in (register, api.move(body, register)):
                    total = api.multiply(body, column, api.broadcast(body, x), lanes=32, onto=total)
    assert total is not None
    (dot,) = api.narrow(body, [total], lanes=32)
    api.multiply(body, dot, scales, lanes=32)
    return body


def unpack(chunks: int, *, fused: bool = False, tiles: bool = False) -> Body:
    """Chunks of 128 weights to bfloat16: code * scale + minimum, with a rounding between or fused.

    `tiles` parts them into the two tiles of a product.
    """
    body = Body()
    for _ in range(chunks):
        (codes,) = api.load(body)
        scale, minimum = (api.move(body, *api.load(body)) for _ in range(2))
        wide = None if fused else api.widen(body, [minimum])
        weights: list[Value] = []
        for floats in api.floats_of_nibbles(body, codes):
            code = api.narrow(body, [floats])
            if fused:
                start = [*api.widen(body, [minimum]), *api.widen(body, [minimum])]
                product = api.multiply(body, *code, scale, onto=start)
            else:
                assert wide is not None
                scaled = api.narrow(body, [api.multiply(body, *code, scale)])
                product = api.add(body, *api.widen(body, scaled), *wide)
            weights += api.narrow(body, [product])
        if tiles:
            weights = [api.move(body, *weights[i : i + 2]) for i in (0, 0, 2, 2)]
        api.store(body, weights)
        body.next_stretch()
    return body


def tiles(rows: int, columns: int, steps: int, groups: int) -> Body:
    """`groups` times, `steps` products of rows x columns tiles of 8 x 8 x 8, onto memory."""
    body = Body()
    for _ in range(groups):
        sums = [api.load_sums(body) for _ in range(rows * columns)]
        for _ in range(steps):
            left = [api.tile_operand(body, api.load(body, 2)) for _ in range(rows)]
            for column in range(columns):
                right = api.tile_operand_transposed(body, api.load(body, 2))
                for row in range(rows):
                    at = row * columns + column
                    sums[at] = [api.multiply_tiles(body, left[row], right, sums[at])]
            body.next_stretch()
        for tile in sums:
            api.store(body, tile, 4)
    return body


# --- attention of a token -------------------------------------------------------------------------
def _bf16_difference(body: Body, left: Value, right: Value) -> Value:
    (difference,) = api.add_bf16(body, [left], [right], lanes=32)
    return difference


def _clamp(body: Body, vector: Value) -> Value:
    return api.move(body, api.move(body, vector))


def softmax_of_a_head(body: Body, scores: Value) -> None:
    """The running maximum, the probabilities of 16 keys, the correction."""
    largest = api.reduce(body, api.move(body, scores), 16)
    left = body.add(LOAD_SCALAR)
    most = api.lane(body, api.move(body, api.broadcast(body, largest), api.broadcast(body, left)))
    all_most = api.broadcast(body, most)
    exponent = _clamp(body, _bf16_difference(body, scores, all_most))
    power = body.add(CALL, exponent)
    (weights,) = api.narrow(body, api.widen(body, [power]), lanes=32)
    api.store(body, [api.move(body, weights)])
    correction = api.lane(body, _bf16_difference(body, api.broadcast(body, left), all_most))
    again = body.add(CALL, _clamp(body, api.broadcast(body, correction)))
    api.store(body, [api.lane(body, again)])
    api.store(body, [most])
    body.next_stretch()


def scores(head_dim: int) -> Body:
    """16 keys by 2 x 4 queries, and their softmaxes."""
    body = Body()
    for _ in range(2):
        sums: list[Value | None] = [None, None]
        for _ in range(head_dim // 8):
            query = api.tile_operand(body, api.load(body, 2))
            for i in range(2):
                keys = api.transpose_8x8(body, api.load(body, 2))
                sums[i] = api.multiply_tiles(
                    body, query, api.tile_operand_transposed(body, keys), sums[i]
                )
            body.next_stretch()
        halves = [api.narrow(body, [total]) for total in sums if total is not None]
        queries: list[Value] = []
        for i in range(2):  # one of two pairs of queries, both of which are products of the scale
            pair = api.move(body, halves[0][i], halves[1][i])
            scaled = api.multiply(body, pair, api.broadcast(body), lanes=32)
            (register,) = api.narrow(body, [scaled], lanes=32)
            queries += [api.move(body, register), api.move(body, register)]
        body.next_stretch()
        for query in queries:
            softmax_of_a_head(body, query)
    return body


def _sums_of_probabilities(body: Body) -> None:
    """What the probabilities of 16 keys add to the sums of 8 heads, whose product is in fp32."""
    halves = api.load(body, 4)
    tiles = [
        api.tile_operand(body, [api.move(body, *halves[:2]), api.move(body, *halves[2:])])
        for _ in range(2)
    ]
    ones = api.tile_operand_transposed(body, [api.broadcast(body), api.broadcast(body)])
    total: Value | None = None
    for tile in tiles:
        total = api.multiply_tiles(body, tile, ones, total)
    assert total is not None
    parts = [api.move(body, total) for _ in range(4)]
    half = [api.move(body, *parts[:2]), api.move(body, *parts[2:])]
    sums = api.move(body, api.move(body, api.move(body, *half)))
    factors = [api.split(body, [api.move(body, *api.load(body))], 3) for _ in range(2)]
    products = api.multiply_fp32(body, *factors)
    api.store(body, [api.add(body, products, sums, lanes=32)])
    body.next_stretch()


def rescale(body: Body, head_dim: int) -> None:
    """y times the corrections, in fp32."""
    corrections = [api.broadcast(body, body.add(LOAD_SCALAR)) for _ in range(8)]
    pairs = [api.move(body, *corrections[i : i + 2]) for i in range(0, 8, 2)]
    factors = [api.split(body, pairs[i : i + 2], 3) for i in (0, 2)]
    body.next_stretch()
    for _ in range(head_dim // 8):
        for half in factors:
            sums = api.load_sums(body, 32)
            product = api.multiply_fp32(body, half, api.split(body, sums, 3))
            api.store(body, [product], 2)
        body.next_stretch()


def values(head_dim: int) -> Body:
    """The values of 16 keys, weighted, onto y."""
    body = Body()
    _sums_of_probabilities(body)
    halves = api.load(body, 4)
    weights = [
        api.tile_operand(body, [api.move(body, *halves[:2]), api.move(body, *halves[2:])])
        for _ in range(2)
    ]
    body.next_stretch()
    rescale(body, head_dim)
    for _ in range(head_dim // 8):
        before = api.load_sums(body)
        for _ in range(2):
            total: Value | None = None
            for weight in weights:
                right = api.tile_operand_transposed(body, api.load(body, 2))
                total = api.multiply_tiles(body, weight, right, total)
            assert total is not None
            api.store(body, [api.add(body, total, *before)], 2)
        body.next_stretch()
    return body


def _once(make: Callable[[], Body]) -> Callable[[], tuple[tuple[int, Body], ...]]:
    return lambda: ((1, make()),)


def published() -> Iterator[Published]:
    """Every kernel, in the order of the table."""
    yield Published("GEMV, 32 x 256, codes with a sign", 2240, lambda: ((16, gemv_group(True)),), 2)
    yield Published("GEMV, without the sign", 16 * 113, lambda: ((16, gemv_group(False)),), 2)
    yield Published("unpack, 32 x 256", 1409, _once(lambda: unpack(64)), 2)
    for rows, bundles, shape in (
        (8, 918, (1, 4, 32, 1)),
        (16, 1965, (2, 2, 32, 2)),
        (32, 3533, (2, 2, 32, 4)),
    ):
        yield Published(
            f"product of {rows} rows, 32 x 256",
            bundles,
            _once(lambda shape=shape: tiles(*shape)),
            2,
        )
    for head_dim, qk, kv in ((64, 868, 1500), (128, 1343, 2917)):
        yield Published(f"scores, heads of {head_dim}", qk, _once(lambda d=head_dim: scores(d)), 1)
        yield Published(f"values, heads of {head_dim}", kv, _once(lambda d=head_dim: values(d)), 1)


def _of(add: Callable[[Body], None]) -> Body:
    body = Body()
    add(body)
    return body


def _softmaxes() -> Body:
    body = Body()
    for _ in range(8):
        softmax_of_a_head(body, api.move(body))
    return body


def held_out() -> Iterator[Published]:
    """Published figures that no factor was made from.

    Parts were measured as what a kernel loses without them, which overstates them. 9,797 GFLOP/s of
    mlir-air's prompt GEMM (32 cores, at 1.8 GHz) is a time with everything around the loop.
    """
    yield Published("softmax of 8 heads (478 to 528)", 503, _once(_softmaxes), 1)
    for head_dim, bundles in ((64, 575), (128, 1160)):
        yield Published(
            f"rescaling of y, heads of {head_dim}",
            bundles,
            _once(lambda d=head_dim: _of(lambda body: rescale(body, d))),
            1,
        )
    yield Published(
        "GEMM of prompts, 2 x 2, 32 steps",
        round(32 * 4 * 512 * 32 * 2 * 1.8 / 9797),
        _once(lambda: tiles(2, 2, 32, 1)),
        2,
    )
