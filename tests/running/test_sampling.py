"""How tokens are chosen: as often as they are likely, whatever else is chosen in the same step."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from ort_aie_ep.errors import AieError
from ort_aie_ep.running.sampling import (
    Choosing,
    Row,
    choose,
    log_probabilities,
    probabilities,
)
from ort_aie_ep.running.turns import Sampling


def one(logits: Row, sampling: Sampling, random: np.random.Generator) -> int:
    return choose([logits], [Choosing(sampling, random)])[0]


def test_other_roundings_of_the_logits_choose_the_same_token() -> None:
    """However flat the probabilities are, if the two best differ by more than the rounding."""
    logits = np.random.default_rng(7).normal(0, 1, 4000)
    moved = logits + np.random.default_rng(8).uniform(-1e-4, 1e-4, 4000)
    sampling = Sampling(2.0)
    pairs = [
        [one(row, sampling, np.random.default_rng(seed)) for row in (logits, moved)]
        for seed in range(200)
    ]
    # The best two are apart by an exponential variable: each differs with a chance of 1e-4.
    assert sum(one != other for one, other in pairs) <= 1


@pytest.mark.parametrize(("top_p", "top_k"), [(1.0, 0), (0.6, 0), (1.0, 3), (0.8, 4)])
def test_tokens_are_chosen_as_often_as_they_are_likely(top_p: float, top_k: int) -> None:
    """Against probabilities that are computed by sorting everything."""
    random = np.random.default_rng(5)
    logits = random.normal(0, 2, 12).astype(np.float32)
    weights = np.exp(logits / 0.7)
    order = np.argsort(-weights)
    if top_k:
        weights[order[top_k:]] = 0
    weights /= weights.sum()
    nucleus = np.cumsum(weights[order]) - weights[order] < top_p  # what is before has less
    weights[order[~nucleus]] = 0
    weights /= weights.sum()
    sampling, draws = Sampling(0.7, top_p, top_k), 4000
    counts = np.zeros(12)
    for _ in range(draws):
        counts[one(logits, sampling, random)] += 1
    assert not counts[weights == 0].any()
    # Five standard deviations of a count.
    bound = 5 * np.sqrt(draws * weights * (1 - weights))
    assert (np.abs(counts - draws * weights) <= bound).all()
    assert one(logits, Sampling(0), random) == order[0]
    for each in (sampling, Sampling(0)):
        with pytest.raises(AieError, match="logits"):
            one(logits * np.nan, each, random)


def test_texts_of_a_step_are_chosen_each_in_its_way() -> None:
    rows = np.random.default_rng(1).normal(0, 3, (5, 50)).astype(np.float32)
    samplings = [
        Sampling(0), Sampling(1.0, seed=1), Sampling(0.5, top_k=3, seed=2), Sampling(0),
        Sampling(2.0, top_p=0.5, min_p=0.1, seed=3),
    ]  # fmt: skip

    def texts() -> list[Choosing]:
        return [Choosing(s, np.random.default_rng(s.seed)) for s in samplings]

    alone = [choose([row], [text])[0] for row, text in zip(rows, texts(), strict=True)]
    assert choose(list(rows), texts()) == alone


def test_min_p_leaves_what_is_likely_beside_the_likeliest() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))
    (weights,) = probabilities([logits], [Sampling(1.0, min_p=0.25)])
    np.testing.assert_allclose(weights / weights.sum(), np.array([0.5, 0.3, 0.15, 0]) / 0.95)


def test_bias_and_penalties_move_logits() -> None:
    logits = np.zeros(6, np.float32)
    sampling = Sampling(1.0, frequency_penalty=0.5, presence_penalty=1.0, bias={4: 3.0, 5: -9.0})
    text = Choosing(sampling, np.random.default_rng(0), Counter({1: 1, 2: 3}))
    np.testing.assert_array_equal(text.adjusted(logits), [0, -1.5, -2.5, 0, 3, -9])
    assert not logits.any()  # as the model gave them


def test_log_probabilities_add_up_to_one_and_the_likeliest_come_first() -> None:
    logits = np.random.default_rng(2).normal(0, 30, 1000).astype(np.float32)
    (token, own), *top = log_probabilities(logits, 7, 1000)
    assert [t for t, _ in top] == [*np.argsort(-logits, kind="stable")]
    assert (token, own) == (7, dict(top)[7])
    assert np.exp([value for _, value in top]).sum() == pytest.approx(1, abs=1e-4)
    assert log_probabilities(logits, 7, 2) == [(7, own), *top[:2]]
    assert log_probabilities(logits, 7, 0) == [(7, own)]
