"""aie.GEMM, compared with the product of its operands rounded to bfloat16."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from op_models import BFLOAT16, FLOAT16, FLOAT32, one_op_model, open_session, run
from projection_calls import Array, activations, assert_within

from ort_aie_ep import _native
from ort_aie_ep.aie_kernels.gemm.design import pack_b
from ort_aie_ep.errors import AieError
from ort_aie_ep.formats import bf16_blocks

ISAS = _native.available_isas()
# (N, K): whole blocks, padded out-features, padded in-features, less than a block.
SHAPES = [(64, 512), (100, 256), (33, 320), (5, 40)]


def weights(n: int, k: int) -> Array:
    """(N, K) bfloat16."""
    values = np.random.default_rng([n, k]).standard_normal((n, k))
    return values.astype(np.float32).astype(ml_dtypes.bfloat16)


def gemm_model(
    w: Array, a: Array, *, bias: Array | None = None, change: dict[str, Any] | None = None,
    constants: tuple[str, ...] = ("W", "bias"), **options: Any,
) -> bytes:  # fmt: skip
    given = {"K": w.shape[1], "N": w.shape[0], "format": _native.FORMAT} | (change or {})
    inputs = {"A": a, "W": bf16_blocks.pack(w), "bias": bias}
    return one_op_model("GEMM", inputs, {"Y": a.dtype}, given, constants=constants, **options)


def multiply(w: Array, a: Array, **options: Any) -> Array:
    """The op's Y."""
    return run(open_session(gemm_model(w, a, **options)), {"A": a})["Y"]


def product(w: Array, a: Array) -> tuple[Array, Array]:
    """a . w^T in float64 of operands rounded to bfloat16, and the worst error of that sum of K
    products in float32, in any order: each product is exact and passes through K additions."""
    rounded = a.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float64)
    exact = w.astype(np.float64)
    return rounded @ exact.T, w.shape[1] * 2.0**-24 * (np.abs(rounded) @ np.abs(exact).T)


# --- the blocks -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_blocks_hold_the_rounded_weights_and_zeros(n: int, k: int) -> None:
    w = np.random.default_rng([n, k]).standard_normal((n, k)).astype(np.float32)
    blocks = bf16_blocks.pack(w)
    assert blocks.shape == bf16_blocks.blocks_shape(n, k)
    np.testing.assert_array_equal(bf16_blocks.unpack(blocks, n, k), w.astype(ml_dtypes.bfloat16))
    rows, cols, _ = blocks.shape
    whole = bf16_blocks.unpack(blocks, rows * 32, cols * 256)
    assert not whole[n:].any()
    assert not whole[:, k:].any()


def test_blocks_have_the_order_of_the_npus_gemm() -> None:
    w = weights(96, 512)
    np.testing.assert_array_equal(bf16_blocks.pack(w).reshape(-1), pack_b(w).reshape(-1))


@pytest.mark.parametrize("shape", [(0, 32), (32,), (2, 3, 4)])
def test_only_matrices_are_packed(shape: tuple[int, ...]) -> None:
    with pytest.raises(AieError, match=r"weights .*\(N, K\)"):
        bf16_blocks.pack(np.zeros(shape))


def test_blocks_of_another_matrix_are_refused() -> None:
    blocks = bf16_blocks.pack(weights(64, 256))
    with pytest.raises(AieError, match=r"\(65, 256\) .*bfloat16 \(3, 1"):
        bf16_blocks.unpack(blocks, 65, 256)


# --- products -------------------------------------------------------------------------------------


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("rows", [1, 2, 3, 13, 40, 97, 200])
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_every_instruction_set_computes_the_product(isa: str, rows: int, n: int, k: int) -> None:
    w, a = weights(n, k), activations(rows, k)
    y = _native.project(a, bf16_blocks.pack(w).view(np.uint8), n, "bf16", isa)
    expected, bound = product(w, a)
    assert_within(y, expected, bound)


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16, BFLOAT16])
@pytest.mark.parametrize("shape", [(64,), (1, 64), (3, 64), (2, 5, 64), (2, 3, 2, 64), (1, 1, 64)])
@pytest.mark.parametrize("with_bias", [False, True])
def test_types_ranks_and_bias(
    dtype: np.dtype[Any], shape: tuple[int, ...], with_bias: bool
) -> None:
    w, a = weights(40, 64), activations(*shape, dtype=dtype)
    bias = activations(40, dtype=dtype) if with_bias else None
    expected, bound = product(w, a)
    if bias is not None:
        expected = expected + bias.astype(np.float64)
        bound = bound + 2.0**-23 * np.abs(bias.astype(np.float64))
    assert_within(multiply(w, a, bias=bias), expected, bound)
    if bias is not None:  # computed by another node, not a constant
        session = open_session(gemm_model(w, a, bias=bias, constants=("W",)))
        assert_within(run(session, {"A": a, "bias": bias})["Y"], expected, bound)


