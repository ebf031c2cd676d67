"""Drafts: tokens that are guessed and then computed in one call, which costs little more than one.

A guess comes from the text itself, what followed its last two tokens the time before, or from a
smaller model with the same tokens, or the model's own head for it: from the one that was right
more often lately in this text, unless copies alone, which take no time, make more tokens in a
second. The model's own distribution stays exactly (rejection sampling, Leviathan et al. 2023,
algorithm 1): a guess x, drawn from q, is taken with probability min(1, p(x) / q(x)), else a token
is drawn from max(p - q, 0).

Texts that are written beside each other have guesses of their own, and a call has as many positions
for each: what one does not need is computed, and overwritten by the next call.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ort_aie_ep.errors import AieError
from ort_aie_ep.models.folder import ModelFolder, find_head
from ort_aie_ep.models.interface import context_length
from ort_aie_ep.running.chunks import CHUNK_BESIDE_TEXTS
from ort_aie_ep.running.generate import Decoder
from ort_aie_ep.running.sampling import (
    Choosing,
    Probabilities,
    Row,
    draw,
    likeliest,
    probabilities,
)
from ort_aie_ep.running.slots import WHY_NOT_BACK, Hidden, Pool, Slots, open_slots
from ort_aie_ep.runtime.sessions import Options, open_session

# Rows of a step of several texts: so many cost little more than one where computing is fast, and
# every kernel for x86 computes each as if it were alone.
FEW_ROWS = 8
# What a new measurement counts, of times and of how many guesses are right.
_NEW = 0.1
# The share of guesses that are right, before any was made, and the largest that is believed.
_FIRST, _SURE = 0.7, 0.99
# How many times as many tokens in a second guesses must promise: times and shares are uncertain,
# and the best of several promises is more likely too good than too bad.
_WORTH = 1.1
# Without guesses, one is tried after so many steps: texts change.
_AGAIN = 16
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
        modelled: the share of the smaller model's guesses that were right lately.
        copied: of the tokens before which the text had what a copy needs, the share that a copy
            would have guessed lately, whether it was asked or not.
        drafted, taken: how many guesses there were, and how many were right.
        ended: whether the smaller model failed: it is not asked again.
    """

    tokens: list[int]
    choosing: Choosing
    modelled: float = _FIRST
    copied: float = _FIRST
    drafted: int = 0
    taken: int = 0
    ended: bool = False
    _seen: int = 0
    _after: dict[tuple[int, int], int] = field(default_factory=dict)

    def repeats_from(self) -> int | None:
        """Where in the text goes on what followed its last two tokens the time before."""
        tokens = self.tokens
        # Not yet those that end the text: they would find themselves.
        for at in range(max(2, self._seen), len(tokens)):
            pair = tokens[at - 2], tokens[at - 1]
            if (before := self._after.get(pair)) is not None:
                self.copied = _mixed(self.copied, tokens[before] == tokens[at])
            self._after[pair] = at
        self._seen = len(tokens)
        return self._after.get((tokens[-2], tokens[-1])) if len(tokens) > 1 else None

    def copy(self, count: int) -> list[int]:
        """So many tokens that followed the last two the time before; none without such a time."""
        drafted: list[int] = []
        tokens, found = self.tokens, self.repeats_from()
        if found is not None:
            for at in range(found, found + count):  # past the text's end, what repeats goes on
                drafted.append(tokens[at] if at < len(tokens) else drafted[at - len(tokens)])
        return drafted


def _mixed(before: float, new: float) -> float:
    return before + _NEW * (new - before)


def _judged(right: float, drafted: int, taken: int) -> float:
    for _ in range(taken):
        right = _mixed(right, 1.0)
    return _mixed(right, 0.0) if taken < drafted else right


def _between(seconds: Mapping[int, float], positions: int) -> float:
    """What a step with so many positions takes, by what others took. More positions than were tried
    cost no more, until they have been tried."""
    if positions in seconds:
        return seconds[positions]
    fewer = max((n for n in seconds if n < positions), default=None)
    more = min((n for n in seconds if n > positions), default=None)
    if fewer is None or more is None:
        return seconds[max(seconds) if more is None else min(seconds)]
    share = (positions - fewer) / (more - fewer)
    return seconds[fewer] + share * (seconds[more] - seconds[fewer])


