"""The KV cache of aie.FlowAttention: shared or separate, of any length, whole or a window."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from attention_calls import (
    SHARED,
    attributes,
    check,
    compare,
    flow_attention,
    model_of,
    of,
    random_inputs,
)
from op_models import BFLOAT16, FLOAT16, FLOAT32, open_session, run
from reference import group_query_attention


def test_a_present_apart_grows_to_the_total() -> None:
    a = attributes(do_rotary=1)
    outputs = check(a, random_inputs(a, 3, lengths=(15,), capacity=12))
    assert of(outputs, "present_key").shape[2] == 15


def in_one_buffer(
    model: bytes,
    inputs: dict[str, Any],
    past_rows: int,
    present_rows: int,
    shared: tuple[str, ...] = ("past_key", "past_value"),
) -> np.ndarray[Any, Any]:
    """The output when past and present, with different capacities, start at one address."""
    session = open_session(model)
    binding = session.io_binding()
    buffers = []  # that live until the call is done
    for name in (value.name for value in session.get_inputs()):
        array = inputs[name]
        if name not in shared:
            binding.bind_cpu_input(name, array)
            continue
        shape = [*array.shape[:2], past_rows, array.shape[3]]
        present = [*array.shape[:2], present_rows, array.shape[3]]
        buffer = np.zeros(max(np.prod(shape), np.prod(present)), array.dtype)
        buffer[: array.size] = array.ravel()
        buffers.append(buffer)
        binding.bind_input(name, "cpu", 0, array.dtype, shape, buffer.ctypes.data)
        output = name.replace("past", "present")
        binding.bind_output(output, "cpu", 0, array.dtype, present, buffer.ctypes.data)
    for name in SHARED.keys() - {past.replace("past", "present") for past in shared}:
        binding.bind_output(name)
    binding.bind_output("output")
    session.run_with_iobinding(binding)
    output: np.ndarray[Any, Any] = binding.get_outputs()[-1].numpy()  # bound last
    return output


@pytest.mark.parametrize("name", ["key", "value"])
def test_a_present_of_another_capacity_in_the_pasts_buffer_is_refused(name: str) -> None:
    """Its rows are in other places. ONNX Runtime's own operator reads rows that it has
    overwritten."""
    a = attributes()
    inputs = random_inputs(a, 1, lengths=(13,), capacity=12)
    message = f"past_{name} and output present_{name} share memory, but hold 12 and 13 rows"
    with pytest.raises(Exception, match=message):
        in_one_buffer(model_of(a, inputs), inputs, 12, 13, (f"past_{name}",))


def test_one_head_may_grow_in_the_pasts_buffer() -> None:
    """Its position does not depend on the capacity."""
    a = attributes(num_heads=2, kv_num_heads=1)
    inputs = random_inputs(a, 1, lengths=(13,), capacity=12)
    expected = run(open_session(model_of(a, inputs)), inputs)["output"]
    np.testing.assert_array_equal(in_one_buffer(model_of(a, inputs), inputs, 12, 13), expected)


@pytest.mark.parametrize("windowed", [0, 1])
@pytest.mark.parametrize("only", ["present_key", "present_value"])
def test_one_of_two_presents_may_be_shared(windowed: int, only: str) -> None:
    a = attributes(do_rotary=1, local_window_size=8, sliding_window_cache=windowed)
    inputs = random_inputs(a, 3, lengths=(23,), capacity=30 - 18 * windowed)
    outputs = run(open_session(model_of(a, inputs)), inputs, {only: SHARED[only]})
    compare(a, inputs, dict(outputs), group_query_attention(a, inputs))


@pytest.mark.parametrize(("sequence", "past"), [(1, 12), (6, 0), (6, 12)])
def test_a_shared_buffer_keeps_its_other_rows(sequence: int, past: int) -> None:
    a = attributes(do_rotary=1)
    inputs = random_inputs(a, sequence, lengths=(past + sequence,), capacity=30)
    outputs = check(a, inputs, shared=True)
    for now, before in SHARED.items():
        x, y = of(outputs, now), of(inputs, before)
        untouched = np.r_[0:past, past + sequence : 30]
        np.testing.assert_array_equal(x[:, :, untouched], y[:, :, untouched])


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
        inputs[name] = of(inputs, name)[:0]
    output = of(flow_attention(a, inputs), "output")
    assert output.shape == (0, 3, 4 * 32)


def test_no_tokens_leave_the_cache_as_it_is() -> None:
    a = attributes()
    inputs = random_inputs(a, 1, lengths=(6,), capacity=8)
    none = {"query": of(inputs, "query")[:, :0], "seqlens_k": np.array([4], np.int32)}
    outputs = flow_attention(a, inputs | none)
    present, past = of(outputs, "present_key"), of(inputs, "past_key")
    assert of(outputs, "output").shape == (1, 0, 4 * 32)
    np.testing.assert_array_equal(present[:, :, :5], past[:, :, :5])


BITS = pytest.mark.parametrize("bits", [8, 4])
# --- sliding-window cache -------------------------------------------------------------------------


# Which rows move does not depend on their type; the types are in the order of the windows.
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(
    ("window", "capacity", "dtype"),
    [(1, 1, FLOAT32), (8, 8, FLOAT16), (8, 11, BFLOAT16), (8, 24, FLOAT32), (70, 150, FLOAT16)],
)
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


# --- a cache that another attention wrote ---------------------------------------------------------

QUANTISED = {"k_quant_type": "PER_CHANNEL", "v_quant_type": "PER_CHANNEL"}


@pytest.mark.parametrize(
    ("options", "types"),
    [
        ({}, (FLOAT32, FLOAT32)),
        ({"do_rotary": 1}, (FLOAT16, FLOAT16)),
        ({"do_rotary": 1, "local_window_size": 7, "softcap": 20.0}, (FLOAT32, FLOAT16)),
        ({"smooth_softmax": 1}, (BFLOAT16, BFLOAT16)),
        (QUANTISED | {"kv_cache_bit_width": 8}, (FLOAT32, FLOAT32)),
        (QUANTISED | {"kv_cache_bit_width": 4}, (FLOAT32, FLOAT32)),
    ],
)
@pytest.mark.parametrize(
    ("sequence", "lengths", "capacity"),
    [
        (1, (40,), 40), (1, (40, 9), 48), (20, (20,), 20), (20, (20, 5), 32), (300, (300,), 320),
        (6, (40,), 64), (6, (40, 17), 40), (1, (1,), 8),
    ],
)  # fmt: skip
def test_another_attentions_cache(
    options: dict[str, Any],
    types: tuple[Any, Any],
    sequence: int,
    lengths: tuple[int, ...],
    capacity: int,
) -> None:
    dtype, cache = types
    inputs = random_inputs(
        attributes(**options), sequence, lengths=lengths, capacity=capacity, dtype=dtype,
        cache_dtype=cache, borrowed=True,
    )  # fmt: skip
    apart = check(attributes(**options), inputs)
    shared = flow_attention(attributes(**options), inputs, shared=True)
    np.testing.assert_array_equal(of(apart, "output"), shared["output"])


def test_another_attentions_cache_equals_its_own_attention() -> None:
    """Bit by bit: what wrote the cache sees the same keys."""
    a = attributes(do_rotary=1)
    for sequence, total in ((30, 30), (1, 31), (5, 36)):
        inputs = random_inputs(a, sequence, lengths=(total,), capacity=48, packed=False)
        own = flow_attention(a, inputs)
        none = {name: x[:, :0] for name in ("key", "value") if (x := inputs[name]) is not None}
        past = {"past_key": own["present_key"], "past_value": own["present_value"]}
        for name, array in flow_attention(a, inputs | none | past).items():
            np.testing.assert_array_equal(array, own[name])


@pytest.mark.parametrize(
    ("options", "changed", "message"),
    [
        ({}, {"total_sequence_length": np.array(50, np.int32)},
         "input total_sequence_length is 50, but past_key holds 40 rows; without new keys it must "
         "hold all of them"),
        ({"sliding_window_cache": 1, "local_window_size": 8}, {},
         "attribute sliding_window_cache=1 needs new keys, but input key is (1, 0, 64)"),
        ({}, {"value": np.zeros((1, 1, 64), np.float32)},
         "input value must be float (1, 0, 64), got float (1, 1, 64)"),
        ({}, {"past_key": None, "past_value": None},
         "input key must be float (1, 1, 64), got float (1, 0, 64)"),
    ],
)  # fmt: skip
def test_a_cache_that_does_not_hold_the_tokens_is_refused(
    options: dict[str, Any], changed: dict[str, Any], message: str
) -> None:
    a = attributes(**options)
    inputs = random_inputs(a, 1, lengths=(40,), borrowed=True) | changed
    with pytest.raises(Exception, match=re.escape(message)):
        flow_attention(a, inputs)


# --- codes ----------------------------------------------------------------------------------------


@BITS
def test_many_steps_in_one_buffer(bits: int) -> None:
    """A prompt and 40 tokens: after each call the codes are ONNX Runtime's."""
    a = attributes(local_window_size=24, kv_cache_bit_width=bits, **QUANTISED)
    past: dict[str, Any] = {}
    length = 0
    for step, sequence in enumerate([18, *[1] * 40, 5]):
        length += sequence
        inputs = random_inputs(a, sequence, lengths=(length,), capacity=64, seed=step)
        if past:
            scales = {name: past[name] for name in ("k_scale", "v_scale")}
            inputs |= scales | {"past_" + x: past["present_" + x] for x in ("key", "value")}
        outputs = check(a, inputs, shared=True)
        past = outputs | {name: inputs[name] for name in ("k_scale", "v_scale")}


