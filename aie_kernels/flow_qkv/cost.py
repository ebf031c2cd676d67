"""The closed form of FlowQKV."""

from __future__ import annotations

from math import ceil

from ort_aie_ep.aie_kernels.cycles import of_call
from ort_aie_ep.aie_kernels.flow_kv.cost import PAIRS, padded_head
from ort_aie_ep.aie_kernels.flow_qkv.kernels import (
    FLOW_QKV_BEGIN,
    FLOW_QKV_LOAD_Q,
    FLOW_QKV_SCORES,
    FLOW_QKV_VALUES,
    QKV_CHUNK,
)
from ort_aie_ep.aie_kernels.invocation import Costs
from ort_aie_ep.aie_kernels.machine import BF16, TASK, Step, control, stream

FLOW_QKV_WORDS = 16 * 26  # to all pairs
FLOW_QKV_CHUNK = 4096
STARTED_SWEEPS = 16  # of FlowQKV between two starts
FLOW_QKV_QUERY = 8192  # query elements of a pair: rows x head dimension
QUERY_CHUNKS = 4  # of a super-chunk: two columns each
# Products a cycle of a core, both products and the softmax, that mlir-air's attention makes: what
# its prompt of 4,096 gained when cores had half as many keys (pull request #1940: 1,848 to 2,068
# tokens/s), at 1.8 GHz.
RATE = 35.4


def chunk_cycles(rows: int, head_dim: int) -> float:
    """A chunk on the slower core of a pair, which is not faster than any that was measured."""
    kernels = (FLOW_QKV_SCORES, FLOW_QKV_VALUES)
    counted = max(of_call(kernel, head_dim, rows) for kernel in kernels)
    return max(counted, rows * QKV_CHUNK / RATE)


def begin_cycles(rows: int, head_dim: int) -> float:
    """The start of a sweep."""
    pieces = range(rows * head_dim // 512)
    loads = (of_call(FLOW_QKV_LOAD_Q, index, head_dim, rows) for index in pieces)
    return of_call(FLOW_QKV_BEGIN) + sum(loads)


def flow_qkv(
    queries: int,
    past: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    window: int | None,
    causal: bool = True,
) -> tuple[Step, ...]:
    """Attention of `queries` rows after `past` cached ones.

    A query chunk uses two columns. A super-chunk is four query chunks, all of which receive its
    keys and values by broadcast. A row of cores processes one KV head. A group is divided into
    parts, which the rows of cores treat as separate heads, when it is too large for 8 queries or
    rows of cores would be idle. For every super-chunk and four (parts of) KV heads, a sweep visits
    the keys that any of its queries sees.
    """
    head = padded_head(head_dim)
    group = heads // kv_heads
    most = FLOW_QKV_QUERY // head  # rows of a pair: queries of the heads of a part
    wanted = max(ceil(group / (most // 8)), min(group, PAIRS // kv_heads))
    part = ceil(group / wanted)
    all_heads = kv_heads * ceil(group / part)
    longest = most // part // 8 * 8
    super_chunks = ceil(queries / (QUERY_CHUNKS * longest))
    chunk_rows = 8 * ceil(queries / (super_chunks * QUERY_CHUNKS * 8))
    super_chunk = QUERY_CHUNKS * chunk_rows
    keys = FLOW_QKV_CHUNK // (BF16 * head)
    chunks = 0
    for index in range(super_chunks):
        first = past + index * super_chunk
        end = past + (min(queries, (index + 1) * super_chunk) if causal else queries)
        begin = 0 if window is None else max(0, first - window + 1)
        chunks += ceil(end / keys) - begin // keys
    turns = ceil(all_heads / PAIRS)
    sweeps = turns * super_chunks
    tasks = PAIRS * (2 * QUERY_CHUNKS + 2)  # queries, outputs; keys and values
    rows = part * chunk_rows
    return (
        Step(
            streams=turns * chunks * stream(FLOW_QKV_CHUNK),
            kernels=turns * chunks * chunk_cycles(rows, head),
            commands=(sweeps - 1) * tasks * TASK,
            read=2 * all_heads * chunks * FLOW_QKV_CHUNK,
        ),
        # Between sweeps queries enter, two cores a channel, while outputs leave.
        Step(
            streams=sweeps * stream(2 * BF16 * rows * head),
            read=BF16 * heads * head * queries,
            write=BF16 * heads * head * queries,
            control=sweeps * begin_cycles(rows, head)
            + ceil(sweeps / STARTED_SWEEPS) * control(tasks, FLOW_QKV_WORDS),
            idle=ceil(sweeps / STARTED_SWEEPS),
        ),
    )


SEQUENCES: Costs = {
    "attention": ("attention", lambda p, _: flow_qkv(
        p["prompt"], p["past"], p["heads"], p["kv_heads"], p["head_dim"], p["window"] or None,
        bool(p["causal"]),
    )),
}  # fmt: skip
