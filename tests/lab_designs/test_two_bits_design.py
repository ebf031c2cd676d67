"""FusedDQP for weights of two bits: its kernels, the design in the simulator, its time."""

from __future__ import annotations

import shutil

import ml_dtypes
import numpy as np
import pytest
from designs.fused_dqp_two_bits import design as two_bits
from designs.fused_dqp_two_bits.kernels import DQP_BLOCK_TWO_BITS, DQP_LOAD_X_TWO_BITS
from designs.fused_dqp_two_bits.library import kernels as compiled
from judged import run
from linear_kernels import (
    ACTIVATIONS,
    COLUMNS,
    FLOAT_EPSILON,
    GROUP,
    KINDS,
    MAX_K,
    ROWS,
    activations,
    bound,
    weights,
    zeros,
)
from standin import Array, aligned, bits16, f64, to_bf16
from time_only import TimeOnly

from ort_aie_ep.aie_kernels.fused_dqp import design as four_bits
from ort_aie_ep.aie_kernels.fused_dqp.kernels import DQP_LOAD_X, DQP_ZERO
from ort_aie_ep.aie_kernels.fused_dqp.reference import problem
from ort_aie_ep.aie_kernels.reference import Context
from ort_aie_ep.npu.checks.check import check
from ort_aie_ep.npu.kernels import Kernels
from ort_aie_ep.npu.simulator.session import Session
from ort_aie_ep.npu.terms.device import device

pytestmark = pytest.mark.in_turn  # nothing that ships uses these designs

bfloat16 = np.dtype(ml_dtypes.bfloat16)


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Kernels]:
    if not shutil.which("c++"):
        pytest.skip("the kernels of this design are compiled with c++")
    folder = tmp_path_factory.mktemp("two_bits")
    return {architecture: compiled(architecture, folder) for architecture in ("aie2", "aie2p")}


@pytest.fixture(params=["aie2", "aie2p"])
def kernels(request: pytest.FixtureRequest, libraries: dict[str, Kernels]) -> Kernels:
    return libraries[request.param]


def load(kernels: Kernels, x: Array, first_slice: int = 0) -> tuple[Array, Array, Array]:
    """Resident activations, their sums and offsets, after x was sent in slices."""
    kept = zeros(MAX_K), zeros(1024), zeros(512, np.float32)
    for i, part in enumerate(x.reshape(-1, COLUMNS)):
        kernels.call(DQP_LOAD_X_TWO_BITS, aligned(part), *kept, first_slice + i)
    return kept


def product(kernels: Kernels, blocks: Array, x: Array) -> Array:
    kept, acc = load(kernels, x), zeros(ROWS, np.float32)
    acc[:] = np.nan
    kernels.call(DQP_ZERO, acc)
    for k_block, block in enumerate(blocks):
        kernels.call(DQP_BLOCK_TWO_BITS, aligned(block), *kept, acc, k_block)
    return acc


@pytest.mark.parametrize("x_kind", ACTIVATIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_blocks_accumulate_the_product(kernels: Kernels, kind: str, x_kind: str) -> None:
    for k in (256, 1280):  # one block, and five
        rng = np.random.default_rng(1)
        w, x = weights(rng, kind, k, 2), activations(rng, x_kind, k)
        error = np.abs(f64(product(kernels, w.blocks, x)) - w.exact @ f64(x))
        assert (error <= bound(w, x)).all(), k


def test_they_err_less_than_bf16_weights(kernels: Kernels) -> None:
    rng = np.random.default_rng(2)
    k = 4096
    w, x = weights(rng, "usual", k, 2), activations(rng, "usual", k)
    exact = w.exact @ f64(x)
    rounded = f64(to_bf16(w.exact)) @ f64(x)
    error = np.sqrt(np.mean((f64(product(kernels, w.blocks, x)) - exact) ** 2))
    assert error < np.sqrt(np.mean((rounded - exact) ** 2)) / 20


def test_activations_are_kept_by_place_in_their_nibble(kernels: Kernels) -> None:
    rng = np.random.default_rng(7)
    x = activations(rng, "usual", 2 * COLUMNS)
    resident, sums, offsets = load(kernels, x, first_slice=62)
    scaled = f64(x) * 2.0 ** -(np.arange(len(x)) % 4)
    np.testing.assert_array_equal(f64(resident[62 * COLUMNS :]), scaled)  # exact
    groups = scaled.reshape(-1, GROUP)
    error = np.abs(f64(offsets[62 * 8 :]) + 128 * groups.sum(axis=1))
    assert (error <= 32 * 128 * FLOAT_EPSILON * np.abs(groups).sum(axis=1)).all()
    kept = zeros(MAX_K), zeros(1024)
    for i, part in enumerate(x.reshape(-1, COLUMNS)):
        kernels.call(DQP_LOAD_X, aligned(part), *kept, 62 + i)
    np.testing.assert_array_equal(bits16(sums), bits16(kept[1]))
    assert not resident[: 62 * COLUMNS].any()
    assert not offsets[: 62 * 8].any()


@pytest.mark.parametrize(("name", "columns"), [("npu2", 4), ("npu2", 8), ("npu1", 4)])
def test_result_is_that_of_the_reference(
    name: str, columns: int, libraries: dict[str, Kernels]
) -> None:
    design = two_bits.build(device(name), columns)
    session = Session(design, kernels=libraries[design.device.architecture])
    for n, k, bias, activation in [
        (128, 256, 0, 0), (1024, 512, 1, 0), (32 * (4 * columns + 5), 768, 1, 1)
    ]:  # fmt: skip
        shape = {"N": n, "K": k, "bias": bias, "activation": activation}
        run(session, problem(Context.of(design, "matvec_two_bits"), shape, bits=2))


@pytest.mark.parametrize("columns", [4, 8])
def test_it_reads_three_fifths_of_the_bytes(columns: int) -> None:
    n = k = 2048
    shape = {"N": n, "K": k, "bias": 0, "activation": 0}
    design = two_bits.build(device("npu2"), columns)
    (two,) = TimeOnly(design).time("matvec_two_bits", shape)
    (four,) = TimeOnly(four_bits.build(device("npu2"), columns)).time("matvec", shape)
    assert (two.read, four.read) == (n * k * 3 // 8 + 2 * k, n * k * 5 // 8 + 2 * k)
    if columns == 8:
        assert two.seconds < 0.8 * four.seconds


@pytest.mark.parametrize("name", ["npu1", "npu2"])
def test_devices_hold_it(name: str) -> None:
    check(two_bits.build(device(name)))
