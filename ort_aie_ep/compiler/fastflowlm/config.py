"""config.json of a FastFlowLM or Hugging Face model: sizes, rotary frequencies, token ids."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ort_aie_ep.errors import AieError
from ort_aie_ep.models.builder.weights import rotary_frequencies
from ort_aie_ep.models.checked_json import Field, read_json, shown
from ort_aie_ep.models.files import is_regular
from ort_aie_ep.models.folder import GENERATION_CONFIG
from ort_aie_ep.models.shapes import Shape

# The model type in config.json, and its family of graphs.
FAMILIES = {
    "llama": "llama",
    "mistral": "mistral",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma3": "gemma3_text",
    "gemma3_text": "gemma3_text",
}
# Names and values of the feed-forward activation in the family's graph.
ACTIVATIONS = {
    "gemma3_text": (("hidden_activation", "hidden_act"), "gelu_pytorch_tanh"),
}
SILU = (("hidden_act",), "silu")
# Fields that could change the graph, and the values with which they do not.
UNCHANGED: dict[str, tuple[object, ...]] = {
    "attention_bias": (None, False),
    "mlp_bias": (None, False),
    "use_sliding_window": (None, False),
    "attn_logit_softcapping": (None,),
    "final_logit_softcapping": (None,),
}
# Keys of generation_config.json that onnxruntime-genai's search also has.
SEARCH = ("do_sample", "temperature", "top_k", "top_p")

Frequencies = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Rotary:
    """Frequencies of a rotary embedding, in radians a position, after and before scaling."""

    frequencies: Frequencies
    unscaled: Frequencies


@dataclass(frozen=True)
class ModelConfig:
    """The contents of a model's configuration.

    Attributes:
        shape: sizes of the graph; its embedding is a separate table.
        rotary: rotary embeddings, by the suffix of their tables' names: "", or "_global" and
            "_local".
        tokens: bos_token_id, eos_token_id and pad_token_id.
        search: defaults for generating.
    """

    shape: Shape
    rotary: dict[str, Rotary]
    tokens: dict[str, int | list[int]]
    search: dict[str, bool | float]


def read_config(path: Path, fitting: Callable[[Shape], Shape] = lambda shape: shape) -> ModelConfig:
    """Reads config.json, and generation_config.json beside it if it is there.

    Args:
        path: the path of config.json.
        fitting: returns the sizes of the weights for the sizes in config.json, before these are
            used; it raises AieError if they do not belong to the same model.

    Raises:
        AieError: a file cannot be read, or describes a model that cannot be imported; the message
            says what is missing or not supported.
    """
    if not path.exists():
        raise AieError(
            f"{path} cannot be read: No such file or directory; pass the model's "
            "config.json with --config"
        )
    fields = read_json(path)
    generation_file = path.with_name(GENERATION_CONFIG)
    generation = read_json(generation_file) if is_regular(generation_file) else None
    text = fields.find("text_config")  # models that see pictures have it too
    if text is not None:
        fields = replace(text, value={**fields.object(), **text.object()})
    family = _family(fields)
    _check_unchanged(fields, family)
    shape = fitting(_shape(fields, family))
    _check_layer_types(fields, shape)
    return ModelConfig(
        shape,
        _rotary_embeddings(fields, shape),
        _tokens(fields, generation),
        _search(generation) if generation is not None else {},
    )


def _name(fields: Field, name: str) -> str:
    """A member's name in errors."""
    return f"{fields.file}: {fields.path}.{name}".replace(": .", ": ")


def _family(fields: Field) -> str:
    model_type = fields.object().get("model_type")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise AieError(
            f"{_name(fields, 'model_type')} {shown(model_type)} cannot be imported; "
            f"expected one of {', '.join(FAMILIES)}"
        )
    return FAMILIES[model_type]


