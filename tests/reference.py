"""aie.FlowAttention in numpy, written for readability.

The op is GroupQueryAttention (com.microsoft, v1 at ONNX Runtime 1.31) plus an attention mask, and
calls without lengths, where a token's index is its position.

Arithmetic is float64. Values are rounded only where the op stores them: new keys and values into
the cache's type, the output into the query's type. Rows of the present and of the output that the
contract leaves open (beyond a batch row's own length) are zero (in a quantised cache, codes of 0).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class AttentionAttributes:
    """The op's attributes, with their defaults; `scale` 0 means 1 / sqrt(head dimension)."""

    num_heads: int
    kv_num_heads: int
    scale: float = 0.0
    softcap: float = 0.0
    do_rotary: int = 0
    rotary_interleaved: int = 0
    position_axes: int = 0
    mrope_height: int = 0
    mrope_width: int = 0
    mrope_interleaved: int = 0
    norm_after_rotary: int = 0
    rotary_positions: int = 0
    rotary_magnitude: float = 1.0
    local_window_size: int = -1
    smooth_softmax: int = -1
    causal: int = 1
    sliding_window_cache: int = 0
    qk_norm_epsilon: float = 1e-6
    float32_products: int = 0
    k_quant_type: str = "NONE"
    v_quant_type: str = "NONE"
    kv_cache_bit_width: int = 0


@dataclass(frozen=True)
class CacheRows:
    """How a cache holds rows (KV, S, D): in a float type, or as codes of `bits` with scales.

    `scales` is (KV, 1, D) float32, or all ones for a float type.
    """

    dtype: np.dtype[Any]
    bits: int
    scales: Array

    def stored(self, rows: Array) -> Array:
        """Rows in the cache's type, one code per int8. Codes are computed in float32."""
        if not self.bits:
            return rows.astype(self.dtype)
        most = 2 ** (self.bits - 1) - 1
        ratio = rows.astype(np.float32) * (
            np.float32(1) / np.where(self.scales == 0, 1, self.scales)
        )
        codes: Array = np.clip(np.rint(ratio), -most - 1, most).astype(np.int8)
        return codes

    def unpacked(self, cache: Array) -> Array:
        """The inverse of `packed`: the codes in past or present (..., D or D / 2)."""
        if self.bits != 4:
            return cache
        codes = np.stack([cache & 15, cache >> 4], axis=-1).astype(np.int8) - np.int8(8)
        return codes.reshape(*cache.shape[:-1], 2 * cache.shape[-1])

    def packed(self, stored: Array) -> Array:
        """The layout of past and present: for 4 bits, code + 8, even channels in the low halves."""
        if self.bits != 4:
            return stored
        halves = (stored + 8).astype(np.uint8)
        both: Array = halves[..., 0::2] | halves[..., 1::2] << 4
        return both


@dataclass(frozen=True)
class AttentionResult:
    """Outputs, and how much of them the contract defines.

    Attributes:
        output: (B, S, H * D) of the query's type.
        present_key: (B, KV, capacity, D) of the cache's type.
        present_value: likewise.
        output_rows: rows of `output` that are defined, per batch row.
        cache_rows: rows of the present that are defined, per batch row.
        largest_score: largest scale * |q| |k| (norms of vectors) before the soft cap: rounding
            errors of scores are relative to it.
        largest_value: the largest magnitude among the values.
        code_step: for a quantised cache, the most that one code more in a channel adds to a score.
    """

    output: Array
    present_key: Array
    present_value: Array
    output_rows: tuple[int, ...]
    cache_rows: tuple[int, ...]
    largest_score: float
    largest_value: float
    code_step: float


