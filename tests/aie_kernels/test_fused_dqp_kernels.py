"""FusedDQP's kernels, compared with the exact product of dequantised weights and activations."""

from __future__ import annotations

import numpy as np
import pytest
from linear_kernels import (
    ACTIVATIONS,
    COLUMNS,
    FLOAT_EPSILON,
    GROUP,
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
from standin import Array, aligned, bfloat16, bits16, f64, to_bf16

from ort_aie_ep.aie_kernels.cycles import form_scalars
from ort_aie_ep.aie_kernels.fused_dqp.kernels import (
    DQP_BLOCK,
    DQP_FINISH,
    DQP_LOAD_BIAS,
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


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_loading_activations_keeps_them_and_their_sums(kernels: Kernels, kind: str) -> None:
    rng = np.random.default_rng(5)
    x = activations(rng, kind, 3 * COLUMNS)
    resident, sums = load(kernels, x, first_slice=61)
    np.testing.assert_array_equal(bits16(resident[61 * COLUMNS :]), bits16(x))
    assert not resident[: 61 * COLUMNS].any()
    limbs = f64(sums).reshape(64, 8, 2)
    assert not limbs[:61].any()
    groups = f64(x).reshape(3, 8, GROUP)
    error = np.abs(limbs[61:].sum(axis=2) - groups.sum(axis=2))
    additions = 31 * FLOAT_EPSILON * np.abs(groups).sum(axis=2)
    assert (error <= additions + 2.0**-17 * np.abs(groups.sum(axis=2))).all()


@pytest.mark.parametrize("tiles", [8, 16, 32])
def test_a_tile_keeps_its_part_of_a_bias_stream(kernels: Kernels, tiles: int) -> None:
    rounds = 80 if tiles == 8 else 3
    stream = np.arange(rounds * tiles * ROWS) % 251
    stream = stream.astype(bfloat16).reshape(rounds, tiles, ROWS)
    for tile in {0, 7, tiles // 2, tiles - 1}:
        bias = zeros(2560)
        for piece, part in enumerate(stream.reshape(-1, COLUMNS)):
            kernels.call(DQP_LOAD_BIAS, aligned(part), bias, piece, tile, tiles)
        np.testing.assert_array_equal(bias[: rounds * ROWS], stream[:, tile].ravel())
        assert not bias[rounds * ROWS :].any()


@pytest.mark.parametrize("with_bias", [False, True])
def test_finish_adds_the_bias_and_rounds_once(kernels: Kernels, with_bias: bool) -> None:
    rng = np.random.default_rng(6)
    bias = aligned(to_bf16(rng.standard_normal(2560)))
    y = zeros(ROWS)
    for spread in (0.01, 1, 5, 80):
        acc = aligned((rng.standard_normal(ROWS) * spread).astype(np.float32))
        acc[:2] = 0, -0.0
        kernels.call(DQP_FINISH, acc, bias, y, 79, int(with_bias))
        x = f64(acc) + with_bias * f64(bias[79 * ROWS :])
        np.testing.assert_array_equal(y, to_bf16(x.astype(np.float32)))


@pytest.mark.parametrize("value", [1 + 2.0**-8, 1 + 3 * 2.0**-8, -1 - 2.0**-8, -1 - 3 * 2.0**-8])
def test_finish_rounds_ties_to_even(kernels: Kernels, value: float) -> None:
    acc = zeros(ROWS, np.float32)
    acc[:] = value
    y = zeros(ROWS)
    kernels.call(DQP_FINISH, acc, zeros(2560), y, 0, 0)
    np.testing.assert_array_equal(y, to_bf16(acc))
