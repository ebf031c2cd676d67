"""A KV cache of 8 or 4 bits, read in place: the contract of GroupQueryAttention in ONNX Runtime
1.32.

Codes are compared exactly with ONNX Runtime's own operator, outputs within `attention_calls`'
bounds: both multiply the same codes in float32, in another order.
"""

from __future__ import annotations

from dataclasses import replace
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
    random_inputs,
)
from op_models import BFLOAT16, FLOAT16, FLOAT32, one_op_model, open_session, run
from reference import AttentionAttributes

from ort_aie_ep import _native

BITS = pytest.mark.parametrize("bits", [8, 4])
KINDS = pytest.mark.parametrize("kind", ["PER_TENSOR", "PER_CHANNEL"])


OUTPUTS = {
    bits: {"output": FLOAT32, "present_key": cache, "present_value": cache}
    for bits, cache in ((8, np.dtype(np.int8)), (4, np.dtype(np.uint8)))
}


def quantised(
    bits: int, kind: str = "PER_CHANNEL", heads: int = 4, kv_heads: int = 2, **others: Any
) -> AttentionAttributes:
    return attributes(
        heads, kv_heads, k_quant_type=kind, v_quant_type=kind, kv_cache_bit_width=bits, **others
    )


@BITS
@KINDS
@pytest.mark.parametrize(
    ("sequence", "past", "dtype"),
    [
        (1, 0, FLOAT32), (1, 40, FLOAT16), (1, 700, BFLOAT16), (5, 30, FLOAT32),
        (40, 0, FLOAT16), (40, 300, BFLOAT16), (300, 0, FLOAT32),
    ],
)  # fmt: skip
def test_tokens_and_prompts(
    bits: int, kind: str, sequence: int, past: int, dtype: np.dtype[Any]
) -> None:
    a = quantised(bits, kind)
    check(a, random_inputs(a, sequence, lengths=(past + sequence,), capacity=768, dtype=dtype))


@BITS
@pytest.mark.parametrize("keys", ["PER_TENSOR", "PER_CHANNEL"])
def test_keys_and_values_of_different_kinds(bits: int, keys: str) -> None:
    values = "PER_CHANNEL" if keys == "PER_TENSOR" else "PER_TENSOR"
    a = replace(quantised(bits), k_quant_type=keys, v_quant_type=values)
    for sequence, past in ((1, 40), (40, 0)):
        check(a, random_inputs(a, sequence, lengths=(past + sequence,), capacity=64))


@BITS
@pytest.mark.parametrize("dim", [8, 16, 24, 40, 64, 80, 128, 256])
@pytest.mark.parametrize("group", [1, 3, 4, 8])
def test_every_head_size_and_group(bits: int, dim: int, group: int) -> None:
    a = quantised(bits, heads=2 * group)
    for sequence, past in ((1, 70), (50, 40)):
        check(a, random_inputs(a, sequence, lengths=(past + sequence,), capacity=128, dim=dim))


OPTIONS: list[dict[str, Any]] = [
    {"do_rotary": 1},
    {"do_rotary": 1, "rotary_interleaved": 1},
    {"softcap": 20.0},
    {"scale": 0.3, "smooth_softmax": 1},
    {"local_window_size": 7},
    {"causal": 0},
    {"float32_products": 1},
]


@BITS
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize(("sequence", "past"), [(1, 300), (40, 0), (20, 300)])
def test_options(bits: int, options: dict[str, Any], sequence: int, past: int) -> None:
    a = quantised(bits, **options)
    check(a, random_inputs(a, sequence, lengths=(past + sequence,), capacity=384), shared=True)


@BITS
@pytest.mark.parametrize(("sequence", "past"), [(1, 30), (40, 0)])
def test_norms_sinks_and_biases(bits: int, sequence: int, past: int) -> None:
    a = quantised(bits, do_rotary=1)
    inputs = random_inputs(a, sequence, lengths=(past + sequence,), capacity=64)
    rng = np.random.default_rng(3)
    inputs["head_sink"] = rng.standard_normal(4).astype(np.float32)
    inputs["attention_bias"] = rng.standard_normal((1, 4, sequence, past + sequence)).astype(
        np.float32
    )
    check(a, inputs)
    for name in ("q_norm_weight", "k_norm_weight"):
        inputs[name] = rng.uniform(0.5, 1.5, 32).astype(np.float32)
    check(a, inputs)


