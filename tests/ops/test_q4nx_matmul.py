"""aie.Q4NXMatMul against ONNX Runtime's MatMulNBits and the dequantised product."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from op_models import ORT_VERSION, one_op_model, open_session, run

from ort_aie_ep import _native, q4nx

Array = npt.NDArray[Any]

FLOAT32, FLOAT16 = np.dtype(np.float32), np.dtype(np.float16)
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
ROUNDOFF = {FLOAT32: 2.0**-24, FLOAT16: 2.0**-11, BFLOAT16: 2.0**-8}
TYPE_NAMES = {FLOAT32: "FLOAT", FLOAT16: "FLOAT16", BFLOAT16: "BFLOAT16"}

NUMERICS_NEED_1_24 = pytest.mark.skipif(
    ORT_VERSION < (1, 24), reason="custom ops read session config entries from 1.24 on"
)


@dataclass(frozen=True)
class Weights:
    """Inputs of a MatMulNBits with 4 bits, and the same as Q4NX.

    Attributes:
        n: out-features.
        k: in-features.
        block_size: in-features that share a scale.
        b: (N, ceil(K / block_size), block_size / 2) uint8.
        scales: (N, ceil(K / block_size)).
        zero_points: packed, or None.
        dequantised: (N, K) float64, what MatMulNBits means.
        q4nx: (ceil(N / 32), ceil(K / 256), 5120) uint8.
    """

    n: int
    k: int
    block_size: int
    b: Array
    scales: Array
    zero_points: Array | None
    dequantised: Array
    q4nx: Array


def make_weights(
    n: int,
    k: int,
    *,
    block_size: int = 32,
    dtype: np.dtype[Any] = FLOAT32,
    zero_points: bool = False,
    exact: bool = False,
    seed: int = 0,
) -> Weights:
    """Random weights. `exact` ones have scales that are powers of two, so that Q4NX's bfloat16
    scales and mins hold them without loss, and each weight as well."""
    rng = np.random.default_rng([seed, n, k, block_size])
    blocks = -(-k // block_size)
    codes = rng.integers(0, 16, (n, blocks * block_size), dtype=np.uint8)
    b = (codes[:, 0::2] | (codes[:, 1::2] << 4)).reshape(n, blocks, block_size // 2)
    scales = rng.uniform(0.01, 0.1, (n, blocks))
    if exact:
        scales = 2.0 ** rng.integers(-7, -3, (n, blocks))
    scales = scales.astype(np.float32).astype(dtype)
    points, packed = np.full((n, blocks), 8, np.uint8), None
    if zero_points:
        points = rng.integers(0, 16, (n, blocks), dtype=np.uint8)
        padded = np.pad(points, ((0, 0), (0, blocks % 2)))
        packed = padded[:, 0::2] | (padded[:, 1::2] << 4)
    spread = [np.repeat(x.astype(np.float64), block_size, axis=1) for x in (points, scales)]
    dequantised = ((codes - spread[0]) * spread[1])[:, :k]
    blob = _native.pack_matmulnbits(
        b.reshape(-1),
        scales.reshape(-1).view(np.uint8),
        None if packed is None else packed.reshape(-1),
        n,
        k,
        block_size,
        TYPE_NAMES[dtype],
    )
    return Weights(n, k, block_size, b, scales, packed, dequantised, blob)


def q4nx_model(
    w: Weights,
    a: Array,
    *,
    bias: Array | None = None,
    accuracy_level: int = 0,
    change: dict[str, Any] | None = None,
    constants: tuple[str, ...] = ("W", "bias"),
    **options: Any,
) -> bytes:
    given = {"K": w.k, "N": w.n, "accuracy_level": accuracy_level, "format": _native.FORMAT}
    inputs = {"A": a, "W": w.q4nx, "bias": bias}
    return one_op_model(
        "Q4NXMatMul", inputs, {"Y": a.dtype}, given | (change or {}), constants=constants, **options
    )


def project(w: Weights, a: Array, *, config: dict[str, str] | None = None, **options: Any) -> Array:
    """Y of the custom op."""
    session = open_session(q4nx_model(w, a, **options), config=config)
    return run(session, {"A": a, "W": w.q4nx})["Y"]


def matmul_nbits(
    w: Weights, a: Array, *, bias: Array | None = None, accuracy_level: int = 0
) -> Array:
    """Y of ONNX Runtime's operator."""
    inputs = {
        "A": a, "B": w.b, "scales": w.scales, "zero_points": w.zero_points, "g_idx": None,
        "bias": bias,
    }  # fmt: skip
    given = {"K": w.k, "N": w.n, "bits": 4, "block_size": w.block_size}
    if accuracy_level:
        given["accuracy_level"] = accuracy_level
    constants = ("B", "scales", "zero_points", "bias")
    model = one_op_model(
        "MatMulNBits", inputs, {"Y": a.dtype}, given, domain="com.microsoft", constants=constants
    )
    return run(open_session(model), {"A": a})["Y"]


