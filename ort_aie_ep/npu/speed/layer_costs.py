"""What the design `fused_layer` needs of the array, as in `operators`: a layer, and the vocabulary.

All weights enter by eight channels, each for two of the 16 projection cores. Projections that
follow one another without a vector operator between them are one step.
"""

from __future__ import annotations

from math import ceil

from ort_aie_ep.aie_kernels import catalog_layer as catalog
from ort_aie_ep.npu.speed.kernels import ARCHITECTURE, PUBLISHED, Kernels
from ort_aie_ep.npu.speed.operators import (
    BF16,
    FLOW_KV_CHUNK,
    PAIRS,
    Q4NX_BLOCK,
    Q4NX_INPUTS,
    TASK,
    Step,
    control,
)
from ort_aie_ep.npu.vocabulary.kernel import Kernel

CHANNELS, CORES = 8, 16  # of weights, and of projections
OBJECT, ROUND = catalog.OBJECT, catalog.ROUND
WORDS = 16 * 14 + 8 * 15  # of parameters: projection cores, then pairs, hub, rope and gate


def fused_layer(
    hidden: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    ffn: int,
    keys: int,
    window: int | None,
    post_norm: bool,
    kernels: Kernels = PUBLISHED,
) -> tuple[Step, ...]:
    """A decoder layer of one token with `keys` keys, its own included."""
    queries, group = heads * head_dim, heads // kv_heads
    width = queries + 2 * kv_heads * head_dim
    sweeps = ceil(kv_heads / PAIRS)
    per_chunk = FLOW_KV_CHUNK // (BF16 * head_dim)
    first = 0 if window is None else max(0, keys - window)
    chunks = ceil(keys / per_chunk) - first // per_chunk
    chunk = kernels.flow_kv_chunk(group, head_dim)
    new = 2 * kv_heads * head_dim  # keys and values
    rotated = ceil(new / OBJECT) + ceil(min(queries, OBJECT * PAIRS) / OBJECT)
    norm, add = _norm(hidden), _add(hidden, post_norm)
    return (
        Step(control=control(2, WORDS) + norm, read=BF16 * 2 * hidden, idle=1),
        _project((width, hidden), kernels=kernels),
        # New keys and values go to memory and come back.
        Step(control=rotated * kernels.rope(OBJECT, head_dim), write=64 * new / 8, idle=2),
        Step(
            shim=sweeps * chunks * FLOW_KV_CHUNK,
            kernels=sweeps * (chunks + 1) * chunk,  # values trail keys by a chunk
            read=2 * PAIRS * sweeps * chunks * FLOW_KV_CHUNK,
        ),
        _project((hidden, queries), kernels=kernels),
        Step(control=add + norm, read=BF16 * hidden * (1 + 2 * post_norm)),
        _project((ffn, hidden), (ffn, hidden), (hidden, ffn), kernels=kernels),
        Step(control=add + control(1), write=BF16 * hidden),
    )


def fused_head(n: int, hidden: int, kernels: Kernels = PUBLISHED) -> tuple[Step, ...]:
    """The final norm, and the product with (n, hidden) weights."""
    first = Step(control=control(2, WORDS) + _norm(hidden), read=BF16 * 2 * hidden, idle=1)
    return first, _project((n, hidden), kernels=kernels, written=n)


def _project(*matrices: tuple[int, int], kernels: Kernels, written: int = 0) -> Step:
    """Products with (outputs, inputs) weights, one after another.

    A round takes 16 rows of blocks, two by each channel, and a last round takes as many: some are
    read twice.
    """
    blocks = sum(ceil(n / ROUND) * (k // Q4NX_INPUTS) for n, k in matrices)  # of a core
    return Step(
        shim=2 * blocks * Q4NX_BLOCK,
        kernels=blocks * kernels.dqp_block,
        commands=len(matrices) * CHANNELS * TASK,
        read=CORES * blocks * Q4NX_BLOCK,
        write=BF16 * written,
    )


def _cycles(kernel: Kernel, *scalars: int) -> float:
    return kernel.cycles(ARCHITECTURE, scalars)


def _norm(hidden: int) -> float:
    """The residual stream's norm, from the scale to its last piece at the projections."""
    pieces = hidden // OBJECT
    return _cycles(catalog.LAYER_SCALE, 0, hidden, 0) + pieces * _cycles(catalog.LAYER_NORM, 0)


def _add(hidden: int, post_norm: bool) -> float:
    """An output's norm, if there is one, and its residual sum."""
    scale = _cycles(catalog.LAYER_SCALE, catalog.SECOND, hidden, 0)
    norm = scale + hidden // OBJECT * _cycles(catalog.LAYER_NORM_OUTPUT, 0)
    return (norm if post_norm else 0) + _cycles(catalog.LAYER_ADD, hidden)
