"""Guessed tokens: the model's own distribution stays, and its greedy text."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from servers import DEMO, make_model

from ort_aie_ep.errors import AieError
from ort_aie_ep.models.folder import ModelFolder, find_model
from ort_aie_ep.running.drafts import Drafted, Drafting, Drafts, _Guessing
from ort_aie_ep.running.loop import Loop, Text, open_loop
from ort_aie_ep.running.run import run_in_session
from ort_aie_ep.running.sampling import Choosing, probabilities
from ort_aie_ep.running.turns import Piece, Sampling, Turn
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


def greedy_text(drafts: Drafts, tokens: list[int]) -> Drafting:
    return drafts.begin(tokens, Choosing(Sampling(), np.random.default_rng(0)))


def guesses(drafts: Drafts, text: Drafting, room: int = 10) -> list[int]:
    (drafted,) = drafts.propose(0, [text], [room], 100)
    return drafted.tokens


def test_a_text_drafts_from_its_own_repetitions() -> None:
    drafts = Drafts(4)
    text = greedy_text(drafts, [5, 6, 7, 8, 9, 5, 6])
    for _ in range(2):
        assert guesses(drafts, text) == []  # what a step without guesses takes comes first
        with drafts.timed(1, 1):
            pass
    assert guesses(drafts, text) == [7, 8, 9, 5]
    assert guesses(drafts, greedy_text(drafts, [1, 2, 1, 2])) == [1, 2, 1, 2]
    assert guesses(drafts, text, 2) == [7, 8]
    text.tokens.append(1)
    assert guesses(drafts, text) == []
    assert guesses(drafts, greedy_text(drafts, [1, 2, 3])) == []


def test_copies_are_judged_by_what_came_whether_they_were_asked_or_not() -> None:
    drafts = Drafts(8)
    drafts._seconds = {1: {1: 1.0, 9: 1.4}}
    repeating = greedy_text(drafts, [1, 2] * 20)
    assert len(guesses(drafts, repeating)) == 8
    drafts._seconds[1][9] = 20.0
    assert len(guesses(drafts, repeating)) < 2
    drafts._seconds[1][9] = 1.4
    # After 1, 2 comes another token each time.
    other = greedy_text(drafts, [token for n in range(40) for token in (1, 2, 10 + n)][:-1])
    assert guesses(drafts, other) == []
    other.tokens += [1, 2] * 20
    assert len(guesses(drafts, other)) == 8


class Scripted:
    """A smaller model whose guesses are all 9, and which takes `cost` for each."""

    def __init__(self, cost: float) -> None:
        self.cost = cost

    def able(self, slot: int, text: Drafting, most: int) -> bool:
        return True

    def seconds(self, texts: int) -> float:
        return self.cost * bool(texts)

    def propose(self, first: int, texts: list[Drafting | None], count: int) -> list[Drafted]:
        return [Drafted([] if text is None else [9] * count, []) for text in texts]


def test_a_model_guesses_where_copies_are_wrong_and_its_time_pays() -> None:
    drafts = Drafts(2)
    drafts._model = Scripted(0.1)  # type: ignore[assignment]
    drafts._seconds = {1: {1: 1.0, 3: 1.2}, 2: {1: 1.0, 3: 1.2}}
    varied, repeating = ([*range(20)], [1, 2] * 20)
    assert guesses(drafts, greedy_text(drafts, varied)) == [9, 9]
    assert guesses(drafts, greedy_text(drafts, repeating)) == [1, 2]
    texts = [greedy_text(drafts, tokens) for tokens in (varied, repeating)]
    found = drafts.propose(0, texts, [10, 10], 100)
    assert [drafted.tokens for drafted in found] == [[9, 9], [1, 2]]
    drafts._model.cost = 0.6  # (2.2 + 3) / 2.4, and copies alone make (1 + 3) / 1.2
    found = drafts.propose(0, texts, [10, 10], 100)
    assert [drafted.tokens for drafted in found] == [[], [1, 2]]


def test_a_model_that_guesses_wrong_is_soon_given_up() -> None:
    drafts = Drafts(8)
    drafts._model = Scripted(0.1)  # type: ignore[assignment]
    drafts._seconds = {1: {1: 1.0, 9: 7.4}}
    text = greedy_text(drafts, [*range(20)])
    for _ in range(100):
        (drafted,) = drafts.propose(0, [text], [10], 100)
        drafts.judge(text, drafted, 0)
    assert text.drafted < 30
    drafts._seconds[1][9] = 1.4
    for _ in range(60):
        (drafted,) = drafts.propose(0, [text], [10], 100)
        drafts.judge(text, drafted, len(drafted.tokens))
    assert len(guesses(drafts, text)) == 8


def test_texts_beside_each_other_share_the_rows_that_pay() -> None:
    drafts = Drafts(8)
    texts = [greedy_text(drafts, tokens) for tokens in ([1, 2] * 20, [3, 4] * 20, [5, 6, 7])]

    def counts(number: int) -> list[int]:
        found = drafts.propose(0, [*texts[:number], None], [10] * (number + 1), 100)
        return [len(drafted.tokens) for drafted in found]

    drafts._seconds = {2: {1: 1.0, 4: 1.2}, 3: {1: 1.0, 2: 1.1}, 4: {1: 1.0, 2: 1.1}}
    assert counts(1) == [3, 0]  # of 8 rows
    assert counts(2) == [1, 1, 0]
    assert counts(3) == [1, 1, 0, 0]  # the third repeats nothing
    texts[0].copied, texts[1].copied = 0.7, 0.01
    drafts._seconds[3][2] = 1.11  # (1.7 + 1.01 + 1) / 3 = 1.24
    assert counts(2) == [1, 1, 0]  # for the first alone, and the second's row is there anyway
    drafts._seconds[3][2] = 1.15  # not 1.1 times as fast
    assert counts(2) == [0, 0, 0]


def test_drafted_text_is_the_models_own(folder: ModelFolder) -> None:
    """The model drafts for itself: each guess is right; and from repetitions, some."""
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


# What a text is: its tokens, and the logarithm of the probability that each had.
Told = list[tuple[int, float]]


def texts_of(loop: Loop, turns: list[Turn]) -> tuple[list[Told], list[Text]]:
    """Texts that are begun one step after the other."""
    texts: list[Text] = []
    told: dict[Text, Told] = {}
    waiting = list(turns)
    while waiting or loop.waiting or loop.texts:
        if waiting:
            texts.append(loop.add(waiting.pop(0)))
            told[texts[-1]] = []
        for text, event in loop.step():
            assert not isinstance(event, AieError)
            if isinstance(event, Piece):
                told[text] += [(one.token, one.logprob) for one in event.logprobs]
    return [told[text] for text in texts], texts


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    return find_model(make_model(tmp_path_factory.mktemp("drafts")))


@pytest.fixture
def as_many_as_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guesses that do not depend on time, all by the model if there is one."""
    copying = Drafts._by_copying
    monkeypatch.setattr(Drafts, "_best", lambda _, g: (max(g)[0], max(g)[0]))
    monkeypatch.setattr(
        Drafts,
        "_by_copying",
        lambda self, *how: copying(self, *how) if self._model is None else _Guessing(0, 0.0),
    )


