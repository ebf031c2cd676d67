"""What the routes give: texts in OpenAI's form, whole or in chunks."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ort_aie_ep.running.answers import CallDelta, Delta
from ort_aie_ep.running.turns import Accepted, Logprob, Piece, Usage


@dataclass
class _Choice:
    """What a choice has so far."""

    content: str = ""
    reasoning: str = ""
    calls: list[CallDelta] = field(default_factory=list)
    logprobs: list[Logprob] = field(default_factory=list)
    usage: Usage | None = None
    prompt_tokens: int = 0
    written: int = 0

    def add(self, piece: Piece) -> None:
        self.written = piece.completion_tokens
        self.content += piece.delta.content
        self.reasoning += piece.delta.reasoning
        self.logprobs += piece.logprobs
        for call in piece.delta.calls:
            if call.index == len(self.calls):
                self.calls.append(call)
            else:
                before = self.calls[call.index]
                self.calls[call.index] = CallDelta(
                    call.index, before.id, before.name, before.arguments + call.arguments
                )


class Answer:
    """The answer to a request, of one choice or several.

    Attributes:
        whole: whether each choice has come to its end.
    """

    def __init__(self, model: str, chat: bool, choices: int, counted: bool = False) -> None:
        """With `counted`, each chunk has the number of tokens so far."""
        kind = "chatcmpl" if chat else "cmpl"
        self._chat, self._choices = chat, [_Choice() for _ in range(choices)]
        self._counted = counted
        self._about = {
            "id": f"{kind}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": model,
        }

    @property
    def whole(self) -> bool:  # noqa: D102
        return all(choice.usage is not None for choice in self._choices)

    def add(self, number: int, event: Accepted | Piece | Usage) -> None:
        """Takes what came of choice `number`."""
        choice = self._choices[number]
        if isinstance(event, Usage):
            choice.usage, choice.written = event, event.completion_tokens
        elif isinstance(event, Accepted):
            choice.prompt_tokens = event.prompt_tokens
        else:
            choice.add(event)

    def body(self) -> dict[str, Any]:
        """The whole answer."""
        choices = []
        for index, choice in enumerate(self._choices):
            assert choice.usage is not None
            if self._chat:
                said: dict[str, Any] = {"message": _message(choice)}
            else:
                said = {"text": choice.content}
            reason = choice.usage.finish_reason
            choices.append(self._one(index, said, choice.logprobs, reason))
        kind = "chat.completion" if self._chat else "text_completion"
        return {**self._about, "object": kind, "choices": choices, "usage": self._usage()}

    def opening(self) -> list[dict[str, Any]]:
        """The chunks before the first piece: of a chat, who speaks."""
        if not self._chat:
            return []
        said = {"delta": {"role": "assistant", "content": ""}}
        return [self._chunk(i, said, (), None) for i in range(len(self._choices))]

    def chunk(self, number: int, event: Piece | Usage) -> dict[str, Any]:
        """One chunk of a stream, with what came of choice `number`."""
        self.add(number, event)
        if isinstance(event, Usage):
            said: dict[str, Any] = {"delta": {}} if self._chat else {"text": ""}
            return self._chunk(number, said, (), event.finish_reason)
        delta = _delta(event.delta) if self._chat else None
        said = {"text": event.delta.content} if delta is None else {"delta": delta}
        return self._chunk(number, said, event.logprobs, None)

    def counts(self) -> dict[str, Any]:
        """The last chunk, if the client asks for the number of tokens."""
        return {**self._chunk(0, {}, (), None), "choices": [], "usage": self._usage()}

    def _chunk(
        self, index: int, said: dict[str, Any], logprobs: Sequence[Logprob], reason: str | None
    ) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        choice = self._one(index, said, logprobs, reason)
        counts = {"usage": self._so_far()} if self._counted else {}
        return {**self._about, "object": kind, "choices": [choice], **counts}

    def _one(
        self, index: int, said: dict[str, Any], logprobs: Sequence[Logprob], reason: str | None
    ) -> dict[str, Any]:
        told = None
        if logprobs:
            if self._chat:
                told = _of_chat(logprobs)
            else:
                before = len(self._choices[index].content) - sum(len(t.text) for t in logprobs)
                told = _of_text(logprobs, before)
        return {"index": index, **said, "finish_reason": reason, "logprobs": told}

    def _so_far(self) -> dict[str, Any]:
        prompt = self._choices[0].prompt_tokens
        written = sum(choice.written for choice in self._choices)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": written,
            "total_tokens": prompt + written,
        }

    def _usage(self) -> dict[str, Any]:
        first = self._choices[0].usage
        cached = first.cached_tokens if first else 0
        return {**self._so_far(), "prompt_tokens_details": {"cached_tokens": cached}}


def _message(choice: _Choice) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": choice.content or None}
    if choice.reasoning:
        message["reasoning_content"] = choice.reasoning
    if choice.calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in choice.calls
        ]
    else:
        message["content"] = choice.content
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
