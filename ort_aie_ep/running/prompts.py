"""Prompts of a model folder as tokens, for onnxruntime-genai: texts, and messages of a chat.

genai's own tokenizer leaves out the tokens that a model wants around a text, or adds others, so
tokens come from tokenizer.json by Hugging Face's library. Chat templates are applied by genai.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from ort_aie_ep.errors import AieError
from ort_aie_ep.models.folder import ModelFolder, section
from ort_aie_ep.models.tokenizer import load_tokenizer
from ort_aie_ep.running.bounded import TooMuchError, bounded
from ort_aie_ep.running.genai import module
from ort_aie_ep.running.text import TextStream


class Prompts:
    """The tokenizer and chat template of a folder.

    Attributes:
        chat: whether there is a chat template.
        ends: tokens that end a text.
        pad: the token that fills shorter prompts of a batch.
        vocabulary: number of tokens.
    """

    def __init__(self, folder: ModelFolder, model: Any) -> None:
        """Reads tokenizer.json; `model` is the folder's `onnxruntime_genai.Model`.

        Raises:
            AieError: there is no tokenizer.json, or several chat templates.
            RuntimeError: genai refuses the tokenizer.
        """
        _require_one_template(folder)
        self._tokenizer = load_tokenizer(folder)
        self._genai = module().Tokenizer(model)
        self.ends = frozenset(map(int, self._genai.eos_token_ids))
        self.pad = int(self._genai.pad_token_id)
        self.vocabulary = section(folder, "model").get("vocab_size", 2**31)
        self.chat = self._has_template()

    def of_text(self, text: object) -> list[int]:
        """Tokens of a text, with those that the model wants around it.

        Raises:
            AieError: there are none, or `checked_text` refuses the text.
        """
        return self._encoded(checked_text(text), special=True)

    def of_messages(self, messages: object) -> list[int]:
        """Tokens of messages ({"role", "content"}), to be continued by the model's answer.

        Raises:
            AieError: there is no chat template, it or `checked_messages` refuses the messages, or
                it takes too much time or memory.
        """
        given = checked_messages(messages)
        if not self.chat:
            raise AieError("the model has no chat template: it only continues a text")
        try:
            text = self._rendered(given)
        except RuntimeError as error:
            raise AieError(f"the chat template refuses the messages: {error}") from error
        # The template itself has what belongs around the text.
        return self._encoded(text, special=False)

    def _encoded(self, text: str, special: bool) -> list[int]:
        try:
            ids = self._tokenizer.encode(text, add_special_tokens=special).ids
        except Exception as error:  # the library raises bare Exceptions
            raise AieError(f"the tokenizer refuses the text: {error}") from error
        return self.checked(ids)

    def checked(self, tokens: Sequence[int]) -> list[int]:
        """Tokens as a prompt.

        Raises:
            AieError: there are none, or some are not in the vocabulary.
        """
        if not tokens:
            raise AieError("the prompt is empty")
        for token in tokens:
            if not 0 <= token < self.vocabulary:
                raise AieError(f"token {token} is not in the vocabulary of {self.vocabulary}")
        return list(tokens)

    def stream(self, tokens: Sequence[int]) -> TextStream:
        """What turns the tokens after `tokens` into text."""
        return TextStream(self._tokenizer, tokens[-1:])

    def _has_template(self) -> bool:
        try:
            self._rendered('[{"role": "user", "content": "x"}]')
        except TooMuchError:
            return True  # each chat is told
        except RuntimeError as error:
            return "Empty chat template" not in str(error)
        return True

    def _rendered(self, messages: str) -> str:
        return bounded(lambda: str(self._genai.apply_chat_template(messages)), "the chat template")


def _require_one_template(folder: ModelFolder) -> None:
    file = folder.path / "tokenizer_config.json"
    if not file.is_file():
        return
    try:
        content = json.loads(file.read_text("utf-8"))
    except ValueError as error:
        raise AieError(f"{file} is not JSON: {error}") from error
    templates = content.get("chat_template") if isinstance(content, dict) else None
    if isinstance(templates, list):
        names = (str(item.get("name")) for item in templates if isinstance(item, dict))
        raise AieError(
            f"{file}: chat_template is a list ({', '.join(names)}), of which onnxruntime-genai "
            'takes none: put the text of the one that is named "default" in its place'
        )


def checked_text(text: object) -> str:
    """A text that can become tokens.

    Raises:
        AieError: it is no string, or has half of a surrogate pair.
    """
    if not isinstance(text, str):
        raise AieError(f"a prompt must be a string, got {text!r:.80}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise AieError(f"the text is not Unicode: {error.reason}") from error
    return text


def checked_messages(messages: object) -> str:
    """Messages as JSON, without the None that Parquet gives a message for keys of others.

    Raises:
        AieError: they are no list of objects with a role, cannot be written as JSON, or genai would
            not read the whole of them.
    """
    if not isinstance(messages, Sequence) or not all(isinstance(m, dict) for m in messages):
        raise AieError(f"messages must be a list of objects, got {messages!r:.80}")
    kept = [{key: value for key, value in m.items() if value is not None} for m in messages]
    if not kept:
        raise AieError("messages must be a list of objects, got an empty one")
    for message in kept:
        if not isinstance(message.get("role"), str):
            raise AieError(f"a message must have a role, got {message!r:.80}")
    try:
        text = checked_text(json.dumps(kept, ensure_ascii=False))
    except (RecursionError, TypeError, ValueError) as error:
        raise AieError(f"messages cannot be written as JSON: {error}") from error
    if re.search(r"(?<!\\)(\\\\)*\\u0000", text):
        raise AieError("a message has a zero byte, at which onnxruntime-genai would cut it")
    return text
