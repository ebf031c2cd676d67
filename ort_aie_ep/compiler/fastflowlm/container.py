"""The container of a `.q4nx` file: safetensors, with few dtypes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from ort_aie_ep.errors import AieError
from ort_aie_ep.formats import q4nx
from ort_aie_ep.models import safetensors_file
from ort_aie_ep.models.safetensors_file import LENGTH_BYTES, Stored
from ort_aie_ep.progress import Count

# Q4NX blocks, (blocks, 5120) bytes; the same before August 2026, when the shape was the matrix's,
# (N, K), and minima were zero points (`tensors`); everything else.
PACKED, OLDER, FLOAT = "I8", "Q4NX", "BF16"
ITEM_BITS = {PACKED: 8, FLOAT: 16, OLDER: 8 * q4nx.BLOCK_BYTES // q4nx.BLOCK_WEIGHTS}
# The header is padded to a multiple of this with spaces.
HEADER_MULTIPLE = 8


def read_container(path: Path) -> dict[str, Stored]:
    """The tensors of a file by name; those of dtype "I8" or "Q4NX" are Q4NX blocks.

    Raises:
        AieError: there is no such file, or it is not a sound container; the message says what is
            wrong, with the tensor's name.
    """
    if path.is_dir():
        raise AieError(f"{path} is a folder, not a .q4nx file; pass {path / 'model.q4nx'}")
    return safetensors_file.read_container(path, ".q4nx", ITEM_BITS)


@dataclass(frozen=True)
class Tensor:
    """A tensor that is to be written.

    Attributes:
        name, dtype, shape: as in the file.
        chunks: makes its bytes, piece by piece.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    chunks: Callable[[], Iterator[npt.NDArray[Any]]]

    @classmethod
    def of(cls, name: str, values: npt.NDArray[Any]) -> Tensor:
        """A tensor of bfloat16 values that are in memory."""
        return cls(name, FLOAT, values.shape, lambda: iter([values]))

    @property
    def nbytes(self) -> int:
        """Its size."""
        return math.prod(self.shape) * ITEM_BITS[self.dtype] // 8


def write_container(file: BinaryIO, tensors: Sequence[Tensor], count: Count) -> None:
    """Writes a container in the order of the safetensors package, which FastFlowLM's converter
    uses: wider dtypes first, then by name. `count` counts bytes."""
    ordered = sorted(tensors, key=lambda each: (-ITEM_BITS[each.dtype], each.name))
    header, offset = {}, 0
    for each in ordered:
        ends = [offset, offset + each.nbytes]
        header[each.name] = {"dtype": each.dtype, "shape": each.shape, "data_offsets": ends}
        offset = ends[1]
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % HEADER_MULTIPLE)
    file.write(len(text).to_bytes(LENGTH_BYTES, "little") + text)
    count.total = offset
    for each in ordered:
        count.begin(each.name)
        for chunk in each.chunks():
            data = np.ascontiguousarray(chunk).view(np.uint8)
            file.write(data.data)
            count.step(data.nbytes)
