"""Slots: the caches of several texts of one model, in one of three ways.

`Pool` computes neighbouring slots in one call, which reads the weights once for all. It needs a
model whose past and present share buffers, as the model builder's do. `Separate` has a cache of its
own for each slot, and computes one after the other: caches that grow (optimum's exports) and states
(LFM2, Qwen3.5). `GenaiSlots` are generators of onnxruntime-genai, for models whose tokens pass
through another model first.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ort_aie_ep.models.folder import ModelFolder
from ort_aie_ep.models.interface import Unfit, context_length
from ort_aie_ep.platforms import free_memory, own_pages
from ort_aie_ep.running.genai import least_length, module, open_model, refusal
from ort_aie_ep.running.generate import Decoder, Logits, Tokens
from ort_aie_ep.runtime.counters import npu_counters
from ort_aie_ep.runtime.sessions import Options, open_session

# Where a larger context was not measured, and where memory does not say what it has.
CONTEXT = 4096
# Of slots that have nothing in common.
_APART = "each text's token is a call of its own, and no text shares another one's beginning"
# Of models that do not rewind.
WHY_NOT_BACK = "it has states, or caches that keep the last tokens only (sliding_window_cache)"
Hidden = npt.NDArray[Any]


class Slots(Protocol):
    """What the loop needs of a model's caches.

    Attributes:
        count: how many slots there are.
        vocabulary: width of the logits.
        together: whether neighbouring slots are computed in one call.
        note: what a user should know of how this model runs; may be empty.
        every_row: whether all of several positions have logits, not the last alone.
        rewinds: whether a slot can forget its last tokens.
        undoes: whether a slot can forget its last call, if not a part of that.
        hidden: of the last call's tokens (slots, count, width), for a model that gives its hidden
            states.
        context: tokens that a slot has room for.
        token_bytes: what the cache of a token takes; 0 if that is not known.
        unshared: why no text can have another one's beginning; empty if it can.
    """

    context: int
    token_bytes: int
    unshared: str
    count: int
    vocabulary: int
    together: bool
    note: str
    every_row: bool
    rewinds: bool
    undoes: bool

    @property
    def hidden(self) -> Hidden | None: ...  # noqa: D102

    def run(
        self, tokens: Tokens, before: npt.NDArray[np.int64], first: int, wanted: int = 0,
        hidden: Hidden | None = None,
    ) -> Logits:  # fmt: skip
        """Runs (slots, count) `tokens` of the slots from `first` on, which hold `before` (slots)
        tokens: (slots, rows, vocabulary), the logits of at least the last `wanted` tokens, of all
        for 0; of the last alone without `every_row`. More than one slot only in `together`.
        `hidden` (slots, count, width) is for a model that reads another one's hidden states.

        Raises:
            AieError: the model fails.
        """
        ...

    def keep(self, slot: int, length: int, held: int) -> int:
        """Forgets what a slot that holds `held` tokens has after the first `length`. How many it
        then holds: `length`, or, if this model's caches cannot go back there, what it held before
        its last call, or 0."""
        ...

    def swap(self, one: int, other: int, held: int) -> None:
        """Exchanges two slots, which hold up to `held` tokens."""
        ...


class Pool:
    """Slots in the rows of shared buffers.

    Attributes:
        layout: type, KV heads and head size of each buffer.
    """

    together = True

    def __init__(self, decoder: Decoder, count: int, note: str = "") -> None:
        self._decoder, self.count, self.note = decoder, count, note
        self.vocabulary, self.every_row = decoder.vocabulary, decoder.every_row
        self.context, self.token_bytes = decoder.capacity, decoder.token_bytes
        # A sliding window's buffer may be shorter than the context: what slides out is gone.
        self.rewinds = all(b.shape[2] >= decoder.capacity for b in decoder.buffers.values())
        self.undoes, self.unshared = self.rewinds, "" if self.token_bytes else "it has no cache"
        if not self.rewinds:
            self.unshared = "its caches keep a window's last tokens only (sliding_window_cache)"
            self.note = note or f"{self.unshared}, so no text shares another one's beginning"
        self.layout = [(str(b.dtype), b.shape[1], b.shape[3]) for b in decoder.buffers.values()]

    @property
    def hidden(self) -> Hidden | None:
        """See `Slots`."""
        return self._decoder.hidden

    def run(
        self, tokens: Tokens, before: npt.NDArray[np.int64], first: int, wanted: int = 0,
        hidden: Hidden | None = None,
    ) -> Logits:  # fmt: skip
        """See `Slots`."""
        return self._decoder.run(tokens, before, first, wanted, hidden)

    def keep(self, slot: int, length: int, held: int) -> int:
        """See `Slots`."""
        return length if length == held or self.rewinds else 0

    def rows(self, slot: int, start: int, count: int) -> npt.NDArray[np.uint8]:
        """A copy of what a slot has of `count` tokens, (count · token_bytes): one buffer's rows
        after the other's."""
        rows = np.frombuffer(own_pages(count * self.token_bytes), np.uint8)
        for buffer, part in self._parts(rows, count):
            part[...] = buffer[slot, :, start : start + count]
        return rows

    def put(self, slot: int, start: int, rows: npt.NDArray[np.uint8], count: int) -> None:
        """Copies the first `count` tokens of such `rows` into a slot."""
        for buffer, part in self._parts(rows, len(rows) // self.token_bytes):
            buffer[slot, :, start : start + count] = part[:, :count]

    def _parts(
        self, rows: npt.NDArray[np.uint8], count: int
    ) -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[Any]]]:
        at = 0
        for buffer in self._decoder.buffers.values():
            heads, size = buffer.shape[1], buffer.shape[3]
            end = at + heads * count * size * buffer.itemsize
            yield buffer, rows[at:end].view(buffer.dtype).reshape(heads, count, size)
            at = end

    def swap(self, one: int, other: int, held: int) -> None:
        """See `Slots`."""
        for buffer in self._decoder.buffers.values():
            rows = slice(held) if self.rewinds else slice(None)
            for mine, others in zip(buffer[one, :, rows], buffer[other, :, rows], strict=True):
                kept = mine.copy()
                mine[...] = others
                others[...] = kept


