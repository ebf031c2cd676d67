"""Prompts in chunks give the same results, whatever the chunk."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attention_calls import (
    SHARED,
    Inputs,
    attributes,
    compare,
    flow_attention,
    random_inputs,
    reference,
)
from op_models import FLOAT16, FLOAT32
from projection_calls import activations, make_weights, project

# Kernels process 96 rows of a projection at a time, and 120 positions of attention with two heads
# per key-value head: chunks are these numbers or multiples of them.
CHUNKS = ["1", "96", "100", "250", "100000"]


def environment(monkeypatch: pytest.MonkeyPatch, chunk: str | None) -> None:
    """Sets the option for sessions that are opened from here on; None for the default."""
    if chunk is None:
        monkeypatch.delenv("ORT_AIE_PROMPT_CHUNK", raising=False)
    else:
        monkeypatch.setenv("ORT_AIE_PROMPT_CHUNK", chunk)


# --- projections ----------------------------------------------------------------------------------


@pytest.mark.parametrize("accuracy_level", [0, 4])
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16])
@pytest.mark.parametrize("rows", [97, 300])  # a last chunk of one row, and of several
def test_projections_do_not_depend_on_the_chunk(
    accuracy_level: int, dtype: np.dtype[Any], rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    w = make_weights(40, 320, dtype=dtype)
    a, bias = activations(2, rows, 320, dtype=dtype), activations(40, dtype=dtype)
    environment(monkeypatch, None)
    expected = project(w, a, bias=bias, accuracy_level=accuracy_level)
    for chunk in CHUNKS:
        environment(monkeypatch, chunk)
        actual = project(w, a, bias=bias, accuracy_level=accuracy_level)
        np.testing.assert_array_equal(actual, expected, err_msg=f"prompt_chunk={chunk}")


# --- attention ------------------------------------------------------------------------------------


def outputs_by_chunk(
    a: Any, inputs: Inputs, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> dict[str | None, Inputs]:
    by_chunk = {}
    for chunk in (None, *CHUNKS):
        environment(monkeypatch, chunk)
        by_chunk[chunk] = flow_attention(a, inputs, shared=shared)
    return by_chunk


def assert_equal(a: Inputs, b: Inputs) -> None:
    assert a.keys() == b.keys()
    for name, x in a.items():
        np.testing.assert_array_equal(x, b[name], err_msg=name)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(
    ("lengths", "options"),
    [
        ((290,), {}),
        ((400,), {"local_window_size": 50}),  # 110 tokens before
        ((290,), {"causal": 0}),
        ((290, 131, 7), {}),  # padded prompts of a batch
    ],
)
@pytest.mark.parametrize("cache", [FLOAT32, FLOAT16])
def test_attention_does_not_depend_on_the_chunk(
    lengths: tuple[int, ...], options: dict[str, Any], shared: bool, cache: np.dtype[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    a = attributes(do_rotary=1, **options)
    inputs = random_inputs(a, 290, lengths=lengths, capacity=400, cache_dtype=cache)
    by_chunk = outputs_by_chunk(a, inputs, shared, monkeypatch)
    compare(a, inputs, by_chunk["1"], reference(a, inputs))
    for outputs in by_chunk.values():
        assert_equal(outputs, by_chunk[None])


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("past", [0, 30, 400])
@pytest.mark.parametrize("capacity", [50, 66, 200])
def test_a_sliding_window_cache_holds_the_same_whatever_the_chunk(
    shared: bool, past: int, capacity: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = attributes(do_rotary=1, local_window_size=50, sliding_window_cache=1)
    inputs = random_inputs(
        a, 290, lengths=(past + 290,), capacity=capacity, max_position=past + 290
    )
    by_chunk = outputs_by_chunk(a, inputs, shared, monkeypatch)
    expected = reference(a, inputs)
    rows = expected.cache_rows[0]
    for outputs in by_chunk.values():
        compare(a, inputs, outputs, expected)
        for name in SHARED:
            present, whole = outputs[name], by_chunk[None][name]
            assert present is not None
            assert whole is not None
            np.testing.assert_array_equal(present[:, :, :rows], whole[:, :, :rows], err_msg=name)


def test_a_batch_on_a_sliding_window_cache_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    a = attributes(do_rotary=1, local_window_size=20, sliding_window_cache=1)
    for lengths in ((290, 131, 7), (700, 310, 295)):  # padded prompts; later tokens
        inputs = random_inputs(a, 290, lengths=lengths, capacity=36)
        for outputs in outputs_by_chunk(a, inputs, False, monkeypatch).values():
            compare(a, inputs, outputs, reference(a, inputs))
