"""The forms that GGUF files have, at their own bits, in blocks of 32 out-features x 32, 64 or 256
in-features.

`src/q4nx/file_forms.h` is the definition, and says where a block has each number; this module is
what Python sees of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ort_aie_ep import _native
from ort_aie_ep.errors import AieError
from ort_aie_ep.formats.q4nx import BLOCK_ROWS


@dataclass(frozen=True)
class FileForm:
    """A row of the table. `name` is that of the type in GGUF, in lower case, and of an op's
    attribute `type`; `ggml_type` its number in a file; `columns` the in-features of a block, of
    which K is a multiple; `group` those that share a scale; `bits` those of a code.
    """

    name: str
    ggml_type: int
    columns: int
    group: int
    bits: int
    minima: bool
    block_bytes: int

    def __str__(self) -> str:
        """For people, as `BlockForm`: the form and stored bits a weight."""
        return f"{self.name.upper()}: {self.bits_a_weight:.3g} bits a weight"

    @property
    def bits_a_weight(self) -> float:
        """Stored bits of a weight, as many as in the file."""
        return 8 * self.block_bytes / (BLOCK_ROWS * self.columns)

    def row_bytes(self, k: int) -> int:
        """Bytes of a row of k weights in a file."""
        return k // self.columns * self.block_bytes // BLOCK_ROWS

    def blocks_shape(self, n: int, k: int) -> tuple[int, int, int]:
        """Shape of the packed tensor: (ceil(n / 32), k / columns, block_bytes)."""
        return -(-n // BLOCK_ROWS), k // self.columns, self.block_bytes

    def attributes(self) -> dict[str, int | str]:
        """The attributes of an op with such weights."""
        return {"format": _native.FORMAT_OF_FILES, "type": self.name}

    def pack(self, rows: npt.NDArray[np.uint8], k: int, tensor: str) -> npt.NDArray[np.uint8]:
        """Blocks of rows (N, row_bytes(k)) as in a file.

        Raises:
            AieError: K is not a multiple of `columns`, rows have another shape, or a scale is NaN
                or infinite, which the text says of `tensor`.
        """
        try:
            return _native.pack_file(self.name, rows, k, tensor)
        except ValueError as problem:
            raise AieError(str(problem)) from problem

    def unpack(self, blocks: npt.NDArray[np.uint8], n: int, k: int) -> npt.NDArray[np.uint8]:
        """The inverse of `pack`."""
        return _native.unpack_file(self.name, blocks, n, k)

    def dequantize(self, blocks: npt.NDArray[np.uint8], n: int, k: int) -> npt.NDArray[np.float32]:
        """Weights (n, k), with the bits of ggml's and gguf-py's."""
        return _native.dequantize_file(self.name, blocks, n, k)


#: By name, in the order of the table.
FILE_FORMS = {row["name"]: FileForm(**row) for row in _native.file_forms()}
#: By the number of the type in a file.
OF_GGML_TYPE = {form.ggml_type: form for form in FILE_FORMS.values()}
