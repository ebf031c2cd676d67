"""Sizes of mlir-air's fused decode, compared with its own table; places of rows, and words. The
order of blocks is what tests/xrt/executor/fused_device.cc unpacks."""

from __future__ import annotations

import numpy as np
import pytest
from sizes import BLOCK, MODELS, PHASES, ROTARY, SIZES

from ort_aie_ep import _npu


def test_the_models_are_those_of_the_table() -> None:
    assert _npu.fused_decode_models() == list(MODELS)


@pytest.mark.parametrize("model", MODELS)
def test_buffers_have_the_sizes_of_the_table(model: str) -> None:
    geometry = _npu.fused_decode_geometry(model)
    weights, rms, kv, before_logits, logits = SIZES[model]
    assert geometry["weight_elements"] == weights
    assert geometry["rms_elements"] == rms
    assert _npu.fused_decode_kv_elements(model, 2048) == kv
    assert geometry["logits_offset"] == before_logits
    assert geometry["y_elements"] == before_logits + logits
    assert (geometry["rotary_slab"], geometry["rotary_slabs"]) == ROTARY[model]


@pytest.mark.parametrize("model", MODELS)
def test_phases_have_the_blocks_of_the_table(model: str) -> None:
    geometry = _npu.fused_decode_geometry(model)
    rows, columns, elements = PHASES[model]
    assert geometry["phases"] == list(zip(rows, columns, strict=True))
    assert geometry["layer_elements"] == elements


def test_a_model_that_nobody_built_is_refused() -> None:
    with pytest.raises(ValueError, match="llama-7b"):
        _npu.fused_decode_geometry("llama-7b")


@pytest.mark.parametrize("part", ["qkv", "o", "up", "gate", "down"])
def test_a_matrix_of_another_height_is_named(part: str) -> None:
    rows, columns, _ = PHASES["llama-3.2-1b"]
    heights = dict(zip(("qkv", "o", "up", "gate", "down"), (96, 64, 256, 256, 64), strict=True))
    heights[part] -= 1
    widths = dict(zip(("qkv", "o", "up", "gate", "down"), (8, 8, 8, 8, 32), strict=True))
    assert rows[2] == 2 * 256
    assert columns[3] == 32
    given = {name: np.zeros((heights[name], widths[name], BLOCK), np.uint8) for name in heights}
    name = {"qkv": "query, key and value", "o": "output"}.get(part, part)
    with pytest.raises(ValueError, match=rf"rows of {name}, got {heights[part] * 32}"):
        _npu.fused_decode_pack_layer(
            "llama-3.2-1b", 2, qkv=[given["qkv"]], **{n: given[n] for n in given if n != "qkv"}
        )


@pytest.mark.parametrize("vocabulary", [7 * 18_432 + 32, 6 * 18_432])
def test_a_vocabulary_that_is_not_the_overlays_is_refused(vocabulary: int) -> None:
    head = np.zeros((vocabulary // 32, 8, BLOCK), np.uint8)
    with pytest.raises(ValueError, match=r"110592 .*129024"):
        _npu.fused_decode_pack_head_chunk("llama-3.2-1b", 2, head, 0)


@pytest.mark.parametrize("model", MODELS)
def test_rows_of_the_cache_lie_in_regions_of_half_of_the_heads(model: str) -> None:
    positions = 32
    geometry = _npu.fused_decode_geometry(model)
    heads, dim = geometry["kv_heads"], geometry["head_dim"]
    expected = 0
    for layer in range(2):
        for value in (False, True):
            for group in range(2):
                for position in range(positions):
                    for head in range(group * heads // 2, (group + 1) * heads // 2):
                        assert expected == _npu.fused_decode_kv_offset(
                            model, positions, layer, value, head, position
                        )
                        expected += dim
    assert expected * geometry["layers"] == 2 * _npu.fused_decode_kv_elements(model, positions)


def test_words_are_base_and_slope() -> None:
    rng = np.random.default_rng(6)
    base = rng.integers(0, 2**32, 100, dtype=np.uint32)
    slopes = [(3, 1), (17, 256), (18, -4), (99, 2**31 + 5)]
    for length in (1, 2046, 2047, 2048):
        words = _npu.fused_decode_words(
            base=base, slopes=slopes, base_length=2047, positions=2048, length=length
        )
        expected = [int(word) for word in base]
        for word, slope in slopes:
            expected[word] = (expected[word] + (length - 2047) * slope) % 2**32
        np.testing.assert_array_equal(words, np.array(expected, np.uint32))
    for length in (0, 2049):
        with pytest.raises(ValueError, match=rf"1 to 2048 .*{length}"):
            _npu.fused_decode_words(
                base=base, slopes=slopes, base_length=2047, positions=2048, length=length
            )
