"""Drafts: tokens that are guessed and then computed in one call, which costs little more than one.

A guess comes from a smaller model with the same tokens, or from the text itself: what followed its
last two tokens the time before. The model's own distribution stays exactly (rejection sampling,
Leviathan et al. 2023, algorithm 1): a guess x, drawn from q, is taken with probability
min(1, p(x) / q(x)), else a token is drawn from max(p - q, 0).

Texts that are written beside each other have guesses of their own, and a call has as many positions
for each: what one does not need is computed, and overwritten by the next call.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ort_aie_ep.errors import AieError
from ort_aie_ep.models.folder import ModelFolder
from ort_aie_ep.running.sampling import (
    Choosing,
    Probabilities,
    Row,
    draw,
    likeliest,
    probabilities,
)
from ort_aie_ep.running.slots import WHY_NOT_BACK, Slots, open_slots
from ort_aie_ep.runtime.sessions import Options

# Rows of a step of several texts: so many cost little more than one where computing is fast, and
# every kernel for x86 computes each as if it were alone.
FEW_ROWS = 8
# What a new measurement counts, of times and of how many guesses are right.
_NEW = 0.1
# Without guesses, one is tried after so many steps: texts change.
_AGAIN = 16
# Tokens of a prompt that the smaller model reads at once.
_CHUNK = 256
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Drafted:
    """Guesses.

    Attributes:
        tokens: one after the other.
        weights: what each was drawn from (vocabulary), by a model; None for a copy, of which it was
            the only candidate. Where the likeliest tokens are taken, nothing reads them.
    """

    tokens: list[int]
    weights: list[Probabilities] | None = None

    def verify(self, index: int, logits: Row, choosing: Choosing) -> tuple[int, bool]:
        """The token at `index` by the model's own logits (vocabulary), and whether it is the guess.

        Raises:
            AieError: logits are not numbers.
        """
        guess = self.tokens[index] if index < len(self.tokens) else None
        if choosing.sampling.temperature == 0:
            token = likeliest(logits)
            return token, token == guess
        own = probabilities([logits], [choosing.sampling])[0]
        if guess is None:
            return draw(own, choosing.random), False
        own /= own.sum()
        drawn = np.zeros_like(own) if self.weights is None else self.weights[index]
        chance = 1.0 if self.weights is None else float(drawn[guess])
        if choosing.random.random() * chance < own[guess]:
            return guess, True
        rest = np.maximum(own - drawn, 0)
        if self.weights is None:
            rest[guess] = 0
        return draw(rest if rest.any() else own, choosing.random), False


@dataclass(eq=False)
class Drafting:
    """A text for which tokens are guessed.

    Attributes:
        tokens: the text's list of tokens, which grows.
        choosing: how they are chosen.
        right: the share of guesses that were right lately.
        drafted, taken: how many guesses there were, and how many were right.
        ended: whether the smaller model failed: there are no more guesses.
    """

    tokens: list[int]
    choosing: Choosing
    right: float
    drafted: int = 0
    taken: int = 0
    ended: bool = False
    _seen: int = 0
    _after: dict[tuple[int, int], int] = field(default_factory=dict)

    def judge(self, drafted: int, taken: int) -> None:
        """So many of the guesses were right, and the next one, if there was one, was not."""
        self.drafted += drafted
        self.taken += taken
        self.right = _judged(self.right, drafted, taken)

    def repeats_from(self) -> int | None:
        """Where in the text goes on what followed its last two tokens the time before."""
        tokens = self.tokens
        # Not yet those that end the text: they would find themselves.
        for at in range(max(2, self._seen), len(tokens)):
            self._after[tokens[at - 2], tokens[at - 1]] = at
        self._seen = len(tokens)
        return self._after.get((tokens[-2], tokens[-1])) if len(tokens) > 1 else None


def _mixed(before: float, new: float) -> float:
    return before + _NEW * (new - before)


def _judged(right: float, drafted: int, taken: int) -> float:
    for _ in range(taken):
        right = _mixed(right, 1.0)
    if taken < drafted:
        right = _mixed(right, 0.0)
    return min(right, 0.99)


class _Source(Protocol):
    """Where guesses come from."""

    def able(self, slot: int, text: Drafting) -> bool:
        """Whether there may be guesses for the text in a slot."""
        ...

    def seconds(self, texts: int) -> float:
        """What a guess for each of so many texts takes."""
        ...

    def propose(self, first: int, texts: Sequence[Drafting | None], count: int) -> list[Drafted]:
        """Up to `count` guesses for each text of the slots from `first` on; None has none."""
        ...

    def swap(self, one: int, other: int) -> None:
        """The texts of two slots change places."""
        ...


class Drafts:
    """Guesses for texts, as many as pay: by how many were right so far, and by what whole steps of
    as many texts took."""

    def __init__(self, most: int = 8, model: Slots | None = None, beside: bool = True) -> None:
        """Up to `most` guesses at a time, by a smaller model or, without one, from the text; of
        several texts in a call only with `beside`."""
        self._most, self._beside = most, beside
        self._source: _Source = _Copies() if model is None else _Model(model)
        self._right = 0.7
        # Of a step, by its number of texts and of positions for each.
        self._seconds: dict[int, dict[int, float]] = {}
        self._last = 0, 0
        self._quiet = 0

    def begin(self, tokens: list[int], choosing: Choosing) -> Drafting:
        """A text that has guesses from now on."""
        return Drafting(tokens, choosing, self._right)

    def swap(self, one: int, other: int) -> None:
        """The texts of two slots change places."""
        self._source.swap(one, other)

    def propose(
        self, first: int, texts: Sequence[Drafting | None], rooms: Sequence[int], room: int
    ) -> list[Drafted]:
        """Guesses for the `texts` of the slots from `first` on, at most `rooms` of them for each,
        and at most `room` for any; None is a text that has none."""
        most = min(self._most, room)
        if len(texts) > 1:
            most = min(most, FEW_ROWS // len(texts) - 1) if self._beside else 0
        able = [
            0 if text is None or not self._source.able(slot, text) else min(most, own)
            for slot, (text, own) in enumerate(zip(texts, rooms, strict=True), first)
        ]
        most = max(able, default=0)
        count = self._best(able, [0.0 if text is None else text.right for text in texts], most)
        if count == 0 and most > 0:
            self._quiet += 1
            if self._quiet == _AGAIN:
                self._quiet, count = 0, 1
        if count == 0:
            return [Drafted([]) for _ in texts]
        guessing = [text if own else None for text, own in zip(texts, able, strict=True)]
        found = self._source.propose(first, guessing, count)
        return [Drafted(d.tokens[:own], d.weights) for d, own in zip(found, able, strict=True)]

    def _best(self, able: Sequence[int], right: Sequence[float], most: int) -> int:
        """The number of guesses for each text that makes the most tokens in a second."""
        if (seconds := self._seconds.get(len(able))) is None:
            return 0  # what a step without guesses takes comes first
        counts = np.arange(most + 1)
        # A step gives a text the guesses up to the first wrong one, and one token more.
        given = sum(
            (1 - r ** (np.minimum(counts, own) + 1)) / (1 - r)
            for own, r in zip(able, right, strict=True)
        )
        # More positions than were tried cost no more, until they have been tried.
        tried = sorted(seconds)
        steps = np.interp(counts + 1, tried, [seconds[n] for n in tried])
        guesses = counts * self._source.seconds(sum(own > 0 for own in able))
        return int(np.argmax(given / (steps + guesses)))

    @contextmanager
    def timed(self, texts: int, positions: int) -> Iterator[None]:
        """Around the step that computes `positions` tokens of each of `texts` and judges them."""
        start = time.perf_counter()
        yield
        taken = time.perf_counter() - start
        # A call after one of another shape makes another plan: texts without drafts pay that once.
        if positions > 1 or self._last == (texts, positions):
            seconds = self._seconds.setdefault(texts, {})
            seconds[positions] = _mixed(seconds.get(positions, taken), taken)
        self._last = texts, positions

    def judge(self, text: Drafting, drafted: int, taken: int) -> None:
        """So many of a text's guesses were right, and the next one, if there was one, was not."""
        text.judge(drafted, taken)
        self._right = _judged(self._right, drafted, taken)


