"""`ort-aie import-q4nx`: a `.q4nx` file and its config.json in, a compiled genai folder out.

The graph is the model builder's for the family (`models.builder` writes it), and the passes are
those of `compile`. Only the weights come from the file: its blocks are copied unchanged, a few
megabytes at a time.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Unpack

import numpy as np
import onnx_ir as ir

from ort_aie_ep.compiler.compiled_folder import (
    CompileResult,
    ModelFile,
    check_destination,
    write_folder,
)
from ort_aie_ep.compiler.fastflowlm.config import ModelConfig, Rotary, read_config
from ort_aie_ep.compiler.fastflowlm.container import FLOAT, OLDER, PACKED, read_container
from ort_aie_ep.compiler.fastflowlm.names import (
    CARRIED_OVER,
    CODES,
    COMPILED,
    EMBEDDING,
    FFN_MULTIPLE,
    ROPE_FACTORS,
    ROTARY_TABLES,
    SCALES,
    matrices,
    vectors,
)
from ort_aie_ep.compiler.fastflowlm.tensors import (
    bfloat16_rows,
    bfloat16_values,
    coding,
    float_vector,
    packed_rows,
)
from ort_aie_ep.compiler.options import GraphKeywords, GraphOptions, takes
from ort_aie_ep.errors import AieError
from ort_aie_ep.formats import q4nx
from ort_aie_ep.graph_passes import run_passes
from ort_aie_ep.graph_passes.weights.streamed import StreamedTensor
from ort_aie_ep.models.builder.config import genai_config
from ort_aie_ep.models.builder.decoder import build
from ort_aie_ep.models.builder.weights import Weight, rotary_rows
from ort_aie_ep.models.folder import ModelFolder
from ort_aie_ep.models.safetensors_file import Stored
from ort_aie_ep.models.shapes import Shape
from ort_aie_ep.progress import Progress

_LAYER = re.compile(r"model\.layers\.(\d+)\.")


@takes(GraphKeywords)
def import_q4nx(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    config: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    **options: Unpack[GraphKeywords],
) -> CompileResult:
    """Writes the model in a `.q4nx` file as the new compiled folder `destination`.

    Args:
        source: the file, as FastFlowLM's converter writes it.
        destination: a folder that does not exist yet. It is written under another name beside it
            and renamed at the end.
        config: config.json; by default the one beside `source`. generation_config.json and the
            tokenizer's files beside it are used and carried over.
        progress: counts bytes of weights as they are written.
        options: see `GraphOptions`; without `kv`, past and present are float32.

    Raises:
        AieError: a file is missing or damaged, the family is not supported, the weights do not fit
            the configuration, or the destination exists or cannot be written. Nothing is then left
            behind.
    """
    path, target = Path(source), Path(destination)
    asked = GraphOptions.of(**options)
    check_destination(target)
    file = _File(path, read_container(path))
    config_path = path.parent / "config.json" if config is None else Path(config)
    settings = read_config(config_path, file.fitting)
    # The file's rows of the embedding are already multiplied by √hidden in families that do so.
    shape = replace(settings.shape, embedding_scale=1.0)
    model, weights = build(shape, table=ir.DataType.BFLOAT16)
    packed = _set_weights(model, weights, file, shape, settings)
    file.check_all_used(shape)
    report = run_passes(model, fuse=asked.fuse, q4nx_compatible=True)
    _set_blocks(model, packed)
    folder = config_path.parent
    name = folder / "model.onnx"
    return write_folder(
        target,
        [ModelFile(name, model, report)],
        asked,
        source=ModelFolder(folder, name, _genai_config(shape, settings)),
        files=[folder / name for name in CARRIED_OVER if (folder / name).is_file()],
        progress=progress,
    )


@dataclass(frozen=True)
class _Packed:
    """A projection's blocks, and whether all its minima are −8 · scale."""

    blocks: StreamedTensor
    symmetric: bool


