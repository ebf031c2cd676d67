"""Blocks of bfloat16 weights for aie.GEMM, in the order in which the NPU's GEMM reads B.

As in Q4NX, a weight matrix (N out-features, K in-features) is cut into blocks of 32 x 256,
row-major. A block has 8,192 elements (16,384 bytes), with the weight of (n, k) at
[k / 8][n / 8][k % 8][n % 8]. N and K are padded with zeros.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from ort_aie_ep.errors import AieError

BLOCK_ROWS = 32
BLOCK_COLS = 256
BLOCK_ELEMENTS = BLOCK_ROWS * BLOCK_COLS

Array = npt.NDArray[Any]
bfloat16 = np.dtype(ml_dtypes.bfloat16)


def blocks_shape(n: int, k: int) -> tuple[int, int, int]:
    """Shape of the packed tensor: (ceil(N / 32), ceil(K / 256), 8192)."""
    return -(-n // BLOCK_ROWS), -(-k // BLOCK_COLS), BLOCK_ELEMENTS


def pack(weights: Array) -> Array:
    """Packs (N, K) weights of any float type: `blocks_shape` bfloat16, rounded ties to even.

    Raises:
        AieError: weights are not 2-D, or are empty.
    """
    if weights.ndim != 2 or weights.size == 0:
        raise AieError(f"weights must be (N, K) and not empty, got shape {weights.shape}")
    n, k = weights.shape
    rows, cols, _ = blocks_shape(n, k)
    padded = np.zeros((rows * BLOCK_ROWS, cols * BLOCK_COLS), bfloat16)
    padded[:n, :k] = weights
    # (block row, n / 8, n % 8, block column, k / 8, k % 8)
    parts = padded.reshape(rows, 4, 8, cols, 32, 8)
    return np.ascontiguousarray(parts.transpose(0, 3, 4, 1, 5, 2)).reshape(rows, cols, -1)
