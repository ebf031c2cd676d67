"""What the routes take: bodies in OpenAI's form, and the turns that they ask for."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ort_aie_ep.running.turns import Sampling, Turn

# Fields of OpenAI's interface that change nothing about the text: they are accepted and ignored.
_IGNORED = {
    "metadata", "parallel_tool_calls", "prompt_cache_key", "safety_identifier", "service_tier",
    "store", "user",
}  # fmt: skip
# Fields that this server has no other value for.
_ONLY: dict[str, Any] = {
    "best_of": 1, "echo": False, "frequency_penalty": 0, "logit_bias": {}, "logprobs": False,
    "n": 1, "presence_penalty": 0, "suffix": "", "tool_choice": "none", "tools": [],
    "top_logprobs": 0,
}  # fmt: skip


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
        """Without null, what is ignored, and values that are the only ones that there are."""
        if not isinstance(body, dict):
            return body
        kept = {}
        for name, value in body.items():
            if value is None or name in _IGNORED or (name in _ONLY and value == _ONLY[name]):
                continue
            if name in _ONLY:
                raise ValueError(f"{name}: this server takes {json.dumps(_ONLY[name])} only")
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

    @property
    def schema_text(self) -> str:
        """The schema as JSON; empty for any text."""
        if self.type == "text":
            return ""
        schema = self.json_schema.json_schema if self.type == "json_schema" else {}
        # A small model may find spaces the likeliest, to the end of the context.
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
