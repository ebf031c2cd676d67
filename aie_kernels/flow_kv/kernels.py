"""FlowKV's kernels as designs and the simulator see them. Cycles are a model, see `cycles`.

A chunk, 8 KiB, takes 2,048 cycles on its stream of 4 bytes per cycle. By this model both cores keep
up with groups of up to 2. Larger groups are bound by compute (4: 3,948, 3,151 and 3,151 cycles at
head dimensions 64, 128 and 256), and so are all capped scores.
"""

from __future__ import annotations

from ort_aie_ep.aie_kernels.cycles import (
    CALL,
    COMPILED,
    LATENCY,
    LOOP,
    Scalars,
    compiled,
    copy_cycles,
    map_scores,
)
from ort_aie_ep.npu.terms.kernel import Array, Kernel

KV_CHUNK = 4096

# Bundles of a chunk by the core's issue rules, by head dimension (aie_kernels/README.md):
# scores of a call, of each pair of heads and of each 8 heads; values of each head, with a quarter
# of the rescaling, and of each pair.
SCORES = {64: (188, 500, 310.5), 128: (188, 370, 286.5), 256: (188, 401.5, 274.5)}
VALUES = {64: (11.375, 334), 128: (13.125, 428), 256: (16.625, 576)}
# What published attention takes for a bundle that is counted, compiled at -O1.
ATTENTION = 1.74
# Products a cycle of a pair of cores, both products, that mlir-air's attention makes on a Krackan:
# what 16 more keys of a layer take llama-3.2-1b (68.44 and 19.05 tokens/s at 1k and 32k, 1.19 µs
# for 8 queries) and qwen3-8b (12.68 and 4.65, 1.91 µs), at 1.66 GHz. Its own counts are 868 + 1,500
# and 1,343 + 2,917 bundles, one core after the other.
RATE, WIDE_RATE = 8.3, 10.4  # heads of 64; of 128 and more


def _flow_kv_scores(arch: str, scalars: Scalars) -> float:
    """With what a softcap adds to each vector of 32 scores."""
    group, head_dim, _begin, _end, _scale, softcap = scalars
    pairs, eights = (group + 1) // 2, (group + 7) // 8
    vectors = pairs * (KV_CHUNK // head_dim // 16)
    capping = COMPILED * (map_scores(vectors, softcap) - map_scores(vectors, 0))
    call, of_pair, of_eight = SCORES[head_dim]
    return CALL + ATTENTION * (call + pairs * of_pair + eights * of_eight) + capping


def _flow_kv_values(arch: str, scalars: Scalars) -> float:
    """As counted, but a pair is not faster than any that was measured."""
    group, head_dim = scalars
    of_head, of_pair = VALUES[head_dim]
    counted = CALL + ATTENTION * (group * of_head + (group + 1) // 2 * of_pair)
    return max(counted, 2 * group * KV_CHUNK / (RATE if head_dim < 128 else WIDE_RATE))


def _flow_kv_merge(scalars: Scalars) -> float:
    """Factors of all heads; per 32 dimensions of a head, two exact products and a sum."""
    group, head_dim = scalars
    return CALL + 20 * LATENCY + group * (LOOP + 5 * LATENCY + 22 * head_dim / 32)


def _flow_kv_heads(group: int, head_dim: int) -> bool:
    """Whether q, F and Y have room for these heads."""
    return head_dim in (64, 128, 256) and 0 <= group <= 2048 // head_dim


def _flow_kv_keys(scalars: Scalars) -> bool:
    """Scores also need at least one key of the chunk."""
    group, head_dim, begin, end, _scale, _softcap = scalars
    return _flow_kv_heads(group, head_dim) and 0 <= begin < end <= KV_CHUNK // head_dim


FLOW_KV_LOAD_Q = Kernel(
    "flow_kv_load_q", "flow_kv/flow_kv.cc", (Array("bf16", 64), Array("bf16", 2048), int),
    compiled(lambda scalars: copy_cycles(64)), ("aie2p",), lambda scalars: 0 <= scalars[0] < 32,
)  # fmt: skip

FLOW_KV_BEGIN = Kernel(
    "flow_kv_begin", "flow_kv/flow_kv.cc", (Array("f32", 64),),
    compiled(lambda scalars: copy_cycles(128)), ("aie2p",),
)  # fmt: skip

FLOW_KV_SCORES = Kernel(
    "flow_kv_scores", "flow_kv/flow_kv.cc",
    (Array("bf16", 2048), Array("bf16", 4096), Array("u8", 4352), Array("f32", 64), *(int,) * 6),
    _flow_kv_scores, ("aie2p",), _flow_kv_keys,
)  # fmt: skip

FLOW_KV_VALUES_BEGIN = Kernel(
    "flow_kv_values_begin", "flow_kv/flow_kv.cc", (Array("f32", 2080),),
    compiled(lambda scalars: copy_cycles(4160)), ("aie2p",),
)  # fmt: skip

FLOW_KV_VALUES = Kernel(
    "flow_kv_values", "flow_kv/flow_kv.cc",
    (Array("u8", 4352), Array("bf16", 4096), Array("f32", 2080), int, int), _flow_kv_values,
    ("aie2p",), lambda scalars: _flow_kv_heads(*scalars),
)  # fmt: skip

FLOW_KV_GIVE_MAXIMA = Kernel(
    "flow_kv_give_maxima", "flow_kv/flow_kv.cc", (Array("f32", 64), Array("f32", 32)),
    compiled(lambda scalars: copy_cycles(64)), ("aie2p",),
)  # fmt: skip

FLOW_KV_PASS = Kernel(
    "flow_kv_pass", "flow_kv/flow_kv.cc",
    (Array("f32", 2080), Array("f32", 32), Array("f32", 2112)),
    compiled(lambda scalars: copy_cycles(4224)), ("aie2p",),
)  # fmt: skip

FLOW_KV_MERGE = Kernel(
    "flow_kv_merge", "flow_kv/flow_kv.cc",
    (Array("f32", 2080), Array("f32", 32), Array("f32", 2112), int, int), compiled(_flow_kv_merge),
    ("aie2p",), lambda scalars: _flow_kv_heads(*scalars),
)  # fmt: skip

# Two trips of limbs, three macs and a rounding after a scalar inverse.
FLOW_KV_OUTPUT = Kernel(
    "flow_kv_output", "flow_kv/flow_kv.cc", (Array("f32", 2080), Array("bf16", 64), int, int),
    compiled(lambda scalars: CALL + 20 * LATENCY), ("aie2p",),
    lambda scalars: 0 <= scalars[0] < 32 and _flow_kv_heads(0, scalars[1]),
)  # fmt: skip
