"""Attention masks of aie.FlowAttention, calls without lengths, and attention to other sequences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attention_calls import (
    Array,
    Inputs,
    attributes,
    check,
    compare,
    flow_attention,
    model_of,
    random_inputs,
    reference,
)
from op_models import BFLOAT16, FLOAT16, FLOAT32, ORT_VERSION, open_session, run
from reference import AttentionAttributes

TYPES = pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16, BFLOAT16])
# Prompts, later prompts and tokens; a chunk has 256 keys, a tile 240 rows.
LENGTHS = pytest.mark.parametrize(
    ("sequence", "past"), [(1, 0), (1, 40), (1, 1500), (7, 0), (33, 0), (300, 0), (20, 300)]
)


def by_index(
    a: AttentionAttributes, sequence: int, past: int, *, batch: int = 3, **others: Any
) -> Inputs:
    """A call whose tokens follow a past of the same length in all batch rows."""
    total = past + sequence
    with_past = others.pop("with_past", True) or past > 0
    inputs = random_inputs(
        a, sequence, lengths=(total,) * batch, with_past=with_past,
        **{"packed": False, "max_position": total} | others,
    )  # fmt: skip
    if with_past:
        for name in ("past_key", "past_value"):
            array = inputs[name]
            assert array is not None
            inputs[name] = np.ascontiguousarray(array[:, :, :past])
    return inputs | {"seqlens_k": None, "total_sequence_length": None}


def left_padding(total: int, *paddings: int) -> Array:
    """(batch, total): row b hides its first `paddings[b]` keys."""
    return (np.arange(total) >= np.array(paddings)[:, None]).astype(np.int64)


def check_mask(
    a: AttentionAttributes,
    inputs: Inputs,
    mask: Array,
    *,
    threads: int = 2,
    config: dict[str, str] | None = None,
) -> Array:
    """Compares with the reference; rows that see no keys must be exactly zero."""
    inputs = inputs | {"attention_mask": mask}
    expected = reference(a, inputs)
    session = open_session(model_of(a, inputs), threads=threads, config=config)
    actual = dict(run(session, inputs))
    compare(a, inputs, actual, expected)
    output = actual["output"]
    np.testing.assert_array_equal(output[expected.output == 0], 0)
    return output


# --- masks ----------------------------------------------------------------------------------------


@TYPES
@LENGTHS
def test_left_padding_of_a_batch(dtype: np.dtype[Any], sequence: int, past: int) -> None:
    a = attributes(do_rotary=1)
    total = past + sequence
    mask = left_padding(total, 0, total // 3, total - 1)
    check_mask(a, by_index(a, sequence, past, dtype=dtype), mask)


@TYPES
@LENGTHS
@pytest.mark.parametrize("visible", [0.05, 0.5, 0.95])
def test_any_pattern(dtype: np.dtype[Any], sequence: int, past: int, visible: float) -> None:
    a = attributes(do_rotary=1)
    rng = np.random.default_rng([5, sequence, past])
    mask = (rng.random((3, past + sequence)) < visible).astype(np.int64)
    mask[1] *= 7  # other values than 1 are visible too
    check_mask(a, by_index(a, sequence, past, dtype=dtype), mask)


@LENGTHS
@pytest.mark.parametrize(
    "options",
    [
        {"local_window_size": 1},
        {"local_window_size": 5},
        {"local_window_size": 257},
        {"causal": 0},
        {"softcap": 20.0},
        {"smooth_softmax": 1},
        {"num_heads": 6, "kv_num_heads": 1},
    ],
)
def test_masks_with_options(sequence: int, past: int, options: dict[str, Any]) -> None:
    a = attributes(**options)
    total = past + sequence
    rng = np.random.default_rng(6)
    mask = np.stack([
        left_padding(total, total // 2)[0],
        (np.arange(total) < max(1, total - 3)).astype(np.int64),  # right padding
        (rng.random(total) < 0.7).astype(np.int64),
    ])  # fmt: skip
    check_mask(a, by_index(a, sequence, past), mask)


# A chunk has 256 keys: runs begin and end before, at and after its edges.
@pytest.mark.parametrize(
    ("first", "count"),
    [(0, 1), (0, 255), (0, 256), (0, 257), (1, 255), (1, 256), (255, 1), (255, 33), (255, 257),
     (256, 31), (256, 256), (257, 255), (257, 256), (511, 1), (511, 32), (512, 1), (512, 257)],
)  # fmt: skip
@pytest.mark.parametrize("sequence", [1, 40])
def test_visible_runs_at_the_edges_of_chunks(first: int, count: int, sequence: int) -> None:
    a = attributes()
    total = 800
    mask = np.zeros((1, total), np.int64)
    mask[:, first : first + count] = 1
    check_mask(a, by_index(a, sequence, total - sequence, batch=1), mask)
    hole = 1 - mask
    check_mask(a, by_index(a, sequence, total - sequence, batch=1), hole)


@TYPES
@LENGTHS
@pytest.mark.parametrize("smooth", [-1, 1])
def test_a_batch_row_without_visible_keys_gives_zeros(
    dtype: np.dtype[Any], sequence: int, past: int, smooth: int
) -> None:
    a = attributes(smooth_softmax=smooth)
    mask = left_padding(past + sequence, 0, past + sequence, 0)
    output = check_mask(a, by_index(a, sequence, past, dtype=dtype), mask)
    np.testing.assert_array_equal(output[1], np.zeros_like(output[1]))
    assert (output[[0, 2]] != 0).all()


@LENGTHS
def test_masks_join_a_bias(sequence: int, past: int) -> None:
    a = attributes()
    total = past + sequence
    inputs = by_index(a, sequence, past)
    rng = np.random.default_rng(11)
    bias = rng.standard_normal((3, a.num_heads, sequence, total)).astype(np.float32)
    bias[:, :, :, total // 2] = -np.inf
    check_mask(a, inputs | {"attention_bias": bias}, left_padding(total, 0, total // 4, total // 2))


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("sequence", "past"), [(1, 2000), (500, 0)])
def test_masks_on_any_number_of_threads(threads: int, sequence: int, past: int) -> None:
    a = attributes(do_rotary=1)
    mask = left_padding(past + sequence, 0, 130, 490)
    check_mask(a, by_index(a, sequence, past), mask, threads=threads)


@TYPES
@pytest.mark.parametrize("window", [-1, 70])
@pytest.mark.skipif(ORT_VERSION < (1, 24), reason="ops read session entries from 1.24 on")
def test_masks_of_prompts_in_pieces(dtype: np.dtype[Any], window: int) -> None:
    a = attributes(do_rotary=1, local_window_size=window)
    inputs = by_index(a, 500, 30, dtype=dtype)
    mask = left_padding(530, 0, 130, 490)
    mask[0] = np.random.default_rng(13).random(530) < 0.5
    check_mask(a, inputs, mask, config={"ort_aie.prompt_chunk": "128"})


@pytest.mark.parametrize("windowed", [0, 1])
def test_masks_of_calls_with_lengths(windowed: int) -> None:
    """Tokens have GroupQueryAttention's positions: padding after a row's tokens, and a shared
    cache."""
    a = attributes(do_rotary=1, local_window_size=20, sliding_window_cache=windowed)
    rng = np.random.default_rng(12)
    for sequence, lengths in ((30, (30, 3, 17)), (1, (60, 13, 1)), (9, (60, 33, 21))):
        inputs = random_inputs(a, sequence, lengths=lengths, capacity=40 if windowed else 70)
        check_mask(a, inputs, (rng.random((3, max(lengths))) < 0.6).astype(np.int64))


@TYPES
@pytest.mark.parametrize(("sequence", "past"), [(1, 1500), (300, 0)])
def test_a_mask_that_hides_nothing_changes_no_bit(
    dtype: np.dtype[Any], sequence: int, past: int
) -> None:
    a = attributes(do_rotary=1)
    inputs = by_index(a, sequence, past, dtype=dtype)
    without = flow_attention(a, inputs)["output"]
    ones = flow_attention(a, inputs | {"attention_mask": np.ones((3, past + sequence), np.int64)})
    np.testing.assert_array_equal(ones["output"], without)


@TYPES
@pytest.mark.parametrize("padding", [1, 100, 256, 300])
def test_a_padded_prompt_and_its_tokens_are_those_of_the_prompt_alone(
    dtype: np.dtype[Any], padding: int
) -> None:
    """Chunks start at the first visible key, so that padding changes no bit."""
    a = attributes()
    tokens = 70
    padded = by_index(a, padding + tokens, 0, batch=1, dtype=dtype)
    alone = dict(padded)
    for name in ("query", "key", "value"):
        array = padded[name]
        assert array is not None
        alone[name] = np.ascontiguousarray(array[:, padding:])
    mask = left_padding(padding + tokens, padding)
    output = flow_attention(a, padded | {"attention_mask": mask})["output"]
    expected = flow_attention(a, alone)["output"]
    assert output is not None
    np.testing.assert_array_equal(output[:, padding:], expected)
    np.testing.assert_array_equal(output[:, :padding], np.zeros_like(output[:, :padding]))


def test_hidden_keys_before_the_first_visible_one_are_not_read() -> None:
    a = attributes()
    for sequence, past in ((1, 600), (40, 560)):
        inputs = by_index(a, sequence, past)
        for name in ("past_key", "past_value"):
            array = inputs[name]
            assert array is not None
            array[:, :, :500] = np.nan
        total = past + sequence
        mask = left_padding(total, 500, 501, total - 1)
        output = flow_attention(a, inputs | {"attention_mask": mask})["output"]
        assert output is not None
        assert np.isfinite(output).all()  # a weight of 0 times NaN would be NaN


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_a_hidden_key_between_visible_ones_does_not_count(poison: float) -> None:
    a = attributes()
    for sequence, past in ((1, 600), (40, 560)):
        inputs = by_index(a, sequence, past)
        mask = np.ones((3, past + sequence), np.int64)
        mask[:, 300] = 0
        inputs["attention_mask"] = mask
        clean = flow_attention(a, inputs)["output"]
        keys = inputs["past_key"]
        assert keys is not None
        keys[:, :, 300] = poison
        output = flow_attention(a, inputs)["output"]
        assert output is not None
        assert clean is not None
        np.testing.assert_array_equal(output, clean)


# --- calls without lengths ------------------------------------------------------------------------


@TYPES
@LENGTHS
@pytest.mark.parametrize("packed", [True, False])
def test_tokens_follow_the_past_by_index(
    dtype: np.dtype[Any], sequence: int, past: int, packed: bool
) -> None:
    a = attributes(do_rotary=1)
    inputs = by_index(a, sequence, past, dtype=dtype, packed=packed)
    present = check(a, inputs)["present_key"]
    assert present is not None
    assert present.shape[2] == past + sequence


@pytest.mark.parametrize("with_past", [True, False])
def test_a_first_prompt_has_no_past_or_an_empty_one(with_past: bool) -> None:
    a = attributes(do_rotary=1)
    check(a, by_index(a, 9, 0, with_past=with_past))


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize(("sequence", "past"), [(4, 0), (1, 10), (4, 10)])
def test_every_position_id_counts_and_the_table_may_be_short(
    rows: int, sequence: int, past: int
) -> None:
    a = attributes(do_rotary=1)
    inputs = by_index(a, sequence, past, max_position=4)
    rng = np.random.default_rng(14)
    inputs["position_ids"] = rng.integers(0, 4, (rows, sequence))
    check(a, inputs)


@LENGTHS
def test_a_window_counts_by_index(sequence: int, past: int) -> None:
    a = attributes(local_window_size=6)
    check(a, by_index(a, sequence, past))


# --- biases for all queries -----------------------------------------------------------------------


@TYPES
@pytest.mark.parametrize("lead", [(1, 1), (3, 1), (1, 4), (3, 4)])
@pytest.mark.parametrize(("sequence", "past"), [(1, 80), (33, 0), (20, 300)])
def test_a_bias_for_all_queries(
    dtype: np.dtype[Any], lead: tuple[int, int], sequence: int, past: int
) -> None:
    a = attributes()
    inputs = by_index(a, sequence, past, dtype=dtype)
    rng = np.random.default_rng(15)
    bias = rng.standard_normal((*lead, 1, past + sequence))
    inputs["attention_bias"] = bias.astype(dtype)
    check(a, inputs)


# --- attention to another sequence ----------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype", [FLOAT32, *(pytest.param(t, marks=pytest.mark.in_turn) for t in (FLOAT16, BFLOAT16))]
)
@pytest.mark.parametrize(("sequence", "keys"), [(1, 50), (5, 1), (40, 300), (300, 7)])
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("past", [0, 20])
@pytest.mark.parametrize("masked", [False, True])
def test_keys_of_another_sequence(
    dtype: np.dtype[Any], sequence: int, keys: int, causal: int, past: int, masked: bool
) -> None:
    """With causality, query t sees the past and keys 0 to t, as in ONNX's Attention."""
    a = attributes(causal=causal)
    inputs = by_index(a, sequence, past, dtype=dtype, with_past=False)
    rng = np.random.default_rng(16)
    for name in ("key", "value"):
        inputs[name] = rng.standard_normal((3, keys, 2 * 32)).astype(dtype)
    if masked:
        inputs["attention_mask"] = left_padding(past + keys, 0, (past + keys) // 2, 0)
    present = check(a, inputs)["present_value"]
    assert present is not None
    assert present.shape == (3, 2, past + keys, 32)
