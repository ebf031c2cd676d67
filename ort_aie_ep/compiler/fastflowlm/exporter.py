"""`ort-aie export-q4nx`: a model of 4-bit weights in, a `.q4nx` file for FastFlowLM out.

It is the importer's inverse. `models.builder` says which initializers a model of the family has,
`names` which tensors of the file they become, and the blocks are copied as they are. Whatever the
file cannot say (config.json says it instead) must be what config.json says.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ort_aie_ep import _native
from ort_aie_ep.compiler.compiled_folder import check_destination
from ort_aie_ep.compiler.fastflowlm.config import ModelConfig, read_config
from ort_aie_ep.compiler.fastflowlm.container import FLOAT, PACKED, Tensor, write_container
from ort_aie_ep.compiler.fastflowlm.embedding import Embedding
from ort_aie_ep.compiler.fastflowlm.names import (
    BIAS,
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
from ort_aie_ep.compiler.fastflowlm.tensors import CHUNK_BYTES, groups
from ort_aie_ep.errors import AieError
from ort_aie_ep.formats import q4nx
from ort_aie_ep.graph_passes import Quantising, WeightForm, run_passes
from ort_aie_ep.graph_passes.attention.node import named_input
from ort_aie_ep.graph_passes.attention.rotary import frequencies_name
from ort_aie_ep.graph_passes.base import DOMAIN, NONE
from ort_aie_ep.graph_passes.planning import expand_plans
from ort_aie_ep.graph_passes.unique_names import name_nodes
from ort_aie_ep.graph_passes.walk import attribute
from ort_aie_ep.models.builder.decoder import build
from ort_aie_ep.models.builder.weights import rotary_rows
from ort_aie_ep.models.folder import find_model
from ort_aie_ep.models.onnx_file import is_compiled, load_model
from ort_aie_ep.models.shapes import Shape
from ort_aie_ep.progress import Count, Progress

__all__ = ["Exported", "export_q4nx"]

Array = npt.NDArray[Any]

# Rows of the rotary tables that are compared with config.json.
ROTARY_POSITIONS = 512
# Initializers with fewer values are not weights: sizes of a Reshape, a factor.
SMALLEST_WEIGHT = 16
_PROJECTION = re.compile(r"(model\.layers\.\d+\.(?:attn|mlp)\.\w+_proj|lm_head)\.")
_WIDTH = re.compile(r"_q(\d)nx$")
# FlowAttention's attributes that config.json decides, and their defaults.
ATTENTION: dict[str, float] = {
    "num_heads": 0,
    "kv_num_heads": 0,
    "do_rotary": 0,
    "local_window_size": -1,
    "rotary_interleaved": 0,
    "softcap": 0,
    "smooth_softmax": 0,
}
# FlowAttention's inputs that no family of `.q4nx` files uses.
UNSAID = ("attention_bias", "head_sink", "v_norm_weight")
EPSILONS = {"epsilon", "norm_epsilon", "qk_norm_epsilon"}


@dataclass(frozen=True)
class Exported:
    """What `export_q4nx` wrote.

    Attributes:
        path: the `.q4nx` file.
        tensors: how many tensors it has.
        bytes: its size.
        beside: names of the files that were copied beside it.
        kept: names of files that were there already, and stayed.
    """

    path: Path
    tensors: int
    bytes: int
    beside: tuple[str, ...]
    kept: tuple[str, ...]


def export_q4nx(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    config: str | os.PathLike[str] | None = None,
    quantize: str | None = None,
    progress: Progress | None = None,
) -> Exported:
    """Writes the model in `source` as the new `.q4nx` file `destination`.

    Embedding, norms and biases are rounded to bfloat16, which is all that the file has; the blocks
    of projections stay as compiling made them. config.json and the tokenizer's files are copied
    beside the file, except those that are there already.

    Args:
        source: a folder, compiled or not, with a model of the families that `import_q4nx` takes,
            and with the names that onnxruntime-genai's model builder gives.
        destination: a file that does not exist yet, in a folder that does.
        config: the model's config.json, as transformers writes it; by default the one in `source`.
        quantize: "q4nx" converts float weights of a source, as in `compile`.
        progress: counts bytes of the file as they are written.

    Raises:
        AieError: a file is missing or damaged, the family is not supported, the model has weights
            or sizes that a `.q4nx` file cannot hold or is not what config.json says, or the
            destination exists or cannot be written. Nothing is then left behind.
    """
    target = Path(destination)
    check_destination(target)
    folder = find_model(Path(source))
    config_path = folder.path / "config.json" if config is None else Path(config)
    settings = read_config(config_path)
    model = _load(folder.model, quantize)
    tensors = _Model(folder.model, model, settings).tensors()
    _write(target, tensors, progress)
    try:
        beside, kept = _carry_over(folder.path, config_path, target.parent)
    except BaseException:
        target.unlink(missing_ok=True)
        raise
    return Exported(target, len(tensors), target.stat().st_size, beside, kept)


def _load(path: Path, quantize: str | None) -> ir.Model:
    """The model after the passes, with a node for each step."""
    if quantize not in (None, WeightForm.Q4NX):
        raise AieError(f"quantize is {quantize!r}; a .q4nx file has 4-bit weights: q4nx")
    model = load_model(path)
    if is_compiled(model):
        if quantize is not None:
            raise AieError(f"{path} is compiled already: omit quantize, or pass its source")
        expand_plans(model)
        _widen(path, model)
        return model
    name_nodes(model)
    quantising = None if quantize is None else Quantising(WeightForm.Q4NX)
    run_passes(model, quantize=quantising, q4nx_compatible=True)
    return model


def _widen(path: Path, model: ir.Model) -> None:
    """Gives the 4-bit weights of a compiled model the form of the file, once they are read."""
    for node in model.graph:
        if node.domain == DOMAIN and (kind := attribute(node, "type", "")):
            raise AieError(
                f"{path}: weights of '{node.name}' are {kind} as in a GGUF file; a .q4nx file has "
                "Q4NX: compile the GGUF file again with --q4nx-compatible"
            )
        numbers = {a.name: a.as_int() for a in node.attributes.values() if a.type.name == "INT"}
        form = q4nx.BlockForm.of(numbers)
        if node.domain != DOMAIN or form.bits != 4 or form == q4nx.SHIPPING:
            continue
        n, k = numbers["N"], numbers["K"]
        shape = ir.Shape(q4nx.blocks_shape(n, k))
        for value in node.inputs:
            blocks = None if value is None else value.const_value
            if value is None or blocks is None or blocks.dtype != ir.DataType.UINT8:
                continue
            if blocks.shape == ir.Shape(form.blocks_shape(n, k)):  # not yet, for another node
                value.const_value = ir.LazyTensor(
                    partial(_widened, blocks, form, n, k),
                    dtype=ir.DataType.UINT8,
                    shape=shape,
                    name=value.name,
                )


def _widened(blocks: ir.TensorProtocol, form: q4nx.BlockForm, n: int, k: int) -> ir.TensorProtocol:
    data = np.ascontiguousarray(blocks.numpy())
    return ir.tensor(_native.widen(data, n, k, form.group, form.minima))


class _Model:
    """A model's initializers: each is checked against the file's needs, and marked when used."""

    def __init__(self, path: Path, model: ir.Model, settings: ModelConfig) -> None:
        self.path = path
        self.shape = settings.shape
        self._settings = settings
        self._graph = model.graph
        self._used: set[str] = set()
        self._projections: dict[str, list[ir.Value]] = {}
        for name, value in model.graph.initializers.items():
            if found := _PROJECTION.match(name):
                self._projections.setdefault(found[1], []).append(value)

    def tensors(self) -> list[Tensor]:
        """The tensors of the file."""
        _, weights = build(self.shape)
        made: list[Tensor] = []
        for weight in weights:
            name = weight.name
            if name.endswith(CODES):
                made += self._matrices(name.removesuffix(CODES))
            elif name == EMBEDDING:
                table = Embedding.of(self.path, self._graph, self.shape)
                self._used |= table.initializers
                made.append(Tensor(name, FLOAT, weight.shape, table.chunks))
            elif not name.endswith(SCALES) and not name.startswith(ROTARY_TABLES):
                made += self._vectors(name)
        made += self._rotary()
        self._check_attributes()
        self._check_all_used()
        return made

    def _matrices(self, basename: str) -> list[Tensor]:
        """A projection's blocks: one tensor, or one for each of the matrices that it joins."""
        rows_of, k = matrices(basename, self.shape)
        for name, n in rows_of.items():
            if n % q4nx.BLOCK_ROWS or k % q4nx.GROUP:
                raise AieError(
                    f"{self.path}: '{name}' is ({n}, {k}); a .q4nx file has rows in blocks of "
                    f"{q4nx.BLOCK_ROWS} and columns in groups of {q4nx.GROUP}"
                )
        if basename in self._projections:
            parts = {basename: rows_of}
        else:
            place = basename.rpartition(".")[0]
            parts = {f"{place}.{name.split('.')[-2]}": {name: n} for name, n in rows_of.items()}
        made = []
        for part, rows in parts.items():
            blocks = self._blocks(part, sum(rows.values()), k)
            first = 0
            for name, n in rows.items():
                last = first + n // q4nx.BLOCK_ROWS
                made.append(self._packed(name, blocks, first, last))
                first = last
        return made

    def _blocks(self, basename: str, n: int, k: int) -> ir.TensorProtocol:
        """The blocks of a projection, (n / 32, ceil(k / 256), 5120)."""
        given = [value for value in self._projections.get(basename, []) if _is_matrix(value)]
        # The float matrix of a tied lm_head stays, for the embedding.
        given = [value for value in given if str(value.name).endswith(COMPILED)] or given
        if len(given) != 1 or given[0].const_value is None:
            raise AieError(f"{self.path} lacks '{basename}', as the model builder names it")
        (value,) = given
        self._used.add(str(value.name))
        expected, shape = q4nx.blocks_shape(n, k), tuple(given[0].const_value.shape.numpy())
        if not str(value.name).endswith(COMPILED):
            width = _WIDTH.search(str(value.name))
            kind = f"{width[1]} bits" if width else f"type {value.dtype}"
            raise AieError(
                f"{self.path}: '{value.name}' has weights of {kind}; a .q4nx file has weights of "
                "4 bits"
            )
        if shape != expected:
            raise AieError(
                f"{self.path}: '{value.name}' is {shape}; by config.json ({n}, {k}) it must be "
                f"{expected}"
            )
        return given[0].const_value

    def _packed(self, name: str, blocks: ir.TensorProtocol, first: int, last: int) -> Tensor:
        """The block rows first … last - 1, flat, and padded where the converter pads."""
        role = name.split(".")[-2]
        columns = blocks.shape.numpy()[1]
        padded = _padded_ffn(self.shape)
        rows_after = cols_after = 0
        if role in ("gate_proj", "up_proj"):
            rows_after = padded // q4nx.BLOCK_ROWS - (last - first)
        elif role == "down_proj":
            cols_after = -(-padded // q4nx.BLOCK_COLS) - columns
        where = f"{self.path}: '{name}'"

        def chunks() -> Iterator[Array]:
            data = blocks.numpy()[first:last]
            step = max(1, CHUNK_BYTES // (columns * q4nx.BLOCK_BYTES))
            pieces = (data[i : i + step] for i in range(0, last - first, step))
            checked = _never_signed(where, pieces)
            for piece in checked:
                yield np.pad(piece, ((0, 0), (0, cols_after), (0, 0))) if cols_after else piece
            if rows_after:
                yield np.zeros((rows_after, columns, q4nx.BLOCK_BYTES), np.uint8)

        count = (last - first + rows_after) * (columns + cols_after)
        return Tensor(name, PACKED, (count, q4nx.BLOCK_BYTES), chunks)

    def _vectors(self, name: str) -> list[Tensor]:
        """A bias or a norm's weight: one tensor, or one for each part."""
        rows_of = vectors(name, self.shape)
        values = self._vector(name)
        if values is None and name.endswith(BIAS):
            place = name.removesuffix(BIAS).rpartition(".")[0]
            parts = [self._vector(f"{place}.{key.split('.')[-2]}{BIAS}") for key in rows_of]
            found = [part for part in parts if part is not None]
            values = np.concatenate(found) if len(found) == len(parts) else None
        if values is None:
            raise AieError(f"{self.path} lacks '{name}', as the model builder names it")
        if values.shape != (sum(rows_of.values()),):
            raise AieError(
                f"{self.path}: '{name}' is {values.shape}; by config.json it must be "
                f"({sum(rows_of.values())},)"
            )
        if not np.isfinite(values).all():
            raise AieError(f"{self.path}: '{name}' holds NaN or infinities")
        pieces = np.split(values, np.cumsum([*rows_of.values()])[:-1])
        return [
            Tensor.of(key, piece.astype(q4nx.bfloat16))
            for key, piece in zip(rows_of, pieces, strict=True)
        ]

    def _vector(self, name: str) -> npt.NDArray[np.float32] | None:
        value = self._graph.initializers.get(name)
        if value is None or value.const_value is None:
            return None
        self._used.add(name)
        values: npt.NDArray[np.float32] = value.const_value.numpy().astype(np.float32)
        return values

    def _rotary(self) -> list[Tensor]:
        """Checks the rotary tables; returns Llama 3's factors that divide the frequencies."""
        made = []
        local = {self.shape.is_local(layer) for layer in range(self.shape.layers)}
        for suffix, rotary in self._settings.rotary.items():
            if suffix and (suffix == "_local") not in local:
                continue  # no layer rotates by it
            for table, function in zip(ROTARY_TABLES, (np.cos, np.sin), strict=True):
                values = self._vector(f"{table}{suffix}")
                frequencies = self._vector(frequencies_name(f"{ROTARY_TABLES[0]}{suffix}"))
                if frequencies is not None:
                    rows = rotary_rows(function, frequencies)
                    values = rows(np.random.default_rng(0), 0, ROTARY_POSITIONS)
                if values is None:
                    raise AieError(f"{self.path} lacks '{table}{suffix}', its rotary embedding")
                values = values[:ROTARY_POSITIONS]
                fill = rotary_rows(function, rotary.frequencies)
                expected = fill(np.random.default_rng(0), 0, len(values))
                # Float32 angles of up to 512 radians.
                if values.shape != expected.shape or np.abs(values - expected).max() > 1e-3:
                    raise AieError(
                        f"{self.path}: '{table}{suffix}' is not the rotary embedding of "
                        "config.json (rope_theta, rope_scaling): they belong to different models"
                    )
            factors = rotary.unscaled / rotary.frequencies
            if not suffix and np.ptp(factors):
                made.append(Tensor.of(ROPE_FACTORS, factors.astype(q4nx.bfloat16)))
        return made

    def _check_attributes(self) -> None:
        """Attention and norms must do what config.json says, since the file does not say it."""
        shape = self.shape
        nodes = [node for node in self._graph if node.op_type == "FlowAttention"]
        if len(nodes) != shape.layers:
            raise AieError(
                f"{self.path} has {len(nodes)} aie.FlowAttention; by config.json "
                f"(num_hidden_layers) it must have {shape.layers}"
            )
        for layer, node in enumerate(nodes):
            window = shape.window if shape.is_local(layer) else None
            expected = {
                **ATTENTION,
                "num_heads": shape.heads,
                "kv_num_heads": shape.kv_heads,
                "do_rotary": 1,
                "local_window_size": ATTENTION["local_window_size"] if window is None else window,
            }
            for key, value in expected.items():
                self._check_attribute(node, key, ATTENTION[key], value)
            if _number(node, "scale", 0):  # 0 is the operator's default, 1 / sqrt(head_dim)
                self._check_attribute(node, "scale", 0, 1 / math.sqrt(shape.head_dim))
            for name in UNSAID:
                given = named_input(node, name)
                if given is not None and given.name != NONE:
                    raise AieError(
                        f"{self.path}: {node.name} has {name} '{given.name}', which a .q4nx file "
                        "cannot hold"
                    )
        for node in self._graph:
            for key in EPSILONS & node.attributes.keys():
                self._check_attribute(node, key, 0, shape.epsilon)

    def _check_attribute(self, node: ir.Node, key: str, default: float, expected: float) -> None:
        given = _number(node, key, default)
        if not math.isclose(given, expected, rel_tol=1e-5):
            raise AieError(
                f"{self.path}: {node.name} has {key} {given:g}; by config.json it must be "
                f"{expected:g}, and a .q4nx file does not say it"
            )

    def _check_all_used(self) -> None:
        """Raises AieError for an unused weight: the file would not be the model."""
        unused = [
            name
            for name, value in self._graph.initializers.items()
            if name not in self._used
            and value.const_value is not None
            and value.const_value.size >= SMALLEST_WEIGHT
            and any(True for _ in value.uses())
        ]
        if unused:
            more = f" and {len(unused) - 5} more" if len(unused) > 5 else ""
            raise AieError(
                f"{self.path} has weights that the .q4nx file of a {self.shape.family} cannot "
                f"hold: {', '.join(sorted(unused)[:5])}{more}"
            )


def _number(node: ir.Node, key: str, default: float) -> float:
    attribute = node.attributes.get(key)
    return default if attribute is None else float(attribute.value)


def _is_matrix(value: ir.Value) -> bool:
    tensor = value.const_value
    return tensor is not None and len(tensor.shape.numpy()) > 1


def _padded_ffn(shape: Shape) -> int:
    """The feed-forward width in the file: the converter pads Qwen2's."""
    multiple = FFN_MULTIPLE if shape.family == "qwen2" else 1
    return -(-shape.ffn // multiple) * multiple


def _never_signed(where: str, pieces: Iterator[Array]) -> Iterator[Array]:
    """The blocks, unless a reader would take their codes as signed (`tensors` says which)."""
    zero, large = True, False
    for piece in pieces:
        zero = zero and not np.any(groups(piece, q4nx.MINIMA_BYTES) & 0x7FFF)
        # Only then can the codes be misread, and looking at them takes time.
        large = large or (zero and bool(np.any(piece[..., q4nx.CODES_OFFSET :] & 0x88)))
        yield piece
    if zero and large:
        raise AieError(
            f"{where} has no minimum other than zero; readers take its codes as signed, so a .q4nx "
            "file cannot hold it"
        )


def _write(target: Path, tensors: list[Tensor], progress: Progress | None) -> None:
    """Writes under another name beside `target` and renames at the end."""
    try:
        handle, work = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    except OSError as error:
        raise AieError(f"{target} cannot be written: {error.strerror}") from error
    try:
        with os.fdopen(handle, "wb") as file:
            write_container(file, tensors, Count(progress, 0))
        check_destination(target)  # another writer may have been faster
        Path(work).chmod(0o644)
        Path(work).rename(target)
    except OSError as error:
        reason = error.strerror or f"{error} (is the disk full?)"
        raise AieError(f"writing {target} failed: {reason}") from error
    finally:
        Path(work).unlink(missing_ok=True)


def _carry_over(
    folder: Path, config: Path, target: Path
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Copies config.json and the tokenizer's files; returns the copied and the kept ones' names."""
    sources = {name: folder / name for name in CARRIED_OVER} | {"config.json": config}
    there = {name: path for name, path in sources.items() if path.is_file()}
    kept = tuple(
        name
        for name, path in there.items()
        if (target / name).exists() and not path.samefile(target / name)
    )
    copied = tuple(name for name in there if not (target / name).exists())
    begun: list[Path] = []
    try:
        for name in copied:
            begun.append(target / name)
            begun[-1].parent.mkdir(exist_ok=True)
            shutil.copyfile(there[name], begun[-1])
    except BaseException as error:
        for file in begun:
            file.unlink(missing_ok=True)
            if file.parent != target:
                file.parent.rmdir()
        if isinstance(error, OSError):
            raise AieError(f"writing {begun[-1]} failed: {error.strerror}") from error
        raise
    return copied, kept
