"""The dequantisation kernel, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from linear_kernels import COLUMNS, KINDS, OF_SHIPPING, ROWS, in_both_forms, weights, zeros
from standin import Array, aligned, bits16, to_bf16

from ort_aie_ep.aie_kernels.cycles import form_scalars
from ort_aie_ep.aie_kernels.dequant.kernels import Q4NX_DEQUANT, q4nx_dequant, q4nx_dequant_step
from ort_aie_ep.formats.q4nx import FORMS, BlockForm
from ort_aie_ep.npu.kernels import Kernels


@pytest.fixture(scope="module", params=["aie2", "aie2p"])
def kernels(request: pytest.FixtureRequest) -> Kernels:
    return Kernels(request.param)


def in_gemm_order(w: Array) -> Array:
    """(32 n, 256 k) as [4 k-steps of 64][8 k-blocks][4 n-blocks][8 k][8 n]."""
    ordered: Array = w.T.reshape(4, 8, 8, 4, 8).transpose(0, 1, 3, 2, 4)
    return ordered.ravel()


@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_rounded_to_nearest_in_gemm_order(kernels: Kernels, kind: str) -> None:
    rng = np.random.default_rng(1)
    for _ in range(3):
        w = weights(rng, kind, COLUMNS)
        tile = zeros(ROWS * COLUMNS)
        kernels.call(Q4NX_DEQUANT, aligned(w.blocks[0]), tile, *OF_SHIPPING)
        # min + scale * code is exact in float64; the kernel's sum is fp32.
        want = to_bf16(in_gemm_order(w.exact).astype(np.float32))
        # The kernel's zeros are +0: scale * (128 + code) - scale * 128 gives +0.
        np.testing.assert_array_equal(bits16(tile), bits16(want + to_bf16(0)))


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_form_has_the_bits_of_the_same_codes_widened(kernels: Kernels, form: BlockForm) -> None:
    """And a step is a quarter of a block."""
    blocks, wide = in_both_forms(np.random.default_rng(3), form, 2 * COLUMNS)
    for index, (block, wanted) in enumerate(zip(blocks, wide, strict=True)):
        whole, tile = zeros(ROWS * COLUMNS), zeros(ROWS * COLUMNS)
        kernels.call(Q4NX_DEQUANT, aligned(wanted), whole, *OF_SHIPPING)
        kernels.call(q4nx_dequant(form), aligned(block), tile, *form_scalars(form))
        np.testing.assert_array_equal(bits16(tile), bits16(whole))
        for step, quarter in enumerate(np.split(whole, 4)):
            tile = zeros(ROWS * COLUMNS // 4)
            kernels.call(
                q4nx_dequant_step(form), aligned(blocks), tile, index, step, *form_scalars(form)
            )
            np.testing.assert_array_equal(bits16(tile), bits16(quarter))