def _check_unchanged(fields: Field, family: str) -> None:
    for name, allowed in UNCHANGED.items():
        value = fields.object().get(name)
        if value not in allowed:
            raise AieError(f"{_name(fields, name)} {shown(value)} is not supported")
    names, expected = ACTIVATIONS.get(family, SILU)
    given = [value for name in names if (value := fields.object().get(name)) is not None]
    if given[:1] != [expected]:
        raise AieError(f"{_name(fields, names[0])} must be {expected!r}, got {shown(given)}")


def _shape(fields: Field, family: str) -> Shape:
    heads, hidden = (
        fields.field("num_attention_heads").integer(1),
        fields.field("hidden_size").integer(1),
    )
    given = fields.object().get("head_dim")
    shape = Shape(
        family=family,
        hidden=hidden,
        ffn=fields.field("intermediate_size").integer(1),
        layers=fields.field("num_hidden_layers").integer(1),
        heads=heads,
        kv_heads=fields.field("num_key_value_heads").integer(1),
        head_dim=hidden // heads if given is None else fields.field("head_dim").integer(1),
        vocab=fields.field("vocab_size").integer(1),
        context=fields.field("max_position_embeddings").integer(1),
        # The file has a separate table for the embedding, less rounded than the lm_head. Gemma's
        # is already multiplied by √hidden.
        tied=False,
        epsilon=fields.field("rms_norm_eps").positive(),
        window=_window(fields, family),
        global_every=_global_every(fields) if family == "gemma3_text" else 6,
    )
    if shape.heads % shape.kv_heads:
        raise AieError(
            f"{_name(fields, 'num_attention_heads')} {shape.heads} is not a multiple of "
            f"num_key_value_heads {shape.kv_heads}"
        )
    if shape.head_dim % 2:
        raise AieError(f"{_name(fields, 'head_dim')} must be even, got {shape.head_dim}")
    scalar = fields.object().get("query_pre_attn_scalar")
    if scalar not in (None, shape.head_dim):
        raise AieError(
            f"{_name(fields, 'query_pre_attn_scalar')} {shown(scalar)} differs from head_dim "
            f"{shape.head_dim}, which is not supported"
        )
    return shape


def _window(fields: Field, family: str) -> int | None:
    if family == "gemma3_text":
        return fields.field("sliding_window").integer(1)
    # Qwen3 has a window that use_sliding_window turns off.
    if family == "mistral" and fields.object().get("sliding_window") is not None:
        given = shown(fields.object()["sliding_window"])
        raise AieError(f"{_name(fields, 'sliding_window')} {given} on every layer is not supported")
    return None


def _layer_types(fields: Field) -> list[object] | None:
    types = fields.find("layer_types")
    return None if types is None else [each.value for each in types.elements()]


def _global_every(fields: Field) -> int:
    types = _layer_types(fields)
    if types is None:
        return fields.field("sliding_window_pattern").integer(1)
    # If no layer is global: one more than there are layers.
    return types.index("full_attention") + 1 if "full_attention" in types else len(types) + 1


def _check_layer_types(fields: Field, shape: Shape) -> None:
    types = _layer_types(fields)
    if types is None:
        return
    expected = [
        "sliding_attention" if shape.is_local(layer) else "full_attention"
        for layer in range(shape.layers)
    ]
    if types != expected:
        raise AieError(
            f"{_name(fields, 'layer_types')} {shown(types)} is not supported"
            + (
                f"; a {shape.family} with {shape.layers} layers has a full_attention every "
                f"{shape.global_every}"
                if shape.window
                else f" in a {shape.family}"
            )
        )