class _Guessing(NamedTuple):
    """Up to `most` guesses for a text, of which the share `right` is."""

    most: int
    right: float
    by_model: bool = False


_NONE = _Guessing(0, 0.0)


class Drafts:
    """Guesses for texts, as many as pay: by how many were right so far, and by what whole steps of
    as many texts took."""

    def __init__(
        self, most: int = 8, model: Slots | None = None, beside: bool = True, head: bool = False
    ) -> None:
        """Up to `most` guesses at a time, from the text and by a smaller model, if there is one,
        which may be a `head` on the model's hidden states; of several texts in a call only with
        `beside`."""
        self._most, self._beside = most, beside
        self._head = _Head(model) if model and head else None
        self._model: _Head | _Model | None = self._head or (_Model(model) if model else None)
        self._modelled = _FIRST
        # Of a step, by its number of texts and of positions for each.
        self._seconds: dict[int, dict[int, float]] = {}
        self._last = 0, 0
        self._quiet = 0

    def begin(self, tokens: list[int], choosing: Choosing) -> Drafting:
        """A text that has guesses from now on."""
        return Drafting(tokens, choosing, self._modelled)

    def swap(self, one: int, other: int) -> None:
        """The texts of two slots change places."""
        if self._model is not None:
            self._model.swap(one, other)

    def saw(
        self, first: int, texts: Sequence[list[int]], before: Sequence[int], hidden: Hidden | None
    ) -> None:
        """The model computed tokens of `texts` in slots from `first` on, which held `before`: their
        hidden states (slots, count, width), if it gives any."""
        if self._head is not None and hidden is not None:
            for slot, (tokens, at, rows) in enumerate(zip(texts, before, hidden, strict=True)):
                self._head.saw(first + slot, tokens, at, rows)

    def propose(
        self, first: int, texts: Sequence[Drafting | None], rooms: Sequence[int], room: int
    ) -> list[Drafted]:
        """Guesses for the `texts` of the slots from `first` on, at most `rooms` of them for each,
        and at most `room` for any; None is a text that has none."""
        most = min(self._most, room)
        if len(texts) > 1:
            most = min(most, FEW_ROWS // len(texts) - 1) if self._beside else 0
        asked = [*zip(range(first, first + len(texts)), texts, rooms, strict=True)]
        chosen = either = [self._by_copying(text, min(most, own)) for _, text, own in asked]
        speed, count = self._best(chosen)
        if self._model is not None:
            either = [
                max(copied, self._by_model(slot, text, min(most, own)), key=lambda g: g.right)
                for copied, (slot, text, own) in zip(chosen, asked, strict=True)
            ]
            # A step waits for the smaller model even if it guesses for few of the texts.
            quicker = self._best(either)
            if quicker[0] > speed:
                (_, count), chosen = quicker, either
        if count == 0 and any(guessing.most for guessing in either):
            self._quiet += 1
            if self._quiet == _AGAIN:
                self._quiet, count, chosen = 0, 1, either
        drafted = [Drafted([]) for _ in texts]
        if count and self._model and any(guessing.by_model for guessing in chosen):
            modelled = [t if g.by_model else None for t, g in zip(texts, chosen, strict=True)]
            drafted = self._model.propose(first, modelled, count)
        for i, (text, guessing) in enumerate(zip(texts, chosen, strict=True)):
            if text is not None and not guessing.by_model:
                drafted[i] = Drafted(text.copy(count))
        return [
            Drafted(d.tokens[: g.most], d.weights) for d, g in zip(drafted, chosen, strict=True)
        ]

    def _by_copying(self, text: Drafting | None, most: int) -> _Guessing:
        if text is None or text.repeats_from() is None:
            return _NONE
        return _Guessing(most, min(text.copied, _SURE))

    def _by_model(self, slot: int, text: Drafting | None, most: int) -> _Guessing:
        if text is None or self._model is None or not self._model.able(slot, text, self._most):
            return _NONE
        return _Guessing(most, min(text.modelled, _SURE), by_model=True)

    def _best(self, guessing: Sequence[_Guessing]) -> tuple[float, int]:
        """The number of guesses for each text that makes the most tokens, in a second, of all
        texts; after these."""
        if (seconds := self._seconds.get(len(guessing))) is None:
            return 0.0, 0  # what a step without guesses takes comes first
        by_model = sum(g.by_model for g in guessing)
        guess = self._model.seconds(by_model) if self._model else 0.0
        # A step gives a text the guesses up to the first wrong one, and one token more.
        given, chances = float(len(guessing)), [1.0] * len(guessing)
        best, worth = (0.0, 0), 0.0
        for count in range(1 + max(g.most for g in guessing)):
            for i, g in enumerate(guessing):
                if 0 < count <= g.most:
                    chances[i] *= g.right
                    given += chances[i]
            speed = given / (_between(seconds, 1 + count) + count * guess)
            if count == 0:
                best = speed, 0
                worth = _WORTH * speed
            elif speed > max(best[0], worth):
                best = speed, count
        return best

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

    def judge(self, text: Drafting, guesses: Drafted, taken: int) -> None:
        """So many of a text's guesses were right, and the next one, if there was one, was not."""
        drafted = len(guesses.tokens)
        text.drafted += drafted
        text.taken += taken
        if guesses.weights is not None:
            text.modelled = _judged(text.modelled, drafted, taken)
            self._modelled = _judged(self._modelled, drafted, taken)


class _Guesser:
    """Guesses of a model, which has slots of its own. Texts that it fails for have no more."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._seconds: dict[int, float] = {}
        self._said = False

    def able(self, slot: int, text: Drafting, most: int) -> bool:
        """Whether it may add up to `most` guesses to a text: its context has to suffice."""
        if slot >= self._slots.count or text.ended:
            return False
        return 1 < len(text.tokens) <= self._slots.context - most

    def seconds(self, texts: int) -> float:
        return self._seconds.get(texts, 0.0)

    def _took(self, texts: int, seconds: float) -> None:
        if texts:
            self._seconds[texts] = _mixed(self._seconds.get(texts, seconds), seconds)

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

    def _give_up(self, text: Drafting, error: AieError) -> None:
        text.ended = True
        if not self._said:
            self._said = True
            _log.warning("the drafting model fails, and a text goes on without it: %s", error)


class _Model(_Guesser):
    """What a smaller model would write."""

    def __init__(self, slots: Slots) -> None:
        super().__init__(slots)
        self._beside = _takes_several(slots)
        self._held: list[list[int]] = [[] for _ in range(slots.count)]

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
        self._took(len(ready), (time.perf_counter() - start) / count)
        return found

    def _read(self, asked: list[tuple[int, Drafting]]) -> list[tuple[int, Drafting]]:
        """Makes slots hold their texts but for a few tokens: those that do. No more than a chunk is
        read, which all texts wait for."""
        ready, left = [], CHUNK_BESIDE_TEXTS
        # Texts in one call lack the same number of tokens, which the shortest one must have.
        most = min([FEW_ROWS, *(len(text.tokens) for _, text in asked)])
        for slot, text in asked:
            tokens, held = text.tokens, self._held[slot]
            both = min(len(held), len(tokens) - 1)
            self._keep(slot, next((i for i in range(both) if held[i] != tokens[i]), both))
            at = len(self._held[slot])
            if len(tokens) - at > most and left:
                part = tokens[at : min(at + left, len(tokens) - 1)]
                left -= len(part)
                try:
                    self._run(slot, [part])
                except AieError as error:
                    self._give_up(text, error)
                    continue
            if len(tokens) - len(self._held[slot]) <= most:
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

    def _run(self, first: int, rows: list[list[int]]) -> npt.NDArray[np.float32]:
        """Adds as many tokens to each of neighbouring slots: their last logits (slots,
        vocabulary)."""
        held = self._held[first : first + len(rows)]
        try:
            before = np.array([len(tokens) for tokens in held])
            logits = self._slots.run(np.array(rows), before, first, 1)[:, -1]
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


class _Head(_Guesser):
    """What a head for the token after the next one makes of the model's hidden states, in slots of
    its own (multi-token prediction, as Qwen3.5 has it).

    Row i of its caches is of token i + 1 and the model's hidden state at token i, or, where tokens
    are guessed, of the head's own at the guess before.
    """

    def __init__(self, slots: Slots) -> None:
        super().__init__(slots)
        self._rows = [0] * slots.count
        self._hidden: list[list[Hidden]] = [[] for _ in range(slots.count)]  # after those rows

    def able(self, slot: int, text: Drafting, most: int) -> bool:
        """See `_Guesser`; the hidden states have to be known."""
        known = self._rows[slot] + len(self._hidden[slot])
        return super().able(slot, text, most) and known >= len(text.tokens) - 1

    def swap(self, one: int, other: int) -> None:
        """The texts of two slots change places."""
        rows, hidden = self._rows, self._hidden
        self._slots.swap(one, other, max(rows[one], rows[other]))
        rows[one], rows[other] = rows[other], rows[one]
        hidden[one], hidden[other] = hidden[other], hidden[one]

    def saw(self, slot: int, tokens: list[int], before: int, hidden: Hidden) -> None:
        """The model computed so many of a text's tokens after `before`."""
        # What else was known is of tokens that were taken back. A row whose next token was another
        # one only makes guesses worse, and so do those of tokens that the model did not compute
        # because another text had them.
        self._rows[slot] = min(self._rows[slot], before)
        known = self._hidden[slot]
        del known[before - self._rows[slot] :]
        if self._rows[slot] + len(known) < before:
            self._rows[slot] = before
            known.clear()
        known += [*hidden]
        if min(len(known), len(tokens) - 1 - self._rows[slot]) > FEW_ROWS:
            try:
                self._catch_up(slot, tokens)
            except AieError:
                known.clear()

    def _catch_up(self, slot: int, tokens: list[int]) -> Row:
        """Reads what is known of a text's tokens: the last logits (vocabulary)."""
        at = self._rows[slot]
        new = tokens[at + 1 : at + 1 + len(self._hidden[slot])]
        hidden = self._hidden[slot][: len(new)]
        logits = self._row(slot, new, np.stack(hidden))
        self._rows[slot] += len(new)
        del self._hidden[slot][: len(new)]
        return logits

    def _row(self, slot: int, tokens: list[int], hidden: Hidden, more: int = 0) -> Row:
        before = np.array([self._rows[slot] + more])
        logits = self._slots.run(np.array([tokens]), before, slot, 1, hidden[None])
        return np.asarray(logits[0, -1])

    def propose(self, first: int, texts: Sequence[Drafting | None], count: int) -> list[Drafted]:
        """`count` guesses for each text, one text after the other."""
        found = [Drafted([], []) for _ in texts]
        start, asked = time.perf_counter(), 0
        for i, text in enumerate(texts):
            if text is None:
                continue
            asked += 1
            try:
                logits = self._catch_up(first + i, text.tokens)
                for more in range(count):
                    token = self._guess(text, logits, found[i])
                    if more + 1 < count and not text.ended:
                        assert self._slots.hidden is not None
                        logits = self._row(first + i, [token], self._slots.hidden[0, -1:], more)
            except AieError as error:
                found[i] = Drafted([])
                self._give_up(text, error)
        self._took(asked, (time.perf_counter() - start) / count)
        return found


def open_drafts(
    slots: Slots,
    folder: ModelFolder,
    options: Options,
    most: int,
    drafter: ModelFolder | None,
    context: int,
) -> Drafts:
    """Guesses for a model that is open in `slots`, by the model in `drafter` or, without one, by
    its own head, if it has one; and from the text.

    Raises:
        AieError: the model cannot verify several tokens in a call, or the smaller one has other
            tokens; or one of them cannot take tokens back.
    """
    if not slots.every_row:
        raise AieError(
            f"{folder.model} has logits of the last token only, and drafts need all: compile it "
            "without --last-logits"
        )
    if not slots.undoes:
        raise _cannot_go_back(folder)
    beside = _takes_several(slots)
    if drafter is None:
        if (head := find_head(folder)) is None:
            return Drafts(most, beside=beside)
        decoder = Decoder(open_session(head.model, options), head, context, slots.count)
        return Drafts(most, Pool(decoder, slots.count), beside, head=True)
    model = open_slots(drafter, options, slots.count, min(context, context_length(drafter)))
    if not model.rewinds:
        raise _cannot_go_back(drafter)
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


def _cannot_go_back(folder: ModelFolder) -> AieError:
    return AieError(f"{folder.model} cannot take drafted tokens back: {WHY_NOT_BACK}")
