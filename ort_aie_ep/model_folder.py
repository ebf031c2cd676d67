"""Model folders as onnxruntime-genai or optimum write them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ort_aie_ep.checked_json import read_json
from ort_aie_ep.errors import AieError
from ort_aie_ep.files import is_missing, is_regular

GENAI_CONFIG = "genai_config.json"
# What optimum wrote before it put prompt and next token into one model.onnx.
OLD_OPTIMUM = {"decoder_model.onnx", "decoder_with_past_model.onnx", "decoder_model_merged.onnx"}


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
    if not is_missing(config_file):
        read = read_json(config_file)
        config, filename = read.object(), read.field("model", "decoder", "filename").text()
        model = source / filename
        if not inside(source, model):
            raise AieError(f"{config_file}: model.decoder.filename {filename!r} leaves the folder")
        if not is_regular(model):
            raise AieError(f"{config_file} names {filename}, which is not in {source}")
        return ModelFolder(source, model, config)
    models = sorted(source.glob("*.onnx"))
    if not models:
        raise AieError(
            f"{source} is no model folder: it has neither {GENAI_CONFIG} nor an .onnx file"
        )
    if OLD_OPTIMUM.intersection(model.name for model in models):
        raise AieError(
            f"{source} holds {models[0].name}, an export for prompts and next tokens apart; "
            "export again with optimum-onnx (--task text-generation-with-past), which writes one "
            "model.onnx"
        )
    if len(models) > 1:
        names = ", ".join(model.name for model in models)
        raise AieError(f"{source} has several models ({names}); give one of the files")
    return ModelFolder(source, models[0], None)


def inside(folder: Path, file: Path) -> bool:
    """Whether a file, as it is named, lies in a folder."""
    # Links inside hub caches lead out of the folder on purpose: the location's text decides, then
    # the link may point anywhere a user put it. `..` and absolute paths may not.
    try:
        relative = file.absolute().relative_to(folder.absolute())
    except ValueError:
        return False
    return ".." not in relative.parts