@BITS
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_batches_of_different_lengths(bits: int, packed: bool, shared: bool) -> None:
    a = quantised(bits, do_rotary=1)
    for sequence, lengths in ((1, (3, 80, 1, 41)), (70, (70, 5, 64))):
        inputs = random_inputs(a, sequence, lengths=lengths, capacity=90, packed=packed)
        check(a, inputs, shared=shared)


@BITS
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("sequence", "past"), [(1, 5), (1, 12), (1, 50), (9, 30), (40, 0)])
def test_a_cache_that_keeps_a_window(bits: int, shared: bool, sequence: int, past: int) -> None:
    a = quantised(bits, local_window_size=8, sliding_window_cache=1)
    check(a, random_inputs(a, sequence, lengths=(past + sequence,), capacity=12), shared=shared)


@BITS
def test_a_shared_buffer_keeps_its_other_rows(bits: int) -> None:
    a = quantised(bits, do_rotary=1)
    inputs = random_inputs(a, 3, lengths=(15,), capacity=30)
    outputs = flow_attention(a, inputs, shared=True)
    for now, before in SHARED.items():
        x, y = outputs[now], inputs[before]
        assert x is not None
        assert y is not None
        untouched = np.r_[0:12, 15:30]
        np.testing.assert_array_equal(x[:, :, untouched], y[:, :, untouched])


@BITS
@KINDS
def test_a_cache_begins_with_the_first_call_without_a_past(bits: int, kind: str) -> None:
    a = quantised(bits, kind)
    inputs = random_inputs(a, 20, lengths=(20,), with_past=False)
    check(a, inputs)
    by_index = inputs | {"seqlens_k": None, "total_sequence_length": None}
    check(a, by_index)


@BITS
@KINDS
def test_many_steps_in_one_buffer(bits: int, kind: str) -> None:
    """A prompt and 40 tokens: after each call the codes are ONNX Runtime's."""
    a = quantised(bits, kind, local_window_size=24)
    past: Inputs = {}
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
    a = quantised(bits)
    inputs = random_inputs(a, 1, lengths=(9,), capacity=16, packed=False)
    for name in ("k_scale", "v_scale"):
        scales = inputs[name]
        assert scales is not None
        scales[0, 0, 0, :4] = [0, -0.5, 1e-30, 1e30]
    for name in ("key", "value"):
        rows = inputs[name]
        assert rows is not None
        rows[0, 0, 4:8] = [1e30, -1e30, np.inf, -np.inf]
    outputs = check(a, inputs)
    most = 2 ** (bits - 1) - 1
    inputs["key"][0, 0, 9] = np.nan  # type: ignore[index]
    present = flow_attention(a, inputs)["present_key"]
    assert present is not None
    before = outputs["present_key"]
    assert before is not None
    code = present[0, 0, 8, 9] if bits == 8 else (present[0, 0, 8, 4] >> 4) - 8
    assert code == most
    np.testing.assert_array_equal(np.delete(present, 8, 2), np.delete(before, 8, 2))


@BITS
def test_results_do_not_depend_on_the_number_of_threads(bits: int) -> None:
    a = quantised(bits, do_rotary=1)
    for sequence, past in ((1, 1400), (150, 30)):
        inputs = random_inputs(a, sequence, lengths=(past + sequence,), capacity=1408)
        model = model_of(a, inputs)
        one, three = (run(open_session(model, threads=n), inputs) for n in (1, 3))
        for name in one:
            np.testing.assert_array_equal(one[name], three[name])


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kv_cache_bit_width": 2}, "kv_cache_bit_width must be 8, 4 or 0 .*, got 2"),
        ({"kv_cache_bit_width": 0}, "k_quant_type=PER_CHANNEL v_quant_type=PER_CHANNEL need"),
        ({"k_quant_type": "NONE"}, "k_quant_type must be PER_TENSOR or PER_CHANNEL .*, got NONE"),
        ({"v_quant_type": "per_channel"}, "v_quant_type must be .*, got per_channel"),
    ],
)
def test_wrong_attributes_are_named_when_a_session_is_made(
    given: dict[str, Any], message: str
) -> None:
    inputs = random_inputs(quantised(8), 1, lengths=(11,))
    attributes_of_node = {
        "num_heads": 4, "kv_num_heads": 2, "format": _native.FORMAT, "k_quant_type": "PER_CHANNEL",
        "v_quant_type": "PER_CHANNEL", "kv_cache_bit_width": 8,
    } | given  # fmt: skip
    with pytest.raises(Exception, match=f"aie.FlowAttention node 'the_node'.*{message}"):
        open_session(one_op_model("FlowAttention", inputs, OUTPUTS[8], attributes_of_node))


