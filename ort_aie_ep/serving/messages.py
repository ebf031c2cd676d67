"""Anthropic's Messages: /v1/messages and /v1/messages/count_tokens, which Claude Code speaks."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from ort_aie_ep.errors import AieError
from ort_aie_ep.running.answers.messages import arguments_of
from ort_aie_ep.running.turns import Accepted, Turn, Usage
from ort_aie_ep.serving.answers import Answer
from ort_aie_ep.serving.errors import MESSAGES, error_of
from ort_aie_ep.serving.requests import (
    MOST_TOOLS,
    Asked,
    Content,
    Format,
    Function,
    Part,
    Stop,
    Thinking,
    call,
    check_tools,
    fault,
    message,
    parts,
    refuse_pictures,
    result,
    text_of,
    thinking,
)
from ort_aie_ep.serving.written import Block, Event

# What Claude Code begins its system prompt with: its end differs from conversation to conversation,
# so no two would share a beginning.
_BILLING = "x-anthropic-billing-header:"


class _Block(Part):
    """A part of a message."""

    type: Literal[  # type: ignore[assignment]
        "text", "image", "thinking", "redacted_thinking", "tool_use", "tool_result"
    ]
    thinking: str = ""
    id: str = ""
    name: str = ""
    input: Any = Field(default_factory=dict)
    tool_use_id: str = ""
    content: Content = Field(default_factory=list)


class _Message(BaseModel):
    """A message. Claude Code has some of the system's among them."""

    role: Literal["user", "assistant", "system"]
    content: Annotated[list[_Block], BeforeValidator(parts)]

    @model_validator(mode="after")
    def _whole(self) -> Self:
        for at, block in enumerate(self.content):
            needed = {"tool_use": ("id", "name"), "tool_result": ("tool_use_id",)}
            for name in needed.get(block.type, ()):
                if name not in block.model_fields_set:
                    raise fault(f"content.{at}.{name}", "Field required")
            if block.type == "tool_use" and self.role != "assistant":
                raise fault(f"content.{at}.type", "only the assistant calls tools")
            if block.type == "tool_result" and self.role != "user":
                raise fault(f"content.{at}.type", "only messages of the role user have results")
        return self

    def plain(self) -> list[dict[str, Any]]:
        """The message for a turn: results are messages of their own."""
        made: list[dict[str, Any]] = []
        said: list[Part] = []
        if self.role == "assistant":
            said = [block for block in self.content if block.type in ("text", "image")]
            thought = "".join(block.thinking for block in self.content)
            calls = [call(b.id, b.name, b.input) for b in self.content if b.type == "tool_use"]
            return [message("assistant", text_of(said), thought, calls)]
        for block in self.content:
            if block.type == "tool_result":
                made.append(result(block.tool_use_id, text_of(block.content)))
            else:
                said.append(block)
        if said or not made:
            made.append(message(self.role, "\n\n".join(text_of([part]) for part in said)))
        return made


class _Tool(Function):
    """A tool; Anthropic's own, which its servers run, are not here."""

    type: Literal["custom"] = "custom"
    parameters: dict[str, Any] = Field(default_factory=dict, alias="input_schema")


class _Choice(BaseModel):
    """`tool_choice`."""

    model_config = ConfigDict(extra="forbid")
    type: Literal["auto", "any", "tool", "none"] = "auto"
    name: str = ""
    disable_parallel_tool_use: bool = False

    @property
    def asked(self) -> str:
        """The choice as a turn has it."""
        return self.name if self.type == "tool" else {"any": "required"}.get(self.type, self.type)


class _Output(BaseModel):
    """`output_config`."""

    effort: str | None = None
    format: Format = Field(default_factory=lambda: Format())


