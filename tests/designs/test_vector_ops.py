"""The vector operators in the simulator, from instruction words to outputs, compared with numpy."""

from __future__ import annotations

from math import gcd

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from judged import run

from ort_aie_ep.aie_kernels.reference import BF16, EPS, Context, bf16, bits, doubles, rounded
from ort_aie_ep.aie_kernels.vector_ops import design as vector_ops
from ort_aie_ep.aie_kernels.vector_ops import reference
from ort_aie_ep.npu.simulator.session import Session
from ort_aie_ep.npu.terms.device import device


@pytest.fixture(scope="module")
def session() -> Session:
    return Session(vector_ops.build(device("npu2")))


@pytest.mark.parametrize("residual", [0, 1])
@pytest.mark.parametrize("n", [128, 2048, 576, 200, 16384])
def test_rms_norm(session: Session, n: int, residual: int) -> None:
    parameters = {"n": n, "residual": residual, "eps_bits": bits(EPS)}
    run(session, reference.rms_norm_problem(Context.of(session.design, "rms_norm"), parameters))


@pytest.mark.parametrize("size", [2.0**-60, 1.0, 2.0**22])
def test_a_norm_of_a_large_epsilon_is_a_product(session: Session, size: float) -> None:
    """The executor multiplies this way (src/targets/npu/vectors.cc): the norm's factor is 2^-32."""
    n, padded = 576, 640
    x, weight = np.zeros(padded), np.zeros(padded)
    x[:n], weight[:n] = bf16(np.random.default_rng(1).standard_normal((2, n)))
    x *= size
    buffers = {
        "x": x.astype(BF16),
        "residual": np.zeros(0, BF16),
        "weight": (weight * 2.0**32).astype(BF16),
        "sum": np.zeros(0, BF16),
        "y": np.full(padded, np.nan, BF16),
    }
    parameters = {"n": n, "residual": 0, "eps_bits": bits(2.0**64)}
    session.run("rms_norm", parameters, buffers)
    wanted = rounded(x * weight, reference.NORM)
    assert (np.abs(doubles(buffers["y"]) - wanted.exact) <= wanted.tolerance).all()


@pytest.mark.parametrize(
    ("heads", "head_dim", "rotary_dim", "interleaved", "norm"),
    [
        (4, 64, 64, 0, 0),
        (8, 128, 128, 0, 1),
        (1, 64, 64, 1, 1),
        (2, 64, 32, 1, 0),
        (9, 64, 64, 0, 1),
        (1, 128, 64, 0, 1),
        (3, 256, 256, 0, 1),
        (3, 128, 96, 0, 0),
    ],
)
def test_rope(
    session: Session, heads: int, head_dim: int, rotary_dim: int, interleaved: int, norm: int
) -> None:
    parameters = {
        "heads": heads, "head_dim": head_dim, "rotary_dim": rotary_dim,
        "interleaved": interleaved, "norm": norm, "eps_bits": bits(EPS),
    }  # fmt: skip
    run(session, reference.rope_problem(Context.of(session.design, "rope"), parameters))


def append(session: Session, kv_heads: int, head_dim: int, position: int, capacity: int) -> None:
    parameters = {
        "kv_heads": kv_heads, "head_dim": head_dim, "position": position, "capacity": capacity,
    }  # fmt: skip
    run(session, reference.append_problem(Context.of(session.design, "append"), parameters))


@pytest.mark.parametrize(
    ("kv_heads", "head_dim", "position", "capacity"),
    [
        (4, 64, 5, 64), (8, 64, 3, 64), (2, 128, 8, 32), (1, 256, 7, 32),
        (1, 64, 6, 64), (2, 64, 6, 64), (1, 128, 6, 64),  # smaller than an object
        (2, 256, 8199, 8208),  # heads further apart than a stride spans: 4 MB
    ],
)  # fmt: skip
def test_keys_are_appended_to_the_cache(
    session: Session, kv_heads: int, head_dim: int, position: int, capacity: int
) -> None:
    append(session, kv_heads, head_dim, position, capacity)


@pytest.mark.parametrize(
    ("heads", "dim", "x_stride", "y_stride"),
    [
        (8, 96, 96, 128), (16, 96, 128, 96), (32, 80, 80, 128), (8, 32, 64, 66), (1, 256, 256, 256),
        # Not a whole number of objects, so several copies.
        (2, 32, 32, 64), (2, 32, 64, 32), (1, 8, 8, 64), (3, 80, 80, 128), (5, 96, 128, 96),
    ],
)  # fmt: skip
def test_heads_are_moved_and_what_is_between_them_stays(
    session: Session, heads: int, dim: int, x_stride: int, y_stride: int
) -> None:
    parameters = {
        "heads": heads, "dim": dim, "x_stride": x_stride, "y_stride": y_stride,
        "copies": 256 // gcd(256, heads * dim),
    }  # fmt: skip
    context = Context.of(session.design, "move_heads")
    run(session, reference.move_heads_problem(context, parameters))


@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize("n", [256, 512, 300, 700, 1024])
def test_glu(session: Session, n: int, kind: int) -> None:
    run(session, reference.glu_problem(Context.of(session.design, "glu"), {"n": n, "kind": kind}))


@settings(max_examples=15)
@given(
    kv_heads=st.sampled_from([1, 2, 4, 8]),
    head_dim=st.sampled_from([64, 128, 256]),
    position=st.integers(0, 63),
)
def test_keys_anywhere_in_the_cache(
    session: Session, kv_heads: int, head_dim: int, position: int
) -> None:
    append(session, kv_heads, head_dim, position, 64)
