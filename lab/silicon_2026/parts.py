"""What mlir-air published about the parts of its prompts, on Strix, and lines through them.

Sources: programming_examples/kernel_registry/details at e972f294 (measured in June to August 2026
on "NPU2, RyzenAI-npu4"), pull request #1940, and the READMEs of programming_examples/llms. None of
these is a cell of the table of prompts. Each part is a line with few constants, of the smallest sum
of squared relative errors over all its rows; `main` prints how well the lines hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np

Method = Literal["fused-cast", "drain", "direct"]

CORES, COLUMNS, ROWS = 32, 4, 8  # of a product's herd: 8 x 4
STREAM = 4 * 1.8e9  # B/s: AM020's 32-bit stream at the highest clock of amdxdna's table
TILE_M: dict[Method, int] = {"fused-cast": 64, "drain": 32, "direct": 64}


@dataclass(frozen=True)
class Product:
    """A row of GEMM_bf16_in_bf16_out.json: C of `m` x `n` by a sum over `k`.

    `k_step` (tile_k_l2) is what of K a memory tile holds, `tile_n` a core's columns of C. The rate
    is 2 m k n over the time of the whole call, a separate cast to bfloat16 included.
    """

    method: Method
    m: int
    k: int
    n: int
    k_step: int
    tile_n: int
    gflops: float

    @property
    def seconds(self) -> float:
        """The time of one call."""
        return 2 * self.m * self.k * self.n / self.gflops / 1e9


def _rows(method: Method, *rows: tuple[int, int, int, int, int, float]) -> tuple[Product, ...]:
    return tuple(Product(method, *row) for row in rows)


#: All rows of 512 rows or more with the full herd, the method's tile and a rate of their own. Left
#: out: three rates that the page says are carried over from a neighbour.
PRODUCTS = (
    *_rows(
        "fused-cast",
        (2048, 2048, 2048, 512, 128, 6215), (2048, 2048, 512, 256, 128, 4083),
        (2048, 2048, 8192, 256, 128, 6893), (2048, 8192, 2048, 256, 128, 8898),
        (1024, 1024, 1024, 256, 128, 2502), (4096, 4096, 4096, 512, 128, 8423),
        (2048, 1024, 2048, 256, 128, 4425), (2048, 1024, 3072, 256, 128, 4711),
        (2048, 2048, 1024, 256, 128, 5392), (2048, 3072, 1024, 256, 128, 6461),
        (2048, 4864, 896, 256, 32, 3640), (2048, 1536, 1536, 256, 128, 4821),
        (2048, 8960, 1536, 256, 128, 8804), (2048, 3072, 3072, 256, 128, 7513),
        (2048, 3072, 8192, 256, 128, 7601), (2048, 8192, 3072, 256, 128, 9092),
        (2048, 2048, 6144, 256, 128, 6729), (2048, 6144, 2048, 256, 128, 8536),
        (2048, 11008, 2048, 256, 128, 9447), (2048, 2560, 1024, 256, 128, 6049),
        (2048, 2560, 4096, 256, 128, 7034), (2048, 2560, 9728, 64, 128, 5528),
        (2048, 4096, 2560, 256, 128, 7560), (2048, 9728, 2560, 256, 128, 8633),
        (2048, 2560, 10240, 128, 128, 4849), (2048, 4096, 1024, 256, 128, 7092),
        (2048, 4096, 4096, 512, 128, 8236), (2048, 4096, 12288, 64, 128, 6059),
        (2048, 12288, 4096, 512, 128, 9578), (2048, 4096, 14336, 128, 128, 6574),
        (2048, 14336, 4096, 512, 128, 9570), (2048, 3584, 3584, 128, 128, 6106),
        (2048, 3584, 18944, 64, 128, 5711), (2048, 18944, 3584, 256, 128, 9740),
    ),
    *_rows(
        "drain",
        (512, 512, 512, 256, 128, 1703), (1024, 768, 3072, 256, 128, 4195),
        (1024, 1024, 1024, 256, 128, 4637), (2048, 2048, 2048, 512, 128, 6025),
        (2048, 2048, 512, 256, 128, 5626), (2048, 2048, 8192, 256, 128, 5784),
        (2048, 8192, 2048, 256, 128, 7234), (4096, 4096, 4096, 512, 128, 7002),
        (2048, 1024, 1024, 256, 128, 4980), (2048, 896, 896, 128, 32, 2516),
        (2048, 896, 128, 128, 32, 1890), (2048, 1536, 256, 256, 64, 3770),
        (2048, 2048, 256, 256, 64, 4112), (2048, 2560, 1024, 256, 128, 5389),
        (2048, 3584, 512, 256, 64, 4635), (1024, 768, 768, 384, 96, 3798),
        (1024, 3072, 768, 384, 96, 5790),
    ),
    *_rows(
        "direct",
        (512, 512, 512, 256, 128, 1750), (1024, 1024, 1024, 256, 128, 4456),
        (2048, 2048, 2048, 512, 128, 5230), (2048, 2048, 512, 256, 128, 4765),
        (2048, 2048, 8192, 256, 128, 5287), (2048, 8192, 2048, 256, 128, 5592),
        (4096, 4096, 4096, 512, 128, 5509), (2048, 1536, 8960, 128, 64, 4165),
        (2048, 2048, 11008, 128, 64, 4276), (2048, 2560, 9728, 128, 64, 4397),
        (2048, 4096, 12288, 128, 64, 4469), (2048, 4096, 14336, 128, 64, 4441),
        (2048, 3584, 18944, 32, 64, 3346), (1024, 768, 3072, 256, 128, 3650),
        (2048, 896, 4864, 128, 64, 4320), (2048, 1024, 3072, 256, 128, 5006),
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Attention:
    """A row of FlashAttention_bf16.md: a call of the head-first kernel, milliseconds."""

    heads: int
    head_dim: int
    tokens: int
    milliseconds: float


#: The middle of a range where the page has one. Rows with and without a mask take the same time:
#: all keys go by, and all scores are computed.
ATTENTION = (
    Attention(32, 64, 2048, 15.75), Attention(32, 64, 2048, 16.9), Attention(2, 64, 512, 0.73),
    Attention(12, 64, 512, 1.22), Attention(64, 64, 512, 3.79), Attention(12, 64, 1024, 2.485),
    Attention(32, 128, 512, 4.38), Attention(28, 128, 512, 4.05), Attention(2, 64, 16384, 39.6),
    Attention(2, 64, 16384, 40.1), Attention(16, 128, 2048, 17.6), Attention(14, 64, 2048, 7.27),
    Attention(12, 128, 2048, 14.5), Attention(16, 128, 2048, 19.1), Attention(24, 128, 2048, 25.9),
    Attention(32, 128, 2048, 35.0),
)  # fmt: skip

#: Pull request #1940: tokens/s of llama-3.2-1b's prompt of 4,096 when each of its eight rounds of
#: queries reads all keys, and when it reads only those before its end.
ALL_KEYS, KEYS_BEFORE = 1848, 2068

#: Element-wise operators: (elements, microseconds), from the pages of their names. GEMV's rows are
#: of the vocabulary's parts of 16,384: (bytes of weights, microseconds).
Operator = Literal["norm", "rope", "silu", "add", "gemv"]
_M = 2048
VECTORS: dict[Operator, tuple[tuple[float, float], ...]] = {
    "norm": (
        (_M * 2048, 911), (_M * 1024, 407), (_M * 128, 155), (_M * 896, 398), (_M * 1536, 570),
        (_M * 2560, 867), (_M * 3072, 1012), (256 * 960, 147),
    ),
    "rope": (
        (8 * 64, 83), (32 * 64, 82), (2048 * 64, 105), (4096 * 64, 118), (16384 * 64, 210),
        (65536 * 64, 579), (16384 * 128, 285), (32768 * 128, 477), (49152 * 128, 667),
        (28672 * 64, 303), (24576 * 128, 380), (4096 * 128, 149), (256 * 64, 80),
    ),
    "silu": (
        (_M * 1024, 569), (_M * 2048, 1052), (_M * 4096, 2247), (_M * 8192, 4016),
        (_M * 3072, 1771), (_M * 4864, 2489), (_M * 6144, 3041), (_M * 8960, 4933),
        (_M * 9728, 5077), (_M * 11008, 5694), (256 * 2560, 247),
    ),
    "add": (
        (_M * 512, 175), (_M * 1024, 277), (_M * 2048, 437), (_M * 4096, 798), (_M * 896, 243),
        (_M * 1536, 364), (_M * 2560, 516), (_M * 3072, 614), (256 * 960, 112),
    ),
    "gemv": (
        (2 * 16384 * 2048, 2193), (2 * 16384 * 1024, 1069), (2 * 16384 * 896, 1031),
        (2 * 16384 * 1536, 1545), (2 * 16384 * 2560, 2777), (2 * 16384 * 3072, 3083),
    ),
}  # fmt: skip

#: READMEs: milliseconds of a prompt of 2,048 on the device, all layers together, by the names of
#: `program.Part` (several where a dispatch has them together). Llama-3.2-1b's (docs/profile.md) has
#: an older attention and is left out.
PROFILES: dict[str, dict[str, float]] = {
    "qwen3-8b": {
        "attention": 1649, "gate and up": 1218 + 1243, "down": 807, "qkv": 684, "o": 392,
        "activation": 235, "head": 35,
    },
    "qwen2.5-7b": {
        "attention": 1135, "gate and up": 2358 + 2368, "down": 837, "qkv": 451, "o": 311,
        "activation": 286, "head": 31,
    },
    "gemma3-4b": {
        "attention": 1154, "gate and up": 659 + 656, "down": 645, "qkv": 609, "o": 397,
        "activation": 332, "head": 45,
    },
    "llama-3.1-8b": {
        "attention": 1452, "qkv": 575, "o, gate and up, activation, down": 3900, "head": 28,
    },
}  # fmt: skip


@dataclass(frozen=True)
class Line:
    """Constants of a line in the features of a row, and its relative errors in the rows."""

    constants: tuple[float, ...]
    errors: tuple[float, ...]

    def at(self, features: Sequence[float]) -> float:
        """The value for a row's features."""
        return float(np.dot(self.constants, features))