class _Copies:
    """What followed the last two tokens the time before."""

    def able(self, slot: int, text: Drafting) -> bool:
        return text.repeats_from() is not None

    def seconds(self, texts: int) -> float:
        return 0.0

    def propose(self, first: int, texts: Sequence[Drafting | None], count: int) -> list[Drafted]:
        return [Drafted([] if text is None else self._copied(text, count)) for text in texts]

    @staticmethod
    def _copied(text: Drafting, count: int) -> list[int]:
        drafted: list[int] = []
        tokens, found = text.tokens, text.repeats_from()
        if found is not None:
            for at in range(found, found + count):  # past the text's end, what repeats goes on
                drafted.append(tokens[at] if at < len(tokens) else drafted[at - len(tokens)])
        return drafted

    def swap(self, one: int, other: int) -> None:
        pass


class _Model:
    """What a smaller model would write, in slots of its own. Texts that it fails for have no more
    guesses."""

    def __init__(self, slots: Slots) -> None:
        self._slots, self._beside = slots, _takes_several(slots)
        self._held: list[list[int]] = [[] for _ in range(slots.count)]
        self._seconds: dict[int, float] = {}
        self._said = False

    def able(self, slot: int, text: Drafting) -> bool:
        return slot < self._slots.count and not text.ended and len(text.tokens) > 1

    def seconds(self, texts: int) -> float:
        return self._seconds.get(texts, 0.0)

    def swap(self, one: int, other: int) -> None:
        if max(one, other) < self._slots.count:
            held = self._held
            self._slots.swap(one, other, max(len(held[one]), len(held[other])))
            held[one], held[other] = held[other], held[one]

    def propose(self, first: int, texts: Sequence[Drafting | None], count: int) -> list[Drafted]:
        found = [Drafted([], []) for _ in texts]
        asked = [(slot, text) for slot, text in enumerate(texts, first) if text is not None]
        ready = self._read(asked)
        start = time.perf_counter()
        for part in self._neighbours(ready):
            try:
                self._write(part, count, [found[slot - first] for slot, _ in part])
            except AieError as error:
                for slot, text in part:
                    found[slot - first] = Drafted([])
                    self._give_up(text, error)
        if ready:
            taken = (time.perf_counter() - start) / count
            self._seconds[len(ready)] = _mixed(self._seconds.get(len(ready), taken), taken)
        return found

    def _read(self, asked: list[tuple[int, Drafting]]) -> list[tuple[int, Drafting]]:
        """Makes slots hold their texts but for one or two tokens: those that do. No more than a
        chunk is read, which all texts wait for."""
        ready, left = [], _CHUNK
        for slot, text in asked:
            tokens, held = text.tokens, self._held[slot]
            both = min(len(held), len(tokens) - 1)
            self._keep(slot, next((i for i in range(both) if held[i] != tokens[i]), both))
            at = len(self._held[slot])
            if len(tokens) - at > 2 and left:
                part = tokens[at : min(at + left, len(tokens) - 1)]
                left -= len(part)
                try:
                    self._run(slot, [part])
                except AieError as error:
                    self._give_up(text, error)
                    continue
            if len(tokens) - len(self._held[slot]) <= 2:
                ready.append((slot, text))
        return ready

    def _neighbours(self, ready: list[tuple[int, Drafting]]) -> list[list[tuple[int, Drafting]]]:
        """Texts that are computed in one call."""
        parts: list[list[tuple[int, Drafting]]] = []
        for slot, text in ready:
            if self._beside and parts and parts[-1][-1][0] == slot - 1:
                parts[-1].append((slot, text))
            else:
                parts.append([(slot, text)])
        return parts

    def _write(
        self, part: list[tuple[int, Drafting]], count: int, drafted: Sequence[Drafted]
    ) -> None:
        """Adds `count` guesses to `drafted`, of texts of neighbouring slots."""
        # The same number of tokens for each, which a text that lacks fewer computes again.
        lacking = max(len(text.tokens) - len(self._held[slot]) for slot, text in part)
        rows = [text.tokens[-lacking:] for _, text in part]
        for slot, text in part:
            self._keep(slot, len(text.tokens) - lacking)
        for _ in range(count):
            logits = self._run(part[0][0], rows)
            for i, (_, text) in enumerate(part):
                rows[i] = [self._guess(text, logits[i], drafted[i])]

    def _guess(self, text: Drafting, logits: Row, drafted: Drafted) -> int:
        """A token for a text by the smaller model's logits (vocabulary), added to `drafted`; any
        one when the text has no more guesses."""
        if text.ended:
            return text.tokens[-1]
        try:
            if text.choosing.sampling.temperature == 0:
                token = likeliest(logits)
            else:
                assert drafted.weights is not None
                weights = probabilities([logits], [text.choosing.sampling])[0]
                weights /= weights.sum()
                token = draw(weights, text.choosing.random)
                drafted.weights.append(weights)
        except AieError as error:
            drafted.tokens.clear()
            self._give_up(text, error)
            return text.tokens[-1]
        drafted.tokens.append(token)
        return token

    def _run(self, first: int, rows: list[list[int]]) -> npt.NDArray[np.float32]:
        """Adds as many tokens to each of neighbouring slots: their last logits (slots,
        vocabulary)."""
        held = self._held[first : first + len(rows)]
        try:
            before = np.array([len(tokens) for tokens in held])
            logits = self._slots.run(np.array(rows), before, first)[:, -1]
        except AieError:  # what the slots hold is not known
            for slot in range(first, first + len(rows)):
                self._keep(slot, 0)
            raise
        for tokens, row in zip(held, rows, strict=True):
            tokens += row
        return logits

    def _keep(self, slot: int, length: int) -> None:
        self._slots.keep(slot, length, len(self._held[slot]))
        del self._held[slot][length:]

    def _give_up(self, text: Drafting, error: AieError) -> None:
        text.ended = True
        if not self._said:
            self._said = True
            _log.warning("the drafting model fails, and a text goes on without it: %s", error)


