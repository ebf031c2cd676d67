"""What products share: bits that do not depend on a weight's form, layouts, and runs of long work.
`test_problems.py` has their results."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ort_aie_ep.aie_kernels.build import make_design
from ort_aie_ep.aie_kernels.dequant import design as dequant
from ort_aie_ep.aie_kernels.fused_dqp import design as fused_dqp
from ort_aie_ep.aie_kernels.fused_layer.reference import widened
from ort_aie_ep.aie_kernels.gemm import design as gemm
from ort_aie_ep.aie_kernels.reference import BF16, bf16, bits, doubles, random_blocks, rounded
from ort_aie_ep.aie_kernels.short_gemm import design as short_gemm
from ort_aie_ep.aie_kernels.vector_ops import reference as vectors
from ort_aie_ep.formats import bf16_blocks
from ort_aie_ep.formats.q4nx import SHIPPING, BlockForm
from ort_aie_ep.npu.simulator.registers import core_memory_of
from ort_aie_ep.npu.simulator.session import Session
from ort_aie_ep.npu.simulator.txn import Write, decode
from ort_aie_ep.npu.terms.configuration import configure
from ort_aie_ep.npu.terms.device import device

bfloat16 = np.dtype(ml_dtypes.bfloat16)


def dequantised(name: str, form: BlockForm, w: Any, count: int) -> Any:
    """(blocks, 8192) bf16"""
    b = np.zeros((count, dequant.WEIGHTS), bfloat16)
    Session(dequant.build(device(name), form)).run("dequant", {"blocks": count}, {"w": w, "b": b})
    return b


@pytest.mark.parametrize(
    ("name", "form"), [("npu2", BlockForm(minima=False)), ("npu1", BlockForm(group=128))]
)
def test_a_form_has_the_bits_of_the_same_codes_widened(name: str, form: BlockForm) -> None:
    """Of a token's whole rows, and of their last two blocks; of a prompt's weights."""
    n, k, rng = 32 * 21, 768, np.random.default_rng(9)
    x, bias = (rng.standard_normal(size).astype(bfloat16) for size in (k, n))
    blocks = random_blocks(rng, n, k, form)
    outputs = []
    for of, w in ((form, blocks), (SHIPPING, widened(blocks, k, form).reshape(-1))):
        session = Session(fused_dqp.build(device(name), form=of))
        whole, part = np.full((2, n), np.nan, bfloat16)
        shape = {"N": n, "K": k, "bias": 1}
        session.run("matvec", shape, {"x": x, "w": w, "bias": bias, "y": whole})
        session.run(
            "matvec_part", shape | {"K": 512, "row_K": k},
            {"x": x[256:], "w": w[of.block_bytes :], "bias": bias, "y": part},
        )  # fmt: skip
        b = dequantised(name, of, w, 21 * 3).reshape(-1)
        outputs.append(np.concatenate([whole, part, b]))
    np.testing.assert_array_equal(*(each.view(np.uint16) for each in outputs))
    assert np.isfinite(outputs[0].astype(np.float32)).all()


@pytest.mark.parametrize(
    ("name", "form"), [("npu1_2col", SHIPPING), ("npu2_2col", BlockForm(group=128, minima=False))]
)
def test_every_bit_of_a_short_product_is_that_of_dequant_and_gemm(
    name: str, form: BlockForm
) -> None:
    m, k, n, rng = 100, 512, 544, np.random.default_rng(3)
    a = rng.standard_normal((m, k)).astype(bfloat16)
    blocks = random_blocks(rng, n, k, form)
    c, wanted = np.zeros((2, m, n), bfloat16)
    shape, b = {"M": m, "K": k, "N": n}, dequantised(name, form, blocks, n * k // 8192)
    Session(gemm.build(device(name))).run("gemm", shape, {"a": a, "b": b, "c": wanted})
    own = Session(short_gemm.build(device(name), form))
    own.run("project", shape, {"a": a, "w": blocks, "c": c})
    assert np.array_equal(c.view(np.uint16), wanted.view(np.uint16))


@pytest.mark.parametrize(
    ("name", "on", "sequence", "shape", "runs", "worker", "work"),
    [
        # Three bands of 512 rows. Each has N * K = 2^31 and takes about 0.2 s.
        ("gemm", "npu2", "gemm", {"M": 1500, "K": 16384, "N": 131072}, 2, "gemm3_2",
         3 * 131072 // 512),
        # 50 bands of 2^33 multiplications, about 20 ms each.
        ("short_gemm", "npu1_1col", "project", {"M": 50 * 64, "K": 16384, "N": 8192}, 3, "gemm0_2",
         50 * 8192 // 256),
    ],
)  # fmt: skip
def test_long_work_is_divided_into_runs_that_add_up(
    name: str, on: str, sequence: str, shape: dict[str, int], runs: int, worker: str, work: int
) -> None:
    design = make_design(name, device(on))
    made = Session(design).build(sequence, shape, list("awc" if name == "short_gemm" else "abc"))
    assert len(made) == runs
    plan = configure(design).workers[worker]
    tile = plan.worker.tile
    place = (tile.column, tile.row, plan.parameters + 4)
    blocks = [
        operation.value
        for words in made
        for operation in decode(words).operations
        if isinstance(operation, Write) and core_memory_of(operation.address) == place
    ]
    assert sum(blocks) == work


def test_blocks_have_an_element_of_b_where_the_layout_says() -> None:
    n, k = 64, 512
    weights = np.arange(n * k, dtype=np.float32).reshape(n, k) % 251  # exact in bf16
    packed = bf16_blocks.pack(weights).reshape(n // 32, k // 256, 4, 8, 4, 8, 8)
    for at_n, at_k in ((0, 0), (37, 300), (63, 511), (8, 64)):
        index = (
            at_n // 32, at_k // 256, at_k % 256 // 64, at_k % 64 // 8, at_n % 32 // 8, at_k % 8,
            at_n % 8,
        )  # fmt: skip
        assert float(packed[index]) == weights[at_n, at_k]


@pytest.mark.parametrize("size", [2.0**-60, 1.0, 2.0**22])
def test_a_norm_of_a_large_epsilon_is_a_product(size: float) -> None:
    """The executor multiplies this way (src/targets/npu/vectors.cc): the norm's factor is 2^-32."""
    n, padded = 576, 640
    x, weight = np.zeros(padded), np.zeros(padded)
    x[:n], weight[:n] = bf16(np.random.default_rng(1).standard_normal((2, n)))
    x *= size
    empty, y = np.zeros(0, BF16), np.full(padded, np.nan, BF16)
    buffers = {"x": x.astype(BF16), "residual": empty, "weight": (weight * 2.0**32).astype(BF16),
               "sum": empty, "y": y}  # fmt: skip
    parameters = {"n": n, "residual": 0, "eps_bits": bits(2.0**64)}
    Session(make_design("vector_ops", device("npu2"))).run("rms_norm", parameters, buffers)
    wanted = rounded(x * weight, vectors.NORM)
    assert (np.abs(doubles(y) - wanted.exact) <= wanted.tolerance).all()
