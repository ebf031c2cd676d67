"""aie.FlowAttention against a numpy reference and ONNX Runtime's own GroupQueryAttention."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema
from op_models import ORT_VERSION, one_op_model, open_session, run
from reference import (
    AttentionAttributes,
    AttentionResult,
    group_query_attention,
    windowed_cache_rows,
)

from ort_aie_ep import _native

Array = npt.NDArray[Any]
Inputs = dict[str, Array | None]

FLOAT32, FLOAT16 = np.dtype(np.float32), np.dtype(np.float16)
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
# Unit roundoff: half the distance from 1 to the next value.
ROUNDOFF = {FLOAT32: 2.0**-24, FLOAT16: 2.0**-11, BFLOAT16: 2.0**-8}

INPUT_NAMES = (
    "query key value past_key past_value seqlens_k total_sequence_length cos_cache sin_cache "
    "position_ids attention_bias head_sink k_scale v_scale q_norm_weight k_norm_weight"
).split()
CPU_OPERATOR_ATTRIBUTES = set(
    next(s for s in get_all_operator_schema() if s.name == "GroupQueryAttention").attributes
)
# ONNX Runtime 1.23 lets a query see local_window_size keys besides its own, later ones that many in
# all.
COUNTS_QUERY_OUT_OF_WINDOW = ORT_VERSION < (1, 24)
SHARED = {"present_key": "past_key", "present_value": "past_value"}


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
    seed: int = 0,
) -> Inputs:
    """Inputs of a call after which batch row b has `lengths[b]` tokens.

    Rows of the past that hold no token yet are NaN: nothing may depend on them.
    """
    rng = np.random.default_rng([seed, sequence, *lengths, capacity, dim])
    dtype, cache = np.dtype(dtype), np.dtype(cache_dtype or dtype)
    batch, total = len(lengths), max(lengths)
    is_first_prompt = sequence == total
    capacity = capacity or total - (0 if is_first_prompt else sequence)

    def normal(*shape: int) -> Array:
        return rng.standard_normal(shape).astype(np.float32)

    inputs: Inputs = dict.fromkeys(INPUT_NAMES)
    parts = [normal(batch, sequence, n * dim) for n in (a.num_heads, *2 * [a.kv_num_heads])]
    parts[0] *= 2  # so that some keys stand out of the softmax
    if packed:
        inputs["query"] = np.concatenate(parts, axis=2).astype(dtype)
    else:
        for name, part in zip(("query", "key", "value"), parts, strict=True):
            inputs[name] = part.astype(dtype)
    if with_past:
        for name in ("past_key", "past_value"):
            past = normal(batch, a.kv_num_heads, capacity, dim)
            for b, length in enumerate(lengths):
                rows = 0 if is_first_prompt else length - sequence
                if a.sliding_window_cache:
                    rows = windowed_cache_rows(rows, capacity, a.local_window_size)
                past[b, :, rows:] = np.nan
            inputs[name] = past.astype(cache)
    inputs["seqlens_k"] = np.array(lengths, np.int32) - 1
    inputs["total_sequence_length"] = np.array(total, np.int32)
    if a.do_rotary:
        width = rotary_width or dim // 2
        frequencies = 10000.0 ** (-np.arange(width) / width)
        angles = np.arange(max_position or total)[:, None] * frequencies
        inputs["cos_cache"] = np.cos(angles).astype(dtype)
        inputs["sin_cache"] = np.sin(angles).astype(dtype)
    return inputs


def given_attributes(a: AttentionAttributes) -> dict[str, Any]:
    """Attributes that are not at their defaults; old schemas do not know all."""
    defaults = {f.name: f.default for f in fields(a)}
    return {key: value for key, value in asdict(a).items() if value != defaults[key]}


def model_of(a: AttentionAttributes, inputs: Inputs, *, domain: str = "aie") -> bytes:
    given = given_attributes(a)
    query, past = inputs["query"], inputs["past_key"]
    assert query is not None
    cache = query.dtype if past is None else past.dtype
    if domain == "aie":
        given["format"] = _native.FORMAT
    return one_op_model(
        "FlowAttention" if domain == "aie" else "GroupQueryAttention",
        inputs,
        {"output": query.dtype, "present_key": cache, "present_value": cache},
        given,
        domain=domain,
    )


def flow_attention(a: AttentionAttributes, inputs: Inputs, *, shared: bool = False) -> Inputs:
    return dict(run(open_session(model_of(a, inputs)), inputs, SHARED if shared else None))


def why_no_cpu_operator(a: AttentionAttributes, inputs: Inputs) -> str:
    """Why ONNX Runtime's GroupQueryAttention cannot compute this; empty when it can."""
    query, past = inputs["query"], inputs["past_key"]
    seqlens, total = inputs["seqlens_k"], inputs["total_sequence_length"]
    assert query is not None
    assert seqlens is not None
    assert total is not None
    unknown = set(given_attributes(a)) - CPU_OPERATOR_ATTRIBUTES
    if unknown:
        return f"attributes {sorted(unknown)}"
    if COUNTS_QUERY_OUT_OF_WINDOW and a.local_window_size == 1:
        return "a window of the query alone"
    if query.dtype == BFLOAT16 or (past is not None and past.dtype != query.dtype):
        return "its types"
    if inputs["q_norm_weight"] is not None or inputs["k_norm_weight"] is not None:
        return "norm weights"
    if query.shape[0] > 1 and 1 < query.shape[1] < int(total):
        return "several later tokens in a batch"
    if a.sliding_window_cache and int(seqlens.min()) + 1 < query.shape[1]:
        return "padded prompts on a sliding-window cache"
    if past is None:
        return "no past"
    return ""


