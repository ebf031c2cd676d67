"""LoRA adapters as peft stores them, and which tensors of a checkpoint they change."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ort_aie_ep.errors import AieError
from ort_aie_ep.models.checked_json import Field, read_json, shown
from ort_aie_ep.models.checkpoint import ADAPTER_CONFIG, Checkpoint
from ort_aie_ep.models.files import is_missing
from ort_aie_ep.models.safetensors_file import Stored, read_container

WEIGHTS = "adapter_model.safetensors"
OTHERWISE = "merge it with peft (merge_and_unload) and compile the result"
# Fields of adapter_config.json that do not change what the weights mean, or that are read here.
_KNOWN = frozenset(
    {
        *("task_type", "peft_type", "auto_mapping", "peft_version", "base_model_name_or_path"),
        *("revision", "inference_mode", "r", "target_modules", "exclude_modules", "lora_alpha"),
        *("lora_dropout", "fan_in_fan_out", "bias", "use_rslora", "modules_to_save", "use_dora"),
        *("init_lora_weights", "layers_to_transform", "layers_pattern", "rank_pattern"),
        *("alpha_pattern", "megatron_core", "runtime_config", "qalora_group_size", "eva_config"),
        *("ensure_weight_tying",),
    }
)
# Ways to initialise an adapter that leave the checkpoint's weights as they are.
_INITIAL = (None, True, False, "gaussian", "eva", "orthogonal")
_FLOATS = ("F32", "F16", "BF16")
_HALF = re.compile(r"(.+)\.lora_(embedding_)?([AB])(?:\.default)?(?:\.weight)?")
_MAGNITUDE = re.compile(r"(.+)\.lora_magnitude_vector(?:\.default)?(?:\.weight)?")
# Regular expressions that cannot take exponential time: without groups and counts, and with few
# repetitions.
_PATTERN, _REPEATS, _MOST_REPEATS = (
    re.compile(r"[\w.\-\\\[\]^$*+?|]{1,200}"),
    re.compile(r"[*+]"),
    3,
)
# Names of modules in transformers, and how checkpoints of models with pictures store them.
_RENAMED = (
    ("model.language_model.", "language_model.model."),
    ("model.language_model.", "model."),
    ("model.vision_tower.", "vision_tower."),
    ("model.multi_modal_projector.", "multi_modal_projector."),
    ("lm_head.", "language_model.lm_head."),
)


@dataclass(frozen=True)
class Merge:
    """A change to a tensor: W + scale · B A, or its transpose.

    Attributes:
        tensor: the name of W, (N, K), in the checkpoint; (K, N) if transposed.
        a: the name of A, (rank, K), in the adapter.
        b: the name of B, (N, rank), in the adapter.
        scale: the factor.
        transposed: whether W is stored transposed.
        magnitude: the name of DoRA's norms of the rows of the sum, (N); empty without them.
    """

    tensor: str
    a: str
    b: str
    scale: float
    transposed: bool = False
    magnitude: str = ""


@dataclass(frozen=True)
class Adapter:
    """An adapter that fits a checkpoint.

    Attributes:
        file: its weights.
        merges: the tensors that it changes.
        replaced: the tensors of the checkpoint that it has anew, with their names in the adapter.
    """

    file: Path
    merges: tuple[Merge, ...]
    replaced: dict[str, str]


def read_adapter(folder: Path, checkpoint: Checkpoint) -> Adapter:
    """Reads which tensors of a checkpoint an adapter changes, and how.

    Raises:
        AieError: it is not a LoRA adapter, does what merging cannot express, or does not fit the
            checkpoint.
    """
    if is_missing(folder / ADAPTER_CONFIG):
        raise AieError(f"{folder} is not a LoRA adapter: it has no {ADAPTER_CONFIG}")
    config = read_json(folder / ADAPTER_CONFIG)
    _check_config(config)
    if checkpoint.config.get("quantization_config"):
        raise AieError(
            f"{checkpoint.path} is quantised, and an adapter is merged into floats: "
            "pass the checkpoint that it was quantised from"
        )
    file = folder / WEIGHTS
    if is_missing(file):
        raise AieError(f"{folder} has no {WEIGHTS}: save the adapter in safetensors with peft")
    tensors = read_container(file)
    halves: dict[tuple[str, bool], dict[str, str]] = {}
    magnitudes, replaced = {}, {}
    for name in tensors:
        module = name.removeprefix("base_model.model.")
        if half := _HALF.fullmatch(module):
            halves.setdefault((half[1], bool(half[2])), {})[half[3]] = name
        elif norm := _MAGNITUDE.fullmatch(module):
            magnitudes[norm[1]] = name
        else:
            tensor = _stored(checkpoint, module.replace(".base_layer.", "."), file)
            if tensor.shape != tensors[name].shape:
                raise AieError(
                    f"{file}: {name} is {tensors[name].shape}, but {tensor.name} of the checkpoint "
                    f"is {tensor.shape}"
                )
            replaced[tensor.name] = name
    if not halves:
        raise AieError(f"{file} has no lora_A and lora_B")
    merges = []
    for (module, embedding), pair in sorted(halves.items()):
        if len(pair) < 2:
            raise AieError(f"{file}: {module} has lora_{min(pair)} alone")
        tensor = _stored(checkpoint, f"{module}.weight", file)
        transposed = embedding or config.object().get("fan_in_fan_out") is True
        rank, scale = _rank_and_scale(config, module)
        merge = Merge(
            tensor.name, pair["A"], pair["B"], scale, transposed, magnitudes.pop(module, "")
        )
        _check_merge(merge, rank, tensor, tensors, file)
        merges.append(merge)
    if magnitudes:
        raise AieError(f"{file}: {min(magnitudes)} has a magnitude, but no lora_A and lora_B")
    if checkpoint.tied:
        for name in (*(merge.tensor for merge in merges), *replaced):
            if name.endswith(("embed_tokens.weight", "lm_head.weight")):
                raise AieError(
                    f"{file} changes {name}, which embedding and lm_head of {checkpoint.path} "
                    "share: an adapter changes only one of the two, so they cannot be merged"
                )
    return Adapter(file, tuple(merges), replaced)


def _check_config(config: Field) -> None:
    kind = config.field("peft_type").text()
    if kind != "LORA":
        raise AieError(f"{config.file}: peft_type is {kind}; only LORA adapters can be merged")
    for name, value in config.object().items():
        if name not in _KNOWN and value not in (None, False, {}, [], ""):
            raise AieError(f"{config.file}: {name} is {shown(value)}, {_UNABLE}: {OTHERWISE}")
    initial = config.object().get("init_lora_weights")
    if initial not in _INITIAL:
        raise AieError(
            f"{config.file}: init_lora_weights is {shown(initial)}, which changes the checkpoint's "
            f"weights too: {OTHERWISE}"
        )


_UNABLE = "which adding to the weights cannot express"


def _rank_and_scale(config: Field, module: str) -> tuple[int, float]:
    """The rank and the factor of a module; patterns are regular expressions of names' ends."""

    def of_module(default: str, patterns: str) -> Field:
        found = config.find(patterns)
        for pattern, value in () if found is None else found.members():
            if len(_REPEATS.findall(pattern)) > _MOST_REPEATS or not _PATTERN.fullmatch(pattern):
                raise AieError(
                    f"{config.file}: {value.path} is more than a name with character classes and "
                    f"up to {_MOST_REPEATS} repetitions: {OTHERWISE}"
                )
            try:
                if re.match(rf"(.*\.)?({pattern})$", module):
                    return value
            except re.error as error:
                raise AieError(f"{config.file}: {value.path} is not a pattern: {error}") from error
        return config.field(default)

    rank = of_module("r", "rank_pattern").integer(1)
    alpha = of_module("lora_alpha", "alpha_pattern").number()
    return rank, alpha / (math.sqrt(rank) if config.object().get("use_rslora") else rank)