TURNS = [
    Turn([*range(100, 400)], max_tokens=45, logprobs=0, ignore_end=True),
    Turn("import os", max_tokens=14, logprobs=0, ignore_end=True),
    Turn("def main(argv):", max_tokens=60, logprobs=0, ignore_end=True),
    Turn("class", max_tokens=30, logprobs=0, ignore_end=True),
]
SEEDED = Turn(
    "import", max_tokens=25, logprobs=0, ignore_end=True, sampling={"temperature": 1.0, "seed": 5}
)


@pytest.mark.usefixtures("as_many_as_may")
@pytest.mark.parametrize("by_model", [True, False])
@pytest.mark.parametrize("slots", [1, 2, 3])
def test_texts_with_guesses_have_the_bits_of_their_own_runs_alone(
    folder: ModelFolder, by_model: bool, slots: int
) -> None:
    """Texts come and end, also while others' guesses are verified; one has no guesses."""
    options = Options(threads=1)
    turns = [*TURNS, SEEDED]
    plain = open_loop(folder, options, 1, 600)
    expected = [texts_of(plain, [turn])[0][0] for turn in turns]
    drafter = folder if by_model else None
    found, texts = texts_of(open_loop(folder, options, slots, 600, draft=3, drafter=drafter), turns)
    assert found == expected
    assert texts[-1].drafting is None
    for text in texts[:-1]:
        assert text.drafting is not None
        if by_model:  # the model agrees with itself, but at the end
            assert 0 < text.drafting.drafted <= text.drafting.taken + 3
    if not by_model:
        assert sum(text.drafting.drafted for text in texts if text.drafting is not None) > 0