class Count(Asked):
    """The body of /v1/messages/count_tokens."""

    ignored = frozenset({
        "cache_control", "context_management", "metadata", "service_tier", "speed",
    })  # fmt: skip
    messages: list[_Message] = Field(min_length=1)
    system: Content = Field(default_factory=list)
    tools: list[_Tool] = Field(default_factory=list, max_length=MOST_TOOLS)
    tool_choice: _Choice = Field(default_factory=_Choice)
    thinking: Thinking | None = None
    output_config: _Output = Field(default_factory=_Output)

    @model_validator(mode="after")
    def _agree(self) -> Self:
        check_tools(self.tools, self.tool_choice.asked)
        refuse_pictures([
            (f"messages.{at}.content", one.content)
            for at, one in enumerate(self.messages) if one.role == "user"
        ])  # fmt: skip
        return self

    def turn(self, most: int | None) -> Turn:
        """What is asked for, with at most `most` new tokens."""
        system = [part for part in self.system if not part.text.startswith(_BILLING)]
        text = "\n\n".join(part.text for part in system)
        made = [message("system", text)] if text else []
        return Turn(
            messages=[*made, *(one for given in self.messages for one in given.plain())],
            tools=[tool.plain() for tool in self.tools],
            tool_choice=self.tool_choice.asked,
            parallel_calls=not self.tool_choice.disable_parallel_tool_use,
            template_options=thinking(
                self.output_config.effort,
                self.thinking.type != "disabled" if self.thinking else None,
            ),
            max_tokens=most,
            sampling=self.sampling,
            schema=self.output_config.format.schema_text,
        )


class Messages(Count):
    """The body of /v1/messages."""

    max_tokens: int = Field(ge=1)
    top_k: int | None = Field(default=None, ge=0)
    stop_sequences: list[Stop] = Field(default_factory=list, max_length=16)

    def turn(self, most: int | None) -> Turn:
        """What is asked for; where the context has no room for `max_tokens`, fewer."""
        turn = super().turn(self.max_tokens if most is None else min(most, self.max_tokens))
        return replace(turn, stop=tuple(self.stop_sequences))


class MessageAnswer(Answer):
    """The answer."""

    def __init__(self, model: str) -> None:
        super().__init__()
        self._model, self._id = model, f"msg_{uuid.uuid4().hex}"

    def body(self) -> dict[str, Any]:
        """The whole message, or what there is of it."""
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [_whole(block) for block in self.texts[0].blocks],
            **self._reason,
            "usage": self._usage,
        }

    def take(self, number: int, event: Event) -> list[dict[str, Any]]:
        """The events of a message and of its blocks."""
        events = [_step(*step) for step in self.add(number, event)]
        made = [one for step in events for one in step]
        if isinstance(event, Accepted):
            return [{"type": "message_start", "message": self.body()}]
        if isinstance(event, Usage):
            ended = {"type": "message_delta", "delta": self._reason, "usage": self._usage}
            return [*made, ended, {"type": "message_stop"}]
        return made

    def waiting(self) -> dict[str, Any]:
        """A ping."""
        return {"type": "ping"}

    def failed(self, error: AieError) -> dict[str, Any]:
        """The error as the body that it would be."""
        return error_of(MESSAGES, error)[1]

    @property
    def _reason(self) -> dict[str, Any]:
        if (usage := self.texts[0].usage) is None:
            return {"stop_reason": None, "stop_sequence": None}
        reasons = {"length": "max_tokens", "tool_calls": "tool_use"}
        reason = "stop_sequence" if usage.stopped else reasons.get(usage.finish_reason, "end_turn")
        return {"stop_reason": reason, "stop_sequence": usage.stopped or None}

    @property
    def _usage(self) -> dict[str, Any]:
        text = self.texts[0]
        return {
            "input_tokens": text.prompt_tokens - text.cached_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": text.cached_tokens,
            "output_tokens": text.tokens,
        }


def _step(what: str, block: Block, added: str) -> list[dict[str, Any]]:
    def event(kind: str, **more: Any) -> dict[str, Any]:
        return {"type": f"content_block_{kind}", "index": block.index, **more}

    if what == "begin":
        return [event("start", content_block=_whole(block))]
    if what == "add":
        kind, name = {
            "thought": ("thinking_delta", "thinking"), "text": ("text_delta", "text"),
            "call": ("input_json_delta", "partial_json"),
        }[block.kind]  # fmt: skip
        return [event("delta", delta={"type": kind, name: added})]
    signed = {"type": "signature_delta", "signature": ""}
    return [*([event("delta", delta=signed)] if block.kind == "thought" else []), event("stop")]


def _whole(block: Block) -> dict[str, Any]:
    if block.kind == "thought":
        return {"type": "thinking", "thinking": block.text, "signature": ""}
    if block.kind == "text":
        return {"type": "text", "text": block.text}
    called = {"id": block.id, "name": block.name, "input": arguments_of(block.text)}
    return {"type": "tool_use", **called}
