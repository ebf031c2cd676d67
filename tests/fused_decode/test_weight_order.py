"""Weights, caches and words as mlir-air's fused decode reads them, compared with plain loops.

Sizes are those of mlir-air's own table. The tests define the order of blocks a second time, from
the reader's side: what core (cx, cy) gets through its channel, block after block.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from sizes import BLOCK, MODELS, PHASES, ROTARY, SIZES

from ort_aie_ep import _npu

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]


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


def stream(packed: Bytes, at: int, rows: int, columns: int, channels: int) -> Iterator[Any]:
    """A phase's blocks as its cores get them: (row block, column block, block).

    Each of four columns of cores has a share that begins at a quarter of the phase. With two
    channels, the first half of the share goes to the two lower cores, the second to the others.
    """
    share = rows * columns // 4
    for cx in range(4):
        place = at + cx * share
        groups = ((0, 1, 2, 3),) if channels == 1 else ((0, 1), (2, 3))
        for cores in groups:
            for i in range(rows // 16):
                for j in range(columns):
                    for cy in cores:
                        yield 16 * i + 4 * cx + cy, j, packed[place]
                        place += 1


def matrices(
    packed: Bytes, phases: list[tuple[int, int]], channels: int
) -> Iterator[tuple[Bytes, int]]:
    """The matrix of each phase, and the number of its blocks in the stream."""
    at = 0
    for rows, columns in phases:
        matrix: Bytes = np.zeros((rows, columns, BLOCK), np.uint8)
        seen = set()
        for g, j, block in stream(packed, at, rows, columns, channels):
            matrix[g, j] = block
            seen.add((g, j))
        yield matrix, len(seen)
        at += rows * columns
    assert at == len(packed)


def blocks(rng: np.random.Generator, rows: int, columns: int) -> Bytes:
    return rng.integers(0, 256, (rows, columns, BLOCK), dtype=np.uint8)


@pytest.mark.parametrize(
    ("model", "channels"),
    [
        ("llama-3.2-1b", 1),
        ("llama-3.2-1b", 2),
        # The tables of other models are compared above.
        pytest.param("phi4-mini", 2, marks=pytest.mark.in_turn),
        pytest.param("gemma3-4b", 2, marks=pytest.mark.in_turn),
    ],
)
def test_cores_get_each_block_of_a_layer_once(model: str, channels: int) -> None:
    rng = np.random.default_rng(len(model) + channels)
    rows, columns, _ = PHASES[model]
    geometry = _npu.fused_decode_geometry(model)
    q = geometry["heads"] * geometry["head_dim"] // 32
    kv = geometry["kv_heads"] * geometry["head_dim"] // 32
    qkv = [blocks(rng, part, columns[0]) for part in (q, kv, kv)]
    assert sum(map(len, qkv)) == rows[0]
    o, up, gate, down = (
        blocks(rng, n, k)
        for n, k in (
            (rows[1], columns[1]),
            *[(rows[2] // 2, columns[2])] * 2,
            (rows[3], columns[3]),
        )
    )
    packed = _npu.fused_decode_pack_layer(
        model, channels, qkv=qkv, o=o, up=up, gate=gate, down=down
    )
    found = list(matrices(packed.reshape(-1, BLOCK), geometry["phases"], channels))
    assert [count for _, count in found] == [n * k for n, k in zip(rows, columns, strict=True)]
    np.testing.assert_array_equal(found[0][0], np.concatenate(qkv))
    np.testing.assert_array_equal(found[1][0], o)
    for start in range(0, rows[2], 32):  # 512 rows of up, 512 of gate
        half = slice(start // 2, start // 2 + 16)
        np.testing.assert_array_equal(found[2][0][start : start + 16], up[half])
        np.testing.assert_array_equal(found[2][0][start + 16 : start + 32], gate[half])
    np.testing.assert_array_equal(found[3][0], down)
    # As one tensor, q, k and v have the same rows.
    joined = _npu.fused_decode_pack_layer(
        model, channels, qkv=[np.concatenate(qkv)], o=o, up=up, gate=gate, down=down
    )
    np.testing.assert_array_equal(joined, packed)


@pytest.mark.parametrize("channels", [1, 2])
def test_the_lm_head_ends_with_blocks_of_zeros(channels: int) -> None:
    rng = np.random.default_rng(3)
    geometry = _npu.fused_decode_geometry("llama-3.2-1b")
    vocabulary = 128_256 // 32
    head: Bytes = np.zeros((vocabulary, 8, BLOCK), np.uint8)
    head[:, :, :64] = rng.integers(1, 256, (vocabulary, 8, 64), dtype=np.uint8)
    rows, columns = geometry["head_chunk"]
    assert (rows * 32, geometry["head_chunks"]) == (18_432, 7)
    for chunk in (0, 3, 6):
        packed = _npu.fused_decode_pack_head_chunk("llama-3.2-1b", channels, head, chunk)
        ((found, count),) = matrices(packed.reshape(-1, BLOCK), [(rows, columns)], channels)
        assert count == rows * columns
        expected: Bytes = np.zeros_like(found)
        part = head[chunk * rows : (chunk + 1) * rows]
        expected[: len(part)] = part
        np.testing.assert_array_equal(found, expected)
    assert len(part) < rows  # the last chunk has padding


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
