"""Weights of two bits in every op that reads Q4NX, compared with ONNX Runtime and numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from lookup_errors import INT8, INT16, lookup_error
from onnx import helper
from op_models import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    NEEDS_TWO_BITS,
    ONNX_TYPES,
    model_of,
    one_op_model,
    onnx_tensor,
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

from ort_aie_ep import _native
from ort_aie_ep.formats import q4nx


def bf16_error(w: Weights, a: Array) -> Array:
    """The bound for bf16 numerics with activations that are bfloat16 values, whatever the tables
    hold."""
    return lookup_error(a.reshape(-1, w.k), w.q4nx, w.n, INT16).reshape(*a.shape[:-1], w.n)


# --- aie.Q4NXMatMul -------------------------------------------------------------------------------


@NEEDS_TWO_BITS
@pytest.mark.parametrize(("rows", "dtype"), [(1, FLOAT16), (2, FLOAT32), (33, FLOAT32)])
@pytest.mark.parametrize(("n", "k"), [(64, 256), (100, 512), (33, 320), (32, 100)])
@pytest.mark.parametrize("block_size", [32, 64, 128, 256])
@pytest.mark.parametrize("zero_points", [False, True])
def test_equals_matmul_nbits_where_bfloat16_is_exact(
    dtype: np.dtype[Any], rows: int, n: int, k: int, block_size: int, zero_points: bool
) -> None:
    w = make_weights(
        n, k, block_size=block_size, dtype=dtype, zero_points=zero_points, exact=True, bits=2
    )
    a = activations(rows, k, dtype=dtype, exact=True)
    # Both sums round; only ort_aie_ep has tables.
    assert_within(project(w, a), matmul_nbits(w, a), 2 * bf16_error(w, a))


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16, BFLOAT16])
@pytest.mark.parametrize("shape", [(64,), (1, 1, 64), (3, 64), (2, 5, 64)])
@pytest.mark.parametrize("zero_points", [False, True, "float"])
def test_types_ranks_bias_and_zero_points_match_the_dequantised_product(
    dtype: np.dtype[Any], shape: tuple[int, ...], zero_points: bool | str
) -> None:
    w = make_weights(40, 64, dtype=dtype, zero_points=zero_points, exact=True, bits=2)
    a = activations(*shape, dtype=dtype, exact=True)
    bias = activations(40, dtype=dtype)
    expected = a.astype(np.float64) @ w.dequantised.T + bias.astype(np.float64)
    bound = bf16_error(w, a) + 2**-23 * np.abs(bias.astype(np.float64))
    assert_within(project(w, a, bias=bias), expected, bound)


@NEEDS_TWO_BITS
def test_float_zero_points_are_those_of_matmul_nbits() -> None:
    w = make_weights(40, 320, zero_points="float", exact=True, bits=2)
    a = activations(3, 320, exact=True)
    assert_within(project(w, a), matmul_nbits(w, a), 2 * bf16_error(w, a))


@NEEDS_TWO_BITS
@pytest.mark.parametrize("rows", [1, 3, 50])
@pytest.mark.parametrize("zero_points", [False, True])
def test_int8_agrees_with_accuracy_level_4(rows: int, zero_points: bool) -> None:
    w = make_weights(96, 512, zero_points=zero_points, exact=True, bits=2)
    a = activations(rows, 512)
    # Half an int8 step per activation, on both sides for a prompt; for a token, ort_aie_ep's tables
    # of sums have their own error.
    step = np.abs(a.astype(np.float64)).reshape(rows, -1, 32).max(axis=2) / 127
    quantised = step / 2 @ np.abs(w.dequantised).reshape(96, -1, 32).sum(axis=2).T
    ours = quantised + bf16_error(w, a) if rows > 1 else lookup_error(a, w.q4nx, w.n, INT8)
    y = project(w, a, accuracy_level=4)
    assert_within(y, a.astype(np.float64) @ w.dequantised.T, ours)
    bound = ours + quantised + bf16_error(w, a)
    assert_within(y, matmul_nbits(w, a, accuracy_level=4), bound)


def test_one_scale_an_out_feature_is_a_scale_that_repeats() -> None:
    """Per channel: blocks of the largest size repeat it, and so do Q4NX blocks."""
    n, k = 48, 512
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 4, (n, k), dtype=np.uint8)
    scale = 2.0 ** rng.integers(-7, -3, (n, 1))
    minimum = scale * rng.integers(-3, 1, (n, 1))
    groups = np.ones((1, k // 32))
    blocks = q4nx.pack(codes, scale * groups, minimum * groups, 2)
    weights = scale * codes + minimum
    for rows in (1, 5):
        a = activations(rows, k, exact=True)
        given = {"K": k, "N": n, "bits": 2, "format": _native.FORMAT}
        model = one_op_model(
            "Q4NXMatMul", {"A": a, "W": blocks}, {"Y": FLOAT32}, given, constants=["W"]
        )
        y = run(open_session(model), {"A": a})["Y"]
        assert_within(y, a.astype(np.float64) @ weights.T, lookup_error(a, blocks, n, INT16))


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("level", [0, 4])
def test_nan_and_infinity_stay_in_their_rows(rows: int, level: int) -> None:
    w = make_weights(40, 320, bits=2)
    a = activations(rows, 320)
    clean = project(w, a, accuracy_level=level)
    for bad in (np.nan, np.inf):
        a[-1, 7] = bad
        poisoned = project(w, a, accuracy_level=level)
        assert not np.isfinite(poisoned[-1]).any()
        np.testing.assert_array_equal(poisoned[:-1], clean[:-1])


def test_a_session_survives_many_runs_of_changing_sizes() -> None:
    w = make_weights(64, 320, exact=True, bits=2)
    session = open_session(q4nx_model(w, activations(1, 320)))
    for count in (1, 70, 2, 1, 1100, 1, 0, 1):
        a = activations(count, 320, exact=True)
        y = run(session, {"A": a})["Y"]
        assert_within(y, a.astype(np.float64) @ w.dequantised.T, bf16_error(w, a))


@pytest.mark.parametrize("level", [0, 4])
def test_projections_that_share_an_input_give_what_each_gives_alone(level: int) -> None:
    """q, k and v of one token, as separate nodes, and a longer one of four bits between them."""
    weights = [make_weights(64, 320, bits=bits, seed=i) for i, bits in enumerate((2, 4, 2, 2))]
    nodes = [
        helper.make_node(
            "Q4NXMatMul", ["A", f"W{i}"], [f"Y{i}"], domain="aie", K=w.k, N=w.n, bits=w.bits,
            accuracy_level=level, format=_native.FORMAT,
        )
        for i, w in enumerate(weights)
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes, "graph", [helper.make_tensor_value_info("A", ONNX_TYPES[FLOAT32], [None, 320])],
        [helper.make_tensor_value_info(f"Y{i}", ONNX_TYPES[FLOAT32], None) for i in range(4)],
        [onnx_tensor(f"W{i}", w.q4nx) for i, w in enumerate(weights)],
    )  # fmt: skip
    session = open_session(model_of(graph).SerializeToString())
    for row in range(3):
        a = activations(3, 320)[row : row + 1]
        results = run(session, {"A": a})
        for i, w in enumerate(weights):
            expected = project(w, a, accuracy_level=level)
            np.testing.assert_array_equal(results[f"Y{i}"], expected)


# --- aie.Q4NXGatedMLP -----------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 9])
@pytest.mark.parametrize("level", [0, 4])
def test_a_gated_mlp_is_the_product_of_its_parts(rows: int, level: int) -> None:
    gate, up = (make_weights(96, 320, seed=i, bits=2) for i in range(2))
    a = activations(rows, 320)
    y = run(open_session(gated_model(gate, up, a, level=level)), {"A": a})["Y"]
    g, u = (project(w, a, accuracy_level=level).astype(np.float64) for w in (gate, up))
    # The exponential and the few operations around it, as for weights of four bits.
    assert_within(y, g / (1 + np.exp(-g)) * u, 128 * 2.0**-24 * np.abs(g * u))


def test_gate_and_up_of_different_bits_are_refused() -> None:
    gate, up = make_weights(64, 96, bits=2), make_weights(64, 96)
    message = r"input W_up must be uint8 \(2, 1, 3072\) for K=96 N=64 bits=2, got uint8 \(2, 1, 51"
    with pytest.raises(Exception, match=f"the_node': {message}"):
        open_session(gated_model(gate, up, activations(1, 96)))


# --- aie.Q4NXGather -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16, BFLOAT16])
def test_rows_are_gathered(dtype: np.dtype[Any]) -> None:
    w = make_weights(70, 320, zero_points=True, exact=True, bits=2)
    indices = np.array([[0, 69, -1], [-70, 70, 33]])
    y = gather(w, indices, dtype).astype(np.float64)
    expected = w.dequantised[indices % 70]  # exact in every type: two bits times a power of two
    expected[1, 1] = 0
    np.testing.assert_array_equal(y, expected)


@NEEDS_TWO_BITS
@pytest.mark.parametrize("zero_points", [False, True])
def test_gathered_rows_equal_gather_block_quantized(zero_points: bool) -> None:
    w = make_weights(70, 320, zero_points=zero_points, exact=True, bits=2)
    indices = np.arange(70)
    y = gather_block_quantized(w, indices)
    np.testing.assert_array_equal(y, q4nx.dequantize(w.q4nx, 70, 320))


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bits": 3}, "attribute bits must be 2, 4 or 8, got 3"),
        ({"bits": 8}, r"input W must be uint8 \(2, 1, 9472\) for K=256 N=40 bits=8, got uint8"),
        ({"bits": 4}, r"input W must be uint8 \(2, 1, 5120\) for K=256 N=40, got uint8 \(2, 1, 30"),
        (
            {"K": 512},
            r"input W must be uint8 \(2, 2, 3072\) for K=512 N=40 bits=2, got uint8 \(2, 1, 3072",
        ),
    ],
)
def test_wrong_attributes_are_named(change: dict[str, int], message: str) -> None:
    w, a = make_weights(40, 256, bits=2), activations(1, 256)
    with pytest.raises(Exception, match=f"aie.Q4NXMatMul node 'the_node': {message}"):
        open_session(q4nx_model(w, a, change=change))


def test_blocks_of_another_size_are_named() -> None:
    a = activations(1, 256)
    given = {"K": 256, "N": 40, "bits": 2, "format": _native.FORMAT}
    wrong = np.zeros((2, 1, 3071), np.uint8)
    model = one_op_model("Q4NXMatMul", {"A": a, "W": wrong}, {"Y": FLOAT32}, given, constants=["W"])
    with pytest.raises(Exception, match=r"\(2, 1, 3072\) for K=256 N=40 bits=2"):
        open_session(model)


# --- the execution provider -----------------------------------------------------------------------