def score_error(a: AttentionAttributes, inputs: Inputs, expected: AttentionResult) -> float:
    """Worst error of a score in float32 arithmetic.

    Norm and rotation leave a relative error of at most 16 roundings on vectors, the sum of D
    products D more; both are relative to |q| |k| by Cauchy-Schwarz. Cap and bias add roundings of
    their own size.
    """
    dim = expected.present_key.shape[-1]
    bias = inputs["attention_bias"]
    finite = 0.0 if bias is None else np.abs(np.where(np.isfinite(bias), bias, 0)).max()
    largest = min(expected.largest_score, 1e4)
    return float((dim + 16) * 2**-24 * largest + 2**-24 * (8 * a.softcap + min(finite, 100.0)))


def compare(
    a: AttentionAttributes, inputs: Inputs, actual: Inputs, expected: AttentionResult
) -> float:
    """Compares what the contract defines of `actual` with the reference.

    Returns the absolute error that outputs were allowed.
    """
    query, past = inputs["query"], inputs["past_key"]
    assert query is not None
    cache = expected.present_key.dtype
    values = np.abs(expected.present_value.astype(np.float64)).max()
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
            if name == "present_value" or not (a.do_rotary or inputs["k_norm_weight"] is not None):
                np.testing.assert_array_equal(ours, theirs)
            else:
                # 16 roundings of float32, which may tip the rounding to the cache's type: one step.
                bound = 16 * 2**-24 * keys + (
                    2 * ROUNDOFF[cache] * np.abs(theirs) if cache != FLOAT32 else 0
                )
                assert (np.abs(ours - theirs) <= bound).all(), name

    # Weights that are wrong by a factor of exp(+-error) move a weighted mean of the values by at
    # most twice that; the sums over T keys add T roundings. A key that was rounded the other way
    # moves a score by a step of the cache's type in one channel (two channels allowed for).
    error = score_error(a, inputs, expected)
    if cache != FLOAT32 and (a.do_rotary or inputs["k_norm_weight"] is not None):
        error += 4 * ROUNDOFF[cache] * expected.largest_score / np.sqrt(expected.present_key.shape[-1])
    total = int(np.max(inputs["total_sequence_length"]))  # type: ignore[arg-type]
    absolute = (2 * error + (total + 8) * 2**-24) * values
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


    return absolute


def check(a: AttentionAttributes, inputs: Inputs, *, shared: bool = False) -> Inputs:
    """Compares FlowAttention with the reference, and with ONNX Runtime where it has the feature."""
    expected = group_query_attention(a, inputs)
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
    session = open_session(model_of(a, inputs, domain="com.microsoft"))
    # Its kernel multiplies weights of 0 with rows that hold no token yet; ours never reads them.
    clean = {k: x if x is None else np.nan_to_num(x) for k, x in inputs.items() if "past" in k}
    theirs = run(session, inputs | clean)
    values = np.abs(expected.present_value.astype(np.float64)).max()
    # It rounds like we do in float32. In float16 it rounds queries after rotation, weights and
    # products as well: about 8 independent roundings of each of D products.
    if expected.output.dtype == FLOAT16:
        dim = expected.present_key.shape[-1]
        absolute += 2 * 8 * 2**-11 * expected.largest_score / np.sqrt(dim) * values
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
            x, y = (np.take(z[b], range(rows), axis).astype(np.float64) for z in (mine, theirs[name]))
            # One rounding of each side to the type, and in float16 four in its rotation of keys.
            relative = (2 if name == "output" else 6) * ROUNDOFF[expected.output.dtype]
            bound = 2 * absolute if name == "output" else 16 * 2**-24
            scale = np.abs(y) if name == "output" else np.abs(y).max()
            assert (np.abs(x - y) <= bound + relative * scale).all(), name


# --- layouts of inputs and heads ----------------------------------------------------------------


@pytest.mark.parametrize("dim", [32, 64, 96, 128, 256])
@pytest.mark.parametrize("group", [1, 2, 3, 4, 8])
@pytest.mark.parametrize(("sequence", "past"), [(1, 37), (5, 0), (20, 30)])
def test_head_dimensions_and_groups(dim: int, group: int, sequence: int, past: int) -> None:
    a = attributes(2 * group, 2, do_rotary=1)
    check(a, random_inputs(a, sequence, lengths=(past + sequence,), capacity=64, dim=dim))


