"""MatMulNBits weights as Q4NX, compared with a plain reading of both formats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import numpy_q4nx as q4nx
import pytest
from code_bytes import pack_codes

from ort_aie_ep import _native

Array = npt.NDArray[Any]

TYPES: dict[str, Any] = {"FLOAT": np.float32, "FLOAT16": np.float16, "BFLOAT16": ml_dtypes.bfloat16}
ONNX_NAMES = {np.dtype(dtype): name for name, dtype in (TYPES | {"UINT8": np.uint8}).items()}


@dataclass(frozen=True)
class Source:
    """A MatMulNBits weight: codes (N, blocks * block_size), scales and zero points (N, blocks)."""

    n: int
    k: int
    block_size: int
    codes: Array
    scales: Array
    zero_points: Array  # as numbers
    stored_zero_points: Array | None  # as the operator reads them
    bits: int = 4

    def pack(self, scale_type: str) -> Array:
        blocks = self.scales.shape[1]
        b = pack_codes(self.codes, self.bits)
        assert b.shape == (self.n, blocks * self.block_size * self.bits // 8)
        stored = self.stored_zero_points
        return _native.pack_matmulnbits(
            b.reshape(-1),
            self.scales.reshape(-1).view(np.uint8),
            None if stored is None else stored.reshape(-1).view(np.uint8),
            self.n,
            self.k,
            self.block_size,
            scale_type,
            self.bits,
            "UINT8" if stored is None else ONNX_NAMES[stored.dtype],
        )


def make_source(
    n: int, k: int, block_size: int, scale_type: str, zero_points: str, bits: int = 4
) -> Source:
    """`zero_points`: none, packed, float (in the scales' type) or a type's name."""
    rng = np.random.default_rng([0, n, k, block_size])
    values = 2**bits
    blocks, dtype = -(-k // block_size), TYPES[scale_type]
    codes = rng.integers(0, values, (n, blocks * block_size), dtype=np.uint8)
    scales = rng.standard_normal((n, blocks)).astype(dtype)
    if zero_points == "none":
        return Source(n, k, block_size, codes, scales, np.full((n, blocks), values / 2), None, bits)
    if zero_points == "packed":
        points = rng.integers(0, values, (n, blocks), dtype=np.uint8)
        padding = ((0, 0), (0, -blocks % (8 // bits)))
        packed = pack_codes(np.pad(points, padding, constant_values=values - 1), bits)
        return Source(n, k, block_size, codes, scales, points, packed, bits)
    points = rng.uniform(0, values - 1, (n, blocks)).astype(TYPES.get(zero_points, dtype))
    return Source(n, k, block_size, codes, scales, points, points, bits)


@pytest.mark.parametrize("bits", [4, 2])
@pytest.mark.parametrize("block_size", [32, 64, 128, 256])
@pytest.mark.parametrize("scale_type", list(TYPES))
@pytest.mark.parametrize("zero_points", ["none", "packed", "float"])
def test_scale_min_and_codes(bits: int, block_size: int, scale_type: str, zero_points: str) -> None:
    # Whole blocks; K of one and a half blocks; K that fits no block size; odd numbers of blocks; K
    # below 32.
    for n, k in ((32, 512), (33, 384), (7, 300), (40, 96), (5, 33), (1, 16)):
        source = make_source(n, k, block_size, scale_type, zero_points, bits)
        codes, scales, mins = q4nx.unpack(source.pack(scale_type), n, k)
        np.testing.assert_array_equal(codes, source.codes[:, :k], f"{n} x {k}")

        repeats, groups = block_size // 32, -(-k // 32)
        scale = source.scales.astype(np.float32).astype(q4nx.bfloat16)
        minimum = (-source.zero_points.astype(np.float32) * scale.astype(np.float32)).astype(
            q4nx.bfloat16
        )
        for actual, expected in ((scales, scale), (mins, minimum)):
            np.testing.assert_array_equal(
                actual.astype(np.float32),
                np.repeat(expected, repeats, axis=1)[:, :groups].astype(np.float32),
                f"{n} x {k}",
            )


@pytest.mark.parametrize("scale_type", list(TYPES))
@pytest.mark.parametrize("zero_points", list(TYPES))
def test_zero_points_of_another_type_than_the_scales(scale_type: str, zero_points: str) -> None:
    source = make_source(33, 384, 64, scale_type, zero_points)
    _, scales, mins = q4nx.unpack(source.pack(scale_type), 33, 384)
    expected = -np.repeat(source.zero_points.astype(np.float32), 2, axis=1) * scales
    np.testing.assert_array_equal(mins, expected.astype(q4nx.bfloat16))


@pytest.mark.parametrize("zero_points", ["none", "packed", "float"])
def test_weights_are_those_of_the_operator_except_for_roundings(zero_points: str) -> None:
    source = make_source(48, 320, 64, "FLOAT", zero_points)
    scale, zero = (np.repeat(x, 64, axis=1)[:, :320] for x in (source.scales, source.zero_points))
    expected = (source.codes[:, :320] - zero.astype(np.float64)) * scale
    weights = q4nx.dequantize(source.pack("FLOAT"), 48, 320)
    # The scale is off by 2^-8 of itself, times code minus zero point; the min adds its own
    # rounding.
    bound = 2**-8 * np.abs(scale) * (source.codes[:, :320] + 2 * np.abs(zero)) * (1 + 2**-7)
    assert (np.abs(weights - expected) <= bound).all()


def test_float16_scales_of_every_kind() -> None:
    """Subnormals, zeros, the largest numbers and both signs round exactly to bfloat16."""
    halves = np.array([0x0001, 0x03FF, 0x0400, 0x7BFF, 0x8001, 0x8000, 0x0000, 0x3C01], np.uint16)
    scales = halves.view(np.float16).reshape(8, 1)
    source = Source(8, 32, 32, np.zeros((8, 32), np.uint8), scales, np.full((8, 1), 8), None)
    _, packed, mins = q4nx.unpack(source.pack("FLOAT16"), 8, 32)
    expected = scales.astype(np.float32).astype(q4nx.bfloat16)
    np.testing.assert_array_equal(packed.view(np.uint16), expected.view(np.uint16))
    np.testing.assert_array_equal(mins.astype(np.float32), (-8 * expected.astype(np.float32)))


@pytest.mark.parametrize("bits", [4, 2])
def test_padding_of_source_rows_is_ignored(bits: int) -> None:
    source = make_source(4, 40, 64, "FLOAT", "none", bits)
    before = source.pack("FLOAT")
    source.codes[:, 40:] ^= 2**bits - 1
    np.testing.assert_array_equal(source.pack("FLOAT"), before)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"b": 1}, "B has 1 bytes, expected 512 for 4 rows, K=256 block_size=32"),
        ({"scales": 5}, "scales have 5 bytes, expected 128"),
        ({"zero_points": 3}, "zero_points have 3 bytes, expected 16 of UINT8"),
        ({"scale_type": "DOUBLE"}, "scales must be FLOAT, FLOAT16 or BFLOAT16, got DOUBLE"),
    ],
)
def test_wrong_lengths_and_types_are_named(change: dict[str, Any], message: str) -> None:
    sizes: dict[str, int] = {"b": 512, "scales": 128, "zero_points": 16} | {
        key: value for key, value in change.items() if key != "scale_type"
    }
    b, scales, zero_points = (np.zeros(size, np.uint8) for size in sizes.values())
    with pytest.raises(ValueError, match=message):
        _native.pack_matmulnbits(
            b, scales, zero_points, 4, 256, 32, change.get("scale_type", "FLOAT")
        )


def test_other_bits_are_refused() -> None:
    one = np.zeros(1, np.uint8)
    with pytest.raises(ValueError, match=r"bits .*3"):
        _native.pack_matmulnbits(one, one, None, 4, 256, 32, "FLOAT", 3)
    with pytest.raises(ValueError, match="B has 1 bytes, expected 256"):
        _native.pack_matmulnbits(one, one, None, 4, 256, 32, "FLOAT", 2)