@pytest.mark.usefixtures("as_many_as_may")
@pytest.mark.parametrize("by_model", [True, False])
def test_with_onnx_runtimes_attention_a_text_has_guesses_while_it_is_alone(by_model: bool) -> None:
    folder = find_model(DEMO)
    loop = open_loop(
        folder, Options(threads=1), 2, 600, draft=3, drafter=folder if by_model else None
    )
    longer, shorter = TURNS[2], TURNS[1]
    _, (text, other) = texts_of(loop, [longer, shorter])
    assert text.drafting is not None
    assert other.drafting is not None
    assert text.drafting.drafted > 0
    assert (text.written, other.written) == (60, 14)


@pytest.mark.usefixtures("as_many_as_may")
def test_sampled_texts_beside_each_other_take_what_the_same_model_draws(
    folder: ModelFolder,
) -> None:
    """The distributions are equal, so that no guess is refused."""
    turns = [Turn(turn.prompt, max_tokens=30, sampling={"temperature": 0.8}, ignore_end=True)
             for turn in TURNS[1:]]  # fmt: skip
    loop = open_loop(folder, Options(threads=1), 3, 600, draft=1, drafter=folder)
    _, texts = texts_of(loop, turns)
    for text in texts:
        assert text.drafting is not None
        assert 0 < text.drafting.drafted <= text.drafting.taken + 1


@pytest.mark.usefixtures("as_many_as_may")
@pytest.mark.parametrize("fault", ["one text's logits", "every call"])
def test_a_drafting_model_that_fails_ends_guesses_alone(
    folder: ModelFolder, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    options = Options(threads=1)
    turns = TURNS[1:3]
    plain = open_loop(folder, options, 1, 600)
    expected = [texts_of(plain, [turn])[0][0] for turn in turns]
    loop = open_loop(folder, options, 2, 600, draft=3, drafter=folder)
    assert loop.drafts is not None
    assert loop.drafts._model is not None
    slots = loop.drafts._model._slots

    class Failing:
        def __getattr__(self, name: str) -> object:
            return getattr(slots, name)

        def run(
            self, tokens: np.ndarray, before: np.ndarray, first: int, wanted: int = 0
        ) -> np.ndarray:
            if fault == "every call":
                raise AieError("out of memory")
            logits = slots.run(tokens, before, first, wanted).copy()
            if len(logits) == 2:
                logits[0] = np.nan
            return logits

    loop.drafts._model._slots = Failing()
    found, texts = texts_of(loop, turns)
    assert found == expected
    ended = [text.drafting.ended for text in texts if text.drafting is not None]
    assert ended == ([True, False] if fault == "one text's logits" else [True, True])
    (record,) = caplog.records
    assert "drafting model" in record.message
    assert ("numbers" if fault == "one text's logits" else "out of memory") in record.message


@pytest.mark.usefixtures("as_many_as_may")
def test_a_drafting_model_guesses_as_far_as_its_own_context_goes(
    folder: ModelFolder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    smaller = tmp_path / "smaller"
    shutil.copytree(folder.path, smaller)
    config = json.loads((smaller / "genai_config.json").read_text())
    config["model"]["context_length"] = 40
    (smaller / "genai_config.json").write_text(json.dumps(config))
    options, turn = Options(threads=1), TURNS[2]
    expected = texts_of(open_loop(folder, options, 1, 600), [turn])[0]
    loop = open_loop(folder, options, 1, 600, draft=3, drafter=find_model(smaller))
    assert loop.drafts is not None
    assert loop.drafts._model is not None
    assert loop.drafts._model._slots.context == 40
    found, (text,) = texts_of(loop, [turn])
    assert found == expected
    assert text.drafting is not None
    assert 0 < text.drafting.drafted <= 40 < text.prompt + text.written
    assert not text.drafting.ended
    assert not caplog.records


def test_models_that_cannot_verify_say_why(tmp_path: Path) -> None:
    import ort_aie_ep

    folder = make_model(tmp_path)
    ort_aie_ep.compile(folder.parent / "source", tmp_path / "last", last_logits=True)
    with pytest.raises(AieError, match="--last-logits"):
        run_in_session(find_model(tmp_path / "last"), Options(threads=1), "a", 2, print, None, 4)