@pytest.mark.parametrize("dim", [8, 24, 40])
@pytest.mark.parametrize(("sequence", "past"), [(1, 9), (18, 0)])
def test_head_dimensions_without_rotary(dim: int, sequence: int, past: int) -> None:
    a = attributes()
    check(a, random_inputs(a, sequence, lengths=(past + sequence,), dim=dim))


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16, BFLOAT16])
@pytest.mark.parametrize(("sequence", "past"), [(1, 20), (7, 0), (7, 20)])
def test_packed_and_separate_inputs(
    packed: bool, shared: bool, dtype: np.dtype[Any], sequence: int, past: int
) -> None:
    a = attributes(do_rotary=1)
    inputs = random_inputs(
        a, sequence, lengths=(past + sequence,), capacity=40, dtype=dtype, packed=packed
    )
    check(a, inputs, shared=shared)


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16, BFLOAT16])
@pytest.mark.parametrize("cache_dtype", [FLOAT32, FLOAT16, BFLOAT16])
@pytest.mark.parametrize(("sequence", "past"), [(1, 70), (19, 0), (4, 70)])
def test_activation_and_cache_types_mix(
    dtype: np.dtype[Any], cache_dtype: np.dtype[Any], sequence: int, past: int
) -> None:
    a = attributes(do_rotary=1, softcap=30.0)
    inputs = random_inputs(
        a, sequence, lengths=(past + sequence,), capacity=96, dtype=dtype, cache_dtype=cache_dtype
    )
    check(a, inputs)


@pytest.mark.parametrize("with_past", [True, False])
def test_a_placeholder_leaves_an_input_out(with_past: bool) -> None:
    a = attributes(do_rotary=1)
    inputs = random_inputs(a, 9, lengths=(9,), capacity=12, with_past=with_past)
    inputs["head_sink"] = np.zeros(4, np.float32)
    given = {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1, "format": _native.FORMAT}
    outputs = {name: FLOAT32 for name in ("output", "present_key", "present_value")}
    model = one_op_model("FlowAttention", inputs, outputs, given, fill=True)
    compare(a, inputs, dict(run(open_session(model), inputs)), group_query_attention(a, inputs))


def test_a_call_without_past_inputs_is_a_first_prompt() -> None:
    a = attributes(do_rotary=1)
    check(a, random_inputs(a, 9, lengths=(9,), with_past=False))


# --- the cache --------------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(("sequence", "past", "capacity"), [(1, 12, 13), (1, 12, 50), (6, 12, 50)])
def test_past_longer_than_its_tokens(
    shared: bool, sequence: int, past: int, capacity: int
) -> None:
    a = attributes(do_rotary=1)
    inputs = random_inputs(a, sequence, lengths=(past + sequence,), capacity=capacity)
    present = check(a, inputs, shared=shared)["present_key"]
    assert present is not None
    assert present.shape[2] == capacity


def test_a_present_apart_grows_to_the_total() -> None:
    a = attributes(do_rotary=1)
    present = check(a, random_inputs(a, 3, lengths=(15,), capacity=12))["present_key"]
    assert present is not None
    assert present.shape[2] == 15


@pytest.mark.parametrize(("sequence", "past"), [(1, 12), (6, 0), (6, 12)])
def test_a_shared_buffer_keeps_its_other_rows(sequence: int, past: int) -> None:
    a = attributes(do_rotary=1)
    inputs = random_inputs(a, sequence, lengths=(past + sequence,), capacity=30)
    outputs = check(a, inputs, shared=True)
    for now, before in SHARED.items():
        x, y = outputs[now], inputs[before]
        assert x is not None
        assert y is not None
        untouched = np.r_[0:past, past + sequence : 30]
        np.testing.assert_array_equal(x[:, :, untouched], y[:, :, untouched])


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16])
def test_single_tokens_of_a_batch_with_different_lengths(
    shared: bool, dtype: np.dtype[Any]
) -> None:
    a = attributes(do_rotary=1)
    check(a, random_inputs(a, 1, lengths=(3, 80, 1, 41), capacity=90, dtype=dtype), shared=shared)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("lengths", [(17, 5, 1), (70, 64, 66)])
def test_right_padded_first_prompts_of_a_batch(shared: bool, lengths: tuple[int, ...]) -> None:
    a = attributes(do_rotary=1)
    check(a, random_inputs(a, max(lengths), lengths=lengths, capacity=80), shared=shared)


def test_later_tokens_of_a_batch_with_different_lengths() -> None:
    a = attributes(do_rotary=1)
    check(a, random_inputs(a, 4, lengths=(30, 9, 22), capacity=40))


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("shared", [True, False])
def test_turns_of_a_conversation(packed: bool, shared: bool) -> None:
    """Each call's present is the next one's past, as a host uses the op."""
    a = attributes(do_rotary=1, local_window_size=20)
    capacity, total, past = 64, 0, None
    for step, sequence in enumerate([13, 1, 1, 9, 1, 17, 1]):
        total += sequence
        inputs = random_inputs(
            a, sequence, lengths=(total,), capacity=capacity if shared else 0, packed=packed,
            max_position=capacity, seed=step,
        )  # fmt: skip
        if past is not None:
            inputs |= {SHARED[name]: past[name] for name in SHARED}
        past = check(a, inputs, shared=shared)


