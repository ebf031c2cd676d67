"""Guessed tokens: the model's own distribution stays, and its greedy text."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from servers import make_model

from ort_aie_ep.errors import AieError
from ort_aie_ep.models.folder import find_model
from ort_aie_ep.running.drafts import Drafted, Drafts
from ort_aie_ep.running.run import run_in_session
from ort_aie_ep.running.sampling import Choosing, probabilities
from ort_aie_ep.running.turns import Sampling
from ort_aie_ep.runtime.sessions import Options

DRAWS = 4000


@pytest.mark.parametrize("sampling", [Sampling(1.0), Sampling(0.7, top_k=4), Sampling(1.5, 0.8)])
@pytest.mark.parametrize("copied", [True, False])
def test_tokens_come_as_often_as_the_model_alone_gives_them(
    sampling: Sampling, copied: bool
) -> None:
    random = np.random.default_rng(11)
    logits, other = random.normal(0, 1.5, (2, 7)).astype(np.float32)
    (own,) = probabilities([logits], [sampling])
    own /= own.sum()
    (guesses,) = probabilities([other], [sampling])
    guesses /= guesses.sum()
    choosing = Choosing(sampling, random)
    counts = np.zeros(7)
    for _ in range(DRAWS):
        guess = 3 if copied else int(random.choice(7, p=guesses))
        drafted = Drafted([guess], None if copied else [guesses])
        token, right = drafted.verify(0, logits, choosing)
        assert right == (token == guess) or not copied  # a refused guess may be drawn again
        counts[token] += 1
    # Five standard deviations of a count.
    assert (np.abs(counts - DRAWS * own) <= 5 * np.sqrt(DRAWS * own * (1 - own)) + 1e-9).all()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_no_numbers_verify_nothing(temperature: float) -> None:
    choosing = Choosing(Sampling(temperature), np.random.default_rng(0))
    logits = np.array([0, np.nan, 1], np.float32)
    with pytest.raises(AieError, match="numbers"):
        Drafted([2]).verify(0, logits, choosing)


def test_a_text_drafts_from_its_own_repetitions() -> None:
    drafts = Drafts(4)
    greedy = Choosing(Sampling(), np.random.default_rng(0))
    for _ in range(2):
        assert drafts.propose([5, 5, 5], 10, greedy).tokens == []  # what one row takes comes first
        with drafts.timed(1):
            pass
    text = [5, 6, 7, 8, 9, 5, 6]
    assert drafts.propose(text, 10, greedy).tokens == [7, 8, 9, 5]
    assert drafts.propose([1, 2, 1, 2], 10, greedy).tokens == [1, 2, 1, 2]
    assert drafts.propose(text, 2, greedy).tokens == [7, 8]
    assert drafts.propose([*text, 1], 10, greedy).tokens == []
    assert drafts.propose([1, 2, 3], 10, greedy).tokens == []  # another text


def test_no_more_is_guessed_than_pays() -> None:
    """Wrong guesses that cost nearly as much as a call each are soon given up."""
    drafts = Drafts(8)
    greedy = Choosing(Sampling(), np.random.default_rng(0))
    drafts._seconds = {1: 1.0, 9: 7.4}
    text = [1, 2] * 20
    for _ in range(100):
        drafts.judge(len(drafts.propose(text, 10, greedy).tokens), 0)
    assert drafts.drafted < 30
    drafts._seconds[9] = 1.4
    for _ in range(60):
        count = len(drafts.propose(text, 10, greedy).tokens)
        drafts.judge(count, count)
    assert len(drafts.propose(text, 10, greedy).tokens) == 8


def test_drafted_text_is_the_models_own(tmp_path: Path) -> None:
    """The model drafts for itself: each guess is right; and from repetitions, some."""
    folder = find_model(make_model(tmp_path))
    options = Options(threads=1)

    def text(*how: object) -> tuple[str, tuple[int, int] | None]:
        pieces: list[str] = []
        timing = run_in_session(folder, options, "import os", 60, pieces.append, None, *how)
        assert timing.new_tokens == 60
        return "".join(pieces), timing.drafted

    alone, none = text()
    assert none is None
    own, drafted = text(4, folder)
    assert own == alone
    assert drafted is not None
    assert drafted[0] >= 0.9 * drafted[1] > 0
    copied, drafted = text(8)
    assert copied == alone
    assert drafted is not None


def test_models_that_cannot_verify_say_why(tmp_path: Path) -> None:
    import ort_aie_ep

    folder = make_model(tmp_path)
    ort_aie_ep.compile(folder.parent / "source", tmp_path / "last", last_logits=True)
    with pytest.raises(AieError, match="--last-logits"):
        run_in_session(find_model(tmp_path / "last"), Options(threads=1), "a", 2, print, None, 4)