def _rotary_embeddings(fields: Field, shape: Shape) -> dict[str, Rotary]:
    parameters = fields.find("rope_parameters")  # as transformers 5 writes them
    if shape.family != "gemma3_text":
        return {"": _rotary(parameters or _older_parameters(fields), shape.head_dim)}
    of_full = parameters.find("full_attention") if parameters else _older_parameters(fields)
    of_local = (
        parameters.find("sliding_attention")
        if parameters
        else replace(fields, value={"rope_theta": fields.field("rope_local_base_freq").positive()})
    )
    if of_full is None or of_local is None:
        raise AieError(
            f"{_name(fields, 'rope_parameters')} must hold full_attention and sliding_attention"
        )
    return {
        "_global": _rotary(of_full, shape.head_dim),
        "_local": _rotary(of_local, shape.head_dim),
    }


def _older_parameters(fields: Field) -> Field:
    """rope_theta and rope_scaling as transformers 4 writes them."""
    scaling = fields.find("rope_scaling")
    values = {"rope_theta": fields.field("rope_theta").positive()}
    return replace(fields, value=values | (scaling.object() if scaling is not None else {}))


def _rotary(parameters: Field, width: int) -> Rotary:
    values = parameters.object()
    kind = values.get("rope_type", values.get("type", "default"))
    if not isinstance(kind, str) or kind not in SCALINGS:
        raise AieError(
            f"{_name(parameters, 'rope_type')} {shown(kind)} is not supported; "
            f"expected one of {', '.join(SCALINGS)}"
        )
    unscaled = rotary_frequencies(width, parameters.field("rope_theta").positive())
    return Rotary(SCALINGS[kind](unscaled, parameters), unscaled)


def _as_they_are(frequencies: Frequencies, parameters: Field) -> Frequencies:
    return frequencies


def _linear(frequencies: Frequencies, parameters: Field) -> Frequencies:
    return frequencies / np.float32(parameters.field("factor").positive())


def _llama3(frequencies: Frequencies, parameters: Field) -> Frequencies:
    """Llama 3.1 stretches long wavelengths by `factor`, short ones not, and blends in between."""
    low, high = (
        parameters.field("low_freq_factor").positive(),
        parameters.field("high_freq_factor").positive(),
    )
    if high <= low:
        raise AieError(f"{_name(parameters, 'high_freq_factor')} must be above low_freq_factor")
    turns = (
        parameters.field("original_max_position_embeddings").positive() * frequencies / (2 * np.pi)
    )
    kept = np.clip((turns - low) / (high - low), 0, 1)
    stretched = frequencies / parameters.field("factor").positive()
    mixed: Frequencies = ((1 - kept) * stretched + kept * frequencies).astype(np.float32)
    return mixed


SCALINGS: dict[str, Callable[[Frequencies, Field], Frequencies]] = {
    "default": _as_they_are,
    "linear": _linear,
    "llama3": _llama3,
}


def _search(generation: Field) -> dict[str, bool | float]:
    """The given fields that onnxruntime-genai's search also has."""
    found: dict[str, bool | float] = {}
    for key in SEARCH:
        value = generation.find(key)
        if value is not None:
            found[key] = value.boolean() if key == "do_sample" else value.number(0)
    return found


def _tokens(fields: Field, generation: Field | None) -> dict[str, int | list[int]]:
    def token(name: str) -> int | list[int] | None:
        given = generation.find(name) if generation is not None else None
        given = given or fields.find(name)
        if given is None:
            return None
        ids = given.value if isinstance(given.value, list) else [given.value]
        legal = bool(ids) and all(type(one) is int and -1 <= one < 1 << 31 for one in ids)
        given.require(legal, "a token id or a list of them")
        value: int | list[int] = given.value
        return value

    eos = token("eos_token_id")
    if eos is None:
        raise AieError(f"{_name(fields, 'eos_token_id')} is missing; without it no text would end")
    # Fields that are not given get the defaults of onnxruntime-genai's model builder.
    bos, pad = token("bos_token_id"), token("pad_token_id")
    return {
        "bos_token_id": 1 if bos is None else bos,
        "eos_token_id": eos,
        "pad_token_id": (eos if isinstance(eos, int) else eos[0]) if pad is None else pad,
    }