def _names(tensor: str) -> Iterator[str]:
    yield tensor
    for module, stored in _RENAMED:
        if tensor.startswith(module):
            yield stored + tensor.removeprefix(module)


def _stored(checkpoint: Checkpoint, name: str, file: Path) -> Stored:
    for candidate in _names(name):
        if candidate in checkpoint.tensors:
            return checkpoint.tensors[candidate]
    tied = " (its embedding is its lm_head)" if checkpoint.tied and "lm_head" in name else ""
    raise AieError(
        f"{file} changes {name}, which {checkpoint.path} does not have{tied}: was the adapter "
        "trained on this checkpoint?"
    )


def _check_merge(
    merge: Merge, rank: int, tensor: Stored, tensors: dict[str, Stored], file: Path
) -> None:
    if tensor.dtype not in _FLOATS:
        raise AieError(
            f"{tensor.file}: {tensor.name} is {tensor.dtype}; an adapter is merged into "
            f"{', '.join(_FLOATS)}"
        )
    shape = tensor.shape[::-1] if merge.transposed else tensor.shape
    wanted: dict[str, tuple[Any, ...]] = {
        merge.a: (rank, *shape[1:]),
        merge.b: (*shape[:1], rank),
    }
    if merge.magnitude:
        if merge.transposed:
            raise AieError(f"{file}: {merge.magnitude} is for transposed weights: {OTHERWISE}")
        wanted[merge.magnitude] = shape[:1]
    for name, expected in wanted.items():
        if len(tensor.shape) != 2 or tensors[name].shape != expected:
            raise AieError(
                f"{file}: {name} is {tensors[name].shape}; expected {expected} for rank {rank} and "
                f"{tensor.name} of {tensor.shape}"
            )
        if tensors[name].dtype not in _FLOATS:
            raise AieError(f"{file}: {name} is {tensors[name].dtype}, not {', '.join(_FLOATS)}")
