"""For all ops, results do not depend on threads, other sessions or the addresses of inputs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnxruntime
import pytest
from attention_calls import attributes, model_of, random_inputs
from op_models import BFLOAT16, FLOAT16, FLOAT32, Array, open_session, run
from projection_calls import activations, make_weights, q4nx_model
from vector_calls import activation_model, binary_model, cast_model, norm_model, table_model

Feeds = dict[str, Array | None]


def calls(dtype: np.dtype[Any] = FLOAT32) -> list[tuple[str, bytes, Feeds]]:
    """A name, a model and inputs for each path through the host target."""
    result: list[tuple[str, bytes, Feeds]] = []
    weights = make_weights(200, 700, dtype=dtype)
    for rows in (1, 7, 40, 70):
        for level in (0, 4):
            a = activations(rows, 700, dtype=dtype)
            model = q4nx_model(weights, a, accuracy_level=level)
            result.append((f"projection of {rows} rows, level {level}", model, {"A": a}))
    a, b = (activations(*shape, dtype=dtype) for shape in ((300, 700), (301, 700)))
    skip, weight = b[1:], activations(700, dtype=dtype)
    result += [
        ("norm", norm_model(a, weight, skip), {"A": a, "skip": skip}),
        ("sum", binary_model("Add", a, skip), {"A": a, "B": skip}),
        ("product with a row", binary_model("Mul", a, weight), {"A": a, "B": weight}),
        ("product with a value", binary_model("Mul", a, a[0, :1]), {"A": a, "B": a[0, :1]}),
        ("function", activation_model("gelu", a), {"A": a}),
        ("cast", cast_model(a, FLOAT16 if dtype == FLOAT32 else FLOAT32), {"A": a}),
    ]
    indices = np.arange(-300, 300)
    result.append(("rows of a table", table_model(a, indices), {"indices": indices}))
    attention = attributes(do_rotary=1)
    windowed = attributes(do_rotary=1, local_window_size=9, sliding_window_cache=1)
    for name, attrs, sequence, lengths, capacity in (
        ("prompt", attention, 50, (50, 31), 80),
        ("token", attention, 1, (30, 7), 80),
        ("token after a long context", attention, 1, (1700,), 1800),
        ("drafted tokens after a long context", attention, 5, (1700,), 1800),
        ("windowed prompt", windowed, 50, (50,), 20),
        ("windowed token", windowed, 1, (50,), 20),
    ):
        inputs = random_inputs(attrs, sequence, lengths=lengths, capacity=capacity, dtype=dtype)
        # Rows of the past that do not hold a token: NaN would not equal itself.
        inputs = {key: x if x is None else np.nan_to_num(x) for key, x in inputs.items()}
        result.append((name, model_of(attrs, inputs), inputs))
    return result


CALLS = calls()
IDS = [name for name, _, _ in CALLS]


def assert_same(actual: dict[str, Array], expected: dict[str, Array]) -> None:
    assert actual.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(actual[name], array)


@pytest.mark.parametrize(("name", "model", "inputs"), CALLS, ids=IDS)
def test_results_do_not_depend_on_the_number_of_threads(
    name: str, model: bytes, inputs: Feeds
) -> None:
    assert_same(run(open_session(model, threads=1), inputs), run(open_session(model), inputs))


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16, BFLOAT16])
def test_results_do_not_depend_on_alignment(dtype: np.dtype[Any]) -> None:
    for _, model, inputs in calls(dtype):
        session = open_session(model)
        assert_same(run(session, inputs, misaligned=True), run(session, inputs))


def test_sessions_and_calls_run_side_by_side() -> None:
    """Several calls at a time, of one session and of others: each call has its own buffers."""
    sessions = [open_session(model) for _, model, _ in CALLS]
    expected = [
        run(session, inputs) for session, (_, _, inputs) in zip(sessions, CALLS, strict=True)
    ]

    def repeat(index: int) -> None:
        for _ in range(10):
            assert_same(run(sessions[index], CALLS[index][2]), expected[index])

    with ThreadPoolExecutor(max_workers=4) as pool:
        for done in [pool.submit(repeat, i // 2) for i in range(2 * len(CALLS))]:
            done.result()


def test_sessions_can_be_made_and_dropped_many_times() -> None:
    _, model, inputs = CALLS[0]
    expected = run(open_session(model), inputs)
    for _ in range(20):
        session: onnxruntime.InferenceSession = open_session(model)
        assert_same(run(session, inputs), expected)
        del session
