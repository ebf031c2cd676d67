"""Prompts of aie.FlowAttention on 16-bit caches: products in bfloat16 where the CPU has them.

The reference rounds queries, keys and values as the kernels do, so the bounds cover only the
remaining errors (`attention_calls.compare`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attention_calls import (
    Array,
    Inputs,
    attributes,
    check,
    flow_attention,
    multiplies_in_bfloat16,
    random_inputs,
)
from op_models import BFLOAT16, FLOAT16, FLOAT32

CACHES = pytest.mark.parametrize("cache", [FLOAT16, BFLOAT16])
# A block has 24 rows, a tile 240 rows and a chunk 256 keys.
LENGTHS = pytest.mark.parametrize(
    ("sequence", "past"), [(8, 0), (33, 0), (20, 50), (130, 255), (300, 0), (2, 700), (64, 449)]
)


def prompt(a: Any, sequence: int, past: int, cache: np.dtype[Any], **others: Any) -> Inputs:
    return random_inputs(
        a, sequence, lengths=(past + sequence,), cache_dtype=cache, **{"capacity": 768, **others}
    )


@CACHES
@LENGTHS
@pytest.mark.parametrize("rotary", [0, 1])
def test_prompts_of_every_length(
    cache: np.dtype[Any], sequence: int, past: int, rotary: int
) -> None:
    a = attributes(do_rotary=rotary)
    check(a, prompt(a, sequence, past, cache))


@CACHES
# A group is rows of a tile, and a dimension their length: each with two of the other.
@pytest.mark.parametrize(
    ("dim", "group"),
    [(8, 1), (8, 5), (16, 2), (16, 6), (24, 3), (24, 7), (40, 4), (40, 8),
     (64, 5), (64, 1), (80, 6), (80, 2), (128, 7), (128, 3), (256, 8), (256, 4)],
)  # fmt: skip
def test_prompts_of_every_head_size_and_group(cache: np.dtype[Any], dim: int, group: int) -> None:
    a = attributes(2 * group, 2)
    check(a, prompt(a, 50, 40, cache, dim=dim))


@CACHES
@pytest.mark.parametrize("window", [1, 2, 31, 33, 64, 255, 256, 257])
@pytest.mark.parametrize(("sequence", "past"), [(300, 0), (40, 400)])
def test_prompts_with_a_window(cache: np.dtype[Any], window: int, sequence: int, past: int) -> None:
    a = attributes(local_window_size=window)
    check(a, prompt(a, sequence, past, cache))


@CACHES
@pytest.mark.parametrize("sizes", [[300, 20, 1, 40], [40, 40, 200]])
def test_prompts_on_a_sliding_window_cache(cache: np.dtype[Any], sizes: list[int]) -> None:
    a = attributes(local_window_size=70, sliding_window_cache=1)
    total, past = 0, None
    for step, sequence in enumerate(sizes):
        total += sequence
        inputs = prompt(a, sequence, total - sequence, cache, capacity=100, seed=step)
        if past is not None:
            inputs |= {"past_key": past["present_key"], "past_value": past["present_value"]}
        past = check(a, inputs)


@CACHES
@LENGTHS
@pytest.mark.parametrize(
    "options",
    [
        {"softcap": 20.0},
        {"smooth_softmax": 1},
        {"causal": 0},
        {"scale": 0.3},
        {"float32_products": 1},
    ],
)
def test_prompts_with_options(
    cache: np.dtype[Any], sequence: int, past: int, options: dict[str, Any]
) -> None:
    a = attributes(**options)
    check(a, prompt(a, sequence, past, cache))


@CACHES
@LENGTHS
@pytest.mark.parametrize("masked", [0.0, -np.inf, np.finfo(np.float32).min])
def test_prompts_with_bias_and_sink(
    cache: np.dtype[Any], sequence: int, past: int, masked: float
) -> None:
    a = attributes()
    inputs = prompt(a, sequence, past, cache)
    rng = np.random.default_rng(21)
    bias = rng.standard_normal((1, a.num_heads, sequence, past + sequence)).astype(np.float32)
    bias[..., : past // 2] = masked
    inputs["attention_bias"] = bias
    inputs["head_sink"] = rng.standard_normal(a.num_heads).astype(np.float32)
    check(a, inputs)


@CACHES
def test_prompts_of_a_batch_with_different_lengths(cache: np.dtype[Any]) -> None:
    a = attributes(do_rotary=1)
    check(a, random_inputs(a, 300, lengths=(300, 3, 120), capacity=400, cache_dtype=cache))


@CACHES
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_a_bad_query_of_a_prompt_reaches_its_own_token_and_head(
    cache: np.dtype[Any], poison: float
) -> None:
    a = attributes()
    inputs = prompt(a, 300, 0, cache, packed=False)
    clean = output_of(a, inputs)
    query = inputs["query"]
    assert query is not None
    query[0, 270, 2 * 32 + 5] = poison
    output = output_of(a, inputs)
    hit = np.zeros(output.shape, bool)
    hit[0, 270, 2 * 32 : 3 * 32] = True
    assert np.isnan(output[hit]).all()
    np.testing.assert_array_equal(output[~hit], clean[~hit])


@CACHES
def test_a_query_of_a_prompt_that_the_bias_masks_fully_gives_zeros(cache: np.dtype[Any]) -> None:
    a = attributes()
    inputs = prompt(a, 300, 0, cache)
    bias = np.zeros((1, 1, 300, 300), np.float32)
    bias[:, :, 280] = -np.inf  # every key
    bias[:, :, 290, :256] = -np.inf  # its first chunk
    inputs["attention_bias"] = bias
    output = output_of(a, inputs)
    np.testing.assert_array_equal(output[0, 280], 0)
    assert np.isfinite(output).all()
    assert (output[0, 290] != 0).all()


@CACHES
def test_later_rows_of_the_cache_do_not_matter(cache: np.dtype[Any]) -> None:
    a = attributes()
    inputs = prompt(a, 40, 230, cache, capacity=512)  # NaN after row 230
    assert np.isfinite(output_of(a, inputs)).all()


@CACHES
def test_the_mean_of_equal_values_is_the_value(cache: np.dtype[Any]) -> None:
    # Sums add the rounded numerators, so weights add up to one. What remains is one float32
    # rounding per key in the sum and in the products, and two in the quotient.
    a = attributes()
    inputs = prompt(a, 300, 0, cache, packed=False)
    value = inputs["value"]
    assert value is not None
    value[:] = 1.5
    np.testing.assert_allclose(output_of(a, inputs), 1.5, rtol=(2 * 300 + 2) * 2.0**-24)


def test_a_float32_cache_and_single_tokens_keep_float32() -> None:
    a = attributes()
    for sequence, cache in ((300, FLOAT32), (1, FLOAT16)):
        inputs = prompt(a, sequence, 20, cache)
        assert not multiplies_in_bfloat16(a, inputs)
        check(a, inputs)


def output_of(a: Any, inputs: Inputs) -> Array:
    output = flow_attention(a, inputs)["output"]
    assert output is not None
    return output
