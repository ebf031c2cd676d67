"""The scales of a KV cache's codes, and what the codes lose."""

from __future__ import annotations

import numpy as np
import pytest

from ort_aie_ep.formats.kv_codes import Floats, channel_scales, largest_code, relative_error


def rows_of(*, heads: int = 2, tokens: int = 500, channels: int = 8) -> Floats:
    """Normal random numbers, each channel with its own size."""
    generator = np.random.default_rng(3)
    rows = generator.standard_normal((1, heads, tokens, channels), np.float32)
    return rows * generator.uniform(0.1, 10, (1, heads, 1, channels)).astype(np.float32)


def test_codes_of_8_bits_have_room_for_a_quarter_more_than_was_seen() -> None:
    rows = rows_of()
    largest = np.abs(rows).max(axis=2, keepdims=True)
    np.testing.assert_allclose(channel_scales(rows, 8), 1.25 * largest / 127, rtol=1e-6)


def test_codes_of_4_bits_lose_the_least_that_any_range_of_theirs_does() -> None:
    rows = rows_of()
    largest = np.abs(rows).max(axis=2, keepdims=True) / 7

    def errors(scales: Floats) -> Floats:
        codes = np.clip(np.rint(rows / scales), -8, 7)
        total: Floats = np.square(codes * scales - rows).sum(axis=2)
        return total

    found = errors(channel_scales(rows, 4))
    assert (found < 0.8 * errors(largest)).all()
    # The search steps by a twentieth of the range: between two steps there is little to gain.
    parts = np.arange(0.3, 1.2, 0.01, np.float32)
    assert (found <= 1.05 * np.min([errors(largest * part) for part in parts], axis=0)).all()


@pytest.mark.parametrize("bits", [8, 4])
def test_silent_channels_get_a_part_of_their_heads_range(bits: int) -> None:
    rows = rows_of()
    rows[:, 0, :, 0] = 0
    rows[:, 1] = 0
    scales = channel_scales(rows, bits)
    top = largest_code(bits)
    least = np.abs(rows[:, 0]).max() / 1024 / top
    # The margin of 8 bits, and the narrowest range of 4.
    assert 0.39 * least <= scales[0, 0, 0, 0] <= 1.26 * least
    # A head of zeros: any scale that can be a divisor.
    assert (scales[0, 1] > 0).all()
    assert np.isfinite(scales).all()


@pytest.mark.parametrize(("bits", "codes"), [(8, (-128, 127)), (4, (-8, 7))])
def test_the_error_is_that_of_rounded_and_clipped_codes(bits: int, codes: tuple[int, int]) -> None:
    rows = np.array([codes[0] - 3, codes[0], 0.25, codes[1] + 4], np.float32).reshape(1, 1, 4, 1)
    scales = np.full((1, 1, 1, 1), 0.5, np.float32)
    errors = np.array([3, 0, 0.25, 4])  # in steps of the scale, as the rows are
    expected = np.linalg.norm(errors) / np.linalg.norm(rows)
    assert relative_error(rows * scales, scales, bits) == pytest.approx(expected)
    assert relative_error(rows * 0, scales, bits) == 0