def test_no_batch_rows_give_empty_outputs() -> None:
    a = attributes()
    inputs = random_inputs(a, 3, lengths=(3,), capacity=8)
    for name in ("query", "past_key", "past_value", "seqlens_k"):
        array = inputs[name]
        assert array is not None
        inputs[name] = array[:0]
    output = flow_attention(a, inputs)["output"]
    assert output is not None
    assert output.shape == (0, 3, 4 * 32)


def test_no_tokens_leave_the_cache_as_it_is() -> None:
    a = attributes()
    inputs = random_inputs(a, 1, lengths=(6,), capacity=8)
    query = inputs["query"]
    assert query is not None
    outputs = flow_attention(a, inputs | {"query": query[:, :0], "seqlens_k": np.array([4], np.int32)})
    output, present, past = outputs["output"], outputs["present_key"], inputs["past_key"]
    assert output is not None
    assert present is not None
    assert past is not None
    assert output.shape == (1, 0, 4 * 32)
    np.testing.assert_array_equal(present[:, :, :5], past[:, :, :5])


# --- rotary embedding ----------------------------------------------------------------------------------


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("width", [8, 16, 32])
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(("sequence", "past"), [(1, 11), (6, 0), (6, 11)])
def test_full_and_partial_rotary_in_both_layouts(
    interleaved: int, width: int, packed: bool, sequence: int, past: int
) -> None:
    a = attributes(do_rotary=1, rotary_interleaved=interleaved)
    inputs = random_inputs(
        a, sequence, lengths=(past + sequence,), dim=64, rotary_width=width, packed=packed
    )
    check(a, inputs)


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16])
def test_position_ids_of_later_tokens_are_all_used(dtype: np.dtype[Any]) -> None:
    a = attributes(do_rotary=1)
    inputs = random_inputs(a, 4, lengths=(14,), max_position=50, dtype=dtype)
    inputs["position_ids"] = np.array([[30, 3, 49, 0]], np.int64)
    check(a, inputs)


def test_position_ids_of_a_first_prompt_start_at_the_first() -> None:
    a = attributes(do_rotary=1)
    inputs = random_inputs(a, 4, lengths=(4,), max_position=50)
    inputs["position_ids"] = np.array([[30, 3, 49, 0]], np.int64)
    check(a, inputs)


def test_position_ids_of_each_batch_row() -> None:
    a = attributes(do_rotary=1)
    inputs = random_inputs(a, 1, lengths=(8, 3, 5), max_position=50)
    inputs["position_ids"] = np.array([[30], [3], [49]], np.int64)
    check(a, inputs)


# --- masks and weights ---------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [1, 2, 7, 63, 64, 65, 100, 1000])
@pytest.mark.parametrize(("sequence", "past"), [(1, 150), (150, 0), (40, 90)])
def test_local_window(window: int, sequence: int, past: int) -> None:
    a = attributes(do_rotary=1, local_window_size=window)
    check(a, random_inputs(a, sequence, lengths=(past + sequence,), capacity=200))


@pytest.mark.parametrize("window", [1, 5])
def test_local_window_of_a_batch_with_different_lengths(window: int) -> None:
    a = attributes(local_window_size=window)
    check(a, random_inputs(a, 1, lengths=(3, 80, 1, 41), capacity=90))
    check(a, random_inputs(a, 30, lengths=(30, 3, 17), capacity=90))


@pytest.mark.parametrize("softcap", [0.5, 20.0, 50.0])
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16])
@pytest.mark.parametrize(("sequence", "past"), [(1, 70), (33, 0)])
def test_softcap(softcap: float, dtype: np.dtype[Any], sequence: int, past: int) -> None:
    a = attributes(softcap=softcap)
    check(a, random_inputs(a, sequence, lengths=(past + sequence,), dtype=dtype))


@pytest.mark.parametrize("scale", [0.01, 1.0])
def test_scale(scale: float) -> None:
    a = attributes(scale=scale)
    check(a, random_inputs(a, 1, lengths=(70,)))
    check(a, random_inputs(a, 33, lengths=(33,)))


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16, BFLOAT16])
@pytest.mark.parametrize("smooth", [-1, 0, 1])
@pytest.mark.parametrize("with_sink", [True, False])
@pytest.mark.parametrize(("sequence", "past"), [(1, 70), (33, 0)])
def test_smooth_softmax_and_sinks(
    dtype: np.dtype[Any], smooth: int, with_sink: bool, sequence: int, past: int
) -> None:
    a = attributes(smooth_softmax=smooth)
    inputs = random_inputs(a, sequence, lengths=(past + sequence,), dtype=dtype)
    if with_sink:  # from one that vanishes to one that outweighs every key
        inputs["head_sink"] = np.array([-30.0, -1.0, 2.0, 12.0]).astype(dtype)
    check(a, inputs)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("bias_batch", ["one", "all"])
@pytest.mark.parametrize("bias_heads", ["one", "all"])
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16])
@pytest.mark.parametrize("sequence", [1, 70])
def test_attention_bias_broadcasts(
    batch: int, bias_batch: str, bias_heads: str, dtype: np.dtype[Any], sequence: int
) -> None:
    a = attributes(do_rotary=1, softcap=20.0)
    total = 75 if sequence == 1 else 70
    lengths = (total, total - 3, 4)[:batch]
    inputs = random_inputs(a, sequence, lengths=lengths, dtype=dtype)
    shape = (
        batch if bias_batch == "all" else 1,
        a.num_heads if bias_heads == "all" else 1,
        sequence,
        total,
    )
    rng = np.random.default_rng(7)
    inputs["attention_bias"] = (3 * rng.standard_normal(shape)).astype(dtype)
    check(a, inputs)


