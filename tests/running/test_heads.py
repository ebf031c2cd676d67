"""Guesses that models with states verify, and those of a model's own head (multi-token prediction,
as onnxruntime-genai's builder writes it for Qwen3.5)."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from model_folders import DATA, SINCE
from op_models import ORT_VERSION

import ort_aie_ep
from ort_aie_ep.errors import AieError
from ort_aie_ep.models.folder import ModelFolder, find_model
from ort_aie_ep.running.drafts import Drafted, Drafting, Drafts, _Guessing, _Head
from ort_aie_ep.running.loop import Loop, open_loop
from ort_aie_ep.running.turns import Piece, Turn
from ort_aie_ep.runtime.sessions import Options

pytestmark = pytest.mark.skipif(
    SINCE["qwen3_5"] > ORT_VERSION, reason="ONNX Runtime lacks operators of the models"
)
RANDOM = np.random.default_rng(7)
TURNS = [
    Turn([*map(int, RANDOM.integers(3, 470, count))], max_tokens=40, logprobs=0, ignore_end=True)
    for count in (90, 7, 30)
]


# The tokens of a text with its prompt, and the logarithms of the probabilities of those written.
Told = tuple[list[int], list[float]]


def texts_of(loop: Loop, turns: Sequence[Turn]) -> tuple[list[Told], list[Drafting | None]]:
    """Texts that are begun together, and how their guesses were."""
    texts = [loop.add(turn) for turn in turns]
    told: dict[int, Told] = {id(text): (text.tokens, []) for text in texts}
    while loop.waiting or loop.texts:
        for text, event in loop.step():
            assert not isinstance(event, AieError)
            if isinstance(event, Piece):
                told[id(text)][1].extend(one.logprob for one in event.logprobs)
    return [*told.values()], [text.drafting for text in texts]


def compiled(source: Path, folder: Path) -> ModelFolder:
    ort_aie_ep.compile(source, folder)
    return find_model(folder)


@pytest.mark.parametrize("name", ["lfm2", "qwen3_5"])
def test_a_model_with_states_takes_back_what_was_wrong(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three guesses, all are right, or one is wrong, the first or a later one."""
    folder = compiled(DATA / name, tmp_path / "compiled")
    expected, _ = texts_of(open_loop(folder, Options(threads=1), 1, 200), TURNS)

    def propose(
        _: Drafts, first: int, texts: Sequence[Drafting], rooms: Sequence[int], room: int
    ) -> list[Drafted]:
        (text,), (most,) = texts, rooms
        at = len(text.tokens)
        known = next(tokens for tokens, _ in expected if tokens[:at] == text.tokens)
        guesses = known[at : at + min(3, most, room)]
        if at % 5 < len(guesses):
            guesses[at % 5] = (guesses[at % 5] + 1) % 400
        return [Drafted(guesses)]

    monkeypatch.setattr(Drafts, "propose", propose)
    for slots in (1, 2):
        found, drafting = texts_of(
            open_loop(folder, Options(threads=1), slots, 200, draft=3), TURNS
        )
        assert found == expected
        for text in drafting:
            assert text is not None
            assert 10 < text.taken < text.drafted - 5


@pytest.fixture
def by_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many guesses as may be, all by the head."""
    monkeypatch.setattr(Drafts, "_best", lambda _, g: (max(g)[0], max(g)[0]))
    monkeypatch.setattr(Drafts, "_by_copying", lambda *_: _Guessing(0, 0.0))


@pytest.mark.usefixtures("by_head")
@pytest.mark.parametrize("door", ["compiled", "source"])
def test_a_text_with_guesses_of_the_models_head_is_the_same(door: str, tmp_path: Path) -> None:
    """The head's weights are random, so that its guesses are wrong."""
    source = DATA / "heads" / "qwen3_5"
    folder = find_model(source) if door == "source" else compiled(source, tmp_path / "compiled")
    expected, _ = texts_of(open_loop(folder, Options(threads=1), 1, 200), TURNS)
    for slots in (1, 2):
        loop = open_loop(folder, Options(threads=1), slots, 200, draft=3)
        assert loop.drafts is not None
        assert isinstance(loop.drafts._model, _Head)
        found, drafting = texts_of(loop, TURNS)
        assert [tokens for tokens, _ in found] == [tokens for tokens, _ in expected]
        # ONNX Runtime's own attention rounds several rows elsewhere than one.
        assert found == expected or door == "source"
        for text in drafting:
            assert text is not None
            assert text.drafted > 60


def test_a_head_that_is_switched_off_does_not_guess(tmp_path: Path) -> None:
    shutil.copytree(DATA / "heads" / "qwen3_5", tmp_path / "model")
    config = tmp_path / "model" / "genai_config.json"
    config.write_text(config.read_text().replace('"enabled": true', '"enabled": false'))
    loop = open_loop(find_model(tmp_path / "model"), Options(threads=1), 1, 200, draft=3)
    assert loop.drafts is not None
    assert loop.drafts._model is None
