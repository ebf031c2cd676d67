"""MatMul, simulated: `gemm`'s bits from a row-major B that nobody packed."""

from __future__ import annotations

from functools import cache
from types import ModuleType

import judged
import ml_dtypes
import numpy as np
import pytest
from designs.matmul import design as matmul

from ort_aie_ep.aie_kernels.gemm import design as gemm
from ort_aie_ep.aie_kernels.gemm.design import Output
from ort_aie_ep.aie_kernels.gemm.reference import problem
from ort_aie_ep.aie_kernels.reference import Context
from ort_aie_ep.npu.checks.check import check
from ort_aie_ep.npu.simulator.machine import Result
from ort_aie_ep.npu.simulator.session import Session
from ort_aie_ep.npu.terms.device import DEVICES, Device, device
from ort_aie_ep.npu.terms.errors import DesignError
from ort_aie_ep.npu.terms.kernel import DTYPES

pytestmark = pytest.mark.in_turn  # nothing that ships uses these designs


def operands(m: int, k: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """A (max(m, 64), k) and B (k, n), bf16."""
    rng = np.random.default_rng([m, k, n])
    a = rng.standard_normal((max(m, 64), k)).astype(ml_dtypes.bfloat16)
    return a, rng.standard_normal((k, n)).astype(ml_dtypes.bfloat16)


@cache
def session_of(design: ModuleType, name: str, output: Output = "bf16") -> Session:
    """One array for all products, which leave it as they found it."""
    return Session(design.build(device(name), output))


def run(
    session: Session, m: int, a: np.ndarray, b: np.ndarray, n: int
) -> tuple[np.ndarray, Result]:
    """C (rows of a, n), by the design's only sequence of a product."""
    name = session.design.name
    c = np.full((a.shape[0], n), np.nan, DTYPES["f32" if name.endswith("f32") else "bf16"])
    shape = {"M": m, "K": a.shape[1], "N": n}
    (result,) = session.run(name.removesuffix("_f32"), shape, {"a": a, "b": b, "c": c})
    return c, result


@pytest.mark.parametrize(
    ("name", "output", "m", "k", "n"),
    [
        ("npu2", "bf16", 520, 256, 544),  # bands moved back in both directions
        ("npu1", "f32", 300, 512, 352),
        *(
            pytest.param(*others, marks=pytest.mark.in_turn)
            for others in (
                ("npu2", "f32", 7, 256, 288),
                ("npu1", "bf16", 256, 256, 544),
                ("npu2_2col", "bf16", 130, 768, 736),  # a memory tile feeds two rows of cores
                ("npu1_2col", "f32", 64, 256, 128),
                ("npu2_1col", "bf16", 70, 512, 544),  # all four
                ("npu1_1col", "f32", 64, 8192, 256),  # as many slabs as a descriptor iterates over
            )
        ),
    ],
)
def test_bits_and_time_are_those_of_gemm(name: str, output: Output, m: int, k: int, n: int) -> None:
    a, b = operands(m, k, n)
    c, mine = run(session_of(matmul, name, output), m, a, b, n)
    packed = gemm.pack_b(np.ascontiguousarray(b.T))
    wanted, other = run(session_of(gemm, name, output), m, a, packed, n)
    np.testing.assert_array_equal(c, wanted)
    assert (mine.read, mine.written) == (other.read, other.written)
    assert mine.seconds == pytest.approx(other.seconds, rel=0.02)


@pytest.mark.parametrize(
    ("name", "output", "m", "k", "n"),
    [
        ("npu2", "bf16", 65, 256, 130),
        ("npu2", "f32", 130, 256, 566),
        ("npu1_2col", "bf16", 70, 256, 258),
        # More slabs than a descriptor iterates over.
        pytest.param("npu1", "f32", 64, 16640, 66, marks=pytest.mark.in_turn),
    ],
)
def test_any_even_number_of_columns(name: str, output: Output, m: int, k: int, n: int) -> None:
    session = session_of(matmul, name, output)
    context = Context.of(session.design, "matmul")
    judged.run(session, problem(context, {"M": m, "K": k, "N": n}, row_major=True))


@pytest.mark.parametrize(
    ("name", "k", "n", "message"),
    [
        ("npu2", 320, 512, "K=320 must be a multiple of 256"),
        ("npu2", 65792, 512, "K=65792 is above 65536"),
        ("npu2", 256, 513, "N=513 must be a multiple of 2: pad B"),
        ("npu2", 256, 126, "N=126 must be at least 128"),
        ("npu2", 256, 131074, "N=131074 is above 131072: divide N"),
        ("npu2_2col", 256, 8194, "N=8194 is above 8192"),
        ("npu2_2col", 16640, 512, "K=16640 is above 16384"),
        ("npu2_1col", 8448, 512, "K=8448 is above 8192"),
    ],
)
def test_shapes_it_cannot_take_are_refused(name: str, k: int, n: int, message: str) -> None:
    session = session_of(matmul, name)
    with pytest.raises(DesignError, match=message):
        session.build("matmul", {"M": 64, "K": k, "N": n}, ["a", "b", "c"])


@pytest.mark.parametrize(("k", "n"), [(256, 131072), (65536, 128)])
def test_the_longest_strides_are_accepted(k: int, n: int) -> None:
    session = session_of(matmul, "npu2")
    assert session.build("matmul", {"M": 64, "K": k, "N": n}, ["a", "b", "c"])


def test_three_columns_are_refused_by_its_own_name() -> None:
    three = Device("three", "aie2p", 4, 3, clock_hz=1.8e9, alignment=64)
    with pytest.raises(DesignError, match="3 columns"):
        matmul.build(three)


# test_limits.py has the default, bf16.
@pytest.mark.parametrize("name", list(DEVICES))
def test_every_device_holds_it_with_f32(name: str) -> None:
    check(matmul.build(device(name), "f32"))
