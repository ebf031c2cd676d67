"""The container of a `.q4nx` file: safetensors, read without trusting it.

It has 8 bytes with the header's length in little endian; the header, JSON with each tensor's dtype,
shape and offsets; and the tensors' bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ort_aie_ep.errors import AieError
from ort_aie_ep.models.checked_json import parse_json, shown
from ort_aie_ep.models.files import open_regular

PACKED, FLOAT = "I8", "BF16"
ITEM_BYTES = {PACKED: 1, FLOAT: 2}
LENGTH_BYTES = 8
# The limit in safetensors' own reader.
HEADER_LIMIT = 100_000_000


@dataclass(frozen=True)
class Stored:
    """A tensor in a file.

    Attributes:
        name: its name in the file.
        dtype: "I8" for Q4NX blocks, else "BF16".
        shape: its shape in the file.
        file: the file.
        offset: position of its first byte in the file.
        nbytes: its size.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    offset: int
    nbytes: int

    def chunks(self, step: int) -> Iterator[npt.NDArray[np.uint8]]:
        """Its bytes, at most `step` at a time.

        Raises:
            AieError: the file cannot be read, or has become shorter.
        """
        for first in range(0, self.nbytes, step):
            count = min(step, self.nbytes - first)
            try:
                data = np.fromfile(self.file, np.uint8, count, offset=self.offset + first)
            except OSError as error:
                raise AieError(f"{self.file} cannot be read: {error.strerror}") from error
            if data.size != count:
                raise AieError(f"{self.file} ends inside tensor '{self.name}': it is truncated")
            yield data


def read_container(path: Path) -> dict[str, Stored]:
    """The tensors of a file by name.

    Raises:
        AieError: there is no such file, or it is not a sound container; the message says what is
            wrong, with the tensor's name.
    """
    if path.is_dir():
        raise AieError(f"{path} is a folder, not a .q4nx file; pass {path / 'model.q4nx'}")
    try:
        size = path.stat().st_size
        with open_regular(path) as file:
            length = int.from_bytes(file.read(LENGTH_BYTES), "little")
            begin = LENGTH_BYTES + length
            if size < LENGTH_BYTES or length > HEADER_LIMIT or begin > size:
                raise AieError(
                    f"{path} has {size} bytes and claims a header of {length}: "
                    "it is truncated or not a .q4nx file"
                )
            text = file.read(length)
    except OSError as error:
        raise AieError(f"{path} cannot be read: {error.strerror}") from error
    header = dict(parse_json(text, f"{path}: its header", unique=True).object())
    header.pop("__metadata__", None)
    tensors = [_tensor(path, begin, size, name, entry) for name, entry in header.items()]
    tensors.sort(key=lambda tensor: (tensor.offset, tensor.nbytes))
    for one, other in pairwise(tensors):
        if one.offset + one.nbytes > other.offset:
            raise AieError(f"{path}: tensors '{one.name}' and '{other.name}' overlap")
    return {tensor.name: tensor for tensor in tensors}


def _tensor(path: Path, begin: int, size: int, name: str, entry: Any) -> Stored:
    where = f"{path}: tensor '{name}'"
    try:
        dtype, shape, (first, last) = entry["dtype"], entry["shape"], entry["data_offsets"]
        sizes = (*shape, first, last)
        sound = isinstance(dtype, str) and isinstance(shape, list)
        sound = sound and all(type(n) is int and n >= 0 for n in sizes)
    except (KeyError, TypeError, ValueError):
        sound = False
    if not sound:
        raise AieError(
            f"{where} has no valid dtype, shape and data_offsets in the header: {str(entry)[:200]}"
        )
    if dtype not in ITEM_BYTES:
        raise AieError(f"{where} is {dtype}; a .q4nx file has only {' and '.join(ITEM_BYTES)}")
    nbytes = _bytes(shape, ITEM_BYTES[dtype], size)
    if last - first != nbytes:
        raise AieError(
            f"{where} has bytes {first} to {last}, but {dtype} {shown(tuple(shape))} needs "
            f"{nbytes if nbytes <= size else 'more than the file has'}"
        )
    if begin + last > size:
        raise AieError(
            f"{where} ends at byte {begin + last}, but the file ends at {size}: it is truncated"
        )
    return Stored(name, dtype, tuple(shape), path, begin + first, nbytes)


def _bytes(shape: list[int], item: int, size: int) -> int:
    """Bytes of a tensor; if they exceed `size`, any number above it."""
    if 0 in shape:
        return 0
    nbytes = item
    for length in shape:
        nbytes *= length
        if nbytes > size:
            break
    return nbytes
