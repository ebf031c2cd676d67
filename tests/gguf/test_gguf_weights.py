"""What becomes of each type of GGUF tensors, beside what the package gguf makes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("gguf")

from gguf import GGMLQuantizationType as Kind
from gguf import quants
from gguf_files import quantised

from ort_aie_ep.compiler.gguf.file import Tensor
from ort_aie_ep.compiler.gguf.tensors import EXACT, KINDS, MINIMA, REQUANTISED, Matrix, Part
from ort_aie_ep.errors import AieError

ROWS, K = 40, 512
FLOATS = (Kind.F16, Kind.BF16, Kind.F32)
CODED = [kind for kind in KINDS if kind not in FLOATS]
Array = npt.NDArray[Any]


def tensor(kind: Kind, seed: int = 1) -> tuple[Tensor, Array]:
    """A tensor, and its weights."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((ROWS, K), np.float32)
    values[3, :64] = 0.25  # a group that is its minimum, without a scale
    data = quantised(values, kind, rng)
    return Tensor("t.weight", kind, (ROWS, K), data), quants.dequantize(data, kind)


def weights(matrix: Matrix, first: int, count: int) -> tuple[Array, Array, Array | None]:
    """Weights as MatMulNBits computes them, their scales, and their zero points."""
    assert matrix.coding is not None
    coded = matrix.coded(first, count)
    codes = coded.codes
    if matrix.coding.bits == 4:
        codes = np.stack([codes & 15, codes >> 4], axis=-1).reshape(count, -1)
    points = coded.zero_points
    zeros = 2 ** (matrix.coding.bits - 1) if points is None else np.repeat(points, 32, 1)
    scales = np.repeat(coded.scales, 32, axis=1)
    return scales * (codes.astype(np.float32) - zeros), scales, points


@pytest.mark.parametrize("kind", CODED, ids=lambda kind: kind.name)
def test_weights_are_those_of_the_file_within_what_its_form_rounds(kind: Kind) -> None:
    source, expected = tensor(kind)
    matrix = Matrix([Part(source, np.arange(ROWS))])
    actual, scales, points = weights(matrix, 0, ROWS)
    coding = KINDS[kind].coding
    assert matrix.coding == coding
    if coding == MINIMA:
        # Scale and minimum are bfloat16: up to 2^-8 of either, times the largest code. The pair
        # with the least error in its group is not worse.
        assert points is not None
        minima = np.repeat(points, 32, axis=1) * scales
        bound = 2.0**-8 * (15 * np.abs(scales) + np.abs(minima)) + 1e-6
        groups = (actual - expected).reshape(ROWS, -1, 32), bound.reshape(ROWS, -1, 32)
        error, allowed = (np.mean(each**2, axis=2) for each in groups)
        assert (error <= allowed).all()
    elif coding == REQUANTISED:
        # Half a step of 256 over the range of a group; and the error that is noted.
        groups = expected.reshape(ROWS, -1, 32)
        steps = (groups.max(2).clip(min=0) - groups.min(2).clip(max=0)) / 255
        error = np.abs(actual - expected)
        assert (error <= np.repeat(steps, 32, axis=1) * 1.01).all()
        assert matrix.largest == pytest.approx(error.max(), rel=1e-3)
        size = np.sqrt(np.mean(error**2) / np.mean(expected**2))
        assert matrix.relative == pytest.approx(size, rel=1e-3)
    else:
        np.testing.assert_array_equal(actual, expected)
    assert matrix.is_requantised == (coding == REQUANTISED)


@pytest.mark.parametrize("kind", FLOATS, ids=lambda kind: kind.name)
def test_floats_are_those_of_the_file(kind: Kind) -> None:
    source, expected = tensor(kind)
    matrix = Matrix([Part(source, np.arange(ROWS))])
    np.testing.assert_array_equal(matrix.columns(7, 100), expected[:, 7:107].T)


def test_rows_of_parts_come_in_any_order_and_number_times_their_factors() -> None:
    (one, first), (other, second) = tensor(Kind.Q8_0), tensor(Kind.Q5_0, 2)
    order = np.random.default_rng(3).permutation(ROWS)
    matrix = Matrix([Part(one, order), Part(other, np.arange(5, 30), 0.5)])
    expected = np.concatenate([first[order], second[5:30] * np.float32(0.5)])
    assert matrix.coding == EXACT
    for begin, count in ((0, 65), (38, 4), (64, 1)):
        actual, _, _ = weights(matrix, begin, count)
        np.testing.assert_array_equal(actual, expected[begin : begin + count])


def test_parts_that_are_stored_in_different_ways_are_not_one_matrix() -> None:
    parts = [Part(tensor(kind)[0], np.arange(ROWS)) for kind in (Kind.Q4_K, Kind.Q6_K)]
    assert Matrix(parts).coding is None
    _, expected = tensor(Kind.Q4_K)
    together = Matrix(parts, REQUANTISED)
    actual, scales, _ = weights(together, 0, ROWS)
    assert together.is_requantised
    assert (np.abs(actual - expected) <= scales).all()


@pytest.mark.parametrize("kind", [Kind.Q4_0, Kind.Q4_K, Kind.Q6_K, Kind.F16], ids=lambda k: k.name)
def test_weights_that_are_not_numbers_are_named(kind: Kind, tmp_path: Path) -> None:
    source, _ = tensor(kind)
    data = source.data.copy()
    data.reshape(-1).view(np.uint8)[-2 if kind in (Kind.Q6_K, Kind.F16) else 0 :][:2] = 0xFF, 0x7F
    if kind not in (Kind.Q6_K, Kind.F16):
        data.reshape(-1).view(np.uint8)[:2] = 0xFF, 0x7F
    matrix = Matrix([Part(Tensor(source.name, kind, source.shape, data), np.arange(ROWS))])
    with pytest.raises(AieError, match=r"t\.weight"):
        matrix.columns(0, K) if kind == Kind.F16 else matrix.coded(0, ROWS)
