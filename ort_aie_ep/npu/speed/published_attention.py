"""Published attention kernels: what they take on silicon beside a count of what they issue.

The catalog's models (aie_kernels/catalog_attention.py) count issues and multiply by `COMPILED`. The
same rules, applied by hand to the sources of kernels that others have measured, say what that
factor should be. All of them are mlir-air's (at e972f294), on NPU2:

* flash attention of a prompt (programming_examples/flash_attention/kernel_fusion_based,
  attn_npu2.cc), per 64 queries x 64 keys of head dimension 64. Its table of latencies
  (kernel_registry/details/FlashAttention_bf16.md) has nine rows at that dimension, in which a
  straight line separates runs, launches (two heads x 256 queries) and scores. All scores are
  computed: the causal 16,384 x 16,384 row takes as long as the one without a mask.
* attention of a token in the fused decoder (programming_examples/fused_decode/kernels, attn_qk.cc
  and attn_kv.cc, for two KV heads of four queries), per 16 keys, from what a longer context adds to
  a token in the nightly sweep of 2026-08-22.

Counts of others' code are as good as the reader's guess at what a compiler makes of it. So they
support a factor for all kernels, and not one for each.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ort_aie_ep.aie_kernels.catalog_attention import CALL, COMPILED, LATENCY, LOOP, TILE_PRODUCT
from ort_aie_ep.npu.speed.mlir_air import DECODERS, MEASURED
from ort_aie_ep.npu.speed.papers import CONTEXTS
from ort_aie_ep.npu.vocabulary import costs

CORES = 32
BLOCK = 64  # queries and keys of flash attention's tile
KEYS = 16  # of a block of the decoder

#: Latencies of flash attention at head dimension 64: query heads, tokens, ms; the middle of a range
#: where one is given.
FLASH_ATTENTION = (
    (32, 2048, 15.75), (32, 2048, 16.9), (2, 512, 0.73), (12, 512, 1.22), (64, 512, 3.79),
    (12, 1024, 2.485), (2, 16384, 39.6), (2, 16384, 40.1), (14, 2048, 7.27),
)  # fmt: skip


@dataclass(frozen=True)
class Published:
    """A kernel with its cycles on silicon, at 1.8 GHz, and those that are counted."""

    name: str
    measured: float
    counted: float

    @property
    def modelled(self) -> float:
        """Cycles by the rule for this project's kernels."""
        return COMPILED * self.counted


@dataclass(frozen=True)
class FlashAttention:
    """The line through `FLASH_ATTENTION`, in seconds; `score` is one core's."""

    run: float
    launch: float
    score: float

    @property
    def block_cycles(self) -> float:
        """Cycles of a core for 64 queries with 64 keys."""
        return self.score * BLOCK**2 * costs.CLOCK.value

    def seconds(self, heads: int, tokens: int) -> float:
        """One call."""
        work = self.score * heads * tokens**2 / CORES
        return self.run + self.launch * _launches(heads, tokens) + work


def flash_attention() -> FlashAttention:
    """The line with the smallest sum of squares of relative errors."""
    rows = [
        (1e3 / ms, 1e3 * _launches(heads, tokens) / ms, 1e3 * heads * tokens**2 / CORES / ms)
        for heads, tokens, ms in FLASH_ATTENTION
    ]
    run, launch, score = np.linalg.lstsq(np.array(rows), np.ones(len(rows)), rcond=None)[0]
    return FlashAttention(float(run), float(launch), float(score))


def _launches(heads: int, tokens: int) -> float:
    return heads / 2 * tokens / 256


def published() -> tuple[Published, ...]:
    """Every kernel with a measurement and a source to count."""
    clock = costs.CLOCK.value
    return (
        Published(
            "flash attention, 64 x 64 x 64",
            flash_attention().block_cycles,
            _flash_attention_block(),
        ),
        *(
            Published(
                f"decoder, 16 keys, 2 x 4 queries of {head_dim}",
                _seconds_of_keys(model) * KEYS * clock,
                max(_decoder_scores(head_dim), _decoder_values(head_dim)),
            )
            for model, head_dim in (("llama-3.2-1b", 64), ("qwen3-8b", 128))
        ),
    )


def _seconds_of_keys(model: str) -> float:
    """What one more key of the context adds to a layer, between 1k and 32k."""
    at = dict(zip(CONTEXTS, MEASURED[model], strict=True))
    first, last = CONTEXTS[0], CONTEXTS[5]
    return (1 / at[last] - 1 / at[first]) / (last - first) / DECODERS[model].shape.layers


# --- counts ---------------------------------------------------------------------------------------
def _flash_attention_block() -> float:
    """64 queries with 64 keys of dimension 64, in tiles of 8 x 8; everything else in rows of 4."""
    quads = BLOCK // 4
    # Both products: 16 bodies of 2 x 2 tiles. Loads and conversions of C, eight steps of four
    # products (which hide their loads and transpositions), narrowing and stores.
    products = 2 * 16 * (12 + 8 * 4 * TILE_PRODUCT + LOOP + 8)
    # Eight maxima of 32 lanes; then rows of 8 lanes are reduced, four at a time.
    maxima = quads * (LOOP + 8 + 3 * 2 * LATENCY + 4)
    # Maxima of four rows are put together; then, per 32 scores, a difference of bfloat16 (three
    # issues), a clamp, and two halves of product, widening and exponential.
    exponentials = quads * (4 * LATENCY + LOOP + 8 * 10)
    corrections = LOOP + 4 * 8 + 10 * LATENCY
    sums = quads * (LOOP + 8 + 3 * 2 * LATENCY + 6)
    # Output in bfloat16: product and narrowing of 32.
    rescaling = quads * (4 * LATENCY + LOOP + 8 * 2)
    copies = LOOP + BLOCK * BLOCK / 32 + 6 * (LOOP + 2)
    return products + maxima + exponentials + corrections + sums + rescaling + copies + 13 * CALL


def _decoder_scores(head_dim: int) -> float:
    """The core of scores: for each of two KV heads, eight padded rows; then eight softmaxes."""
    # Two products a step; four shuffles transpose their keys.
    products = LOOP + head_dim / 8 * 4 + 4 + 4 * 4 + 8 * LATENCY
    # A chain: selection, maximum of 16 lanes in four steps, the running maximum, a difference of
    # bfloat16, a clamp, a looked-up exponential and its narrowing.
    softmax = (1 + 8 + 2 + 4 + 2 + 8 + 2) * LATENCY
    return CALL + 2 * products + 8 * softmax


def _decoder_values(head_dim: int) -> float:
    """The core of values: Y in tiles of 8 heads x 8 dimensions."""
    sums = 15 * LATENCY
    # A product of fp32: three limbs of each factor and nine macs of 64 lanes, four stores.
    rescaling = LOOP + head_dim / 8 * (10 + 9 + 4)
    # Two chains of two products, a sum and a selection for each tile.
    products = LOOP + head_dim / 8 * 2 * (2 * TILE_PRODUCT + 6 * LATENCY)
    return CALL + sums + rescaling + products
