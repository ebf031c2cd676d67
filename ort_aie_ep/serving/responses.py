"""OpenAI's Responses: POST /v1/responses, which Codex speaks.

No response is kept, so a request has its whole conversation.
"""

from __future__ import annotations

import time
import uuid
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from ort_aie_ep.errors import AieError
from ort_aie_ep.running.turns import Accepted, Turn, Usage
from ort_aie_ep.serving.answers import Answer
from ort_aie_ep.serving.errors import error_of
from ort_aie_ep.serving.requests import (
    MOST_TOOLS,
    Asked,
    Content,
    Format,
    Function,
    call,
    check_tools,
    fault,
    message,
    refuse_pictures,
    result,
    text_of,
    thinking,
)
from ort_aie_ep.serving.written import Block, Event

PATH = "/v1/responses"
_STATELESS = "this server keeps no responses: send the whole conversation as input"


class Item(BaseModel):
    """A part of `input`: a message, a call, the result of one, or a thought."""

    type: Literal["message", "function_call", "function_call_output", "reasoning"] = "message"
    role: Literal["system", "developer", "user", "assistant"] = "assistant"
    content: Content = Field(default_factory=list)
    summary: Content = Field(default_factory=list)
    call_id: str = ""
    name: str = ""
    arguments: Any = "{}"
    output: Content = Field(default_factory=list)

    @model_validator(mode="after")
    def _whole(self) -> Self:
        needed = {
            "message": ("role", "content"), "function_call": ("call_id", "name"),
            "function_call_output": ("call_id", "output"), "reasoning": (),
        }  # fmt: skip
        for name in needed[self.type]:
            if name not in self.model_fields_set:
                raise fault(name, f"an item of the type {self.type} must have it")
        return self


class _Tool(Function):
    """A function, or a tool that only OpenAI's servers have, which the model is not told of: Codex
    offers some unasked."""

    type: Literal["function", "namespace", "web_search"]
    name: str = Field(default="", max_length=256)

    @model_validator(mode="after")
    def _named(self) -> Self:
        if self.type == "function" and not self.name:
            raise fault("name", "a function must have it")
        return self


class _Named(BaseModel):
    """The tool that is to be called."""

    model_config = ConfigDict(extra="forbid")
    type: Literal["function"]
    name: str


class _Text(BaseModel):
    """`text`."""

    format: Format = Field(default_factory=lambda: Format())


class _Reasoning(BaseModel):
    """`reasoning`."""

    effort: str | None = None


