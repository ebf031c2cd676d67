"""The forms of GGUF files: each row of the table, beside what the package gguf makes of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from ort_aie_ep.formats.file_forms import FILE_FORMS, OF_GGML_TYPE, FileForm

gguf = pytest.importorskip("gguf")
quants = pytest.importorskip("gguf.quants")
Kind = gguf.GGMLQuantizationType

Array = npt.NDArray[Any]
N = 70  # does not fill the last row of blocks
FORMS = pytest.mark.parametrize("form", FILE_FORMS.values(), ids=FILE_FORMS)

# Bytes that fill whole structs: zeros; subnormal and largest scales of either sign; exponents of
# E8M0 at both ends; NaN of E4M3.
EXTREMES = (0x00, 0x01, 0x02, 0x03, 0x7B, 0x7F, 0x80, 0x83, 0xFB, 0xFD, 0xFE, 0xFF)


def weights_of(form: FileForm, rows: Array) -> Array:
    """What rows of a file mean, by gguf-py."""
    with np.errstate(over="ignore", invalid="ignore"):
        weights: Array = quants.dequantize(rows, Kind(form.ggml_type))
    return weights


def structs(form: FileForm, count: int, seed: int) -> Array:
    """(count, bytes) random structs without NaN, and EXTREMES first."""
    rng = np.random.default_rng([seed, form.ggml_type])
    made = rng.integers(0, 256, (count, form.row_bytes(form.columns)), np.uint8)
    made[: len(EXTREMES)] = np.array(EXTREMES, np.uint8)[:, None]
    # Of E8M0's largest exponents, products overflow to infinities, but the scale is finite.
    weights = weights_of(form, made)
    bad = np.isnan(weights) if form.name == "mxfp4" else ~np.isfinite(weights)
    made[bad.any(axis=1)] = 0
    return made


def rows_of(form: FileForm, n: int, k: int, seed: int = 0) -> Array:
    """Random rows of a file."""
    made = structs(form, n * k // form.columns, seed)
    return made.reshape(n, form.row_bytes(k))


def test_the_table_has_the_numbers_and_sizes_of_the_package() -> None:
    for form in FILE_FORMS.values():
        assert OF_GGML_TYPE[form.ggml_type] is form
        kind = Kind(form.ggml_type)
        assert kind.name.lower() == form.name
        assert gguf.GGML_QUANT_SIZES[kind] == (form.columns, form.row_bytes(form.columns))


@FORMS
@pytest.mark.parametrize("blocks", [1, 3])
def test_weights_have_the_bits_of_the_package(form: FileForm, blocks: int) -> None:
    k = blocks * form.columns
    rows = rows_of(form, N, k)
    packed = form.pack(rows, k, "t")
    assert packed.shape == form.blocks_shape(N, k)
    actual = form.dequantize(packed, N, k)
    np.testing.assert_array_equal(actual.view(np.uint32), weights_of(form, rows).view(np.uint32))


@FORMS
def test_blocks_are_the_file_in_another_order(form: FileForm) -> None:
    """All bytes come back, and rows that a block lacks are zeros."""
    k = 2 * form.columns
    rows = rows_of(form, N, k, seed=1)
    packed = form.pack(rows, k, "t")
    np.testing.assert_array_equal(form.unpack(packed, N, k), rows)
    whole = np.zeros((96, rows.shape[1]), np.uint8)
    whole[:N] = rows
    weights = form.dequantize(form.pack(whole, k, "t"), 96, k)
    np.testing.assert_array_equal(form.dequantize(packed, 96, k), weights)
    for row in (0, 31, 32, N - 1):
        alone = form.pack(rows[row : row + 1], k, "t")
        np.testing.assert_array_equal(form.unpack(alone, 1, k), rows[row : row + 1])


@FORMS
def test_scales_that_are_not_numbers_are_refused(form: FileForm) -> None:
    k = 2 * form.columns
    rows = rows_of(form, N, k)
    for fill in (0x7C, 0x7D, 0xFC, 0xFF):  # infinite or NaN in float16, finite in 8 bits
        bad = rows.copy()
        bad[N - 1, rows.shape[1] // 2 :] = fill
        if np.isfinite(weights_of(form, bad)[N - 1]).all() or form.name == "mxfp4":
            form.pack(bad, k, "t")
            continue
        with pytest.raises(ValueError, match=r"blk\.0\.ffn has a scale or a minimum that is NaN"):
            form.pack(bad, k, "blk.0.ffn")


@FORMS
def test_shapes_that_do_not_fit_are_named(form: FileForm) -> None:
    k = form.columns
    rows = rows_of(form, N, k)
    with pytest.raises(ValueError, match=f"a multiple of {k} for {form.name}, got N=70 K={k + 1}"):
        form.pack(rows, k + 1, "t")
    with pytest.raises(ValueError, match=r"rows must be \(70, "):
        form.pack(rows, 2 * k, "t")
    with pytest.raises(ValueError, match="blocks must be"):
        form.dequantize(form.pack(rows, k, "t"), N, 2 * k)
