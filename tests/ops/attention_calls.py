"""Calls of aie.FlowAttention, and comparisons with the reference and ONNX Runtime."""

from __future__ import annotations

import os
from dataclasses import asdict, fields, replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema
from op_models import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    ORT_VERSION,
    QUANTISED_CACHES,
    ROUNDOFF,
    one_op_model,
    open_session,
    run,
)
from reference import (
    AttentionAttributes,
    AttentionResult,
    cache_rows_of,
    group_query_attention,
    total_length,
    windowed_cache_rows,
)

from ort_aie_ep import _native

Array = npt.NDArray[Any]
Inputs = dict[str, Array | None]


INPUT_NAMES = [
    "query", "key", "value", "past_key", "past_value", "seqlens_k", "total_sequence_length",
    "cos_cache", "sin_cache", "position_ids", "attention_bias", "head_sink", "k_scale", "v_scale",
    "q_norm_weight", "k_norm_weight", "attention_mask", "v_norm_weight",
    "rotary_frequencies",
]  # fmt: skip
CPU_OPERATOR_ATTRIBUTES = set(
    next(s for s in get_all_operator_schema() if s.name == "GroupQueryAttention").attributes
)
# ONNX Runtime 1.23 lets a query see local_window_size keys besides its own, later ones that many in
# all.
COUNTS_QUERY_OUT_OF_WINDOW = ORT_VERSION < (1, 24)
BORROWED_CACHES = (1, 27)  # the first version that reads the cache of another attention
SHARED = {"present_key": "past_key", "present_value": "past_value"}


def of(values: Inputs, name: str) -> Array:
    """An input or an output that is there."""
    array = values[name]
    assert array is not None
    return array


def attributes(num_heads: int = 4, kv_num_heads: int = 2, **others: Any) -> AttentionAttributes:
    return AttentionAttributes(num_heads=num_heads, kv_num_heads=kv_num_heads, **others)


def random_inputs(
    a: AttentionAttributes,
    sequence: int,
    *,
    lengths: tuple[int, ...],
    capacity: int = 0,
    dim: int = 32,
    dtype: npt.DTypeLike = FLOAT32,
    cache_dtype: npt.DTypeLike | None = None,
    packed: bool = True,
    rotary_width: int | None = None,
    max_position: int | None = None,
    with_past: bool = True,
    borrowed: bool = False,
    seed: int = 0,
) -> Inputs:
    """Inputs of a call after which batch row b has `lengths[b]` tokens.

    `borrowed`: key and value have no rows, and the past holds all, as another attention wrote it.

    Rows of the past that do not hold a token yet are NaN: nothing may depend on them.
    """
    rng = np.random.default_rng([seed, sequence, *lengths, capacity, dim])
    dtype, cache = np.dtype(dtype), np.dtype(cache_dtype or dtype)
    batch, total = len(lengths), max(lengths)
    is_first_prompt = sequence == total
    capacity = capacity or total - (0 if is_first_prompt or borrowed else sequence)
    packed = packed and not borrowed

    def normal(*shape: int) -> Array:
        return rng.standard_normal(shape).astype(np.float32)

    inputs: Inputs = dict.fromkeys(INPUT_NAMES)
    parts = [normal(batch, sequence, n * dim) for n in (a.num_heads, *2 * [a.kv_num_heads])]
    parts[0] *= 2  # so that some keys stand out of the softmax
    if packed:
        inputs["query"] = np.concatenate(parts, axis=2).astype(dtype)
    else:
        for name, part in zip(("query", "key", "value"), parts, strict=True):
            no_rows = borrowed and name != "query"
            inputs[name] = part[:, : 0 if no_rows else None].astype(dtype)
    if with_past:
        for name in ("past_key", "past_value"):
            if a.kv_cache_bit_width:
                inputs[name] = _random_codes(rng, (batch, a.kv_num_heads, capacity, dim), a)
                continue
            past = normal(batch, a.kv_num_heads, capacity, dim)
            for b, length in enumerate(lengths):
                rows = 0 if is_first_prompt else length - sequence
                if borrowed:
                    rows = length
                if a.sliding_window_cache:
                    rows = windowed_cache_rows(rows, capacity, a.local_window_size)
                past[b, :, rows:] = np.nan
            inputs[name] = past.astype(cache)
    if a.kv_cache_bit_width:
        for name, kind in (("k_scale", a.k_quant_type), ("v_scale", a.v_quant_type)):
            inputs[name] = _random_scales(rng, kind, dim, a)
    inputs["seqlens_k"] = np.array(lengths, np.int32) - 1
    inputs["total_sequence_length"] = np.array(total, np.int32)
    if a.do_rotary:
        width = rotary_width or dim // 2
        frequencies = 10000.0 ** (-np.arange(width) / width)
        angles = np.arange(max_position or total)[:, None] * frequencies
        inputs["cos_cache"] = np.cos(angles).astype(dtype)
        inputs["sin_cache"] = np.sin(angles).astype(dtype)
    return inputs


