"""Model folders as onnxruntime-genai or optimum write them, and loading them safely."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx_ir as ir

from ort_aie_ep.errors import AieError

GENAI_CONFIG = "genai_config.json"


@dataclass(frozen=True)
class ModelFolder:
    """A folder with an ONNX language model.

    Attributes:
        path: the folder.
        model: the decoder's ONNX file.
        genai_config: parsed genai_config.json, or None for a folder without one.
    """

    path: Path
    model: Path
    genai_config: dict[str, Any] | None


def find_model(source: Path) -> ModelFolder:
    """Finds the model in a folder, or takes an .onnx file.

    Raises:
        AieError: there is no such path, or no model in it.
    """
    if not source.exists():
        raise AieError(f"{source} does not exist")
    if source.is_file():
        if source.suffix != ".onnx":
            raise AieError(f"{source} is no .onnx file; give a model folder or an .onnx file")
        return ModelFolder(source.parent, source, None)
    config_file = source / GENAI_CONFIG
    config: dict[str, Any] | None = None
    if config_file.is_file():
        config = _read_config(config_file)
        try:
            filename = config["model"]["decoder"]["filename"]
        except (KeyError, TypeError):
            raise AieError(f"{config_file} has no model.decoder.filename") from None
        model = source / str(filename)
        if not _inside(source, model):
            raise AieError(f"{config_file}: model.decoder.filename {filename!r} leaves the folder")
        if not model.is_file():
            raise AieError(f"{config_file} names {filename}, which is not in {source}")
        return ModelFolder(source, model, config)
    models = sorted(source.glob("*.onnx"))
    if not models:
        raise AieError(
            f"{source} is no model folder: it has neither {GENAI_CONFIG} nor an .onnx file"
        )
    if len(models) > 1:
        names = ", ".join(model.name for model in models)
        raise AieError(f"{source} has several models ({names}); give one of the files")
    return ModelFolder(source, models[0], None)


def load_model(path: Path) -> ir.Model:
    """Loads an ONNX file, weights left on disk, and checks its external data.

    Raises:
        AieError: no ONNX model; external data outside the folder, missing, truncated, or of a
            length that does not fit the tensor.
    """
    try:
        model = ir.load(path)
    except Exception as error:  # protobuf and onnx_ir raise many kinds
        cause: BaseException = error  # the first one; onnx_ir's own say where, not what
        while inner := cause.__cause__ or cause.__context__:
            cause = inner
        raise AieError(f"{path} cannot be read as an ONNX model: {cause}") from error
    if not len(model.graph):
        raise AieError(f"{path} holds no graph: it is empty or no ONNX model")
    for graph in model.graphs():
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor):
                _check_external(path, value.const_value)
            elif isinstance(value.const_value, ir.TensorProtoTensor):
                _check_inline(path, value.const_value)
    return model


def external_files(model: ir.Model) -> set[Path]:
    """The external data files that a loaded model reads."""
    return {
        Path(value.const_value.path)
        for graph in model.graphs()
        for value in graph.initializers.values()
        if isinstance(value.const_value, ir.ExternalTensor)
    }


def _check_external(model: Path, tensor: ir.ExternalTensor) -> None:
    where = f"{model.name}: tensor '{tensor.name}' has its data in '{tensor.location}'"
    file = Path(tensor.path)
    if not _inside(model.parent, file):
        raise AieError(f"{where}, outside the model's folder")
    if not file.is_file():
        raise AieError(f"{where}, which is missing")
    # The size by type and shape, not the length that the model claims.
    size = int(tensor.size * tensor.dtype.itemsize + 0.5)
    if tensor.length is not None and tensor.length != size:
        raise AieError(
            f"{where}: {tensor.length} bytes are given, but {tensor.dtype.name} "
            f"{tuple(tensor.shape.numpy())} needs {size}"
        )
    end = (tensor.offset or 0) + size
    actual = file.stat().st_size
    if end > actual:
        raise AieError(f"{where} up to byte {end}, but the file ends at {actual}: it is truncated")


def _check_inline(model: Path, tensor: ir.TensorProtoTensor) -> None:
    proto = tensor.raw
    if proto.HasField("raw_data") and len(proto.raw_data) != tensor.nbytes:
        raise AieError(
            f"{model.name}: tensor '{tensor.name}' holds {len(proto.raw_data)} bytes, but "
            f"{tensor.dtype.name} {tuple(tensor.shape.numpy())} needs {tensor.nbytes}"
        )


def _inside(folder: Path, file: Path) -> bool:
    # Links inside hub caches lead out of the folder on purpose: the location's text decides, then
    # the link may point anywhere a user put it. `..` and absolute paths may not.
    try:
        relative = file.absolute().relative_to(folder.absolute())
    except ValueError:
        return False
    return ".." not in relative.parts


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise AieError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(config, dict):
        raise AieError(f"{path} must hold a JSON object")
    return config
