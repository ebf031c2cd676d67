"""Q4NX packing: the golden bytes, the Python definition and its C++ counterpart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import numpy_q4nx as q4nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ort_aie_ep import _native
from ort_aie_ep.errors import AieError

Array = npt.NDArray[Any]

GOLDEN = Path(__file__).parent.parent / "data" / "q4nx_example.npz"
SHAPES = st.tuples(st.integers(1, 100), st.integers(1, 600))
BITS = st.sampled_from([4, 2])


def random_parts(n: int, k: int, seed: int = 0, bits: int = 4) -> tuple[Array, Array, Array]:
    """Codes (n, k) uint8, scales and mins (n, ceil(k / 32)) bfloat16."""
    rng = np.random.default_rng([seed, n, k])
    groups = -(-k // 32)
    codes = rng.integers(0, 2**bits, (n, k), dtype=np.uint8)
    scales, mins = rng.standard_normal((2, n, groups)).astype(q4nx.bfloat16)
    return codes, scales, mins


def native_pack(codes: Array, scales: Array, mins: Array, bits: int = 4) -> Array:
    return _native.pack(codes, scales.view(np.uint16), mins.view(np.uint16), bits)


def test_golden_bytes() -> None:
    golden = np.load(GOLDEN)
    codes, scales, mins = (golden[name] for name in ("codes", "scales", "mins"))
    packed = q4nx.pack(codes, scales, mins)
    # Block rows and block columns, row-major; the example has one block column.
    np.testing.assert_array_equal(packed.reshape(golden["packed"].shape), golden["packed"])
    bits = [x.astype(q4nx.bfloat16) for x in (scales, mins)]
    np.testing.assert_array_equal(native_pack(codes, *bits), packed)


def test_places_of_single_bits() -> None:
    """Q2NX as the format's description has it: a code's two bits are in adjacent planes."""
    n, k = 64, 512
    groups = np.zeros((n, k // 32), np.float32)
    for row, col in [(0, 0), (1, 0), (15, 31), (16, 0), (31, 255), (32, 256), (63, 511), (40, 301)]:
        for code in (1, 2, 3):
            codes = np.zeros((n, k), np.uint8)
            codes[row, col] = code
            r, c = row % 32, col % 256
            expected = np.zeros((2, 2, 3072), np.uint8)
            place = 1024 + (c // 4) * 32 + (r // 2) * 2
            bit = 1 << (4 * (r % 2) + c % 4)
            expected[row // 32, col // 256, place : place + 2] = [
                bit * (code & 1), bit * (code >> 1),
            ]  # fmt: skip
            np.testing.assert_array_equal(q4nx.pack(codes, groups, groups, 2), expected)


@given(SHAPES, BITS)
def test_padding_is_zero(shape: tuple[int, int], bits: int) -> None:
    n, k = shape
    codes, scales, mins = random_parts(n, k, bits=bits)
    padded_n, padded_k = -(-n // 32) * 32, -(-k // 256) * 256
    full_codes = np.zeros((padded_n, padded_k), np.uint8)
    full_groups = np.zeros((2, padded_n, padded_k // 32), q4nx.bfloat16)
    full_codes[:n, :k] = codes
    full_groups[0, :n, : scales.shape[1]] = scales
    full_groups[1, :n, : mins.shape[1]] = mins
    np.testing.assert_array_equal(
        q4nx.pack(codes, scales, mins, bits), q4nx.pack(full_codes, *full_groups, bits)
    )


@given(SHAPES, BITS)
def test_dequantising_is_scale_times_code_plus_min(shape: tuple[int, int], bits: int) -> None:
    n, k = shape
    codes, scales, mins = random_parts(n, k, bits=bits)
    blocks = q4nx.pack(codes, scales, mins, bits)
    spread = [np.repeat(x.astype(np.float32), 32, axis=1)[:, :k] for x in (scales, mins)]
    expected = spread[0] * codes + spread[1]  # the product is exact in float32
    for weights in (q4nx.dequantize(blocks, n, k), _native.dequantize(blocks, n, k)):
        assert weights.dtype == np.float32
        np.testing.assert_array_equal(weights, expected)


def test_scales_and_mins_round_to_nearest_even() -> None:
    step = 2.0**-7
    values = np.array(
        [1 + step / 2, 1 + 3 * step / 2, 1 + step / 2 + 2**-20, -1 - step / 2, 3.4e38], np.float32
    )
    expected = np.array([1, 1 + 2 * step, 1 + step, -1, np.inf], np.float32)
    for value, rounded in zip(values, expected, strict=True):
        one = np.full((1, 1), value)
        _, scales, mins = q4nx.unpack(q4nx.pack(np.zeros((1, 1), np.uint8), one, one), 1, 1)
        assert float(scales[0, 0]) == rounded
        assert float(mins[0, 0]) == rounded


@pytest.mark.parametrize(
    ("codes", "scales", "message"),
    [
        (np.zeros((4,), np.uint8), np.zeros((4, 1)), r"codes must be \(N, K\) and not empty"),
        (np.zeros((0, 4), np.uint8), np.zeros((0, 1)), "not empty, got shape"),
        (
            np.full((4, 4), 16, np.uint8),
            np.zeros((4, 1)),
            "must be uint8 in 0..15, got uint8 up to 16",
        ),
        (np.zeros((4, 4), np.int32), np.zeros((4, 1)), "must be uint8 in 0..15, got int32"),
        (np.zeros((4, 40), np.uint8), np.zeros((4, 1)), r"scales must be \(4, 2\), got \(4, 1\)"),
    ],
)
def test_pack_refuses_what_does_not_fit(codes: Array, scales: Array, message: str) -> None:
    with pytest.raises(AieError, match=message):
        q4nx.pack(codes, scales, scales)


def test_other_bits_are_refused() -> None:
    codes, scales = np.full((4, 4), 3, np.uint8), np.zeros((4, 1))
    with pytest.raises(AieError, match=r"bits .*4 .*2 .*3"):
        q4nx.pack(codes, scales, scales, 3)
    with pytest.raises(AieError, match=r"uint8 in 0\.\.3, got uint8 up to 4"):
        q4nx.pack(codes + 1, scales, scales, 2)
    with pytest.raises(ValueError, match=r"bits .*3; pack_q8nx"):
        native_pack(codes, *[scales.astype(q4nx.bfloat16)] * 2, bits=3)


def test_unpack_refuses_what_does_not_fit() -> None:
    blocks = np.zeros((2, 1, 5120), np.uint8)
    with pytest.raises(AieError, match=r"\(32, 256\) .*uint8 \(1, 1, 5120\)"):
        q4nx.unpack(blocks, 32, 256)
    with pytest.raises(AieError, match=r"\(32, 256\) .*uint8 \(1, 1, 3072\)"):
        q4nx.unpack(np.zeros((2, 1, 3072), np.uint8), 32, 256)
    with pytest.raises(AieError, match=r"uint8 .*int8"):
        q4nx.unpack(blocks.view(np.int8), 64, 256)
    with pytest.raises(ValueError, match=r"blocks .*\(1, 1, 5120\).*\(2, 1, 5120\)"):
        _native.unpack(blocks, 32, 256)
    with pytest.raises(ValueError, match="N=0 K=256"):
        _native.dequantize(blocks, 0, 256)


def test_native_pack_refuses_what_does_not_fit() -> None:
    codes = np.zeros((4, 40), np.uint8)
    right, wrong = np.zeros((4, 2), np.uint16), np.zeros((4, 1), np.uint16)
    with pytest.raises(ValueError, match=r"scales .*\(4, 2\).*\(4, 1\)"):
        _native.pack(codes, wrong, right)
    with pytest.raises(ValueError, match=r"mins .*\(4, 2\).*\(4, 1\)"):
        _native.pack(codes, right, wrong)
    with pytest.raises(TypeError):
        _native.pack(codes, right.astype(np.float32), right)
