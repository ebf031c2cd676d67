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

    def __init__(self, tokenizer: Tokenizer, prompt: Iterable[int]) -> None:
        self._tokenizer = tokenizer
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
        before = self._tokenizer.decode(self._ids[self._from : self._done])
        return str(self._tokenizer.decode(self._ids[self._from :])[len(before) :])