def line(features: Sequence[Sequence[float]], values: Sequence[float]) -> Line:
    """The line with the smallest sum of squared relative errors."""
    x, y = np.array(features), np.array(values)
    constants = np.linalg.lstsq(x / y[:, None], np.ones(len(y)), rcond=None)[0]
    errors = x @ constants / y - 1
    return Line(tuple(map(float, constants)), tuple(map(float, errors)))


def _product(method: Method, m: int, k: int, n: int, k_step: int, tile_n: int) -> list[float]:
    """A call; products of a core; steps of K in all rounds; elements of C that a core stores."""
    rounds = m / (ROWS * TILE_M[method]) * n / (COLUMNS * tile_n)
    tile = TILE_M[method] * tile_n
    return [1, rounds * k * tile, rounds * k / k_step, rounds * tile]


@cache
def product_line(method: Method) -> Line:
    """Seconds of a product by its method: a call, a product, a step of K, an element of C."""
    rows = [row for row in PRODUCTS if row.method == method]
    features = [_product(method, r.m, r.k, r.n, r.k_step, r.tile_n) for r in rows]
    return line(features, [row.seconds for row in rows])


@cache
def _tiles() -> dict[tuple[Method, int, int], tuple[int, int]]:
    found = {(r.method, r.k, r.n): (r.k_step, r.tile_n) for r in PRODUCTS}
    # Rows whose rate is carried over have tiles of their own.
    own: dict[tuple[Method, int, int], tuple[int, int]] = {
        ("fused-cast", 2560, 2048): (256, 128), ("fused-cast", 2048, 2560): (256, 128),
        ("fused-cast", 10240, 2560): (256, 128),
    }  # fmt: skip
    return {**own, **found}


