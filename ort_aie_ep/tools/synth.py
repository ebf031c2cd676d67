"""Models of any size without a download: random int4 weights in the model builder's graphs.

`synth("llama-3.2-1b", folder)` writes what onnxruntime-genai's model builder 0.18 writes for the
CPU at int4 (symmetric, blocks of 32 by default, accuracy level 4): the same nodes, names,
attributes, types and file layout, which tests/test_synth.py compares node by node. Only the numbers
are random, scaled so that activations stay near one. Such a folder has no tokenizer: it is for
measuring speed and memory, and for tests.

Weights are written to disk a few megabytes at a time, so memory does not grow with the model.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path

import onnx_ir as ir

from ort_aie_ep.disk import require_room
from ort_aie_ep.errors import AieError
from ort_aie_ep.models.builder.config import genai_config
from ort_aie_ep.models.builder.decoder import build
from ort_aie_ep.models.builder.weights import BLOCK, FLOATS, INT4, Coding
from ort_aie_ep.models.shapes import SHAPES, Shape
from ort_aie_ep.progress import Progress

DATA_FILE = "model.onnx.data"
_BLOCKS = (16, 32, 64, 128, 256)  # of MatMulNBits and QMoE


class SynthError(AieError):
    """The requested model cannot be made, or cannot be written to that place."""


def _write(
    shape: Shape, folder: Path, seed: int, int4: bool, block: int, progress: Progress | None
) -> None:
    def codings(name: str) -> Coding:
        # The builder quantises experts when it reads them, and leaves what is narrow.
        quantised = ".experts." in name or (int4 and not _is_narrow(name, shape))
        return INT4 if quantised else FLOATS

    model, weights = build(shape, codings, block)
    total = sum(weight.bytes for weight in weights)
    require_room(folder, total, "the weights", SynthError)
    offset = 0
    with (folder / DATA_FILE).open("wb") as file:
        for weight in weights:
            model.graph.initializers[weight.name].const_value = ir.ExternalTensor(
                DATA_FILE,
                offset,
                weight.bytes,
                weight.dtype,
                shape=ir.Shape(weight.shape),
                name=weight.name,
                base_dir=folder,
            )
            for chunk in weight.chunks(seed):
                file.write(chunk.data)
                offset += chunk.nbytes
                if progress is not None:
                    progress(offset, total, weight.name)
    ir.save(model, folder / "model.onnx")
    config = json.dumps(genai_config(shape), indent=4) + "\n"
    (folder / "genai_config.json").write_text(config)


def _is_narrow(name: str, shape: Shape) -> bool:
    """Whether the builder leaves a matrix in floats: the gates of linear attention, and the router
    of LFM2."""
    role = name.rpartition(".")[2]
    return role in ("a_proj", "b_proj") or (role == "router" and shape.family == "lfm2_moe")


def _resolve(shape: str | Shape, layers: int | None, vocab: int | None, block: int) -> Shape:
    if isinstance(shape, str):
        if shape not in SHAPES:
            raise SynthError(f"no shape is called {shape!r}; expected one of {', '.join(SHAPES)}")
        shape = SHAPES[shape]
    shape = replace(
        shape,
        layers=shape.layers if layers is None else layers,
        vocab=shape.vocab if vocab is None else vocab,
    )
    for what in ("layers", "vocab"):
        if getattr(shape, what) < 1:
            raise SynthError(f"{what} must be at least 1, not {getattr(shape, what)}")
    if block not in _BLOCKS:
        raise SynthError(f"block_size must be one of {', '.join(map(str, _BLOCKS))}, not {block}")
    # A gathered row of the embedding, and QMoE's rows, have no partial blocks.
    for what, size in (("hidden", shape.hidden), ("ffn", shape.ffn if shape.experts else 0)):
        if size % block:
            raise SynthError(f"{what} must be a multiple of {block}, not {size}")
    return shape


def synth(
    shape: str | Shape,
    dst: str | Path,
    *,
    layers: int | None = None,
    vocab: int | None = None,
    seed: int = 0,
    int4: bool = True,
    block_size: int = BLOCK,
    progress: Progress | None = None,
) -> Path:
    """Write a genai folder with random weights, and return its path.

    `shape` is a name from `SHAPES` or a `Shape`; `layers` and `vocab` override its own values.
    Without `int4`, the weights are float32, to try quantisation on; with it, `block_size` of them
    share a scale. The same arguments give the
    same bytes. Writes beside `dst` and renames, so `dst` is complete or absent. `progress` counts
    bytes.

    Raises `SynthError` for an unknown name, sizes below one, a destination that exists or cannot be
    written, or too little room on the disk.
    """
    shape = _resolve(shape, layers, vocab, block_size)
    if seed < 0:
        raise SynthError(f"seed must be at least 0, not {seed}")
    dst = Path(dst)
    try:
        if dst.exists() or dst.is_symlink():
            raise SynthError(f"{dst} already exists; pass a new folder or remove it")
        dst.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{dst.name}.", dir=dst.parent) as scratch:
            # A folder in a folder: the outer one is private, the inner has the usual permissions.
            folder = Path(scratch, "model")
            folder.mkdir()
            _write(shape, folder, seed, int4, block_size, progress)
            folder.rename(dst)
    except OSError as error:
        raise SynthError(f"cannot write {dst}: {error.strerror or error}") from error
    return dst
