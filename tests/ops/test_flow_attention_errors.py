"""aie.FlowAttention with bad values, wrong inputs and wrong attributes; shapes that it infers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from attention_calls import (
    SHARED,
    Array,
    Inputs,
    attributes,
    check,
    flow_attention,
    given_attributes,
    model_of,
    of,
    random_inputs,
)
from op_models import FLOAT32, ORT_VERSION, one_op_model, open_session, run
from reference import AttentionAttributes

from ort_aie_ep import _native

# --- NaN: test_not_finite.py has the rest ---------------------------------------------------------


@pytest.mark.parametrize(("first", "end"), [(0, 512), (512, 1024), (1024, 1599), (300, 301)])
def test_keys_that_are_nan_reach_a_token_whichever_thread_meets_them(first: int, end: int) -> None:
    """A token's keys are split into parts, and one part may have only NaN scores."""
    a = attributes()
    inputs = random_inputs(a, 1, lengths=(1600,), capacity=1600)
    of(inputs, "past_key")[0, 0, first:end, 3] = np.nan
    output = of(flow_attention(a, inputs), "output")
    np.testing.assert_array_equal(np.isnan(output[0, 0]), np.arange(output.size) < 2 * 32)


@pytest.mark.parametrize("name", ["attention_bias", "head_sink", "cos_cache"])
def test_other_bad_inputs_propagate(name: str) -> None:
    a = attributes(do_rotary=1)
    for sequence, past in ((1, 40), (20, 0)):
        inputs = random_inputs(a, sequence, lengths=(past + sequence,))
        inputs["attention_bias"] = np.zeros((1, 1, sequence, past + sequence), np.float32)
        inputs["head_sink"] = np.zeros(a.num_heads, np.float32)
        of(inputs, name)[...] = np.nan
        assert np.isnan(of(flow_attention(a, inputs), "output")).all()


# --- errors ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Wrong:
    """A change to good inputs, (1, 1, 40 channels of past), and the text of the error."""

    change: dict[str, Any]
    message: str
    options: dict[str, Any]


def wrong(message: str, options: dict[str, Any] | None = None, **change: Any) -> Wrong:
    return Wrong(change, message, options or {})


INT32 = np.int32
BY_INDEX: dict[str, Any] = {"seqlens_k": None, "total_sequence_length": None}
TABLE = np.ones((20, 16), np.float32)
CODES = {bits: {"kv_cache_bit_width": bits, "k_quant_type": "PER_CHANNEL",
                "v_quant_type": "PER_CHANNEL"} for bits in (8, 4)}  # fmt: skip
SCALES = r"float \(1, 2, 1, 32\) for k_quant_type=PER_CHANNEL"


def past(dtype: npt.DTypeLike, width: int) -> dict[str, Array]:
    return {name: np.zeros((1, 2, 16, width), dtype) for name in ("past_key", "past_value")}


