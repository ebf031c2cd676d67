"""`ort-aie compile`: a model folder in, a folder with aie.* nodes and Q4NX weights out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import onnx_ir as ir

from ort_aie_ep.compiler.compiled_folder import (
    PAGE,
    CompileResult,
    ModelFile,
    check_destination,
    data_file,
    write_folder,
)
from ort_aie_ep.compiler.options import CompileOptions, GraphOptions
from ort_aie_ep.compiler.quantising import VISION, Choice, choose
from ort_aie_ep.errors import AieError
from ort_aie_ep.graph_passes import DOMAIN, Report, run_passes
from ort_aie_ep.models.folder import (
    ModelFolder,
    OtherModel,
    find_model,
    is_gguf,
    other_models,
)
from ort_aie_ep.models.integrity import REPORT
from ort_aie_ep.models.onnx_file import external_files, load_model
from ort_aie_ep.progress import Progress
from ort_aie_ep.requirements import require

__all__ = ["PAGE", "REPORT", "CompileResult", "compile_model"]

# What the passes replace: node by node, also among ONNX's own operators, and with `quantize`.
NODE_BY_NODE = ("MatMulNBits of 2, 4 or 8 bits", "QMoE", "GroupQueryAttention")
WITH_FUSION = (
    "int4 DequantizeLinear in blocks",
    "Attention",
    "MultiHeadAttention",
    "exported attention with a KV cache",
)
WITH_QUANTIZE = ("MatMul", "Gemm with float weights")
COMPILED_ALREADY = "is already compiled: use it, or pass the source model"
UNNAMED = "is copied unchanged, because it is not part of the model"


def compile_model(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    options: CompileOptions = CompileOptions(),
    *,
    progress: Progress | None = None,
) -> CompileResult:
    """Compiles the model in `source` into the new folder `destination`.

    NODE_BY_NODE and WITH_FUSION name the nodes that are replaced: projections become
    aie.Q4NXMatMul, attention becomes aie.FlowAttention, and a quantised embedding becomes
    aie.Q4NXGather, on the lm_head's tensor if they are tied. With `quantize`, MatMul and Gemm with
    constant float weights become aie.Q4NXMatMul or aie.GEMM. Names, types and shapes of the graph's
    inputs and outputs stay unless an option changes them. Other .onnx files of the folder are
    compiled too if genai_config.json or optimum's names make them parts of the model; remaining
    files are carried over. A link that leads out of the folder is not followed, but named in the
    result's notes (`models.folder.why_not_carried`).

    Args:
        source: an onnxruntime-genai folder, a folder with one .onnx file or with an encoder and
            decoders (as optimum exports), an .onnx file, a GGUF file (`gguf.importer`), or a .q4nx
            file (`import_q4nx`).
        destination: a folder that does not exist yet. It is written under another name beside it
            and renamed at the end.
        options: see `CompileOptions`.
        progress: counts bytes of weights as they are written; before, with `importance`, as the
            model reads each window of the text, and with `bits` as errors are measured.

    Raises:
        AieError: the source is not a model, is damaged, or has nothing to compile; ONNX Runtime
            does not open it, for other reasons than operators or types that it lacks here; the
            destination exists or cannot be written; a pattern of `keep` matches nothing, or `keep`
            is given without `quantize` and `vision`; `importance` or `bits` does not fit
            `quantize`; the folder has no vision model for `vision`; there is no text to calibrate
            with, or the model cannot read it. Nothing is then left behind.
    """
    path, target = Path(source), Path(destination)
    check_destination(target)
    if is_gguf(path):
        return _import_gguf(path, target, options, progress)
    if options.gguf_pre is not None:
        raise AieError(f"gguf_pre is for GGUF files, and {source} is not one: omit it")
    if path.suffix == ".q4nx":
        return _import_q4nx(path, target, options, progress)
    return _compile_onnx(path, target, options, progress)


def _import_gguf(
    source: Path, target: Path, options: CompileOptions, progress: Progress | None
) -> CompileResult:
    require("a GGUF file", ("gguf",))
    from ort_aie_ep.compiler.gguf.importer import import_gguf

    return import_gguf(source, target, options, progress)


def _compile_onnx(
    source: Path, target: Path, options: CompileOptions, progress: Progress | None
) -> CompileResult:
    folder = find_model(source)
    # A bare .onnx file says nothing about its neighbours: they stay where they are.
    whole = source.is_dir()
    others = other_models(folder) if whole else []
    if options.vision is not None and not any(other.part == VISION for other in others):
        raise AieError(
            f"{source} has no vision model in its genai_config.json; compile a vision tower that "
            "is a single .onnx file with quantize"
        )
    models, notes = _convert(folder, others, options, progress)
    if all(file.left for file in models):
        raise AieError(f"{folder.model} {models[0].left}{_first_reasons(models[0])}")
    # Listed before anything is written: the destination may be inside the source.
    files = _other_files(folder, models) if whole else []
    return write_folder(
        target, models, options, source=folder, files=files, notes=notes, progress=progress
    )


def _import_q4nx(
    source: Path, target: Path, options: CompileOptions, progress: Progress | None
) -> CompileResult:
    from ort_aie_ep.compiler.fastflowlm import import_q4nx

    names = {each.name for each in fields(GraphOptions)}
    if others := sorted(options.given.keys() - names):
        raise AieError(f"{', '.join(others)}: {source} has its weights in blocks already")
    given = {name: getattr(options, name) for name in names}
    return import_q4nx(source, target, progress=progress, **given)


@dataclass(frozen=True)
class _Source:
    """An .onnx file as it was loaded: without a model if `left` says why it is left alone."""

    path: Path
    part: str
    model: ir.Model | None
    data: frozenset[Path]
    left: str = ""

    @classmethod
    def of(cls, other: OtherModel) -> _Source:
        try:
            model = load_model(other.path)
        except AieError as error:
            return cls(other.path, other.part, None, frozenset(), f"cannot be read: {error}")
        if not other.role:
            return cls(other.path, other.part, None, _data(model), UNNAMED)
        return cls(other.path, other.part, model, _data(model))


def _convert(
    folder: ModelFolder,
    others: Sequence[OtherModel],
    options: CompileOptions,
    progress: Progress | None,
) -> tuple[list[ModelFile], list[str]]:
    """The main model and its other parts, after the passes, and notes."""
    model = load_model(folder.model)
    main = _Source(folder.model, "decoder", model, _data(model))
    sources = [_Source.of(other) for other in others]
    parts = [(source.part, source.model) for source in sources]
    choices, notes = choose(options, folder, model, parts, progress)
    pairs = zip([main, *sources], choices, strict=True)
    files = [_run_passes(source, choice, options) for source, choice in pairs]
    written = {data_file(file.path) for file in files if not file.left}
    return [file if not file.left else _unchanged(file, written) for file in files], notes


def _run_passes(source: _Source, choice: Choice, options: CompileOptions) -> ModelFile:
    if source.model is None:
        return ModelFile(source.path, None, Report(), source.data, source.left)
    already = any(node.domain == DOMAIN for node in source.model.graph.all_nodes())
    report = run_passes(
        source.model,
        fuse=options.fuse,
        quantize=choice.quantising,
        keep=choice.keep,
        q4nx_compatible=bool(options.q4nx_compatible),
    )
    left = ""
    if not any(outcome.becomes for outcome in report.outcomes.values()):
        asked = choice.quantising is not None
        left = COMPILED_ALREADY if already else _nothing_to_compile(options.fuse, asked)
    return ModelFile(source.path, source.model, report, source.data, left)


def _data(model: ir.Model) -> frozenset[Path]:
    return frozenset(path.absolute() for path in external_files(model))


def _unchanged(file: ModelFile, written: set[Path]) -> ModelFile:
    """A file without aie.* nodes: copied, or, if another file's data will take the name of its
    data file, written unchanged with its own data."""
    model = load_model(file.path) if file.data & written else None
    return replace(file, model=model)


def _nothing_to_compile(fuse: bool, quantises: bool) -> str:
    *ops, last = NODE_BY_NODE + (WITH_FUSION if fuse else ()) + (WITH_QUANTIZE if quantises else ())
    text = f"has nothing to compile: no {', '.join(ops)} or {last} that can be replaced"
    if not fuse:
        text += (
            "; fuse=False (--no-fuse) replaces node by node: omit it if the model has ONNX's own "
            f"operators ({', '.join(WITH_FUSION)})"
        )
    return text


def _first_reasons(file: ModelFile) -> str:
    return "".join(f"\n  {o.node}: {o.reason}" for o in [*file.report.outcomes.values()][:5])


def _other_files(folder: ModelFolder, models: Sequence[ModelFile]) -> list[Path]:
    """The files to carry over, including links: all except those that are written anew, and data
    that only those read."""
    written = [file for file in models if file.model is not None]
    skipped = {file.path.absolute() for file in written}.union(*(file.data for file in written))
    skipped -= frozenset[Path]().union(*(file.data for file in models if file.model is None))
    return [
        path
        for path in sorted(folder.path.rglob("*"))
        if path.absolute() not in skipped and (path.is_symlink() or not path.is_dir())
    ]
