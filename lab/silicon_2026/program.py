"""mlir-air's prefill (programming_examples/llms at e972f294), composed from its parts.

A prompt goes through the whole depth at once, at the length for which its programs were built.
Weights are bfloat16 in device memory: nothing is dequantised per prompt. A layer is three
dispatches (norm, queries, keys, values and rotation; attention; output, residual, norm and MLP) or
seven to eight, where the MLP is too wide for one. Every operator reads and writes DDR, and the host
carries what one dispatch leaves for the next, unless buffers are shared (Gemma's MLP). The last
row's norm is the host's, and the vocabulary is a matrix-vector product in parts of 16,384.

Attention comes in two kernels. The seq-first one (`fa_temporal`, head dimensions 64 and 128) reads
keys up to the end of each round of queries; with eight rounds or more it reads all keys in each
(pull request #1958). The head-first one reads all keys for every 256 queries of a head, and the
host transposes for it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import Literal

import numpy as np

from ort_aie_ep.models.shapes import SHAPES, Shape
from ort_aie_ep.prediction.measured import PROMPTS, Cell, cells
from silicon_2026 import parts

Part = Literal["qkv", "attention", "o", "gate and up", "activation", "down", "head"]

BF16 = 2  # bytes
HEAD_ROWS = 16384  # of the vocabulary's parts
ALL_KEYS_ROUNDS = 8  # from which on each round reads all keys
#: Every third cell, in the order of the table, is held out of the fit.
HELD_OUT, FIRST_HELD_OUT = 3, 2


@dataclass(frozen=True)
class Model:
    """A model as mlir-air builds its prompts.

    `split`: the MLP is dispatches of their own, whose operands the host carries (Gemma's share
    buffers). `seq_first`: its driver takes the seq-first attention where that fits. `low`: gate and
    up are the registry's less exact products.
    """

    shape: Shape
    split: bool = False
    seq_first: bool = True
    low: bool = False
    bias: bool = False

    @property
    def head_norms(self) -> bool:
        """Whether heads of queries and keys are normalised."""
        return self.shape.family in ("qwen3", "gemma3_text")


_3B = SHAPES["llama-3.2-3b"]
_QWEN25_7B = replace(
    SHAPES["qwen2.5-3b"], hidden=3584, ffn=18944, layers=28, heads=28, kv_heads=4, vocab=152064,
    tied=False,
)  # fmt: skip
MODELS: dict[str, Model] = {
    "llama-3.2-1b": Model(SHAPES["llama-3.2-1b"]),
    "llama-3.2-3b": Model(_3B),
    "phi4-mini": Model(replace(_3B, layers=32, vocab=200064)),
    "llama-3.1-8b": Model(SHAPES["llama-3.1-8b"]),
    "qwen2.5-7b": Model(_QWEN25_7B, split=True, seq_first=False, low=True, bias=True),
    "qwen3-8b": Model(SHAPES["qwen3-8b"], split=True, seq_first=False),
    "gemma3-4b": Model(SHAPES["gemma3-4b"], seq_first=False),
    "qwen3-4b": Model(SHAPES["qwen3-4b"], split=True, seq_first=False),
}


@dataclass(frozen=True)
class Constants:
    """What is fitted: to how many seconds a second of the registry's machine comes on the machine
    of the table, and the bytes that the host carries in a second."""

    device: float = 1.0
    host: float = float("inf")


@dataclass(frozen=True)
class Prompt:
    """A prompt's seconds by part, on the registry's machine, and the bytes that the host carries.

    `seq_first`: which attention it has.
    """

    parts: dict[Part, float]
    carried: float
    seq_first: bool

    def seconds(self, constants: Constants) -> float:
        """Seconds to the first token."""
        return constants.device * sum(self.parts.values()) + self.carried / constants.host


def is_seq_first(model: Model, tokens: int) -> bool:
    """Whether the seq-first attention takes a prompt (`fa_temporal.supports`)."""
    shape = model.shape
    group = shape.heads // shape.kv_heads
    if not model.seq_first or shape.head_dim not in (64, 128) or group > 4:
        return False
    return shape.head_dim == 64 or group == 3 or tokens // 256 <= 4


def attention_seconds(model: Model, tokens: int) -> float:
    """Seconds of one layer's attention."""
    shape, (run, launch) = model.shape, parts.attention_line().constants
    if not is_seq_first(model, tokens):
        tiling = parts.HEAD_FIRST[shape.head_dim]
        launches = tiling.launches(shape.heads, shape.head_dim, tokens)
        streamed = tiling.streamed(shape.heads, shape.head_dim, tokens)
        return run + launches * launch + streamed / parts.STREAM
    # A core has 64 queries of a head (32 of heads of 128) in a round.
    own = 4096 // shape.head_dim
    queries = 8 * own
    rounds = tokens // queries
    sweeps = rounds if rounds >= ALL_KEYS_ROUNDS else (rounds + 1) / 2
    keys = shape.kv_heads * sweeps * tokens
    products = keys * own * shape.head_dim * 2
    streamed = 2 * BF16 * keys * shape.head_dim
    return run + shape.kv_heads * launch + max(
        products / parts.attention_rate(), streamed / parts.STREAM
    )  # fmt: skip


