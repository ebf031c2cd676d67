"""Weights of 8 bits in every op that reads Q8NX, compared with ONNX Runtime and numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from op_models import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    open_session,
    run,
)
from projection_calls import (
    Array,
    Weights,
    activations,
    assert_within,
    gated_model,
    gather,
    gather_block_quantized,
    make_weights,
    matmul_nbits,
    project,
    q4nx_model,
)

from ort_aie_ep.formats import q8nx


def sum_error(w: Weights, a: Array) -> Array:
    """The worst error of a float32 sum of scale * code * a and zero point * sum of a."""
    codes, scales, points = q8nx.unpack(w.q4nx, w.n, w.k)
    scale, point = (
        np.repeat(np.abs(x.astype(np.float64)), 32, axis=1)[:, : w.k] for x in (scales, points)
    )
    sums: Array = np.abs(a.astype(np.float64)) @ (scale * (codes + point)).T
    return (w.k + 8) * 2**-24 * sums


def rounded_weights_error(w: Weights, a: Array) -> Array:
    """What a prompt loses by rounding weights to bfloat16."""
    sums: Array = np.abs(a.astype(np.float64)) @ np.abs(w.dequantised).T
    return 2.0**-9 * sums * (1 + 2**-8)


# --- aie.Q4NXMatMul -------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "dtype"), [(1, FLOAT16), (2, FLOAT32), (70, FLOAT32)])
@pytest.mark.parametrize(("n", "k"), [(100, 512), (33, 320), (32, 100)])
@pytest.mark.parametrize("block_size", [32, 64, 128, 256])
@pytest.mark.parametrize("zero_points", [False, True])
def test_equals_matmul_nbits(
    dtype: np.dtype[Any], rows: int, n: int, k: int, block_size: int, zero_points: bool
) -> None:
    """Scales are not powers of two: a weight is stored exactly, whatever its scale."""
    w = make_weights(n, k, block_size=block_size, dtype=dtype, zero_points=zero_points, bits=8)
    a = activations(rows, k, dtype=dtype, exact=True)
    # Both sums round; only ort_aie_ep's prompts have bfloat16 weights.
    bound = 2 * sum_error(w, a) + rounded_weights_error(w, a) * (rows > 4)
    change = {"symmetric": int(not zero_points)}
    assert_within(project(w, a, change=change), matmul_nbits(w, a), bound)


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16, BFLOAT16])
@pytest.mark.parametrize("shape", [(64,), (1, 1, 64), (3, 64), (2, 5, 64)])
def test_types_ranks_and_bias_match_the_dequantised_product(
    dtype: np.dtype[Any], shape: tuple[int, ...]
) -> None:
    w = make_weights(40, 64, dtype=dtype, zero_points=True, bits=8)
    a = activations(*shape, dtype=dtype, exact=True)
    bias = activations(40, dtype=dtype)
    expected = a.astype(np.float64) @ w.dequantised.T + bias.astype(np.float64)
    bound = sum_error(w, a) + rounded_weights_error(w, a) + 2**-23 * np.abs(bias.astype(np.float64))
    assert_within(project(w, a, bias=bias), expected, bound)


@pytest.mark.parametrize("rows", [1, 3, 70])
@pytest.mark.parametrize("zero_points", [False, True])
@pytest.mark.parametrize("block_size", [32, 128])
def test_int8_agrees_with_accuracy_level_4(rows: int, zero_points: bool, block_size: int) -> None:
    w = make_weights(96, 512, block_size=block_size, zero_points=zero_points, bits=8)
    a = activations(rows, 512)

    # Half an int8 step per activation: of groups of 32 here, of whole blocks in ONNX Runtime.
    def quantised(group: int) -> Array:
        step = np.abs(a.astype(np.float64)).reshape(rows, -1, group).max(axis=2) / 127
        sums = np.abs(w.dequantised).reshape(96, -1, group).sum(axis=2)
        error: Array = step / 2 @ sums.T
        return error

    ours = quantised(32) + rounded_weights_error(w, a) * (rows > 3) + sum_error(w, a)
    y = project(w, a, accuracy_level=4)
    assert_within(y, a.astype(np.float64) @ w.dequantised.T, ours)
    bound = ours + quantised(block_size) + sum_error(w, a)
    assert_within(y, matmul_nbits(w, a, accuracy_level=4), bound)


@pytest.mark.parametrize("level", [0, 4])
def test_a_session_survives_many_runs_of_changing_sizes(level: int) -> None:
    w = make_weights(64, 320, zero_points=True, bits=8)
    session = open_session(q4nx_model(w, activations(1, 320), accuracy_level=level))
    alone = run(session, {"A": activations(4, 320)[:1]})["Y"]
    for count in (1, 70, 2, 1100, 1, 0, 1):
        y = run(session, {"A": activations(count, 320)})["Y"]
        assert y.shape == (count, 64)
        assert np.isfinite(y).all()
    np.testing.assert_array_equal(run(session, {"A": activations(4, 320)})["Y"][:1], alone)


# --- aie.Q4NXGatedMLP -----------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 9, 70])
@pytest.mark.parametrize("level", [0, 4])
def test_a_gated_mlp_is_the_product_of_its_parts(rows: int, level: int) -> None:
    gate, up = (make_weights(96, 320, seed=i, bits=8, zero_points=True) for i in range(2))
    a = 0.05 * activations(rows, 320)
    y = run(open_session(gated_model(gate, up, a, level=level)), {"A": a})["Y"]
    g, u = (project(w, a, accuracy_level=level).astype(np.float64) for w in (gate, up))
    # The exponential and the few operations around it, as for weights of four bits.
    assert_within(y, g / (1 + np.exp(-g)) * u, 128 * 2.0**-24 * np.abs(g * u))


def test_gate_and_up_of_different_bits_are_refused() -> None:
    gate, up = make_weights(64, 96, bits=8), make_weights(64, 96)
    message = r"input W_up must be uint8 \(2, 1, 9472\) for K=96 N=64 bits=8, got uint8 \(2, 1, 51"
    with pytest.raises(Exception, match=f"the_node': {message}"):
        open_session(gated_model(gate, up, activations(1, 96)))


# --- aie.Q4NXGather -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16, BFLOAT16])
def test_rows_are_gathered(dtype: np.dtype[Any]) -> None:
    w = make_weights(70, 320, zero_points=True, exact=True, bits=8)
    indices = np.array([[0, 69, -1], [-70, 70, 33]])
    y = gather(w, indices, dtype).astype(np.float64)
    expected = w.dequantised[indices % 70]  # exact in every type: eight bits times a power of two
    expected[1, 1] = 0
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("zero_points", [False, True])
@pytest.mark.parametrize("block_size", [32, 64])
def test_gathered_rows_equal_gather_block_quantized(zero_points: bool, block_size: int) -> None:
    w = make_weights(70, 320, block_size=block_size, zero_points=zero_points, bits=8)
    indices = np.arange(70)
    y = gather_block_quantized(w, indices)
    np.testing.assert_array_equal(y, q8nx.dequantize(w.q4nx, 70, 320))


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bits": 3}, "attribute bits must be 2, 4 or 8, got 3"),
        ({"bits": 4}, r"input W must be uint8 \(2, 1, 5120\) for K=256 N=40, got uint8 \(2, 1, 94"),
        (
            {"K": 512},
            r"input W must be uint8 \(2, 2, 9472\) for K=512 N=40 bits=8, got uint8 \(2, 1, 9472",
        ),
    ],
)
def test_wrong_attributes_are_named(change: dict[str, int], message: str) -> None:
    w, a = make_weights(40, 256, bits=8), activations(1, 256)
    with pytest.raises(Exception, match=f"aie.Q4NXMatMul node 'the_node': {message}"):
        open_session(q4nx_model(w, a, change=change))


# --- the execution provider -----------------------------------------------------------------------
