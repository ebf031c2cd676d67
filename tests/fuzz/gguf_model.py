"""GGUF files: the metadata, the tensors' descriptions, and the model and tokenizer made of them.

An input is the beginning of a file, to which 64 KB of zeros are added for its tensors.
"""

from __future__ import annotations

import atheris
from target import fuzz, scratch

with atheris.instrument_imports(include=["ort_aie_ep", "gguf"]):
    from ort_aie_ep.compiler.gguf.architecture import Model
    from ort_aie_ep.compiler.gguf.file import read_gguf
    from ort_aie_ep.compiler.gguf.importer import graph
    from ort_aie_ep.compiler.gguf.tokenizer import write_tokenizer

FOLDER = scratch()
FILE = FOLDER / "model.gguf"


def test(data: bytes) -> None:
    """Reads a file, and builds the graph without its weights."""
    FILE.write_bytes(data + bytes(1 << 16))
    file = read_gguf(FILE)
    write_tokenizer(file, FOLDER)
    graph(Model(file), {})


if __name__ == "__main__":
    fuzz(test)
