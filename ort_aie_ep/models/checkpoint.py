"""Checkpoints as Hugging Face's transformers stores them: config.json, weights in safetensors."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ort_aie_ep.errors import AieError
from ort_aie_ep.models.checked_json import read_json
from ort_aie_ep.models.files import is_missing, is_regular
from ort_aie_ep.models.safetensors_file import Stored, read_container

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
ADAPTER_CONFIG = "adapter_config.json"
_ALONE = re.compile(r"model.*\.safetensors")
# Files that a tokenizer can be in.
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tekken.json")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint.

    Attributes:
        path: its folder.
        config: config.json.
        tensors: what is stored, by name.
    """

    path: Path
    config: dict[str, Any]
    tensors: dict[str, Stored]

    def setting(self, name: str) -> Any:
        """A value of config.json, or of the language model's part of it; None if it is missing."""
        text = self.config.get("text_config")
        for part in (self.config, text if isinstance(text, dict) else {}):
            if part.get(name) is not None:
                return part[name]
        return None

    @property
    def misnamed(self) -> Path | None:
        """The file with all weights, if transformers would not find it by its name."""
        files = {tensor.file for tensor in self.tensors.values()}
        alone = files.pop() if len(files) == 1 and is_missing(self.path / INDEX) else None
        return None if alone is None or alone.name == WEIGHTS else alone

    @property
    def layers(self) -> int:
        """The number of decoder layers; 0 if config.json does not say."""
        layers = self.setting("num_hidden_layers")
        return layers if type(layers) is int and layers > 0 else 0

    @property
    def tied(self) -> bool:
        """Whether the lm_head has the embedding's weights."""
        stored = any(name.endswith("lm_head.weight") for name in self.tensors)
        return self.setting("tie_word_embeddings") is True or not stored


def is_checkpoint(folder: Path) -> bool:
    """Whether a folder is a checkpoint. A folder with a model in ONNX is not one."""
    try:
        if not folder.is_dir() or not is_regular(folder / CONFIG) or any(folder.glob("*.onnx")):
            return False
        return not is_missing(folder / INDEX) or any(folder.glob("*.safetensors"))
    except (OSError, ValueError):  # a name that no file can have
        return False


def read_checkpoint(folder: Path) -> Checkpoint:
    """Reads what a checkpoint consists of, without its weights.

    Raises:
        AieError: a file is missing, cut short or damaged; there is no tokenizer.
    """
    config = read_json(folder / CONFIG).object()
    if not any(is_regular(folder / name) for name in TOKENIZERS):
        raise AieError(
            f"{folder} has no tokenizer ({', '.join(TOKENIZERS)}), which the model builder needs: "
            "add the files from where the checkpoint came from"
        )
    tensors: dict[str, Stored] = {}
    for file in _weight_files(folder):
        for name, tensor in read_container(file).items():
            if name in tensors:
                raise AieError(f"{folder}: {tensors[name].file.name} and {file.name} have '{name}'")
            tensors[name] = tensor
    return Checkpoint(folder, config, tensors)


def weight_names(names: Collection[str], index: Callable[[], Path]) -> list[str]:
    """The files that have a checkpoint's weights, by the names of all files in its folder.

    They are what transformers reads, which the builder does: model.safetensors, else what the
    index names, whatever that is called. A single model*.safetensors does too. The list is empty
    if there is none of them. `index` gives the index's path if it is needed.

    Raises:
        AieError: the index is damaged, or names what is not in the folder.
    """
    if WEIGHTS in names:
        return [WEIGHTS]
    if INDEX not in names:
        alone = [name for name in names if _ALONE.fullmatch(name)]
        return alone if len(alone) == 1 else []
    path = index()
    found = sorted({file.text() for _, file in read_json(path).field("weight_map").members()})
    for name in found:
        if not name.endswith(".safetensors"):
            raise AieError(f"{path} names {name!r}: weights must be in .safetensors files")
        if name not in names:
            raise AieError(
                f"{path} names {name!r}, which is not in its folder: download it again, or tell "
                "its owner"
            )
    return found


def _weight_files(folder: Path) -> list[Path]:
    there = {path.name for path in folder.glob("*") if is_regular(path)}
    names = weight_names(there, lambda: folder / INDEX)
    if not names:
        raise AieError(f"{folder} has neither {WEIGHTS} nor {INDEX}")
    return [folder / name for name in names]