def prompt(model: Model, tokens: int) -> Prompt:
    """A prompt of `tokens`, its length being that of the programs."""
    shape = model.shape
    hidden, ffn, queries, keys = shape.hidden, shape.ffn, shape.queries, shape.keys
    product, vector = parts.product_seconds, parts.vector_seconds
    norm = vector("norm", tokens * hidden)
    behind = norm if shape.family == "gemma3_text" else 0
    add = vector("add", tokens * hidden)
    qkv = norm + product(tokens, hidden, queries) + 2 * product(tokens, hidden, keys)
    qkv += vector("rope", tokens * queries) + vector("rope", tokens * keys)
    if model.head_norms:
        qkv += vector("norm", tokens * queries) + vector("norm", tokens * keys)
    if model.bias:
        qkv += vector("add", tokens * queries) + 2 * vector("add", tokens * keys)
    wide = product(tokens, hidden, ffn, "direct" if model.low else None)
    layer: dict[Part, float] = {
        "qkv": qkv,
        "attention": attention_seconds(model, tokens),
        "o": product(tokens, queries, hidden) + add + norm + behind,
        "gate and up": 2 * wide,
        "activation": vector("silu", tokens * ffn),
        "down": product(tokens, ffn, hidden) + add + behind,
    }
    head = ceil(shape.vocab / HEAD_ROWS) * vector("gemv", BF16 * HEAD_ROWS * hidden)
    every: dict[Part, float] = {part: shape.layers * s for part, s in layer.items()}
    seq_first = is_seq_first(model, tokens)
    carried = 2 * hidden + 2 * queries + 2 * keys  # operands of the three stages
    if not seq_first:  # transposed there and back
        carried += 2 * (queries + 2 * keys) + 2 * queries
    if model.split:
        carried += 3 * hidden + 3 * ffn
    return Prompt(
        {**every, "head": head}, shape.layers * carried * BF16 * tokens, seq_first
    )  # fmt: skip


def fit(of: tuple[Cell, ...]) -> Constants:
    """The two constants with the smallest sum of squared relative errors of the cells."""
    prompts = [prompt(MODELS[cell.model], cell.tokens) for cell in of]
    features = [(sum(one.parts.values()), one.carried) for one in prompts]
    device, second = parts.line(features, [cell.seconds for cell in of]).constants
    return Constants(device, 1 / second)


def split(first: int = FIRST_HELD_OUT) -> tuple[tuple[Cell, ...], tuple[Cell, ...]]:
    """The cells that are fitted, and those that are held out."""
    every = cells(PROMPTS)
    held = tuple(cell for index, cell in enumerate(every) if index % HELD_OUT == first)
    return tuple(cell for cell in every if cell not in held), held


def error(cell: Cell, constants: Constants) -> float:
    """The relative error of the prediction for a cell."""
    return prompt(MODELS[cell.model], cell.tokens).seconds(constants) / cell.seconds - 1


def median_error(of: tuple[Cell, ...], constants: Constants) -> float:
    """The median of the absolute errors."""
    return float(np.median([abs(error(cell, constants)) for cell in of]))
