"""Model folders as onnxruntime-genai or optimum write them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ort_aie_ep.errors import AieError
from ort_aie_ep.models import ryzen_ai
from ort_aie_ep.models.checked_json import read_json
from ort_aie_ep.models.checkpoint import ADAPTER_CONFIG, is_checkpoint
from ort_aie_ep.models.files import inside, is_missing, is_regular, open_regular

GENERATION_CONFIG = "generation_config.json"  # of transformers
GENAI_CONFIG = "genai_config.json"
GGUF = b"GGUF"
"""The first bytes of a GGUF file."""
MORE_TEMPLATES = "additional_chat_templates"
"""The folder in which transformers saves chat templates other than the default, NAME.jinja."""
# optimum's names for the decoders of an encoder-decoder model, and for the files that it wrote
# before it put prompt and next token of other models into one model.onnx. The main one is first.
OPTIMUM_ENCODER = "encoder_model.onnx"
OPTIMUM_DECODERS = (
    "decoder_model_merged.onnx",
    "decoder_with_past_model.onnx",
    "decoder_model.onnx",
)


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

    @property
    def is_optimum_encoder_decoder(self) -> bool:
        """Whether optimum exported it as an encoder and decoders."""
        encoder = self.path / OPTIMUM_ENCODER
        return self.model.name in OPTIMUM_DECODERS and encoder.is_file()


@dataclass(frozen=True)
class OtherModel:
    """An .onnx file of a folder, other than the main one.

    Attributes:
        path: the file.
        role: its role in the model: the section of genai_config.json that names it ("encoder",
            "vision", "decoder.pipeline"), or its name in optimum's exports; empty if nothing names
            it.
    """

    path: Path
    role: str

    @property
    def part(self) -> str:
        """The section of genai_config.json that its role is in."""
        return self.role.split(".")[0]


def other_models(folder: ModelFolder) -> list[OtherModel]:
    """The .onnx files of a folder except the main one, sorted by path."""
    roles = {folder.path / name: name for name in (OPTIMUM_ENCODER, *OPTIMUM_DECODERS)}
    if folder.genai_config is not None:
        sections = file_sections(folder.genai_config.get("model"))
        roles = {folder.path / part["filename"]: role for part, role in sections}
    return [
        OtherModel(path, roles.get(path, ""))
        for path in sorted(folder.path.rglob("*.onnx"))
        if path != folder.model and path.is_file()
    ]


def file_sections(part: object, role: str = "") -> Iterator[tuple[dict[str, Any], str]]:
    """The objects that name a file in a part of genai_config.json, each with the keys that lead to
    it, such as "decoder" or "vision.pipeline.patch_embed"."""
    if isinstance(part, list):
        for item in part:
            yield from file_sections(item, role)
    elif isinstance(part, dict):
        if isinstance(part.get("filename"), str):
            yield part, role
        for key, value in part.items():
            yield from file_sections(value, f"{role}.{key}".lstrip("."))


def section(folder: ModelFolder, *names: str) -> dict[str, Any]:
    """A part of genai_config.json, empty if it is missing."""
    part: Any = folder.genai_config
    for name in names:
        part = part.get(name) if isinstance(part, dict) else None
    return part if isinstance(part, dict) else {}


def find_head(folder: ModelFolder) -> ModelFolder | None:
    """The head that guesses a model's next tokens from its hidden states, as onnxruntime-genai's
    builder writes it beside the model; None if there is none."""
    head = section(folder, "model", "mtp")
    file = folder.path / str(head.get("filename"))
    if folder.genai_config is None or not head.get("enabled", True) or not is_regular(file):
        return None
    inputs = {"hidden_states": "hidden_states", **section(folder, "model", "mtp", "inputs")}
    model = {**folder.genai_config["model"], "decoder": {**head, "inputs": inputs}}
    return ModelFolder(folder.path, file, {**folder.genai_config, "model": model})


def find_model(source: Path) -> ModelFolder:
    """Finds the model in a folder, or takes an .onnx file.

    Raises:
        AieError: there is no such path, or no model in it.
    """
    if not source.exists():
        hint = "" if source.is_absolute() else ", and is not a name on a hub, OWNER/REPO"
        raise AieError(f"{source} does not exist{hint}")
    if is_gguf(source):
        raise AieError(
            f"{source} is a GGUF file, which is not ONNX: "
            f"{shlex.join(['ort-aie', 'compile', str(source)])} COMPILED makes a model of it"
        )
    if source.is_file():
        if source.suffix != ".onnx":
            raise AieError(f"{source} is not an .onnx or .gguf file; pass one, or a model folder")
        return ModelFolder(source.parent, source, None)
    config_file = source / GENAI_CONFIG
    config: dict[str, Any] | None = None
    if not is_missing(config_file):
        if shows := ryzen_ai.ryzen_ai_file(path.name for path in source.glob("*")):
            raise AieError(
                f"{source} is a model that only AMD's Ryzen AI Software runs ({shows}): "
                f"{ryzen_ai.INSTEAD}"
            )
        read = read_json(config_file)
        config, filename = read.object(), read.field("model", "decoder", "filename").text()
        model = source / filename
        if not inside(source, model):
            raise AieError(
                f"{config_file}: model.decoder.filename {filename!r} is not in the folder"
            )
        if not is_regular(model):
            raise AieError(f"{config_file} names {filename}, which is not in {source}")
        return ModelFolder(source, model, config)
    models = sorted(source.glob("*.onnx"))
    if is_checkpoint(source):
        raise AieError(
            f"{source} is a Hugging Face checkpoint, which is not ONNX yet: "
            f"{shlex.join(['ort-aie', 'compile', str(source)])} COMPILED builds a model and "
            "compiles it"
        )
    if not models and not is_missing(source / ADAPTER_CONFIG):
        raise AieError(
            f"{source} is an adapter: pass the checkpoint that it belongs to, and --adapter "
            f"{shlex.quote(str(source))}"
        )
    if not models and (files := sorted(source.glob("*.gguf"))):
        raise AieError(f"{source} has GGUF files: name one, such as {files[0]}")
    if not models:
        raise AieError(
            f"{source} is not a model folder: it has neither {GENAI_CONFIG} nor an .onnx "
            "or .gguf file, nor config.json with *.safetensors"
        )
    decoders = [source / name for name in OPTIMUM_DECODERS if source / name in models]
    if decoders and source / OPTIMUM_ENCODER in models:
        return ModelFolder(source, decoders[0], None)
    if decoders and len(models) > 1:
        raise AieError(
            f"{source} has {models[0].name}, from an export with separate models for prompts and "
            "next tokens; export again with optimum-onnx (--task text-generation-with-past), which "
            "writes one model.onnx"
        )
    if len(models) > 1:
        names = ", ".join(model.name for model in models)
        raise AieError(f"{source} has several models ({names}); pass one of the files")
    return ModelFolder(source, models[0], None)


def is_gguf(source: Path) -> bool:
    """Whether a path is meant to be a GGUF file: by its name, or by its first bytes."""
    if not is_regular(source):
        return False
    if source.suffix.lower() == ".gguf":
        return True
    try:
        with open_regular(source) as file:
            return file.read(len(GGUF)) == GGUF
    except OSError:
        return False


def why_not_carried(folder: Path, file: Path) -> str:
    """The reason not to copy a file of a folder into another folder, or an empty string.

    A link may lead to a file of the same folder, or to the blobs of the folder's repository in
    Hugging Face's cache. This is how that cache stores files: in models--OWNER--REPO,
    snapshots/<revision>/config.json leads to ../../blobs/<hash>; and a folder that `hub.folder`
    lays out elsewhere is in one of the same name. Any other link would copy files that the
    folder's maker never had.
    """
    if file.is_dir():
        return "it is a link to a folder" if file.is_symlink() else ""
    if not is_regular(file):
        return "it is a link to nowhere" if is_missing(file) else "it is not a regular file"
    root, target = folder.resolve(), file.resolve()
    if target.is_relative_to(root):
        return ""
    blobs, names = target.parent, {at.name for at in root.parents}
    repository = blobs.parent.name if blobs.name == "blobs" else ""
    if repository.startswith("models--") and repository in names:
        return ""
    return f"it is a link to {target}, outside the folder"
