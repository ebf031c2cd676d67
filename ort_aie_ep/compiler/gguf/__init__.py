"""GGUF files, as llama.cpp and everybody who publishes for it write them, as compiled folders.

A file becomes the graph that onnxruntime-genai's model builder writes for its family
(`models.builder`), whose weights are made from the mapped file as they are packed; from there on it
is compiled as any other model. docs/gguf.md says what becomes of each type.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["is_gguf"]

MAGIC = b"GGUF"


def is_gguf(source: Path) -> bool:
    """Whether a path is meant to be a GGUF file: by its name, or by its first bytes."""
    from ort_aie_ep.models.files import is_regular, open_regular

    if not is_regular(source):
        return False
    if source.suffix.lower() == ".gguf":
        return True
    try:
        with open_regular(source) as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False
