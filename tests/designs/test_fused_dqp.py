"""The FusedDQP design in the simulator, from instruction words to outputs."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from judged import run

from ort_aie_ep.aie_kernels.fused_dqp import design as fused_dqp
from ort_aie_ep.aie_kernels.fused_dqp.reference import matvec, problem
from ort_aie_ep.aie_kernels.fused_layer.reference import widened
from ort_aie_ep.aie_kernels.reference import Context, random_blocks
from ort_aie_ep.formats import q4nx
from ort_aie_ep.formats.q4nx import SHIPPING, BlockForm
from ort_aie_ep.npu.simulator.machine import Result
from ort_aie_ep.npu.simulator.session import Session
from ort_aie_ep.npu.terms.device import device

bfloat16 = np.dtype(ml_dtypes.bfloat16)


def multiply(session: Session, n: int, k: int, *, bias: int = 0) -> Result:
    shape = {"N": n, "K": k, "bias": bias}
    return run(session, problem(Context.of(session.design, "matvec"), shape))


@pytest.mark.parametrize("name", ["npu2", "npu1"])
def test_parts_of_long_rows_add_up(name: str) -> None:
    """3 blocks of columns in parts of 1 and 2; the second part takes the first one's result as its
    bias."""
    session, n, k, first = Session(fused_dqp.build(device(name))), 32 * 21, 768, 256
    whole_shape = {"N": n, "K": k, "bias": 1}
    buffers = problem(Context.of(session.design, "matvec"), whole_shape).buffers
    weights = q4nx.dequantize(buffers["w"], n, k).astype(np.float64)
    x = buffers["x"].astype(np.float64)
    w = buffers["w"].reshape(n // 32, k // 256, -1)
    before, tolerance = buffers["bias"], np.zeros(n)
    for begin, end in ((0, first), (first, k)):
        part = {
            "x": buffers["x"][begin:end],
            "w": w.reshape(-1)[begin // 256 * w.shape[2] :],
            "bias": before,
            "y": np.full(n, np.nan, dtype=bfloat16),
        }
        shape = {"N": n, "K": end - begin, "row_K": k, "bias": 1}
        session.run("matvec_part", shape, part)
        added = before.astype(np.float64)
        wanted = matvec(weights[:, begin:end], x[begin:end], added)
        assert np.all(np.abs(part["y"].astype(np.float64) - wanted.exact) <= wanted.tolerance)
        before, tolerance = part["y"], tolerance + wanted.tolerance
    whole = matvec(weights, x, buffers["bias"].astype(np.float64))
    assert np.all(np.abs(before.astype(np.float64) - whole.exact) <= tolerance)


@pytest.mark.parametrize(
    ("name", "columns"),
    [("npu2", 4), ("npu2", 8), ("npu2_1col", 1), ("npu2_4col", 4), ("npu1", 4), ("npu1_2col", 1)],
)
def test_result_is_that_of_the_reference(name: str, columns: int) -> None:
    session = Session(fused_dqp.build(device(name), columns))
    for n, k in [(128, 256), (1024, 512), (32 * (4 * columns + 5), 768)]:
        multiply(session, n, k)


@pytest.mark.parametrize("columns", [1, 3, 4])
@pytest.mark.parametrize("n", [128, 160, 384, 480, 512, 544, 1056])
def test_rows_and_biases_that_do_not_fill_a_round(n: int, columns: int) -> None:
    multiply(Session(fused_dqp.build(device("npu2"), columns)), n, 256, bias=1)


def test_one_configuration_serves_every_shape() -> None:
    session = Session(fused_dqp.build(device("npu2"), 4))
    for n, k, bias in [(512, 256, 0), (1184, 1024, 1), (128, 2048, 1)]:
        multiply(session, n, k, bias=bias)


def test_weights_are_read_once() -> None:
    session = Session(fused_dqp.build(device("npu2"), 4))
    result = multiply(session, 2048, 2048)
    assert result.read == 2048 * 2048 * 5 // 8 + 2 * 2048
    assert result.written == 2 * 2048


@pytest.mark.parametrize(
    ("name", "form"), [("npu2", BlockForm(minima=False)), ("npu1", BlockForm(group=128))]
)
def test_a_form_has_the_bits_of_the_same_codes_widened(name: str, form: BlockForm) -> None:
    """Of whole rows, and of their last two blocks."""
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
        outputs.append([whole.view(np.uint16), part.view(np.uint16)])
    np.testing.assert_array_equal(*outputs)
    assert np.isfinite(outputs[0][0].view(bfloat16).astype(np.float32)).all()
