"""What becomes of each type of GGUF tensors, beside what the package gguf makes of it."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("gguf")

from gguf import GGMLQuantizationType as Kind
from gguf import quants
from gguf_files import quantised

from ort_aie_ep.compiler.gguf.file import Tensor
from ort_aie_ep.compiler.gguf.tensors import (
    EXACT,
    MINIMA,
    Q4NX_COMPATIBLE,
    REQUANTISED,
    Matrix,
    Part,
    stored_as,
)
from ort_aie_ep.errors import AieError
from ort_aie_ep.formats.file_forms import FILE_FORMS, FileForm
from ort_aie_ep.models.builder.weights import FLOATS

ROWS, K = 40, 512
FLOAT_TYPES = (Kind.F16, Kind.BF16, Kind.F32)
TYPES = [Kind(form.ggml_type) for form in FILE_FORMS.values()]
CODED = [*Q4NX_COMPATIBLE, Kind.Q5_1, Kind.Q5_K, Kind.Q6_K, Kind.IQ4_XS]
Array = npt.NDArray[Any]


def tensor(kind: Kind, seed: int = 1) -> tuple[Tensor, Array]:
    """A tensor, and its weights."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((ROWS, K), np.float32)
    values[3, :64] = 0.25  # a group that is its minimum, without a scale
    data = quantised(values, kind, rng)
    return Tensor("t.weight", kind, (ROWS, K), data), quants.dequantize(data, kind)


def coded(matrix: Matrix, first: int, count: int) -> tuple[Array, Array, Array | None]:
    """Weights as MatMulNBits computes them, their scales, and their zero points."""
    made = matrix.coded(first, count)
    codes = made.codes
    if matrix.coding.bits == 4:
        codes = np.stack([codes & 15, codes >> 4], axis=-1).reshape(count, -1)
    points = made.zero_points
    zeros = 2 ** (matrix.coding.bits - 1) if points is None else np.repeat(points, 32, 1)
    scales = np.repeat(made.scales, 32, axis=1)
    return scales * (codes.astype(np.float32) - zeros), scales, points


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_rows_keep_their_bits_in_any_order_and_part(kind: Kind) -> None:
    (one, first), (other, second) = tensor(kind), tensor(kind, 2)
    order = np.random.default_rng(3).permutation(ROWS)
    matrix = Matrix([Part(one, order), Part(other, np.arange(5, 30))], stored_as(kind))
    form = matrix.stored
    assert isinstance(form, FileForm)
    assert form.name == kind.name.lower()
    blocks = np.concatenate([matrix.blocks(0, 2), matrix.blocks(2, 1)])
    assert blocks.nbytes * 65 == pytest.approx(96 * (one.data.nbytes * 65 // ROWS), rel=1e-3)
    expected = np.concatenate([first[order], second[5:30]])
    actual = form.dequantize(blocks, 65, K)
    np.testing.assert_array_equal(actual.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("kind", CODED, ids=lambda kind: kind.name)
def test_codes_are_those_of_the_file_within_what_their_form_rounds(kind: Kind) -> None:
    source, expected = tensor(kind)
    coding = stored_as(kind, q4nx_compatible=True)
    matrix = Matrix([Part(source, np.arange(ROWS))], coding)
    actual, scales, points = coded(matrix, 0, ROWS)
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
        # Half a step of 256 over the range of a group.
        groups = expected.reshape(ROWS, -1, 32)
        steps = (groups.max(2).clip(min=0) - groups.min(2).clip(max=0)) / 255
        assert (np.abs(actual - expected) <= np.repeat(steps, 32, axis=1) * 1.01).all()
    else:
        np.testing.assert_array_equal(actual, expected)
    if kind == Kind.Q4_0:  # what packing will round
        actual = actual / scales * scales.astype(ml_dtypes.bfloat16).astype(np.float32)
    error = np.abs(actual - expected)
    assert matrix.largest == pytest.approx(error.max(), rel=1e-2, abs=1e-7)
    size = np.sqrt(np.mean(error**2) / np.mean(expected**2))
    assert matrix.relative == pytest.approx(size, rel=1e-2, abs=1e-7)


@pytest.mark.parametrize("kind", FLOAT_TYPES, ids=lambda kind: kind.name)
def test_floats_are_those_of_the_file(kind: Kind) -> None:
    source, expected = tensor(kind)
    matrix = Matrix([Part(source, np.arange(ROWS))], stored_as(kind))
    assert matrix.stored == FLOATS
    np.testing.assert_array_equal(matrix.columns(7, 100), expected[:, 7:107].T)


def test_parts_of_different_types_become_the_same_codes() -> None:
    (one, first), (other, second) = tensor(Kind.Q8_0), tensor(Kind.Q5_0, 2)
    order = np.random.default_rng(3).permutation(ROWS)
    matrix = Matrix([Part(one, order), Part(other, np.arange(5, 30))], EXACT)
    expected = np.concatenate([first[order], second[5:30]])
    for begin, count in ((0, 65), (38, 4), (64, 1)):
        actual, _, _ = coded(matrix, begin, count)
        np.testing.assert_array_equal(actual, expected[begin : begin + count])
    together = Matrix([Part(tensor(each)[0], order) for each in (Kind.Q4_K, Kind.F16)], REQUANTISED)
    actual, scales, _ = coded(together, 0, ROWS)
    assert (np.abs(actual - tensor(Kind.Q4_K)[1][order]) <= scales).all()


@pytest.mark.parametrize("kind", [Kind.Q4_0, Kind.Q4_K, Kind.Q6_K, Kind.F16], ids=lambda k: k.name)
@pytest.mark.parametrize("value", [0x7C00, 0xFC00, 0x7FFF])
def test_weights_that_are_not_numbers_are_named(kind: Kind, value: int) -> None:
    (sound, _), (source, _) = tensor(kind), tensor(kind, 2)
    data = source.data.copy()
    halves = data.reshape(-1).view(np.uint8).view(np.uint16)
    halves[-1 if kind in (Kind.Q6_K, Kind.F16) else 0] = value
    bad = Tensor("bad.weight", kind, source.shape, data)
    rows = np.arange(ROWS)
    matrix = Matrix([Part(sound, rows), Part(bad, rows)], stored_as(kind))
    with pytest.raises(AieError, match=r"tensor 'bad\.weight' ") as raised:
        matrix.columns(0, K) if kind == Kind.F16 else matrix.blocks(0, 3)
    assert "t.weight'" not in str(raised.value).replace("bad.weight", "")
    if kind != Kind.F16:
        with pytest.raises(AieError, match=r"bad\.weight.*expected numbers"):
            Matrix([Part(bad, rows)], REQUANTISED).coded(0, ROWS)