def activations(*shape: int, dtype: np.dtype[Any] = FLOAT32, exact: bool = False) -> Array:
    """Random ones; `exact` ones are bfloat16 values."""
    a = np.random.default_rng(shape).standard_normal(shape).astype(np.float32)
    return (a.astype(ml_dtypes.bfloat16) if exact else a).astype(np.float32).astype(dtype)


def magnitudes(w: Weights, a: Array) -> Array:
    """Sums of |a| (|scale| code + |min|): what rounding errors of a float32 sum are relative to."""
    codes, scales, mins = q4nx.unpack(w.q4nx, w.n, w.k)
    scale, low = (np.repeat(np.abs(x.astype(np.float64)), 32, axis=1)[:, : w.k] for x in (scales, mins))
    sums: Array = np.abs(a.astype(np.float64)) @ (scale * codes + low).T
    return sums


def float32_sum_error(w: Weights, a: Array) -> Array:
    """Worst error of K additions and a few products in float32, in any order."""
    return (w.k + 8) * 2**-24 * magnitudes(w, a)


def assert_within(actual: Array, expected: Array, bound: Array | float) -> None:
    """|actual - expected| <= bound + one rounding of each to their type."""
    roundoff = 2 * ROUNDOFF[actual.dtype]
    y, x = actual.astype(np.float64), expected.astype(np.float64)
    assert y.shape == x.shape
    error, allowed = np.abs(y - x), bound + roundoff * np.abs(x)
    # Subnormal float16 results have an absolute step.
    allowed = allowed + (2.0**-24 if actual.dtype == FLOAT16 else 0)
    assert (error <= allowed).all(), (error - allowed).max()


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16])
@pytest.mark.parametrize("rows", [1, 2, 5, 33])
@pytest.mark.parametrize(("n", "k"), [(64, 256), (100, 512), (33, 320), (32, 100)])
@pytest.mark.parametrize("block_size", [32, 64, 128, 256])
@pytest.mark.parametrize("zero_points", [False, True])
def test_equals_matmul_nbits_where_bfloat16_is_exact(
    dtype: np.dtype[Any], rows: int, n: int, k: int, block_size: int, zero_points: bool
) -> None:
    w = make_weights(
        n, k, block_size=block_size, dtype=dtype, zero_points=zero_points, exact=True
    )
    # Seven bits are exact in float16 as well.
    a = activations(rows, k, dtype=dtype, exact=True)
    bound = 2 * float32_sum_error(w, a)
    assert_within(project(w, a), matmul_nbits(w, a), bound)