class _File:
    """The tensors of a file: each is checked against the model's needs, and marked when used."""

    def __init__(self, path: Path, tensors: dict[str, Stored]) -> None:
        self.path = path
        self._tensors = tensors
        self._unused = set(tensors)

    def get(self, name: str) -> Stored | None:
        """A tensor that may be missing."""
        self._unused.discard(name)
        return self._tensors.get(name)

    def values(self, name: str, shape: tuple[int, ...]) -> Stored:
        """A BF16 tensor of that shape."""
        stored = self._tensor(name, FLOAT)
        if stored.shape != shape:
            raise AieError(
                f"{self.path}: tensor '{name}' is {stored.shape}; by config.json it must be {shape}"
            )
        return stored

    def blocks(self, name: str, n: int, k: int) -> Stored:
        """A packed (n, k) matrix."""
        stored = self._tensor(name, PACKED, OLDER)
        if stored.dtype == OLDER:
            return self._older_blocks(stored, n, k)
        expected = q4nx.blocks_shape(n, k)
        if stored.nbytes != math.prod(expected) or stored.shape[-1:] != expected[-1:]:
            raise AieError(
                f"{self.path}: tensor '{name}' is {stored.shape}, {stored.nbytes} bytes; "
                f"by config.json it must be ({n}, {k}), which is {expected} as Q4NX, "
                f"{math.prod(expected)} bytes"
            )
        return stored

    def _older_blocks(self, stored: Stored, n: int, k: int) -> Stored:
        if stored.shape != (n, k) or n % q4nx.BLOCK_ROWS or k % q4nx.BLOCK_COLS:
            raise AieError(
                f"{self.path}: tensor '{stored.name}' is {OLDER} {stored.shape}; by config.json it "
                f"must be ({n}, {k}), in blocks of ({q4nx.BLOCK_ROWS}, {q4nx.BLOCK_COLS})"
            )
        return stored

    def fitting(self, shape: Shape) -> Shape:
        """`shape` with the file's feed-forward width, which may be padded.

        All other sizes must match the file's embedding, first layer and number of layers, so that
        no work starts with sizes that only config.json supports.
        """
        shape = self._stored_width(shape)
        layers = {found[1] for name in self._tensors if (found := _LAYER.match(name))}
        if shape.layers > len(layers):
            raise AieError(
                f"{self.path} has {len(layers)} layers; config.json has num_hidden_layers "
                f"{shape.layers}"
            )
        unused = set(self._unused)  # looking at a tensor does not use it
        self.values(EMBEDDING, (shape.vocab, shape.hidden))
        for role in ("qkv_proj", "o_proj", "gate_proj", "up_proj", "down_proj"):
            place = "attn" if role in ("qkv_proj", "o_proj") else "mlp"
            rows_of, k = matrices(f"model.layers.0.{place}.{role}", shape)
            for name, rows in rows_of.items():
                self.blocks(name, rows, k)
        self._unused = unused
        return shape

    def _stored_width(self, shape: Shape) -> Shape:
        gate = self._tensors.get("model.layers.0.mlp.gate_proj.weight")
        padded = -(-shape.ffn // FFN_MULTIPLE) * FFN_MULTIPLE
        if gate is None or gate.nbytes != math.prod(q4nx.blocks_shape(padded, shape.hidden)):
            return shape
        return replace(shape, ffn=padded)

    def check_all_used(self, shape: Shape) -> None:
        """Raises AieError for an unused tensor: the model would not be what its makers intended."""
        if self._unused:
            names = sorted(self._unused)
            more = f" and {len(names) - 5} more" if len(names) > 5 else ""
            raise AieError(
                f"{self.path} has tensors that a {shape.family} with {shape.layers} layers does "
                f"not have: {', '.join(names[:5])}{more}"
            )

    def _tensor(self, name: str, *dtypes: str) -> Stored:
        stored = self.get(name)
        if stored is None:
            raise AieError(f"{self.path} lacks tensor '{name}'")
        if stored.dtype not in dtypes:
            raise AieError(
                f"{self.path}: tensor '{name}' is {stored.dtype}; expected {' or '.join(dtypes)}"
            )
        return stored


def _set_weights(
    model: ir.Model, weights: Iterable[Weight], file: _File, shape: Shape, settings: ModelConfig
) -> dict[str, _Packed]:
    """Gives every initializer its value; returns blocks by their initializers' later names."""
    packed = {}
    for weight in weights:
        name, value = weight.name, model.graph.initializers[weight.name]
        if name.endswith((CODES, SCALES)):
            value.const_value = _never_read(weight)
            if name.endswith(CODES):
                packed[name + COMPILED] = _blocks(name.removesuffix(CODES), file, shape)
        elif name.startswith(ROTARY_TABLES):
            value.const_value = _rotary_table(weight, file, settings)
        elif name == EMBEDDING:
            value.const_value = bfloat16_rows(name, weight.shape, file.values(name, weight.shape))
        else:
            parts = [file.values(key, (n,)) for key, n in vectors(name, shape).items()]
            value.const_value = float_vector(name, parts)
    return packed


def _blocks(basename: str, file: _File, shape: Shape) -> _Packed:
    """The blocks of a projection, given its name in the builder."""
    rows_of, k = matrices(basename, shape)
    parts = [file.blocks(name, rows, k) for name, rows in rows_of.items()]
    for name, rows in [*rows_of.items()][:-1]:
        if rows % q4nx.BLOCK_ROWS:
            raise AieError(
                f"{file.path}: tensor '{name}' has {rows} rows, not a multiple of "
                f"{q4nx.BLOCK_ROWS}, and cannot be joined with the next"
            )
    codings = [coding(part) for part in parts]
    blocks = packed_rows(
        basename + CODES + COMPILED,
        q4nx.blocks_shape(sum(rows_of.values()), k),
        [(part, how) for part, (how, _) in zip(parts, codings, strict=True)],
    )
    return _Packed(blocks, all(symmetric for _, symmetric in codings))


def _rotary_table(weight: Weight, file: _File, settings: ModelConfig) -> StreamedTensor:
    function = np.cos if weight.name.startswith("cos") else np.sin
    suffix = weight.name.removeprefix("cos_cache").removeprefix("sin_cache")
    rotary = settings.rotary[suffix]
    if suffix != "_local":
        _check_factors(file, rotary)
    table = replace(weight, fill=rotary_rows(function, rotary.frequencies))
    return StreamedTensor(weight.name, weight.dtype, weight.shape, lambda: table.chunks(0))


def _check_factors(file: _File, rotary: Rotary) -> None:
    """Checks the factors that divide the frequencies, rounded to bfloat16, if the file has them."""
    stored = file.get(ROPE_FACTORS)
    if stored is None:
        return
    factors = bfloat16_values(file.values(ROPE_FACTORS, rotary.frequencies.shape))
    if not np.allclose(factors * rotary.frequencies, rotary.unscaled, rtol=2**-8, atol=0):
        raise AieError(
            f"{file.path}: tensor '{ROPE_FACTORS}' does not match the rotary embedding of "
            "config.json (rope_theta, rope_scaling): they belong to different models"
        )


def _never_read(weight: Weight) -> ir.LazyTensor:
    """Stands in for tensors that the passes replace: they only need the size."""

    def read() -> ir.TensorProtocol:
        raise AssertionError(f"{weight.name} has no data")

    shape = ir.Shape(weight.shape)
    return ir.LazyTensor(read, dtype=weight.dtype, shape=shape, name=weight.name)


def _set_blocks(model: ir.Model, packed: dict[str, _Packed]) -> None:
    """Gives the projections made by the passes their blocks."""
    for name, weights in packed.items():
        model.graph.initializers[name].const_value = weights.blocks
    for node in model.graph:
        used = [packed[value.name] for value in node.inputs if value and value.name in packed]
        if used:
            symmetric = all(weights.symmetric for weights in used)
            node.attributes.add(ir.AttrInt64("symmetric", int(symmetric)))


def _genai_config(shape: Shape, settings: ModelConfig) -> dict[str, object]:
    config = genai_config(shape)
    config["model"].update(settings.tokens)
    config["search"].update(settings.search)
    return config
