"""The words of a window, and how a longer context changes them."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ort_aie_ep.models.files import read_regular
from ort_aie_ep.npu.fused_decode.folder import Pair
from ort_aie_ep.npu.simulator.registers import core_memory_of
from ort_aie_ep.npu.simulator.txn import (
    AddressPatch,
    BlockWrite,
    InstructionStream,
    Operation,
    Write,
    decode,
)
from ort_aie_ep.npu.terms.errors import PackageError, StreamError

Words = npt.NDArray[np.uint32]

#: The device that mlir-air's fused decode is for.
DEVICE = "npu2"
_GENERATION, _COLUMNS = 4, 8


@dataclass(frozen=True)
class Build:
    """The words for one length of context."""

    path: Path
    words: Words
    stream: InstructionStream


def read_build(path: Path) -> Build:
    """Read the words. Raises PackageError if they are damaged, or for another device."""
    try:
        data = read_regular(path)
    except OSError as error:
        raise PackageError(f"{path} cannot be read: {error.strerror}") from error
    if len(data) % 4 != 0:
        raise PackageError(f"{path} has {len(data)} bytes, expected words of 4")
    words = np.frombuffer(data, np.uint32)
    try:
        stream = decode(words)
    except StreamError as error:
        raise PackageError(f"{path}: {error}") from error
    header = stream.header
    if (header.generation, header.columns) != (_GENERATION, _COLUMNS):
        raise PackageError(
            f"{path} is for generation {header.generation} with {header.columns} columns; the "
            f"fused decode is for {DEVICE} (generation {_GENERATION}) with {_COLUMNS}"
        )
    return Build(path, words, stream)


def slopes_of(pair: Pair, base: Build, cache: int, row_bytes: int) -> dict[int, int]:
    """What an additional token adds to words, by their index.

    It may change the length that the attention cores receive, and, by `row_bytes`, the place of the
    token's row in buffer `cache`.

    Raises:
        PackageError: the words of the two lengths differ in anything else, or do not differ in
            both.
    """
    other = read_build(pair.words(pair.positions))
    starts = [operation.offset for operation in base.stream.operations]
    if [operation.offset for operation in other.stream.operations] != starts:
        raise PackageError(
            f"{base.path} and {other.path.name} have different operations: they are of different "
            "builds"
        )
    slopes: dict[int, int] = {}
    lengths = rows = 0
    for index in np.flatnonzero(base.words != other.words).tolist():
        place = bisect_right(starts, index) - 1
        one, next_one = (build.stream.operations[place] for build in (base, other))
        if place >= 0 and _tells_length(one, next_one, pair):
            lengths += 1
        elif place >= 0 and _names_row(one, next_one, pair, cache, row_bytes):
            rows += 1
        else:
            raise PackageError(
                f"{base.path} and {other.path.name} differ at word {index} ({base.words[index]:#x} "
                f"and {other.words[index]:#x}), which is neither the length for attention nor the "
                "place of the token's row: they are of different builds, or of a version of "
                "mlir-air that this one does not know"
            )
        slopes[index] = int(other.words[index]) - int(base.words[index])
    if lengths == 0 or rows == 0:
        missing = "the length for attention" if lengths == 0 else "the place of its row"
        raise PackageError(
            f"{base.path} and {other.path.name}: one more token does not change {missing}, so "
            "these are not the words of a fused decode"
        )
    return slopes


def _tells_length(one: Operation, other: Operation, pair: Pair) -> bool:
    lengths = (pair.base_length, pair.positions)
    match one, other:
        case Write(), Write():
            return core_memory_of(one.address) is not None and (one.value, other.value) == lengths
        case BlockWrite(), BlockWrite():
            return core_memory_of(one.address) is not None and all(
                a == b or (a, b) == lengths for a, b in zip(one.words, other.words, strict=True)
            )
    return False


def _names_row(one: Operation, other: Operation, pair: Pair, cache: int, row_bytes: int) -> bool:
    if not isinstance(one, AddressPatch) or not isinstance(other, AddressPatch):
        return False
    row = one.buffer_offset // row_bytes % pair.positions
    return (
        one.argument == other.argument == cache
        and one.address == other.address
        and row == pair.base_length - 1
        and other.plus - one.plus == row_bytes
    )
