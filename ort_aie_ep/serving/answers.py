"""What the routes give, whole or as a stream: what all interfaces share, and the answers of Chat
Completions and Completions."""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from ort_aie_ep.errors import AieError
from ort_aie_ep.running.answers import CallDelta, Delta
from ort_aie_ep.running.turns import Accepted, Logprob, Usage
from ort_aie_ep.serving.errors import error_of
from ort_aie_ep.serving.requests import StreamOptions
from ort_aie_ep.serving.written import Event, Step, Written


class Answer(ABC):
    """The answer to a request by one of the interfaces.

    Attributes:
        texts: what it has: one text, or several.
        ending: what ends a stream.
    """

    ending = ""

    def __init__(self, texts: int = 1) -> None:
        self.texts = [Written() for _ in range(texts)]

    @property
    def whole(self) -> bool:
        """Whether each text has come to its end."""
        return all(text.usage is not None for text in self.texts)

    def add(self, number: int, event: Event) -> list[Step]:
        """Takes what came of text `number`."""
        return self.texts[number].add(event)

    @abstractmethod
    def body(self) -> dict[str, Any]:
        """The whole answer."""

    @abstractmethod
    def take(self, number: int, event: Event) -> list[dict[str, Any]]:
        """What a stream has of what came of text `number`."""

    def waiting(self) -> dict[str, Any] | None:
        """What a stream has while nothing comes; None for a comment."""
        return None

    def closing(self) -> list[dict[str, Any]]:
        """What a stream has after all texts."""
        return []

    @abstractmethod
    def failed(self, error: AieError) -> dict[str, Any]:
        """What a stream has of an error."""


class CompletionAnswer(Answer):
    """The answer of Chat Completions, or of Completions."""

    ending = "data: [DONE]\n\n"

    def __init__(self, model: str, chat: bool, choices: int, options: StreamOptions) -> None:
        super().__init__(choices)
        kind = "chatcmpl" if chat else "cmpl"
        self._chat, self._options, self._opened = chat, options, False
        self._about = {
            "id": f"{kind}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": model,
        }

    def body(self) -> dict[str, Any]:
        """The whole answer."""
        choices = []
        for index, choice in enumerate(self.texts):
            assert choice.usage is not None
            if self._chat:
                said: dict[str, Any] = {"message": _message(choice)}
            else:
                said = {"text": choice.text("text")}
            reason = choice.usage.finish_reason
            choices.append(self._one(index, said, choice.logprobs, reason))
        kind = "chat.completion" if self._chat else "text_completion"
        return {**self._about, "object": kind, "choices": choices, "usage": self._usage()}

    def take(self, number: int, event: Event) -> list[dict[str, Any]]:
        """Before the first piece of a chat, who speaks; then a chunk for each."""
        self.add(number, event)
        if isinstance(event, Accepted):
            return []
        chunks = []
        if self._chat and not self._opened:
            first = {"delta": {"role": "assistant", "content": ""}}
            chunks = [self._chunk(i, first, (), None) for i in range(len(self.texts))]
        self._opened = True
        if isinstance(event, Usage):
            ended: dict[str, Any] = {"delta": {}} if self._chat else {"text": ""}
            return [*chunks, self._chunk(number, ended, (), event.finish_reason)]
        delta = event.delta
        said = {"delta": _delta(delta)} if self._chat else {"text": delta.content}
        return [*chunks, self._chunk(number, said, event.logprobs, None)]

    def waiting(self) -> dict[str, Any] | None:
        """What a stream has while nothing comes; None for a comment."""
        return None

    def closing(self) -> list[dict[str, Any]]:
        """The number of tokens, if the client asks for it."""
        if not self._options.include_usage:
            return []
        return [{**self._chunk(0, {}, (), None), "choices": [], "usage": self._usage()}]

    def failed(self, error: AieError) -> dict[str, Any]:
        """The error as the body that it would be."""
        return error_of("/v1/chat", error)[1]

    def _chunk(
        self, index: int, said: dict[str, Any], logprobs: Sequence[Logprob], reason: str | None
    ) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        choice = self._one(index, said, logprobs, reason)
        counts = {"usage": self._so_far()} if self._options.continuous_usage_stats else {}
        return {**self._about, "object": kind, "choices": [choice], **counts}

    def _one(
        self, index: int, said: dict[str, Any], logprobs: Sequence[Logprob], reason: str | None
    ) -> dict[str, Any]:
        told = None
        if logprobs:
            if self._chat:
                told = _of_chat(logprobs)
            else:
                before = len(self.texts[index].text("text")) - sum(len(t.text) for t in logprobs)
                told = _of_text(logprobs, before)
        return {"index": index, **said, "finish_reason": reason, "logprobs": told}

    def _so_far(self) -> dict[str, Any]:
        prompt = self.texts[0].prompt_tokens
        written = sum(text.tokens for text in self.texts)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": written,
            "total_tokens": prompt + written,
        }

    def _usage(self) -> dict[str, Any]:
        thoughts = sum(text.thought_tokens for text in self.texts)
        return {
            **self._so_far(),
            "prompt_tokens_details": {"cached_tokens": self.texts[0].cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": thoughts},
        }


def _message(text: Written) -> dict[str, Any]:
    content = text.text("text")
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if thought := text.text("thought"):
        message["reasoning_content"] = thought
    if text.calls:
        message["content"] = content or None
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.text},
            }
            for call in text.calls
        ]
    return message


def _delta(delta: Delta) -> dict[str, Any]:
    said: dict[str, Any] = {}
    if delta.content or not (delta.reasoning or delta.calls):
        said["content"] = delta.content
    if delta.reasoning:
        said["reasoning_content"] = delta.reasoning
    if delta.calls:
        said["tool_calls"] = [_call(call) for call in delta.calls]
    return said


def _call(call: CallDelta) -> dict[str, Any]:
    if call.id:  # the beginning of a call
        function = {"name": call.name, "arguments": call.arguments}
        return {"index": call.index, "id": call.id, "type": "function", "function": function}
    return {"index": call.index, "function": {"arguments": call.arguments}}


def _of_chat(logprobs: Sequence[Logprob]) -> dict[str, Any]:
    def one(token: Logprob) -> dict[str, Any]:
        text = token.bytes.decode("utf-8", "replace")
        return {"token": text, "logprob": token.logprob, "bytes": [*token.bytes]}

    content = [{**one(token), "top_logprobs": [one(t) for t in token.top]} for token in logprobs]
    return {"content": content, "refusal": None}


def _of_text(logprobs: Sequence[Logprob], before: int) -> dict[str, Any]:
    """With `before` characters of the text before the tokens'. They join to the text, so one that
    is a part of a character has none, and the one that ends it has it."""
    texts = [token.text for token in logprobs]
    return {
        "tokens": texts,
        "token_logprobs": [token.logprob for token in logprobs],
        "top_logprobs": [{_key(t.bytes): t.logprob for t in token.top} for token in logprobs],
        "text_offset": [before + sum(map(len, texts[:i])) for i in range(len(texts))],
    }


def _key(token: bytes) -> str:
    """A token as the name of a key: its text, or, of a part of a character, as OpenAI has it."""
    try:
        return token.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token)
