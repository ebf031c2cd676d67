"""Prompts of a model folder as tokens, for onnxruntime-genai: texts, and messages of a chat.

genai's own tokenizer leaves out the tokens that a model wants around a text, or adds others, so
tokens come from tokenizer.json by Hugging Face's library.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ort_aie_ep.errors import AieError, FieldError
from ort_aie_ep.models.folder import ModelFolder, section
from ort_aie_ep.models.tokenizer import load_tokenizer
from ort_aie_ep.running.answers import Tool, find_format
from ort_aie_ep.running.answers.messages import offered, prepared
from ort_aie_ep.running.bounded import TooMuchError
from ort_aie_ep.running.generate import stop_tokens
from ort_aie_ep.running.logprobs import TokenBytes
from ort_aie_ep.running.templates import find_template
from ort_aie_ep.running.text import TextStream

# Bytes of the options of a chat template, and those that are not a request's to set.
MAX_OPTIONS = 4096
_OURS = {"add_generation_prompt", "documents", "messages", "tools"}
# Ends a message that an answer continues: no text has this character of Unicode's private use area.
_CUT = "\U0010fce7"
# Tokens of a prompt's end, for what reads the answer: more than any template opens a thought with.
_TAIL = 16


class Prompts:
    """The tokenizer and chat template of a folder.

    Attributes:
        folder: the model's.
        format: how the model's answers show thoughts and calls of tools.
        ends: tokens that end a text.
        vocabulary: number of tokens.
        bytes_of: the bytes of a token.
    """

    def __init__(self, folder: ModelFolder) -> None:
        """Reads the files of the tokenizer and genai_config.json.

        Raises:
            AieError: there is no tokenizer.json, or a chat template cannot be read.
        """
        self.folder = folder
        self._tokenizer = load_tokenizer(folder)
        self._template = find_template(folder)
        model = section(folder, "model")
        self.format = find_format(self._template, self._tokenizer)
        self.ends = stop_tokens(folder) | self.format.ends
        self.vocabulary = model.get("vocab_size", 2**31)
        self.bytes_of = TokenBytes(self._tokenizer)

    @property
    def chat(self) -> bool:
        """Whether there is a chat template."""
        return self._template is not None

    def of_text(self, text: object) -> list[int]:
        """Tokens of a text, with those that the model wants around it.

        Raises:
            AieError: there are none, or `checked_text` refuses the text.
        """
        return self._encoded(checked_text(text), special=True)

    def of_messages(
        self,
        messages: object,
        tools: Sequence[Tool] = (),
        options: Mapping[str, Any] | None = None,
        continues: bool = False,
    ) -> list[int]:
        """Tokens of messages in OpenAI's form, to be continued by the model's answer, or, if it
        `continues` the last message, up to the end of that one's text.

        `tools` are offered to the model, and `options` are for the template, such as
        enable_thinking.

        Raises:
            AieError: there is no chat template, the model cannot call tools, the template,
                `checked_messages` or `checked_options` refuses what is given, or it takes too much
                time or memory.
        """
        given = checked_messages(messages)
        if self._template is None:
            raise AieError("the model has no chat template: it only continues a text")
        if tools and not self.format.tools:
            raise AieError(f"tools: {self.format.why_not} (docs/tools.md)")
        form = self.format.form
        ready = prepared(form, given, tools)
        if continues:
            if "tool_calls" in ready[-1]:
                raise FieldError(
                    f"messages.{len(ready) - 1}",
                    "the assistant has called a tool: a message of the role tool has its result",
                )
            ready[-1]["content"] += _CUT
        shown = [tool.shown for tool in tools]
        variables = checked_options(options)
        if form and shown:
            example = form.written([("name", {"argument": "value"})])
            ready, shown, more = offered(form.offered, ready, shown, example)
            variables |= more
        text = self._rendered(ready, shown, variables, continues)
        if continues:
            if _CUT not in text:
                raise FieldError(
                    f"messages.{len(ready) - 1}",
                    "the chat template does not show a last message of the assistant, which the "
                    "answer would continue: end with a message of the user",
                )
            text = text[: text.rindex(_CUT)]
        if any(tool.name not in text for tool in tools):
            raise AieError("tools: the model's chat template does not show them to the model")
        # The template itself has what belongs around the text.
        return self._encoded(checked_text(text), special=False)

    def _rendered(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]],
        options: Mapping[str, Any],
        continues: bool,
    ) -> str:
        """The messages by the template, or by turns if it refuses them so, or leaves out one of the
        system."""

        def render(messages: list[dict[str, Any]]) -> str:
            assert self._template is not None
            return self._template.render(messages, tools, options, not continues)

        if len(turns := _by_turns(messages)) == len(messages):
            return render(messages)
        try:
            text = render(messages)
        except TooMuchError:
            raise
        except AieError:
            return render(turns)
        later = [message for message in messages[1:] if message["role"] == "system"]
        return text if all(one["content"].strip() in text for one in later) else render(turns)

    def tail(self, tokens: Sequence[int]) -> str:
        """The text of a prompt's last tokens, for `AnswerFormat.reader`."""
        return str(self._tokenizer.decode(tokens[-_TAIL:], skip_special_tokens=False))

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

    def stream(self, tokens: Sequence[int], special: bool = False) -> TextStream:
        """What turns the tokens after `tokens` into text; `special` ones too."""
        return TextStream(self._tokenizer, tokens[-1:], special)


def _by_turns(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages of which those of the system are the first message, and no two of a user follow each
    other. A later one of the system is the user's, where it stands: what is before it remains the
    beginning that the prompt shares with an earlier one."""
    made: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] == "system" and made and made[-1]["role"] != "system":
            message = {**message, "role": "user"}
        if made and made[-1]["role"] == message["role"] in ("system", "user"):
            whole = f"{made[-1]['content']}\n\n{message['content']}"
            made[-1] = {**made[-1], "content": whole}
        else:
            made.append(message)
    return made


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


def checked_messages(messages: object) -> list[dict[str, Any]]:
    """Messages, without the None that Parquet gives a message for keys of others.

    Raises:
        AieError: they are no list of objects with a role, or cannot be written as JSON.
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
        checked_text(json.dumps(kept, ensure_ascii=False))
    except (RecursionError, TypeError, ValueError) as error:
        raise AieError(f"messages cannot be written as JSON: {error}") from error
    return kept


def checked_options(options: object) -> dict[str, Any]:
    """Options of a chat template.

    Raises:
        AieError: they are no object in JSON, set what is not theirs, or are too large.
    """
    if options is None:
        return {}
    if not isinstance(options, Mapping):
        raise AieError(f"chat_template_kwargs must be an object, got {options!r:.80}")
    if ours := _OURS & options.keys():
        raise AieError(f"chat_template_kwargs cannot set {min(ours)}")
    try:
        size = len(json.dumps(dict(options)))
    except (RecursionError, TypeError, ValueError) as error:
        raise AieError(f"chat_template_kwargs cannot be written as JSON: {error}") from error
    if size > MAX_OPTIONS:
        raise AieError(f"chat_template_kwargs has {size} bytes: {MAX_OPTIONS} are the most")
    return dict(options)
