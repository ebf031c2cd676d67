"""`ort-aie compile`: a model folder in, a folder with aie.* nodes and Q4NX weights out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import onnx_ir as ir

from ort_aie_ep.compiler.compiled_folder import (
    PAGE,
    CompileResult,
    KvCache,
    ModelFile,
    check_destination,
    data_file,
    write_folder,
)
from ort_aie_ep.compiler.integrity import REPORT
from ort_aie_ep.compiler.quantising import VISION, FloatWeightOptions
from ort_aie_ep.compiler.reading import TOKEN_IDS
from ort_aie_ep.errors import AieError
from ort_aie_ep.graph_passes import DOMAIN, Quantising, Report, run_passes
from ort_aie_ep.graph_passes.projection.float_matmul import matching_patterns
from ort_aie_ep.graph_passes.unique_names import name_nodes
from ort_aie_ep.models.files import is_missing
from ort_aie_ep.models.folder import ModelFolder, OtherModel, find_model, other_models
from ort_aie_ep.models.onnx_file import external_files, load_model
from ort_aie_ep.progress import Progress

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
COMPILED_ALREADY = "is already compiled: use it as it is, or pass the model that it was made from"
UNNAMED = "is copied as it is: nothing names it as part of the model"


def compile_model(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    kv: str | None = None,
    calibration: str | os.PathLike[str] | None = None,
    last_logits: bool = False,
    fuse: bool = True,
    plan: bool = True,
    stoppable: bool = False,
    quantize: str | None = None,
    vision: str | None = None,
    importance: str | os.PathLike[str] | None = None,
    bits: float | None = None,
    keep: Sequence[str] = (),
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
    result's notes (`model_folder.why_not_carried`).

    Args:
        source: an onnxruntime-genai folder, a folder with one .onnx file or with an encoder and
            decoders (as optimum exports), or an .onnx file.
        destination: a folder that does not exist yet. It is written under another name beside it
            and renamed at the end.
        kv: "f16" or "bf16" gives past and present that type; "int8" or "int4" makes them codes
            with a scale for each channel; None leaves them.
        calibration: the file that the model reads to find the scales of those codes: text, or token
            ids (windows, tokens) saved by numpy.save. By default sources of Python's standard
            library.
        last_logits: return only the logits of each row's last token, (batch, 1, vocabulary): the
            last that attention_mask shows, so rows may be padded on either side.
        fuse: fuse norms, residuals and gates into the projections; False replaces node by node and
            leaves what WITH_FUSION names.
        plan: turn each region into one node, aie.Plan; False leaves a node for each step, with the
            same results.
        stoppable: write a node for each layer instead of one for all, so that ONNX Runtime can end
            a run between layers (`RunOptions.terminate`), with the same results on the CPU.
        quantize: what float weights become: "q4nx" or "q2nx" (4 or 2 bits, a range searched for
            each group of 32), "q8nx" (8 bits), "mixed" (most have 4 bits: `widths`) or "bf16"
            (bfloat16 operands, float32 sums); None leaves them.
        importance: a text, or token ids saved by numpy.save, that the source reads in ONNX Runtime:
            errors of weights of 4 and 2 bits count by the mean square of what they multiply.
        bits: with "mixed" and `importance`, the mean bits of a code, from 2 to 8; without it a rule
            chooses the matrices that get 8 bits.
        vision: what float weights of the folder's vision model become: "bf16", or None, which
            leaves them.
        keep: patterns (* and ?) of names of MatMul and Gemm nodes that `quantize` and `vision`
            leave alone.
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
    weights, cache = read_options(
        kv=kv,
        calibration=calibration,
        quantize=quantize,
        vision=vision,
        importance=importance,
        bits=bits,
        keep=keep,
    )
    target = Path(destination)
    check_destination(target)
    folder = find_model(Path(source))
    # A bare .onnx file says nothing about its neighbours: they stay where they are.
    others = other_models(folder) if Path(source).is_dir() else []
    if vision is not None and not any(_part(other.role) == VISION for other in others):
        raise AieError(
            f"{source} has no vision model in its genai_config.json; compile a vision tower that "
            "is a single .onnx file with quantize"
        )
    models, notes = _convert(folder, others, _Passes(fuse, weights), progress)
    if all(file.left for file in models):
        raise AieError(f"{folder.model} {models[0].left}{_first_reasons(models[0])}")
    # Listed before anything is written: the destination may be inside the source.
    files = _other_files(folder, models) if Path(source).is_dir() else []
    return write_folder(
        target,
        models,
        source=folder,
        files=files,
        cache=cache,
        last_logits=last_logits,
        whole=plan,
        stoppable=stoppable,
        notes=notes,
        progress=progress,
    )


def read_options(
    *,
    kv: str | None,
    calibration: str | os.PathLike[str] | None,
    quantize: str | None,
    vision: str | None,
    importance: str | os.PathLike[str] | None,
    bits: float | None,
    keep: Sequence[str],
) -> tuple[FloatWeightOptions, KvCache]:
    """Options of `compile_model` by subject.

    Raises:
        AieError: a value, or a combination, does not exist; or a text does not.
    """
    text, of_cache = (None if given is None else Path(given) for given in (importance, calibration))
    weights = FloatWeightOptions(quantize, text, bits, vision, tuple(keep))
    weights.check()
    cache = KvCache(kv, of_cache)
    cache.check()
    for given in (text, of_cache):
        if given is not None and is_missing(given):
            kind = "token ids" if given.suffix == TOKEN_IDS else "text"
            raise AieError(f"{kind} {given} cannot be read: there is no such file")
    return weights, cache


@dataclass(frozen=True)
class _Source:
    """An .onnx file as it was loaded; without a model if `left` says why it is left alone."""

    path: Path
    role: str
    model: ir.Model | None
    data: frozenset[Path]
    left: str

    @classmethod
    def of(cls, other: OtherModel) -> _Source:
        try:
            model = load_model(other.path)
        except AieError as error:
            return cls(other.path, other.role, None, frozenset(), f"cannot be read: {error}")
        data = _data(model)
        if not other.role:
            return cls(other.path, other.role, None, data, UNNAMED)
        return cls(other.path, other.role, model, data, "")


@dataclass(frozen=True)
class _Passes:
    """What the passes should do."""

    fuse: bool
    weights: FloatWeightOptions

    def quantises(self, source: _Source) -> bool:
        return self.weights.quantises(_part(source.role))

    def run(self, source: _Source, quantising: Quantising | None, keep: Sequence[str]) -> ModelFile:
        if source.model is None:
            return ModelFile(source.path, None, Report(), source.data, source.left)
        already = any(node.domain == DOMAIN for node in source.model.graph.all_nodes())
        report = run_passes(source.model, fuse=self.fuse, quantize=quantising, keep=keep)
        left = ""
        if not any(outcome.becomes for outcome in report.outcomes.values()):
            asked = quantising is not None
            left = COMPILED_ALREADY if already else _nothing_to_compile(self.fuse, asked)
        return ModelFile(source.path, source.model, report, source.data, left)


def _convert(
    folder: ModelFolder, others: Sequence[OtherModel], passes: _Passes, progress: Progress | None
) -> tuple[list[ModelFile], list[str]]:
    """The main model and its other parts, after the passes, and notes."""
    model, weights = load_model(folder.model), passes.weights
    main = _Source(folder.model, "decoder", model, _data(model), "")
    sources = [main, *(_Source.of(other) for other in others)]
    matching: list[list[str]] = [[] for _ in sources]
    for source, names in zip(sources, matching, strict=True):
        if source.model is not None:
            name_nodes(source.model)
            names += (
                matching_patterns(source.model, weights.keep) if passes.quantises(source) else []
            )
    # The passes reject a pattern that matches nothing, so give unmatched ones to the main model.
    unmatched = [name for name in weights.keep if not any(name in names for names in matching)]
    matching[0] += unmatched
    quantising, notes = weights.of_main(folder, model, matching[0], progress)
    choices = [quantising]
    for source in sources[1:]:
        asked = source.model is not None and passes.quantises(source)
        part = _part(source.role)
        choices.append(weights.of_part(source.model, part) if source.model and asked else None)
    files = [
        passes.run(source, choice, names)
        for source, choice, names in zip(sources, choices, matching, strict=True)
    ]
    written = {data_file(file.path) for file in files if not file.left}
    return [file if not file.left else _unchanged(file, written) for file in files], notes


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


def _part(role: str) -> str:
    return role.split(".")[0]


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
