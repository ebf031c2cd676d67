"""Drafts: tokens that are guessed and then computed in one call, which costs little more than one.

A guess comes from a smaller model with the same tokens, or from the text itself: what followed its
last two tokens the time before. The model's own distribution stays exactly (rejection sampling,
Leviathan et al. 2023, algorithm 1): a guess x, drawn from q, is taken with probability
min(1, p(x) / q(x)), else a token is drawn from max(p - q, 0).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

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

# What a new measurement counts, of times and of how many guesses are right.
_NEW = 0.1
# Without guesses, one is tried after so many tokens: texts change.
_AGAIN = 16
# Tokens of a prompt that the smaller model reads at once.
_CHUNK = 256


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


class Drafts:
    """Guesses for one text at a time, as many as pay: by how many were right so far, and by what
    steps with more rows took."""

    def __init__(self, most: int = 8, model: Slots | None = None) -> None:
        """Up to `most` guesses at a time, by a smaller model or, without one, from the text."""
        self._most = most
        self._source: _Model | _Copies = _Copies() if model is None else _Model(model)
        self._right = 0.7
        self._seconds: dict[int, float] = {}  # of a step, by its number of rows
        self._rows = self._quiet = 0
        self.drafted = self.taken = 0

    def propose(self, tokens: list[int], room: int, choosing: Choosing) -> Drafted:
        """Guesses after `tokens` of a text, at most `room`."""
        most = min(self._most, room)
        count = min(self._best(most), most)
        if count == 0 and most > 0:
            self._quiet += 1
            if self._quiet == _AGAIN:
                self._quiet, count = 0, 1
        return self._source.propose(tokens, count, choosing)

    def _best(self, most: int) -> int:
        """The number of guesses that makes the most tokens in a second."""
        if not self._seconds:
            return 0  # what one row takes comes first
        counts = np.arange(most + 1)
        # A step gives the guesses up to the first wrong one, and one token more.
        given = (1 - self._right ** (counts + 1)) / (1 - self._right)
        # More rows than were tried cost no more, until they have been tried.
        rows = sorted(self._seconds)
        seconds = np.interp(counts + 1, rows, [self._seconds[n] for n in rows])
        return int(np.argmax(given / (seconds + counts * self._source.seconds)))

    @contextmanager
    def timed(self, rows: int) -> Iterator[None]:
        """Around the step that computes `rows` tokens and judges them."""
        start = time.perf_counter()
        yield
        taken = time.perf_counter() - start
        # A call after one with other rows makes another plan: a text without drafts pays that once.
        if rows > 1 or self._rows == 1:
            self._seconds[rows] = _mixed(self._seconds.get(rows, taken), taken)
        self._rows = rows

    def judge(self, drafted: int, taken: int) -> None:
        """So many of the guesses were right, and the next one, if there was one, was not."""
        self.drafted += drafted
        self.taken += taken
        for _ in range(taken):
            self._right = _mixed(self._right, 1.0)
        if taken < drafted:
            self._right = _mixed(self._right, 0.0)
        self._right = min(self._right, 0.99)


def _mixed(before: float, new: float) -> float:
    return before + _NEW * (new - before)


@dataclass
class _Copies:
    """What followed the last two tokens the time before."""

    seconds: float = 0.0
    _seen: list[int] = field(default_factory=list)
    _after: dict[tuple[int, int], int] = field(default_factory=dict)

    def propose(self, tokens: list[int], count: int, choosing: Choosing) -> Drafted:
        if self._seen != tokens[: len(self._seen)]:
            self._seen, self._after = [], {}
        # Not yet those that end the text: they would find themselves.
        for at in range(max(2, len(self._seen)), len(tokens)):
            self._after[tokens[at - 2], tokens[at - 1]] = at
        self._seen = list(tokens)
        found = self._after.get((tokens[-2], tokens[-1])) if len(tokens) > 1 else None
        drafted: list[int] = []
        if found is not None:
            for at in range(found, found + count):  # past the text's end, what repeats goes on
                drafted.append(tokens[at] if at < len(tokens) else drafted[at - len(tokens)])
        return Drafted(drafted)


class _Model:
    """What a smaller model would write."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._held: list[int] = []
        self.seconds = 0.0

    def propose(self, tokens: list[int], count: int, choosing: Choosing) -> Drafted:
        if count == 0:
            return Drafted([])
        both = min(len(self._held), len(tokens) - 1)
        same = next((i for i in range(both) if self._held[i] != tokens[i]), both)
        kept = self._slots.keep(0, same, len(self._held))
        self._held = tokens[:kept]
        while (at := len(self._held)) < len(tokens) - 1:
            self._run(tokens[at : min(at + _CHUNK, len(tokens) - 1)])
        drafted: list[int] = []
        weights: list[Probabilities] = []
        last = tokens[-1]
        start = time.perf_counter()
        for _ in range(count):
            logits = self._run([last])
            if choosing.sampling.temperature == 0:
                last = likeliest(logits)
            else:
                row = probabilities([logits], [choosing.sampling])[0]
                row /= row.sum()
                last = draw(row, choosing.random)
                weights.append(row)
            drafted.append(last)
        taken = (time.perf_counter() - start) / count
        self.seconds = taken if self.seconds == 0.0 else _mixed(self.seconds, taken)
        return Drafted(drafted, weights)

    def _run(self, tokens: list[int]) -> Row:
        before = np.array([len(self._held)])
        logits: npt.NDArray[np.float32] = self._slots.run(np.array([tokens]), before, 0)[0, -1]
        self._held = self._held + tokens
        return logits


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
            tokens.
    """
    if not slots.every_row:
        raise AieError(
            f"{folder.model} has logits of the last token only, and drafts need all: compile it "
            "without --last-logits"
        )
    if not slots.rewinds:
        raise AieError(f"{folder.model} cannot take drafted tokens back: {WHY_NOT_BACK}")
    if drafter is None:
        return Drafts(most)
    model = open_slots(drafter, options, 1, context)
    if model.vocabulary != slots.vocabulary:
        raise AieError(
            f"{drafter.model} has {model.vocabulary} tokens and {folder.model} "
            f"{slots.vocabulary}: a drafting model needs the same"
        )
    return Drafts(most, model)
