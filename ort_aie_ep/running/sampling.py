"""Chooses the next tokens of several texts at once, from the logits of a step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ort_aie_ep.errors import AieError
from ort_aie_ep.running.turns import Sampling

Probabilities = npt.NDArray[np.float64]
Row = npt.NDArray[np.float32]

_NO_NUMBERS = "the model's logits are not numbers"


@dataclass
class Choosing:
    """How the tokens of one text are chosen, and what was.

    Attributes:
        sampling: what is asked for.
        random: where chance comes from.
        written: how often each token was chosen so far.
        prompt: the tokens that the text begins with.
        ends: tokens that may not come before `least` others.
    """

    sampling: Sampling
    random: np.random.Generator
    written: Counter[int] = field(default_factory=Counter)
    prompt: Set[int] = frozenset()
    ends: Set[int] = frozenset()
    least: int = 0

    def adjusted(self, logits: Row) -> Row:
        """Logits (vocabulary) with penalties and bias: a copy, if there are any."""
        asked = self.sampling
        penalties = asked.frequency_penalty, asked.presence_penalty
        early = self.least > 0 and self.written.total() < self.least
        repeated = self.prompt | self.written.keys() if asked.repetition_penalty != 1 else ()
        counted = self.written if penalties != (0.0, 0.0) else ()
        if not (asked.bias or early or repeated or counted):
            return logits
        logits = logits.copy()
        if repeated:
            tokens = np.fromiter(repeated, np.int64)
            tokens = tokens[tokens < len(logits)]  # some vocabularies are wider than the logits
            values = logits[tokens]
            factors = np.where(values > 0, 1 / asked.repetition_penalty, asked.repetition_penalty)
            logits[tokens] = values * factors
        for token, value in asked.bias.items():
            logits[token] += value
        if counted:
            tokens = np.fromiter(self.written.keys(), np.int64)
            counts = np.fromiter(self.written.values(), np.float32)
            logits[tokens] -= penalties[0] * counts + penalties[1]
        if early:
            logits[[*self.ends]] = -np.inf
        return logits


def choose(logits: Sequence[Row], texts: Sequence[Choosing]) -> list[int]:
    """A token for each text, by its logits (vocabulary) after `adjusted` and a grammar's mask.

    Raises:
        AieError: no token may come: logits are not numbers.
    """
    chosen = [0] * len(texts)
    drawn = [i for i, text in enumerate(texts) if text.sampling.temperature > 0]
    for i, text in enumerate(texts):
        if text.sampling.temperature == 0:
            chosen[i] = likeliest(logits[i])
    if drawn:
        rows = probabilities([logits[i] for i in drawn], [texts[i].sampling for i in drawn])
        for i, row in zip(drawn, rows, strict=True):
            chosen[i] = draw(row, texts[i].random)
    return chosen


def likeliest(logits: Row) -> int:
    """The token of the largest logit (vocabulary). Raises AieError if they are not numbers."""
    token = int(np.argmax(logits))  # of the first NaN, if there is one
    if not np.isfinite(logits[token]):
        raise AieError(_NO_NUMBERS)
    return token


def probabilities(logits: Sequence[Row], samplings: Sequence[Sampling]) -> Probabilities:
    """(texts, vocabulary) what each token may come with; rows need not add up to one.

    With temperature 0, the likeliest token alone may.

    Raises:
        AieError: logits are not numbers.
    """
    rows = np.array(logits, np.float64)
    rows -= rows.max(1, keepdims=True)
    greedy = np.array([s.temperature == 0 for s in samplings])
    rows /= np.array([s.temperature or 1.0 for s in samplings])[:, None]
    weights = np.exp(rows)
    if not np.isfinite(weights).all():
        raise AieError(_NO_NUMBERS)
    for row, sampling in zip(weights, samplings, strict=True):
        if sampling.temperature == 0:
            continue
        if 0 < sampling.top_k < len(row):
            row[np.argpartition(-row, sampling.top_k - 1)[sampling.top_k :]] = 0
        if sampling.min_p > 0:
            row[row < sampling.min_p] = 0  # the likeliest one's weight is 1
        if sampling.top_p < 1:
            _keep_top_p(row, sampling.top_p)
    if greedy.any():
        best = weights[greedy].argmax(1)
        weights[greedy] = 0
        weights[np.flatnonzero(greedy), best] = 1
    return weights


def _keep_top_p(weights: Probabilities, top_p: float) -> None:
    """Leaves the likeliest tokens whose probabilities reach top_p."""
    weights /= weights.sum()
    # Tokens below this have less than 1 - top_p together, so none is a candidate. Without them
    # there are few to sort; sorting a whole vocabulary takes long.
    tokens = np.flatnonzero(weights >= (1 - top_p) / len(weights))
    tokens = tokens[np.argsort(-weights[tokens], kind="stable")]
    kept = tokens[: np.searchsorted(np.cumsum(weights[tokens]), top_p) + 1]
    others = np.ones(len(weights), bool)
    others[kept] = False
    weights[others] = 0


def draw(weights: Probabilities, random: np.random.Generator) -> int:
    """A random token by its weight (vocabulary)."""
    # Each token has a random exponential variable, and the largest weight / variable wins. So with
    # the same seed, logits that are rounded otherwise give another token only if two are almost
    # equal, however many tokens are likely.
    return int(np.argmax(weights / np.maximum(random.standard_exponential(len(weights)), 1e-300)))


def log_probabilities(logits: Row, token: int, top: int) -> list[tuple[int, float]]:
    """The logarithm of the probability of `token` by its logits (vocabulary), then those of the
    `top` likeliest tokens, with the tokens."""
    largest = float(logits.max())
    total = largest + float(np.log(np.exp(logits - largest).sum(dtype=np.float64)))
    best: list[int] = []
    if top:
        found = np.argpartition(-logits, min(top, len(logits) - 1))[:top]
        best = [int(t) for t in found[np.argsort(-logits[found], kind="stable")]]
    return [(t, float(logits[t]) - total) for t in (token, *best)]