WRONG_INPUTS = [
    wrong(r"seqlens_k\[0\] means 40 past tokens, but past_key holds 16 rows",
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
    wrong("total_sequence_length 11 is beyond the model's 8 positions",
          {"do_rotary": 1, "rotary_positions": 8}, rotary_frequencies=np.ones(16, np.float32)),
    wrong("rotary_frequencies needs attribute rotary_positions", {"do_rotary": 1},
          rotary_frequencies=np.ones(16, np.float32)),
    wrong("rotary_frequencies needs .* no cos_cache", {"do_rotary": 1, "rotary_positions": 20},
          cos_cache=TABLE, sin_cache=TABLE, rotary_frequencies=np.ones(16, np.float32)),
    wrong(r"rotary_frequencies must be float \(at most 16\), got float \(17\)",
          {"do_rotary": 1, "rotary_positions": 20}, rotary_frequencies=np.ones(17, np.float32)),
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
    wrong("query has 255 channels, which is not a multiple of 8 heads",
          query=np.zeros((1, 1, 255), np.float32)),
    wrong("query must be float, float16 or bfloat16, got uint8",
          query=np.zeros((1, 1, 256), np.uint8)),
    wrong("head dimension must be a multiple of 8, got 20",
          query=np.zeros((1, 1, 160), np.float32)),
    wrong("key and value go together", key=np.zeros((1, 1, 64), np.float32)),
    wrong(r"key must be float \(1, 1, 128\), got float \(1, 1, 64\)",
          key=np.zeros((1, 1, 64), np.float32), value=np.zeros((1, 1, 128), np.float32)),
    wrong("past_key and past_value go together", past_value=None),
    wrong(r"past_key must be \(1, 2, length, 32\), got \(1, 3, 16, 32\)",
          past_key=np.zeros((1, 3, 16, 32), np.float32)),
    wrong(r"past_value must be float \(1, 2, 16, 32\), got float \(1, 2, 17, 32\)",
          past_value=np.zeros((1, 2, 17, 32), np.float32)),
    wrong("past_key must be float, float16 or bfloat16, got uint8 without kv_cache_bit_width",
          past_key=np.zeros((1, 2, 16, 32), np.uint8),
          past_value=np.zeros((1, 2, 16, 32), np.uint8)),
    wrong(r"attention_bias must be float \(1 or 1, 4 or 1, 1, 11\), got float "
          r"\(1, 3, 1, 11\)",
          attention_bias=np.zeros((1, 3, 1, 11), np.float32)),
    wrong("attention_bias must be", attention_bias=np.zeros((1, 1, 1, 10), np.float32)),
    wrong("attention_bias must be float .*, got float16",
          attention_bias=np.zeros((1, 1, 1, 11), np.float16)),
    wrong(r"head_sink must be float \(4\), got float \(2\)", head_sink=np.zeros(2, np.float32)),
    wrong(r"q_norm_weight must be float \(32\), got float \(16\)",
          q_norm_weight=np.ones(16, np.float32)),
    wrong("k_scale needs attributes kv_cache_bit_width and k_quant_type",
          k_scale=np.ones(1, np.float32)),
    wrong("v_scale needs attributes kv_cache_bit_width and v_quant_type",
          v_scale=np.ones(1, np.float32)),
    wrong("past_key holds 16 rows; a sliding-window cache needs at least local_window_size=17",
          {"local_window_size": 17, "sliding_window_cache": 1}),
    wrong("seqlens_k and total_sequence_length go together", seqlens_k=None),
    wrong("seqlens_k and total_sequence_length go together", total_sequence_length=None),
    wrong(r"attention_mask must be int64 \(1, 11\), got int64 \(1, 10\)",
          attention_mask=np.ones((1, 10), np.int64)),
    wrong(r"attention_mask must be int64 \(1, 11\), got float \(1, 11\)",
          attention_mask=np.ones((1, 11), np.float32)),
    wrong(r"attention_mask must be int64 \(1, 17\), got int64 \(1, 11\)", **BY_INDEX,
          attention_mask=np.ones((1, 11), np.int64)),
    wrong("sliding_window_cache=1 needs inputs seqlens_k and total_sequence_length",
          {"local_window_size": 4, "sliding_window_cache": 1}, **BY_INDEX),
    wrong("the total length 17 is beyond cos_cache's 8 positions", {"do_rotary": 1}, **BY_INDEX,
          cos_cache=np.ones((8, 16), np.float32), sin_cache=np.ones((8, 16), np.float32)),
    wrong("position 8 of batch row 0 is outside cos_cache's 8 positions", {"do_rotary": 1},
          **BY_INDEX, position_ids=np.array([[8]]),
          cos_cache=np.ones((8, 16), np.float32), sin_cache=np.ones((8, 16), np.float32)),
    wrong(r"key must be float \(1, 1, 64\), got float \(1, 3, 64\)", {"do_rotary": 1}, **BY_INDEX,
          query=np.zeros((1, 1, 128), np.float32), key=np.zeros((1, 3, 64), np.float32),
          value=np.zeros((1, 3, 64), np.float32)),
    *(wrong(message, CODES[bits], **change) for bits, change, message in (
        (8, past(np.uint8, 32), "past_key must be int8 for kv_cache_bit_width=8, got uint8"),
        (4, past(np.int8, 16), "past_key must be uint8 for kv_cache_bit_width=4, got int8"),
        (8, past(np.float32, 32), "past_key must be int8 for kv_cache_bit_width=8, got float"),
        (8, past(np.int8, 16), r"past_key must be \(1, 2, length, 32\), got \(1, 2, 16, 16\)"),
        (4, past(np.uint8, 32), r"past_key must be \(1, 2, length, 16\), got \(1, 2, 16, 32\)"),
        (8, {"k_scale": None}, "k_quant_type=PER_CHANNEL needs input k_scale"),
        (4, {"v_scale": None}, "v_quant_type=PER_CHANNEL needs input v_scale"),
        (8, {"k_scale": np.ones(1, np.float32)}, rf"k_scale must be {SCALES}, got float \(1\)"),
        (8, {"k_scale": np.ones((1, 2, 1, 32), np.float16)}, rf"k_scale must be {SCALES}, got"),
        (8, {"v_scale": np.ones(2, np.float32)}, r"v_scale must be .*, got float \(2\)"),
    )),
    *(wrong(message, {"do_rotary": 1, **given}, cos_cache=TABLE, sin_cache=TABLE,
            position_ids=None if ids is None else np.zeros(ids, np.int64))
      for given, ids, message in (
        ({"position_axes": 1}, None, "position_axes=1 needs input position_ids"),
        ({"position_axes": 1}, (1,), r"position_ids must be int64 \(1, 1\), got int64 \(1\)"),
        ({"position_axes": 3}, (1, 1), r"position_ids must be int64 \(3, 1, 1\), got .* \(1, 1\)"),
        ({"position_axes": 3, "mrope_height": 9, "mrope_width": 8}, (3, 1, 1),
         "mrope_height=9 and mrope_width=8 are more than the 16 pairs of channels"),
    )),
    *(wrong("position 50 of batch row 0 is outside cos_cache's 20 positions",
            {"do_rotary": 1, "position_axes": 3}, cos_cache=TABLE, sin_cache=TABLE,
            position_ids=np.eye(3, dtype=np.int64)[axis].reshape(3, 1, 1) * 50)
      for axis in range(3)),
    wrong(r"v_norm_weight must be float \(32\), got float \(16\)",
          v_norm_weight=np.ones(16, np.float32)),
    wrong(r"value must be float \(1, 1, 64\), got float \(1, 1, 32\)", **BY_INDEX,
          query=np.zeros((1, 1, 128), np.float32), key=np.zeros((1, 1, 64), np.float32),
          value=np.zeros((1, 1, 32), np.float32)),
]  # fmt: skip


def model(a: AttentionAttributes, inputs: Inputs, dims: dict[str, Any] | None = None) -> bytes:
    """Of inputs and attributes that need not fit together."""
    query, past_key = of(inputs, "query"), inputs["past_key"]
    floats = query.dtype if past_key is None else past_key.dtype
    cache = np.dtype({8: np.int8, 4: np.uint8}.get(a.kv_cache_bit_width, floats))
    outputs = {"output": query.dtype, "present_key": cache, "present_value": cache}
    given = given_attributes(a) | {"format": _native.FORMAT}
    return one_op_model("FlowAttention", inputs, outputs, given, dims=dims)


@pytest.mark.parametrize("case", WRONG_INPUTS, ids=lambda case: case.message[:40])
def test_wrong_inputs_are_named_and_the_session_lives(case: Wrong) -> None:
    a = attributes(**case.options)
    plain = attributes(kv_cache_bit_width=a.kv_cache_bit_width, k_quant_type=a.k_quant_type,
                       v_quant_type=a.v_quant_type)  # fmt: skip
    good = random_inputs(plain, 1, lengths=(11,), capacity=16)
    session = open_session(model(a, good | case.change))
    with pytest.raises(Exception, match=f"FlowAttention node.*the_node.*{case.message}"):
        run(session, good | case.change)
    check(plain, good)  # a good call still works afterwards


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_heads": 0}, "num_heads must be a positive multiple of kv_num_heads"),
        ({"num_heads": 3, "kv_num_heads": 2}, "num_heads=3 kv_num_heads=2"),
        ({"causal": 2}, "causal must be 0 or 1, got 2"),
        ({"causal": 0, "local_window_size": 4}, "local_window_size needs causal=1"),
        ({"sliding_window_cache": 1}, "sliding_window_cache=1 needs local_window_size > 0"),
        ({"do_rotary": 1, "position_axes": 2}, "position_axes must be 0, 1 or 3, got 2"),
        ({"position_axes": 1}, "position_axes=1 needs do_rotary=1"),
        (CODES[8] | {"kv_cache_bit_width": 2}, "kv_cache_bit_width must be 8, 4 or 0 .*, got 2"),
        (
            CODES[8] | {"kv_cache_bit_width": 0},
            "k_quant_type=PER_CHANNEL v_quant_type=PER_CHANNEL need",
        ),
        (
            CODES[8] | {"k_quant_type": "NONE"},
            "k_quant_type must be PER_TENSOR or PER_CHANNEL .*, got NONE",
        ),
        (CODES[8] | {"v_quant_type": "per_channel"}, "v_quant_type must be .*, got per_channel"),
    ],
)
def test_wrong_attributes_are_named_when_a_session_is_made(
    options: dict[str, Any], message: str
) -> None:
    inputs = random_inputs(attributes(), 1, lengths=(11,))
    with pytest.raises(Exception, match=f"aie.FlowAttention node 'the_node'.*{message}"):
        open_session(model(attributes(**options), inputs))