def _items(given: Any) -> Any:
    """A text is a message of the user's; an empty one is how clients ask for the model to be
    opened."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}] if given else []
    return given


class Responses(Asked):
    """The body of /v1/responses."""

    ignored = frozenset({
        "client_metadata", "context_management", "include", "max_tool_calls", "metadata",
        "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "safety_identifier",
        "service_tier", "store", "stream_options", "truncation", "user",
    })  # fmt: skip
    only: ClassVar = {"background": (False,), "top_logprobs": (0,)}
    refused = dict.fromkeys(("conversation", "previous_response_id"), _STATELESS)
    input: Annotated[list[Item], BeforeValidator(_items)]
    instructions: str = ""
    tools: list[_Tool] = Field(default_factory=list, max_length=MOST_TOOLS)
    tool_choice: Literal["none", "auto", "required"] | _Named = "auto"
    parallel_tool_calls: bool = True
    text: _Text = Field(default_factory=_Text)
    reasoning: _Reasoning = Field(default_factory=_Reasoning)
    max_output_tokens: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _agree(self) -> Self:
        check_tools(self._functions, self._asked)
        refuse_pictures([
            (f"input.{at}.content", item.content)
            for at, item in enumerate(self.input) if item.role == "user"
        ])  # fmt: skip
        return self

    @property
    def _functions(self) -> list[_Tool]:
        return [tool for tool in self.tools if tool.type == "function"]

    @property
    def _asked(self) -> str:
        choice = self.tool_choice
        return choice.name if isinstance(choice, _Named) else choice

    def turn(self, most: int | None) -> Turn:
        """What is asked for, with at most `most` new tokens."""
        limits = [n for n in (self.max_output_tokens, most) if n is not None]
        return Turn(
            messages=self._messages(),
            tools=[tool.plain() for tool in self._functions],
            tool_choice=self._asked,
            parallel_calls=self.parallel_tool_calls,
            template_options=thinking(self.reasoning.effort),
            continues=False,
            max_tokens=min(limits, default=None),
            sampling=self.sampling,
            schema=self.text.format.schema_text,
        )

    def _messages(self) -> list[dict[str, Any]]:
        """The items as messages: a thought, a text and calls that follow each other are one."""
        made = [message("system", self.instructions)] if self.instructions and self.input else []
        for item in self.input:
            if item.type == "function_call_output":
                made.append(result(item.call_id, text_of(item.output)))
            elif item.type == "message" and item.role != "assistant":
                made.append(message(item.role, text_of(item.content)))
            else:
                # In a message, a thought is before a text, and both are before calls.
                after = {"message": ("tool_calls",), "reasoning": ("content", "tool_calls")}
                last = made[-1] if made else message("system", "")
                if last["role"] != "assistant" or any(map(last.get, after.get(item.type, ()))):
                    made.append(last := message("assistant", ""))
                if item.type == "function_call":
                    one = call(item.call_id, item.name, item.arguments)
                    last["tool_calls"] = [*last.get("tool_calls", ()), one]
                else:
                    key = "content" if item.type == "message" else "reasoning_content"
                    last[key] = last.get(key, "") + text_of(item.content or item.summary)
        return made


class ResponseAnswer(Answer):
    """The answer."""

    def __init__(self, body: Responses) -> None:
        super().__init__()
        self._asked, self._id = body, uuid.uuid4().hex
        self._created, self._number = int(time.time()), -1

    def body(self) -> dict[str, Any]:
        """The whole response, or what there is of it."""
        asked, text = self._asked, self.texts[0]
        cut = text.usage is not None and text.usage.finish_reason == "length"
        status = "in_progress" if text.usage is None else "incomplete" if cut else "completed"
        output = [
            self._item(block, status if block is text.blocks[-1] else "completed")
            for block in text.blocks
        ]
        usage = {
            "input_tokens": text.prompt_tokens,
            "input_tokens_details": {
                "cached_tokens": text.cached_tokens,
                "cache_write_tokens": 0,
            },
            "output_tokens": text.tokens,
            "output_tokens_details": {"reasoning_tokens": text.thought_tokens},
            "total_tokens": text.prompt_tokens + text.tokens,
        }
        return {
            "id": f"resp_{self._id}",
            "object": "response",
            "created_at": self._created,
            "completed_at": int(time.time()) if status == "completed" else None,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "instructions": asked.instructions or None,
            "max_output_tokens": asked.max_output_tokens,
            "max_tool_calls": None,
            "background": False,
            "service_tier": "default",
            "safety_identifier": None,
            "prompt_cache_key": None,
            "metadata": {},
            "model": asked.model,
            "output": output,
            "parallel_tool_calls": asked.parallel_tool_calls,
            "previous_response_id": None,
            "reasoning": {"effort": asked.reasoning.effort, "summary": None},
            "store": False,
            "temperature": text.sampling.temperature,
            "presence_penalty": text.sampling.presence_penalty,
            "frequency_penalty": text.sampling.frequency_penalty,
            "top_logprobs": 0,
            "text": {"format": asked.text.format.model_dump(by_alias=True, exclude_none=True)},
            "tool_choice": "auto",
            "tools": [],
            "top_p": text.sampling.top_p,
            "truncation": "disabled",
            "usage": None if text.usage is None else usage,
        }

    def take(self, number: int, event: Event) -> list[dict[str, Any]]:
        """The events of a response, of its items and of their parts."""
        events = []
        for what, block, added in self.add(number, event):
            events += getattr(self, f"_{what}")(block, added)
        if isinstance(event, Accepted):
            names = ("response.created", "response.in_progress")
            events = [self._event(name, response=self.body()) for name in names]
        elif isinstance(event, Usage):
            body = self.body()
            events.append(self._event(f"response.{body['status']}", response=body))
        return events

    def quiet(self, progress: str) -> str:
        """With an event that it is in progress, once it is: Codex leaves a stream that has no event
        for five minutes, and a comment is none."""
        if self._number < 0:
            return super().quiet(progress)
        in_progress = self._event("response.in_progress", response=self.body())
        return super().quiet(progress) + self.line(in_progress)

    def failed(self, error: AieError) -> dict[str, Any]:
        """That the response has failed, and why."""
        said = error_of(PATH, error)[1]["error"]
        why = {"code": said["code"] or said["type"], "message": said["message"]}
        response = {**self.body(), "status": "failed", "error": why}
        return self._event("response.failed", response=response)

    def _begin(self, block: Block, _: str) -> list[dict[str, Any]]:
        item = self._item(block, "in_progress")
        if block.kind != "call":
            item["content"] = []
        opened = [self._event("response.output_item.added", output_index=block.index, item=item)]
        if block.kind != "call":
            opened.append(self._of("content_part.added", block, part=_part(block)))
        return opened

    def _add(self, block: Block, added: str) -> list[dict[str, Any]]:
        return [self._of(f"{_NAMES[block.kind]}.delta", block, delta=added, **_logprobs(block))]

    def _end(self, block: Block, _: str) -> list[dict[str, Any]]:
        usage = self.texts[0].usage
        cut = usage is not None and usage.finish_reason == "length"
        item = self._item(block, "incomplete" if cut else "completed")
        if block.kind == "call":
            done = [
                self._of(f"{_NAMES['call']}.done", block, arguments=block.text, name=block.name)
            ]
        else:
            said = {"text": block.text, **_logprobs(block)}
            done = [
                self._of(f"{_NAMES[block.kind]}.done", block, **said),
                self._of("content_part.done", block, part=_part(block)),
            ]
        index = {"output_index": block.index}
        return [*done, self._event("response.output_item.done", **index, item=item)]

    def _of(self, name: str, block: Block, /, **more: Any) -> dict[str, Any]:
        """An event of an item."""
        index = {} if block.kind == "call" else {"content_index": 0}
        place = {"item_id": self._name(block), "output_index": block.index}
        return self._event(f"response.{name}", **place, **index, **more)

    def _event(self, name: str, /, **more: Any) -> dict[str, Any]:
        self._number += 1
        return {"type": name, "sequence_number": self._number, **more}

    def _name(self, block: Block) -> str:
        prefix = {"thought": "rs", "text": "msg", "call": "fc"}[block.kind]
        return f"{prefix}_{self._id}_{block.index}"

    def _item(self, block: Block, status: str) -> dict[str, Any]:
        about = {"id": self._name(block), "status": status}
        if block.kind == "call":
            called = {"call_id": block.id, "name": block.name, "arguments": block.text}
            return {"type": "function_call", **about, **called}
        if block.kind == "text":
            return {"type": "message", **about, "role": "assistant", "content": [_part(block)]}
        thought = {"summary": [], "content": [_part(block)], "encrypted_content": None}
        return {"type": "reasoning", **about, **thought}


_NAMES = {"thought": "reasoning_text", "text": "output_text", "call": "function_call_arguments"}


def _part(block: Block) -> dict[str, Any]:
    more = {"annotations": [], **_logprobs(block)} if block.kind == "text" else {}
    return {"type": _NAMES[block.kind], "text": block.text, **more}


def _logprobs(block: Block) -> dict[str, Any]:
    return {"logprobs": []} if block.kind == "text" else {}