def cache_rows_of(
    a: AttentionAttributes, inputs: Mapping[str, Array | None]
) -> tuple[CacheRows, CacheRows]:
    """The encodings of keys and of values."""
    query, past, bits = inputs["query"], inputs.get("past_key"), a.kv_cache_bit_width
    assert query is not None
    ones = np.ones((a.kv_num_heads, 1, 1), np.float32)
    if not bits:
        rows = CacheRows(query.dtype if past is None else past.dtype, 0, ones)
        return rows, rows

    def quantised(kind: str, scales: Array | None) -> CacheRows:
        assert scales is not None
        shape = (a.kv_num_heads, 1, -1) if kind == "PER_CHANNEL" else (1, 1, 1)
        dtype = np.dtype(np.int8 if bits == 8 else np.uint8)
        return CacheRows(dtype, bits, ones * scales.reshape(shape))

    return (
        quantised(a.k_quant_type, inputs["k_scale"]),
        quantised(a.v_quant_type, inputs["v_scale"]),
    )


def windowed_cache_rows(total: int, capacity: int, window: int) -> int:
    """Rows that a sliding-window cache holds after `total` tokens, found by adding them one by one.

    A full cache drops its oldest rows until window - 1 are left, then takes the next token.
    """
    rows = 0
    for _ in range(total):
        if rows == capacity:
            rows = window - 1
        rows += 1
    return rows


def group_query_attention(
    a: AttentionAttributes,
    inputs: Mapping[str, Array | None],
    products: npt.DTypeLike = np.float64,
) -> AttentionResult:
    """Computes the op for inputs named as in its schema; absent ones are None or left out.

    Queries, keys and values are rounded to the type `products` before they are multiplied.
    """

    def rounded(x: Array) -> Array:
        result: Array = x.astype(products).astype(np.float64)
        return result

    def given(name: str) -> Array | None:
        return inputs.get(name)

    def needed(name: str) -> Array:
        array = inputs[name]
        assert array is not None
        return array

    query, past_key, past_value = needed("query"), given("past_key"), given("past_value")
    batch, sequence, _ = query.shape
    q, k, v = _split_heads(a, query, given("key"), given("value"))
    dim = q.shape[-1]

    new_keys = k.shape[1]
    seqlens, total = given("seqlens_k"), total_length(inputs)
    by_index = seqlens is None
    lengths = np.full(batch, total) if seqlens is None else seqlens.reshape(-1).astype(int) + 1
    is_first_prompt = not by_index and sequence == total
    # Another attention has put the keys of these queries into the past.
    shared = not by_index and new_keys == 0
    added = sequence if shared else new_keys
    pasts = np.zeros(batch, int) if is_first_prompt else lengths - added

    key_rows, value_rows = cache_rows_of(a, inputs)
    capacity = 0 if past_key is None else past_key.shape[2]
    windowed = a.sliding_window_cache == 1
    present_shape = (batch, a.kv_num_heads, capacity if windowed else max(capacity, total), dim)
    stored_type = np.dtype(np.int8) if a.kv_cache_bit_width else key_rows.dtype
    present_key, present_value = (np.zeros(present_shape, stored_type) for _ in range(2))
    output = np.zeros((batch, sequence, a.num_heads, dim))
    scale = a.scale if a.scale else dim**-0.5
    cache_rows, largest_score, largest_value, code_step = [], 0.0, 0.0, 0.0

    for b in range(batch):
        past, length = int(pasts[b]), int(lengths[b])
        query_positions = past + np.arange(sequence)

        # Norm and rotary embedding; the cache stores keys after both.
        angles = _rotary_positions(
            a, given("position_ids"), b, query_positions, is_first_prompt, given("cos_cache")
        )
        norms_of = [given(f"{name}_norm_weight") for name in "qkv"]
        qb, kb = (
            _transform(a, x[b], weight, given("cos_cache"), given("sin_cache"), angles)
            if x.shape[1]
            else x[b]
            for x, weight in zip((q, k), norms_of[:2], strict=True)
        )
        vb = _rms_norm(v[b], norms_of[2], a.qk_norm_epsilon)

        # A query may see the rows that the cache holds, then the new ones.
        old = length if shared else past
        if windowed:
            old = windowed_cache_rows(past, capacity, a.local_window_size)
        keys = _append(past_key, b, old, kb, key_rows)
        values = _append(past_value, b, old, vb, value_rows)
        end = length if shared else past + new_keys
        key_positions = np.arange(end - new_keys - old, end)

        visible = np.broadcast_to(key_positions < length, (sequence, key_positions.size)).copy()
        if a.causal:
            visible &= key_positions <= query_positions[:, None]
        if a.local_window_size > 0:
            visible &= key_positions > query_positions[:, None] - a.local_window_size
        mask = given("attention_mask")
        if mask is not None:
            visible &= mask[b, key_positions] != 0

        for head in range(a.num_heads):
            kv_head = head // (a.num_heads // a.kv_num_heads)
            # A quantised key is code * scale: its scale goes to the query, and codes are exact.
            query_matrix = rounded(qb[:, head] * key_rows.scales[kv_head])
            key_matrix = rounded(keys[kv_head])
            scores = scale * (query_matrix @ key_matrix.T)
            norms = [np.linalg.norm(x, axis=1).max() for x in (query_matrix, key_matrix)]
            largest_score = max(largest_score, scale * norms[0] * norms[1])
            code_step = max(code_step, scale * np.abs(query_matrix).max())
            if a.softcap > 0:
                scores = a.softcap * np.tanh(scores / a.softcap)
            bias = given("attention_bias")
            if bias is not None:
                plane = bias[b % bias.shape[0], head % bias.shape[1]].astype(np.float64)
                scores = scores + plane[:, key_positions]
            scores = np.where(visible, scores, -np.inf)
            sink = _sink(a, given("head_sink"), head)
            value_matrix = rounded(values[kv_head]) * value_rows.scales[kv_head]
            largest_value = max(largest_value, np.abs(value_matrix).max(initial=0))
            output[b, :, head] = _softmax(scores, sink) @ value_matrix

        kept = windowed_cache_rows(length, capacity, a.local_window_size) if windowed else length
        valid = old + (0 if shared else length - past)
        newest = slice(valid - kept, valid)
        present_key[b, :, :kept] = keys[:, newest]
        present_value[b, :, :kept] = values[:, newest]
        cache_rows.append(kept)

    return AttentionResult(
        output.reshape(batch, sequence, -1).astype(query.dtype),
        key_rows.packed(present_key),
        value_rows.packed(present_value),
        (sequence,) * batch if by_index else tuple(int(n) for n in lengths - pasts),
        tuple(cache_rows),
        largest_score,
        float(largest_value),
        code_step,
    )


