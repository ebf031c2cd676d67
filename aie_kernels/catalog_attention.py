"""FlowKV and FlowQKV as designs and the simulator see them.

Cycles come from a model and were never measured. The model counts what a core issues for the code
as written, loop by loop. In a loop that pipelines, an iteration costs as much as its busiest unit.
Each cycle can start two 512-bit loads, a 512-bit store, a shuffle, and a vector multiplication,
addition or conversion: 64 lanes of bfloat16 macs or fp32 sums, 512 bits of anything else. A loop
costs `LOOP` extra cycles to fill, drain and set up; a call costs `CALL`. Chains that do not overlap
count their latency, `LATENCY` cycles an operation (AM020: 5 to 7 for loads and float macs).

Compiled code takes longer than such a count. Three published attention kernels, whose sources were
counted by the same rules, take 1.7, 2.0 and 2.2 times their counts on silicon
(ort_aie_ep/npu/speed/published_attention.py). So the model multiplies the counts of its own kernels
by 2, `COMPILED`, which is within 30 % of each of the three. They are other kernels, less exact and
by other compilers' versions: what these here take is unconfirmed.

A chunk of FlowKV, 8 KiB, takes 2,048 cycles on its stream of 4 bytes per cycle. By this model both
cores keep up with groups of up to 2. Larger groups are bound by compute (4: 3,496, 2,600 and 2,280
cycles at head dimensions 64, 128 and 256), and so are capped scores at 64 and 128.

A chunk of FlowQKV, 4 KiB, takes 1,024 cycles. With all rows, 8192 / head_dim, the score core takes
12.4, 4.3 and 1.8 times as long at head dimensions 64, 128 and 256, and the value core 3.7, 2.4 and
2.1 times. So compute bounds prefill, at 64 and 128 mostly through exponentials, of which there are
rows * keys.
"""

from __future__ import annotations

from collections.abc import Callable

from ort_aie_ep.npu.vocabulary.kernel import Array, Kernel

CALL = 30
LOOP = 20
LATENCY = 5

# Cycles of compiled code for one that is counted: see above.
COMPILED = 2.0

# Issues of the multiplier's pipeline for one 8x8x8 product with both operands converted to bfp16:
# 512 multiplications at the 280 per cycle that mlir-aie's bfp16 matmul reaches.
TILE_PRODUCT = 512 / 280

Scalars = tuple[int, ...]

KV_CHUNK = 4096
QKV_CHUNK = 2048
QKV_SCRATCH = 2560  # as bf16: scores of 32 rows with 32 keys, 2 x 128 keys; before, 8 rows of q


def _compiled(counted: Callable[[Scalars], float]) -> Callable[[str, Scalars], float]:
    """The cycles of a kernel whose issues `counted` gives."""
    return lambda arch, scalars: COMPILED * counted(scalars)


def _copy(count: int) -> float:
    """Cycles to copy, or fill, `count` bfloat16: a 512-bit store each 32."""
    return CALL + LOOP + count / 32


def _map_scores(vectors: int, softcap: int) -> float:
    """Products to scores, `vectors` of 32: two limbs and three macs.

    Under a cap the exponential, the inverse and four more products of limbs.
    """
    if softcap:
        return LOOP + 60 * LATENCY + 90 * vectors
    return LOOP + 8 * LATENCY + 6 * vectors