def past(dtype: npt.DTypeLike, width: int) -> dict[str, Array]:
    return {name: np.zeros((1, 2, 16, width), dtype) for name in ("past_key", "past_value")}


SCALES = r"float \(1, 2, 1, 32\) for k_quant_type=PER_CHANNEL"


@pytest.mark.parametrize(
    ("bits", "change", "message"),
    [
        (8, past(np.uint8, 32), "past_key must be int8 for kv_cache_bit_width=8, got uint8"),
        (4, past(np.int8, 16), "past_key must be uint8 for kv_cache_bit_width=4, got int8"),
        (8, past(np.float32, 32), "past_key must be int8 for kv_cache_bit_width=8, got float"),
        (8, past(np.int8, 16), r"past_key must be \(1, 2, length, 32\), got \(1, 2, 16, 16\)"),
        (4, past(np.uint8, 32), r"past_key must be \(1, 2, length, 16\), got \(1, 2, 16, 32\)"),
        (8, {"k_scale": None}, "k_quant_type=PER_CHANNEL needs input k_scale"),
        (4, {"v_scale": None}, "v_quant_type=PER_CHANNEL needs input v_scale"),
        (8, {"k_scale": np.ones(1, np.float32)}, rf"k_scale must be {SCALES}, got float \(1\)"),
        (8, {"k_scale": np.ones((1, 2, 1, 32), np.float16)}, rf"k_scale must be {SCALES}, got"),
    ],
)  # fmt: skip
def test_wrong_inputs_are_named(bits: int, change: dict[str, Any], message: str) -> None:
    a = quantised(bits)
    wrong = random_inputs(a, 1, lengths=(11,), capacity=16) | change
    given = given_attributes(a) | {"format": _native.FORMAT}
    model = one_op_model("FlowAttention", wrong, OUTPUTS[bits], given)
    with pytest.raises(Exception, match=f"FlowAttention node.*the_node.*{message}"):
        run(open_session(model), wrong)


def test_one_scale_for_a_tensor_is_one_element() -> None:
    a = quantised(8, "PER_TENSOR")
    inputs = random_inputs(a, 1, lengths=(11,), capacity=16)
    session = open_session(model_of(a, inputs))
    inputs["v_scale"] = np.ones(2, np.float32)
    message = r"v_scale must be float \(1\) for v_quant_type=PER_TENSOR, got float \(2\)"
    with pytest.raises(Exception, match=message):
        run(session, inputs)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1, 1)])
def test_shapes_of_one_scale(shape: tuple[int, ...]) -> None:
    a = quantised(8, "PER_TENSOR")
    inputs = random_inputs(a, 1, lengths=(11,), capacity=16)
    check(a, inputs | {"k_scale": np.full(shape, 0.02, np.float32)})


@pytest.mark.parametrize("shape", [(64,), (2, 32), (2, 1, 32), (1, 2, 1, 32)])
def test_shapes_of_scales_of_channels(shape: tuple[int, ...]) -> None:
    a = quantised(8)
    inputs = random_inputs(a, 1, lengths=(11,), capacity=16)
    scales = inputs["k_scale"]
    assert scales is not None
    check(a, inputs | {"k_scale": scales.reshape(shape)})


@BITS
def test_shapes_are_inferred(bits: int) -> None:
    inputs = random_inputs(quantised(bits), 1, lengths=(11,), capacity=16)
    width = 32 * bits // 8
    given = {
        "num_heads": 4, "kv_num_heads": 2, "format": _native.FORMAT, "k_quant_type": "PER_CHANNEL",
        "v_quant_type": "PER_CHANNEL", "kv_cache_bit_width": bits,
    }  # fmt: skip
    dims = {"query": ["batch", "sequence", 8 * 32], "past_key": ["batch", 2, "rows", width]}
    session = open_session(one_op_model("FlowAttention", inputs, OUTPUTS[bits], given, dims=dims))
    present = {value.name: value for value in session.get_outputs()}["present_key"]
    assert present.type == ("tensor(int8)" if bits == 8 else "tensor(uint8)")
    assert present.shape[0] == "batch"
    assert (present.shape[1], present.shape[3]) == (2, width)
