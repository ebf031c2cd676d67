"""FlowQKV's kernels as designs and the simulator see them. Cycles are a model, see `cycles`.

A chunk, 4 KiB, takes 1,024 cycles. With all rows, 8192 / head_dim, the score core takes 12.4, 4.3
and 1.8 times as long at head dimensions 64, 128 and 256, and the value core 5.6, 3.7 and 2.2 times.
So compute bounds prefill, at 64 and 128 mostly through exponentials, of which there are rows *
keys.
"""

from __future__ import annotations

from ort_aie_ep.aie_kernels.cycles import (
    CALL,
    LATENCY,
    LOOP,
    TILE_PRODUCT,
    Scalars,
    compiled,
    copy_cycles,
    map_scores,
)
from ort_aie_ep.npu.terms.kernel import Array, Kernel

QKV_CHUNK = 2048

# Bundles of 8 rows by the core's issue rules, by head dimension, with a quarter of the rescaling
# (aie_kernels/README.md), and what published projections take for each, compiled at -O2.
VALUES = {64: 344.4375, 128: 452.9375, 256: 545.9375}
PROJECTIONS = 1.04
QKV_SCRATCH = 2560  # as bf16: scores of 32 rows with 32 keys, 2 x 128 keys; before, 8 rows of q


def _flow_qkv_scores(scalars: Scalars) -> float:
    """Per 32 rows: tiles of products and scores, maxima, probabilities."""
    head_dim, rows, *_, softcap = scalars
    quads = (rows + 31) // 32
    key_blocks = QKV_CHUNK // head_dim // 8
    # Sixteen stores after four tiles of products.
    products = key_blocks * (head_dim / 8 * 4 * TILE_PRODUCT + LOOP + 16)
    tiles = 4 * key_blocks
    # Per tile: the mask takes 4 (16 in the few chunks at an edge), rounding and maximum 4.
    scores = map_scores(2 * tiles, softcap) + 2 * LOOP + 8 * tiles
    maximum = 30 + 10 * LATENCY
    # Per tile: nine sums and products of 64 lanes, six conversions of 32 at a time, and two integer
    # operations of 16 at a time: 29 issues; then the transposition and the stores.
    probabilities = LOOP + 20 * LATENCY + 35 * tiles
    return CALL + 20 * LATENCY + quads * (products + scores + maximum + probabilities)


def _flow_qkv_values(arch: str, scalars: Scalars) -> float:
    head_dim, rows = scalars
    return CALL + PROJECTIONS * (rows / 8 * VALUES[head_dim])


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
    return copy_cycles(512) + (index % pieces == pieces - 1) * (LOOP + head_dim / 8 * 12)


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


# Integer work on one core's scalar unit.
FLOW_QKV_SCHEDULE = Kernel(
    "flow_qkv_schedule", "flow_qkv/flow_qkv.cc", (Array("i32", 16), *(int,) * 9),
    compiled(lambda scalars: CALL + 40), ("aie2p",), _flow_qkv_schedule,
)  # fmt: skip

FLOW_QKV_LOAD_Q = Kernel(
    "flow_qkv_load_q", "flow_qkv/flow_qkv.cc",
    (Array("bf16", 512), Array("bf16", QKV_SCRATCH), Array("bf16", 8192), int, int, int),
    compiled(_flow_qkv_load_q), ("aie2p",), _flow_qkv_pieces,
)  # fmt: skip

FLOW_QKV_BEGIN = Kernel(
    "flow_qkv_begin", "flow_qkv/flow_qkv.cc", (Array("f32", 256),),
    compiled(lambda scalars: copy_cycles(512)), ("aie2p",),
)  # fmt: skip

FLOW_QKV_SCORES = Kernel(
    "flow_qkv_scores",
    "flow_qkv/flow_qkv.cc",
    (
        Array("bf16", QKV_SCRATCH),
        Array("bf16", 8192),
        Array("bf16", 2048),
        Array("u8", 9216),
        Array("f32", 256),
        Array("i32", 16),
        *(int,) * 9,
    ),
    compiled(_flow_qkv_scores),
    ("aie2p",),
    _flow_qkv_keys,
)

FLOW_QKV_VALUES_BEGIN = Kernel(
    "flow_qkv_values_begin", "flow_qkv/flow_qkv.cc", (Array("f32", 8320),),
    compiled(lambda scalars: copy_cycles(16640)), ("aie2p",),
)  # fmt: skip

FLOW_QKV_VALUES = Kernel(
    "flow_qkv_values", "flow_qkv/flow_qkv.cc",
    (Array("u8", 9216), Array("bf16", 2048), Array("f32", 8320), int, int), _flow_qkv_values,
    ("aie2p",), lambda scalars: _flow_qkv_rows(*scalars),
)  # fmt: skip

# Per row a scalar inverse and a loop, per 32 values nine issues.
FLOW_QKV_OUTPUT = Kernel(
    "flow_qkv_output", "flow_qkv/flow_qkv.cc", (Array("f32", 8320), Array("bf16", 512), int, int),
    compiled(lambda scalars: CALL + 512 / scalars[1] * (8 * LATENCY + LOOP) + 16 * 9), ("aie2p",),
    lambda scalars: 0 <= scalars[0] < 16 and _flow_qkv_rows(scalars[1], 8),
)  # fmt: skip
