"""The forms of GGUF files at their own bits: packing, and what reads the blocks.

An input is a byte each for the form, the rows and the blocks of a row, then the rows' bytes, which
are repeated or cut to fit.
"""

from __future__ import annotations

import atheris
import numpy as np
from target import fuzz

with atheris.instrument_imports(include=["ort_aie_ep"]):
    from ort_aie_ep.errors import AieError
    from ort_aie_ep.formats.file_forms import FILE_FORMS

FORMS = list(FILE_FORMS.values())


def test(data: bytes) -> None:
    """Packs rows and unpacks them again. Any bytes can be dequantised, as blocks too."""
    if len(data) < 4:
        return
    form = FORMS[data[0] % len(FORMS)]
    n, k = 1 + data[1] % 40, form.columns * (1 + data[2] % 4)
    given = np.frombuffer(data[3:], np.uint8)
    form.dequantize(np.resize(given, form.blocks_shape(n, k)), n, k)
    rows = np.resize(given, (n, form.row_bytes(k)))
    try:
        blocks = form.pack(rows, k, "w")
    except AieError:
        return  # a scale that is NaN or infinite
    np.testing.assert_array_equal(form.unpack(blocks, n, k), rows)


if __name__ == "__main__":
    fuzz(test)
