"""config.json of a FastFlowLM or Hugging Face model: sizes, rotary frequencies, token ids."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ort_aie_ep.errors import AieError
from ort_aie_ep.model_shapes import Shape
from ort_aie_ep.synth.weights import rotary_frequencies

# What config.json calls a model, and the family of graphs that it is.
FAMILIES = {
    "llama": "llama",
    "mistral": "mistral",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma3": "gemma3_text",
    "gemma3_text": "gemma3_text",
}
# Names and values of the feed-forward activation that the family's graph has.
ACTIVATIONS = {
    "gemma3_text": (("hidden_activation", "hidden_act"), "gelu_pytorch_tanh"),
}
SILU = (("hidden_act",), "silu")
# What would change the graph, and the values with which it does not.
UNCHANGED: dict[str, tuple[object, ...]] = {
    "attention_bias": (None, False),
    "mlp_bias": (None, False),
    "use_sliding_window": (None, False),
    "attn_logit_softcapping": (None,),
    "final_logit_softcapping": (None,),
}
# Keys of generation_config.json that onnxruntime-genai's search has too.
SEARCH = ("do_sample", "temperature", "top_k", "top_p")

Frequencies = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Rotary:
    """Frequencies of a rotary embedding, radians a position, and what they were before scaling."""

    frequencies: Frequencies
    unscaled: Frequencies


@dataclass(frozen=True)
class ModelConfig:
    """What a model's configuration says.

    Attributes:
        shape: sizes of the graph; its embedding is a table of its own.
        rotary: rotary embeddings, by what the names of their tables end in: "", or "_global" and
            "_local".
        tokens: bos_token_id, eos_token_id and pad_token_id.
        search: defaults for generating.
    """

    shape: Shape
    rotary: dict[str, Rotary]
    tokens: dict[str, int | list[int]]
    search: dict[str, bool | float]


class _Fields:
    """Values of a JSON object that are checked as they are read."""

    def __init__(self, where: str, values: Mapping[str, Any]) -> None:
        self.where = where
        self.values = values

    def number(self, name: str) -> float:
        """A positive, finite number."""
        value = self.values.get(name)
        if value is None:
            raise AieError(f"{self.where}: {name} is missing")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise AieError(f"{self.where}: {name} must be a number, got {value!r}")
        if not (value > 0 and math.isfinite(value)):
            raise AieError(f"{self.where}: {name} must be positive, got {value!r}")
        return value

    def integer(self, name: str) -> int:
        """A positive whole number."""
        value = self.number(name)
        if not isinstance(value, int):
            raise AieError(f"{self.where}: {name} must be a whole number, got {value!r}")
        return value

    def fields(self, name: str) -> _Fields | None:
        """An object, or None where there is none."""
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise AieError(f"{self.where}: {name} must be an object, got {value!r}")
        return _Fields(f"{self.where}: {name}", value)


def read_config(path: Path) -> ModelConfig:
    """Reads config.json, and generation_config.json beside it if that is there.

    Raises:
        AieError: a file cannot be read, or describes a model that cannot be imported: what is
            missing or not supported.
    """
    fields = _Fields(path.name, _read_object(path))
    generation_file = path.with_name("generation_config.json")
    generation = _read_object(generation_file) if generation_file.is_file() else {}
    text = fields.fields("text_config")  # of a model that sees pictures, too
    if text is not None:
        fields = _Fields(f"{path.name}: text_config", {**fields.values, **text.values})
    family = _family(fields)
    _check_unchanged(fields, family)
    shape = _shape(fields, family)
    return ModelConfig(
        shape,
        _rotary_embeddings(fields, shape),
        _tokens(fields, generation),
        {key: generation[key] for key in SEARCH if isinstance(generation.get(key), int | float)},
    )


def _read_object(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise AieError(
            f"{path} cannot be read: {error.strerror}; give the model's config.json with --config"
        ) from error
    except OSError as error:
        raise AieError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise AieError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(values, dict):
        raise AieError(f"{path} must hold a JSON object")
    return values


def _family(fields: _Fields) -> str:
    model_type = fields.values.get("model_type")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise AieError(
            f"{fields.where}: model_type {model_type!r} cannot be imported; "
            f"there are {', '.join(FAMILIES)}"
        )
    return FAMILIES[model_type]


def _check_unchanged(fields: _Fields, family: str) -> None:
    for name, allowed in UNCHANGED.items():
        value = fields.values.get(name)
        if value not in allowed:
            raise AieError(f"{fields.where}: {name} {value!r} is not supported")
    names, expected = ACTIVATIONS.get(family, SILU)
    given = [value for name in names if (value := fields.values.get(name)) is not None]
    if given[:1] != [expected]:
        raise AieError(f"{fields.where}: {names[0]} must be {expected!r}, got {given}")


def _shape(fields: _Fields, family: str) -> Shape:
    heads, hidden = fields.integer("num_attention_heads"), fields.integer("hidden_size")
    given = fields.values.get("head_dim")
    shape = Shape(
        family=family,
        hidden=hidden,
        ffn=fields.integer("intermediate_size"),
        layers=fields.integer("num_hidden_layers"),
        heads=heads,
        kv_heads=fields.integer("num_key_value_heads"),
        head_dim=hidden // heads if given is None else fields.integer("head_dim"),
        vocab=fields.integer("vocab_size"),
        context=fields.integer("max_position_embeddings"),
        # The file has a table of its own for the embedding, less rounded than the lm_head. Gemma's
        # is multiplied by √hidden already.
        tied=False,
        epsilon=fields.number("rms_norm_eps"),
        window=_window(fields, family),
        global_every=_global_every(fields) if family == "gemma3_text" else 6,
    )
    if shape.heads % shape.kv_heads:
        raise AieError(
            f"{fields.where}: num_attention_heads {shape.heads} is no multiple of "
            f"num_key_value_heads {shape.kv_heads}"
        )
    if shape.head_dim % 2:
        raise AieError(f"{fields.where}: head_dim must be even, got {shape.head_dim}")
    scalar = fields.values.get("query_pre_attn_scalar")
    if scalar not in (None, shape.head_dim):
        raise AieError(
            f"{fields.where}: query_pre_attn_scalar {scalar} differs from head_dim "
            f"{shape.head_dim}, which is not supported"
        )
    _check_layer_types(fields, shape)
    return shape


def _window(fields: _Fields, family: str) -> int | None:
    if family == "gemma3_text":
        return fields.integer("sliding_window")
    # Qwen3 gives a window that use_sliding_window turns off.
    if family == "mistral" and fields.values.get("sliding_window") is not None:
        raise AieError(
            f"{fields.where}: sliding_window {fields.values['sliding_window']} on every layer is "
            "not supported"
        )
    return None


def _layer_types(fields: _Fields) -> list[object] | None:
    types = fields.values.get("layer_types")
    if types is not None and not isinstance(types, list):
        raise AieError(f"{fields.where}: layer_types must be a list, got {types!r}")
    return types


def _global_every(fields: _Fields) -> int:
    types = _layer_types(fields)
    if types is None:
        return fields.integer("sliding_window_pattern")
    # Without any, one more than there are layers.
    return types.index("full_attention") + 1 if "full_attention" in types else len(types) + 1


def _check_layer_types(fields: _Fields, shape: Shape) -> None:
    types = _layer_types(fields)
    expected = [
        "sliding_attention" if shape.is_local(layer) else "full_attention"
        for layer in range(shape.layers)
    ]
    if types is not None and types != expected:
        raise AieError(
            f"{fields.where}: layer_types {types} is not supported; a {shape.family} with "
            f"{shape.layers} layers has a full_attention every {shape.global_every}"
            if shape.window
            else f"{fields.where}: layer_types {types} is not supported in a {shape.family}"
        )


def _rotary_embeddings(fields: _Fields, shape: Shape) -> dict[str, Rotary]:
    parameters = fields.fields("rope_parameters")  # as transformers 5 writes them
    if shape.family != "gemma3_text":
        return {"": _rotary(parameters or _older_parameters(fields), shape.head_dim)}
    of_full = parameters.fields("full_attention") if parameters else _older_parameters(fields)
    of_local = (
        parameters.fields("sliding_attention")
        if parameters
        else _Fields(fields.where, {"rope_theta": fields.number("rope_local_base_freq")})
    )
    if of_full is None or of_local is None:
        raise AieError(
            f"{fields.where}: rope_parameters must hold full_attention and sliding_attention"
        )
    return {
        "_global": _rotary(of_full, shape.head_dim),
        "_local": _rotary(of_local, shape.head_dim),
    }


def _older_parameters(fields: _Fields) -> _Fields:
    """rope_theta and rope_scaling as transformers 4 writes them."""
    scaling = fields.fields("rope_scaling")
    values = {"rope_theta": fields.number("rope_theta"), **(scaling.values if scaling else {})}
    return _Fields(fields.where, values)


def _rotary(parameters: _Fields, width: int) -> Rotary:
    values = parameters.values
    kind = values.get("rope_type", values.get("type", "default"))
    if not isinstance(kind, str) or kind not in SCALINGS:
        raise AieError(
            f"{parameters.where}: rope_type {kind!r} is not supported; "
            f"there are {', '.join(SCALINGS)}"
        )
    unscaled = rotary_frequencies(width, parameters.number("rope_theta"))
    return Rotary(SCALINGS[kind](unscaled, parameters), unscaled)


def _as_they_are(frequencies: Frequencies, parameters: _Fields) -> Frequencies:
    return frequencies


def _linear(frequencies: Frequencies, parameters: _Fields) -> Frequencies:
    return frequencies / np.float32(parameters.number("factor"))


def _llama3(frequencies: Frequencies, parameters: _Fields) -> Frequencies:
    """Llama 3.1: long wavelengths are stretched by `factor`, short ones not, between them both."""
    low, high = parameters.number("low_freq_factor"), parameters.number("high_freq_factor")
    if high <= low:
        raise AieError(f"{parameters.where}: high_freq_factor must be above low_freq_factor")
    turns = parameters.number("original_max_position_embeddings") * frequencies / (2 * np.pi)
    kept = np.clip((turns - low) / (high - low), 0, 1)
    stretched = frequencies / parameters.number("factor")
    mixed: Frequencies = ((1 - kept) * stretched + kept * frequencies).astype(np.float32)
    return mixed


SCALINGS: dict[str, Callable[[Frequencies, _Fields], Frequencies]] = {
    "default": _as_they_are,
    "linear": _linear,
    "llama3": _llama3,
}


def _tokens(fields: _Fields, generation: Mapping[str, Any]) -> dict[str, int | list[int]]:
    def token(name: str) -> int | list[int] | None:
        value: int | list[int] | None = generation.get(name)
        if value is None:
            value = fields.values.get(name)
        ids = value if isinstance(value, list) else [value]
        if value is not None and (not ids or any(type(one) is not int for one in ids)):
            raise AieError(f"{fields.where}: {name} must be a token id or several, got {value!r}")
        return value

    eos = token("eos_token_id")
    if eos is None:
        raise AieError(f"{fields.where}: eos_token_id is missing; no text would ever end")
    # What is not given as onnxruntime-genai's model builder chooses it.
    bos, pad = token("bos_token_id"), token("pad_token_id")
    return {
        "bos_token_id": 1 if bos is None else bos,
        "eos_token_id": eos,
        "pad_token_id": (eos if isinstance(eos, int) else eos[0]) if pad is None else pad,
    }
