"""Greedy decoding with a KV cache on a plain InferenceSession.

A `Decoder` holds one sequence, or several of the same length: `forward(tokens)` runs the new tokens
and returns their logits; the cache keeps the earlier ones. Prefill is a call with many tokens,
decoding a call with one.

Caches work as in onnxruntime-genai: allocated once for the whole context, with the same buffer
bound to past and present, so that a step writes its rows and copies none. If the graph itself
concatenates past and new keys (no genai_config.json, or past_present_share_buffer is false there),
the caches grow instead.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ort_aie_ep.errors import AieError
from ort_aie_ep.models.checked_json import Field
from ort_aie_ep.models.folder import GENAI_CONFIG, ModelFolder, section
from ort_aie_ep.models.interface import TYPES, Cache, Unfit, read_interface, token_feeds
from ort_aie_ep.progress import Count, Progress
from ort_aie_ep.running.chunks import CHUNK_ALONE
from ort_aie_ep.running.next_step import other_ways
from ort_aie_ep.runtime import sessions
from ort_aie_ep.runtime.core_library import logits_of_last

if TYPE_CHECKING:
    import onnxruntime

Tokens = npt.NDArray[np.int64]
Logits = npt.NDArray[np.float32]

_PAGE = 4096


def _zeros(caches: Sequence[Cache]) -> list[npt.NDArray[Any]]:
    """Zeros for each, in one piece of memory: from 4 MB on, numpy asks the system for large pages,
    which attention reads faster."""
    types = [np.dtype(TYPES[cache.type][0]) for cache in caches]
    sizes = [
        math.prod(cache.shape) * dtype.itemsize for cache, dtype in zip(caches, types, strict=True)
    ]
    starts = [0, *accumulate(-(-size // _PAGE) * _PAGE for size in sizes)]
    memory = np.zeros(starts[-1] + _PAGE, np.uint8)
    memory = memory[-memory.ctypes.data % _PAGE :]
    return [
        memory[start : start + size].view(dtype).reshape(cache.shape)
        for cache, dtype, size, start in zip(caches, types, sizes, starts, strict=False)
    ]


class Decoder:
    """A session and the caches of one sequence, or of several of the same length, side by side.

    Attributes:
        capacity: tokens that the cache can hold.
        length: tokens that it holds now.
        vocabulary: width of the logits.
        every_row: whether `forward` returns the logits of all its tokens.
        alone: why sequences of different lengths cannot share a decoder; empty if they can.
        rewinds: whether `keep` can leave any part, and not only what was before the last run.
        hidden: of the last run's tokens (sequences, tokens, width), for a model that gives its
            hidden states (`model.decoder.outputs.hidden_states` in genai_config.json).
        run_seconds: time that ONNX Runtime took for the last `forward`.
        buffers: caches that past and present share, by the name of the past: (sequences, KV heads,
            rows, head size) each.
    """

    def __init__(
        self,
        session: onnxruntime.InferenceSession,
        folder: ModelFolder,
        capacity: int,
        sequences: int = 1,
    ) -> None:
        """Allocates caches for `capacity` tokens of each sequence.

        Raises:
            Unfit: the model has inputs that a decoding loop cannot feed.
            AieError: the caches do not fit into memory.
        """
        self.capacity = capacity
        self.length = 0
        self.run_seconds = 0.0
        self.hidden: npt.NDArray[Any] | None = None
        self._session = session
        try:
            self._interface = read_interface(
                folder, session.get_inputs(), session.get_outputs(), capacity
            )
        except Unfit as reason:
            raise Unfit(
                f"{folder.model} is not a language model that this command can run: {reason}. "
                f"{other_ways(folder)}"
            ) from None
        self.vocabulary = self._interface.vocabulary
        self.every_row = self._interface.logits.shape[1] != 1
        self._shared = self._interface.shared
        self.rewinds = not self._interface.states
        self.alone = (
            "it has states"
            if self._interface.states
            else "its caches grow with the text"
            if not self._shared
            else ""
        )
        self._sequences = sequences
        self._caches, self._states = (
            tuple(replace(cache, shape=(sequences, *cache.shape[1:])) for cache in caches)
            for caches in (self._interface.caches, self._interface.states)
        )
        self.token_bytes = sum(
            cache.shape[1] * cache.shape[3] * np.dtype(TYPES[cache.type][0]).itemsize
            for cache in self._caches
        )
        self._past: dict[str, Any] = {}
        self._last_binding: Any = None
        self._before: tuple[int, dict[str, Any], Any] = 0, {}, None
        self._bindings: dict[tuple[int, int], tuple[Any, list[Any]]] = {}
        self.buffers: dict[str, npt.NDArray[Any]] = {}
        self.reset()

    def reset(self) -> None:
        """Forgets the sequence."""
        self.length = 0
        kept = bool(self._past) and self._shared  # rows beyond the length are never read
        new = (*(() if kept else self._caches), *self._states)
        try:
            buffers = _zeros(new)
        except (MemoryError, OverflowError, ValueError) as error:
            raise AieError(
                f"caches with the shape {new[0].shape} cannot be allocated: {error}"
            ) from error
        for cache, buffer in zip(new, buffers, strict=True):
            self._past[cache.past] = sessions.ort_value(buffer, cache.type)
            if self._shared and cache in self._caches:
                self.buffers[cache.past] = buffer

    def keep(self, length: int) -> int:
        """Forgets all but the first `length` tokens: how many are left. With states, that is what
        was before the last `forward`, or 0."""
        if length < self.length and self._states:
            before, states, binding = self._before
            if length < before:
                self.reset()
            else:
                length, self._last_binding = before, binding
                self._past |= states
        if not self._shared and length < self.length:
            for cache in self._caches:
                rows = self._past[cache.past].numpy()[:, :, :length]
                self._past[cache.past] = sessions.ort_value(np.ascontiguousarray(rows), cache.type)
        self.length = min(self.length, length)
        return self.length

    def forward(
        self, tokens: Tokens, wanted: int = 0, hidden: npt.NDArray[Any] | None = None
    ) -> Logits:
        """Runs the next `tokens`: their logits (rows, vocabulary), as `run` gives them.

        With several sequences, tokens are (sequences, count), and their rows follow one another.

        Raises:
            AieError: the cache has no room for them, or the model fails.
        """
        sequences, count = self._sequences, np.shape(tokens)[-1]
        self._require_room(count)
        states = {cache.past: self._past[cache.past] for cache in self._states}
        self._before = self.length, states, self._last_binding
        logits = self.run(
            np.reshape(tokens, (sequences, count)), np.full(sequences, self.length), 0, wanted,
            hidden,
        )  # fmt: skip
        self.length += count
        return logits.reshape(-1, self.vocabulary)

    def run(
        self, tokens: Tokens, before: npt.NDArray[np.int64], first: int, wanted: int = 0,
        given_hidden: npt.NDArray[Any] | None = None,
    ) -> Logits:  # fmt: skip
        """Runs (sequences, count) `tokens` of the sequences from `first` on, which hold `before`
        (sequences) tokens each: logits (sequences, rows, vocabulary) of at least the last `wanted`
        tokens, of all for 0; of the last alone if the graph has no others. Caches that are not
        shared buffers need all sequences, and those of one length. `given_hidden` (sequences,
        count, width) is for a model that reads another one's hidden states.

        Raises:
            AieError: the model fails.
        """
        interface, (sequences, count) = self._interface, tokens.shape
        # A binding does not keep Python objects alive, so hold the inputs until the run is over.
        binding, _held = self._binding(first, sequences)
        inputs = {
            value.name: sessions.ort_value(feed, value.type)
            for value, feed in token_feeds(interface, tokens, before)
        }
        if (read := interface.given_hidden) is not None:
            if given_hidden is None:
                raise AieError(f"{read.name} is of another model's hidden states")
            inputs[read.name] = sessions.ort_value(np.ascontiguousarray(given_hidden), read.type)
        for name, value in inputs.items():
            binding.bind_ortvalue_input(name, value)
        if (given := interface.hidden) is not None:
            width = given.shape[-1]
            assert isinstance(width, int)
            self.hidden = np.empty((sequences, count, width), TYPES[given.type][0])
            binding.bind_ortvalue_output(given.name, sessions.ort_value(self.hidden, given.type))
        grown = (*(() if interface.shared else self._caches), *self._states)
        rows = count if self.every_row else 1
        kind = interface.logits.type
        # Models that compute all rows nevertheless are seen by what ONNX Runtime allocates.
        choose = 0 < wanted < rows and kind != "tensor(bfloat16)"  # which OrtValue.numpy lacks
        if choose:
            binding.bind_output(interface.logits.name, "cpu")
        else:
            logits = np.empty((sequences, rows, self.vocabulary), TYPES[kind][0])
            binding.bind_ortvalue_output(interface.logits.name, sessions.ort_value(logits, kind))
        start = time.perf_counter()
        with logits_of_last(wanted) if choose else nullcontext():
            sessions.run(self._session, binding)
        self.run_seconds = time.perf_counter() - start
        if choose:
            logits = binding.get_outputs()[-1].numpy()
        if grown:
            # In the order in which they were bound: hidden states and logits are last.
            end = -1 if given is None else -2
            values = binding.get_outputs()[end - len(grown) : end]
            self._past |= {c.past: value for c, value in zip(grown, values, strict=True)}
            self._last_binding = binding  # it owns what those values refer to
        return sessions.as_float(logits, kind)

    def _binding(self, first: int, sequences: int) -> tuple[Any, list[Any]]:
        """Caches bound for some sequences, and the values that must live as long. Of shared buffers
        it is made once, because a step of a small model takes less time than binding them."""
        if (bound := self._bindings.get((first, sequences))) is not None:
            return bound
        binding, held = self._session.io_binding(), []
        for cache in self._caches:
            value = self._past[cache.past]
            if self._shared and sequences < self._sequences:
                part = self.buffers[cache.past][first : first + sequences]
                value = sessions.ort_value(part, cache.type)
            held.append(value)
            binding.bind_ortvalue_input(cache.past, value)
            if self._shared:
                binding.bind_ortvalue_output(cache.present, value)
        for cache in self._states:
            binding.bind_ortvalue_input(cache.past, self._past[cache.past])
        for cache in (*(() if self._shared else self._caches), *self._states):
            binding.bind_output(cache.present, "cpu")
        if self._shared and not self._states:
            self._bindings[first, sequences] = binding, held
        return binding, held

    def prefill(self, tokens: Tokens, progress: Progress | None = None) -> npt.NDArray[np.float32]:
        """Runs the next `tokens` in chunks of CHUNK_ALONE: the last one's logits (vocabulary).

        `progress` counts tokens.

        Raises:
            AieError: as for `forward`; if the cache has no room, before anything runs.
        """
        self._require_room(len(tokens))
        count = Count(progress, len(tokens))
        logits: npt.NDArray[np.float32] = np.empty(0, np.float32)
        for part in np.split(tokens, range(CHUNK_ALONE, len(tokens), CHUNK_ALONE)):
            logits = self.forward(part, wanted=1)[-1]
            count.step(len(part))
        return logits

    def _require_room(self, count: int) -> None:
        if self.length + count > self.capacity:
            raise AieError(
                f"{self.length + count} tokens do not fit in the context of {self.capacity}"
            )


def greedy(
    decoder: Decoder,
    prompt: Tokens,
    count: int,
    stop: frozenset[int],
    progress: Progress | None = None,
) -> Iterator[int]:
    """Up to `count` tokens after `prompt`, each the likeliest; stops before one of `stop`.

    `progress` counts tokens of the prompt.
    """
    logits = decoder.prefill(prompt, progress)
    for index in range(count):
        token = int(np.argmax(logits))
        if token in stop:
            return
        yield token
        if index + 1 < count:
            logits = decoder.forward(np.array([token]))[-1]


def stop_tokens(folder: ModelFolder) -> frozenset[int]:
    """Ids that end a text, from genai_config.json."""
    ids = section(folder, "model").get("eos_token_id", [])
    given = Field(ids if isinstance(ids, list) else [ids], GENAI_CONFIG, "model.eos_token_id")
    return frozenset(token.integer() for token in given.elements())
