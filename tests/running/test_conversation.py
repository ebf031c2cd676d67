"""Conversations: turns in one cache, answers that are stopped, thoughts, files of messages."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from servers import make_model

from ort_aie_ep.errors import AieError
from ort_aie_ep.models.folder import find_model
from ort_aie_ep.models.tokenizer import load_tokenizer
from ort_aie_ep.running.conversation import Conversation
from ort_aie_ep.running.loop import LEAST_READ, Loop, open_loop
from ort_aie_ep.running.turns import PromptTooLongError, Turn
from ort_aie_ep.running.writing import Writing
from ort_aie_ep.runtime.sessions import Options

# Long, so that a second turn reads less than the first.
SYSTEM = "\n".join(f"{n}: def main(argv): return {n * n}" for n in range(30))


def opened(model: Path, context: int | None = None) -> Loop:
    return open_loop(find_model(model), Options(threads=1), 1, context)


def answer(conversation: Conversation, text: str) -> str:
    return "".join(delta.content for delta in conversation.say(text))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("conversation"))


def test_a_later_turn_has_the_bits_of_its_messages_in_a_fresh_cache(model: Path) -> None:
    conversation = Conversation(opened(model), max_tokens=8)
    conversation.system(SYSTEM)
    answer(conversation, "import os")
    first = conversation.last
    answer(conversation, "import sys")
    second = conversation.last
    assert first is not None
    assert second is not None
    # What is kept was all read, not written, so it has the bits of any other reading.
    assert second.cached_tokens == second.prompt_tokens - LEAST_READ < first.prompt_tokens
    assert second.new_tokens == 8
    assert second.prefill_seconds > 0
    assert second.decode_speed is not None
    *asked, last = conversation.messages
    assert [m["role"] for m in asked] == ["system", "user", "assistant", "user"]
    whole = Writing(opened(model), Turn(messages=asked, max_tokens=8))
    assert "".join(delta.content for delta in whole) == last["content"]
    assert whole.timing.cached_tokens == 0


def test_drafts_are_counted_for_each_answer(model: Path) -> None:
    folder = find_model(model)
    loop = open_loop(folder, Options(threads=1), 1, draft=4, drafter=folder)
    conversation = Conversation(loop, max_tokens=20)
    for text in ("import os", "import sys"):
        answer(conversation, text)
        assert conversation.last is not None
        assert conversation.last.drafted is not None
        right, drafted = conversation.last.drafted
        assert 0 < right <= drafted < 4 * 20


def test_a_stopped_answer_stays_as_far_as_it_came(model: Path) -> None:
    conversation = Conversation(opened(model))
    pieces: list[str] = []
    for delta in conversation.say("def main(argv):"):
        pieces.append(delta.content)
        if len(pieces) == 3:
            conversation.stop()
    assert conversation.messages[-1] == {"role": "assistant", "content": "".join(pieces)}
    assert len(pieces) == 3
    for _ in conversation.say(SYSTEM):  # left by who reads it
        break
    assert len(conversation.messages) == 4
    kept = list(conversation.messages)
    said = list(conversation.say(SYSTEM, lambda *_: conversation.stop()))
    assert said == []  # nothing came yet
    assert conversation.messages == kept
    for delta in conversation.say("go on"):
        assert conversation.last is not None
        pieces.append(delta.content)
        if len(pieces) == 9:
            conversation.stop()
    assert conversation.last.cached_tokens > 0


def test_a_full_context_is_an_error_after_which_a_conversation_begins_anew(model: Path) -> None:
    conversation = Conversation(opened(model, 100))
    conversation.system("short")
    first = answer(conversation, "import os")
    assert conversation.full
    messages = list(conversation.messages)
    with pytest.raises(PromptTooLongError):
        answer(conversation, "import sys")
    assert conversation.messages == messages
    conversation.reset()
    assert conversation.messages == [{"role": "system", "content": "short"}]
    assert answer(conversation, "import os") == first
    conversation.system("")
    conversation.reset()
    assert conversation.messages == []


class Scripted:
    """Slots whose logits are for the tokens of a text, one after the other, and then an end."""

    def __init__(self, loop: Loop, text: str, end: int) -> None:
        self._slots, loop.slots = loop.slots, self
        self._tokens = iter([*load_tokenizer(loop.prompts.folder).encode(text).ids, end])

    def __getattr__(self, name: str) -> object:
        return getattr(self._slots, name)

    def run(self, *given: object) -> np.ndarray:
        logits = np.zeros_like(self._slots.run(*given))
        logits[:, -1, next(self._tokens)] = 1
        return logits


def test_a_thought_is_apart_from_the_answer(model: Path, tmp_path: Path) -> None:
    shutil.copytree(model, tmp_path / "thinks")
    template = (
        "{% for m in messages %}{{ m.content.split('</think>')[-1] }}\n{% endfor %}"
        "{% if add_generation_prompt %}<think>\n{% endif %}"
    )
    (tmp_path / "thinks" / "chat_template.jinja").write_text(template)
    loop = opened(tmp_path / "thinks")
    Scripted(loop, "a\n\nthought\n</think>\n\nan\n\nanswer", min(loop.prompts.ends))
    conversation = Conversation(loop)
    deltas = list(conversation.say("why?"))
    assert all(bool(delta.content) != bool(delta.reasoning) for delta in deltas)
    assert conversation.messages[1:] == [
        {"role": "assistant", "content": "an\n\nanswer", "reasoning_content": "a\n\nthought"}
    ]
    assert "".join(delta.reasoning for delta in deltas) == "a\n\nthought"


def test_messages_are_saved_and_loaded(model: Path, tmp_path: Path) -> None:
    loop = opened(model)
    one, other = Conversation(loop, max_tokens=5), Conversation(loop, max_tokens=5)
    answer(one, "où?")
    one.save(tmp_path / "one.json")
    other.load(tmp_path / "one.json")
    assert other.messages == one.messages
    assert answer(other, "import os") == answer(one, "import os")
    (tmp_path / "list.json").write_text(json.dumps(one.messages))
    other.load(tmp_path / "list.json")
    assert other.messages == one.messages
    for content in ("[", '{"messages": [1]}', "{}", "[]", '[{"content": "x"}]'):
        (tmp_path / "bad.json").write_text(content)
        with pytest.raises(AieError, match=r"bad\.json"):
            other.load(tmp_path / "bad.json")
    assert other.messages == one.messages