@pytest.mark.parametrize(
    ("attribute", "message"),
    [
        ({"qk_output": 1}, "qk_output=1 is not supported"),
        ({"format": 99}, "the model has format 99, but this library reads format"),
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


@pytest.mark.skipif(ORT_VERSION >= (1, 28), reason="a cache that another wrote needs none there")
@pytest.mark.parametrize("count", [1, 2])
def test_present_outputs_are_required(count: int) -> None:
    inputs = random_inputs(attributes(), 1, lengths=(11,))
    given = {"num_heads": 4, "kv_num_heads": 2, "format": _native.FORMAT}
    outputs = {name: FLOAT32 for name in ("output", "present_key")[:count]}
    with pytest.raises(Exception, match=f"the_node.* {count} .*min=3"):
        open_session(one_op_model("FlowAttention", inputs, outputs, given))


def test_a_bound_buffer_that_is_too_short_is_an_error() -> None:
    a = attributes()
    inputs = random_inputs(a, 1, lengths=(11,), capacity=10)  # the shared buffer holds 10 rows
    session = open_session(model_of(a, inputs))
    with pytest.raises(Exception, match=r"the_node|shape"):
        run(session, inputs, SHARED)


# --- shapes that a session knows before it runs ---------------------------------------------------


def test_shapes_are_inferred() -> None:
    a = attributes(4, 2, local_window_size=8, sliding_window_cache=1)
    inputs = random_inputs(a, 1, lengths=(20,), capacity=12)
    dims = {"query": ["batch", "sequence", 8 * 32], "past_key": ["batch", 2, "rows", 32]}
    outputs = open_session(model(a, inputs, dims)).get_outputs()
    shapes = {value.name: value.shape for value in outputs}
    assert shapes["output"] == ["batch", "sequence", 4 * 32]
    assert shapes["present_key"] == ["batch", 2, "rows", 32]
    assert shapes["present_value"] == ["batch", 2, "rows", 32]


@pytest.mark.parametrize(("bits", "kind"), [(8, np.int8), (4, np.uint8)])
def test_shapes_of_codes_are_inferred(bits: int, kind: npt.DTypeLike) -> None:
    a = attributes(**CODES[bits])
    inputs = random_inputs(a, 1, lengths=(11,), capacity=16)
    width = 32 * bits // 8
    dims = {"query": ["batch", "sequence", 8 * 32], "past_key": ["batch", 2, "rows", width]}
    outputs = open_session(model(a, inputs, dims)).get_outputs()
    present = {value.name: value for value in outputs}["present_key"]
    assert present.type == f"tensor({np.dtype(kind)})"
    assert (present.shape[0], present.shape[1], present.shape[3]) == ("batch", 2, width)
