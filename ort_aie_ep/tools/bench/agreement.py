"""How far two sessions agree on one model: logits on the same tokens, and greedy text."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ort_aie_ep.running.generate import Decoder, Logits, Tokens


@dataclass(frozen=True)
class Agreement:
    """The measured agreement of a model's logits with a reference's.

    Both are fed the same tokens: a text in one pass, then, one by one, the reference's own greedy
    continuation of it. Up to the first position where the likeliest tokens differ, the model would
    write the same text by itself, so `same_tokens` is also where free-running texts diverge.

    Attributes:
        positions: rows of logits that were compared.
        largest_difference: largest difference of any logit.
        largest_logit: largest logit of the reference by magnitude, as a scale for the difference.
        top1: fraction of positions where the likeliest token is the same.
        continuation: greedy tokens of the reference.
        same_tokens: how many of them, from the first, the model also chooses.
        gap: distance of the reference's two best logits where the texts diverge; None if they do
            not.
        tolerance: twice the largest difference at all other positions: two logits that each move at
            most that far swap places only if they are closer together than this.
    """

    positions: int
    largest_difference: float
    largest_logit: float
    top1: float
    continuation: tuple[int, ...]
    same_tokens: int
    gap: float | None
    tolerance: float

    @property
    def near_tie(self) -> bool:
        """Whether the texts diverge, at a position where the reference hardly prefers one token."""
        return self.gap is not None and self.gap <= self.tolerance


def compare(ours: Decoder, reference: Decoder, text: Tokens, count: int) -> Agreement:
    """Compares the two on `text` and on `count` tokens that the reference adds to it."""
    ours.reset()
    reference.reset()
    differences: list[Logits] = []  # by position: of the logit that differs most
    same: list[npt.NDArray[np.bool_]] = []
    gaps: list[float] = []  # by position of the continuation
    continuation: list[int] = []
    largest_logit = 0.0
    tokens = text
    for _ in range(count):
        expected, actual = reference.forward(tokens), ours.forward(tokens)
        rows = min(len(expected), len(actual))  # one, if a graph returns only the last token's
        expected, actual = expected[-rows:], actual[-rows:]
        differences.append(np.abs(expected - actual).max(axis=1))
        same.append(expected.argmax(axis=1) == actual.argmax(axis=1))
        largest_logit = max(largest_logit, float(np.abs(expected).max()))
        second, best = np.partition(expected[-1], -2)[-2:]
        gaps.append(float(best - second))
        continuation.append(int(expected[-1].argmax()))
        tokens = np.array(continuation[-1:])
    difference, agree = np.concatenate(differences), np.concatenate(same)
    # The last position of the text chooses the first token of the continuation.
    first = len(agree) - count
    parted = np.flatnonzero(~agree[first:])
    same_tokens = int(parted[0]) if parted.size else count
    others = np.delete(difference, first + same_tokens) if parted.size else difference
    return Agreement(
        positions=len(agree),
        largest_difference=float(difference.max()),
        largest_logit=largest_logit,
        top1=float(agree.mean()),
        continuation=tuple(continuation),
        same_tokens=same_tokens,
        gap=gaps[same_tokens] if parted.size else None,
        tolerance=2 * float(others.max(initial=0)),
    )
