"""bfp16ebs8 by its definition, and as a chip converted values: those and their bytes are published
in MicroPerceptron/virtio-accel, `research/bfp16ebs8`."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from ort_aie_ep.errors import AieError
from ort_aie_ep.formats import bfp16

RNG_SEED = 37


def signed(blocks: np.ndarray) -> list[int]:
    """Exponent, then mantissas of one block."""
    return [int(blocks[0]), *(int(m) for m in blocks[1:].view(np.int8))]


def block(*values: float) -> np.ndarray:
    return np.array([*values, *[0.0] * (8 - len(values))], np.float32)


@pytest.mark.parametrize(
    ("values", "want"),
    [
        # The largest is -2, so 127/64 falls between two mantissas.
        ([1, -1, 0.5, -0.5, 1.5, -1.5, 127 / 64, -2], [128, 32, -32, 16, -16, 48, -48, 63, -64]),
        (
            [1, 1 / 64, 1 / 128, 1.5 / 64, -1 / 64, 0, 1 + 1 / 64, -1 - 1 / 64],
            [127, 64, 1, 0, 1, -1, 0, 65, -65],
        ),
        (
            [-1, -0.5, -0.25, -0.75, -1.25, -1.75, -1.984375, -0.125],
            [127, -64, -32, -16, -48, -80, -112, -127, -8],
        ),
        # Subnormal values are zeros.
        ([2.0**-149, 2.0**-126 - 2.0**-149], [0] * 9),
        ([3.4028235e38, 1.7014117e38, 1, -1, 2.0**120, -(2.0**120)],
         [254, 127, 63, 0, -1, 0, -1, 0, 0]),
        ([np.inf, -np.inf, np.nan, -np.nan, 1, -1, 0, -0.0],
         [255, 64, -64, 96, -96, 0, -1, 0, 0]),
        ([127.5 / 64, -127.5 / 64, 1, -1], [127, 127, -128, 64, -64, 0, 0, 0, 0]),
    ],
)  # fmt: skip
def test_floor_gives_the_bytes_of_the_chip(values: list[float], want: list[int]) -> None:
    assert signed(bfp16.encode(block(*values), np.floor)) == want


def test_a_mantissa_beyond_the_largest_makes_the_exponent_grow_as_on_the_chip() -> None:
    values = block(127.5 / 64, -127.5 / 64, 1, -1, 127 / 64, -127 / 64, 0.5, -0.5)
    # Ties to even, in units twice as large: 63.5 is 64.
    assert signed(bfp16.encode(values)) == [128, 64, -64, 32, -32, 64, -64, 16, -16]


def test_ties_go_to_even_on_both_sides_of_zero() -> None:
    values = block(1.0, 0.5 / 64, 1.5 / 64, 2.5 / 64, -0.5 / 64, -1.5 / 64, -2.5 / 64, 3.5 / 64)
    assert signed(bfp16.encode(values)) == [127, 64, 0, 2, 2, 0, -2, -2, 4]


def test_the_largest_finite_value_is_a_mantissa_and_no_smaller_exponent() -> None:
    values = block(*[2.0**e for e in range(-3, 5)])
    assert signed(bfp16.encode(values)) == [131, 0, 1, 2, 4, 8, 16, 32, 64]  # 0.5: to even


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_the_error_is_at_most_that_stated(dtype: type) -> None:
    rng = np.random.default_rng(RNG_SEED)
    values = rng.standard_normal((4096, 8)) * np.exp2(rng.integers(-20, 20, (4096, 1)))
    values[::2] *= np.exp2(rng.integers(-6, 1, (2048, 8)))
    values[:64, 0] = np.exp2(np.arange(-32, 32)) * (255 / 128)  # each of these lets e grow
    values = values.astype(dtype).astype(np.float64)
    error = np.abs(bfp16.decode(bfp16.encode(values)) - values)
    relative = error / np.abs(values).max(-1, keepdims=True)
    assert relative.max() <= bfp16.ERROR
    # Nothing smaller would do: 129 beside a largest of 255/2 is half of a doubled unit off.
    worst = block(255.0, 1.0)
    assert np.abs(bfp16.decode(bfp16.encode(worst)) - worst)[0] == 1
    assert np.abs(bfp16.decode(bfp16.encode(worst)) - worst)[1] / 255 == pytest.approx(1 / 255)
    edge = block(255.0, 2.0)  # one unit of 4 is as far as none
    assert np.abs(bfp16.decode(bfp16.encode(edge)) - edge)[1] / 255 == bfp16.ERROR


def test_decoded_blocks_are_encoded_as_they_were() -> None:
    rng = np.random.default_rng(RNG_SEED)
    blocks = bfp16.encode(rng.standard_normal((64, 64)))
    assert np.array_equal(bfp16.encode(bfp16.decode(blocks)), blocks)


def test_partial_blocks_are_refused() -> None:
    with pytest.raises(AieError, match=r"\(3, 12\) must be a multiple of 8"):
        bfp16.encode(np.zeros((3, 12)))