@pytest.mark.parametrize("masked", ["-inf", "lowest"])
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16, BFLOAT16])
@pytest.mark.parametrize(("sequence", "past"), [(1, 140), (90, 0)])
def test_attention_bias_masks_keys(
    masked: str, dtype: np.dtype[Any], sequence: int, past: int
) -> None:
    a = attributes()
    inputs = random_inputs(a, sequence, lengths=(past + sequence,), dtype=dtype)
    lowest = -np.inf if masked == "-inf" else float(ml_dtypes.finfo(dtype).min)
    rng = np.random.default_rng(8)
    mask = rng.random((1, 1, sequence, past + sequence)) < 0.5
    mask[..., :80] = True  # a whole chunk of keys
    mask[..., 0] = False  # each query keeps one
    inputs["attention_bias"] = np.where(mask, lowest, 0).astype(dtype)
    check(a, inputs)


@pytest.mark.parametrize("smooth", [-1, 1])
@pytest.mark.parametrize(("sequence", "past"), [(1, 600), (1, 1100), (20, 0)])
def test_a_query_that_the_bias_masks_fully_gives_zeros(
    smooth: int, sequence: int, past: int
) -> None:
    a = attributes(smooth_softmax=smooth)
    inputs = random_inputs(a, sequence, lengths=(past + sequence,))
    bias = np.zeros((1, a.num_heads, sequence, past + sequence), np.float32)
    bias[:, 1, sequence // 2] = -np.inf
    inputs["attention_bias"] = bias
    expected = group_query_attention(a, inputs)
    actual = flow_attention(a, inputs)
    compare(a, inputs, actual, expected)
    output = actual["output"]
    assert output is not None
    np.testing.assert_array_equal(output[0, sequence // 2, 32:64], 0)


@pytest.mark.parametrize(("sequence", "past"), [(1, 70), (33, 0), (20, 50)])
def test_without_causal_order_every_key_is_seen(sequence: int, past: int) -> None:
    a = attributes(causal=0)
    check(a, random_inputs(a, sequence, lengths=(past + sequence,), capacity=90))


def test_without_causal_order_padding_is_not_seen() -> None:
    a = attributes(causal=0)
    inputs = random_inputs(a, 30, lengths=(30, 12, 1))
    compare(a, inputs, flow_attention(a, inputs), group_query_attention(a, inputs))


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16, BFLOAT16])
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("rotary", [0, 1])
@pytest.mark.parametrize(("sequence", "past"), [(1, 70), (20, 0)])
def test_norm_weights_of_queries_and_keys(
    dtype: np.dtype[Any], packed: bool, rotary: int, sequence: int, past: int
) -> None:
    a = attributes(do_rotary=rotary, qk_norm_epsilon=1e-3)
    inputs = random_inputs(a, sequence, lengths=(past + sequence,), dtype=dtype, packed=packed)
    rng = np.random.default_rng(9)
    for name in ("q_norm_weight", "k_norm_weight"):
        inputs[name] = (1 + 0.3 * rng.standard_normal(32)).astype(dtype)
    check(a, inputs)


# --- long inputs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("past", [510, 511, 512, 640, 1023, 1024, 1600, 2200])
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16])
def test_one_token_after_a_long_context(past: int, dtype: np.dtype[Any]) -> None:
    """Long enough for keys to be split among tasks, whose results are merged."""
    a = attributes(do_rotary=1)
    check(a, random_inputs(a, 1, lengths=(past + 1,), capacity=2300, dtype=dtype))


@pytest.mark.parametrize(
    "others",
    [
        {"local_window_size": 600},
        {"local_window_size": 1300},
        {"softcap": 15.0},
        {"num_heads": 6, "kv_num_heads": 1},
    ],
)
def test_one_token_after_a_long_context_with(others: dict[str, Any]) -> None:
    a = attributes(**others)
    check(a, random_inputs(a, 1, lengths=(1700,)))


def test_a_sink_joins_merged_splits_once() -> None:
    a = attributes()
    inputs = random_inputs(a, 1, lengths=(1700,))
    # About as heavy as all keys together, so that a second count would show.
    inputs["head_sink"] = np.full(a.num_heads, 9.0, np.float32)
    check(a, inputs)


def test_long_contexts_of_a_batch_with_different_lengths() -> None:
    # Some rows end before the later splits begin.
    a = attributes(do_rotary=1)
    check(a, random_inputs(a, 1, lengths=(1500, 3, 700, 513), capacity=1600))


def test_a_long_context_whose_bias_masks_whole_splits() -> None:
    a = attributes()
    inputs = random_inputs(a, 1, lengths=(1600,))
    bias = np.full((1, 1, 1, 1600), -np.inf, np.float32)
    bias[..., [3, 1590]] = 0
    inputs["attention_bias"] = bias
    check(a, inputs)


