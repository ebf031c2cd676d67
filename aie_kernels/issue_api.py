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
    TO_SUMS,
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


def multiply_by_ones(body: Body, tile: Value, onto: Sums = None) -> Value:
    """The same with ones, which are converted before a loop."""
    return body.add(PRODUCT, tile, sums=_parts(onto))


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


# --- fp32 as float_math.h has it: vectors of `lanes`, which are sums -----------------------------
def from_sums(body: Body, sums: Sequence[Value], lanes: int) -> Vector:
    """fp32 sums as vectors, for shuffles and integers: a move for each 16."""
    return [move(body, *sums) for _ in range(lanes // 16)]


def to_sums(body: Body, vector: Sequence[Value]) -> Vector:
    """Back: a move for each 16."""
    return [body.add(TO_SUMS, register) for register in vector]


def add_all(body: Body, *operands: Sequence[Value], lanes: int) -> Vector:
    """A sum of fp32 whose operands are sums, or their parts."""
    return [add(body, *(part for operand in operands for part in operand), lanes=lanes)]


def limbs(body: Body, sums: Sequence[Value], lanes: int) -> tuple[Vector, Vector]:
    """Two limbs of bfloat16: the first narrowed, widened, subtracted, and the rest narrowed."""
    high = narrow(body, sums, lanes)
    rest = add_all(body, sums, widen(body, high), lanes=lanes)
    return high, narrow(body, rest, lanes)


def product_of_limbs(
    body: Body,
    x: tuple[Vector, Vector],
    y: tuple[Sequence[Value], Sequence[Value]] | None,
    lanes: int,
    onto: Sums = None,
) -> Vector:
    """Three products; `y` may be constants, which are None."""
    high, low = y if y is not None else ((), ())
    total: Sums = onto
    for a, b in ((x[1], high), (x[0], low), (x[0], high)):
        total = multiply(body, *a, *b, lanes=lanes, onto=total)
    assert isinstance(total, Value)
    return [total]


def scale_exactly(body: Body, sums: Sequence[Value], lanes: int, power: Value | None) -> Vector:
    """Three limbs times a power of two."""
    high = narrow(body, sums, lanes)
    rest = add_all(body, sums, widen(body, high), lanes=lanes)
    middle = narrow(body, rest, lanes)
    low = narrow(body, add_all(body, rest, widen(body, middle), lanes=lanes), lanes)
    total: Sums = None
    factor = () if power is None else (power,)
    for limb in (low, middle, high):
        total = multiply(body, *limb, *factor, lanes=lanes, onto=total)
    assert isinstance(total, Value)
    return [total]


def powers_of_two(body: Body, shifted: Sequence[Value], lanes: int) -> Vector:
    """Exponents in the low bits of fp32: a maximum and a shift of integers, then narrowed.

    A shift goes through a sum of integers, 16 at a time.
    """
    places = [move(body, register) for register in from_sums(body, shifted, lanes)]
    shifts = [integers_of(body, [body.add(TO_SUMS, place)]) for place in places]
    return narrow(body, to_sums(body, shifts), lanes)


def begin_exp2(body: Body, x: Sequence[Value], lanes: int) -> Vector:
    """`begin_exp2` with limbs and a quartic: limbs of the fraction and of the sum, the scale."""
    shifted, fraction = _whole_and_fraction(body, x, lanes)
    f = limbs(body, fraction, lanes)
    total = limbs(body, product_of_limbs(body, f, None, lanes), lanes)
    return [*f[0], *f[1], *total[0], *total[1], *powers_of_two(body, shifted, lanes)]


def end_exp2(
    body: Body,
    fraction: tuple[Vector, Vector],
    total: tuple[Vector, Vector],
    scale: Vector,
    lanes: int,
) -> Vector:
    """`end_exp2` with limbs and a quartic, as bfloat16."""
    for _ in range(2):
        total = limbs(body, product_of_limbs(body, total, fraction, lanes), lanes)
    excess = product_of_limbs(body, total, fraction, lanes)
    return _bfloat16_of_power(body, excess, scale, lanes)


def exp2_coarse(body: Body, x: Sequence[Value], lanes: int) -> Vector:
    """2^x as bfloat16, with a cubic."""
    shifted, fraction = _whole_and_fraction(body, x, lanes)
    narrow_fraction = narrow(body, fraction, lanes)
    total: Vector = []
    for step in range(3):
        narrow_total = narrow(body, total, lanes) if step else []
        total = [multiply(body, *narrow_total, *narrow_fraction, lanes=lanes)]
    return _bfloat16_of_power(body, total, powers_of_two(body, shifted, lanes), lanes)


def _whole_and_fraction(body: Body, x: Sequence[Value], lanes: int) -> tuple[Vector, Vector]:
    shifted = add_all(body, x, lanes=lanes)
    whole = add_all(body, shifted, lanes=lanes)
    return shifted, add_all(body, x, whole, lanes=lanes)


def _bfloat16_of_power(body: Body, excess: Vector, scale: Vector, lanes: int) -> Vector:
    one_more = narrow(body, add_all(body, excess, lanes=lanes), lanes)
    return narrow(body, [multiply(body, *one_more, *scale, lanes=lanes)], lanes)


def fold(body: Body, left: Vector, right: Vector, *, floats: bool, keep: bool) -> Vector:
    """op of the even and the odd chunks of two vectors of 32: shuffles and an operation.

    fp32 is shuffled into sums and added; `keep` moves the result back for another shuffle.
    """
    if not floats:
        return [move(body, *zip_or_unzip(body, left[0], right[0]))]
    parts = [body.add(TO_SUMS, *left, *right) for _ in range(4)]
    total = add_all(body, parts, lanes=32)
    return from_sums(body, total, 32) if keep else total


def fold_blocks(body: Body, blocks: Sequence[Vector]) -> Vector:
    """Maxima of bfloat16: 8 for each of four blocks of 64, over rows or columns."""
    parts = [fold(body, block[:1], block[1:], floats=False, keep=False) for block in blocks]
    pairs = [fold(body, *parts[i : i + 2], floats=False, keep=False) for i in (0, 2)]
    return fold(body, *pairs, floats=False, keep=False)


def fold_heads(body: Body, pairs: Sequence[Vector], *, floats: bool) -> Vector:
    """8 heads from four vectors that have 16 lanes of two heads each."""
    eighths = [fold(body, *pairs[i : i + 2], floats=floats, keep=True) for i in (0, 2)]
    folded = fold(body, *eighths, floats=floats, keep=True)
    for _ in range(2):
        folded = fold(body, folded, folded, floats=floats, keep=True)
    return folded


def nearest_integer(body: Body, sums: Sequence[Value], lanes: int) -> Vector:
    """A rounder added and subtracted."""
    return add_all(body, add_all(body, sums, lanes=lanes), lanes=lanes)
