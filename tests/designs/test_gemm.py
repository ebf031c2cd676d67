"""GEMM, simulated, compared with numpy."""

from __future__ import annotations

from functools import cache

import ml_dtypes
import numpy as np
import pytest

from ort_aie_ep.aie_kernels.dequant import design as dequant
from ort_aie_ep.aie_kernels.gemm import design as gemm
from ort_aie_ep.aie_kernels.gemm.design import pack_b
from ort_aie_ep.aie_kernels.gemm.reference import product
from ort_aie_ep.formats import q4nx
from ort_aie_ep.npu.simulator.machine import Result
from ort_aie_ep.npu.simulator.registers import core_memory_of
from ort_aie_ep.npu.simulator.session import Session
from ort_aie_ep.npu.simulator.txn import Write, decode
from ort_aie_ep.npu.terms.configuration import configure
from ort_aie_ep.npu.terms.device import device
from ort_aie_ep.npu.terms.errors import DesignError


def check_product(c: np.ndarray, a: np.ndarray, weights: np.ndarray, architecture: str) -> None:
    """Compares C with A (M, K) and weights (N, K)."""
    wanted = product(a.astype(np.float64), weights.astype(np.float64), architecture)
    error = np.abs(c.astype(np.float64) - wanted.exact)
    assert (error <= wanted.tolerance).all(), f"worst {np.max(error / wanted.tolerance)} of it"


def random_operands(m: int, k: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """A (m, k) and weights (n, k), bf16."""
    rng = np.random.default_rng([m, k, n])
    a = rng.standard_normal((m, k)).astype(ml_dtypes.bfloat16)
    return a, rng.standard_normal((n, k)).astype(ml_dtypes.bfloat16)


@cache
def session_of(name: str) -> Session:
    """One array for all products, which leave it as they found it."""
    return Session(gemm.build(device(name)))


def run(
    session: Session, m: int, a: np.ndarray, b: np.ndarray, n: int
) -> tuple[np.ndarray, Result]:
    """C (rows of a, n); `b` is packed."""
    c = np.full((a.shape[0], n), np.nan, ml_dtypes.bfloat16)
    shape = {"M": m, "K": a.shape[1], "N": n}
    (result,) = session.run("gemm", shape, {"a": a, "b": b, "c": c})
    return c, result


@pytest.mark.parametrize(
    ("name", "m", "k", "n"),
    [
        ("npu2", 512, 256, 512),  # one megatile
        # Bands moved back in both directions, as on fewer columns below.
        pytest.param("npu2", 520, 256, 544, marks=pytest.mark.in_turn),
        ("npu2", 65, 256, 128),  # all columns with the rows of two bands, all rows with one
        ("npu2", 130, 512, 288),
        pytest.param("npu1", 300, 512, 352, marks=pytest.mark.in_turn),
        ("npu1", 256, 256, 544),
        ("npu2_4col", 257, 256, 672),
        ("npu2_2col", 130, 256, 736),  # two rows of cores share a channel of B
        ("npu1_2col", 64, 256, 256),
        ("npu2_1col", 70, 512, 544),  # all four share one
        ("npu1_1col", 129, 256, 544),
    ],
)
def test_product_matches_numpy(name: str, m: int, k: int, n: int) -> None:
    a, weights = random_operands(m, k, n)
    c, _ = run(session_of(name), m, a, pack_b(weights), n)
    check_product(c, a, weights, device(name).architecture)


@pytest.mark.parametrize("m", [1, 7, 63])
def test_short_prompts_need_buffers_of_64_rows_and_no_zeros(m: int) -> None:
    a, weights = random_operands(64, 256, 160)
    a[m:] = 3.0  # arbitrary earlier contents
    c, _ = run(session_of("npu1"), m, a, pack_b(weights), 160)
    check_product(c[:m], a[:m], weights, "aie2")


@pytest.mark.in_turn
def test_more_megatiles_than_a_descriptor_iterates_over() -> None:
    n = 66 * 512 + 32  # 66 megatiles and a partial one, on one column
    a, weights = random_operands(64, 256, n)
    c, _ = run(session_of("npu1_1col"), 64, a, pack_b(weights), n)
    check_product(c, a, weights, "aie2")


def test_more_bands_of_rows_than_the_queues_of_the_shim_hold() -> None:
    m = 9 * 64 + 5
    a, weights = random_operands(m, 256, 544)  # a whole megatile and a partial one for each band
    c, _ = run(session_of("npu1_1col"), m, a, pack_b(weights), 544)
    check_product(c, a, weights, "aie2")


def test_more_slabs_of_k_than_a_descriptor_iterates_over() -> None:
    k = 65 * 128 + 128  # 66 of 128 rows of B
    a, weights = random_operands(64, k, 512)
    c, _ = run(session_of("npu1_1col"), 64, a, pack_b(weights), 512)
    check_product(c, a, weights, "aie2")


def test_quantised_weights_go_through_dequant_into_gemm() -> None:
    m, k, n = 100, 512, 288
    rng = np.random.default_rng(4)
    blocks = q4nx.quantize(rng.standard_normal((n, k)).astype(np.float32))
    a = rng.standard_normal((m, k)).astype(ml_dtypes.bfloat16)
    b = np.zeros(n * k, ml_dtypes.bfloat16)
    Session(dequant.build(device("npu2"))).run(
        "dequant", {"blocks": n * k // 8192}, {"w": blocks, "b": b}
    )
    c, _ = run(session_of("npu2"), m, a, b, n)
    weights = q4nx.dequantize(blocks, n, k).astype(ml_dtypes.bfloat16)
    check_product(c, a, weights, "aie2p")


def test_memory_is_read_as_often_as_equation_5_of_paper_2_says() -> None:
    m, k, n = 2 * 256, 256, 3 * 512
    a, weights = random_operands(m, k, n)
    _, result = run(session_of("npu1"), m, a, pack_b(weights), n)
    # Megatiles of 256 x 512: A is read once per column of them, B once per row.
    assert result.read == 3 * a.nbytes + 2 * weights.nbytes
    assert result.written == m * n * 2


def test_long_products_are_divided_into_runs_that_add_up() -> None:
    session = session_of("npu2")
    # Three bands of 512 rows. Each has N * K = 2^31 and takes about 0.2 s.
    runs = session.build("gemm", {"M": 1500, "K": 16384, "N": 131072}, ["a", "b", "c"])
    assert len(runs) == 2
    plan = configure(session.design).workers["gemm3_2"]
    blocks = [
        operation.value
        for words in runs
        for operation in decode(words).operations
        if isinstance(operation, Write)
        and core_memory_of(operation.address) == (3, 4, plan.parameters + 4)
    ]
    assert blocks == [131072 // 512] * 3


@pytest.mark.parametrize("shape", [(40, 256), (32, 128)])
def test_pack_b_refuses_partial_blocks(shape: tuple[int, int]) -> None:
    with pytest.raises(DesignError, match=r"N .*32 .*K .*256"):
        pack_b(np.zeros(shape, np.float32))


def test_pack_b_puts_an_element_where_the_layout_says() -> None:
    n, k = 64, 512
    weights = np.arange(n * k, dtype=np.float32).reshape(n, k) % 251  # exact in bf16
    packed = pack_b(weights)
    for at_n, at_k in ((0, 0), (37, 300), (63, 511), (8, 64)):
        index = (
            at_n // 32, at_k // 256, at_k % 256 // 64, at_k % 64 // 8, at_n % 32 // 8, at_k % 8,
            at_n % 8,
        )  # fmt: skip
        assert float(packed[index]) == weights[at_n, at_k]
