"""Writes a compiled folder completely or not at all."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import onnx_ir as ir

import ort_aie_ep
from ort_aie_ep.compiler.calibration import CacheReport, calibrate, purpose
from ort_aie_ep.compiler.options import GraphOptions
from ort_aie_ep.compiler.reading import Text, read_windows
from ort_aie_ep.disk import require_room
from ort_aie_ep.errors import AieError
from ort_aie_ep.formats.kv_codes import BITS
from ort_aie_ep.graph_passes import (
    FORMAT,
    Divider,
    LayerError,
    NodeOutcome,
    Plans,
    PlanSteps,
    Report,
    find_plans,
    plan,
)
from ort_aie_ep.graph_passes.attention.cache_type import (
    cached_attentions,
    quantise_cache,
    set_cache_type,
)
from ort_aie_ep.graph_passes.projection.last_logits import keep_last_logits, mend_pruned_logits
from ort_aie_ep.graph_passes.weights.shared_initializers import copies, copies_left_out
from ort_aie_ep.models.folder import (
    GENAI_CONFIG,
    ModelFolder,
    file_sections,
    section,
    why_not_carried,
)
from ort_aie_ep.models.integrity import REPORT, hashes
from ort_aie_ep.progress import Progress
from ort_aie_ep.runtime.opening import check_opens, check_runtime

# Tensors start on page boundaries and fill pages, so that a target can map or pin each one alone.
PAGE = 4096
# Smaller ones stay in the .onnx file: ONNX Runtime needs to see shapes while it resolves the graph,
# and does not read external data at that point. This is ONNX's own limit.
INLINE_BYTES = 1024
# Sections of genai_config.json with a model that drafts tokens for the decoder.
DRAFTERS = ("mtp", "dflash2", "dspark")


@dataclass(frozen=True)
class ModelFile:
    """An .onnx file of the source, after the passes.

    Attributes:
        path: its path in the source.
        model: its graph, to be written with its own weights; None: the file is copied.
        report: what the passes did.
        data: the external data files that the source reads, absolute.
        left: why nothing in it is compiled; empty for a file with aie.* nodes.
    """

    path: Path
    model: ir.Model | None
    report: Report
    data: frozenset[Path] = frozenset()
    left: str = ""


@dataclass(frozen=True)
class PartResult:
    """What `compile` did with an .onnx file other than the main one.

    Attributes:
        file: its path in the folder.
        compiled: whether it has aie.* nodes now; otherwise it is unchanged.
        reason: why it has none; empty for a compiled one.
        nodes: the nodes that a pass looked at: what each became, or why it stayed.
        plans: its plans; without any, each operator is a separate node.
        divided_by: ONNX Runtime's nodes between two plans.
    """

    file: str
    compiled: bool
    reason: str
    nodes: tuple[NodeOutcome, ...]
    plans: tuple[PlanSteps, ...] = ()
    divided_by: tuple[Divider, ...] = ()


@dataclass(frozen=True)
class CompileResult:
    """What `compile` did.

    Attributes:
        folder: the compiled folder.
        outcomes: the nodes of the main model that a pass looked at: what each became, or why it
            stayed.
        weight_bytes: size of the external data files.
        layers: the errors of `quantize` on float weights, one for each matrix.
        notes: further notes for the user, in sentences.
        parts: other .onnx files of the folder.
        cache: the errors of the main model's cache, if it is codes now.
        plans: the main model's plans; without any, each operator is a separate node.
        divided_by: ONNX Runtime's nodes between two of those plans.
    """

    folder: ModelFolder
    outcomes: tuple[NodeOutcome, ...]
    weight_bytes: int
    layers: tuple[LayerError, ...]
    notes: tuple[str, ...] = ()
    parts: tuple[PartResult, ...] = ()
    cache: CacheReport | None = None
    plans: tuple[PlanSteps, ...] = ()
    divided_by: tuple[Divider, ...] = ()

    @property
    def path(self) -> Path:
        """The path of the compiled folder."""
        return self.folder.path


def write_folder(
    target: Path,
    models: Sequence[ModelFile],
    options: GraphOptions,
    *,
    source: ModelFolder,
    files: Iterable[Path],
    notes: Sequence[str] = (),
    progress: Progress | None,
) -> CompileResult:
    """Writes models, after the passes, as the new folder `target`.

    Args:
        target: a folder that does not exist yet. It is written under another name beside it and
            renamed at the end.
        models: with or without aie.* nodes, the main one first; weights are read as they are
            written.
        options: `last_logits` aside, a main model that itself returns only position -1 gets each
            row's last token.
        source: the folder of the models, with names and genai configuration.
        files: files of the source to carry over, unless `why_not_carried` refuses a link; the
            result's notes say which.
        notes: notes for the user on what was done before.
        progress: counts bytes of weights as they are written.

    Raises:
        AieError: the destination exists or cannot be written, the main model does not fit the
            options, there is no text to calibrate with or the model cannot read it, a weight cannot
            be read, ONNX Runtime is missing or too old, or does not open the written model. Nothing
            is then left behind.
    """
    main = models[0]
    check_runtime()
    notes = [*notes, *_change_interface(main, source, len(models) > 1, options)]
    text = _calibration_text(main, source, options)
    quantised: CacheReport | None = None
    # A cache is quantised attention by attention.
    for file in models:
        if file.model is not None and not file.left and (file is not main or text is None):
            plan(file.model, file.report, whole=options.plan, stoppable=options.stoppable)
    parts = tuple(_part(source, file) for file in models[1:])
    writer = _WeightWriter([m.model for m in models if m.model is not None], progress)
    for file in models:
        if file.report.layers is not None:
            file.report.layers.packed = writer.packed
    weight_bytes = 0
    with _written_beside(target) as work:
        writer.require_room(work, [f.path.name for f in models if f.model is not None])
        for file in models:
            if file.model is None:
                continue
            if not file.left:
                file.model.metadata_props["ort_aie.format"] = str(FORMAT)
                file.model.metadata_props["ort_aie.version"] = ort_aie_ep.__version__
            path = work / _name(source, file)
            path.parent.mkdir(parents=True, exist_ok=True)
            weight_bytes += writer.save(file.model, path)
            if file is main and text is not None and options.kv is not None:
                writer.say("calibrating the KV cache")
                quantised = _quantise_cache(file.model, path, options.kv, text)
                plan(file.model, file.report, whole=options.plan, stoppable=options.stoppable)
                _save(file.model, path)
            if not file.left:
                notes += check_opens(path, file.path)
        notes += _carry_over(source, files, work)
        if source.genai_config is not None:
            compiled = {_name(source, file) for file in models if not file.left}
            _make_genai_folder(source.genai_config, work, compiled)
        plans = _plans(main)
        layers = tuple(
            layer
            for file in models
            if file.report.layers is not None
            for layer in file.report.layers.errors.values()
        )
        writer.say("hashing")
        _write_json(
            work / REPORT,
            {
                "format": FORMAT,
                "nodes": [asdict(o) for o in _outcomes(main)],
                **asdict(plans),
                "layers": [asdict(layer) for layer in layers],
                "kv_cache": None if quantised is None else asdict(quantised),
                "notes": notes,
                "parts": [asdict(part) for part in parts],
                **hashes(work, _models_and_weights(source, models, work)),
            },
        )
    folder = ModelFolder(target, target / _name(source, main), source.genai_config)
    return CompileResult(
        folder, _outcomes(main), weight_bytes, layers, tuple(notes), parts, quantised,
        plans.plans, plans.divided_by,
    )  # fmt: skip


def data_file(model: Path) -> Path:
    """The external data file, absolute, that a written .onnx file has beside it."""
    return model.with_name(model.name + ".data").absolute()


def _name(source: ModelFolder, file: ModelFile) -> str:
    return file.path.relative_to(source.path).as_posix()


def _models_and_weights(source: ModelFolder, models: Sequence[ModelFile], work: Path) -> list[str]:
    """The .onnx files in `work`, with their data files."""
    names = []
    for file in models:
        data = file.data if file.model is None else {data_file(file.path)}
        inside = (path for path in data if path.is_relative_to(source.path.absolute()))
        names.append(_name(source, file))
        names += sorted(path.relative_to(source.path.absolute()).as_posix() for path in inside)
    return [name for name in dict.fromkeys(names) if (work / name).is_file()]


def _outcomes(file: ModelFile) -> tuple[NodeOutcome, ...]:
    return tuple(file.report.outcomes.values())


def _plans(file: ModelFile) -> Plans:
    """The plans of a file, after the pass `plan`."""
    if file.model is None or file.left:
        return Plans()
    outcomes = file.report.outcomes.values()
    return find_plans(file.model, {o.node: o.reason for o in outcomes if o.becomes is None})


def _part(source: ModelFolder, file: ModelFile) -> PartResult:
    plans = _plans(file)
    return PartResult(
        _name(source, file), not file.left, file.left, _outcomes(file), plans.plans,
        plans.divided_by,
    )  # fmt: skip


def _change_interface(
    main: ModelFile, source: ModelFolder, several: bool, options: GraphOptions
) -> list[str]:
    """Changes the main model's inputs and outputs as requested, and returns notes. With `several`
    models, the main one has other parts beside it."""
    kv, last_logits = options.kv, options.last_logits
    asked = [f"kv={kv}"] * (kv is not None) + ["last_logits"] * last_logits
    if asked and several and source.is_optimum_encoder_decoder:
        raise AieError(
            f"{' and '.join(asked)}: {source.path} is an encoder and decoders, which pass their "
            "caches to each other; omit this option"
        )
    if asked and main.left:
        raise AieError(f"{' and '.join(asked)}: {main.path} {main.left}")
    if main.model is None:
        return []
    genai_model = section(source, "model") if last_logits else {}
    if drafters := [name for name in DRAFTERS if name in genai_model]:
        raise AieError(
            f"last_logits: {GENAI_CONFIG} has model.{drafters[0]}, whose tokens are verified with "
            "the logits of several positions"
        )
    if kv in BITS:
        cached_attentions(main.model, kv)  # raise now, not when weights are written
    elif kv is not None:
        set_cache_type(main.model, kv)
    if last_logits:
        keep_last_logits(main.model)
        return []
    mended = "" if main.left else mend_pruned_logits(main.model)
    return [mended] if mended else []


def _calibration_text(main: ModelFile, source: ModelFolder, options: GraphOptions) -> Text | None:
    if options.kv not in BITS or main.model is None:
        return None
    return read_windows(source, options.calibration, purpose(options.kv))


def _quantise_cache(model: ir.Model, path: Path, kv: str, text: Text) -> CacheReport:
    """Gives the model at `path` a cache of codes; its weights stay."""
    scales, report = calibrate(path, cached_attentions(model, kv), kv, text)
    quantise_cache(model, kv, scales)
    return report


def _save(model: ir.Model, path: Path) -> None:
    """Writes a model. A shape without a type cannot be written: onnx_ir would warn of each."""
    for graph in model.graphs():
        for node in graph:
            for value in node.outputs:
                if value.type is None:
                    value.shape = None
    ir.save(model, path)


class _WeightWriter:
    """Writes models and an external data file for each, tensor by tensor."""

    def __init__(self, models: Iterable[ir.Model], progress: Progress | None) -> None:
        self._progress = progress
        self._done = 0
        # The tensor that is being written: bytes of those before it, and of it.
        self._before, self._part, self._name = 0, 0, ""
        self._total = sum(
            value.const_value.nbytes
            for model in models
            for left_out in [copies(model)]
            for graph in model.graphs()
            for value in graph.initializers.values()
            if value.const_value is not None
            and value.const_value.nbytes > INLINE_BYTES
            and value not in left_out
        )

    def require_room(self, folder: Path, names: Iterable[str]) -> None:
        """Raises AieError if `folder`'s disk has no room for the weights of all models."""
        require_room(folder, self._total, f"the weights of {', '.join(names)}")

    def save(self, model: ir.Model, path: Path) -> int:
        """Writes the model and its data file; returns the data file's size in bytes."""
        data = data_file(path)
        with copies_left_out(model):
            ir.external_data.unload_from_model(
                model,
                path.parent,
                data.name,
                size_threshold_bytes=INLINE_BYTES,
                callback=self._report,
                alignment=PAGE,
                align_threshold=0,
            )
        if self._done == self._total:
            self.say("")
        if not data.exists():  # no initializer was large enough
            data.touch()
        written, end = data.stat().st_size, _end_of_weights(model)
        if written < end:  # a short write is not always reported
            raise OSError(f"{data.name} has {written} of {end} bytes")
        size = -(-written // PAGE) * PAGE
        os.truncate(data, size)
        _save(model, path)
        return size

    def say(self, what: str) -> None:
        """Reports that `what` is being done now, after the weights so far."""
        if self._progress is not None:
            self._progress(self._done, self._total, what)

    def packed(self, size: int) -> None:
        """Tells that `size` bytes more of the tensor that is being written are there."""
        self._part += size
        if self._progress is not None:
            self._progress(self._before + self._part, self._total, self._name)

    def _report(self, tensor: ir.TensorProtocol, _: object) -> None:
        self._before, self._part, self._name = self._done, 0, tensor.name or ""
        self.say(self._name)
        self._done += tensor.nbytes


def _end_of_weights(model: ir.Model) -> int:
    """The number of bytes of its data file that a model reads."""
    tensors = (v.const_value for graph in model.graphs() for v in graph.initializers.values())
    external = [t for t in tensors if isinstance(t, ir.ExternalTensor)]
    return max(((t.offset or 0) + (t.length or t.nbytes) for t in external), default=0)


def check_destination(target: Path) -> None:
    """Checks the destination, before anything is computed and again when it is written.

    Raises:
        AieError: `target` exists, or its parent folder does not.
    """
    try:
        if target.exists() or target.is_symlink():
            raise AieError(f"{target} already exists; remove it or choose another destination")
        if not target.parent.is_dir():
            raise AieError(f"{target.parent} is not a folder; create it first")
    except OSError as error:  # a name that no file can have
        raise AieError(f"{target} cannot be written: {error.strerror}") from error


@contextmanager
def _written_beside(target: Path) -> Iterator[Path]:
    """A new folder beside `target` that becomes `target` at the end, or disappears."""
    check_destination(target)
    try:
        work = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    except OSError as error:
        raise AieError(f"{target.parent} cannot be written: {error.strerror}") from error
    try:
        yield work
        work.chmod(0o755)
        check_destination(target)  # another writer may have been faster
        work.rename(target)
    except OSError as error:
        # numpy reports a short write without the system's reason.
        reason = error.strerror or f"{error} (is the disk full?)"
        raise AieError(f"writing {target} failed: {reason}") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _carry_over(folder: ModelFolder, files: Iterable[Path], work: Path) -> list[str]:
    """Copies files of the source, and the targets of links; returns what was left, and why."""
    left = []
    for path in files:
        name = path.relative_to(folder.path)
        reason = why_not_carried(folder.path, path)
        if reason:
            left.append(f"{name} is not copied: {reason}")
            continue
        to = work / name
        to.parent.mkdir(parents=True, exist_ok=True)
        if not to.exists():
            shutil.copy2(path.resolve(), to)
    return left


def _make_genai_folder(config: dict[str, Any], work: Path, compiled: set[str]) -> None:
    """Names the stub library in genai_config.json for each compiled file, and copies it into the
    folder."""
    stub = Path(ort_aie_ep.stub_path())
    decoder = config["model"]["decoder"]
    if decoder.get("session_options") is None:
        decoder["session_options"] = {}
    # Sections without their own options use the decoder's.
    _name_library(decoder, "decoder", stub.name)
    # The output that genai gives for a prompt has all rows, and it reads the last.
    decoder["session_options"].setdefault("ort_aie.prompt_logits", "last")
    for part, role in file_sections(config["model"]):
        # Bytes of the source's data files, which genai would use in place of compiled weights.
        part.pop("shared_initializers", None)
        file = Path(str(part["filename"])).as_posix()
        if file in compiled and part.get("session_options") is not None:
            _name_library(part, role, stub.name)
    shutil.copyfile(stub, work / stub.name)
    _write_json(work / GENAI_CONFIG, config)


def _name_library(part: dict[str, Any], role: str, library: str) -> None:
    options = part["session_options"]
    if not isinstance(options, dict):
        raise AieError(f"{GENAI_CONFIG}: model.{role}.session_options must be an object")
    other = options.get("custom_ops_library")
    if other not in (None, library):
        raise AieError(
            f"{GENAI_CONFIG} already names the custom-op library {other!r}, and genai loads only "
            "one"
        )
    options["custom_ops_library"] = library


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