@BITS
def test_extreme_scales_and_values(bits: int) -> None:
    """As in ONNX Runtime: a scale of 0 quantises like 1 and gives zeros, a NaN gives the largest
    code."""
    a = attributes(kv_cache_bit_width=bits, **QUANTISED)
    inputs: dict[str, Any] = random_inputs(a, 1, lengths=(9,), capacity=16, packed=False)
    for name in ("k_scale", "v_scale"):
        inputs[name][0, 0, 0, :4] = [0, -0.5, 1e-30, 1e30]
    for name in ("key", "value"):
        inputs[name][0, 0, 4:8] = [1e30, -1e30, np.inf, -np.inf]
    before: Any = check(a, inputs)["present_key"]
    inputs["key"][0, 0, 9] = np.nan
    present: Any = flow_attention(a, inputs)["present_key"]
    code = present[0, 0, 8, 9] if bits == 8 else (present[0, 0, 8, 4] >> 4) - 8
    assert code == 2 ** (bits - 1) - 1
    np.testing.assert_array_equal(np.delete(present, 8, 2), np.delete(before, 8, 2))


@pytest.mark.parametrize(
    ("kind", "shape"),
    [("PER_TENSOR", ()), ("PER_TENSOR", (1, 1, 1, 1)), ("PER_CHANNEL", (64,)),
     ("PER_CHANNEL", (2, 32)), ("PER_CHANNEL", (2, 1, 32))],
)  # fmt: skip
def test_shapes_of_scales(kind: str, shape: tuple[int, ...]) -> None:
    a = attributes(kv_cache_bit_width=8, k_quant_type=kind, v_quant_type=kind)
    inputs: dict[str, Any] = random_inputs(a, 1, lengths=(11,), capacity=16)
    check(a, inputs | {"k_scale": inputs["k_scale"].reshape(shape)})