def _random_codes(
    rng: np.random.Generator, shape: tuple[int, ...], a: AttentionAttributes
) -> Array:
    """A past of random codes, also in rows that do not hold a token yet."""
    if a.kv_cache_bit_width == 8:
        return rng.integers(-128, 128, shape).astype(np.int8)
    return rng.integers(0, 256, (*shape[:-1], shape[-1] // 2)).astype(np.uint8)


def _random_scales(rng: np.random.Generator, kind: str, dim: int, a: AttentionAttributes) -> Array:
    """Scales that cover between 1 and 3 standard deviations of new rows, so some codes are
    clamped."""
    shape = (1, a.kv_num_heads, 1, dim) if kind == "PER_CHANNEL" else (1,)
    most = 2 ** (a.kv_cache_bit_width - 1) - 1
    scales: Array = (rng.uniform(1, 3, shape) / most).astype(np.float32)
    return scales


def given_attributes(a: AttentionAttributes) -> dict[str, Any]:
    """Attributes that differ from their defaults; old schemas do not know all of them."""
    defaults = {f.name: f.default for f in fields(a)}
    return {key: value for key, value in asdict(a).items() if value != defaults[key]}


def model_of(a: AttentionAttributes, inputs: Inputs, *, domain: str = "aie") -> bytes:
    given = given_attributes(a)
    query = inputs["query"]
    assert query is not None
    cache = cache_rows_of(a, inputs)[0].dtype
    if domain == "aie":
        given["format"] = _native.FORMAT
    return one_op_model(
        "FlowAttention" if domain == "aie" else "GroupQueryAttention",
        inputs,
        {"output": query.dtype, "present_key": cache, "present_value": cache},
        given,
        domain=domain,
    )


def session_of(model: bytes) -> onnxruntime.InferenceSession:
    """A session, reused if one is open for this model: the steps of a text share it, as in a
    host."""
    options = frozenset(item for item in os.environ.items() if item[0].startswith("ORT_AIE_"))
    return _session_of(model, options)


@lru_cache(maxsize=4)
def _session_of(model: bytes, _: frozenset[tuple[str, str]]) -> onnxruntime.InferenceSession:
    return open_session(model)


def flow_attention(a: AttentionAttributes, inputs: Inputs, *, shared: bool = False) -> Inputs:
    return dict(run(session_of(model_of(a, inputs)), inputs, SHARED if shared else None))


def why_no_cpu_operator(a: AttentionAttributes, inputs: Inputs) -> str:
    """Why ONNX Runtime's GroupQueryAttention cannot compute this; empty when it can."""
    query, past = inputs["query"], inputs["past_key"]
    seqlens, total = inputs["seqlens_k"], inputs["total_sequence_length"]
    bias = inputs["attention_bias"]
    assert query is not None
    if inputs["attention_mask"] is not None or seqlens is None or total is None:
        return "an attention mask or no lengths"
    if bias is not None and bias.shape[2] != query.shape[1]:
        return "a bias for all queries"
    unknown = set(given_attributes(a)) - CPU_OPERATOR_ATTRIBUTES
    if unknown:
        return f"attributes {sorted(unknown)}"
    if COUNTS_QUERY_OUT_OF_WINDOW and a.local_window_size == 1:
        return "a window of the query alone"
    if query.dtype == BFLOAT16:
        return "its types"
    if inputs["key"] is not None and not inputs["key"].size and ORT_VERSION < BORROWED_CACHES:
        return "a cache that another attention wrote"
    if a.kv_cache_bit_width:
        if ORT_VERSION < QUANTISED_CACHES:
            return "a quantised cache"
        if query.dtype != np.float32 and ORT_VERSION <= (1, 28):
            return "a quantised cache with a query of 16 bits"
        if a.k_quant_type != a.v_quant_type:
            return "keys and values with different kinds of scales"
        dim = 0 if past is None else past.shape[3] * 8 // a.kv_cache_bit_width
        if a.sliding_window_cache and dim % (128 // a.kv_cache_bit_width) != 0:
            return "a sliding-window cache of codes whose heads are not a multiple of 16 bytes"
    elif past is not None and past.dtype != query.dtype:
        return "its types"
    if any(inputs[f"{name}_norm_weight"] is not None for name in "qkv"):
        return "norm weights"
    if query.shape[0] > 1 and 1 < query.shape[1] < int(total):
        return "several later tokens in a batch"
    if a.sliding_window_cache and int(seqlens.min()) + 1 < query.shape[1]:
        return "padded prompts on a sliding-window cache"
    if past is None:
        return "no past"
    return ""


def rows_computed_alike(a: AttentionAttributes, query: Array) -> int:
    """Rows that decide how a call's products are computed: those of one token in calls of few."""
    positions = 1 if a.causal and query.shape[1] <= 17 else query.shape[1]
    return int(positions * a.num_heads // a.kv_num_heads)


def multiplies_in_bfloat16(a: AttentionAttributes, inputs: Inputs) -> bool:
    """Whether both products of this call use bfloat16: prompts on a 16-bit cache.

    See docs/flow-attention.md, "Numerics".
    """
    query = inputs["query"]
    assert query is not None
    cache = cache_rows_of(a, inputs)[0].dtype
    kernels = {role: variant for role, variant, *_ in _native.kernel_choice()}
    return (
        _native.has_bf16_attention(kernels["attention of prompts"])
        and cache != FLOAT32
        and not a.float32_products
        and query.shape[1] > (17 if a.causal else 1)
        and rows_computed_alike(a, query) >= 16
    )


def multiplies_integers(a: AttentionAttributes, inputs: Inputs) -> bool:
    """Whether few rows multiply int8 codes as integers: on CPUs with AVX-512."""
    query = inputs["query"]
    assert query is not None
    rows = rows_computed_alike(a, query)
    kernels = {role: variant for role, variant, *_ in _native.kernel_choice()}
    by_avx512 = kernels["attention of few rows"].startswith("avx512")
    return by_avx512 and a.kv_cache_bit_width == 8 and rows < 16


def reference(a: AttentionAttributes, inputs: Inputs) -> AttentionResult:
    """The reference, rounding as this call's products do."""
    products = BFLOAT16 if multiplies_in_bfloat16(a, inputs) else np.float64
    return group_query_attention(a, inputs, products)


def score_error(a: AttentionAttributes, inputs: Inputs, expected: AttentionResult) -> float:
    """Worst error of a score in float32 arithmetic.

    Norm and rotation give vectors a relative error of at most 16 roundings, and the sum of D
    products adds D more. Both are relative to |q| |k| by Cauchy-Schwarz. Cap and bias add roundings
    of their own size.
    """
    dim = expected.present_key.shape[-1]
    bias = inputs["attention_bias"]
    finite = 0.0 if bias is None else np.abs(np.where(np.isfinite(bias), bias, 0)).max()
    largest = min(expected.largest_score, 1e4)
    return float((dim + 16) * 2**-24 * largest + 2**-24 * (8 * a.softcap + min(finite, 100.0)))


def compare(
    a: AttentionAttributes, inputs: Inputs, actual: Inputs, expected: AttentionResult
) -> float:
    """Compares the parts of `actual` that the contract defines with the reference.

    Returns the absolute error that the outputs may have.
    """
    query = inputs["query"]
    assert query is not None
    cache = expected.present_key.dtype
    # Whether keys are rotated or normalised, or values are normalised.
    moved = bool(a.do_rotary) or inputs["k_norm_weight"] is not None
    changed = {"present_key": moved, "present_value": inputs["v_norm_weight"] is not None}
    values = expected.largest_value
    keys = np.abs(expected.present_key.astype(np.float64)).max()

    for name, reference in (
        ("present_key", expected.present_key),
        ("present_value", expected.present_value),
    ):
        present = actual[name]
        assert present is not None
        assert present.shape == reference.shape
        assert present.dtype == reference.dtype
        for b, rows in enumerate(expected.cache_rows):
            ours, theirs = (x[b, :, :rows].astype(np.float64) for x in (present, reference))
            if name == "present_key" and moved and a.kv_cache_bit_width:
                compare_codes(a, inputs, present[b, :, :rows], reference[b, :, :rows])
            elif not changed[name]:
                np.testing.assert_array_equal(ours, theirs)
            else:
                # 16 float32 roundings may tip the rounding to the cache's type by one step.
                largest = keys if name == "present_key" else values
                bound = 16 * 2**-24 * largest + (
                    2 * ROUNDOFF[cache] * np.abs(theirs) if cache != FLOAT32 else 0
                )
                assert (np.abs(ours - theirs) <= bound).all(), name

    # Weights that are wrong by a factor of exp(+-error) move a weighted mean of the values by at
    # most twice that; the sums over T keys add T roundings. A key that is rounded the other way
    # moves a score by a step of the cache's type in one channel (the bound allows two).
    error = score_error(a, inputs, expected)
    if a.kv_cache_bit_width and moved:
        error += 2 * expected.code_step
    elif cache != FLOAT32 and moved:
        error += (
            4 * ROUNDOFF[cache] * expected.largest_score / np.sqrt(expected.present_key.shape[-1])
        )
    if multiplies_in_bfloat16(a, inputs):
        # The reference rounds the factors, but not the numerators: these are off by 2^-8, and by
        # 2^-13 from the polynomial, which counts as an error of their scores. A query that float32
        # arithmetic moves across a tie changes a score as a key does.
        error += ROUNDOFF[BFLOAT16] + 2**-13
        if a.do_rotary or inputs["q_norm_weight"] is not None:
            dim = expected.present_key.shape[-1]
            error += 4 * ROUNDOFF[BFLOAT16] * expected.largest_score / np.sqrt(dim)
    total = total_length(inputs)
    weights = (total + 8) * 2**-24
    if multiplies_integers(a, inputs):
        # Half a step of the query, 1 / 16,256 of its largest channel, against codes of up to 128
        # in each channel: code_step is one code's effect in the largest channel. Numerators are
        # accurate to half a step of 1 / 65,535 of the largest of 64 keys, which is among those
        # summed.
        dim = expected.present_key.shape[-1]
        error += 0.505 / 16256 * 128 * dim * expected.code_step
        weights += 0.505 / 65535 * min(total, 64)
    absolute = (2 * error + weights) * values
    output = actual["output"]
    assert output is not None
    assert output.shape == expected.output.shape
    assert output.dtype == query.dtype
    for b, rows in enumerate(expected.output_rows):
        ours, theirs = (x[b, :rows].astype(np.float64) for x in (output, expected.output))
        relative = 0 if query.dtype == FLOAT32 else 2 * ROUNDOFF[query.dtype]
        difference = np.abs(ours - theirs)
        assert (difference <= absolute + relative * np.abs(theirs)).all(), (
            difference.max(), absolute)  # fmt: skip

    return float(absolute)


def compare_codes(a: AttentionAttributes, inputs: Inputs, ours: Array, theirs: Array) -> None:
    """Compares the codes of rotated or normalised keys (rows of present_key).

    16 float32 roundings may move a ratio of up to 128 across a tie that is nearer than 16 * 2^-24 *
    128: fewer than 3 of 10,000 codes are off by one.
    """
    rows = cache_rows_of(a, inputs)[0]
    difference = np.abs(rows.unpacked(ours).astype(int) - rows.unpacked(theirs))
    assert difference.max(initial=0) <= 1
    assert np.count_nonzero(difference) <= 3 + 3e-4 * difference.size


def check(a: AttentionAttributes, inputs: Inputs, *, shared: bool = False) -> Inputs:
    """Compares FlowAttention with the reference, and with ONNX Runtime if it has the feature."""
    expected = reference(a, inputs)
    actual = flow_attention(a, inputs, shared=shared)
    absolute = compare(a, inputs, actual, expected)
    if not why_no_cpu_operator(a, inputs):
        compare_with_onnxruntime(a, inputs, actual, expected, absolute)
    return actual


def compare_with_onnxruntime(
    a: AttentionAttributes,
    inputs: Inputs,
    actual: Inputs,
    expected: AttentionResult,
    absolute: float,
) -> None:
    """Outputs and caches of ONNX Runtime's own operator on the same inputs."""
    if COUNTS_QUERY_OUT_OF_WINDOW and a.local_window_size > 1:
        a = replace(a, local_window_size=a.local_window_size - 1)
    session = session_of(model_of(a, inputs, domain="com.microsoft"))
    # Its kernel multiplies weights of 0 by rows that do not hold a token yet; ort_aie_ep never
    # reads them.
    clean = {k: x if x is None else np.nan_to_num(x) for k, x in inputs.items() if "past" in k}
    theirs = run(session, inputs | clean)
    values = expected.largest_value
    # In float32 it rounds as ort_aie_ep does. In float16 it also rounds queries after rotation,
    # weights and products: about 8 independent roundings for each of D products.
    if expected.output.dtype == FLOAT16:
        dim = expected.present_key.shape[-1]
        absolute += 2 * 8 * 2**-11 * expected.largest_score / np.sqrt(dim) * values
    # Its products are float32 or float16 where ort_aie_ep's are bfloat16: independent roundings of
    # queries and keys, D of each in a score, and one of each value.
    if multiplies_in_bfloat16(a, inputs):
        dim = expected.present_key.shape[-1]
        scores = 2 * 2 * expected.largest_score / np.sqrt(dim)
        absolute += ROUNDOFF[BFLOAT16] * (2 * scores + 1) * values
    for name, defined in (
        ("output", expected.output_rows),
        ("present_key", expected.cache_rows),
        ("present_value", expected.cache_rows),
    ):
        axis = 0 if name == "output" else 1
        mine = actual[name]
        assert mine is not None
        assert mine.shape == theirs[name].shape
        for b, rows in enumerate(defined):
            if a.kv_cache_bit_width and name != "output":
                x, y = (z[b, :, :rows] for z in (mine, theirs[name]))
                if name == "present_key" and a.do_rotary:
                    compare_codes(a, inputs, x, y)
                else:
                    np.testing.assert_array_equal(x, y)
                continue
            x, y = (
                np.take(z[b], range(rows), axis).astype(np.float64) for z in (mine, theirs[name])
            )
            # Each side rounds once to the type, and in float16 its rotation of keys rounds four
            # times.
            relative = (2 if name == "output" else 6) * ROUNDOFF[expected.output.dtype]
            bound = 2 * absolute if name == "output" else 16 * 2**-24
            scale = np.abs(y) if name == "output" else np.abs(y).max()
            assert (np.abs(x - y) <= bound + relative * scale).all(), name
