"""Calls of the AIE API as operations of the core, on AIE2P: the words in which costs are written.

Each function adds to a `Body` what one call of the API becomes (aie_api, `detail/aie2p`, and
`detail/aie2` where AIE2P has nothing of its own). A vector is a list of its registers of 512 bits,
in order; a sum of 64 lanes, or of 32 or 16, is one value.
"""

from __future__ import annotations

from collections.abc import Sequence

from ort_aie_ep.aie_kernels.issue import (
    INTEGERS_OF_SUMS,
    LOAD,
    LOAD_SUMS,
    LOAD_WIDENED,
    MASK,
    MOVE,
    NARROW,
    PRODUCT,
    PRODUCT_16,
    PRODUCT_32,
    STORE,
    SUMS_OF_INTEGERS,
    TO_BFP,
    UNPACK,
    WIDEN,
    Body,
    Value,
)

Vector = list[Value]
Sums = Value | Sequence[Value] | None  # one value, or the parts of a sum; None is zero

_OF_LANES = {16: PRODUCT_16, 32: PRODUCT_32, 64: PRODUCT}


# --- memory ---------------------------------------------------------------------------------------
def load(body: Body, registers: int = 1) -> Vector:
    """A vector of `registers` x 512 bits, or less than 512."""
    return [body.add(LOAD) for _ in range(registers)]


def load_sums(body: Body, lanes: int = 64) -> Vector:
    """fp32 straight into sums."""
    return [body.add(LOAD_SUMS) for _ in range(lanes // 16)]


def load_widened(body: Body, lanes: int = 64) -> Vector:
    """bfloat16 as fp32 sums: the load converts."""
    return [body.add(LOAD_WIDENED) for _ in range(lanes // 32)]


def store(body: Body, vector: Sequence[Value], registers: int | None = None) -> None:
    """A store for each register; of sums of one value, `registers`."""
    for at in range(registers or len(vector)):
        body.add(STORE, vector[min(at, len(vector) - 1)])


# --- moves ----------------------------------------------------------------------------------------
def move(body: Body, *operands: Value | None) -> Value:
    """A shuffle, a selection, a maximum, integers: one register from two."""
    return body.add(MOVE, *operands)


def each(body: Body, *vectors: Sequence[Value]) -> Vector:
    """`move` for each register."""
    return [move(body, *operands) for operands in zip(*vectors, strict=True)]


def broadcast(body: Body, scalar: Value | None = None) -> Value:
    """A scalar in all lanes."""
    return body.add(MOVE, scalar)


def lane(body: Body, vector: Value) -> Value:
    """A lane, as a scalar."""
    return body.add(MASK, vector)


def compare(body: Body, left: Value, right: Value | None = None) -> Value:
    """A mask."""
    return body.add(MASK, left, right)


def transpose_8x8(body: Body, tile: Vector) -> Vector:
    """64 values of 16 bits: two shuffles, each of both registers."""
    return [move(body, *tile), move(body, *tile)]


def zip_or_unzip(body: Body, left: Value, right: Value) -> Vector:
    """Both results of an interleaving."""
    return [move(body, left, right), move(body, left, right)]


def reduce(body: Body, vector: Value, lanes: int) -> Value:
    """To one lane: shifts and operations by turns, as `reduce_max` of bfloat16 does."""
    while lanes > 1:
        vector = move(body, vector, move(body, vector))
        lanes //= 2
    return lane(body, vector)


# --- conversions ----------------------------------------------------------------------------------
def widen(body: Body, vector: Sequence[Value]) -> Vector:
    """bfloat16 to fp32, 32 lanes at a time."""
    return [body.add(WIDEN, register) for register in vector]


def narrow(body: Body, sums: Sequence[Value], lanes: int = 64) -> Vector:
    """fp32 to bfloat16, 32 lanes at a time. `sums` are all read by each."""
    return [body.add(NARROW, *sums) for _ in range(max(1, lanes // 32))]


def to_bfp(body: Body, sums: Sequence[Value]) -> Value:
    """64 fp32 to bfp16."""
    return body.add(TO_BFP, *sums)


def integers_of(body: Body, sums: Sequence[Value]) -> Value:
    """Sums of integers, shifted, to a vector."""
    return body.add(INTEGERS_OF_SUMS, *sums)


def floats_of_nibbles(body: Body, nibbles: Value) -> list[Value]:
    """128 codes of 4 bits as fp32, in two sums of 64.

    They are unpacked to bytes, become sums of integers, and have the fp32 numbers whose mantissas
    they are after an addition of integers; a subtraction of fp32 takes the offset away.
    """
    unpacked = body.add(UNPACK, nibbles)
    sums = [body.add(SUMS_OF_INTEGERS, unpacked) for _ in range(2)]
    return [add(body, add(body, part)) for part in sums]


# --- products -------------------------------------------------------------------------------------
def _parts(sums: Sums) -> Sequence[Value | None]:
    return sums if isinstance(sums, Sequence) else (sums,)


def multiply(body: Body, *operands: Value, lanes: int = 64, onto: Sums = None) -> Value:
    """Products of bfloat16 lane by lane, added to `onto`."""
    return body.add(_OF_LANES[lanes], *operands, sums=_parts(onto))


def add(body: Body, *operands: Value, lanes: int = 64) -> Value:
    """Sums of fp32."""
    return body.add(_OF_LANES[lanes], sums=operands)


def tile_operand(body: Body, tile: Vector) -> Value:
    """A tile of 8 x 8 bfloat16 as the left operand of a product in bfp16."""
    return to_bfp(body, widen(body, tile))


def tile_operand_transposed(body: Body, tile: Vector) -> Value:
    """The right operand: transposed, multiplied by one to widen it, converted."""
    transposed = transpose_8x8(body, tile)
    return to_bfp(body, [body.add(PRODUCT, *transposed)])


def multiply_tiles(body: Body, left: Value, right: Value, onto: Sums = None) -> Value:
    """8 x 8 x 8 in bfp16."""
    return body.add(PRODUCT, left, right, sums=_parts(onto))


def add_bf16(body: Body, left: Sequence[Value], right: Sequence[Value], lanes: int = 64) -> Vector:
    """bfloat16 + bfloat16: both widened, added, narrowed. 32 lanes are a register."""
    total = add(body, *widen(body, left), *widen(body, right), lanes=lanes)
    return narrow(body, [total], lanes)


def split(body: Body, sums: Sequence[Value], limbs: int, lanes: int = 32) -> list[Value]:
    """fp32 as limbs of bfloat16: a limb is narrowed, and subtracted by a product with one."""
    parts = []
    rest = list(sums)
    for limb in range(limbs):
        parts.append(body.add(NARROW, *rest))
        if limb + 1 < limbs:
            rest = [body.add(_OF_LANES[lanes], parts[-1], sums=rest)]
    return parts


def multiply_fp32(body: Body, left: Sequence[Value], right: Sequence[Value]) -> Value:
    """32 lanes of fp32 by fp32: limbs of both, and nine products added up."""
    total: Value | None = None
    for a in left:
        for b in right:
            total = multiply(body, a, b, lanes=32, onto=total)
    assert total is not None
    return total
