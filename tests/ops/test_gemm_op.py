"""Weights in bfloat16: blocks, and products in every instruction set. test_q4nx_matmul.py has the
ops."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from bf16_weights import unpack
from op_models import one_op_model, open_session, run
from projection_calls import Array, activations, assert_within

from ort_aie_ep import _native
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
    np.testing.assert_array_equal(unpack(blocks, n, k), w.astype(ml_dtypes.bfloat16))
    rows, cols, _ = blocks.shape
    whole = unpack(blocks, rows * 32, cols * 256)
    assert not whole[n:].any()
    assert not whole[:, k:].any()


@pytest.mark.parametrize("shape", [(0, 32), (32,), (2, 3, 4)])
def test_only_matrices_are_packed(shape: tuple[int, ...]) -> None:
    with pytest.raises(AieError, match=r"weights .*\(N, K\)"):
        bf16_blocks.pack(np.zeros(shape))


# --- products -------------------------------------------------------------------------------------


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("rows", [1, 2, 3, 13, 40, 97, 200])
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_every_instruction_set_computes_the_product(isa: str, rows: int, n: int, k: int) -> None:
    w, a = weights(n, k), activations(rows, k)
    y = _native.project(a, bf16_blocks.pack(w).view(np.uint8), n, "bf16", isa)
    expected, bound = product(w, a)
    assert_within(y, expected, bound)


def test_a_session_survives_runs_of_changing_sizes_and_any_number_of_threads() -> None:
    w = weights(200, 700)
    sessions = [open_session(gemm_model(w, activations(1, 700)), threads=n) for n in (1, 2)]
    for rows in (1, 70, 2, 1100, 1):
        a = activations(rows, 700)
        first, second = (run(session, {"A": a}, misaligned=True)["Y"] for session in sessions)
        np.testing.assert_array_equal(first, second)
        expected, bound = product(w, a)
        assert_within(first, expected, bound)


def test_the_numerics_of_quantised_weights_are_not_those_of_bfloat16_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    w, a = weights(100, 320), activations(3, 320)
    expected = multiply(w, a)
    monkeypatch.setenv("ORT_AIE_NUMERICS", "int8")
    np.testing.assert_array_equal(multiply(w, a), expected)


# --- errors ---------------------------------------------------------------------------------------


def test_prompts_do_not_depend_on_the_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    w, a = weights(100, 320), activations(300, 320)
    expected = multiply(w, a)
    for chunk in ("1", "96", "250"):
        monkeypatch.setenv("ORT_AIE_PROMPT_CHUNK", chunk)
        np.testing.assert_array_equal(multiply(w, a), expected, err_msg=f"prompt_chunk={chunk}")