def product_seconds(m: int, k: int, n: int, method: Method | None = None) -> float:
    """Seconds of C of `m` x `n`; the method is the registry's: fused-cast from 4e9 products on."""
    method = method or ("fused-cast" if m * k * n >= 4e9 else "drain")
    order: tuple[Method, ...] = (method, "fused-cast", "drain")
    tiles = [_tiles()[(each, k, n)] for each in order if (each, k, n) in _tiles()]
    k_step, tile_n = tiles[0] if tiles else (256, 128)
    return product_line(method).at(_product(method, m, k, n, k_step, tile_n))


@cache
def vector_line(operator: Operator) -> Line:
    """Seconds of an element-wise operator: a call, and a million elements (GEMV: MB)."""
    rows = VECTORS[operator]
    return line([(1, size / 1e6) for size, _ in rows], [us / 1e6 for _, us in rows])


def vector_seconds(operator: Operator, size: float) -> float:
    """Seconds of an element-wise operator on `size` elements (GEMV: bytes)."""
    return vector_line(operator).at((1, size / 1e6))


@dataclass(frozen=True)
class HeadFirst:
    """The tiling of the head-first kernel (fa_headfirst.py), by head dimension."""

    queries: int  # of a launch, of each head that is at work
    heads: int  # at work at once
    values: int  # columns of V of a launch

    def launches(self, heads: int, head_dim: int, tokens: int) -> float:
        """Launches of a call."""
        return heads / self.heads * tokens / self.queries * head_dim / self.values

    def streamed(self, heads: int, head_dim: int, tokens: int) -> float:
        """Bytes of keys and values that go by each head at work."""
        each = tokens * (head_dim + self.values) * 2
        return self.launches(heads, head_dim, tokens) * each