def _flow_kv_scores(scalars: Scalars) -> float:
    """For each pair of heads: products per 16 keys, scores, maximum, probabilities."""
    group, head_dim, _begin, _end, _scale, softcap = scalars
    pairs = (group + 1) // 2
    steps = KV_CHUNK // head_dim // 16
    # Four macs, six loads and four shuffles per 8 dimensions; 28 shuffles fold 64 lanes of sums.
    products = steps * (head_dim / 8 * 4 + LOOP + 28 + 4 * LATENCY)
    # Select, rounding, maximum, store per 32 scores.
    scores = _map_scores(steps, softcap) + LOOP + 6 * steps
    # Four steps of shuffle and maximum for each head, rounding to an integer.
    maximum = 2 * 4 * 4 + 4 * LATENCY
    # 64 issues per 64 probabilities, a chain of 25, then two sums of 16 lanes.
    vectors = max(1, steps // 2)
    probabilities = 25 * LATENCY + 64 * (vectors - 1) + 2 * 4 * LATENCY
    return CALL + 20 * LATENCY + pairs * (products + scores + maximum + probabilities)


def _flow_kv_values(scalars: Scalars) -> float:
    """For each head: a quarter of the calls rescale, as early chunks do; the probabilities in all
    lanes that they multiply, then tiles of Y in fours."""
    group, head_dim = scalars
    blocks = KV_CHUNK // head_dim // 8
    rescale = (LOOP + 10 * head_dim / 32) / 4 + 10
    weights = 6 * blocks + 3 * LATENCY
    # Four macs of 64 lanes and ten loads a block; then ten sums of a column.
    products = LOOP + head_dim / 32 * max(4 * blocks + 10, 5 * blocks + 2)
    return CALL + group * (rescale + weights + products)


def _flow_kv_merge(scalars: Scalars) -> float:
    """Factors of all heads; per 32 dimensions of a head, two exact products and a sum."""
    group, head_dim = scalars
    return CALL + 20 * LATENCY + group * (LOOP + 5 * LATENCY + 22 * head_dim / 32)


def _flow_qkv_scores(scalars: Scalars) -> float:
    """Per 32 rows: tiles of products and scores, maxima, probabilities."""
    head_dim, rows, *_, softcap = scalars
    quads = (rows + 31) // 32
    key_blocks = QKV_CHUNK // head_dim // 8
    # Sixteen stores after four tiles of products.
    products = key_blocks * (head_dim / 8 * 4 * TILE_PRODUCT + LOOP + 16)
    tiles = 4 * key_blocks
    # Per tile: the mask takes 4 (16 in the few chunks at an edge), rounding and maximum 4.
    scores = _map_scores(2 * tiles, softcap) + 2 * LOOP + 8 * tiles
    maximum = 30 + 10 * LATENCY
    # Per tile: nine sums and products of 64 lanes, six conversions of 32 at a time, and two integer
    # operations of 16 at a time: 29 issues; then the transposition and the stores.
    probabilities = LOOP + 20 * LATENCY + 35 * tiles
    return CALL + 20 * LATENCY + quads * (products + scores + maximum + probabilities)


def _flow_qkv_values(scalars: Scalars) -> float:
    """For 8 rows: tiles of Y in fours; a quarter of the calls rescale, as early chunks do."""
    head_dim, rows = scalars
    key_blocks = QKV_CHUNK // head_dim // 8
    # Sixteen stores of Y, or the products.
    tiles = LOOP + head_dim / 32 * max(16, 4 * key_blocks * TILE_PRODUCT)
    rescale = LOOP + head_dim / 8 * 12
    return CALL + rows / 8 * (tiles + rescale / 4 + 10)


def _flow_kv_heads(group: int, head_dim: int) -> bool:
    """Whether q, F and Y have room for these heads."""
    return head_dim in (64, 128, 256) and 0 <= group <= 2048 // head_dim


def _flow_kv_keys(scalars: Scalars) -> bool:
    """Scores also need at least one key of the chunk."""
    group, head_dim, begin, end, _scale, _softcap = scalars
    return _flow_kv_heads(group, head_dim) and 0 <= begin < end <= KV_CHUNK // head_dim


def _flow_qkv_rows(head_dim: int, rows: int) -> bool:
    """Whether q, F and Y have room for these rows, which go in tiles of 8."""
    return head_dim in (64, 128, 256) and 0 < rows <= 8192 // head_dim and rows % 8 == 0


def _flow_qkv_schedule(scalars: Scalars) -> bool:
    """Positions of queries are kept in 32 bits; the keys of a chunk are shifted by."""
    sweep, chunk, chunks, chunk_rows, past, total, _window, causal, keys = scalars
    if keys not in (8, 16, 32) or causal not in (0, 1) or min(scalars) < 0:
        return False
    return chunk < chunks and max(total, past + (sweep + 1) * chunks * chunk_rows) < 1 << 31


# When 8 rows are together, per tile: eight loads of 128 bits, as many inserts, a transposition, two
# stores.
def _flow_qkv_load_q(scalars: Scalars) -> float:
    index, head_dim, _ = scalars
    pieces = head_dim // 64
    return _copy(512) + (index % pieces == pieces - 1) * (LOOP + head_dim / 8 * 12)


def _flow_qkv_pieces(scalars: Scalars) -> bool:
    """Whether the queries have a piece with this index."""
    index, head_dim, rows = scalars
    return _flow_qkv_rows(head_dim, rows) and 0 <= index < rows * head_dim // 512


def _flow_qkv_keys(scalars: Scalars) -> bool:
    """Scores also need the chunk to begin with an existing key."""
    head_dim, rows, chunk_rows, index, total, window, causal, _scale, _softcap = scalars
    if not _flow_qkv_rows(head_dim, rows) or causal not in (0, 1) or window < 0:
        return False
    return 0 < chunk_rows <= rows and 0 <= index * (QKV_CHUNK // head_dim) < total


FLOW_KV_LOAD_Q = Kernel(
    "flow_kv_load_q",
    "flow_kv.cc",
    (Array("bf16", 64), Array("bf16", 2048), int),
    _compiled(lambda scalars: _copy(64)),
    ("aie2p",),
    lambda scalars: 0 <= scalars[0] < 32,
)
FLOW_KV_BEGIN = Kernel(
    "flow_kv_begin",
    "flow_kv.cc",
    (Array("f32", 64),),
    _compiled(lambda scalars: _copy(128)),
    ("aie2p",),
)
FLOW_KV_SCORES = Kernel(
    "flow_kv_scores",
    "flow_kv.cc",
    (
        Array("bf16", 2048),
        Array("bf16", 4096),
        Array("u8", 4352),
        Array("f32", 64),
        *(int,) * 6,
    ),
    _compiled(_flow_kv_scores),
    ("aie2p",),
    _flow_kv_keys,
)
FLOW_KV_VALUES_BEGIN = Kernel(
    "flow_kv_values_begin",
    "flow_kv.cc",
    (Array("f32", 2080),),
    _compiled(lambda scalars: _copy(4160)),
    ("aie2p",),
)
FLOW_KV_VALUES = Kernel(
    "flow_kv_values",
    "flow_kv.cc",
    (Array("u8", 4352), Array("bf16", 4096), Array("f32", 2080), int, int),
    _compiled(_flow_kv_values),
    ("aie2p",),
    lambda scalars: _flow_kv_heads(*scalars),
)
FLOW_KV_GIVE_MAXIMA = Kernel(
    "flow_kv_give_maxima",
    "flow_kv.cc",
    (Array("f32", 64), Array("f32", 32)),
    _compiled(lambda scalars: _copy(64)),
    ("aie2p",),
)
FLOW_KV_PASS = Kernel(
    "flow_kv_pass",
    "flow_kv.cc",
    (Array("f32", 2080), Array("f32", 32), Array("f32", 2112)),
    _compiled(lambda scalars: _copy(4224)),
    ("aie2p",),
)
FLOW_KV_MERGE = Kernel(
    "flow_kv_merge",
    "flow_kv.cc",
    (Array("f32", 2080), Array("f32", 32), Array("f32", 2112), int, int),
    _compiled(_flow_kv_merge),
    ("aie2p",),
    lambda scalars: _flow_kv_heads(*scalars),
)
# Two trips of limbs, three macs and a rounding after a scalar inverse.
FLOW_KV_OUTPUT = Kernel(
    "flow_kv_output",
    "flow_kv.cc",
    (Array("f32", 2080), Array("bf16", 64), int, int),
    _compiled(lambda scalars: CALL + 20 * LATENCY),
    ("aie2p",),
    lambda scalars: 0 <= scalars[0] < 32 and _flow_kv_heads(0, scalars[1]),
)

# Integer work on one core's scalar unit.
FLOW_QKV_SCHEDULE = Kernel(
    "flow_qkv_schedule",
    "flow_qkv.cc",
    (Array("i32", 16), *(int,) * 9),
    _compiled(lambda scalars: CALL + 40),
    ("aie2p",),
    _flow_qkv_schedule,
)
FLOW_QKV_LOAD_Q = Kernel(
    "flow_qkv_load_q",
    "flow_qkv.cc",
    (Array("bf16", 512), Array("bf16", QKV_SCRATCH), Array("bf16", 8192), int, int, int),
    _compiled(_flow_qkv_load_q),
    ("aie2p",),
    _flow_qkv_pieces,
)
FLOW_QKV_BEGIN = Kernel(
    "flow_qkv_begin",
    "flow_qkv.cc",
    (Array("f32", 256),),
    _compiled(lambda scalars: _copy(512)),
    ("aie2p",),
)
FLOW_QKV_SCORES = Kernel(
    "flow_qkv_scores",
    "flow_qkv.cc",
    (
        Array("bf16", QKV_SCRATCH),
        Array("bf16", 8192),
        Array("bf16", 2048),
        Array("u8", 9216),
        Array("f32", 256),
        Array("i32", 16),
        *(int,) * 9,
    ),
    _compiled(_flow_qkv_scores),
    ("aie2p",),
    _flow_qkv_keys,
)
FLOW_QKV_VALUES_BEGIN = Kernel(
    "flow_qkv_values_begin",
    "flow_qkv.cc",
    (Array("f32", 8320),),
    _compiled(lambda scalars: _copy(16640)),
    ("aie2p",),
)
FLOW_QKV_VALUES = Kernel(
    "flow_qkv_values",
    "flow_qkv.cc",
    (Array("u8", 9216), Array("bf16", 2048), Array("f32", 8320), int, int),
    _compiled(_flow_qkv_values),
    ("aie2p",),
    lambda scalars: _flow_qkv_rows(*scalars),
)
# Per row a scalar inverse and a loop, per 32 values nine issues.
FLOW_QKV_OUTPUT = Kernel(
    "flow_qkv_output",
    "flow_qkv.cc",
    (Array("f32", 8320), Array("bf16", 512), int, int),
    _compiled(lambda scalars: CALL + 512 / scalars[1] * (8 * LATENCY + LOOP) + 16 * 9),
    ("aie2p",),
    lambda scalars: 0 <= scalars[0] < 16 and _flow_qkv_rows(scalars[1], 8),
)
