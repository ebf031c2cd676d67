"""What the routes take: bodies in OpenAI's form, and the turns that they ask for."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from ort_aie_ep.running.turns import Sampling, Turn
from ort_aie_ep.serving.schemas import why_too_large

# Fields of OpenAI's interface that change nothing about the text: they are accepted and ignored.
_IGNORED = {
    "metadata", "parallel_tool_calls", "prediction", "prompt_cache_key", "prompt_cache_retention",
    "reasoning_effort", "safety_identifier", "service_tier", "store", "user", "verbosity",
}  # fmt: skip
# Likewise in a message: the speaker's name, and annotations, which OpenAI's own answers have.
_IGNORED_OF_MESSAGES = {"annotations", "name"}
# Fields for which this server accepts only these values.
_ONLY: dict[str, Any] = {
    "best_of": 1, "echo": False, "frequency_penalty": 0, "logit_bias": {}, "logprobs": False,
    "modalities": ["text"], "n": 1, "presence_penalty": 0, "suffix": "", "top_logprobs": 0,
}  # fmt: skip
# Fields that offer tools, each with the values that offer none; and their older names.
_TOOLS: dict[str, tuple[Any, ...]] = {
    "function_call": ("none", "auto"), "functions": ([],),
    "tool_choice": ("none", "auto"), "tools": ([],),
}  # fmt: skip
_CHOICES = {"tools": "tool_choice", "functions": "function_call"}
_LEVELS = 100
_NO_TOOLS = "this server cannot call tools"


def _fault(field: str, reason: str) -> PydanticCustomError:
    """What is wrong with a field, for an error that names it."""
    return PydanticCustomError("refused", "{reason}", {"reason": reason, "field": field})


def _without_nulls(value: Any, depth: int = 0) -> Any:
    """A body without the keys whose value is null, which clients send for what they leave out.

    In a JSON schema null is a value of its own, and stays.
    """
    if depth > _LEVELS:
        raise _fault("", f"the body has more than {_LEVELS} levels")
    if isinstance(value, list):
        return [_without_nulls(item, depth + 1) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: item if key == "schema" else _without_nulls(item, depth + 1)
        for key, item in value.items()
        if item is not None
    }


def _without_tools(body: dict[str, Any]) -> dict[str, Any]:
    """A body that offers no tools, or asks for none of them to be called, without these fields."""
    for name in _TOOLS.keys() & body.keys():
        declined = body.get(_CHOICES.get(name, "")) == "none"
        if body[name] not in _TOOLS[name] and not declined:
            choice = _CHOICES.get(name, name)
            raise _fault(name, f'{_NO_TOOLS}: leave {name} out, or give "{choice}": "none"')
    return {name: value for name, value in body.items() if name not in _TOOLS}


# OpenAI's seeds have a sign, and genai's have 32 bits with one.
_SEEDS = 2**31


class StreamOptions(BaseModel):
    """`stream_options`."""

    model_config = ConfigDict(extra="forbid")
    include_usage: bool = False


class Body(BaseModel):
    """What both kinds of completion take."""

    model_config = ConfigDict(extra="forbid")
    model: str
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=0)
    seed: int | None = None
    stop: list[Annotated[str, Field(min_length=1, max_length=1000)]] = Field(
        default_factory=list, max_length=16
    )
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(default=None, ge=1)

    @model_validator(mode="before")
    @classmethod
    def _plain(cls, body: Any) -> Any:
        """The body without nulls, ignored fields, and fields with their only accepted value."""
        if not isinstance(body, dict):
            return body
        kept = {}
        for name, value in _without_tools(_without_nulls(body)).items():
            if name in _IGNORED or (name in _ONLY and value == _ONLY[name]):
                continue
            if name in _ONLY:
                raise _fault(name, f"this server takes {json.dumps(_ONLY[name])} only")
            kept[name] = value
        if isinstance(kept.get("stop"), str):
            kept["stop"] = [kept["stop"]]
        return kept

    @property
    def sampling(self) -> Sampling | None:
        """None leaves it to the model's genai_config.json."""
        names = {"temperature", "top_p", "top_k", "seed"}
        given = self.model_dump(include=names, exclude_none=True)
        if "seed" in given:
            given["seed"] %= _SEEDS
        # A seed, top-p or top-k alone asks for sampling too.
        return Sampling(**{"temperature": 1.0, **given}) if given else None


class Part(BaseModel):
    """A part of a message."""

    type: Literal["text"]
    text: str


class Message(BaseModel):
    """A message."""

    model_config = ConfigDict(extra="forbid")
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[Part]

    @model_validator(mode="before")
    @classmethod
    def _plain(cls, message: Any) -> Any:
        """Without what is ignored."""
        if not isinstance(message, dict):
            return message
        if message.get("role") in ("tool", "function"):
            raise _fault("role", _NO_TOOLS)
        for name in ("function_call", "tool_calls"):
            if message.get(name):
                raise _fault(name, _NO_TOOLS)
        return {
            name: value
            for name, value in message.items()
            if name not in _IGNORED_OF_MESSAGES and (name, value) != ("tool_calls", [])
        }

    def plain(self) -> dict[str, str]:
        """The message for a chat template."""
        content = self.content
        if not isinstance(content, str):
            content = "".join(part.text for part in content)
        return {"role": "system" if self.role == "developer" else self.role, "content": content}


class JsonSchema(BaseModel):
    """`json_schema` of a `response_format`; its name and description are not used."""

    json_schema: dict[str, Any] = Field(default_factory=dict, alias="schema")


class ResponseFormat(BaseModel):
    """`response_format`. The text follows a schema, whatever `strict` says."""

    model_config = ConfigDict(extra="forbid")
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema = Field(default_factory=lambda: JsonSchema())

    @model_validator(mode="after")
    def _small(self) -> Self:
        if reason := why_too_large(self.json_schema.json_schema):
            raise _fault("json_schema.schema", reason)
        return self

    @property
    def schema_text(self) -> str:
        """The schema as JSON; empty for any text."""
        if self.type == "text":
            return ""
        schema = self.json_schema.json_schema if self.type == "json_schema" else {}
        # Otherwise a small model may write white space to the end of the context.
        compact = {"x-guidance": {"whitespace_flexible": False}}
        return json.dumps({"type": "object"} | compact | schema)


class Chat(Body):
    """The body of /v1/chat/completions."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    response_format: ResponseFormat | None = None

    def turn(self, most: int | None) -> Turn:
        """What is asked for, with at most `most` new tokens."""
        limits = [n for n in (self.max_completion_tokens, self.max_tokens, most) if n is not None]
        schema = self.response_format.schema_text if self.response_format else ""
        messages = [message.plain() for message in self.messages]
        return Turn(
            messages=messages,
            max_tokens=min(limits, default=None),
            sampling=self.sampling,
            stop=tuple(self.stop),
            schema=schema,
        )


class Completion(Body):
    """The body of /v1/completions."""

    prompt: str | list[int]

    @model_validator(mode="before")
    @classmethod
    def _single(cls, body: Any) -> Any:
        """A list of one prompt is that prompt."""
        if isinstance(body, dict):
            prompt = body.get("prompt")
            if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
                if len(prompt) > 1:
                    raise ValueError("prompt: this server takes one prompt in a request")
                return {**body, "prompt": prompt[0]}
        return body

    def turn(self, most: int | None) -> Turn:
        """What is asked for, with at most `most` new tokens; 16 unless the body says more."""
        count = self.max_tokens or 16
        count = count if most is None else min(count, most)
        return Turn(self.prompt, max_tokens=count, sampling=self.sampling, stop=tuple(self.stop))