@pytest.mark.parametrize("rows", [1, 7])
@pytest.mark.parametrize("zero_points", [False, True])
def test_differs_from_matmul_nbits_by_roundings_to_bfloat16_only(
    rows: int, zero_points: bool
) -> None:
    w = make_weights(96, 512, zero_points=zero_points)
    a = activations(rows, 512)
    # Activation, scale, min and, in a GEMM, the weight: each rounded by at most 2^-8 of itself.
    bound = 4 * 2**-8 * magnitudes(w, a)
    assert_within(project(w, a), matmul_nbits(w, a), bound)
    # These are independent and half of them small, so that the norm of all errors is far smaller.
    error = project(w, a) - matmul_nbits(w, a)
    assert np.linalg.norm(error) <= 2**-8 * np.linalg.norm(matmul_nbits(w, a)) * 2


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16, BFLOAT16])
@pytest.mark.parametrize("shape", [(64,), (1, 64), (3, 64), (2, 5, 64), (2, 3, 2, 64), (1, 1, 64)])
@pytest.mark.parametrize("with_bias", [False, True])
def test_types_ranks_and_bias_match_the_dequantised_product(
    dtype: np.dtype[Any], shape: tuple[int, ...], with_bias: bool
) -> None:
    w = make_weights(40, 64, dtype=dtype, exact=True)
    a = activations(*shape, dtype=dtype, exact=True)
    bias = activations(40, dtype=dtype) if with_bias else None
    expected = a.astype(np.float64) @ w.dequantised.T
    bound = float32_sum_error(w, a)
    if bias is not None:
        expected = expected + bias.astype(np.float64)
        bound = bound + 2**-23 * np.abs(bias.astype(np.float64))
    assert_within(project(w, a, bias=bias), expected, bound)
    if bias is not None:  # computed by another node instead of constant
        session = open_session(q4nx_model(w, a, bias=bias, constants=("W",)))
        assert_within(run(session, {"A": a, "bias": bias})["Y"], expected, bound)


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16, BFLOAT16])
@pytest.mark.parametrize("rows", [1, 4])
def test_activations_are_rounded_to_bfloat16(dtype: np.dtype[Any], rows: int) -> None:
    w = make_weights(40, 300, dtype=dtype, exact=True)
    a = activations(rows, 300, dtype=dtype)
    rounded = a.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float64)
    assert_within(project(w, a), rounded @ w.dequantised.T, float32_sum_error(w, a) * 1.01)


@pytest.mark.parametrize("shape", [(0, 64), (2, 0, 64), (0, 3, 64)])
def test_no_rows_give_an_empty_result(shape: tuple[int, ...]) -> None:
    w = make_weights(40, 64)
    assert project(w, np.zeros(shape, np.float32)).shape == (*shape[:-1], 40)


@pytest.mark.parametrize("rows", [1, 3, 50])
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16])
def test_int8_agrees_with_accuracy_level_4(rows: int, dtype: np.dtype[Any]) -> None:
    """Both quantise activations to int8 per 32 in-features: at most a step between the two."""
    w = make_weights(96, 512, dtype=dtype, exact=True)
    a = activations(rows, 512, dtype=dtype)
    step = np.abs(a.astype(np.float64)).reshape(rows, -1, 32).max(axis=2) / 127
    weight = np.abs(w.dequantised).reshape(96, -1, 32).sum(axis=2)
    bound = step @ weight.T + 2 * float32_sum_error(w, a)
    ours = project(w, a, accuracy_level=4)
    assert_within(ours, matmul_nbits(w, a, accuracy_level=4), bound)
    assert_within(ours, a.astype(np.float64) @ w.dequantised.T, bound / 2 + float32_sum_error(w, a))


@pytest.mark.parametrize("rows", [1, 3])
def test_a_session_survives_many_runs_of_changing_sizes(rows: int) -> None:
    w = make_weights(64, 320, exact=True)
    session = open_session(q4nx_model(w, activations(rows, 320)))
    for count in (rows, 1, 70, 2, 1100, 1):
        a = activations(count, 320, exact=True)
        y = run(session, {"A": a})["Y"]
        assert_within(y, a.astype(np.float64) @ w.dequantised.T, float32_sum_error(w, a))


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("level", [0, 4])
def test_nan_and_infinity_stay_in_their_rows(rows: int, level: int) -> None:
    w = make_weights(40, 320)
    a = activations(rows, 320)
    clean = project(w, a, accuracy_level=level)
    a[-1, 7] = np.nan
    poisoned = project(w, a, accuracy_level=level)
    assert np.isnan(poisoned[-1]).all()
    np.testing.assert_array_equal(poisoned[:-1], clean[:-1])
    a[-1, 7] = np.inf
    assert not np.isfinite(project(w, a, accuracy_level=level)[-1]).any()


