"""Short GEMM, simulated, compared with numpy and with `dequant` followed by `gemm`."""

from __future__ import annotations

import judged
import ml_dtypes
import numpy as np
import pytest

from ort_aie_ep.aie_kernels.dequant import design as dequant
from ort_aie_ep.aie_kernels.gemm import design as gemm
from ort_aie_ep.aie_kernels.reference import Context, random_blocks
from ort_aie_ep.aie_kernels.short_gemm import design as short_gemm
from ort_aie_ep.aie_kernels.short_gemm.reference import problem
from ort_aie_ep.formats import q4nx
from ort_aie_ep.formats.q4nx import SHIPPING, BlockForm
from ort_aie_ep.npu.simulator.machine import Result
from ort_aie_ep.npu.simulator.registers import core_memory_of
from ort_aie_ep.npu.simulator.session import Session
from ort_aie_ep.npu.simulator.txn import Write, decode
from ort_aie_ep.npu.terms.configuration import configure
from ort_aie_ep.npu.terms.device import device


def random_operands(m: int, k: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """A (m, k) bf16 and Q4NX blocks of weights (n, k)."""
    rng = np.random.default_rng([m, k, n])
    blocks = q4nx.quantize(rng.standard_normal((n, k)).astype(np.float32))
    return rng.standard_normal((m, k)).astype(ml_dtypes.bfloat16), blocks


def run(
    session: Session, m: int, a: np.ndarray, w: np.ndarray, n: int
) -> tuple[np.ndarray, Result]:
    c = np.full((a.shape[0], n), np.nan, ml_dtypes.bfloat16)
    shape = {"M": m, "K": a.shape[1], "N": n}
    (result,) = session.run("project", shape, {"a": a, "w": w, "c": c})
    return c, result


@pytest.mark.parametrize(
    ("name", "m", "k", "n"),
    [
        ("npu2_2col", 64, 512, 512),
        ("npu2_2col", 65, 256, 544),  # bands moved back in both directions
        ("npu2_4col", 70, 256, 288),  # most columns repeat the last
        ("npu1", 64, 256, 1088),
        ("npu1_1col", 128, 512, 256),
    ],
)
def test_product_matches_numpy(name: str, m: int, k: int, n: int) -> None:
    design = short_gemm.build(device(name))
    context = Context.of(design, "project")
    judged.run(Session(design), problem(context, {"M": m, "K": k, "N": n}))


@pytest.mark.parametrize("m", [1, 7, 63])
def test_fewer_rows_need_buffers_of_64_rows_and_no_zeros(m: int) -> None:
    a, blocks = random_operands(64, 256, 256)
    session = Session(short_gemm.build(device("npu2_1col")))
    whole, _ = run(session, 64, a, blocks, 256)
    a[m:] = 3.0  # arbitrary earlier contents
    c, _ = run(session, m, a, blocks, 256)
    assert np.array_equal(c[:m], whole[:m])


@pytest.mark.parametrize(
    ("name", "form"), [("npu1_2col", SHIPPING), ("npu2_2col", BlockForm(group=128, minima=False))]
)
def test_every_bit_is_that_of_dequant_and_gemm(name: str, form: BlockForm) -> None:
    m, k, n = 100, 512, 544
    a, _ = random_operands(m, k, n)
    blocks = random_blocks(np.random.default_rng(3), n, k, form)
    b = np.zeros(n * k, ml_dtypes.bfloat16)
    Session(dequant.build(device(name), form)).run(
        "dequant", {"blocks": n * k // 8192}, {"w": blocks, "b": b}
    )
    wanted = np.zeros((m, n), ml_dtypes.bfloat16)
    Session(gemm.build(device(name))).run(
        "gemm", {"M": m, "K": k, "N": n}, {"a": a, "b": b, "c": wanted}
    )
    c, _ = run(Session(short_gemm.build(device(name), form)), m, a, blocks, n)
    assert np.array_equal(c.view(np.uint16), wanted.view(np.uint16))


def test_weights_are_read_once_for_each_band_of_rows() -> None:
    m, k, n = 128, 256, 2 * 512
    a, blocks = random_operands(m, k, n)
    _, result = run(Session(short_gemm.build(device("npu2_2col"))), m, a, blocks, n)
    assert result.read == 2 * blocks.nbytes + 2 * a.nbytes  # A once for each pass of 512 columns
    assert result.written == m * n * 2


def test_long_work_is_divided_into_runs_that_add_up() -> None:
    design = short_gemm.build(device("npu1_1col"))
    shape = {
        "M": 50 * 64,
        "K": 16384,
        "N": 8192,
    }  # 50 bands of 2^33 multiplications, about 20 ms each
    runs = Session(design).build("project", shape, ["a", "w", "c"])
    assert len(runs) == 3
    plan = configure(design).workers["gemm0_2"]
    blocks = [
        operation.value
        for words in runs
        for operation in decode(words).operations
        if isinstance(operation, Write)
        and core_memory_of(operation.address) == (0, 4, plan.parameters + 4)
    ]
    assert sum(blocks) == 50 * 8192 // 256
