"""The inverse of `ort_aie_ep.formats.bf16_blocks.pack`."""

from __future__ import annotations

from ort_aie_ep.formats.bf16_blocks import BLOCK_COLS, BLOCK_ROWS, Array


def unpack(blocks: Array, n: int, k: int) -> Array:
    """The weights (n, k) bfloat16, with the padding if n and k are those of the blocks."""
    rows, cols, _ = blocks.shape
    parts = blocks.reshape(rows, cols, 32, 4, 8, 8).transpose(0, 3, 5, 1, 2, 4)
    return parts.reshape(rows * BLOCK_ROWS, cols * BLOCK_COLS)[:n, :k]
