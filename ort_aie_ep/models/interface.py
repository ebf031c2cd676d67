"""The inputs that a decoding loop feeds to a language model, and the outputs it gets.

Their names come from genai_config.json, or are the defaults of onnxruntime-genai and optimum.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from ort_aie_ep.errors import AieError
from ort_aie_ep.models.checked_json import Field
from ort_aie_ep.models.folder import GENAI_CONFIG, ModelFolder, section

if TYPE_CHECKING:
    import onnx_ir as ir

# numpy type and ONNX element type by ONNX Runtime's names. numpy has no bfloat16, so uint16.
TYPES: dict[str, tuple[type[np.generic], int]] = {
    "tensor(float)": (np.float32, 1),
    "tensor(uint8)": (np.uint8, 2),
    "tensor(int8)": (np.int8, 3),
    "tensor(int32)": (np.int32, 6),
    "tensor(int64)": (np.int64, 7),
    "tensor(float16)": (np.float16, 10),
    "tensor(bfloat16)": (np.uint16, 16),
}
# Rows that onnxruntime-genai adds to a sliding layer's window.
_WINDOW_SLACK = 16
# The builder's name for the past dimension of a sliding layer.
_SLIDING_DIM = "past_sliding_length"
# Keys of genai_config.json for the names of past and present, and the default names.
_CACHES = (
    ("past_key_names", "present_key_names", "past_key_values.%d.key", "present.%d.key"),
    ("past_value_names", "present_value_names", "past_key_values.%d.value", "present.%d.value"),
)
_STATES = (
    ("past_conv_names", "present_conv_names", "past_conv.%d", "present_conv.%d"),
    (
        "past_recurrent_names",
        "present_recurrent_names",
        "past.%d.recurrent",
        "present.%d.recurrent",
    ),
)
_CROSS = ("encoder_hidden_states", "encoder_attention_mask")


class Argument(Protocol):
    """An input or output of a graph, as ONNX Runtime describes it."""

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def shape(self) -> Sequence[int | str | None]: ...  # noqa: D102
    @property
    def type(self) -> str: ...  # noqa: D102


class Unfit(AieError):
    """A decoding loop cannot run the model; the message says what about the model prevents it."""


@dataclass(frozen=True)
class Cache:
    """One layer's keys or values, or its state, such as that of a convolution.

    Attributes:
        past: graph input; for keys and values (1, KV heads, rows, head size).
        present: graph output that continues it.
        shape: for keys and values, with all rows if buffers are shared, otherwise with none.
        type: ONNX Runtime's name for the element type.
    """

    past: str
    present: str
    shape: tuple[int, ...]
    type: str


@dataclass(frozen=True)
class Interface:
    """The inputs and outputs of a language model.

    Attributes:
        tokens: the input with the tokens, (1, sequence).
        mask: the input with a 1 for each token so far, if there is one.
        positions: the input with the position of each token, if there is one: (1, sequence), or
            (3, 1, sequence) for time, height and width, which are equal for text.
        logits: the output (1, sequence or 1, vocabulary).
        given_hidden: the input (1, sequence, width) with another model's hidden states, if
            genai_config.json names one.
        hidden: the output (1, sequence, width) with the model's own, if it names one.
        vocabulary: width of the logits.
        shared: whether one buffer holds past and present of `caches`.
        caches: keys and values, in the graph's order.
        states: states whose size does not depend on the number of tokens.
    """

    tokens: Argument
    mask: Argument | None
    positions: Argument | None
    logits: Argument
    given_hidden: Argument | None
    hidden: Argument | None
    vocabulary: int
    shared: bool
    caches: tuple[Cache, ...]
    states: tuple[Cache, ...]


def read_interface(
    folder: ModelFolder, inputs: Iterable[Argument], outputs: Iterable[Argument], capacity: int
) -> Interface:
    """The interface of a folder's main model, with caches for `capacity` tokens.

    Raises:
        Unfit: the model has inputs that a decoding loop cannot feed, or no logits.
    """
    given, made = {i.name: i for i in inputs}, {o.name: o for o in outputs}
    named = section(folder, "model", "decoder", "inputs")
    results = section(folder, "model", "decoder", "outputs")
    shared = bool(section(folder, "search").get("past_present_share_buffer", False))
    tokens, mask, positions = (
        given.get(str(named.get(key, key)))
        for key in ("input_ids", "attention_mask", "position_ids")
    )
    logits = made.get(str(results.get("logits", "logits")))
    given_hidden = given.get(str(named.get("hidden_states")))
    hidden = made.get(str(results.get("hidden_states")))
    if hidden is not None and not isinstance(hidden.shape[-1], int):
        hidden = None
    rows = capacity if shared else 0
    caches = tuple(
        Cache(past.name, present, _cache_shape(past, folder, rows), past.type)
        for past, present in _pairs(folder, given.values(), _CACHES)
    )
    states = tuple(
        Cache(past.name, present, _state_shape(past), past.type)
        for past, present in _pairs(folder, given.values(), _state_names(folder))
    )
    own = (tokens, mask, positions, given_hidden)
    fed = {value.name for value in own if value is not None}
    fed |= {cache.past for cache in (*caches, *states)}
    unknown = sorted(given.keys() - fed)
    if tokens is None or logits is None or unknown:
        raise Unfit(_why_not(tokens, logits, unknown))
    for cache in (*caches, *states):
        if cache.present not in made:
            raise Unfit(f"output {cache.present}, which continues {cache.past}, is missing")
    for name in (*fed, logits.name):
        kind = (given.get(name) or logits).type
        if kind not in TYPES:
            raise Unfit(f"{name} is {kind}, which this loop cannot feed")
    return Interface(
        tokens, mask, _positions(positions), logits, given_hidden, hidden,
        _vocabulary(logits, folder), shared, caches, states,
    )  # fmt: skip


def read_file_interface(folder: ModelFolder) -> Interface:
    """The interface of a folder's main model, from its file: without a session.

    Raises:
        Unfit: as for `read_interface`.
        AieError: the model is damaged.
    """
    # Imported here, because opening a session does not need onnx_ir.
    from ort_aie_ep.models.onnx_file import load_model

    graph = load_model(folder.model).graph
    inputs, outputs = ([_Argument.of(value) for value in v] for v in (graph.inputs, graph.outputs))
    return read_interface(folder, inputs, outputs, 1)


def token_feeds(
    interface: Interface, tokens: npt.NDArray[np.int64], before: npt.NDArray[np.int64]
) -> list[tuple[Argument, npt.NDArray[Any]]]:
    """A model's inputs but its caches, for `tokens` (sequences, count) after `before` (sequences)
    others; the mask of a shorter sequence ends in zeros."""
    count = tokens.shape[1]
    positions = before[:, None] + np.arange(count)
    mask = np.arange(before.max() + count) < before[:, None] + count
    if interface.positions is not None and len(interface.positions.shape) == 3:
        axes = interface.positions.shape[0]
        positions = np.tile(positions, (axes if isinstance(axes, int) else 3, 1, 1))
    feeds = ((interface.tokens, tokens), (interface.mask, mask), (interface.positions, positions))
    return [
        (value, np.ascontiguousarray(feed, TYPES[value.type][0]))
        for value, feed in feeds
        if value is not None
    ]


def context_length(folder: ModelFolder, default: int = 4096) -> int:
    """Tokens that the model was made for, or `default` if nothing says so."""
    value = section(folder, "model").get("context_length", default)
    return value if isinstance(value, int) and value > 0 else default


def _why_not(tokens: Argument | None, logits: Argument | None, unknown: list[str]) -> str:
    names = ", ".join(unknown)
    if any(name in _CROSS or "cross" in name for name in unknown):
        return f"it decodes an encoder's output: {names}"
    if tokens is None and "inputs_embeds" in unknown:
        return "it takes inputs_embeds, which another model computes from tokens"
    if tokens is None:
        return f"it has no input named input_ids, but {names or 'no inputs'}"
    if logits is None:
        return "it has no output named logits"
    return f"its inputs {names} are not part of a text model"


def _positions(value: Argument | None) -> Argument | None:
    if value is not None and len(value.shape) not in (2, 3):
        raise Unfit(f"{value.name} has the shape {list(value.shape)}, not (batch, sequence)")
    return value


def _state_names(folder: ModelFolder) -> Iterator[tuple[str, str, str, str]]:
    yield from _STATES
    # The names that optimum and later versions of onnxruntime-genai use, after the keys.
    past_key, present_key, past, present = _CACHES[0]
    past = str(section(folder, "model", "decoder", "inputs").get(past_key, past))
    present = str(section(folder, "model", "decoder", "outputs").get(present_key, present))
    for kind in ("conv_state", "recurrent_state"):
        yield "", "", f"{past.rpartition('.')[0]}.{kind}", f"{present.rpartition('.')[0]}.{kind}"


def _pairs(
    folder: ModelFolder,
    given: Iterable[Argument],
    kinds: Iterable[tuple[str, str, str, str]],
) -> list[tuple[Argument, str]]:
    """(input, name of the output that continues it) pairs, in the graph's order."""
    inputs = section(folder, "model", "decoder", "inputs")
    outputs = section(folder, "model", "decoder", "outputs")
    names = [
        (str(inputs.get(past_key, past)), str(outputs.get(present_key, present)))
        for past_key, present_key, past, present in kinds
    ]
    pairs = []
    for value in given:
        for past, present in names:
            match = re.fullmatch(re.escape(past).replace("%d", r"(\d+)"), value.name)
            if match and "%d" in past:
                pairs.append((value, present.replace("%d", match[1])))
                break
    return pairs


