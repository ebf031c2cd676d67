"""The closed form of FlowKV."""

from __future__ import annotations

from math import ceil, gcd

from ort_aie_ep.aie_kernels.cycles import of_call
from ort_aie_ep.aie_kernels.flow_kv.kernels import (
    FLOW_KV_MERGE,
    FLOW_KV_PASS,
    FLOW_KV_SCORES,
    FLOW_KV_VALUES,
    KV_CHUNK,
)
from ort_aie_ep.aie_kernels.invocation import Costs
from ort_aie_ep.aie_kernels.machine import BF16, TASK, Step, control, stream
from ort_aie_ep.npu.terms.errors import DesignError

FLOW_KV_WORDS = 19  # to a pair
PAIRS = 4  # of cores: FlowKV's, and FlowQKV's of one query chunk
FLOW_KV_CHUNK = 8192  # bytes of keys, and of values
FLOW_KV_QUERIES = 2048  # query elements of a sweep
# Products a cycle of a pair of cores, both products, that mlir-air's attention makes on a Krackan:
# what 16 more keys of a layer take llama-3.2-1b (68.44 and 19.05 tokens/s at 1k and 32k, 1.19 µs
# for 8 queries) and qwen3-8b (12.68 and 4.65, 1.91 µs), at 1.66 GHz. Its own counts are 868 + 1,500
# and 1,343 + 2,917 bundles, one core after the other.
RATE, WIDE_RATE = 8.3, 10.4  # heads of 64; of 128 and more


def padded_head(head_dim: int) -> int:
    """The head dimension as the attention designs pad it. Raises DesignError above 256."""
    for size in (64, 128, 256):
        if head_dim <= size:
            return size
    raise DesignError(f"head dimension {head_dim}: the attention designs hold at most 256")


def chunk_cycles(queries: int, head_dim: int) -> float:
    """A chunk on the slower core of a pair, which is not faster than any that was measured."""
    counted = max(of_call(kernel, queries, head_dim) for kernel in (FLOW_KV_SCORES, FLOW_KV_VALUES))
    return max(counted, 2 * queries * KV_CHUNK / (RATE if head_dim < 128 else WIDE_RATE))


def merge_cycles(queries: int, head_dim: int) -> float:
    """What a pair hands to the next."""
    return of_call(FLOW_KV_MERGE, queries, head_dim) + of_call(FLOW_KV_PASS)


def flow_kv(
    keys: int, heads: int, kv_heads: int, head_dim: int, window: int | None
) -> tuple[Step, ...]:
    """Attention of one query to `keys` cached keys.

    A sweep is a walk through the keys of a KV head, for at most 2,048 query elements. As many pairs
    share its chunks as it takes to keep all pairs at work, if there are enough chunks; then one
    after the other merges what it has. Keys and values each have a shim channel, in chunks of
    8 KB; the queries go ahead on the keys' channel.
    """
    head = padded_head(head_dim)
    group = heads // kv_heads
    parts = ceil(group / (FLOW_KV_QUERIES // head))
    queries = ceil(group / parts)
    sweeps = kv_heads * parts
    per_chunk = FLOW_KV_CHUNK // (BF16 * head)
    first = 0 if window is None else max(0, keys - window)
    chunks = ceil(keys / per_chunk) - first // per_chunk
    sharing = PAIRS // gcd(PAIRS, sweeps)
    if chunks < sharing:
        sharing = 1
    walks = sharing * sweeps  # of single pairs
    at_once = min(walks, PAIRS)
    rounds = ceil(walks / PAIRS)
    own = ceil(chunks / sharing)
    chunk = stream(FLOW_KV_CHUNK)
    kernel = chunk_cycles(queries, head)
    return (
        # Queries, keys, values and outputs of a sweep are tasks; values trail keys by a chunk.
        Step(control=control(4 * at_once, FLOW_KV_WORDS * at_once) + max(kernel, chunk), idle=1),
        Step(
            shim=rounds * (own * FLOW_KV_CHUNK + BF16 * queries * head),
            kernels=rounds * own * kernel,
            commands=4 * (walks - at_once) * TASK,
            read=2 * sweeps * chunks * FLOW_KV_CHUNK,
            control=(sharing - 1) * merge_cycles(queries, head),
        ),
    )


SEQUENCES: Costs = {
    "attention": ("attention", lambda p, _: flow_kv(
        p["context"], p["heads"], p["kv_heads"], p["head_dim"], p["window"] or None
    )),
}  # fmt: skip
