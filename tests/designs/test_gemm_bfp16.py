"""GEMM and dequantisation in bfp16, simulated, beside those in bfloat16: the same bits."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import numpy_q4nx as q4nx
import pytest

from ort_aie_ep.aie_kernels.dequant_bfp16 import design as dequant_bfp16
from ort_aie_ep.aie_kernels.fused_layer.reference import widened
from ort_aie_ep.aie_kernels.gemm import design as gemm
from ort_aie_ep.aie_kernels.gemm.design import pack_b_bfp16
from ort_aie_ep.aie_kernels.gemm_bfp16 import design as gemm_bfp16
from ort_aie_ep.aie_kernels.reference import random_blocks
from ort_aie_ep.formats import bf16_blocks, bfp16
from ort_aie_ep.formats.q4nx import BlockForm
from ort_aie_ep.npu.simulator.machine import Result
from ort_aie_ep.npu.simulator.session import Session
from ort_aie_ep.npu.terms.design import Design
from ort_aie_ep.npu.terms.device import device


def random_operands(m: int, k: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """A (m, k) and weights (n, k), bf16; some of the largest of eight let an exponent grow."""
    rng = np.random.default_rng([m, k, n])
    a = rng.standard_normal((m, k)).astype(ml_dtypes.bfloat16)
    weights = rng.standard_normal((n, k)) * np.exp2(rng.integers(-3, 3, (n, k)))
    weights[:, ::24] = 255 / 8
    return a, weights.astype(ml_dtypes.bfloat16)


def run(design: Design, a: np.ndarray, b: np.ndarray, n: int) -> tuple[np.ndarray, Result]:
    c = np.full((a.shape[0], n), np.nan, ml_dtypes.bfloat16)
    shape = {"M": a.shape[0], "K": a.shape[1], "N": n}
    (result,) = Session(design).run("gemm", shape, {"a": a, "b": b, "c": c})
    return c, result


@pytest.mark.parametrize(
    ("name", "m", "k", "n"),
    [
        ("npu2", 65, 512, 160),
        ("npu2_4col", 257, 256, 672),  # bands moved back in both directions
        ("npu2_2col", 130, 256, 736),  # two rows of cores share a channel of B
        ("npu2_1col", 70, 512, 544),  # all four share one
    ],
)
def test_products_have_the_bits_of_gemm(name: str, m: int, k: int, n: int) -> None:
    a, weights = random_operands(m, k, n)
    on = device(name)
    narrow, fewer = run(gemm_bfp16.build(on), a, pack_b_bfp16(weights), n)
    wide, more = run(gemm.build(on), a, bf16_blocks.pack(weights), n)
    assert np.isfinite(wide.astype(np.float32)).all()
    assert narrow.tobytes() == wide.tobytes()
    assert fewer.written == more.written
    assert fewer.read < more.read


def test_b_is_read_as_nine_bytes_for_eight_values_as_often_as_equation_5_of_paper_2_says() -> None:
    m, k, n = 2 * 64, 256, 3 * 512
    a, weights = random_operands(m, k, n)
    packed = pack_b_bfp16(weights)
    _, result = run(gemm_bfp16.build(device("npu2_1col")), a, packed, n)
    # Megatiles of 64 x 512: A is read once per column of them, B once per row.
    assert packed.nbytes == n * k * 9 // 8
    assert result.read == 3 * a.nbytes + 2 * packed.nbytes
    assert result.written == m * n * 2


@pytest.mark.parametrize(
    ("name", "form"),
    [("npu2", BlockForm()), ("npu2_2col", BlockForm(minima=False)),
     ("npu2_1col", BlockForm(group=128))],
)  # fmt: skip
def test_dequantised_blocks_are_the_packed_bf16_weights(name: str, form: BlockForm) -> None:
    n, k = 160, 512  # 10 blocks: an object moved back
    blocks = random_blocks(np.random.default_rng(4), n, k, form)
    count = blocks.size // form.block_bytes
    out = np.zeros((count, 9216), np.uint8)
    design = dequant_bfp16.build(device(name), form)
    (result,) = Session(design).run("dequant", {"blocks": count}, {"w": blocks, "b": out})
    wide = blocks if form == BlockForm() else widened(blocks, k, form)
    wide = wide.reshape(n // 32, k // 256, -1)
    expected = pack_b_bfp16(q4nx.dequantize(wide, n, k).astype(ml_dtypes.bfloat16))
    assert out.tobytes() == expected.tobytes()
    assert result.written >= out.nbytes


def test_packed_weights_are_where_the_layout_says() -> None:
    n, k = 64, 512
    rng = np.random.default_rng(5)
    weights = rng.standard_normal((n, k)).astype(ml_dtypes.bfloat16)
    packed = pack_b_bfp16(weights).reshape(n // 32, k // 256, 4, 2, 8, 2, 8, 9)
    for at_n, at_k in ((0, 0), (37, 304), (63, 504), (8, 64), (21, 248)):
        block = packed[
            at_n // 32, at_k // 256, at_k % 256 // 64, at_n % 32 // 16, at_k % 64 // 8,
            at_n % 16 // 8, at_n % 8,
        ]  # fmt: skip
        expected = bfp16.encode(weights[at_n, at_k : at_k + 8])
        assert block.tobytes() == expected.tobytes()
