"""Greedy decoding with a KV cache on a plain InferenceSession.

One sequence, one `Decoder`: `forward(tokens)` runs the tokens that are new and returns their
logits; the cache keeps what came before. Prefill is a call with many tokens, decoding one with one.

Caches are what onnxruntime-genai uses: allocated once for the whole context, the same buffer bound
to past and present, so that a step writes its rows and copies none. Models whose graph concatenates
past and new keys by itself (no genai_config.json, or past_present_share_buffer false there) get
growing caches instead.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from ort_aie_ep import sessions
from ort_aie_ep.checked_json import Field
from ort_aie_ep.errors import AieError
from ort_aie_ep.model_folder import GENAI_CONFIG, ModelFolder

if TYPE_CHECKING:
    import onnxruntime

Tokens = npt.NDArray[np.int64]
Logits = npt.NDArray[np.float32]

# numpy type and ONNX element type by ONNX Runtime's names. numpy has no bfloat16: its bits.
_TYPES: dict[str, tuple[type[np.generic], int]] = {
    "tensor(float)": (np.float32, 1),
    "tensor(uint8)": (np.uint8, 2),
    "tensor(int8)": (np.int8, 3),
    "tensor(int32)": (np.int32, 6),
    "tensor(int64)": (np.int64, 7),
    "tensor(float16)": (np.float16, 10),
    "tensor(bfloat16)": (np.uint16, 16),
}

# Tokens of a prompt that run at once: activations of a long one would need more memory than the
# cache, and weights are read often enough to no harm.
PROMPT_CHUNK = 1024
# Rows that onnxruntime-genai adds to a sliding layer's window.
_WINDOW_SLACK = 16
# The builder's name of the past dimension of a sliding layer.
_SLIDING_DIM = "past_sliding_length"


@dataclass(frozen=True)
class Cache:
    """One layer's keys or values.

    Attributes:
        past: graph input, (1, KV heads, rows, head size).
        present: graph output that continues it.
        shape: with all rows where buffers are shared, else with none.
        type: ONNX Runtime's name of the element type.
    """

    past: str
    present: str
    shape: tuple[int, int, int, int]
    type: str


class Decoder:
    """A session and the cache of one sequence.

    Attributes:
        capacity: tokens that the cache can hold.
        length: tokens that it holds.
        vocabulary: width of the logits.
        run_seconds: time that ONNX Runtime took for the last `forward`.
    """

    def __init__(
        self, session: onnxruntime.InferenceSession, folder: ModelFolder, capacity: int
    ) -> None:
        """Allocates caches for `capacity` tokens.

        Raises:
            AieError: the model has inputs that a decoding loop cannot feed.
        """
        self.capacity = capacity
        self.length = 0
        self.run_seconds = 0.0
        self._session = session
        self._shared = _shares_buffers(folder)
        self._inputs = {i.name: i for i in session.get_inputs()}
        self._caches = list(_caches(session, folder, capacity if self._shared else 0))
        fed = {"input_ids", "attention_mask", "position_ids", *(c.past for c in self._caches)}
        unknown = set(self._inputs) - fed
        outputs = {o.name: o for o in session.get_outputs()}
        if unknown or "input_ids" not in self._inputs or "logits" not in outputs:
            names = ", ".join(sorted(unknown)) or "input_ids and logits are missing"
            raise AieError(
                f"{folder.model} is no language model that this command can run: {names}"
            )
        logits = outputs["logits"]
        self._logits_type = logits.type
        self.vocabulary = _vocabulary(logits, folder)
        self._last_only = logits.shape[1] == 1
        self._past: dict[str, Any] = {}
        self._last_binding: Any = None
        self.reset()

    def reset(self) -> None:
        """Forgets the sequence."""
        self.length = 0
        if self._past and self._shared:
            return  # rows beyond the length are never read
        for cache in self._caches:
            buffer = np.zeros(cache.shape, _TYPES[cache.type][0])
            self._past[cache.past] = _value(buffer, cache.type)

    def forward(self, tokens: Tokens) -> Logits:
        """Logits (rows, vocabulary) of the `tokens` that come next; one row if the graph prunes.

        Raises:
            AieError: the cache has no room for them, or the model fails.
        """
        count = len(tokens)
        self._require_room(count)
        total = self.length + count
        feeds = {
            "input_ids": np.asarray(tokens).reshape(1, count),
            "attention_mask": np.ones((1, total)),
            "position_ids": np.arange(self.length, total).reshape(1, count),
        }
        binding = self._session.io_binding()
        # A binding keeps no Python object alive, so the inputs are held until the run is over.
        inputs = {
            name: _value(np.ascontiguousarray(feed, _TYPES[i.type][0]), i.type)
            for name, feed in feeds.items()
            if (i := self._inputs.get(name)) is not None
        }
        for name, value in inputs.items():
            binding.bind_ortvalue_input(name, value)
        for cache in self._caches:
            past = self._past[cache.past]
            binding.bind_ortvalue_input(cache.past, past)
            if self._shared:
                binding.bind_ortvalue_output(cache.present, past)
            else:
                binding.bind_output(cache.present, "cpu")
        rows = 1 if self._last_only else count
        logits = np.empty((1, rows, self.vocabulary), _TYPES[self._logits_type][0])
        binding.bind_ortvalue_output("logits", _value(logits, self._logits_type))
        start = time.perf_counter()
        sessions.run(self._session, binding)
        self.run_seconds = time.perf_counter() - start
        if not self._shared:
            values = dict(zip(_bound_names(self._caches), binding.get_outputs(), strict=True))
            self._past = {cache.past: values[cache.present] for cache in self._caches}
            self._last_binding = binding  # it owns what those values refer to
        self.length = total
        return _as_float(logits[0], self._logits_type)

    def prefill(self, tokens: Tokens) -> npt.NDArray[np.float32]:
        """Logits (vocabulary) of the last of `tokens`, which come next, in runs of PROMPT_CHUNK.

        Raises:
            AieError: as `forward`, before anything is run where the cache has no room.
        """
        self._require_room(len(tokens))
        *parts, last = np.split(tokens, range(PROMPT_CHUNK, len(tokens), PROMPT_CHUNK))
        for part in parts:
            self.forward(part)
        logits: npt.NDArray[np.float32] = self.forward(last)[-1]
        return logits

    def _require_room(self, count: int) -> None:
        if self.length + count > self.capacity:
            raise AieError(
                f"{self.length + count} tokens do not fit the context of {self.capacity}"
            )


def greedy(decoder: Decoder, prompt: Tokens, count: int, stop: frozenset[int]) -> Iterator[int]:
    """Up to `count` tokens that follow `prompt`, each the likeliest; ends before one of `stop`."""
    logits = decoder.prefill(prompt)
    for index in range(count):
        token = int(np.argmax(logits))
        if token in stop:
            return
        yield token
        if index + 1 < count:
            logits = decoder.forward(np.array([token]))[-1]


def context_length(folder: ModelFolder, default: int = 4096) -> int:
    """Tokens that the model was made for, or `default` where nothing says so."""
    value = _section(folder, "model").get("context_length", default)
    return value if isinstance(value, int) and value > 0 else default


def stop_tokens(folder: ModelFolder) -> frozenset[int]:
    """Ids that end a text, by genai_config.json."""
    ids = _section(folder, "model").get("eos_token_id", [])
    given = Field(ids if isinstance(ids, list) else [ids], GENAI_CONFIG, "model.eos_token_id")
    return frozenset(token.integer() for token in given.elements())


def _vocabulary(logits: onnxruntime.NodeArg, folder: ModelFolder) -> int:
    width = logits.shape[2]
    if not isinstance(width, int):
        width = _section(folder, "model").get("vocab_size")
    if not isinstance(width, int):
        raise AieError(f"{folder.model}: nothing says how many logits there are")
    return width


def _section(folder: ModelFolder, *names: str) -> dict[str, Any]:
    """A part of genai_config.json, empty where there is none."""
    section: Any = folder.genai_config
    for name in names:
        section = section.get(name) if isinstance(section, dict) else None
    return section if isinstance(section, dict) else {}


def _shares_buffers(folder: ModelFolder) -> bool:
    return bool(_section(folder, "search").get("past_present_share_buffer", False))


def _caches(
    session: onnxruntime.InferenceSession, folder: ModelFolder, rows: int
) -> Iterator[Cache]:
    """The caches of a graph, in the graph's order; `rows` 0 for growing ones."""
    inputs = _section(folder, "model", "decoder", "inputs")
    outputs = _section(folder, "model", "decoder", "outputs")
    names = [
        (
            inputs.get(f"past_{kind}_names", f"past_key_values.%d.{short}"),
            outputs.get(f"present_{kind}_names", f"present.%d.{short}"),
        )
        for kind, short in (("key", "key"), ("value", "value"))
    ]
    for value in session.get_inputs():
        for past, present in names:
            match = re.fullmatch(re.escape(past).replace("%d", r"(\d+)"), value.name)
            if match:
                shape = _cache_shape(value, folder, rows)
                yield Cache(value.name, present.replace("%d", match[1]), shape, value.type)