def _cache_shape(value: Argument, folder: ModelFolder, rows: int) -> tuple[int, ...]:
    decoder = section(folder, "model", "decoder")
    if len(value.shape) != 4:
        raise Unfit(
            f"{value.name} has the shape {list(value.shape)}, not (batch, heads, past, head size)"
        )
    _, heads, past, size = value.shape
    heads = heads if isinstance(heads, int) else _count(decoder, "num_key_value_heads")
    size = size if isinstance(size, int) else _count(decoder, "head_size")
    if heads is None or size is None:
        raise Unfit(
            f"{value.name} has the shape {list(value.shape)}, and there is no genai_config.json to "
            "tell the number and size of its heads: pass a folder that has one"
        )
    if past == _SLIDING_DIM and rows:
        # genai clamps this to the context. Not here: a cache smaller than its window is an error.
        window = _count(section(folder, "model", "decoder", "sliding_window"), "window_size")
        rows = (rows if window is None else window) + _WINDOW_SLACK
    return 1, heads, rows, size


def _count(part: dict[str, Any], key: str) -> int | None:
    """A number of genai_config.json that is a dimension; None if it is not given."""
    given = Field(part, GENAI_CONFIG).find(key)
    return None if given is None else given.integer(1, 2**31)


def _state_shape(value: Argument) -> tuple[int, ...]:
    """The shape for one sequence: only the batch's dimension has no size."""
    if sum(not isinstance(dim, int) for dim in value.shape) > 1:
        raise Unfit(f"{value.name} has the shape {list(value.shape)}, without sizes")
    return tuple(dim if isinstance(dim, int) else 1 for dim in value.shape)


def _vocabulary(logits: Argument, folder: ModelFolder) -> int:
    if len(logits.shape) != 3:
        raise Unfit(
            f"output {logits.name} has the shape {list(logits.shape)}, not (batch, sequence, "
            "vocabulary)"
        )
    given = logits.shape[2]
    width = given if isinstance(given, int) else _count(section(folder, "model"), "vocab_size")
    if width is None:
        raise Unfit(
            "neither its logits' shape nor genai_config.json has the size of the vocabulary"
        )
    return width


@dataclass(frozen=True)
class _Argument:
    """An input or output of a graph without a session."""

    name: str
    shape: tuple[int | str | None, ...]
    type: str

    @classmethod
    def of(cls, value: ir.Value) -> _Argument:
        dims = value.shape if value.shape is not None else ()
        shape = tuple(dim if isinstance(dim, int) else dim.value for dim in dims)
        number = None if value.dtype is None else value.dtype.value
        names = [name for name, (_, element) in TYPES.items() if element == number]
        return cls(value.name or "", shape, names[0] if names else f"of type {value.dtype}")
