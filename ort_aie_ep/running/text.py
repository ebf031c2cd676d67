"""Text to tokens, and tokens to text as they come."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from ort_aie_ep.errors import AieError
from ort_aie_ep.running.generate import Tokens

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# Byte-level tokenizers decode an incomplete UTF-8 sequence to this.
_REPLACEMENT = "\ufffd"


def encode(tokenizer: Tokenizer, text: str) -> Tokens:
    """Token ids of a prompt, with the special tokens that the tokenizer adds around it.

    Raises:
        AieError: the prompt has no tokens.
    """
    ids = tokenizer.encode(text).ids
    if not ids:
        raise AieError("the prompt is empty")
    return np.array(ids, np.int64)


class TextStream:
    """Turns tokens into text as they come.

    A token may end inside a UTF-8 sequence, and decoders treat a first token specially. So a piece
    of text is what a token adds to the decoded text of its predecessors, and it is held back while
    the text ends in an incomplete character.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Iterable[int], special: bool = False) -> None:
        """After the tokens of `prompt`; with `special` tokens as text, or without them."""
        self._tokenizer, self._skip = tokenizer, not special
        self._ids = [int(token) for token in prompt]
        self._from = 0
        self._done = len(self._ids)

    def push(self, token: int) -> str:
        """The text that this token completes; often empty in scripts outside ASCII."""
        self._ids.append(token)
        text = self._pending()
        if not text or text.endswith(_REPLACEMENT):
            return ""
        self._from, self._done = self._done, len(self._ids)
        return text

    def finish(self) -> str:
        """The remaining text, with incomplete characters replaced."""
        return self._pending()

    def _pending(self) -> str:
        before = self._decoded(self._ids[self._from : self._done])
        return self._decoded(self._ids[self._from :])[len(before) :]

    def _decoded(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=self._skip))


class Stops:
    """Holds back text that may be the beginning of a stop string.

    Attributes:
        found: the string that ended the text, or empty.
    """

    def __init__(self, strings: tuple[str, ...]) -> None:
        self._strings = strings
        self._held = self.found = ""

    def push(self, text: str, ahead: str = "") -> tuple[str, bool]:
        """The text that is safe to show, and whether a stop string ended it, which may be in the
        text `ahead` that is not to be shown yet."""
        text = self._held + text
        found = [(at, s) for s in self._strings if (at := (text + ahead).find(s)) >= 0]
        if found:
            self._held = ""
            at, self.found = min(found)
            return text[:at], True
        starts = (s[:n] for s in self._strings for n in range(min(len(s), len(text) + 1)))
        held = max((len(start) for start in starts if text.endswith(start)), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held], False

    def rest(self) -> str:
        """What is held back when the text is over."""
        return self._held