def open_drafts(
    slots: Slots,
    folder: ModelFolder,
    options: Options,
    most: int,
    drafter: ModelFolder | None,
    context: int,
) -> Drafts:
    """Guesses for a model that is open in `slots`, by the model in `drafter` or, without one, from
    the text.

    Raises:
        AieError: the model cannot verify several tokens in a call, or the smaller one has other
            tokens; or one of them cannot take tokens back.
    """
    if not slots.every_row:
        raise AieError(
            f"{folder.model} has logits of the last token only, and drafts need all: compile it "
            "without --last-logits"
        )
    _require_rewinds(slots, folder)
    beside = _takes_several(slots)
    if drafter is None:
        return Drafts(most, beside=beside)
    model = open_slots(drafter, options, slots.count, context)
    _require_rewinds(model, drafter)
    if model.vocabulary != slots.vocabulary:
        raise AieError(
            f"{drafter.model} has {model.vocabulary} tokens and {folder.model} "
            f"{slots.vocabulary}: a drafting model needs the same"
        )
    return Drafts(most, model, beside)


def _takes_several(slots: Slots) -> bool:
    """Whether a call may have several slots with several positions each, after others: ONNX
    Runtime's own GroupQueryAttention does not take it."""
    if not slots.together or slots.count == 1:
        return False
    try:
        slots.run(np.zeros((2, 2), np.int64), np.ones(2, np.int64), 0)
    except AieError:
        return False
    return True


def _require_rewinds(slots: Slots, folder: ModelFolder) -> None:
    if not slots.rewinds:
        raise AieError(f"{folder.model} cannot take drafted tokens back: {WHY_NOT_BACK}")
