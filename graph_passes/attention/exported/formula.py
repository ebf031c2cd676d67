"""aie.FlowAttention's formula in float64, with a bound on the error of float32."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ort_aie_ep.graph_passes.subgraph import EPSILON
from ort_aie_ep.graph_passes.walk import Array, constant_array

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Rotary:
    """Where the rotation's angles come from, and how it pairs the elements of a head.

    Attributes:
        cos, sin: tables (…, rows, columns), a row for each token, or for each position of a batch
            whose rows all start at the same one.
        columns: columns of the tables with different angles: the first half, every other, or all.
        interleaved: element 2i rotates with 2i+1; otherwise i with i + width/2.
        width: elements of a head that are rotated.
    """

    cos: ir.Value
    sin: ir.Value
    columns: slice
    interleaved: bool
    width: int


@dataclass(frozen=True)
class Parameters:
    """The parameters of an aie.FlowAttention. `window` -1 and `softcap` 0 mean none.

    `mask` is the graph input attention_mask, if the attention reads it.
    """

    heads: int
    kv_heads: int
    size: int
    scale: float
    softcap: float
    window: int
    rotary: Rotary | None
    query_norm: ir.Value | None
    key_norm: ir.Value | None
    epsilon: float
    mask: ir.Value | None

    def __str__(self) -> str:
        parts = [f"{self.heads}/{self.kv_heads} heads of {self.size}", f"scale {self.scale:.6g}"]
        parts += [f"window {self.window}"] if self.window > 0 else []
        parts += [f"soft cap {self.softcap:.6g}"] if self.softcap else []
        parts += [f"{self.rotary.width} rotated elements"] if self.rotary else []
        parts += ["norms of query and key"] if self.query_norm is not None else []
        return ", ".join(parts)


@dataclass(frozen=True)
class Operands:
    """Inputs: query (batch, heads, new, size), key and value (batch, kv heads, new, size), pasts
    (batch, kv heads, past, size), tables (rows, columns) or None, mask (batch, past + new)."""

    query: Array
    key: Array
    value: Array
    past_key: Array
    past_value: Array
    cos: Array | None
    sin: Array | None
    mask: Array

    @property
    def new(self) -> int:
        """New tokens of each row of the batch."""
        return int(self.query.shape[2])

    @property
    def past(self) -> int:
        """Tokens already in the cache."""
        return int(self.past_key.shape[2])


@dataclass(frozen=True)
class Result:
    """Results in float64 and their bounds.

    Attributes:
        dots: query · key (batch, heads, new, keys), before scale and soft cap.
        scores: the Softmax's input, where it is visible.
        visible: (batch, new, keys).
        keys, values: (batch, kv heads, keys, size).
        output: (batch, heads, new, size), zero where nothing is visible.
        dot_error, score_error, key_error, output_error: bounds, of the same shapes or scalars.
    """

    dots: Floats
    scores: Floats
    visible: npt.NDArray[np.bool_]
    keys: Floats
    values: Floats
    output: Floats
    dot_error: Floats
    score_error: Floats
    key_error: float
    output_error: Floats


def attention(parameters: Parameters, operands: Operands) -> Result:
    """Compute what aie.FlowAttention computes with `parameters`."""
    query = _turned(
        _normed(operands.query, parameters.query_norm, parameters), parameters, operands
    )
    key = _turned(_normed(operands.key, parameters.key_norm, parameters), parameters, operands)
    keys = np.concatenate([operands.past_key, key], 2)
    values = np.concatenate([operands.past_value, operands.value], 2).astype(np.float64)
    # Stack the query heads of a key-value head, so that keys need not be repeated.
    shape = (*query.shape[:3], keys.shape[2])
    rows = query.reshape(keys.shape[0], parameters.kv_heads, -1, parameters.size)
    columns = keys.swapaxes(2, 3)
    dots = (rows @ columns).reshape(shape)
    # Norm, rotation and the sum over a head's elements round about this many times, each relative
    # to the sum of absolute products.
    rounding = (3 * parameters.size + 32) * EPSILON
    dot_error = rounding * (np.abs(rows) @ np.abs(columns)).reshape(shape)
    visible = _visible(parameters, operands)
    scores = parameters.scale * dots
    if parameters.softcap:
        scores = parameters.softcap * np.tanh(scores / parameters.softcap)
    # Scores of a unit's size are rounded some times more; a soft cap's slope is at most 1.
    score_error = abs(parameters.scale) * dot_error
    score_error = score_error + 8 * EPSILON * (np.abs(scores) + parameters.softcap)
    shown = np.where(visible[:, None], scores, -np.inf)
    top = shown.max(-1, keepdims=True)
    weights = np.exp(shown - np.where(np.isfinite(top), top, 0))
    total = weights.sum(-1, keepdims=True)
    sums = weights.reshape(*rows.shape[:3], -1) @ values
    output = sums.reshape(query.shape) / np.where(total > 0, total, 1)
    # An error of a score is a relative one of its weight, and of the sum of weights.
    relative = 2 * abs(parameters.scale) * dot_error.max(-1, keepdims=True)
    relative = relative + (keys.shape[2] + 8) * EPSILON
    output_error = relative * float(np.abs(values).max())
    key_error = rounding * float(np.abs(keys).max())
    return Result(
        dots, scores, visible, keys, values, output,
        dot_error, score_error, key_error, output_error,
    )  # fmt: skip


def _visible(parameters: Parameters, operands: Operands) -> npt.NDArray[np.bool_]:
    key = np.arange(operands.past + operands.new)
    query = operands.past + np.arange(operands.new)[:, None]
    visible = key <= query
    if parameters.window > 0:
        visible = visible & (key > query - parameters.window)
    shown = operands.mask != 0 if parameters.mask is not None else np.ones_like(operands.mask, bool)
    both: npt.NDArray[np.bool_] = visible & shown[:, None, :]
    return both


def _normed(x: Array, weight: ir.Value | None, parameters: Parameters) -> Floats:
    wide = x.astype(np.float64)
    w = constant_array(weight)
    if w is None:
        return wide
    mean = np.mean(wide**2, -1, keepdims=True)
    normed: Floats = wide / np.sqrt(mean + parameters.epsilon) * w.astype(np.float64)
    return normed


def _turned(x: Floats, parameters: Parameters, operands: Operands) -> Floats:
    rotary = parameters.rotary
    if rotary is None or operands.cos is None or operands.sin is None:
        return x
    new = operands.new
    # (rows, columns) -> (batch or 1, 1, new, width / 2)
    cos, sin = (
        t[:, rotary.columns].reshape(-1, 1, new, rotary.width // 2).astype(np.float64)
        for t in (operands.cos, operands.sin)
    )
    half = rotary.width // 2
    if rotary.interleaved:
        first, second = slice(0, rotary.width, 2), slice(1, rotary.width, 2)
    else:
        first, second = slice(0, half), slice(half, rotary.width)
    turned = x.copy()
    turned[..., first] = x[..., first] * cos - x[..., second] * sin
    turned[..., second] = x[..., second] * cos + x[..., first] * sin
    return turned
