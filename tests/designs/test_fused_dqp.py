"""The FusedDQP design in the simulator, from instruction words to outputs."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from ort_aie_ep.aie_kernels.fused_dqp import design as fused_dqp
from ort_aie_ep.aie_kernels.fused_dqp_two_bits import design as fused_dqp_two_bits
from ort_aie_ep.bringup.layer_reference import random_blocks, widened
from ort_aie_ep.bringup.references import matvec
from ort_aie_ep.formats import q4nx
from ort_aie_ep.formats.q4nx import SHIPPING, BlockForm
from ort_aie_ep.npu.simulator.session import Session
from ort_aie_ep.npu.vocabulary.device import device
from ort_aie_ep.npu.vocabulary.errors import DesignError

bfloat16 = np.dtype(ml_dtypes.bfloat16)


def problem(n: int, k: int, seed: int = 0, bits: int = 4) -> dict[str, npt.NDArray[np.generic]]:
    """Random buffers of `matvec`, and float64 weights under "weights"."""
    rng = np.random.default_rng([seed, n, k])
    codes = rng.integers(0, 1 << bits, (n, k), dtype=np.uint8)
    scales = (rng.uniform(0.5, 1.5, (n, k // 32)) * 0.02).astype(bfloat16)
    mins = (
        -(1 << bits) / 2 * scales.astype(np.float32) * rng.uniform(0.8, 1.2, scales.shape)
    ).astype(bfloat16)
    weights = codes * np.repeat(scales.astype(np.float64), 32, 1)
    weights += np.repeat(mins.astype(np.float64), 32, 1)
    return {
        "x": rng.standard_normal(k).astype(bfloat16),
        "w": q4nx.pack(codes, scales, mins, bits),
        "bias": rng.standard_normal(n).astype(bfloat16),
        "y": np.full(n, np.nan, dtype=bfloat16),
        "weights": weights,
    }


def run(
    session: Session,
    n: int,
    k: int,
    *,
    bias: int = 0,
    activation: int = 0,
    seed: int = 0,
    bits: int = 4,
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """(simulated, reference, bound of the error), each (n,)."""
    buffers = problem(n, k, seed, bits)
    weights = buffers.pop("weights")
    x = buffers["x"].astype(np.float64)
    session.run(
        "matvec_two_bits" if bits == 2 else "matvec",
        {"N": n, "K": k, "bias": bias, "activation": activation},
        buffers,
    )
    added = bias * buffers["bias"].astype(np.float64)
    wanted = matvec(weights, x, added, activation)
    return buffers["y"].astype(np.float64), wanted.exact, wanted.tolerance


@pytest.mark.parametrize("name", ["npu2", "npu1"])
def test_parts_of_long_rows_add_up(name: str) -> None:
    """3 blocks of columns in parts of 1 and 2; the second part takes the first one's result as its
    bias."""
    session, n, k, first = Session(fused_dqp.build(device(name))), 32 * 21, 768, 256
    buffers = problem(n, k)
    weights, x = buffers["weights"], buffers["x"].astype(np.float64)
    w = buffers["w"].reshape(n // 32, k // 256, -1)
    before, tolerance = buffers["bias"], np.zeros(n)
    for begin, end in ((0, first), (first, k)):
        part = {
            "x": buffers["x"][begin:end],
            "w": w.reshape(-1)[begin // 256 * w.shape[2] :],
            "bias": before,
            "y": np.full(n, np.nan, dtype=bfloat16),
        }
        shape = {"N": n, "K": end - begin, "row_K": k, "bias": 1, "activation": 0}
        session.run("matvec_part", shape, part)
        added = before.astype(np.float64)
        wanted = matvec(weights[:, begin:end], x[begin:end], added, 0)
        assert np.all(np.abs(part["y"].astype(np.float64) - wanted.exact) <= wanted.tolerance)
        before, tolerance = part["y"], tolerance + wanted.tolerance
    whole = matvec(weights, x, buffers["bias"].astype(np.float64), 0)
    assert np.all(np.abs(before.astype(np.float64) - whole.exact) <= tolerance)


@pytest.mark.parametrize(
    ("name", "columns"),
    [("npu2", 4), ("npu2", 8), ("npu2_1col", 1), ("npu2_4col", 4), ("npu1", 4), ("npu1_2col", 1)],
)
def test_result_is_that_of_the_reference(name: str, columns: int) -> None:
    session = Session(fused_dqp.build(device(name), columns))
    for n, k in [(128, 256), (1024, 512), (32 * (4 * columns + 5), 768)]:
        got, exact, bound = run(session, n, k)
        assert np.all(np.abs(got - exact) <= bound), (n, k)


@pytest.mark.parametrize("columns", [1, 3, 4])
@pytest.mark.parametrize("n", [128, 160, 384, 480, 512, 544, 1056])
def test_rows_and_biases_that_do_not_fill_a_round(n: int, columns: int) -> None:
    got, exact, bound = run(Session(fused_dqp.build(device("npu2"), columns)), n, 256, bias=1)
    assert np.all(np.abs(got - exact) <= bound)


def test_one_configuration_serves_every_shape_and_epilogue() -> None:
    session = Session(fused_dqp.build(device("npu2"), 4))
    for n, k, bias, activation in [(512, 256, 0, 0), (1184, 1024, 1, 1), (128, 2048, 1, 0)]:
        got, exact, bound = run(session, n, k, bias=bias, activation=activation)
        assert np.all(np.abs(got - exact) <= bound)


def test_time_is_that_of_the_weight_channels() -> None:
    """Eight channels of 4 bytes per cycle are below the memory's limit, so the streams set the
    time."""
    session = Session(fused_dqp.build(device("npu2"), 4))
    buffers = problem(2048, 2048)
    del buffers["weights"]
    (result,) = session.run("matvec", {"N": 2048, "K": 2048, "bias": 0, "activation": 0}, buffers)
    stream = 2048 * 2048 * 5 / 8 / (8 * 4) / 1.8e9
    assert stream < result.seconds < 3 * stream
    assert result.read == 2048 * 2048 * 5 // 8 + 2 * 2048
    assert result.written == 2 * 2048


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ({"N": 100, "K": 256}, "N=100 must be a multiple of 32"),
        ({"N": 96, "K": 256}, "at least 128"),
        ({"N": 128, "K": 200}, "K=200 must be a multiple of 256"),
        ({"N": 128, "K": 32768}, "above 16384"),
        ({"N": 128, "K": 0}, "K=0 must be a multiple of 256"),
        ({"N": 128, "K": 256, "bias": 2}, "bias=2 must be 0 or 1"),
        ({"N": 128, "K": 256, "activation": 3}, "activation=3 must be 0"),
    ],
)
def test_shapes_that_it_cannot_take_are_refused(shape: dict[str, int], message: str) -> None:
    session = Session(fused_dqp.build(device("npu2")))
    with pytest.raises(DesignError, match=message):
        session.build("matvec", {"bias": 0, "activation": 0, **shape}, ["x", "w", "bias", "y"])


def test_more_columns_than_the_device_has() -> None:
    with pytest.raises(DesignError, match="npu1 has 1 to 4"):
        fused_dqp.build(device("npu1"), 5)


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
        shape = {"N": n, "K": k, "bias": 1, "activation": 0}
        session.run("matvec", shape, {"x": x, "w": w, "bias": bias, "y": whole})
        session.run(
            "matvec_part", shape | {"K": 512, "row_K": k},
            {"x": x[256:], "w": w[of.block_bytes :], "bias": bias, "y": part},
        )  # fmt: skip
        outputs.append([whole.view(np.uint16), part.view(np.uint16)])
    np.testing.assert_array_equal(*outputs)
    assert np.isfinite(outputs[0][0].view(bfloat16).astype(np.float32)).all()


@pytest.mark.parametrize(("name", "columns"), [("npu2", 4), ("npu2", 8), ("npu1", 4)])
def test_two_bits_give_the_result_of_the_reference(name: str, columns: int) -> None:
    session = Session(fused_dqp_two_bits.build(device(name), columns))
    for n, k, bias, activation in [
        (128, 256, 0, 0), (1024, 512, 1, 0), (32 * (4 * columns + 5), 768, 1, 1)
    ]:  # fmt: skip
        got, exact, bound = run(session, n, k, bias=bias, activation=activation, bits=2)
        assert np.all(np.abs(got - exact) <= bound), (n, k)


def test_two_bits_read_three_fifths_and_take_less_time() -> None:
    shape = {"N": 2048, "K": 2048, "bias": 0, "activation": 0}
    seconds = {}
    for bits, build in ((4, fused_dqp.build), (2, fused_dqp_two_bits.build)):
        buffers = problem(2048, 2048, bits=bits)
        del buffers["weights"]
        session = Session(build(device("npu2"), 8))
        sequence = "matvec" if bits == 4 else "matvec_two_bits"
        (result,) = session.run(sequence, shape, buffers)
        assert result.read == 2048 * 2048 * (bits + 1) // 8 + 2 * 2048
        seconds[bits] = result.seconds
    assert seconds[2] < 0.75 * seconds[4]
