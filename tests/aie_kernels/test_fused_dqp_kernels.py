"""FusedDQP's kernels, compared with the exact product of dequantised weights and activations."""

from __future__ import annotations

import numpy as np
import pytest
from linear_kernels import (
    ACTIVATIONS,
    COLUMNS,
    KINDS,
    MAX_K,
    OF_SHIPPING,
    ROWS,
    Weights,
    activations,
    bound,
    in_both_forms,
    weights,
    zeros,
)
from standin import Array, aligned, f64, to_bf16

from ort_aie_ep.aie_kernels.cycles import form_scalars
from ort_aie_ep.aie_kernels.fused_dqp.kernels import (
    DQP_BLOCK,
    DQP_FINISH,
    DQP_LOAD_X,
    DQP_ZERO,
    dqp_block,
)
from ort_aie_ep.formats.q4nx import FORMS, BlockForm
from ort_aie_ep.npu.kernels import Kernels


@pytest.fixture(scope="module", params=["aie2", "aie2p"])
def kernels(request: pytest.FixtureRequest) -> Kernels:
    return Kernels(request.param)


def load(kernels: Kernels, x: Array, first_slice: int = 0) -> tuple[Array, Array]:
    """Resident activations and their sums, after x was sent in slices."""
    kept = (zeros(MAX_K), zeros(1024))
    for i, part in enumerate(x.reshape(-1, COLUMNS)):
        kernels.call(DQP_LOAD_X, aligned(part), *kept, first_slice + i)
    return kept


def product(kernels: Kernels, w: Weights, x: Array) -> Array:
    kept = load(kernels, x)
    acc = zeros(ROWS, np.float32)
    acc[:] = np.nan
    kernels.call(DQP_ZERO, acc)
    for k_block, block in enumerate(w.blocks):
        kernels.call(DQP_BLOCK, aligned(block), *kept, acc, k_block, *OF_SHIPPING)
    return acc


@pytest.mark.parametrize("x_kind", ACTIVATIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_blocks_accumulate_the_product(kernels: Kernels, kind: str, x_kind: str) -> None:
    for k in (256, 1280):  # one block, and five
        rng = np.random.default_rng(1)
        w, x = weights(rng, kind, k), activations(rng, x_kind, k)
        error = np.abs(f64(product(kernels, w, x)) - w.exact @ f64(x))
        assert (error <= bound(w, x)).all(), k


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_form_has_the_bits_of_the_same_codes_widened(kernels: Kernels, form: BlockForm) -> None:
    rng = np.random.default_rng(8)
    kept = load(kernels, activations(rng, "biased", 2 * COLUMNS))
    acc, wanted = zeros(ROWS, np.float32), zeros(ROWS, np.float32)
    for k_block, (block, wide) in enumerate(
        zip(*in_both_forms(rng, form, 2 * COLUMNS), strict=True)
    ):
        kernels.call(
            dqp_block(form), aligned(block), *kept, acc, k_block, *form_scalars(form)
        )  # fmt: skip
        kernels.call(DQP_BLOCK, aligned(wide), *kept, wanted, k_block, *OF_SHIPPING)
    np.testing.assert_array_equal(acc.view(np.uint32), wanted.view(np.uint32))
    assert acc[1:].all()


@pytest.mark.parametrize("value", [1 + 2.0**-8, 1 + 3 * 2.0**-8, -1 - 2.0**-8, -1 - 3 * 2.0**-8])
def test_finish_rounds_ties_to_even(kernels: Kernels, value: float) -> None:
    acc = zeros(ROWS, np.float32)
    acc[:] = value
    y = zeros(ROWS)
    kernels.call(DQP_FINISH, acc, zeros(2560), y, 0, 0)
    np.testing.assert_array_equal(y, to_bf16(acc))
