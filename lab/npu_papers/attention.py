"""Published attention kernels: what they take on silicon beside a count of what they issue.

The catalog's models (aie_kernels/cycles.py) count issues and multiply by `COMPILED`. The
same rules, applied by hand to the sources of kernels that others have measured, say what that
factor should be. All of them are mlir-air's (at e972f294), on NPU2:

* flash attention of a prompt (programming_examples/flash_attention/kernel_fusion_based,
  attn_npu2.cc), per 64 queries x 64 keys. Its table of latencies
  (kernel_registry/details/FlashAttention_bf16.md) has sixteen rows, in which a straight line
  separates runs, launches (two heads x 256 queries, twice for values of 128) and scores. All scores
  are computed: the causal 16,384 x 16,384 row takes as long as the one without a mask.
* attention of a token in the fused decoder (programming_examples/fused_decode/kernels, attn_qk.cc
  and attn_kv.cc), per 16 keys, from what a longer context adds to a token in the nightly sweep of
  2026-08-22.

Counts of others' code are as good as the reader's guess at what a compiler makes of it. So they
support a factor for all kernels, and not one for each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from math import ceil

import numpy as np

from npu_papers.machine import Machine
from npu_papers.mlir_air import (
    DECODERS,
    KEYS,
    UNITS,
    Constants,
    attention,
)
from npu_papers.tables import BLOCK, CONTEXTS, FLASH_ATTENTION, MLIR_AIR_TOKENS, Latency
from ort_aie_ep.aie_kernels.cycles import CALL, COMPILED, LATENCY, LOOP, TILE_PRODUCT
from ort_aie_ep.npu.terms import costs
from ort_aie_ep.npu.terms.eras import MLIR_AIR


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
    """The line through `FLASH_ATTENTION`, in seconds; `score` is one core's, by head dimension."""

    run: float
    launch: float
    score: dict[int, float]

    def block_cycles(self, head_dim: int) -> float:
        """Cycles of a core for 64 queries with 64 keys."""
        return self.score[head_dim] * BLOCK**2 * costs.CLOCK.value

    def fixed(self, call: Latency) -> float:
        """Seconds of one call that its scores do not explain."""
        return self.run + self.launch * call.launches

    def seconds(self, call: Latency) -> float:
        """Seconds of one call; its own milliseconds are not used."""
        return self.fixed(call) + self.score[call.head_dim] * call.scores


@cache
def flash_attention() -> FlashAttention:
    """The line with the smallest sum of squares of relative errors, over all rows."""
    dims = (64, 128)
    rows = [
        np.array([1, row.launches, *(row.scores * (row.head_dim == dim) for dim in dims)])
        / row.seconds
        for row in FLASH_ATTENTION
    ]
    run, launch, *scores = np.linalg.lstsq(np.stack(rows), np.ones(len(rows)), rcond=None)[0]
    return FlashAttention(
        float(run), float(launch), dict(zip(dims, map(float, scores), strict=True))
    )


@dataclass(frozen=True)
class DecoderAttention:
    """What 16 keys take a unit of the decoder (a pair of cores), in cycles.

    The unit attends for `kv_heads` with `queries` each. `measured` has the least and the most of
    the models that have such a unit, `fitted` is `mlir_air`'s fit. Where its channels bind
    (`channels_bind`), `measured` is theirs, and no more than a bound of what the cores take.
    """

    kv_heads: int
    queries: int
    head_dim: int
    measured: tuple[float, float]
    fitted: float
    channels_bind: bool


def decoder_attention() -> Iterator[DecoderAttention]:
    """Every distinct unit of the sweep."""
    models: dict[tuple[int, int, int], list[str]] = {}
    for model, decoder in DECODERS.items():
        shape = decoder.shape
        unit = ceil(shape.kv_heads / UNITS), shape.heads // shape.kv_heads, shape.head_dim
        models.setdefault(unit, []).append(model)
    for unit, names in models.items():
        cycles = [_cycles_of_keys(model) for model in names]
        (step,) = attention(DECODERS[names[0]].shape, KEYS, Constants())
        bounds = Machine.of(MLIR_AIR).by_bound((step,))
        yield DecoderAttention(
            *unit, (min(cycles), max(cycles)), step.kernels,
            max(bounds, key=lambda bound: bounds[bound]) != "kernels",
        )  # fmt: skip


def published() -> tuple[Published, ...]:
    """Every kernel with a measurement and a source to count."""
    return (
        Published(
            "flash attention, 64 x 64 x 64",
            flash_attention().block_cycles(BLOCK),
            _flash_attention_block(),
        ),
        *(
            Published(
                f"decoder, 16 keys, 2 x 4 queries of {head_dim}",
                _cycles_of_keys(model),
                max(_decoder_scores(head_dim), _decoder_values(head_dim)),
            )
            for model, head_dim in (("llama-3.2-1b", 64), ("qwen3-8b", 128))
        ),
    )


def _cycles_of_keys(model: str) -> float:
    """What 16 more keys of the context add to a layer, between 1k and 32k."""
    at = dict(zip(CONTEXTS, MLIR_AIR_TOKENS[model], strict=True))
    first, last = CONTEXTS[0], CONTEXTS[5]
    seconds = (1 / at[last] - 1 / at[first]) / (last - first) / DECODERS[model].shape.layers
    return seconds * KEYS * costs.CLOCK.value


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