@pytest.mark.parametrize("sequence", [1, 15, 16, 17, 100, 300])
@pytest.mark.parametrize("past", [0, 1, 70])
@pytest.mark.parametrize("group", [1, 4])
def test_prompts_over_several_query_tiles(sequence: int, past: int, group: int) -> None:
    a = attributes(2 * group, 2, do_rotary=1)
    check(a, random_inputs(a, sequence, lengths=(past + sequence,), capacity=380))


# --- sliding-window cache ---------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16, BFLOAT16])
@pytest.mark.parametrize(("window", "capacity"), [(1, 1), (8, 8), (8, 11), (8, 24), (70, 150)])
@pytest.mark.parametrize(
    "steps",
    [[1] * 30, [3] * 10, [5] * 8, [9] * 6, [40, 1, 1, 3, 1], [2, 200, 1, 100, 7, 1]],
    ids=lambda steps: f"{sum(steps)}in{len(steps)}",
)
def test_sliding_window_cache(
    shared: bool, dtype: np.dtype[Any], window: int, capacity: int, steps: list[int]
) -> None:
    """Each present is the next past; prompts may be longer than the cache."""
    a = attributes(do_rotary=1, local_window_size=window, sliding_window_cache=1)
    total, past = 0, None
    for step, sequence in enumerate(steps):
        total += sequence
        inputs = random_inputs(
            a, sequence, lengths=(total,), capacity=capacity, dim=16, dtype=dtype,
            max_position=sum(steps), seed=step,
        )  # fmt: skip
        if past is not None:
            inputs |= {SHARED[name]: past[name] for name in SHARED}
        past = check(a, inputs, shared=shared)


def test_sliding_window_cache_of_a_batch_with_different_lengths() -> None:
    a = attributes(local_window_size=8, sliding_window_cache=1)
    for lengths in ((30, 3, 12), (9, 8, 40)):
        check(a, random_inputs(a, 1, lengths=lengths, capacity=12))
        check(a, random_inputs(a, 1, lengths=lengths, capacity=12), shared=True)
    check(a, random_inputs(a, 30, lengths=(30, 3, 12), capacity=12))


@pytest.mark.parametrize(("sequence", "past"), [(1, 40), (5, 40), (40, 0)])
def test_bias_columns_of_a_sliding_window_cache_are_positions(sequence: int, past: int) -> None:
    a = attributes(local_window_size=8, sliding_window_cache=1)
    inputs = random_inputs(a, sequence, lengths=(past + sequence,), capacity=12)
    rng = np.random.default_rng(10)
    shape = (1, a.num_heads, sequence, past + sequence)
    inputs["attention_bias"] = rng.standard_normal(shape).astype(np.float32)
    check(a, inputs)


# --- NaN and infinities -----------------------------------------------------------------------------------


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("sequence", "past"), [(1, 40), (1, 1500), (40, 0), (5, 70)])
def test_a_bad_query_reaches_its_own_token_and_head(
    poison: float, sequence: int, past: int
) -> None:
    a = attributes(do_rotary=1)
    inputs = random_inputs(a, sequence, lengths=(past + sequence,), packed=False)
    clean = flow_attention(a, inputs)["output"]
    query = inputs["query"]
    assert query is not None
    token, head = sequence // 2, 2
    query[0, token, head * 32 + 5] = poison
    output = flow_attention(a, inputs)["output"]
    assert output is not None
    assert clean is not None
    hit = np.zeros(output.shape, bool)
    hit[0, token, head * 32 : (head + 1) * 32] = True
    assert np.isnan(output[hit]).all()
    np.testing.assert_array_equal(output[~hit], clean[~hit])


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["key", "value"])
@pytest.mark.parametrize("options", [{}, {"softcap": 20.0}, {"smooth_softmax": 1}])
def test_a_bad_key_or_value_reaches_the_queries_that_see_it(
    poison: float, name: str, options: dict[str, Any]
) -> None:
    a = attributes(**options)
    inputs = random_inputs(a, 60, lengths=(60, 60), packed=False)
    clean = flow_attention(a, inputs)
    array = inputs[name]
    assert array is not None
    array[1, 20, 3] = poison  # of KV head 0, so of query heads 0 and 1
    bad = flow_attention(a, inputs)
    output, before = bad["output"], clean["output"]
    assert output is not None
    assert before is not None
    if name == "value":  # keys may drown in the soft cap or get no weight, a value cannot
        channels = [3, 32 + 3]
        assert not np.isfinite(output[1, 20:, channels]).any()
    elif np.isnan(poison):
        assert np.isnan(output[1, 20:, :64]).all()
    np.testing.assert_array_equal(output[0], before[0])  # the other batch row
    np.testing.assert_array_equal(output[1, :, 64:], before[1, :, 64:])  # the other KV head
    np.testing.assert_array_equal(output[1, :16], before[1, :16])  # queries of earlier tiles
    present = bad["present_" + name]
    assert present is not None
    np.testing.assert_array_equal(present[1, 0, 20, 3], array[1, 20, 3])