def total_length(inputs: Mapping[str, Array | None]) -> int:
    """Tokens after the call: as given, or the past's plus the call's."""
    query, key, past = inputs["query"], inputs.get("key"), inputs.get("past_key")
    total = inputs.get("total_sequence_length")
    if total is not None:
        return int(total.reshape(-1)[0])
    tokens = query if key is None else key
    assert tokens is not None
    return tokens.shape[1] + (0 if past is None else past.shape[2])


def _split_heads(
    a: AttentionAttributes, query: Array, key: Array | None, value: Array | None
) -> tuple[Array, Array, Array]:
    """-> (B, tokens, heads, D) float64 each, from three inputs or from one packed input."""
    channels = query.shape[2]
    if key is None or value is None:
        dim = channels // (a.num_heads + 2 * a.kv_num_heads)
        ends = [a.num_heads * dim, (a.num_heads + a.kv_num_heads) * dim]
        query, key, value = np.split(query, ends, axis=2)

    def heads(x: Array, count: int) -> Array:
        return x.astype(np.float64).reshape(*x.shape[:2], count, x.shape[2] // count)

    return heads(query, a.num_heads), heads(key, a.kv_num_heads), heads(value, a.kv_num_heads)


def _rms_norm(x: Array, weight: Array | None, epsilon: float) -> Array:
    if weight is None:
        return x
    mean_square = (x**2).mean(axis=-1, keepdims=True)
    normed: Array = x / np.sqrt(mean_square + epsilon) * weight.astype(np.float64)
    return normed


def _transform(
    a: AttentionAttributes,
    x: Array,
    weight: Array | None,
    cos: Array | None,
    sin: Array | None,
    positions: Array,
) -> Array:
    """Normalises and rotates x (S, heads, D), in the order that the attributes name."""
    if a.norm_after_rotary:
        return _rms_norm(_rotate(a, x, cos, sin, positions), weight, a.qk_norm_epsilon)
    return _rotate(a, _rms_norm(x, weight, a.qk_norm_epsilon), cos, sin, positions)


def _rotary_positions(
    a: AttentionAttributes,
    position_ids: Array | None,
    b: int,
    query_positions: Array,
    is_first_prompt: bool,
    cos: Array | None,
) -> Array:
    """Rows of the cos and sin caches, (S), or (S, pairs) if pairs differ. For a first prompt the op
    reads only the very first id, unless each token has its own."""
    if a.position_axes == 3:
        assert position_ids is not None
        assert cos is not None
        axes = _mrope_axes(a, cos.shape[1])
        own: Array = position_ids[axes, b].T
        return own
    if a.position_axes == 1:
        assert position_ids is not None
        ids: Array = position_ids[b]
        return ids
    if position_ids is None:
        return query_positions
    row: Array = position_ids[b % len(position_ids)]
    if is_first_prompt:
        row = position_ids.reshape(-1)[0] + np.arange(query_positions.size)
    return row


def _mrope_axes(a: AttentionAttributes, pairs: int) -> list[int]:
    """The axis of each pair of channels: 0 for time, 1 for height, 2 for width."""
    if not a.mrope_interleaved:
        time = pairs - a.mrope_height - a.mrope_width
        return [0] * time + [1] * a.mrope_height + [2] * a.mrope_width
    axes = [0] * pairs
    for axis, count in ((1, a.mrope_height), (2, a.mrope_width)):
        axes[axis : 3 * count : 3] = [axis] * len(axes[axis : 3 * count : 3])
    return axes


def _rotate(
    a: AttentionAttributes, x: Array, cos: Array | None, sin: Array | None, positions: Array
) -> Array:
    """Rotates the first 2 * width channels of x (S, heads, D); the others stay."""
    if not a.do_rotary:
        return x
    assert cos is not None
    assert sin is not None
    width = cos.shape[1]
    rows = positions if positions.ndim == 2 else positions[:, None]
    c, s = (table[rows, np.arange(width)].astype(np.float64)[:, None, :] for table in (cos, sin))
    if a.rotary_interleaved:
        first, second = slice(0, 2 * width, 2), slice(1, 2 * width, 2)
    else:
        first, second = slice(0, width), slice(width, 2 * width)
    rotated = x.copy()
    rotated[..., first] = x[..., first] * c - x[..., second] * s
    rotated[..., second] = x[..., second] * c + x[..., first] * s
    return rotated


def _append(past: Array | None, b: int, rows: int, new: Array, cache: CacheRows) -> Array:
    """(KV, rows + S, D) as the cache holds it: the first rows of the past, then new (S, KV, D)."""
    fresh = cache.stored(new.transpose(1, 0, 2))
    if past is None:
        return fresh
    return np.concatenate([cache.unpacked(past[b, :, :rows]), fresh], axis=1)


def _sink(a: AttentionAttributes, head_sink: Array | None, head: int) -> float | None:
    if head_sink is not None:
        return float(head_sink[head])
    return 0.0 if a.smooth_softmax == 1 else None


def _softmax(scores: Array, sink: float | None) -> Array:
    """Rows that see nothing give zeros. The sink is one more score, without a value."""
    peak = scores.max(axis=1, keepdims=True, initial=-np.inf if sink is None else sink)
    numerators = np.exp(scores - np.where(np.isinf(peak), 0, peak))
    denominator = numerators.sum(axis=1, keepdims=True)
    if sink is not None:
        denominator = denominator + np.exp(sink - peak)
    weights: Array = numerators / np.where(denominator == 0, 1, denominator)
    return weights
