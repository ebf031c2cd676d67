"""AMD's open decoder (mlir-air, programming_examples/fused_decode): its placement, measured rows.

A token is one dispatch, and a layer, or a part of the vocabulary, is a *wave* of it. Sixteen cores
on four columns project: two weight channels a column, each core 32 outputs of a round of 512. Four
pairs of cores attend, 16 keys at a time, with four channels for keys and values. A core normalises,
one rotates, one gates, and vectors stay in the array. There are no sliding windows, and every
layer's step waits for the one before.

The composition reproduces the measurements with three fitted constants, none of them per model. It
is about mlir-air's kernels, not this project's. All facts are of commit e972f294 of 2026-08-22 and
of its nightly sweep (branch perf-history).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil
from statistics import median

import numpy as np

from npu_papers.machine import Machine
from npu_papers.sizes import layer_projections, norms_of_layer
from npu_papers.tables import CONTEXTS, MLIR_AIR_TOKENS
from ort_aie_ep.aie_kernels.kernel_cycles import FLOW_KV_ELEMENTS, PUBLISHED
from ort_aie_ep.aie_kernels.machine import BF16, Step
from ort_aie_ep.formats.q4nx import BLOCK_BYTES, BLOCK_COLS, BLOCK_ROWS
from ort_aie_ep.models.shapes import SHAPES, Shape
from ort_aie_ep.npu.terms import costs
from ort_aie_ep.npu.terms.costs import Cost
from ort_aie_ep.npu.terms.eras import MLIR_AIR
from ort_aie_ep.prediction.tally import Tally, Timing

CORES = 16  # that project
CHANNELS = 8  # of weights
UNITS = 4  # that attend: a pair of cores each
KV_CHANNELS = 4
KEYS = 16  # of a block

BLOCK = Cost(
    16 * 140, "cycles/block", "Krackan",
    "mlir-air: the inner body of its projection kernel is 140 bundles and runs 16 times a block of "
    "32 x 256 (stated for signed weights, assumed of the others)", "inferred",
)  # fmt: skip
WAVE = Cost(20e-6, "s", "Krackan", "mlir-air: the barrier of a wave, about 20 µs", "measured")
NORM = Cost(
    1500 / 2048, "cycles/element", "Krackan", "mlir-air: RMS norm of 2,048 in about 1,500 cycles",
    "measured",
)  # fmt: skip
GLU = Cost(
    856, "cycles", "NPU2", "mlir-aie's kernel table: swiglu of 1,024, of which the last slice of a "
    "layer overlaps with nothing", "measured",
)  # fmt: skip
FLUSH = Cost(
    1390, "cycles/round", "Krackan",
    "the end of a core's 32 outputs: narrowing, pairing and sending them while the next block "
    "waits; at most a block's own cycles", "fitted", (0, 2240),
)  # fmt: skip
ATTENTION_BLOCK = Cost(
    1050, "cycles/block", "Krackan",
    "of a unit, for 16 keys, whatever the heads: softmax statistics, locks, two calls. The partial "
    "softmax of 64 x 64 takes 1,696 (mlir-aie's kernel table)", "fitted", (200, 1696),
)  # fmt: skip
ATTENTION_RATE = Cost(
    2.31, "cycles/element", "Krackan",
    "of a unit, for 16 keys and an element of a query, queries of a KV head padded to a power of "
    "two; from 20 MAC a cycle (matvec of 4 x 2048) to 4 (an exact bf16 product of 8 lanes)",
    "fitted", (16 / 20, 16 / 4),
)  # fmt: skip

#: The cells to which the three constants are fitted: the smallest and the largest llama, at three
#: lengths.
CALIBRATION = tuple((m, c) for m in ("llama-3.2-1b", "llama-3.1-8b") for c in (1024, 8192, 32768))

#: Models from which nothing at all comes. The era's bandwidth of DDR and of a channel come from
#: llama-3.1-8b and gemma3-4b; that queries count as a power of two was chosen because it makes
#: llama-3.2-3b, phi4-mini and qwen2.5-7b fit.
UNTOUCHED = ("qwen3-8b", "qwen2.5-3b")


@dataclass(frozen=True)
class Decoder:
    """A model as mlir-air builds it: `head_rows` of the vocabulary are a wave."""

    shape: Shape
    head_rows: int
    block_bytes: int = BLOCK_BYTES


_QWEN_7B = replace(
    SHAPES["qwen2.5-3b"], hidden=3584, ffn=18944, layers=28, heads=28, kv_heads=4, vocab=152064
)
DECODERS: dict[str, Decoder] = {
    "llama-3.2-1b": Decoder(SHAPES["llama-3.2-1b"], 18432),
    "llama-3.2-3b": Decoder(SHAPES["llama-3.2-3b"], 9216),
    "gemma3-4b": Decoder(SHAPES["gemma3-4b"], 2560),
    "phi4-mini": Decoder(replace(SHAPES["llama-3.2-3b"], layers=32, vocab=200064), 18432),
    "qwen3-8b": Decoder(SHAPES["qwen3-8b"], 8192),
    "llama-3.1-8b": Decoder(SHAPES["llama-3.1-8b"], 16384),
    "qwen2.5-7b": Decoder(_QWEN_7B, 3584),
    # Signed codes without minima, by another driver; the rows of its waves are not published.
    "qwen2.5-3b": Decoder(SHAPES["qwen2.5-3b"], 18432, block_bytes=4608),
}


#: The published cycles with those to which this decoder is fitted: of attention in place of a
#: matvec's (a chunk has 4,096 elements of keys), and of the end of a round.
KERNELS = replace(
    PUBLISHED, name="mlir-air", dqp_end=FLUSH.value,
    flow_kv_chunk=lambda queries, head_dim: FLOW_KV_ELEMENTS / head_dim / KEYS * (
        ATTENTION_BLOCK.value + ATTENTION_RATE.value * _padded(queries) * head_dim
    ),
)  # fmt: skip


def _padded(queries: int) -> int:
    """Queries of a KV head as its attention counts them: a power of two."""
    return 1 << (queries - 1).bit_length()


@dataclass(frozen=True)
class Constants:
    """The fitted constants, in cycles."""

    flush: float = FLUSH.value
    attention_block: float = ATTENTION_BLOCK.value
    attention_rate: float = ATTENTION_RATE.value


#: The constant of this module for each field of `Constants`.
COSTS: dict[str, Cost] = {
    "flush": FLUSH, "attention_block": ATTENTION_BLOCK, "attention_rate": ATTENTION_RATE,
}  # fmt: skip


def projection(outputs: int, inputs: int, block_bytes: int, flush: float) -> tuple[Step, ...]:
    """A projection of one vector: every core 32 outputs a round, a block for each 256 inputs."""
    rounds = ceil(outputs / (CORES * BLOCK_ROWS))
    depth = ceil(inputs / BLOCK_COLS)
    weights = rounds * depth * CORES * block_bytes
    return (
        Step(
            shim=weights / CHANNELS,
            kernels=rounds * (depth * BLOCK.value + flush),
            read=weights,
        ),
    )


def attention(shape: Shape, keys: int, constants: Constants) -> tuple[Step, ...]:
    """Attention of one token to `keys` keys; a layer without a window, whatever the model has."""
    units = min(shape.kv_heads, UNITS)
    group = shape.heads // shape.kv_heads
    queries = ceil(shape.kv_heads / units) * _padded(group)
    cycles = constants.attention_block + constants.attention_rate * queries * shape.head_dim
    blocks = ceil(keys / KEYS)
    cached = blocks * KEYS * 2 * BF16 * shape.keys
    return (Step(shim=cached / KV_CHANNELS, kernels=blocks * cycles, read=cached),)


def vectors(shape: Shape) -> tuple[Step, ...]:
    """What a layer does between projections: norms, rotation, the last gates, two first data."""
    cycles = (
        norms_of_layer(shape) * shape.hidden * NORM.value
        + (shape.queries + shape.keys) * costs.ROPE.value
        + GLU.value
    )
    return (Step(control=cycles, idle=2),)


def token(decoder: Decoder, context: int, constants: Constants | None = None) -> Timing:
    """One token with a window of `context` keys, in one dispatch."""
    constants = constants or Constants()
    shape, size = decoder.shape, decoder.block_bytes
    tally = Tally(Machine.of(MLIR_AIR))
    for each in layer_projections(shape):
        steps = projection(each.outputs, each.inputs, size, constants.flush)
        tally.add("projections", steps, shape.layers)
    tally.add("attention", attention(shape, context, constants), shape.layers)
    tally.add("vector", vectors(shape), shape.layers)
    parts = ceil(shape.vocab / decoder.head_rows)
    head = projection(decoder.head_rows, shape.hidden, size, constants.flush)
    tally.add("lm_head", head, parts)
    wave = Step(control=WAVE.value * tally.machine.clock_hz)
    tally.add("waves", (wave,), shape.layers + parts)
    return tally.timing(runs=1, switches=0)


@dataclass(frozen=True)
class Cell:
    """A measured cell, the prediction and its relative error; `calibrates`: fitted to it."""

    model: str
    context: int
    measured: float
    predicted: float
    error: float
    calibrates: bool


def cells(constants: Constants | None = None) -> Iterator[Cell]:
    """Every cell of the sweep, predicted."""
    for model, row in MLIR_AIR_TOKENS.items():
        for context, measured in zip(CONTEXTS, row, strict=True):
            predicted = 1 / token(DECODERS[model], context, constants).seconds
            yield Cell(
                model, context, measured, predicted, predicted / measured - 1,
                (model, context) in CALIBRATION,
            )  # fmt: skip


def fit(calibration: Sequence[tuple[str, int]] = CALIBRATION) -> Constants:
    """The constants with the least squares of the relative errors of a token's time.

    A token's time is linear in them wherever cores are the limit, so a few steps of Gauss and
    Newton from any start end at the least squares.
    """

    def residuals(at: np.ndarray) -> np.ndarray:
        constants = Constants(*map(float, at))
        return np.array([
            token(DECODERS[model], context, constants).seconds
            * MLIR_AIR_TOKENS[model][CONTEXTS.index(context)] - 1
            for model, context in calibration
        ])  # fmt: skip

    at = np.array([sum(cost.bounds) / 2 for cost in COSTS.values()])
    for _ in range(8):
        now = residuals(at)
        slopes = np.stack([residuals(at + step) - now for step in np.diag(at * 1e-3)], axis=1)
        at = at - np.linalg.lstsq(slopes / (at * 1e-3), now, rcond=None)[0]
    return Constants(*map(float, at))


@dataclass(frozen=True)
class Sweep:
    """Every measured cell beside the model, with the constants and how far they move.

    `moved` has each constant's least and largest value with one calibration cell left out; `median`
    and `worst` are of the cells to which these constants were not fitted, `untouched_median` and
    `untouched_worst` of the models in `UNTOUCHED`.
    """

    constants: dict[str, Cost]
    refitted: Constants
    moved: dict[str, tuple[float, float]]
    cells: tuple[Cell, ...]
    median: float
    worst: float
    untouched_median: float
    untouched_worst: float


def sweep() -> Sweep:
    """Judge the composition by all cells of the sweep."""
    found = tuple(cells())
    errors = [abs(cell.error) for cell in found if not cell.calibrates]
    untouched = [abs(cell.error) for cell in found if cell.model in UNTOUCHED]
    without = [fit([other for other in CALIBRATION if other != cell]) for cell in CALIBRATION]
    values = {name: [getattr(constants, name) for constants in without] for name in COSTS}
    moved = {name: (min(of), max(of)) for name, of in values.items()}
    return Sweep(
        COSTS, fit(), moved, found, median(errors), max(errors), median(untouched), max(untouched)
    )
