"""`ort-aie compile`: a model folder in, a folder with aie.* nodes and Q4NX weights out."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import onnx_ir as ir

import ort_aie_ep
from ort_aie_ep.errors import AieError
from ort_aie_ep.graph_passes import FORMAT, LayerError, NodeOutcome, WeightForm, run_passes
from ort_aie_ep.graph_passes.kv_cache import set_cache_type
from ort_aie_ep.graph_passes.last_logits import keep_last_logits
from ort_aie_ep.model_file import external_files, load_model
from ort_aie_ep.model_folder import GENAI_CONFIG, ModelFolder, find_model

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
    """

    path: Path
    outcomes: tuple[NodeOutcome, ...]
    weight_bytes: int
    layers: tuple[LayerError, ...]


def compile_model(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    kv: str | None = None,
    last_logits: bool = False,
    fuse: bool = True,
    quantize: str | None = None,
    keep: Sequence[str] = (),
    progress: Progress | None = None,
) -> CompileResult:
    """Compiles the model in `source` into the new folder `destination`.

    MatMulNBits becomes aie.Q4NXMatMul, attention (GroupQueryAttention, or spelled out as optimum
    exports it) aie.FlowAttention, and an embedding tied to the lm_head aie.Q4NXGather on the same
    tensor; with `quantize`, MatMul and Gemm with constant float weights become aie.Q4NXMatMul or
    aie.GEMM. Names, types and shapes of the graph's inputs
    and outputs stay unless asked otherwise; other files of the folder are carried over.

    Args:
        source: an onnxruntime-genai folder, a folder with one .onnx file (as optimum exports), or
            an .onnx file.
        destination: a folder that does not exist yet. It is written beside and renamed at the end.
        kv: "f16" or "bf16" gives past and present that type; None leaves it.
        last_logits: give the last position's logits alone, (batch, 1, vocabulary).
        fuse: let norms, residuals and gates join the projections; False replaces node by node.
        quantize: what float weights become: "q4nx" (4 bits, a range searched for each group of 32)
            or "bf16" (bfloat16 operands, float32 sums); None leaves them.
        keep: patterns (* and ?) of names of MatMul and Gemm nodes that `quantize` leaves alone.
        progress: called as weights are written.

    Raises:
        AieError: the source is no model, is damaged, or has nothing to compile; the destination
            exists or cannot be written; a pattern of `keep` matches nothing, or there is nothing to
            keep from. Nothing is left behind then.
    """
    form = _weight_form(quantize, keep)
    folder = find_model(Path(source))
    target = Path(destination)
    model = load_model(folder.model)
    data_files = external_files(model)
    report = run_passes(model, fuse=fuse, quantize=form, keep=keep)
    outcomes = tuple(report.outcomes.values())
    if not any(outcome.becomes for outcome in outcomes):
        already = any(node.domain == "aie" for node in model.graph)
        raise AieError(
            f"{folder.model} "
            + (
                "is compiled already"
                if already
                else "has nothing to compile: no MatMulNBits with 4 bits, no GroupQueryAttention "
                "and no exported attention with a KV cache"
                + "".join(f"\n  {o.node}: {o.reason}" for o in outcomes[:5])
            )
        )
    if kv is not None:
        set_cache_type(model, kv)
    if last_logits:
        keep_last_logits(model)
    model.metadata_props["ort_aie.format"] = str(FORMAT)
    model.metadata_props["ort_aie.version"] = ort_aie_ep.__version__
    # A bare .onnx file says nothing of its neighbours: they stay where they are. Listed before
    # anything is written: the destination may lie inside the source.
    skip = {folder.model, *data_files}
    others = _other_files(folder, skip) if Path(source).is_dir() else []
    with _written_beside(target) as work:
        path = work / folder.model.relative_to(folder.path)
        path.parent.mkdir(parents=True, exist_ok=True)
        weight_bytes = _save(model, path, progress)
        _carry_over(folder, others, work)
        if folder.genai_config is not None:
            _make_genai_folder(folder.genai_config, work)
        layers = tuple(report.layers.errors.values()) if report.layers is not None else ()
        _write_json(
            work / REPORT,
            {
                "format": FORMAT,
                "nodes": [asdict(o) for o in outcomes],
                "layers": [asdict(layer) for layer in layers],
            },
        )
    return CompileResult(target, outcomes, weight_bytes, layers)


def _weight_form(quantize: str | None, keep: Sequence[str]) -> WeightForm | None:
    if quantize is None:
        if keep:
            raise AieError("keep names nodes that are not to be quantised: give quantize as well")
        return None
    if quantize not in list(WeightForm):
        raise AieError(f"quantize is {quantize!r}; expected one of {', '.join(WeightForm)}")
    return WeightForm(quantize)


def _save(model: ir.Model, path: Path, progress: Progress | None) -> int:
    """Writes the model and one external data file, tensor by tensor; returns the file's bytes."""
    total = sum(
        value.const_value.nbytes
        for graph in model.graphs()
        for value in graph.initializers.values()
        if value.const_value is not None and value.const_value.nbytes > INLINE_BYTES
    )
    done = 0

    def report(tensor: ir.TensorProtocol, _: object) -> None:
        nonlocal done
        if progress is not None:
            progress(done, total, tensor.name or "")
        done += tensor.nbytes

    data = path.with_name(path.name + ".data")
    ir.external_data.unload_from_model(
        model,
        path.parent,
        data.name,
        size_threshold_bytes=INLINE_BYTES,
        callback=report,
        alignment=PAGE,
        align_threshold=0,
    )
    if progress is not None:
        progress(total, total, "")
    if not data.exists():  # no initializer is that large
        data.touch()
    size = -(-data.stat().st_size // PAGE) * PAGE
    os.truncate(data, size)
    ir.save(model, path)
    return size


@contextmanager
def _written_beside(target: Path) -> Iterator[Path]:
    """A new folder beside `target` that becomes it at the end, or disappears."""
    try:
        if target.exists() or target.is_symlink():
            raise AieError(f"{target} exists already; remove it or choose another destination")
        if not target.parent.is_dir():
            raise AieError(f"{target.parent} is no folder; make it first")
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


def _other_files(folder: ModelFolder, skip: set[Path]) -> list[Path]:
    skipped = {path.absolute() for path in skip}
    return [
        path
        for path in sorted(folder.path.rglob("*"))
        if path.absolute() not in skipped and path.is_file()
    ]


def _carry_over(folder: ModelFolder, files: list[Path], work: Path) -> None:
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
