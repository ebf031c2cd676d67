"""A safetensors file, read without trusting it: checkpoints, adapters and `.q4nx` files.

It has 8 bytes with the header's length in little endian; the header, JSON with each tensor's dtype,
shape and offsets; and the tensors' bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ort_aie_ep.errors import AieError
from ort_aie_ep.models.checked_json import parse_json, shown
from ort_aie_ep.models.files import open_regular

# Bits of an element of each dtype that safetensors has in whole bytes.
ITEM_BITS = {
    **{"BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8},
    **{"U16": 16, "I16": 16, "F16": 16, "BF16": 16},
    **{"U32": 32, "I32": 32, "F32": 32, "U64": 64, "I64": 64, "F64": 64},
}
LENGTH_BYTES = 8
# The limit in safetensors' own reader.
HEADER_LIMIT = 100_000_000
# The first bytes of what Git has in place of a large file that was not fetched.
LFS_POINTER = b"version "


@dataclass(frozen=True)
class Stored:
    """A tensor in a file.

    Attributes:
        name: its name in the file.
        dtype: its name in the file, such as "BF16".
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


def read_container(
    path: Path, kind: str = "safetensors", item_bits: Mapping[str, int] = ITEM_BITS
) -> dict[str, Stored]:
    """The tensors of a file by name.

    Args:
        path: the file.
        kind: what the file should be, in errors.
        item_bits: the dtypes that such a file may have, and the bits of an element of each.

    Raises:
        AieError: there is no such file, or it is not a sound container; the message says what is
            wrong, with the tensor's name.
    """
    try:
        size = path.stat().st_size
        with open_regular(path) as file:
            start = file.read(LENGTH_BYTES)
            if start == LFS_POINTER:
                raise AieError(
                    f"{path} is a Git LFS pointer, not the file: fetch it (git lfs pull)"
                )
            length = int.from_bytes(start, "little")
            begin = LENGTH_BYTES + length
            if size < LENGTH_BYTES or length > HEADER_LIMIT or begin > size:
                raise AieError(
                    f"{path} has {size} bytes and claims a header of {length}: "
                    f"it is truncated or not a {kind} file"
                )
            text = file.read(length)
    except OSError as error:
        raise AieError(f"{path} cannot be read: {error.strerror}") from error
    header = dict(parse_json(text, f"{path}: its header", unique=True).object())
    header.pop("__metadata__", None)
    tensors = [
        _tensor(path, begin, size, name, entry, kind, item_bits) for name, entry in header.items()
    ]
    tensors.sort(key=lambda tensor: (tensor.offset, tensor.nbytes))
    for one, other in pairwise(tensors):
        if one.offset + one.nbytes > other.offset:
            raise AieError(f"{path}: tensors '{one.name}' and '{other.name}' overlap")
    return {tensor.name: tensor for tensor in tensors}


def _tensor(
    path: Path,
    begin: int,
    size: int,
    name: str,
    entry: Any,
    kind: str,
    item_bits: Mapping[str, int],
) -> Stored:
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
    if dtype not in item_bits:
        raise AieError(f"{where} is {dtype}; a {kind} file has only {' and '.join(item_bits)}")
    nbytes = _bytes(shape, item_bits[dtype], size)
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
    """Bytes of a tensor of elements of `item` bits; if they exceed `size`, any number above it."""
    if 0 in shape:
        return 0
    bits = item
    for length in shape:
        bits *= length
        if bits > 8 * size:
            break
    return -(-bits // 8)
