"""A model that writes what a test says: its loop, without a network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from families import make_folder
from tokenizers import Tokenizer

from ort_aie_ep.errors import AieError
from ort_aie_ep.running.answers import Delta
from ort_aie_ep.running.asked import Asking
from ort_aie_ep.running.loop import Loop
from ort_aie_ep.running.prompts import Prompts
from ort_aie_ep.running.turns import Logprob, Sampling, Turn, Usage


class ScriptedSlots:
    """Slots whose logits prefer the token that `script` has for the position."""

    together, every_row, rewinds, undoes, hidden, note = True, True, True, True, None, ""

    def __init__(self, vocabulary: int, count: int = 1) -> None:
        self.vocabulary, self.count = vocabulary, count
        self.script: Mapping[int, int] = {}

    def run(
        self, tokens: np.ndarray, before: np.ndarray, first: int, wanted: int = 0
    ) -> np.ndarray:
        logits = np.zeros((*tokens.shape, self.vocabulary), np.float32)
        for row, start in enumerate(before):
            for column in range(tokens.shape[1]):
                logits[row, column, self.script.get(int(start) + column + 1, 0)] = 20
        return logits

    def keep(self, slot: int, length: int, held: int) -> int:
        return length

    def swap(self, one: int, other: int, held: int) -> None:
        pass


class Scripted:
    """A loop of one slot."""

    def __init__(self, folder: Path, tokenizer: Tokenizer, template: str, **options: Any) -> None:
        prompts = Prompts(make_folder(folder, tokenizer, template))
        self.slots = ScriptedSlots(512)
        self.loop = Loop(self.slots, Asking(prompts, 512), 4096, Sampling(), **options)
        self.prompts = prompts

    def write(self, turn: Turn, tokens: Sequence[int]) -> tuple[list[Delta], list[Logprob], Usage]:
        """What comes of `tokens` after a turn's prompt.

        Raises:
            AieError: as the loop says.
        """
        text = self.loop.add(turn)
        self.slots.script = {text.prompt + at: token for at, token in enumerate(tokens)}
        deltas: list[Delta] = []
        told: list[Logprob] = []
        while True:
            for _, event in self.loop.step():
                if isinstance(event, AieError):
                    raise event
                if isinstance(event, Usage):
                    return deltas, told, event
                deltas.append(event.delta)
                told += event.logprobs
