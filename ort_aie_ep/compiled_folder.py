"""Writing a compiled folder: all of it or nothing."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import onnx_ir as ir

import ort_aie_ep
from ort_aie_ep.errors import AieError
from ort_aie_ep.graph_passes import FORMAT, LayerError, NodeOutcome, Report
from ort_aie_ep.graph_passes.kv_cache import set_cache_type
from ort_aie_ep.graph_passes.last_logits import keep_last_logits, mend_pruned_logits
from ort_aie_ep.graph_passes.shared_initializers import SAME_AS
from ort_aie_ep.model_folder import GENAI_CONFIG, ModelFolder

# Tensors start on pages and fill them, so that a target can map or pin each one by itself.
PAGE = 4096
# Smaller ones stay in the .onnx file: ONNX Runtime wants to see shapes while it resolves the graph,
# and reads no external data then. ONNX's own limit.
INLINE_BYTES = 1024
REPORT = "ort_aie_report.json"

Progress = Callable[[int, int, str], None]
"""Called with (bytes done, bytes in all, name of the tensor that comes next)."""


@dataclass(frozen=True)
class CompileResult:
    """What `compile` did.

    Attributes:
        path: the compiled folder.
        outcomes: the nodes that a pass looked at: what each became, or why it stayed.
        weight_bytes: size of the external data file.
        layers: what float weights lost by `quantize`, one for each matrix.
        notes: what else a user should know, in sentences.
    """

    path: Path
    outcomes: tuple[NodeOutcome, ...]
    weight_bytes: int
    layers: tuple[LayerError, ...]
    notes: tuple[str, ...] = ()


def write_folder(
    target: Path,
    model: ir.Model,
    report: Report,
    *,
    source: ModelFolder,
    files: Iterable[Path],
    kv: str | None,
    last_logits: bool,
    progress: Progress | None,
) -> CompileResult:
    """Writes `model`, after the passes, as the new folder `target`.

    Args:
        target: a folder that does not exist yet. It is written beside and renamed at the end.
        model: with aie.* nodes; weights are read as they are written.
        report: what the passes did.
        source: where the model comes from: names and genai configuration.
        files: files of the source to carry over.
        kv: "f16" or "bf16" gives past and present that type; None leaves it.
        last_logits: give each row's last token's logits alone, (batch, 1, vocabulary). A model
            that gives position -1's by itself gets each row's last token's in any case.
        progress: called as weights are written.

    Raises:
        AieError: the destination exists or cannot be written, the model does not fit `kv` or
            `last_logits`, or a weight cannot be read. Nothing is left behind then.
    """
    if kv is not None:
        set_cache_type(model, kv)
    notes: list[str] = []
    if last_logits:
        keep_last_logits(model)
    elif mended := mend_pruned_logits(model):
        notes.append(mended)
    model.metadata_props["ort_aie.format"] = str(FORMAT)
    model.metadata_props["ort_aie.version"] = ort_aie_ep.__version__
    outcomes = tuple(report.outcomes.values())
    with _written_beside(target) as work:
        path = work / source.model.relative_to(source.path)
        path.parent.mkdir(parents=True, exist_ok=True)
        weight_bytes = _save(model, path, progress)
        _carry_over(source, files, work)
        if source.genai_config is not None:
            _make_genai_folder(source.genai_config, work)
        layers = tuple(report.layers.errors.values()) if report.layers is not None else ()
        _write_json(
            work / REPORT,
            {
                "format": FORMAT,
                "nodes": [asdict(o) for o in outcomes],
                "layers": [asdict(layer) for layer in layers],
                "notes": notes,
            },
        )
    return CompileResult(target, outcomes, weight_bytes, layers, tuple(notes))


def _save(model: ir.Model, path: Path, progress: Progress | None) -> int:
    """Writes the model and one external data file, tensor by tensor; returns the file's bytes."""
    copies = _copies(model)
    total = sum(
        value.const_value.nbytes
        for graph in model.graphs()
        for value in graph.initializers.values()
        if value.const_value is not None
        and value.const_value.nbytes > INLINE_BYTES
        and value not in copies
    )
    free = shutil.disk_usage(path.parent).free
    if total > free:
        raise AieError(
            f"the weights of {path.name} need {total} bytes, and its disk has {free} free"
        )
    done = 0

    def report(tensor: ir.TensorProtocol, _: object) -> None:
        nonlocal done
        if progress is not None:
            progress(done, total, tensor.name or "")
        done += tensor.nbytes

    data = path.with_name(path.name + ".data")
    for copy in copies:
        copy.const_value = None  # left out for now
    ir.external_data.unload_from_model(
        model,
        path.parent,
        data.name,
        size_threshold_bytes=INLINE_BYTES,
        callback=report,
        alignment=PAGE,
        align_threshold=0,
    )
    for copy, first in copies.items():
        tensor = first.const_value
        assert isinstance(tensor, ir.ExternalTensor)
        copy.const_value = ir.ExternalTensor(
            tensor.location,
            tensor.offset,
            tensor.length,
            tensor.dtype,
            shape=tensor.shape,
            name=copy.name or "",
            base_dir=tensor.base_dir,
        )
    if progress is not None:
        progress(total, total, "")
    if not data.exists():  # no initializer is that large
        data.touch()
    size = -(-data.stat().st_size // PAGE) * PAGE
    os.truncate(data, size)
    ir.save(model, path)
    return size


def _copies(model: ir.Model) -> dict[ir.Value, ir.Value]:
    """Initializers of bodies that name the bytes of another one, and that one."""
    found: dict[ir.Value, ir.Value] = {}
    writers: dict[ir.Value, ir.Value] = {}
    for graph in model.graphs():
        for value in graph.initializers.values():
            if value.const_value is None or value.const_value.nbytes <= INLINE_BYTES:
                continue
            # The first one may be gone.
            writer = writers.setdefault(value.meta.get(SAME_AS, value), value)
            if writer is not value:
                found[value] = writer
    return found


def check_destination(target: Path) -> None:
    """Before anything is computed, and again when it is written.

    Raises:
        AieError: `target` exists, or the folder that it shall lie in does not.
    """
    try:
        if target.exists() or target.is_symlink():
            raise AieError(f"{target} exists already; remove it or choose another destination")
        if not target.parent.is_dir():
            raise AieError(f"{target.parent} is no folder; make it first")
    except OSError as error:  # a name that no file can have
        raise AieError(f"{target} cannot be written: {error.strerror}") from error


@contextmanager
def _written_beside(target: Path) -> Iterator[Path]:
    """A new folder beside `target` that becomes it at the end, or disappears."""
    check_destination(target)
    try:
        work = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    except OSError as error:
        raise AieError(f"{target.parent} cannot be written: {error.strerror}") from error
    try:
        yield work
        work.chmod(0o755)
        work.rename(target)
    except OSError as error:
        # numpy tells a short write without the system's reason.
        reason = error.strerror or f"{error} (is the disk full?)"
        raise AieError(f"writing {target} failed: {reason}") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _carry_over(folder: ModelFolder, files: Iterable[Path], work: Path) -> None:
    for path in files:
        to = work / path.relative_to(folder.path)
        to.parent.mkdir(parents=True, exist_ok=True)
        if not to.exists():
            shutil.copy2(path, to)


def _make_genai_folder(config: dict[str, Any], work: Path) -> None:
    """Names the stub library in genai_config.json and puts it into the folder."""
    stub = Path(ort_aie_ep.stub_path())
    decoder = config["model"]["decoder"]
    if decoder.get("session_options") is None:
        decoder["session_options"] = {}
    options = decoder["session_options"]
    if not isinstance(options, dict):
        raise AieError(f"{GENAI_CONFIG}: model.decoder.session_options must be an object")
    other = options.get("custom_ops_library")
    if other not in (None, stub.name):
        raise AieError(
            f"{GENAI_CONFIG} names the custom-op library {other!r} already, and genai loads one"
        )
    options["custom_ops_library"] = stub.name
    shutil.copyfile(stub, work / stub.name)
    _write_json(work / GENAI_CONFIG, config)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