@pytest.mark.parametrize("name", ["attention_bias", "head_sink", "cos_cache"])
def test_other_bad_inputs_propagate(name: str) -> None:
    a = attributes(do_rotary=1)
    for sequence, past in ((1, 40), (20, 0)):
        inputs = random_inputs(a, sequence, lengths=(past + sequence,))
        inputs["attention_bias"] = np.zeros((1, 1, sequence, past + sequence), np.float32)
        inputs["head_sink"] = np.zeros(a.num_heads, np.float32)
        array = inputs[name]
        assert array is not None
        array[...] = np.nan
        output = flow_attention(a, inputs)["output"]
        assert np.isnan(output).all()  # type: ignore[arg-type]


# --- errors -----------------------------------------------------------------------------------------------


def resized(array: Array | None, shape: tuple[int, ...]) -> Array:
    assert array is not None
    return np.zeros(shape, array.dtype)


@dataclass(frozen=True)
class Wrong:
    """A change of good inputs, (1, 1, 40 channels of past) and the text of the error."""

    change: dict[str, Any]
    message: str
    options: dict[str, Any]


def wrong(message: str, options: dict[str, Any] | None = None, **change: Any) -> Wrong:
    return Wrong(change, message, options or {})


INT32 = np.int32
WRONG_INPUTS = [
    wrong(r"seqlens_k\[0\] says 40 past tokens, but past_key holds 16 rows",
          seqlens_k=np.array([40], INT32), total_sequence_length=np.array(41, INT32)),
    wrong(r"seqlens_k\[0\] is 11, outside \[0, total_sequence_length=11\)",
          seqlens_k=np.array([11], INT32)),
    wrong(r"seqlens_k\[0\] is -1, outside", seqlens_k=np.array([-1], INT32)),
    wrong(r"seqlens_k\[0\] is -2147483648, outside", seqlens_k=np.array([-(2**31)], INT32)),
    wrong(r"seqlens_k must be int32 \(1\), got int32 \(2\)", seqlens_k=np.array([9, 9], INT32)),
    wrong(r"seqlens_k must be int32 \(1\), got int64", seqlens_k=np.array([9], np.int64)),
    wrong("total_sequence_length is 0, less than the 1 query rows",
          total_sequence_length=np.array(0, INT32)),
    wrong("total_sequence_length must be one int32", total_sequence_length=np.zeros(2, INT32)),
    wrong("total_sequence_length 11 is beyond cos_cache's 8 positions", {"do_rotary": 1},
          cos_cache=np.ones((8, 16), np.float32), sin_cache=np.ones((8, 16), np.float32)),
    wrong("needs inputs cos_cache and sin_cache", {"do_rotary": 1}),
    wrong(r"cos_cache must be float \(max_position, at most 16\), got float \(20, 17\)",
          {"do_rotary": 1}, cos_cache=np.ones((20, 17), np.float32),
          sin_cache=np.ones((20, 17), np.float32)),
    wrong(r"sin_cache must be float \(20, 16\), got float \(19, 16\)", {"do_rotary": 1},
          cos_cache=np.ones((20, 16), np.float32), sin_cache=np.ones((19, 16), np.float32)),
    wrong("position 20 of batch row 0 is outside cos_cache's 20 positions", {"do_rotary": 1},
          cos_cache=np.ones((20, 16), np.float32), sin_cache=np.ones((20, 16), np.float32),
          position_ids=np.array([[20]], np.int64)),
    wrong("position -1 of batch row 0 is outside", {"do_rotary": 1},
          cos_cache=np.ones((20, 16), np.float32), sin_cache=np.ones((20, 16), np.float32),
          position_ids=np.array([[-1]], np.int64)),
    wrong(r"position_ids must be int64 \(1, 1\), got int64 \(1, 2\)",
          position_ids=np.zeros((1, 2), np.int64)),
    wrong(r"query must be \(batch, sequence, channels\), got \(1, 256\)",
          query=np.zeros((1, 256), np.float32)),
    wrong("query has 255 channels, which is no multiple of 8 heads",
          query=np.zeros((1, 1, 255), np.float32)),
    wrong("query must be float, float16 or bfloat16, got uint8",
          query=np.zeros((1, 1, 256), np.uint8)),
    wrong("head dimension must be a multiple of 8, got 20", query=np.zeros((1, 1, 160), np.float32)),
    wrong("key and value go together", key=np.zeros((1, 1, 64), np.float32)),
    wrong(r"key must be float \(1, 1, 128\), got float \(1, 1, 64\)",
          key=np.zeros((1, 1, 64), np.float32), value=np.zeros((1, 1, 128), np.float32)),
    wrong("past_key and past_value go together", past_value=None),
    wrong(r"past_key must be \(1, 2, length, 32\), got \(1, 3, 16, 32\)",
          past_key=np.zeros((1, 3, 16, 32), np.float32)),
    wrong(r"past_value must be float \(1, 2, 16, 32\), got float \(1, 2, 17, 32\)",
          past_value=np.zeros((1, 2, 17, 32), np.float32)),
    wrong("past_key must be float, float16 or bfloat16, got uint8",
          past_key=np.zeros((1, 2, 16, 32), np.uint8), past_value=np.zeros((1, 2, 16, 32), np.uint8)),
    wrong(r"attention_bias must be float \(1 or 1, 4 or 1, 1, 11\), got float \(1, 3, 1, 11\)",
          attention_bias=np.zeros((1, 3, 1, 11), np.float32)),
    wrong("attention_bias must be", attention_bias=np.zeros((1, 1, 1, 10), np.float32)),
    wrong("attention_bias must be float .*, got float16",
          attention_bias=np.zeros((1, 1, 1, 11), np.float16)),
    wrong(r"head_sink must be float \(4\), got float \(2\)", head_sink=np.zeros(2, np.float32)),
    wrong(r"q_norm_weight must be float \(32\), got float \(16\)",
          q_norm_weight=np.ones(16, np.float32)),
    wrong("k_scale: a quantised KV cache is not supported", k_scale=np.ones(1, np.float32)),
    wrong("v_scale: a quantised KV cache is not supported", v_scale=np.ones(1, np.float32)),
    wrong("past_key holds 16 rows; a sliding-window cache needs at least local_window_size=17",
          {"local_window_size": 17, "sliding_window_cache": 1}),
    wrong("seqlens_k is missing", seqlens_k=None),
    wrong("total_sequence_length is missing", total_sequence_length=None),
]  # fmt: skip


