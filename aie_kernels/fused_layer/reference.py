"""A decoder layer of one token, step by step in numpy with the chip's own kernels.

numpy moves all data here: rows, heads, the cache. Kernels of single operators, compiled for this
CPU, compute on it. So `fused_layer` must give these bits: its fifos, streams and cores may only
move data otherwise. Other tests hold the kernels against numpy in float64. Weights of any form of
Q4NX are widened to the shipping one first, so that these bits are those of the same codes there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ort_aie_ep import _native
from ort_aie_ep.aie_kernels import cycles
from ort_aie_ep.aie_kernels.flow_kv import kernels as flow_kv
from ort_aie_ep.aie_kernels.fused_dqp import kernels as fused_dqp
from ort_aie_ep.aie_kernels.reference import (
    BF16,
    U_BF16,
    Context,
    Output,
    Problem,
    Reference,
    doubles,
    generator,
    nan,
    random_blocks,
)
from ort_aie_ep.aie_kernels.vector_ops import kernels as vector_ops
from ort_aie_ep.formats.q4nx import BLOCK_BYTES, BLOCK_ROWS, SHIPPING, BlockForm
from ort_aie_ep.formats.q4nx import BLOCK_COLS as BLOCK_COLUMNS
from ort_aie_ep.npu.kernels import ALIGNMENT, Kernels
from ort_aie_ep.npu.terms.kernel import Kernel

CHUNK = 4096  # elements of keys, and of values
PIECE = 64  # elements of attention's output

Rows = NDArray[Any]  # (n,) bfloat16


@dataclass(frozen=True)
class Layer:
    """The parameters of the sequence `layer` by name; `form` is that of the weights."""

    parameters: dict[str, int]
    form: BlockForm = SHIPPING

    def __getattr__(self, name: str) -> int:
        try:
            return self.parameters[name]
        except KeyError:
            raise AttributeError(name) from None

    def random(self, seed: int) -> dict[str, Rows]:
        """Buffers by argument: small weights, norms around one, a cache with its old keys."""
        rng = np.random.default_rng(seed)
        hidden, dim = self.hidden, self.head_dim
        width = (self.heads + 2 * self.kv_heads) * dim
        half = self.rotary_dim // 2
        angle = (self.context - 1) * 10000.0 ** (-np.arange(half) / max(1, half))
        table = np.zeros(256)
        table[:half], table[half : 2 * half] = np.cos(angle), np.sin(angle)

        def norm(count: int, there: int = 1) -> Rows:
            return rng.uniform(0.5, 1.5, count * there).astype(BF16)

        def weights(n: int, k: int) -> NDArray[np.uint8]:
            return random_blocks(rng, n, k, self.form)

        def cache() -> Rows:
            values = rng.standard_normal((self.kv_heads, self.capacity // 8, dim // 8, 8, 8))
            return values.astype(BF16).reshape(-1)

        return {
            "x": rng.standard_normal(hidden).astype(BF16),
            "input_norm": norm(hidden),
            "bias": (rng.standard_normal(width * self.bias) * 0.5).astype(BF16),
            "q_norm": norm(dim, self.head_norm),
            "k_norm": norm(dim, self.head_norm),
            "table": table.astype(BF16),
            "attention_norm": norm(hidden, self.post_norm),
            "ffn_norm": norm(hidden),
            "output_norm": norm(hidden, self.post_norm),
            "w_qkv": weights(width, hidden),
            "w_o": weights(hidden, self.heads * dim),
            "w_gate": weights(self.ffn, hidden),
            "w_up": weights(self.ffn, hidden),
            "w_down": weights(hidden, self.ffn),
            "k": cache(),
            "v": cache(),
            "y": np.full(hidden, np.nan, BF16),
        }


def widened(blocks: NDArray[np.uint8], k: int, form: BlockForm) -> NDArray[np.uint8]:
    """The same weights of k in-features in the shipping form, (n/32, k/256, 5120)."""
    rows = blocks.reshape(-1, k // BLOCK_COLUMNS, form.block_bytes)
    if form == SHIPPING:
        return rows
    n = BLOCK_ROWS * len(rows)
    return np.asarray(_native.widen(rows, n, k, form.group, form.minima))


def aligned(count: int, dtype: Any = BF16) -> NDArray[Any]:
    """(count,) zeros, aligned as buffers in L1 are."""
    size = count * np.dtype(dtype).itemsize
    raw = np.zeros(size + ALIGNMENT, np.uint8)
    return raw[-raw.ctypes.data % ALIGNMENT :][:size].view(dtype)


class Operators:
    """The operators of a token, with AIE2P's kernels and weights of a form."""

    def __init__(self, form: BlockForm = SHIPPING) -> None:
        self._form = form
        self._kernels = Kernels("aie2p")

    def _call(self, kernel: Kernel, *arguments: Any) -> None:
        self._kernels.call(kernel, *arguments)

    def norm(self, x: Rows, weight: Rows, eps_bits: int) -> Rows:
        """The RMS norm of a row."""
        piece, by, out = aligned(128), aligned(128), aligned(128)
        row, state, y = aligned(16384), aligned(16, np.float32), np.empty_like(x)
        self._call(vector_ops.RMS_BEGIN, state)
        for i in range(len(x) // 128):
            piece[:] = x[128 * i :][:128]
            self._call(vector_ops.RMS_LOAD, piece, row, state, i)
        self._call(vector_ops.RMS_SCALE, state, len(x), eps_bits)
        for i in range(len(x) // 128):
            by[:] = weight[128 * i :][:128]
            self._call(vector_ops.RMS_FINISH, row, by, out, state, i)
            y[128 * i :][:128] = out
        return y

    def matvec(self, w: NDArray[np.uint8], x: Rows, bias: Rows | None = None) -> Rows:
        """W x (+ bias) by blocks."""
        blocks = len(x) // BLOCK_COLUMNS
        rows, form = widened(w, len(x), self._form), cycles.form_scalars(SHIPPING)
        piece, mine, sums = aligned(256), aligned(16384), aligned(1024)
        if len(x) > mine.size:  # the kernel's own limit; its arithmetic has none
            raise ValueError(f"{len(x)} in-features; the reference takes {mine.size}")
        block, acc = aligned(BLOCK_BYTES, np.uint8), aligned(32, np.float32)
        kept, out = aligned(2560), aligned(32)
        y = np.empty(len(rows) * BLOCK_ROWS, BF16)
        for k in range(blocks):
            piece[:] = x[256 * k :][:256]
            self._call(fused_dqp.DQP_LOAD_X, piece, mine, sums, k)
        for n, row in enumerate(rows):
            self._call(fused_dqp.DQP_ZERO, acc)
            for k in range(blocks):
                block[:] = row[k]
                self._call(fused_dqp.DQP_BLOCK, block, mine, sums, acc, k, *form)
            if bias is not None:
                kept[:32] = bias[32 * n :][:32]
            self._call(fused_dqp.DQP_FINISH, acc, kept, out, 0, int(bias is not None))
            y[32 * n :][:32] = out
        return y

    def rotated(self, heads: Rows, layer: Layer, table: Rows, weight: Rows) -> Rows:
        """(heads * head_dim,): head norms where `weight` is not empty, then the rotation."""
        x, y, between, by, at = (aligned(256) for _ in range(5))
        at[:] = table
        if weight.size:
            by[: weight.size] = weight
        out = np.empty_like(heads)
        for i in range(len(heads) // 256):
            x[:] = heads[256 * i :][:256]
            if weight.size:
                self._call(vector_ops.QK_NORM, x, by, between, layer.head_dim, layer.eps_bits)
                x[:] = between
            rotary = layer.head_dim, layer.rotary_dim, layer.interleaved
            self._call(vector_ops.ROPE, x, at, y, *rotary)
            out[256 * i :][:256] = y
        return out

    def attend(self, layer: Layer, q: Rows, k: Rows, v: Rows) -> Rows:
        """FlowKV for each KV head over caches (kv_heads, capacity * head_dim)."""
        dim, group = layer.head_dim, layer.heads // layer.kv_heads
        keys = CHUNK // dim
        seen = max(0, layer.context - layer.window) if layer.window else 0
        first, end = seen // keys, -(-layer.context // keys)
        queries, chunk, fcl = aligned(2048), aligned(CHUNK), aligned(4352, np.uint8)
        state, y, piece = aligned(64, np.float32), aligned(2080, np.float32), aligned(PIECE)
        out = np.empty_like(q)
        for head in range(layer.kv_heads):
            mine = slice(head * group * dim, (head + 1) * group * dim)
            queries[: group * dim] = q[mine]
            self._call(flow_kv.FLOW_KV_BEGIN, state)
            self._call(flow_kv.FLOW_KV_VALUES_BEGIN, y)
            for c in range(first, end):
                of_keys = max(0, seen - c * keys), min(keys, layer.context - c * keys)
                chunk[:] = k[head, c * CHUNK :][:CHUNK]
                self._call(
                    flow_kv.FLOW_KV_SCORES, queries, chunk, fcl, state, group, dim, *of_keys,
                    layer.scale_bits, layer.softcap_bits,
                )  # fmt: skip
                chunk[:] = v[head, c * CHUNK :][:CHUNK]
                self._call(flow_kv.FLOW_KV_VALUES, fcl, chunk, y, group, dim)
            for i in range(group * dim // PIECE):
                self._call(flow_kv.FLOW_KV_OUTPUT, y, piece, i, dim)
                out[mine][PIECE * i :][:PIECE] = piece
        return out

    def gated(self, gate: Rows, up: Rows, gelu: int) -> Rows:
        """activation(gate) * up."""
        a, b, y = aligned(256), aligned(256), aligned(256)
        out = np.empty_like(gate)
        for i in range(len(gate) // 256):
            a[:], b[:] = gate[256 * i :][:256], up[256 * i :][:256]
            self._call(vector_ops.GELU_MUL if gelu else vector_ops.SILU_MUL, a, b, y, 256)
            out[256 * i :][:256] = y
        return out

    def layer(self, layer: Layer, buffers: dict[str, Rows]) -> dict[str, Rows]:
        """y, and the caches with the token's key and value. The buffers are not changed."""
        dim, position = layer.head_dim, layer.context - 1
        q_dim, kv_dim = layer.heads * dim, layer.kv_heads * dim
        x = buffers["x"]
        normed = self.norm(x, buffers["input_norm"], layer.eps_bits)
        qkv = self.matvec(buffers["w_qkv"], normed, buffers["bias"] if layer.bias else None)
        q, new_k, new_v = np.split(qkv, [q_dim, q_dim + kv_dim])
        table = buffers["table"]
        caches = {name: buffers[name].copy() for name in "kv"}
        new_k = self.rotated(new_k, layer, table, buffers["k_norm"])
        for name, new in (("k", new_k), ("v", new_v)):
            cache = caches[name].reshape(layer.kv_heads, -1, dim // 8, 8, 8)
            cache[:, position // 8, :, position % 8] = new.reshape(layer.kv_heads, dim // 8, 8)
        caches = {name: cache.reshape(layer.kv_heads, -1) for name, cache in caches.items()}
        o = self.attend(layer, self.rotated(q, layer, table, buffers["q_norm"]), **caches)
        projected = self.matvec(buffers["w_o"], o)
        if layer.post_norm:
            projected = self.norm(projected, buffers["attention_norm"], layer.eps_bits)
        x = _sum(projected, x)
        normed = self.norm(x, buffers["ffn_norm"], layer.eps_bits)
        gate, up = (self.matvec(buffers[name], normed) for name in ("w_gate", "w_up"))
        down = self.matvec(buffers["w_down"], self.gated(gate, up, layer.gelu))
        if layer.post_norm:
            down = self.norm(down, buffers["output_norm"], layer.eps_bits)
        return {"y": _sum(down, x), **{name: c.reshape(-1) for name, c in caches.items()}}


def _sum(a: Rows, b: Rows) -> Rows:
    """Rounded once."""
    return (a.astype(np.float32) + b.astype(np.float32)).astype(BF16)


# --- problems -------------------------------------------------------------------------------------
#: Results that are rounded to bfloat16 one after another in a layer, the input norm to the sum.
ROUNDINGS = 10


def problem(context: Context, p: dict[str, int]) -> Problem:
    """A problem of `layer`."""
    layer = Layer(p, context.form)
    buffers = layer.random(seed=p["context"])
    expected = Operators(context.form).layer(layer, buffers)

    def judge(after: Mapping[str, NDArray[Any]]) -> list[Output]:
        return [_output(name, after[name], values, ROUNDINGS) for name, values in expected.items()]

    return Problem("layer", p, buffers, judge)


def head_problem(context: Context, p: dict[str, int]) -> Problem:
    """A problem of `head`: the last norm, and the vocabulary."""
    rng, hidden = generator(p), p["hidden"]
    x = rng.standard_normal(hidden).astype(BF16)
    norm = rng.uniform(0.5, 1.5, hidden).astype(BF16)
    w = random_blocks(rng, p["N"], hidden, context.form)
    operators = Operators(context.form)
    expected = operators.matvec(w, operators.norm(x, norm, p["eps_bits"]))

    def judge(after: Mapping[str, NDArray[Any]]) -> list[Output]:
        return [_output("y", after["y"], expected, 2)]

    return Problem("head", p, {"x": x, "norm": norm, "w": w, "y": nan(p["N"])}, judge)


def _output(name: str, got: NDArray[Any], expected: NDArray[Any], roundings: int) -> Output:
    """An output may be off by its roundings, each of a value no larger than the largest."""
    exact = doubles(expected)
    tolerance = np.full_like(exact, roundings * U_BF16 * np.abs(exact).max())
    return Output(name, doubles(got), Reference(exact, tolerance))
