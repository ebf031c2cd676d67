"""A fault of one text ends that text, and nothing else."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from servers import make_model
from test_loop import PROMPT, opened

from ort_aie_ep.errors import AieError, FieldError, UnexpectedError
from ort_aie_ep.running import loop as loops
from ort_aie_ep.running.drafts import Drafts
from ort_aie_ep.running.loop import Event, Loop, Text
from ort_aie_ep.running.turns import Accepted, Piece, Turn, Usage
from ort_aie_ep.serving.engine import _advance

SCHEMA = '{"type": "array", "items": {"enum": ["left", "right"]}}'


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("faults"))


@pytest.fixture(scope="module")
def loop(model: Path) -> Loop:
    return opened(model, 3)


def fault(*_: object, **__: object) -> Any:
    raise RecursionError("maximum recursion depth exceeded")


def spoil(where: str) -> Callable[[Text], None]:
    """Makes a method of a text's own, such as reader.push, raise."""
    owner, method = where.split(".")
    return lambda text: setattr(getattr(text, owner), method, fault)


@pytest.mark.parametrize(
    ("where", "drafts"),
    [("choosing.adjusted", True), ("choosing.random", True), *((where, False) for where in (
        "choosing.adjusted", "choosing.random", "guide.mask", "guide.take", "stream.push",
        "stream.finish", "reader.push", "reader.finish", "stops.push", "stops.rest",
        "telling.written", "telling.shown", "telling.rest", "log_probabilities",
    ))],
)  # fmt: skip
def test_whatever_a_text_reaches_may_fail(
    loop: Loop, where: str, drafts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every function that sees its data: others beside it are written as if alone."""
    monkeypatch.setattr(loop, "drafts", Drafts(4) if drafts else None)
    good = Turn(PROMPT, max_tokens=24)
    alone = text_of(loop, [loop.add(good)])
    schema = SCHEMA if where.startswith("guide") else ""
    how = {"temperature": 1.0} if where == "choosing.random" else {}
    texts = [
        loop.add(good),
        loop.add(Turn(PROMPT, max_tokens=9, logprobs=1, schema=schema, sampling=how)),
        loop.add(good),
    ]
    if where == "log_probabilities":
        monkeypatch.setattr(loops, where, fault)
    elif where == "choosing.random":
        texts[1].choosing.random = None  # type: ignore[assignment]
    else:
        spoil(where)(texts[1])
    found = text_of(loop, texts)
    assert [found[texts[0]], found[texts[2]]] == [*alone.values()] * 2
    assert isinstance(found[texts[1]], UnexpectedError)
    assert "this is a fault of ort_aie_ep: " in str(found[texts[1]])
    assert text_of(loop, [loop.add(good)]).popitem()[1] == alone.popitem()[1]


def text_of(loop: Loop, texts: list[Text]) -> dict[Text, str | AieError]:
    found: dict[Text, str | AieError] = dict.fromkeys(texts, "")
    left = {*texts}
    while left:
        for text, event in loop.step():
            before = found[text]
            if isinstance(event, Piece):
                assert isinstance(before, str)
                found[text] = before + event.delta.content
            else:
                left.remove(text)
                found[text] = event if isinstance(event, AieError) else before
    return found


def test_guesses_that_fail_are_made_no_more(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    good = Turn(PROMPT, max_tokens=24)
    (alone,) = text_of(loop, [loop.add(good)]).values()
    drafts = Drafts(4)
    monkeypatch.setattr(loop, "drafts", drafts)
    monkeypatch.setattr(drafts, "propose", fault)
    assert [*text_of(loop, [loop.add(good)]).values()] == [alone]
    assert loop.drafts is None


def test_a_bias_is_for_tokens_that_there_are(loop: Loop) -> None:
    for token in (-1, 4096, 999_999, 2**32 + 5):
        with pytest.raises(FieldError, match=f"logit_bias: token {token} is not in the voc") as why:
            loop.add(Turn(PROMPT, sampling={"bias": {token: 1.0}}))
        assert why.value.field == "logit_bias"


def test_a_step_that_fails_ends_what_runs_and_the_process_goes_on(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the model's process runs it: whatever `add` and `step` raise."""
    server, model_process = multiprocessing.Pipe()
    thread = threading.Thread(target=_advance, args=(model_process, loop), daemon=True)
    thread.start()
    (alone,) = events_of(server, {1: Turn(PROMPT, max_tokens=9)})
    assert isinstance(alone[0], Accepted)
    with monkeypatch.context() as patch:
        patch.setattr(loop, "asking", fault)
        ((error,),) = events_of(server, {2: Turn(PROMPT)})
        assert isinstance(error, UnexpectedError)
    with monkeypatch.context() as patch:
        patch.setattr(loop, "_admit", fault)
        both = events_of(server, {3: Turn(PROMPT), 4: Turn("import")})
        assert all(isinstance(one[-1], UnexpectedError) for one in both)
    assert not loop.texts
    assert events_of(server, {5: Turn(PROMPT, max_tokens=9)}) == [alone]
    server.send((0, None))
    thread.join(20)
    assert not thread.is_alive()


def events_of(server: Connection, turns: dict[int, Turn]) -> list[list[Accepted | Event]]:
    found: dict[int, list[Accepted | Event]] = {number: [] for number in turns}
    for turn in turns.items():
        server.send(turn)
    left = {*turns}
    while left:
        for number, event in server.recv():
            found[number].append(event)
            left -= {number} if isinstance(event, Usage | AieError) else set()
    return [*found.values()]