def _cache_shape(
    value: onnxruntime.NodeArg, folder: ModelFolder, rows: int
) -> tuple[int, int, int, int]:
    decoder = _section(folder, "model", "decoder")
    _, heads, past, size = value.shape
    heads = heads if isinstance(heads, int) else decoder.get("num_key_value_heads")
    size = size if isinstance(size, int) else decoder.get("head_size")
    if not isinstance(heads, int) or not isinstance(size, int):
        raise AieError(
            f"input {value.name} has the shape {value.shape}, and no genai_config.json says how "
            "many heads of what size that means: give a folder that holds one"
        )
    if past == _SLIDING_DIM and rows:
        # Not clamped to the context as genai does: a cache smaller than its window is an error.
        window = _section(folder, "model", "decoder", "sliding_window").get("window_size", rows)
        rows = window + _WINDOW_SLACK
    return 1, heads, rows, size


def _bound_names(caches: list[Cache]) -> list[str]:
    """Outputs in the order in which `forward` binds them."""
    return [*(cache.present for cache in caches), "logits"]


def _value(array: npt.NDArray[Any], type_name: str) -> Any:
    """An OrtValue on the array's own memory."""
    import onnxruntime

    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(array, _TYPES[type_name][1])


def _as_float(array: npt.NDArray[Any], type_name: str) -> Logits:
    if type_name == "tensor(bfloat16)":
        array = array.view(ml_dtypes.bfloat16)
    return array.astype(np.float32, copy=False)
