"""Tensors of a compiled model that are read from a `.q4nx` file as they are written.

Q4_0. The converter packs most models as Q4_1: codes 0 … 15, weight = scale · code + min. Tensors of
type Q4_0 have minima of zero and *signed* codes in two's complement, weight = scale · signed(code),
and nothing else in the file tells the two apart. With u = code XOR 8 = signed(code) + 8,

    weight = scale · (u − 8) = scale · u + min,   min = −8 · scale.

Both are exact: u is 0 … 15, and −8 · scale is scale with its exponent raised by three, which
bfloat16 represents for every |scale| < 2^125 (larger scales are refused).

The older dtype. Before August 2026, FastFlowLM's files had dtype "Q4NX" where they now have "I8".
The blocks are the same, but a group has a zero point in the place of its minimum, and

    weight = scale · (code − zero),   so min = −scale · zero,

which is rounded to bfloat16: an error of at most |min| / 256, and none for a zero point of 8. The
source is the reader in Xilinx/mlir-air (programming_examples/llms/llama32_1b_q4nx,
llama32_1b_q4nx_weights.py, `Q4nxModel.dequant` at e972f294). It also says that such files resemble
the original weights less than newer ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import Enum

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ort_aie_ep.compiler.fastflowlm.container import OLDER
from ort_aie_ep.errors import AieError
from ort_aie_ep.formats import q4nx
from ort_aie_ep.graph_passes.weights.streamed import StreamedTensor
from ort_aie_ep.models.safetensors_file import Stored

# Bytes of a tensor read and written at a time: whole blocks and whole values.
CHUNK_BYTES = 3000 * q4nx.BLOCK_BYTES
CODES_BEGIN = 2 * q4nx.MINIMA_BYTES
SIGN_BITS = 0x88  # of both codes of a byte

_Blocks = npt.NDArray[np.uint8]
"""Blocks, (count, 5120)."""


class Coding(Enum):
    """How the blocks of a tensor give weights."""

    MINIMA = "scale · code + min"
    SIGNED = "scale · signed code"
    ZERO_POINTS = "scale · (code − zero)"


def coding(stored: Stored) -> tuple[Coding, bool]:
    """How a packed tensor gives weights, and whether every min is −8 · scale, or will be."""
    if stored.dtype == OLDER:
        return Coding.ZERO_POINTS, _holds(stored, _zero_points_are_eight)
    if _holds(stored, _minima_are_zero):
        return Coding.SIGNED, True
    return Coding.MINIMA, _holds(stored, _minima_are_minus_eight_scales)


def _holds(stored: Stored, rule: Callable[[_Blocks], bool]) -> bool:
    """Whether all blocks obey a rule; reads no more of them than needed."""
    chunks = stored.chunks(CHUNK_BYTES)
    return all(rule(chunk.reshape(-1, q4nx.BLOCK_BYTES)) for chunk in chunks)


def _minima_are_zero(blocks: _Blocks) -> bool:
    return not np.any(groups(blocks, q4nx.MINIMA_BYTES) & 0x7FFF)


def _minima_are_minus_eight_scales(blocks: _Blocks) -> bool:
    scales, minima = (_floats(blocks[:, i : i + q4nx.MINIMA_BYTES]) for i in (0, q4nx.MINIMA_BYTES))
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.array_equal(minima, np.float32(-8) * scales))


def _zero_points_are_eight(blocks: _Blocks) -> bool:
    scales, zeros = (_floats(blocks[:, i : i + q4nx.MINIMA_BYTES]) for i in (0, q4nx.MINIMA_BYTES))
    return bool(np.all((zeros == 8) | (scales == 0)))


def packed_rows(
    name: str, shape: tuple[int, int, int], parts: Sequence[tuple[Stored, Coding]]
) -> StreamedTensor:
    """Q4NX blocks of `shape`: the rows of packed tensors, one after the other.

    Args:
        name: the tensor's name.
        shape: (N / 32, K / 256, 5120).
        parts: packed tensors, and how they give weights.
    """

    def chunks() -> Iterator[npt.NDArray[np.uint8]]:
        for stored, how in parts:
            for chunk in stored.chunks(CHUNK_BYTES):
                blocks = chunk.reshape(-1, q4nx.BLOCK_BYTES)
                if how is Coding.SIGNED:
                    _set_minima(blocks, np.float32(8))
                    blocks[:, CODES_BEGIN:] ^= SIGN_BITS
                elif how is Coding.ZERO_POINTS:
                    zeros = blocks[:, q4nx.MINIMA_BYTES : CODES_BEGIN]
                    _set_minima(blocks, _floats(zeros))
                _check_finite(stored, blocks)
                yield blocks

    return StreamedTensor(name, ir.DataType.UINT8, shape, chunks)


def bfloat16_rows(name: str, shape: tuple[int, ...], stored: Stored) -> StreamedTensor:
    """A BF16 tensor as it is."""
    return StreamedTensor(name, ir.DataType.BFLOAT16, shape, lambda: stored.chunks(CHUNK_BYTES))


def float_vector(name: str, parts: Sequence[Stored]) -> ir.TensorProtocol:
    """BF16 tensors of one dimension, one after the other, as float32, which holds every bfloat16.

    Raises:
        AieError: a value is not finite.
    """
    values = [bfloat16_values(stored) for stored in parts]
    for stored, part in zip(parts, values, strict=True):
        if not np.isfinite(part).all():
            raise AieError(f"{stored.file}: tensor '{stored.name}' holds NaN or infinities")
    return ir.tensor(np.concatenate(values), name=name)


def bfloat16_values(stored: Stored) -> npt.NDArray[np.float32]:
    """All values of a BF16 tensor, flat."""
    data = np.concatenate([*stored.chunks(CHUNK_BYTES)])
    values: npt.NDArray[np.float32] = data.view(q4nx.bfloat16).astype(np.float32)
    return values


def _set_minima(blocks: npt.NDArray[np.uint8], zeros: npt.NDArray[np.float32] | np.float32) -> None:
    """Blocks (count, 5120), in place: minima become −scale · zero."""
    # + 0 turns the −0 of padding into the 0 that packing writes there.
    with np.errstate(over="ignore", invalid="ignore"):  # the check that follows finds these
        minima = -_floats(blocks[:, : q4nx.MINIMA_BYTES]) * zeros + np.float32(0)
        blocks[:, q4nx.MINIMA_BYTES : CODES_BEGIN] = minima.astype(q4nx.bfloat16).view(np.uint8)


def _floats(values: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    floats: npt.NDArray[np.float32] = (
        np.ascontiguousarray(values).view(q4nx.bfloat16).astype(np.float32)
    )
    return floats


def groups(chunk: npt.NDArray[np.uint8], begin: int) -> npt.NDArray[np.uint16]:
    """Bits of the scales (`begin` 0) or minima (512) of blocks."""
    blocks = chunk.reshape(-1, q4nx.BLOCK_BYTES)
    return np.ascontiguousarray(blocks[:, begin : begin + q4nx.MINIMA_BYTES]).view(np.uint16)


def _check_finite(stored: Stored, blocks: npt.NDArray[np.uint8]) -> None:
    for what, begin in (("scales", 0), ("minima", q4nx.MINIMA_BYTES)):
        if np.any(groups(blocks, begin) & 0x7F80 == 0x7F80):
            raise AieError(
                f"{stored.file}: tensor '{stored.name}' has {what} that are NaN, infinite or too "
                "large"
            )
