"""Hugging Face checkpoints and LoRA adapters: their configurations and headers.

An input is JSON in four parts, with a line "--" between: config.json, the header of the weights,
adapter_config.json and the header of its weights. The tensors' bytes are zeros, as many as a
hundred kilobytes at most.
"""

from __future__ import annotations

import struct
from pathlib import Path

import atheris
from target import MARK, fuzz, scratch

with atheris.instrument_imports(include=["ort_aie_ep"]):
    from ort_aie_ep.models.adapter import read_adapter
    from ort_aie_ep.models.checkpoint import read_checkpoint

FOLDER = scratch()
BYTES = 100_000
(FOLDER / "tokenizer.json").write_text("{}")


def container(path: Path, header: bytes) -> None:
    """A safetensors file with a header."""
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + BYTES)


def test(data: bytes) -> None:
    """Reads a checkpoint, and an adapter that should fit it."""
    config, header, adapter, halves, *_ = [*data.split(MARK), b"", b"", b""]
    (FOLDER / "config.json").write_bytes(config)
    (FOLDER / "adapter_config.json").write_bytes(adapter)
    container(FOLDER / "model.safetensors", header)
    container(FOLDER / "adapter_model.safetensors", halves)
    checkpoint = read_checkpoint(FOLDER)
    assert checkpoint.layers >= 0
    read_adapter(FOLDER, checkpoint)


if __name__ == "__main__":
    fuzz(test, of_json=True)