class Separate:
    """Slots with a cache each."""

    together, undoes = False, True

    def __init__(self, decoders: list[Decoder], why: str) -> None:
        self._decoders, self.unshared = decoders, why
        self.note = f"{why}: {_APART}"
        self.count = len(decoders)
        self.vocabulary, self.every_row = decoders[0].vocabulary, decoders[0].every_row
        self.context, self.token_bytes = decoders[0].capacity, decoders[0].token_bytes
        self.rewinds, self.hidden = decoders[0].rewinds, decoders[0].hidden

    def run(
        self, tokens: Tokens, before: npt.NDArray[np.int64], first: int, wanted: int = 0,
        hidden: Hidden | None = None,
    ) -> Logits:  # fmt: skip
        """See `Slots`."""
        decoder = self._decoders[first]
        logits = decoder.forward(tokens[0], wanted, hidden)[None]
        self.hidden = decoder.hidden
        return logits

    def keep(self, slot: int, length: int, held: int) -> int:
        """See `Slots`."""
        return self._decoders[slot].keep(length)

    def swap(self, one: int, other: int, held: int) -> None:
        """See `Slots`."""
        decoders = self._decoders
        decoders[one], decoders[other] = decoders[other], decoders[one]


class GenaiSlots:
    """Slots that are generators of onnxruntime-genai."""

    together = every_row = undoes = False
    hidden = None
    unshared = "onnxruntime-genai runs it"
    note = f"{unshared}: {_APART}"

    def __init__(self, folder: ModelFolder, options: Options, count: int, context: int) -> None:
        """Opens the model.

        Raises:
            AieError: genai is not installed, or refuses the folder.
        """
        self._genai, self.count = module(), count
        self.context, self.token_bytes = context, 0
        with _refusals():
            self._model = open_model(folder, options)
        self._length = max(context, least_length(folder))
        self._generators: list[Any] = [None] * count
        self.vocabulary = 0  # known with the first logits
        self.rewinds = True  # until it cannot: docs/hosts/genai.md

    def run(
        self, tokens: Tokens, before: npt.NDArray[np.int64], first: int, wanted: int = 0,
        hidden: Hidden | None = None,
    ) -> Logits:  # fmt: skip
        """See `Slots`."""
        with _refusals():
            if before[0] == 0:
                parameters = self._genai.GeneratorParams(self._model)
                parameters.set_search_options(max_length=self._length, do_sample=False)
                self._generators[first] = self._genai.Generator(self._model, parameters)
            generator = self._generators[first]
            generator.append_tokens(tokens[0].astype(np.int32))
            logits: Logits = np.asarray(generator.get_logits()[:, -1:], np.float32)
        self.vocabulary = logits.shape[2]
        return logits

    def keep(self, slot: int, length: int, held: int) -> int:
        """See `Slots`."""
        try:
            if 0 < length < held:
                self._generators[slot].rewind_to(length)
        except RuntimeError:
            self.rewinds = False
            return 0
        return length

    def swap(self, one: int, other: int, held: int) -> None:
        """See `Slots`."""
        generators = self._generators
        generators[one], generators[other] = generators[other], generators[one]


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # genai raises it for everything
        raise refusal(error) from error


def open_slots(
    folder: ModelFolder, options: Options, count: int, context: int | None, genai: bool = False
) -> Slots:
    """Opens a model with room for `count` texts of `context` tokens, in the way that it allows: in
    onnxruntime-genai only with `genai`. Without a `context`, it is the model's, as far as half of
    the free memory has room for all caches; on an NPU and in onnxruntime-genai, `CONTEXT`.

    Raises:
        Unfit: the model has inputs that the loop cannot feed.
        AieError: the model cannot be opened, or its caches do not fit into memory.
    """
    session, longest = open_session(folder.model, options), context_length(folder)
    least = context or min(longest, CONTEXT)
    try:
        decoder = Decoder(session, folder, least, count)
    except Unfit:
        if not genai or folder.genai_config is None:
            raise
        del session
        return GenaiSlots(folder, options, count, least)
    wider = context is None and longest > least
    if not decoder.alone and (count > 1 or wider) and _on_npu(decoder):
        # A device keeps the rows of a cache that it has seen; slots in turn would send them again.
        note = "an NPU computes it: one text at a time, the others wait" if count > 1 else ""
        return Pool(Decoder(session, folder, least), 1, note)
    if wider:
        least = max(least, min(longest, _fitting(count * decoder.token_bytes)))
    if decoder.alone:
        others = [Decoder(session, folder, least) for _ in range(count)]
        return Separate(others, decoder.alone)
    return Pool(Decoder(session, folder, least, count) if wider else decoder, count)


def _fitting(token_bytes: int) -> int:
    """How many tokens of so many bytes half of the free memory has room for, in whole thousands."""
    free = free_memory() or 0
    return free // 2 // max(token_bytes, 1) // 1024 * 1024


def _on_npu(decoder: Decoder) -> bool:
    """Whether an NPU computes a token, or the model of one."""
    before = npu_counters().device_steps
    decoder.run(np.zeros((1, 1), np.int64), np.zeros(1, np.int64), 0)
    return npu_counters().device_steps > before
