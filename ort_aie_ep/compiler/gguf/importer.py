"""A GGUF file in, a compiled folder out: the builder's graph, with weights made from the file."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy.typing as npt
import onnx_ir as ir

from ort_aie_ep.compiler.compiled_folder import (
    CompileResult,
    ModelFile,
    check_destination,
    write_folder,
)
from ort_aie_ep.compiler.gguf import MODEL, for_npu
from ort_aie_ep.compiler.gguf.architecture import Model
from ort_aie_ep.compiler.gguf.file import read_gguf
from ort_aie_ep.compiler.gguf.sampling import generation
from ort_aie_ep.compiler.gguf.tensors import Matrix, floats
from ort_aie_ep.compiler.gguf.tokenizer import write_tokenizer
from ort_aie_ep.compiler.options import CompileOptions
from ort_aie_ep.compiler.quantising import choose
from ort_aie_ep.errors import AieError
from ort_aie_ep.graph_passes import (
    DOMAIN,
    LayerError,
    NodeOutcome,
    Report,
    node_label,
    run_passes,
)
from ort_aie_ep.graph_passes.weights.float_weights import FloatLayers, Quantising, WeightForm
from ort_aie_ep.graph_passes.weights.streamed import RotaryTable, Rows, RowTensor
from ort_aie_ep.graph_passes.work import work_of
from ort_aie_ep.models.builder.config import genai_config
from ort_aie_ep.models.builder.decoder import build
from ort_aie_ep.models.builder.graph import EMBEDDING
from ort_aie_ep.models.builder.weights import Weight
from ort_aie_ep.models.files import write_json
from ort_aie_ep.models.folder import GENERATION_CONFIG, ModelFolder
from ort_aie_ep.progress import Progress

# What runs the source's ONNX model, or needs another part of a folder.
_REFUSED = ("importance", "bits", "vision")


def import_gguf(
    source: Path, destination: Path, options: CompileOptions, progress: Progress | None
) -> CompileResult:
    """Writes the model in a GGUF file as the new compiled folder `destination`.

    Args:
        source: the file, or one part of a split file.
        destination: as for `compile_model`.
        options: as for `compile_model`, without `importance`, `bits` and `vision`. `quantize` is
            for matrices of floats.
        progress: counts bytes of weights as they are written.

    Raises:
        AieError: a file is missing, truncated or damaged; its architecture, a type of tensor or the
            tokenizer is not known; an option is not for GGUF; the destination exists or cannot be
            written. Nothing is then left behind.
    """
    check_destination(destination)
    given = [name for name in _REFUSED if name in options.given]
    if given:
        raise AieError(f"{' and '.join(given)} cannot be used with a GGUF file: omit this option")
    file = read_gguf(source)
    compatible, why = options.q4nx_compatible, ""
    if compatible is None:
        compatible, why = for_npu()
    gguf = Model(file, q4nx_compatible=compatible, float_experts=options.quantize is None)
    errors: dict[str, LayerError] = {}
    model = graph(gguf, errors)
    floats = sum(node.op_type == "MoE" for node in model.graph)
    with tempfile.TemporaryDirectory() as scratch:
        tokenizer = write_tokenizer(file, Path(scratch), options.gguf_pre)
        config = genai_config(gguf.shape)
        config["model"].update(tokenizer.ids)
        said = generation(file.metadata)
        config["search"] |= {name: said[name] for name in said if name in config["search"]}
        write_json(Path(scratch, GENERATION_CONFIG), said)
        folder = ModelFolder(Path(scratch), Path(scratch, MODEL), config)
        (choice,), notes = choose(options, folder, model, [], progress)
        report = run_passes(
            model,
            fuse=options.fuse,
            quantize=choice.quantising,
            keep=choice.keep,
            q4nx_compatible=compatible,
        )
        _report_written(model, report)
        report.layers = report.layers or FloatLayers(Quantising(WeightForm.Q8NX))
        report.layers.errors = errors
        return write_folder(
            destination,
            [ModelFile(folder.model, model, report)],
            options,
            source=folder,
            files=[*tokenizer.files, Path(scratch, GENERATION_CONFIG)],
            notes=[
                *_chosen(compatible, why),
                *_float_experts(floats),
                *gguf.notes,
                *tokenizer.notes,
                *notes,
            ],
            progress=progress,
        )


def _chosen(compatible: bool, why: str) -> list[str]:
    """What was chosen where no option says it."""
    if not why:
        return []
    if compatible:
        return [f"{why}: weights are in Q4NX and Q8NX; --no-q4nx-compatible keeps the file's bits"]
    return [f"{why}: weights keep the file's bits; for an NPU use --q4nx-compatible"]


def _float_experts(layers: int) -> list[str]:
    """What computes experts that are floats."""
    if not layers:
        return []
    return [
        f"in {layers} layers experts are floats, which ONNX Runtime's MoE computes in float32; "
        "--quantize q8nx makes them codes of 8 bits"
    ]


def graph(gguf: Model, errors: dict[str, LayerError]) -> ir.Model:
    """The builder's graph with the file's weights, which are made when they are read.

    `errors` gets those of matrices that became codes, by name, once they were read.

    Raises:
        AieError: a tensor is missing, of another size than the metadata says, or unknown.
    """
    model, weights = build(gguf.shape, gguf.codings, table=gguf.table)
    for weight in weights:
        model.graph.initializers[weight.name].const_value = _tensor(weight, gguf, errors)
    gguf.check_all_used()
    return model


def _tensor(weight: Weight, gguf: Model, errors: dict[str, LayerError]) -> ir.TensorProtocol:
    """The value of an initializer of the builder."""
    name = weight.name
    stem, _, kind = name.rpartition(".")
    basename = stem.removesuffix(".MatMul").removesuffix(".Add")

    def rows(make: Rows) -> RowTensor:
        return RowTensor(name, weight.dtype, weight.shape, make)

    def noting(matrices: Sequence[Matrix], make: Rows) -> RowTensor:
        def noted(first: int, count: int) -> npt.NDArray[Any]:
            made = make(first, count)
            errors.update((m.name, _error(m)) for m in matrices if m.relative)
            return made

        return rows(noted)

    if name.startswith(("cos_cache", "sin_cache")):
        rotary = gguf.rotary[name[len("cos_cache") :]]
        return RotaryTable(weight, rotary.frequencies, rotary.magnitude)
    if name == EMBEDDING:
        table = gguf.embedding()
        return rows(lambda first, count: floats(table, slice(first, first + count)))
    if ".experts." in name:
        if kind == "bias":
            return ir.tensor(gguf.expert_bias(stem), name=name)
        experts = gguf.experts(stem)
        if kind == "weight":
            return rows(partial(experts.stacked, "floats"))
        if kind not in _FIELDS:
            return rows(experts.blocks)
        return noting(experts.matrices, partial(experts.stacked, _FIELDS[kind]))
    if stem.endswith(".Add"):
        return ir.tensor(gguf.bias(basename), name=name)
    if not kind.startswith("weight_") and not stem.endswith(".MatMul"):
        return ir.tensor(gguf.values(name.removesuffix(".weight"), weight.shape), name=name)
    matrix = gguf.matrix(basename)
    if kind not in _FIELDS:
        return rows(matrix.columns if kind == "weight" else matrix.blocks)
    return noting([matrix], lambda f, n: getattr(matrix.coded(f, n), _FIELDS[kind]))


# The ends of the builder's names, and what `tensors.Coded` calls them.
_FIELDS = {
    **{"weight_Q4": "codes", "weight_Q8": "codes", "weight_scales": "scales"},
    **{"weight_zp": "zero_points", "qweight": "codes", "scales": "scales", "zp": "zero_points"},
}


def _error(matrix: Matrix) -> LayerError:
    form = WeightForm.Q4NX if matrix.coding.bits == WeightForm.Q4NX.bits else WeightForm.Q8NX
    return LayerError(matrix.name, 1, form, matrix.k, matrix.n, matrix.relative, matrix.largest)


def _report_written(model: ir.Model, report: Report) -> None:
    """Notes the aie operators that the builder wrote, where no pass did."""
    for node in model.graph:
        label, becomes = node_label(node), f"{DOMAIN}.{node.op_type}"
        if node.domain == DOMAIN and label not in report.outcomes:
            work = asdict(work_of(node))
            report.outcomes[label] = NodeOutcome(label, node.op_type, becomes, "", **work)