# --- options ---------------------------------------------------------------------------------------------


def numerics_of(w: Weights, a: Array, y: Array) -> str:
    """Which numerics gave y, told by results of either."""
    references = {
        "bf16": project(w, a, accuracy_level=0),
        "int8": project(w, a, accuracy_level=4),
    }
    assert (references["bf16"] != references["int8"]).any()
    (name,) = (name for name, x in references.items() if np.array_equal(x, y))
    return name


@pytest.mark.parametrize(
    ("option", "level", "expected"),
    [
        ("bf16", 4, "bf16"),
        ("int8", 0, "int8"),
        ("auto", 0, "bf16"),
        ("auto", 1, "bf16"),
        ("auto", 4, "int8"),
    ],
)
@NUMERICS_NEED_1_24
def test_numerics_by_session_config(option: str, level: int, expected: str) -> None:
    w, a = make_weights(40, 320), activations(1, 320)
    y = project(w, a, accuracy_level=level, config={"ort_aie.numerics": option})
    assert numerics_of(w, a, y) == expected


@pytest.mark.parametrize(("option", "level"), [("bf16", 4), ("int8", 0)])
def test_numerics_by_environment(option: str, level: int, monkeypatch: pytest.MonkeyPatch) -> None:
    w, a = make_weights(40, 320), activations(1, 320)
    with monkeypatch.context() as patch:
        patch.setenv("ORT_AIE_NUMERICS", option)
        y = project(w, a, accuracy_level=level)
    assert numerics_of(w, a, y) == option


@NUMERICS_NEED_1_24
def test_session_config_outranks_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    w, a = make_weights(40, 320), activations(1, 320)
    with monkeypatch.context() as patch:
        patch.setenv("ORT_AIE_NUMERICS", "int8")
        y = project(w, a, config={"ort_aie.numerics": "bf16"})
    assert numerics_of(w, a, y) == "bf16"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("numerics", "fp4", "ort_aie.numerics=fp4 is unknown; expected auto, bf16 or int8"),
        ("target", "gpu", "ort_aie.target=gpu is unknown; expected auto, host, xrt or sim"),
        ("target", "xrt", "ort_aie.target=xrt: this build has no such target; use auto or host"),
    ],
)
@pytest.mark.parametrize("way", ["config", "environment"])
def test_unknown_options_are_named(
    name: str, value: str, message: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "config" and ORT_VERSION < (1, 24):
        pytest.skip("custom ops read session config entries from 1.24 on")
    w, a = make_weights(40, 320), activations(1, 320)
    config = {f"ort_aie.{name}": value} if way == "config" else None
    with monkeypatch.context() as patch:
        if way == "environment":
            patch.setenv(f"ORT_AIE_{name.upper()}", value)
        with pytest.raises(Exception, match=f"Q4NXMatMul node 'the_node': {message}"):
            project(w, a, config=config)
    assert np.isfinite(project(w, a)).all()  # a good session still works afterwards


@pytest.mark.parametrize("isa", _native.available_isas())
def test_the_environment_chooses_the_instruction_set(isa: str) -> None:
    script = "from ort_aie_ep import _native; print(_native.selected_isa())"
    environment = {"ORT_AIE_ISA": isa}
    assert subprocess_output(script, environment) == (isa, "")


def test_an_unknown_instruction_set_is_reported_and_ignored() -> None:
    script = "from ort_aie_ep import _native; print(_native.selected_isa())"
    output, errors = subprocess_output(script, {"ORT_AIE_ISA": "sse9"})
    best = _native.available_isas()[-1]
    assert output == best
    assert errors == f"ort_aie_ep: ORT_AIE_ISA=sse9 is not available on this CPU; using {best}"


def subprocess_output(script: str, environment: dict[str, str]) -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=dict(os.environ) | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip(), done.stderr.strip()


# --- errors ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 99}, "the model has format 99, this library reads format 1; compile the model"),
        ({"format": 0}, "the model has format 0"),
        ({"K": 512}, r"input W must be uint8 \(2, 2, 5120\) for K=512 N=40, got uint8 \(2, 1, 5120"),
        ({"N": 65}, r"input W must be uint8 \(3, 1, 5120\) for K=256 N=65, got uint8 \(2, 1, 5120"),
        ({"K": 0}, "attributes K and N must be positive, got K=0 N=40"),
        ({"N": -3}, "attributes K and N must be positive, got K=256 N=-3"),
    ],
)
def test_wrong_attributes_are_named(change: dict[str, int], message: str) -> None:
    w, a = make_weights(40, 256), activations(1, 256)
    with pytest.raises(Exception, match=f"aie.Q4NXMatMul node 'the_node': {message}"):
        open_session(q4nx_model(w, a, change=change))
    assert np.isfinite(project(w, a)).all()


