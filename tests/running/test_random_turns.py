"""Random requests in the forms of all families of models, whose answers are random too: what may be
wrong with a request is said, and nothing else happens."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from families import FAMILIES, make_folder, make_tokenizer
from pydantic import ValidationError
from random_requests import bodies, content
from scripted import ScriptedSlots

from ort_aie_ep.errors import AieError, UnexpectedError
from ort_aie_ep.running.asked import Asking
from ort_aie_ep.running.loop import Loop
from ort_aie_ep.running.prompts import Prompts
from ort_aie_ep.running.turns import Usage
from ort_aie_ep.serving.requests import Chat

COUNT, TOKENS = 40, 40


class Guessing(ScriptedSlots):
    """A model that says anything."""

    def __init__(self, seed: int) -> None:
        super().__init__(512, 2)
        self._random = np.random.default_rng(seed)

    def run(
        self, tokens: np.ndarray, before: np.ndarray, first: int, wanted: int = 0
    ) -> np.ndarray:
        logits = self._random.normal(0, 4, (*tokens.shape, self.vocabulary))
        return logits.astype(np.float32)


@pytest.mark.parametrize("name", FAMILIES)
def test_no_request_and_no_answer_is_a_fault(name: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    tokenizer = make_tokenizer(family.tokens, family.plain)
    prompts = Prompts(make_folder(tmp_path / "m", tokenizer, family.template))
    loop = Loop(Guessing(1), Asking(prompts, 512), 4096)
    chance, written, refused = random.Random(name), 0, 0
    for path, body in bodies(3, 3 * COUNT):
        if path != "/v1/chat/completions" or written + refused >= COUNT:
            continue
        asked = changed(body, chance)
        try:
            chat = Chat.model_validate_json(content(asked))
            turn = chat.turns(chat.turn(TOKENS))[0]
            text = loop.add(turn)
        except (AieError, ValidationError):
            refused += 1
            continue
        ended: Any = None
        while ended is None:
            for one, event in loop.step():
                assert one is text
                assert not isinstance(event, UnexpectedError), content(asked)
                ended = event if isinstance(event, Usage | AieError) else ended
        written += 1
    assert written > COUNT // 8


def changed(body: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    """A body that comes to tools and schemas more often."""
    if body.get("tools") and chance.random() < 0.6:
        return {**body, "tool_choice": "required"}
    return body
