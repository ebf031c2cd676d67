"""Words of instruction streams: decoded, and shown as text.

An input is the words, little endian. Mutations seldom leave the header's counts right, so a stream
is decoded once more with the counts that its own errors ask for.
"""

from __future__ import annotations

import re

import atheris
import numpy as np
from target import fuzz

with atheris.instrument_imports(include=["ort_aie_ep"]):
    from ort_aie_ep.npu.simulator.txn import decode, format_stream
    from ort_aie_ep.npu.terms.errors import StreamError


def test(data: bytes) -> None:
    """Decodes a stream; every stream that decodes must also print."""
    words = np.frombuffer(data[: len(data) // 4 * 4], np.dtype("<u4")).copy()
    if words.size >= 4:
        words[3] = words.nbytes
        try:
            decode(words)
        except StreamError as error:
            if found := re.search(r"expected a count of (\d+)", str(error)):
                words[2] = int(found.group(1))
    format_stream(decode(words))


if __name__ == "__main__":
    fuzz(test)
