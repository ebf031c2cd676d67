"""Tokens of a model folder: its tokenizer, and streamed text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ort_aie_ep.errors import AieError
from ort_aie_ep.models.folder import ModelFolder
from ort_aie_ep.running.generate import Tokens

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# What byte-level tokenizers decode an incomplete UTF-8 sequence to.
_REPLACEMENT = "\ufffd"


def has_tokenizer(folder: ModelFolder) -> bool:
    """Whether the folder brings a tokenizer.json."""
    return _file(folder).is_file()


def load_tokenizer(folder: ModelFolder) -> Tokenizer:
    """The folder's tokenizer.

    Raises:
        AieError: it has none, or one that cannot be read.
    """
    from tokenizers import Tokenizer

    path = _file(folder)
    if not path.is_file():
        raise AieError(
            f"{folder.path} has no tokenizer.json, so text cannot become tokens: "
            "put the one of the model's source there"
        )
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exceptions
        raise AieError(f"{path} cannot be read as a tokenizer: {error}") from error


def _file(folder: ModelFolder) -> Path:
    return folder.path / "tokenizer.json"


def encode(tokenizer: Tokenizer, text: str) -> Tokens:
    """Token ids of a prompt, with the special tokens that the tokenizer puts around it.

    Raises:
        AieError: there are none.
    """
    ids = tokenizer.encode(text).ids
    if not ids:
        raise AieError("the prompt is empty")
    return np.array(ids, np.int64)


class TextStream:
    """Text of tokens as they come.

    A token may end inside a UTF-8 sequence, and decoders treat a first token specially, so a piece
    of text is what a token adds to the decoded text of its predecessors, held back while that ends
    in an incomplete character.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Tokens) -> None:
        self._tokenizer = tokenizer
        self._ids = [int(token) for token in prompt]
        self._from = 0
        self._done = len(self._ids)

    def push(self, token: int) -> str:
        """The text that is complete with this token; often empty in scripts outside ASCII."""
        self._ids.append(token)
        text = self._pending()
        if not text or text.endswith(_REPLACEMENT):
            return ""
        self._from, self._done = self._done, len(self._ids)
        return text

    def finish(self) -> str:
        """What is left, incomplete characters replaced."""
        return self._pending()

    def _pending(self) -> str:
        before = self._tokenizer.decode(self._ids[self._from : self._done])
        return str(self._tokenizer.decode(self._ids[self._from :])[len(before) :])


def prefix_tokens(tokenizer: Tokenizer) -> Tokens:
    """What the tokenizer puts before every text, such as a begin-of-text token; may be empty."""
    return np.array(tokenizer.encode("").ids, np.int64)
