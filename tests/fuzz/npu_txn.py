"""Words of instruction streams: decoded, and shown as text.

An input is the words, little endian.
"""

from __future__ import annotations

import atheris
import numpy as np
from target import fuzz

with atheris.instrument_imports(include=["ort_aie_ep"]):
    from ort_aie_ep.npu.txn import decode, format_stream


def test(data: bytes) -> None:
    """Decodes a stream; what decodes can be shown."""
    words = np.frombuffer(data[: len(data) // 4 * 4], np.dtype("<u4"))
    format_stream(decode(words))


if __name__ == "__main__":
    fuzz(test)
