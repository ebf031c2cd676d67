"""A GGUF file, read without trusting it: its metadata, and its tensors, mapped.

The package gguf reads the header. It takes lengths as they are written, so each read is checked
here against the end of the file. The parts of a split file are read together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.gguf_reader import GGUFReader

from ort_aie_ep.compiler.gguf import parts_of
from ort_aie_ep.errors import AieError
from ort_aie_ep.models.checked_json import Field, shown
from ort_aie_ep.models.files import open_regular
from ort_aie_ep.models.folder import GGUF
from ort_aie_ep.models.safetensors_file import LFS_POINTER

VERSIONS = (2, 3)
# More than any vocabulary has tokens or merges; each takes the reader some hundred bytes.
_MOST_ELEMENTS = 1 << 24


@dataclass(frozen=True)
class Tensor:
    """A tensor of a file.

    Attributes:
        name: its name.
        kind: its type.
        shape: its elements, in-features last.
        data: the same dimensions, the last one in elements of floats or in bytes of blocks; mapped.
    """

    name: str
    kind: GGMLQuantizationType
    shape: tuple[int, ...]
    data: npt.NDArray[Any]

    @property
    def matrix(self) -> npt.NDArray[Any]:
        """`data` in two dimensions."""
        return self.data.reshape(-1, self.data.shape[-1])


@dataclass(frozen=True)
class Gguf:
    """What a file, or all parts of a split one, contain.

    Attributes:
        path: the file, the first of several.
        metadata: its keys and values.
        tensors: tensors by name.
    """

    path: Path
    metadata: Field
    tensors: dict[str, Tensor]


def read_gguf(path: Path) -> Gguf:
    """Reads a file, and the other parts of a split one wherever it is named.

    Raises:
        AieError: a file is missing, truncated, damaged, or of a version that is not known; the
            message says which and what to do.
    """
    parts = parts_of(path)
    first = _read(parts[0])
    count = first.metadata.value.get("split.count", 1)
    if count not in (len(parts), 0):  # 0: a file that was split and merged again
        raise AieError(
            f"{parts[0]} is one of {shown(count)} parts, and its name says {len(parts)}: give the "
            "parts their names back, such as model-00001-of-00003.gguf"
        )
    tensors = dict(first.tensors)
    for number, part in enumerate(parts[1:], 1):
        other = _read(part)
        if other.metadata.value.get("split.no") != number or tensors.keys() & other.tensors.keys():
            raise AieError(f"{part} is not part {number + 1} of {parts[0]}: download it again")
        tensors |= other.tensors
    total = first.metadata.value.get("split.tensors.count", len(tensors))
    if total != len(tensors):
        raise AieError(
            f"{parts[0]} and its other parts have {len(tensors)} tensors, and should have "
            f"{shown(total)}: download them again"
        )
    return Gguf(parts[0], first.metadata, tensors)


def _read(path: Path) -> Gguf:
    _check_start(path)
    try:
        reader = _CheckedReader(path)
        metadata = {name: field.contents() for name, field in reader.fields.items()}
        tensors = {
            each.name: Tensor(
                each.name, each.tensor_type, tuple(map(int, each.shape[::-1])), each.data
            )
            for each in reader.tensors
        }
    except AieError:
        raise
    except OSError as error:
        raise AieError(f"{path} cannot be read: {error.strerror or error}") from error
    # The package has no error of its own.
    except (ValueError, KeyError, IndexError, TypeError, ArithmeticError, RecursionError) as error:
        raise AieError(f"{path} is damaged, or not a GGUF file: {error}") from error
    for tensor in tensors.values():
        if not tensor.shape or math.prod(tensor.shape) == 0:
            raise AieError(f"{path}: tensor '{tensor.name}' is empty")
    return Gguf(path, Field(metadata, str(path)), tensors)


def _check_start(path: Path) -> None:
    try:
        with open_regular(path) as file:
            start = file.read(8)
    except OSError as error:
        raise AieError(f"{path} cannot be read: {error.strerror or error}") from error
    if start == LFS_POINTER:
        raise AieError(f"{path} is a Git LFS pointer, not the file: fetch it (git lfs pull)")
    if start[:4] != GGUF or len(start) < 8:
        raise AieError(
            f"{path} is not a GGUF file: it begins with {start[:4]!r}, not {GGUF!r}; "
            "download it again"
        )
    version = int.from_bytes(start[4:], "little")
    if version & 0xFFFF == 0:
        raise AieError(f"{path} is big-endian; convert it to little-endian (gguf-convert-endian)")
    if version not in VERSIONS:
        what = "update ort_aie_ep" if version > max(VERSIONS) else "convert the model again"
        raise AieError(
            f"{path} is GGUF version {version}; expected {' or '.join(map(str, VERSIONS))}: {what}"
        )


class _CheckedReader(GGUFReader):  # type: ignore[misc]  # the package is not checked
    """Refuses to read beyond the file's end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        super().__init__(path)

    def _get(self, offset: Any, dtype: Any, count: Any = 1, *others: Any, **named: Any) -> Any:
        end, size = int(offset) + int(count) * np.dtype(dtype).itemsize, len(self.data)
        if end > size:
            raise AieError(
                f"{self._path} has {size} bytes and needs {end} or more: it is truncated; "
                "download it again"
            )
        return super()._get(int(offset), dtype, count, *others, **named)

    def _get_field_parts(self, orig_offs: Any, raw_type: Any) -> Any:
        if int(raw_type) == _ARRAY:
            elements = int(self._get(int(orig_offs) + 4, np.uint64)[0])
            if elements > _MOST_ELEMENTS:
                raise AieError(f"{self._path}: a list of {elements} elements is not plausible")
        return super()._get_field_parts(orig_offs, raw_type)

    def _get_tensor_info_field(self, orig_offs: Any) -> Any:
        found = super()._get_tensor_info_field(orig_offs)
        number = int(found.parts[4][0])
        if number not in set(GGMLQuantizationType):
            raise AieError(
                f"{self._path}: tensor '{found.name}' has type {number}, which the installed "
                "package gguf does not know: take a file of another type, or update gguf"
            )
        block, _ = GGML_QUANT_SIZES[GGMLQuantizationType(number)]
        columns = int(found.parts[3][0])
        if columns % block:
            raise AieError(
                f"{self._path}: tensor '{found.name}' has rows of {columns} weights; expected a "
                f"multiple of {block}, a block of {GGMLQuantizationType(number).name}: download "
                "the file again"
            )
        return found


_ARRAY = 9  # of GGUF's types of values
