"""aie.Q4NXGather, compared with ONNX Runtime's GatherBlockQuantized and the dequantised rows."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import numpy_q4nx as q4nx
import pytest
from op_models import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    NEEDS_TWO_BITS,
    ONNX_TYPES,
    ORT_VERSION,
    one_op_model,
    open_session,
    run,
)
from projection_calls import gather as of_weights
from projection_calls import gather_block_quantized, make_weights

from ort_aie_ep import _native

Array = npt.NDArray[Any]

N, K = 70, 320


def embedding(seed: int = 0) -> tuple[Array, Array]:
    """(N, K) float32 values that are exact in every type here, and their Q4NX blocks."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 16, (N, K), dtype=np.uint8)
    scales = 2.0 ** rng.integers(-6, 0, (N, K // 32))
    blocks = q4nx.pack(codes, scales, -8 * scales)
    return q4nx.dequantize(blocks, N, K), blocks


def gather_model(
    blocks: Array,
    indices: Array,
    dtype: np.dtype[Any],
    *,
    change: dict[str, int] | None = None,
    constant: bool = True,
    **options: Any,
) -> bytes:
    given = {"K": K, "N": N, "dtype": ONNX_TYPES[dtype], "format": _native.FORMAT} | (change or {})
    inputs = {"W": blocks, "indices": indices}
    constants = ("W",) if constant else ()
    return one_op_model("Q4NXGather", inputs, {"Y": dtype}, given, constants=constants, **options)


def gather(blocks: Array, indices: Array, dtype: np.dtype[Any] = FLOAT32) -> Array:
    return run(open_session(gather_model(blocks, indices, dtype)), {"indices": indices})["Y"]


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16, BFLOAT16])
@pytest.mark.parametrize("index_type", [np.int32, np.int64])
@pytest.mark.parametrize("shape", [(), (1000,), (2, 5), (2, 3, 4), (0,), (2, 0)])
def test_rows_of_any_shape_of_indices(
    dtype: np.dtype[Any], index_type: npt.DTypeLike, shape: tuple[int, ...]
) -> None:
    weights, blocks = embedding()
    indices = np.asarray(np.random.default_rng(1).integers(-N, N, shape), index_type)
    y = gather(blocks, indices, dtype)
    assert y.dtype == dtype
    # The comparison is exact: every value has few enough bits.
    np.testing.assert_array_equal(y.astype(np.float32), weights[indices])


@pytest.mark.parametrize("index_type", [np.int32, np.int64])
def test_indices_out_of_range_give_zeros(index_type: npt.DTypeLike) -> None:
    weights, blocks = embedding()
    limits = np.iinfo(index_type)
    # 70..95 are rows of the padding.
    indices = np.array([N, N + 1, 95, 96, -N - 1, limits.max, limits.min, 3], index_type)
    y = gather(blocks, indices)
    np.testing.assert_array_equal(y[:-1], 0)
    np.testing.assert_array_equal(y[-1], weights[3])


@pytest.mark.parametrize("bits", [4, pytest.param(2, marks=NEEDS_TWO_BITS), 8])
def test_equals_gather_block_quantized(bits: int) -> None:
    for zero_points, block_size in product((False, True), (32, 64)):
        if zero_points and block_size == 64 and ORT_VERSION < (1, 31):
            continue  # it reads the padding at the end of a row as a zero point
        w = make_weights(
            N, K, block_size=block_size, zero_points=zero_points, exact=True, bits=bits
        )
        expected = gather_block_quantized(w, np.arange(N))
        for dtype in (FLOAT32, FLOAT16, BFLOAT16):  # codes times powers of two are exact in each
            y = of_weights(w, np.array([[0, N - 1, -1], [-N, N, 33]]), dtype).astype(np.float32)
            np.testing.assert_array_equal(y.reshape(6, K)[[0, 1, 2, 3, 5]],
                                          expected[[0, N - 1, N - 1, 0, 33]])  # fmt: skip
            assert not y[1, 1].any()


def test_results_are_rounded_once() -> None:
    # scale * code + min is computed in float32 and then rounded to nearest even.
    rng = np.random.default_rng(3)
    blocks = q4nx.quantize(rng.standard_normal((N, K)).astype(np.float32))
    weights = q4nx.dequantize(blocks, N, K)
    indices = np.arange(N)
    for dtype in (FLOAT32, FLOAT16, BFLOAT16):
        y = gather(blocks, indices, dtype)
        np.testing.assert_array_equal(y, weights.astype(dtype))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 4}, "the model has format 4, but this library reads formats 1 to 3"),
        ({"format": 2}, "attribute group must be 32, 64, 128 or 256, got 0"),
        (
            {"K": 700},
            r"input W must be uint8 \(3, 3, 5120\) for K=700 N=70, got uint8 \(3, 2, 5120",
        ),
        ({"N": 10}, r"input W must be uint8 \(1, 2, 5120\) for K=320 N=10, got uint8 \(3, 2, 5120"),
        ({"N": 0}, "attributes K and N must be positive, got K=320 N=0"),
        ({"K": -1}, "attributes K and N must be positive, got K=-1 N=70"),
    ],
)
def test_wrong_attributes_are_named(change: dict[str, int], message: str) -> None:
    _, blocks = embedding()
    indices = np.zeros(1, np.int64)
    with pytest.raises(Exception, match=f"aie.Q4NXGather node 'the_node': {message}"):
        open_session(gather_model(blocks, indices, FLOAT32, change=change))
    assert gather(blocks, indices).shape == (1, K)


def test_a_number_of_no_type_is_refused() -> None:
    _, blocks = embedding()
    indices = np.zeros(1, np.int64)
    models = [gather_model(blocks, indices, FLOAT32, change={"dtype": number})
              for number in (-1, 0, 99, 2**32 + 1)]  # fmt: skip
    for model in (*models, gather_model(blocks, indices, np.dtype(np.int32))):
        with pytest.raises(Exception, match="'the_node': attribute dtype"):
            open_session(model)


def test_weights_that_are_not_an_initializer_are_refused() -> None:
    _, blocks = embedding()
    with pytest.raises(Exception, match=r"'the_node': input W .*constant"):
        open_session(gather_model(blocks, np.zeros(1, np.int64), FLOAT32, constant=False))


def test_wrong_indices_are_named() -> None:
    _, blocks = embedding()
    indices = np.zeros(3, np.float32)
    session = open_session(gather_model(blocks, indices, FLOAT32))
    with pytest.raises(Exception, match=r"the_node.*indices .*int32.*int64.*float"):
        run(session, {"indices": indices})


def test_shapes_are_inferred() -> None:
    _, blocks = embedding()
    indices = np.zeros((1, 1), np.int64)
    model = gather_model(blocks, indices, FLOAT16, dims={"indices": ["batch", "sequence"]})
    (output,) = open_session(model).get_outputs()
    assert output.shape == ["batch", "sequence", K]
    assert output.type == "tensor(float16)"