@pytest.mark.parametrize("shape", [(0, 64), (2, 0, 64)])
def test_no_rows_give_an_empty_result(shape: tuple[int, ...]) -> None:
    assert multiply(weights(40, 64), np.zeros(shape, np.float32)).shape == (*shape[:-1], 40)


def test_a_session_survives_runs_of_changing_sizes_and_any_number_of_threads() -> None:
    w = weights(200, 700)
    sessions = [open_session(gemm_model(w, activations(1, 700)), threads=n) for n in (1, 2)]
    for rows in (1, 70, 2, 1100, 1):
        a = activations(rows, 700)
        first, second = (run(session, {"A": a}, misaligned=True)["Y"] for session in sessions)
        np.testing.assert_array_equal(first, second)
        expected, bound = product(w, a)
        assert_within(first, expected, bound)


@pytest.mark.parametrize("rows", [1, 5])
def test_nan_and_infinity_stay_in_their_rows(rows: int) -> None:
    w, a = weights(40, 320), activations(rows, 320)
    clean = multiply(w, a)
    a[-1, 7] = np.nan
    poisoned = multiply(w, a)
    assert np.isnan(poisoned[-1]).all()
    np.testing.assert_array_equal(poisoned[:-1], clean[:-1])
    a[-1, 7] = np.inf
    assert not np.isfinite(multiply(w, a)[-1]).any()


def test_shapes_are_inferred() -> None:
    model = gemm_model(
        weights(40, 256), activations(1, 1, 256), dims={"A": ["batch", "sequence", 256]}
    )
    assert open_session(model).get_outputs()[0].shape == ["batch", "sequence", 40]


def test_the_numerics_of_quantised_weights_are_not_those_of_bfloat16_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    w, a = weights(100, 320), activations(3, 320)
    expected = multiply(w, a)
    monkeypatch.setenv("ORT_AIE_NUMERICS", "int8")
    np.testing.assert_array_equal(multiply(w, a), expected)


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"format": 99},
            "the model has format 99, but this library reads format 1; compile the model",
        ),
        (
            {"K": 512},
            r"input W must be bfloat16 \(2, 2, 8192\) for K=512 N=40, got bfloat16 \(2, 1",
        ),
        ({"N": 65}, r"input W must be bfloat16 \(3, 1, 8192\) for K=256 N=65, got bfloat16 \(2, 1"),
        ({"K": 0}, "attributes K and N must be positive, got K=0 N=40"),
    ],
)
def test_wrong_attributes_are_named(change: dict[str, int], message: str) -> None:
    with pytest.raises(Exception, match=f"aie.GEMM node 'the_node': {message}"):
        open_session(gemm_model(weights(40, 256), activations(1, 256), change=change))


def test_weights_of_another_type_are_named() -> None:
    wrong, a = np.zeros((2, 1, 8192), np.float16), activations(1, 256)
    given = {"K": 256, "N": 40, "format": _native.FORMAT}
    model = one_op_model("GEMM", {"A": a, "W": wrong}, {"Y": FLOAT32}, given, constants=["W"])
    with pytest.raises(Exception, match=r"'the_node': input W .*bfloat16.*float16"):
        open_session(model)


def test_weights_that_are_not_an_initializer_are_refused() -> None:
    with pytest.raises(Exception, match=r"'the_node': input W .*constant"):
        open_session(gemm_model(weights(40, 256), activations(1, 256), constants=()))


@pytest.mark.parametrize(
    ("a", "message"),
    [
        (np.zeros((1, 255), np.float32), r"input A must be \(\.\.\., 256\), got \(1, 255\)"),
        (np.zeros((1, 256), np.int64), "input A must be float, float16 or bfloat16, got int64"),
    ],
)
def test_wrong_activations_are_named(a: Array, message: str) -> None:
    session = open_session(gemm_model(weights(40, 256), a))
    with pytest.raises(Exception, match=f"GEMM node.*the_node.*{message}"):
        run(session, {"A": a})


@pytest.mark.parametrize("bias", [np.zeros(41, np.float32), np.zeros(40, np.float16)])
def test_a_wrong_bias_is_named(bias: Array) -> None:
    with pytest.raises(Exception, match=r"the_node.*input bias .*float \(40\)"):
        multiply(weights(40, 256), activations(1, 256), bias=bias)


def test_prompts_do_not_depend_on_the_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    w, a = weights(100, 320), activations(300, 320)
    expected = multiply(w, a)
    for chunk in ("1", "96", "250"):
        monkeypatch.setenv("ORT_AIE_PROMPT_CHUNK", chunk)
        np.testing.assert_array_equal(multiply(w, a), expected, err_msg=f"prompt_chunk={chunk}")