@pytest.mark.parametrize("case", WRONG_INPUTS, ids=lambda case: case.message[:40])
def test_wrong_inputs_are_named_and_the_session_lives(case: Wrong) -> None:
    a = attributes(**case.options)
    good = random_inputs(attributes(), 1, lengths=(11,), capacity=16)
    session = open_session(model_of(a, good | case.change))
    with pytest.raises(Exception, match=f"FlowAttention node.*the_node.*{case.message}"):
        run(session, good | case.change)
    check(attributes(), good)  # a good call still works afterwards


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_heads": 0}, "num_heads must be a positive multiple of kv_num_heads"),
        ({"num_heads": 3, "kv_num_heads": 2}, "num_heads=3 kv_num_heads=2"),
        ({"causal": 2}, "causal must be 0 or 1, got 2"),
        ({"causal": 0, "local_window_size": 4}, "local_window_size needs causal=1"),
        ({"sliding_window_cache": 1}, "sliding_window_cache=1 needs local_window_size > 0"),
    ],
)
def test_wrong_attributes_are_named_when_a_session_is_made(
    options: dict[str, Any], message: str
) -> None:
    inputs = random_inputs(attributes(), 1, lengths=(11,))
    with pytest.raises(Exception, match=f"aie.FlowAttention node 'the_node'.*{message}"):
        open_session(model_of(attributes(**options), inputs))


@pytest.mark.parametrize(
    ("attribute", "message"),
    [
        ({"qk_output": 1}, "qk_output=1 is not supported"),
        ({"format": 99}, "the model has format 99, this library reads format"),
        ({"format": 0}, "the model has format 0"),
    ],
)
def test_a_score_output_or_an_unknown_format_is_refused(
    attribute: dict[str, int], message: str
) -> None:
    inputs = random_inputs(attributes(), 1, lengths=(11,))
    outputs = {name: FLOAT32 for name in ("output", "present_key", "present_value")}
    given = {"num_heads": 4, "kv_num_heads": 2, "format": _native.FORMAT} | attribute
    with pytest.raises(Exception, match=f"'the_node'.*{message}"):
        open_session(one_op_model("FlowAttention", inputs, outputs, given))


@pytest.mark.parametrize("count", [1, 2])
def test_present_outputs_are_required(count: int) -> None:
    inputs = random_inputs(attributes(), 1, lengths=(11,))
    given = {"num_heads": 4, "kv_num_heads": 2, "format": _native.FORMAT}
    outputs = {name: FLOAT32 for name in ("output", "present_key")[:count]}
    with pytest.raises(Exception, match=f"the_node.* output size {count} not in range.*min=3"):
        open_session(one_op_model("FlowAttention", inputs, outputs, given))


def test_a_bound_buffer_that_is_too_short_is_an_error() -> None:
    a = attributes()
    inputs = random_inputs(a, 1, lengths=(11,), capacity=10)  # the shared buffer holds 10 rows
    session = open_session(model_of(a, inputs))
    with pytest.raises(Exception, match="the_node|shape"):
        run(session, inputs, SHARED)


# --- shapes that a session knows before it runs --------------------------------------------------------


def test_shapes_are_inferred() -> None:
    a = attributes(4, 2, local_window_size=8, sliding_window_cache=1)
    inputs = random_inputs(a, 1, lengths=(20,), capacity=12)
    model = one_op_model(
        "FlowAttention",
        inputs,
        {name: FLOAT32 for name in ("output", "present_key", "present_value")},
        {"num_heads": 4, "kv_num_heads": 2, "local_window_size": 8, "sliding_window_cache": 1,
         "format": _native.FORMAT},
        dims={"query": ["batch", "sequence", 8 * 32], "past_key": ["batch", 2, "rows", 32]},
    )  # fmt: skip
    shapes = {value.name: value.shape for value in open_session(model).get_outputs()}
    assert shapes["output"] == ["batch", "sequence", 4 * 32]
    assert shapes["present_key"] == ["batch", 2, "rows", 32]
    assert shapes["present_value"] == ["batch", 2, "rows", 32]
