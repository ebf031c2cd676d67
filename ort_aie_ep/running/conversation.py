"""A conversation with a model: its messages, and answers as they come."""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ort_aie_ep.errors import AieError
from ort_aie_ep.models.files import write_json
from ort_aie_ep.progress import Progress
from ort_aie_ep.running.answers import Delta
from ort_aie_ep.running.loop import Loop
from ort_aie_ep.running.prompts import checked_messages
from ort_aie_ep.running.turns import Sampling, Turn
from ort_aie_ep.running.writing import Timing, Writing


class Conversation:
    """Messages of a model. Each turn goes on in the cache of the one before.

    Attributes:
        messages: in OpenAI's form; what was thought before an answer is its reasoning_content.
        last: what the last answer took; None before the first.
        said: whether the last text is one of the messages: it is not if its answer was stopped
            before it began.
        cut: whether the last answer ended at the most tokens of an answer.
    """

    def __init__(
        self,
        loop: Loop,
        sampling: Mapping[str, Any] = {},
        max_tokens: int | None = None,
        *,
        template: bool = True,
    ) -> None:
        """In a loop that writes nothing else. `sampling` has fields of `Sampling` in place of the
        model's own, and `max_tokens` of an answer are as many as the context has room for by
        default. Without the `template`, the model continues the texts of all messages, one after
        another."""
        self.messages: list[dict[str, Any]] = []
        self.last: Timing | None = None
        self.said = self.cut = False
        self._loop, self._turn = loop, Turn(sampling=sampling, max_tokens=max_tokens)
        self._template, self._stopping = template, False

    def choose(self, sampling: Mapping[str, Any], max_tokens: int | None) -> None:
        """How the next answers are written: see `__init__`."""
        self._turn = replace(self._turn, sampling=sampling, max_tokens=max_tokens)

    @property
    def context(self) -> int:
        """Tokens that the conversation has room for."""
        return self._loop.context

    @property
    def sampling(self) -> Sampling:
        """How the next answer's tokens are chosen."""
        return self._loop.sampling.with_fields(self._turn.sampling)

    @property
    def full(self) -> bool:
        """Whether the last answer ended because the context was full."""
        last = self.last
        return last is not None and last.prompt_tokens + last.new_tokens >= self.context

    def say(self, text: str, progress: Progress | None = None) -> Generator[Delta]:
        """Says `text`: pieces of the answer, of which each has a content or a thought.

        An answer that is stopped, or whose pieces are not all taken, stays as far as it came; if
        nothing of it came, `text` was not said, nor if there is an error before. `progress` counts
        tokens of the prompt.

        Raises:
            PromptTooLongError: the context has no room for the messages and an answer.
            AieError: the chat template refuses the messages, or the model fails.
        """
        self._stopping = False
        asked = [*self.messages, {"role": "user", "content": text}]
        turn = replace(self._turn, messages=asked)
        if not self._template:
            texts = "".join(message["content"] for message in asked)
            turn = replace(self._turn, prompt=texts)
        writing = Writing(self._loop, turn, progress)
        answer = {"role": "assistant", "content": ""}
        pieces = iter(writing)
        try:
            for delta in pieces:
                if self._stopping:
                    break
                answer["content"] += delta.content
                if delta.reasoning:
                    answer["reasoning_content"] = (
                        answer.get("reasoning_content", "") + delta.reasoning
                    )
                if delta:
                    yield delta
        finally:
            pieces.close()
            self.last, usage = writing.timing, writing.usage
            self.said = usage is not None or writing.text.written > 0
            self.cut = usage is not None and usage.finish_reason == "length" and not self.full
            if self.said:
                self.messages = [*asked, answer]

    def stop(self) -> None:
        """Ends the answer after the token, or the chunk of the prompt, that is being computed. May
        be called by a signal handler or another thread."""
        self._stopping = True

    def system(self, text: str) -> None:
        """Says how to answer, in place of what said so before; nothing does if it is empty."""
        rest = [message for message in self.messages if message["role"] != "system"]
        self.messages = [{"role": "system", "content": text}, *rest] if text else rest

    def reset(self) -> None:
        """Forgets all messages but the system's."""
        self.messages = [message for message in self.messages if message["role"] == "system"]

    def save(self, path: Path) -> None:
        """Writes the messages, {"messages": [...]} as JSON. Raises OSError if that fails."""
        write_json(path, {"messages": self.messages})

    def load(self, path: Path) -> None:
        """Goes on with the messages of a file that `save` wrote, or of a list in JSON.

        Raises:
            AieError: they are not messages.
            OSError: the file cannot be read.
        """
        try:
            content = json.loads(path.read_text("utf-8"))
        except (RecursionError, ValueError) as error:
            raise AieError(f"{path} is not JSON: {error}") from error
        messages = content.get("messages") if isinstance(content, dict) else content
        try:
            self.messages = checked_messages(messages)
        except AieError as error:
            raise AieError(f"{path}: {error}") from error
