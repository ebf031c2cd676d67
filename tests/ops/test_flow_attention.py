"""aie.FlowAttention, compared with a numpy reference and ONNX Runtime's own GroupQueryAttention."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from attention_calls import attributes, check, compare, flow_attention, random_inputs
from op_models import BFLOAT16, FLOAT16, FLOAT32, one_op_model, open_session, run
from reference import group_query_attention

from ort_aie_ep import _native

# --- layouts of inputs and heads ------------------------------------------------------------------


# A group is rows of a tile, and a dimension their length: each with two of the other.
@pytest.mark.parametrize(
    ("dim", "group"),
    [(32, 1), (32, 4), (64, 2), (64, 8), (96, 3), (96, 1), (128, 4), (128, 2), (256, 8), (256, 3)],
)
@pytest.mark.parametrize(("sequence", "past"), [(1, 37), (5, 0), (20, 30)])
def test_head_dimensions_and_groups(dim: int, group: int, sequence: int, past: int) -> None:
    a = attributes(2 * group, 2, do_rotary=1)
    check(a, random_inputs(a, sequence, lengths=(past + sequence,), capacity=64, dim=dim))


@pytest.mark.parametrize("dim", [8, 24, 40, 72])
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


# --- rotary embedding -----------------------------------------------------------------------------


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


# --- masks and weights ----------------------------------------------------------------------------


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


# --- long inputs ----------------------------------------------------------------------------------


@pytest.mark.parametrize("past", [510, 511, 512, 640, 1023, 1024, 1600, 2200])
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16])
def test_one_token_after_a_long_context(past: int, dtype: np.dtype[Any]) -> None:
    """Long enough that keys are split among tasks, whose results are merged."""
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


@pytest.mark.parametrize("sequence", [2, 5, 17])
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16])
@pytest.mark.parametrize(
    "others",
    [
        {"num_heads": 4, "kv_num_heads": 1},
        {"num_heads": 32, "kv_num_heads": 1},  # 17 positions are three tiles
        {"local_window_size": 1030},
        {"causal": 0},
    ],
)
def test_a_few_tokens_after_a_long_context(
    sequence: int, dtype: np.dtype[Any], others: dict[str, Any]
) -> None:
    """Drafted tokens: keys are split among tasks as for one token."""
    a = attributes(do_rotary=1, **others)
    check(a, random_inputs(a, sequence, lengths=(1700 + sequence, 900), capacity=1800, dtype=dtype))


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16])
@pytest.mark.parametrize(
    "others",
    [
        {"num_heads": 4, "kv_num_heads": 1},
        {"num_heads": 6, "kv_num_heads": 2},
        {"num_heads": 32, "kv_num_heads": 1},
        {"local_window_size": 1030},
        {"kv_cache_bit_width": 8, "k_quant_type": "PER_TENSOR", "v_quant_type": "PER_TENSOR"},
    ],
)
def test_drafted_tokens_have_the_bits_of_single_ones(
    dtype: np.dtype[Any], others: dict[str, Any]
) -> None:
    """Across a boundary of chunks (1,024) and of splits; the shorter row is one of a batch."""
    a, count, lengths = attributes(do_rotary=1, **others), 6, (1027, 260)
    inputs = random_inputs(a, count, lengths=lengths, capacity=1100, dtype=dtype)
    query = inputs["query"]
    assert query is not None
    together = flow_attention(a, inputs)["output"]
    assert together is not None
    past = {name: inputs[name] for name in ("past_key", "past_value")}
    for t in range(count):
        ends = np.array(lengths) - count + t + 1
        now = inputs | past
        now["query"] = np.ascontiguousarray(query[:, t : t + 1])
        now["seqlens_k"] = (ends - 1).astype(np.int32)
        now["total_sequence_length"] = np.array(ends.max(), np.int32)
        result = flow_attention(a, now)
        alone = result["output"]
        assert alone is not None
        np.testing.assert_array_equal(together[:, t], alone[:, 0])
        past = {"past_key": result["present_key"], "past_value": result["present_value"]}


def test_a_sink_joins_merged_splits_once() -> None:
    a = attributes()
    inputs = random_inputs(a, 1, lengths=(1700,))
    # About as heavy as all keys together, so that counting it twice would show.
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
