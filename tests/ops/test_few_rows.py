"""Projections of a few rows: tokens of a draft, sequences of a small batch.

Each row is computed like a single row, so that a token does not depend on the other rows.
test_kernels.py and test_lookup_kernels.py compare single rows with numpy.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import numpy_q4nx as q4nx
import pytest
import q8nx
from op_models import BFLOAT16, FLOAT16, FLOAT32
from projection_calls import activations, make_weights, project

from ort_aie_ep import _native

Array = npt.NDArray[Any]

# (N, K): whole blocks, padded out-features, padded in-features, less than one group.
SHAPES = [(64, 512), (33, 320), (5, 40), (32, 7)]


def symmetric_blocks(rng: np.random.Generator, n: int, k: int, bits: int) -> Array:
    """Blocks whose minima are -2^(bits - 1) * scale."""
    if bits == 8:
        codes = rng.integers(0, 256, (n, k), dtype=np.uint8)
        scales = rng.uniform(-0.1, 0.1, (n, -(-k // 32))).astype(np.float32)
        return q8nx.pack(codes, scales, np.full(scales.shape, 128, np.uint8))
    weights = rng.standard_normal((n, k)).astype(np.float32)
    codes, scales, _ = q4nx.unpack(q4nx.quantize(weights, bits), n, k)
    return q4nx.pack(codes, scales, -(2.0 ** (bits - 1)) * scales.astype(np.float32), bits)


@pytest.mark.parametrize("isa", _native.available_isas())
@pytest.mark.parametrize("bits", [4, 2, 8])
@pytest.mark.parametrize("numerics", ["bf16", "int8"])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_each_of_a_few_rows_is_bit_for_bit_what_it_is_alone(
    isa: str, bits: int, numerics: str, symmetric: bool, gated: bool, n: int, k: int
) -> None:
    rng = np.random.default_rng([n, k, symmetric, gated])
    most = min(33, _native.most_streamed_rows(bits, numerics, isa))
    assert most >= 4
    a = rng.standard_normal((most, k)).astype(np.float32)
    norm_weight = rng.standard_normal(k).astype(np.float32) if gated else None
    gate, up = symmetric_blocks(rng, n, k, bits), symmetric_blocks(rng, n, k, bits)

    def project(rows: Array) -> Array:
        return _native.project(
            rows, gate, n, numerics, isa, symmetric, norm_weight, up if gated else None
        )

    alone = np.concatenate([project(a[row : row + 1]) for row in range(most)])
    for rows in range(2, most + 1):
        np.testing.assert_array_equal(project(a[:rows]), alone[:rows], err_msg=f"{rows} rows")


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16, BFLOAT16])
@pytest.mark.parametrize("bits", [4, 2, 8])
@pytest.mark.parametrize("accuracy_level", [0, 4])
def test_a_row_of_a_batch_is_what_it_is_alone_in_each_type_with_a_bias(
    dtype: np.dtype[Any], bits: int, accuracy_level: int
) -> None:
    weights = make_weights(40, 320, dtype=dtype, bits=bits)
    a = activations(2, 2, 320, dtype=dtype)
    bias = activations(40, dtype=dtype)
    y = project(weights, a, bias=bias, accuracy_level=accuracy_level)
    for row in np.ndindex(2, 2):
        alone = project(weights, a[row][None], bias=bias, accuracy_level=accuracy_level)
        np.testing.assert_array_equal(y[row], alone[0])