@pytest.mark.parametrize(
    ("wrong", "got"),
    [
        (np.zeros((2, 1, 5119), np.uint8), r"uint8 \(2, 1, 5119\)"),
        (np.zeros((2, 5120), np.uint8), r"uint8 \(2, 5120\)"),
        (np.zeros((1, 1, 5120), np.uint8), r"uint8 \(1, 1, 5120\)"),
        (np.zeros((2, 1, 5120), np.float32), r"float \(2, 1, 5120\)"),
    ],
)
def test_wrong_weights_are_named(wrong: Array, got: str) -> None:
    a = activations(1, 256)
    given = {"K": 256, "N": 40, "format": _native.FORMAT}
    model = one_op_model("Q4NXMatMul", {"A": a, "W": wrong}, {"Y": FLOAT32}, given, constants=["W"])
    message = rf"'the_node': input W must be uint8 \(2, 1, 5120\) for K=256 N=40, got {got}"
    with pytest.raises(Exception, match=message):
        open_session(model)


def test_weights_that_are_no_initializer_are_refused() -> None:
    w, a = make_weights(40, 256), activations(1, 256)
    with pytest.raises(Exception, match="'the_node': input W must be a constant initializer"):
        open_session(q4nx_model(w, a, constants=()))


@pytest.mark.parametrize(
    ("a", "message"),
    [
        (np.zeros((1, 255), np.float32), r"input A must be \(\.\.\., 256\), got \(1, 255\)"),
        (np.zeros((), np.float32), r"input A must be \(\.\.\., 256\), got \(\)"),
        (np.zeros((1, 256), np.uint8), "input A must be float, float16 or bfloat16, got uint8"),
        (np.zeros((1, 256), np.int64), "input A must be float, float16 or bfloat16, got int64"),
    ],
)
def test_wrong_activations_are_named_and_the_session_lives(a: Array, message: str) -> None:
    w = make_weights(40, 256)
    session = open_session(q4nx_model(w, a))
    with pytest.raises(Exception, match=f"Q4NXMatMul node.*the_node.*{message}"):
        run(session, {"A": a})
    if a.dtype == FLOAT32 and a.ndim:
        assert np.isfinite(run(session, {"A": activations(1, 256)})["Y"]).all()


@pytest.mark.parametrize(
    "bias", [np.zeros(41, np.float32), np.zeros((1, 40), np.float32), np.zeros(40, np.float16)]
)
def test_a_wrong_bias_is_named(bias: Array) -> None:
    w, a = make_weights(40, 256), activations(1, 256)
    with pytest.raises(Exception, match=r"the_node.*input bias must be float \(40\), got float"):
        project(w, a, bias=bias)


def test_shapes_are_inferred() -> None:
    w, a = make_weights(40, 256), activations(1, 1, 256)
    model = q4nx_model(w, a, dims={"A": ["batch", "sequence", 256]})
    assert open_session(model).get_outputs()[0].shape == ["batch", "sequence", 40]
