"""Projections in every form of weights, with what their ops contain besides: aie.Q4NXMatMul,
aie.GEMM, aie.Q4NXGatedMLP and aie.GatedGEMM, compared with numpy and ONNX Runtime's MatMulNBits."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import numpy_q4nx as q4nx
import pytest
import q8nx
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
    float32_sum_error,
    gated_model,
    magnitudes,
    make_weights,
    matmul_nbits,
    project,
    q4nx_model,
)

from ort_aie_ep import _native
from ort_aie_ep.formats import bf16_blocks

TYPES = (FLOAT32, FLOAT16, BFLOAT16)
BITS = pytest.mark.parametrize("bits", [4, pytest.param(2, marks=NEEDS_TWO_BITS), 8])
EPSILON = 1e-5
U = 2.0**-24


def sum_error(w: Weights, a: Array) -> Array:
    """The worst error of bf16 numerics for activations that are bfloat16 values."""
    if w.bits == 2:  # whatever the tables hold
        rows = lookup_error(a.reshape(-1, w.k), w.q4nx, w.n, INT16)
        return rows.reshape(*a.shape[:-1], w.n)
    if w.bits == 4:
        return float32_sum_error(w, a)
    codes, scales, points = q8nx.unpack(w.q4nx, w.n, w.k)
    scale, point = (
        np.repeat(np.abs(x.astype(np.float64)), 32, axis=1)[:, : w.k] for x in (scales, points)
    )
    x = np.abs(a.astype(np.float64))
    # A prompt rounds weights to bfloat16.
    rounded = 2.0**-9 * (1 + 2**-8) * (x @ np.abs(w.dequantised).T)
    error: Array = (w.k + 8) * U * (x @ (scale * (codes + point)).T) + rounded
    return error


def rms_norm(x: Array, weight: Array) -> Array:
    """The norm along the last dimension, in float64."""
    x = x.astype(np.float64)
    normed: Array = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + EPSILON)
    return normed * weight.astype(np.float64)


def activate(x: Array, activation: str) -> Array:
    t = x if activation == "silu" else np.sqrt(8 / np.pi) * (x + 0.044715 * x**3)
    y: Array = x / (1 + np.exp(-np.clip(t, -700, None)))
    return y


def fused(
    weights: tuple[Weights, ...],
    a: Array,
    *,
    floats: bool = False,
    bias: Array | None = None,
    norm_weight: Array | None = None,
    skip: Array | None = None,
    with_sum: bool = True,
    constants: tuple[str, ...] = ("W", "W_gate", "W_up", "bias", "norm_weight"),
    **attributes: Any,
) -> dict[str, Array]:
    """Runs the op of these weights: one, or a gate and another; `floats`, as bfloat16."""
    w = weights[0]
    names = ("W",) if len(weights) == 1 else ("W_gate", "W_up")
    op = ("GEMM" if floats else "Q4NXMatMul") if len(weights) == 1 else (
        "GatedGEMM" if floats else "Q4NXGatedMLP")  # fmt: skip
    inputs: dict[str, Array | None] = {"A": a}
    for name, one in zip(names, weights, strict=True):
        inputs[name] = bf16_blocks.pack(one.dequantised) if floats else one.q4nx
    inputs |= {"bias": bias} if len(weights) == 1 else {}
    inputs |= {"norm_weight": norm_weight, "skip": skip}
    given = {"K": w.k, "N": w.n, "format": _native.FORMAT, "norm_epsilon": EPSILON}
    given |= {"bits": w.bits} if w.bits != 4 and not floats else {}
    outputs = {"Y": a.dtype} | ({"sum": a.dtype} if skip is not None and with_sum else {})
    model = one_op_model(op, inputs, outputs, given | attributes, constants=constants)
    return run(open_session(model), inputs)


@pytest.mark.parametrize("number", range(60))
def test_any_projections(number: int) -> None:
    for i in range(6):
        check_any(np.random.default_rng([number, i]))


def check_any(rng: np.random.Generator) -> None:
    """A projection that is drawn: its form, its sizes and types, and what is around it."""

    def one(*choices: Any) -> Any:
        return choices[rng.integers(len(choices))]

    bits, floats = one((4, False), (4, True), (2, False), (8, False))
    n, k = one((64, 256), (40, 100), (33, 320), (100, 512), (5, 40), (32, 7))
    dtype, lead = one(*TYPES), one((), (1,), (1, 1), (3,), (2, 5), (1, 40), (2, 3, 2))
    gated, normed, has_bias = one(True, False), one(True, False), one(True, False)
    points = one(False, True, "float") if bits != 8 else one(False, True)
    weights = tuple(
        make_weights(n, k, zero_points=points, exact=True, bits=bits, dtype=dtype, seed=seed)
        for seed in range(1 + gated)
    )
    a = activations(*lead, k, dtype=dtype, exact=not normed)
    given: dict[str, Any] = {}
    x = a.astype(np.float64)
    if normed:
        given["norm_weight"] = activations(k, dtype=dtype)
        if one(True, False):
            given["skip"] = rng.standard_normal(a.shape).astype(dtype)
            x = x + given["skip"].astype(np.float64)
            given["with_sum"] = one(True, True, False)
        total, x = x, rms_norm(x, given["norm_weight"])
    products = [x @ w.dequantised.T for w in weights]
    errors = [sum_error(w, x) for w in weights]
    if normed:
        # Rounding x to bfloat16. 2.01: the reference's x and the op's differ by float32 roundings
        # before they are rounded.
        size = [np.abs(x) @ np.abs(w.dequantised).T if bits == 8 else magnitudes(w, x)
                for w in weights]  # fmt: skip
        errors = [2 * e + 2.01 * 2**-9 * s for e, s in zip(errors, size, strict=True)]
    expected, bound = products[0], errors[0]
    if gated:
        given["activation"] = one("silu", "gelu_tanh")
        gate, up = products
        activated = activate(gate, given["activation"])
        expected = activated * up
        # Both activations have slopes of at most 1.13 and are no larger than their argument; the
        # exponential and the few operations after it add a few roundings. The cubic polynomial's
        # rounding grows with |t| <= 90 where sigmoid(t) is not flat.
        bound = 1.13 * errors[0] * (np.abs(up) + errors[1]) + np.abs(activated) * errors[1]
        bound = bound + 128 * U * np.abs(gate * up)
    elif has_bias:
        given["bias"] = activations(n, dtype=dtype)
        expected = expected + given["bias"].astype(np.float64)
        bound = bound + 4 * U * np.abs(given["bias"].astype(np.float64))
        if one(True, False):  # computed by another node
            given["constants"] = ("W", "norm_weight")
    got = fused(weights, a, floats=floats, **given)
    assert_within(got["Y"], expected, bound)
    assert ("sum" in got) == ("skip" in given and given["with_sum"])
    if "sum" in got:  # one addition in float32, and one rounding to the type
        assert_within(got["sum"], total, U * np.abs(total))


# --- beside ONNX Runtime's operator ---------------------------------------------------------------


@BITS
@pytest.mark.parametrize("block_size", [32, 64, 128, 256])
@pytest.mark.parametrize("zero_points", [False, True])
def test_equals_matmul_nbits_where_bfloat16_is_exact(
    bits: int, block_size: int, zero_points: bool
) -> None:
    """Weights of 8 bits are stored exactly whatever their scales."""
    for (n, k), dtype in product([(64, 256), (100, 512), (33, 320), (32, 100)], (FLOAT32, FLOAT16)):
        w = make_weights(n, k, block_size=block_size, dtype=dtype, zero_points=zero_points,
                         exact=bits != 8, bits=bits)  # fmt: skip
        # Seven bits are exact in float16, too.
        a = activations(33, k, dtype=dtype, exact=True)
        bound, theirs = 2 * sum_error(w, a), matmul_nbits(w, a)
        change = {"symmetric": int(not zero_points)} if bits == 8 else {}
        session = open_session(q4nx_model(w, a, dims={"A": ["rows", k]}, change=change))
        for rows in (1, 2, 5, 33):
            y = run(session, {"A": a[:rows]})["Y"]
            assert_within(y, theirs[:rows], bound[:rows])


@pytest.mark.parametrize("zero_points", [False, True])
def test_differs_from_matmul_nbits_by_roundings_to_bfloat16_only(zero_points: bool) -> None:
    w = make_weights(96, 512, zero_points=zero_points)
    for rows in (1, 7):
        a = activations(rows, 512)
        # Activation, scale, min and, in a GEMM, the weight: each by at most 2^-8 of itself.
        y, theirs = project(w, a), matmul_nbits(w, a)
        assert_within(y, theirs, 4 * 2**-8 * magnitudes(w, a))
        # These are independent and half of them small, so the norm of all errors is far smaller.
        assert np.linalg.norm(y - theirs) <= 2**-8 * np.linalg.norm(theirs) * 2


@NEEDS_TWO_BITS
def test_float_zero_points_are_those_of_matmul_nbits() -> None:
    w = make_weights(40, 320, zero_points="float", exact=True, bits=2)
    a = activations(3, 320, exact=True)
    assert_within(project(w, a), matmul_nbits(w, a), 2 * sum_error(w, a))


@pytest.mark.parametrize("bits", [4, 8])
def test_activations_are_rounded_to_bfloat16(bits: int) -> None:
    for dtype, rows in product(TYPES, (1, 4)):
        w = make_weights(40, 300, dtype=dtype, exact=True, bits=bits)
        a = activations(rows, 300, dtype=dtype)
        rounded = a.astype(np.float32).astype(BFLOAT16).astype(np.float64)
        assert_within(project(w, a), rounded @ w.dequantised.T, sum_error(w, a) * 1.01)


@BITS
@pytest.mark.parametrize("zero_points", [False, True])
def test_int8_agrees_with_accuracy_level_4(bits: int, zero_points: bool) -> None:
    for block_size, rows in product((32, 128) if bits == 8 else (32,), (1, 3, 70)):
        w = make_weights(96, 512, block_size=block_size, zero_points=zero_points, exact=bits != 8,
                         bits=bits)  # fmt: skip
        a = activations(rows, 512)
        # Half an int8 step per activation: of groups of 32 here, of whole blocks in ONNX Runtime.
        ours, theirs = (
            np.abs(a.astype(np.float64)).reshape(rows, -1, group).max(axis=2) / 254
            @ np.abs(w.dequantised).reshape(96, -1, group).sum(axis=2).T
            for group in (32, block_size)
        )  # fmt: skip
        ours = ours + 2 * sum_error(w, a)
        if bits == 2 and rows == 1:  # tables of sums have their own error
            ours = lookup_error(a, w.q4nx, w.n, INT8)
        y = project(w, a, accuracy_level=4)
        assert_within(y, a.astype(np.float64) @ w.dequantised.T, ours)
        bound = ours + theirs + 2 * sum_error(w, a)
        assert_within(y, matmul_nbits(w, a, accuracy_level=4), bound)


# --- bits that are equal --------------------------------------------------------------------------


@pytest.mark.parametrize("floats", [False, True])
@pytest.mark.parametrize("level", [0, 4])
@pytest.mark.parametrize("rows", [1, 9, 70])
def test_a_gated_mlp_behind_a_norm_is_its_parts(floats: bool, level: int, rows: int) -> None:
    for bits in (4,) if floats else (4, 2, 8):
        weights = tuple(make_weights(96, 320, seed=i, bits=bits, zero_points=True) for i in (0, 1))
        a, skip = 0.3 * activations(rows, 320), activations(rows + 1, 320)[1:]
        given = {"norm_weight": 0.1 * activations(320), "skip": skip, "accuracy_level": level}
        got = fused(weights, a, floats=floats, activation="silu", **given)
        gate, up = (fused((w,), a, floats=floats, **given) for w in weights)
        np.testing.assert_array_equal(got["sum"], gate["sum"])
        both = gate["Y"] * up["Y"].astype(np.float64)
        expected = activate(gate["Y"].astype(np.float64), "silu") * up["Y"]
        assert_within(got["Y"], expected, 128 * U * np.abs(both))


def test_a_sum_that_nobody_wants_is_not_written() -> None:
    for floats, rows in product((False, True), (1, 3, 40)):
        a, skip = activations(rows, 96), activations(96, rows).T.copy()
        given = {"floats": floats, "skip": skip, "norm_weight": activations(96)}
        weights = (make_weights(64, 96),)
        alone = fused(weights, a, **given, with_sum=False)
        np.testing.assert_array_equal(alone["Y"], fused(weights, a, **given)["Y"])


@pytest.mark.parametrize("rows", [1, 4])
def test_minima_of_symmetric_weights_are_not_needed(rows: int) -> None:
    weights = tuple(make_weights(64, 256, seed=i) for i in (0, 1))
    a = activations(rows, 256)
    plain, symmetric = (
        fused(weights, a, activation="silu", accuracy_level=4, symmetric=s)["Y"] for s in (0, 1)
    )
    scale = np.abs(plain).max()
    np.testing.assert_allclose(symmetric, plain, rtol=0, atol=320 * U * scale)


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


def test_one_scale_an_out_feature_is_a_scale_that_repeats() -> None:
    """Per channel: blocks of the largest size repeat it, and so do Q4NX blocks."""
    n, k, rng = 48, 512, np.random.default_rng(0)
    codes = rng.integers(0, 4, (n, k), dtype=np.uint8)
    scale = 2.0 ** rng.integers(-7, -3, (n, 1))
    minimum = scale * rng.integers(-3, 1, (n, 1))
    groups = np.ones((1, k // 32))
    blocks = q4nx.pack(codes, scale * groups, minimum * groups, 2)
    for rows in (1, 5):
        a = activations(rows, k, exact=True)
        y = _native.project(a, blocks, n, "bf16", _native.selected_isa())
        expected = a.astype(np.float64) @ (scale * codes + minimum).T
        assert_within(y, expected, lookup_error(a, blocks, n, INT16))


@pytest.mark.parametrize("bits", [4, 2, 8])
@pytest.mark.parametrize("level", [0, 4])
def test_a_session_survives_runs_of_changing_sizes(bits: int, level: int) -> None:
    w = make_weights(64, 320, exact=True, bits=bits)
    opened = [open_session(q4nx_model(w, activations(1, 320), accuracy_level=level), threads=n)
              for n in (1, 2)]  # fmt: skip
    for count in (3, 1, 70, 2, 1100, 1, 0, 1):
        a = activations(count, 320, exact=True)
        y, other = (run(session, {"A": a}, misaligned=True)["Y"] for session in opened)
        np.testing.assert_array_equal(y, other)
        assert y.shape == (count, 64)
        if level == 0:
            assert_within(y, a.astype(np.float64) @ w.dequantised.T, sum_error(w, a))


@pytest.mark.parametrize("bits", [4, 2, 8, 16])
@pytest.mark.parametrize("gated", [False, True])
def test_nan_and_infinity_stay_in_their_rows(bits: int, gated: bool) -> None:
    weights = tuple(make_weights(40, 320, bits=min(bits, 8), seed=i) for i in range(1 + gated))
    given: dict[str, Any] = {"activation": "silu"} if gated else {}
    for rows, level, normed in product((1, 5), (0, 4), (False, True)):
        a = activations(rows, 320)
        norm = {"norm_weight": activations(320)} if normed else {}
        given |= {"floats": bits == 16, "accuracy_level": level}
        clean = fused(weights, a, **given, **norm)["Y"]
        for bad in (np.nan, np.inf):
            a[-1, 7] = bad
            poisoned = fused(weights, a, **given, **norm)["Y"]
            if not gated or np.isnan(bad):  # silu of -inf is 0
                assert not np.isfinite(poisoned[-1]).any()
            np.testing.assert_array_equal(poisoned[:-1], clean[:-1])


def test_no_rows_give_empty_results() -> None:
    for bits, shape in product((4, 2, 8, 16), [(0, 96), (2, 0, 96), (0, 3, 96)]):
        a = np.zeros(shape, np.float32)
        weights = (make_weights(64, 96, bits=min(bits, 8)),)
        got = fused(weights, a, floats=bits == 16, norm_weight=activations(96), skip=a)
        assert (got["Y"].shape, got["sum"].shape) == ((*shape[:-1], 64), shape)


# --- errors ---------------------------------------------------------------------------------------

UINT8 = "input W must be uint8"


@pytest.mark.parametrize(
    ("bits", "change", "message"),
    [
        (4, {"format": 99}, "the model has format 99, but this library reads formats 1 to 3; "
                            "compile the model"),
        (4, {"format": 0}, "the model has format 0"),
        (4, {"K": 512}, rf"{UINT8} \(2, 2, 5120\) for K=512 N=40, got uint8 \(2, 1, 5120"),
        (4, {"N": 65}, rf"{UINT8} \(3, 1, 5120\) for K=256 N=65, got uint8 \(2, 1, 5120"),
        (4, {"K": 0}, "attributes K and N must be positive, got K=0 N=40"),
        (4, {"N": -3}, "attributes K and N must be positive, got K=256 N=-3"),
        (2, {"bits": 3}, "attribute bits must be 2, 4 or 8, got 3"),
        (2, {"bits": 8}, rf"{UINT8} \(2, 1, 9472\) for K=256 N=40 bits=8, got uint8"),
        (2, {"bits": 4}, rf"{UINT8} \(2, 1, 5120\) for K=256 N=40, got uint8 \(2, 1, 30"),
        (2, {"K": 512}, rf"{UINT8} \(2, 2, 3072\) for K=512 N=40 bits=2, got uint8 \(2, 1, 3072"),
        (8, {"bits": 4}, rf"{UINT8} \(2, 1, 5120\) for K=256 N=40, got uint8 \(2, 1, 94"),
        (8, {"K": 512}, rf"{UINT8} \(2, 2, 9472\) for K=512 N=40 bits=8, got uint8 \(2, 1, 9472"),
    ],
)  # fmt: skip
def test_wrong_attributes_are_named(bits: int, change: dict[str, int], message: str) -> None:
    w, a = make_weights(40, 256, bits=bits), activations(1, 256)
    with pytest.raises(Exception, match=f"aie.Q4NXMatMul node 'the_node': {message}"):
        open_session(q4nx_model(w, a, change=change))
    assert np.isfinite(project(w, a)).all()


@pytest.mark.parametrize(
    ("op", "wrong", "message"),
    [
        *(("Q4NXMatMul", wrong, rf"{UINT8} \(2, 1, 5120\) for K=256 N=40, got {got}")
          for wrong, got in (
            (np.zeros((2, 1, 5119), np.uint8), r"uint8 \(2, 1, 5119\)"),
            (np.zeros((2, 5120), np.uint8), r"uint8 \(2, 5120\)"),
            (np.zeros((1, 1, 5120), np.uint8), r"uint8 \(1, 1, 5120\)"),
            (np.zeros((2, 1, 5120), np.float32), r"float \(2, 1, 5120\)"),
          )),
        ("GEMM", np.zeros((2, 1, 8192), np.float16), r"input W .*bfloat16.*float16"),
        ("GEMM", np.zeros((2, 2, 8192), BFLOAT16),
         r"input W must be bfloat16 \(2, 1, 8192\) for K=256 N=40, got bfloat16 \(2, 2"),
        ("GEMM", np.zeros((2, 1, 8192), BFLOAT16), "input W .*constant"),
        ("Q4NXMatMul", np.zeros((2, 1, 5120), np.uint8), "input W .*constant"),
    ],
)  # fmt: skip
def test_wrong_weights_are_named(op: str, wrong: Array, message: str) -> None:
    given = {"K": 256, "N": 40, "format": _native.FORMAT}
    constants = [] if "constant" in message else ["W"]
    model = one_op_model(op, {"A": activations(1, 256), "W": wrong}, {"Y": FLOAT32}, given,
                         constants=constants)  # fmt: skip
    with pytest.raises(Exception, match=f"'the_node': {message}"):
        open_session(model)


@pytest.mark.parametrize("bits", [2, 8])
def test_gate_and_up_of_different_bits_are_refused(bits: int) -> None:
    gate, up = make_weights(64, 96, bits=bits), make_weights(64, 96)
    message = rf"input W_up must be uint8 \(2, 1, \d+\) for K=96 N=64 bits={bits}, got uint8 \(2, 1"
    with pytest.raises(Exception, match=f"the_node': {message}"):
        open_session(gated_model(gate, up, activations(1, 96)))


@pytest.mark.parametrize("floats", [False, True])
@pytest.mark.parametrize(
    ("a", "given", "message"),
    [
        (np.zeros((1, 95), np.float32), {}, r"input A must be \(\.\.\., 96\), got \(1, 95\)"),
        (np.zeros((), np.float32), {}, r"input A must be \(\.\.\., 96\), got \(\)"),
        (np.zeros((1, 96), np.uint8), {}, "input A must be float, float16 or bfloat16, got uint8"),
        (np.zeros((1, 96), np.int64), {}, "input A must be float, float16 or bfloat16, got int64"),
        *((activations(2, 96), {"bias": bias}, r"input bias .*float \(64\)")
          for bias in (np.zeros(65, np.float32), np.zeros((1, 64), np.float32),
                       np.zeros(64, np.float16))),
        (activations(2, 96), {"norm_weight": np.ones(95, np.float32)},
         r"input norm_weight must be float \(96\), got float \(95\)"),
        (activations(2, 96), {"norm_weight": np.ones(96, np.float16)},
         r"input norm_weight must be float \(96\), got float16 \(96\)"),
        (activations(2, 96), {"norm_weight": np.ones(96, np.float32),
                              "skip": np.ones((1, 96), np.float32)},
         r"input skip must be float \(2, 96\), got float \(1, 96\)"),
        (activations(2, 96), {"skip": np.ones((2, 96), np.float32)},
         "input skip needs input norm_weight"),
    ],
)  # fmt: skip
def test_wrong_inputs_are_named(
    floats: bool, a: Array, given: dict[str, Array], message: str
) -> None:
    with pytest.raises(Exception, match=f"the_node.*{message}"):
        fused((make_weights(64, 96),), a, floats=floats, **given)


@pytest.mark.parametrize("floats", [False, True])
def test_what_a_gated_mlp_has_besides_is_checked(floats: bool) -> None:
    w, narrow, a = make_weights(64, 96), make_weights(32, 96), activations(2, 96)
    blocks = r"bfloat16 \(2, 1, 8192\)" if floats else r"uint8 \(2, 1, 5120\)"
    with pytest.raises(Exception, match=rf"the_node': input W_up must be {blocks}"):
        fused((w, narrow), a, floats=floats, activation="silu")
    for activation in ("relu", ""):
        given = {"activation": activation} if activation else {}
        with pytest.raises(Exception, match=rf"activation .*silu.*gelu_tanh.*'{activation}'"):
            fused((w, w), a, floats=floats, **given)


def test_shapes_are_inferred() -> None:
    w, a = make_weights(40, 256), activations(1, 1, 256)
    model = q4nx_model(w, a, dims={"A": ["batch", "sequence", 256]})
    assert open_session(model).get_outputs()[0].shape == ["batch", "sequence", 40]