HEAD_FIRST = {64: HeadFirst(256, 2, 64), 128: HeadFirst(256, 2, 64), 256: HeadFirst(256, 1, 128)}


@cache
def attention_line() -> Line:
    """Seconds of a call of attention and of a launch, beside keys and values at `STREAM`.

    That one stream's rate explains all rows, and heads of 256 (`PROFILES`), is found here and not
    stated by the sources; they turn double buffers off and say that traffic decides.
    """
    features, values, streams = [], [], []
    for row in ATTENTION:
        tiling = HEAD_FIRST[row.head_dim]
        features.append((1, tiling.launches(row.heads, row.head_dim, row.tokens)))
        streams.append(tiling.streamed(row.heads, row.head_dim, row.tokens) / STREAM)
        values.append(row.milliseconds / 1e3)
    seconds = np.array(values)
    x = np.array(features) / seconds[:, None]
    rest = 1 - np.array(streams) / seconds
    constants = np.linalg.lstsq(x, rest, rcond=None)[0]
    errors = x @ constants - rest
    return Line(tuple(map(float, constants)), tuple(map(float, errors)))


@cache
def attention_rate() -> float:
    """Products a second of a core of the seq-first kernel, from the keys that a triangle saves."""
    layers, kv_heads, head_dim, tokens, queries = 16, 8, 64, 4096, 512
    saved = tokens * (1 / ALL_KEYS - 1 / KEYS_BEFORE) / layers
    rounds = tokens // queries
    keys = kv_heads * queries * (rounds * rounds - rounds * (rounds + 1) / 2)
    return keys * 64 * head_dim * 2 / saved  # 64 queries a core
