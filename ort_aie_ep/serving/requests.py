"""What the routes take: bodies in OpenAI's form, and the turns that they ask for."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from ort_aie_ep.running.turns import Sampling, Turn, sampling_of
from ort_aie_ep.serving.schemas import why_too_large

# Fields of OpenAI's interface that change nothing about the text: they are accepted and ignored.
_IGNORED = {
    "metadata", "prediction", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention",
    "safety_identifier", "service_tier", "store", "user", "verbosity",
}  # fmt: skip
# Likewise in a message: the speaker's name, annotations, which OpenAI's own answers have, and the
# object that its packages make of an answer's JSON.
_IGNORED_OF_MESSAGES = {"annotations", "audio", "name", "parsed", "refusal"}
# Fields for which this server accepts only these values.
_ONLY: dict[str, Any] = {"best_of": 1, "echo": False, "modalities": ["text"], "suffix": ""}
# Where a JSON schema is, in which null is a value of its own.
_SCHEMAS = {"parameters", "schema"}
# The older names of tools, each with the values that offer none.
_OLDER: dict[str, tuple[Any, ...]] = {"function_call": ("none", "auto"), "functions": ([],)}
_LEVELS = 100
# Choices of a request, tools, and bytes of the template's options.
_MOST_CHOICES, _MOST_TOOLS, _MOST_OPTIONS = 8, 128, 4096


def _fault(field: str, reason: str) -> PydanticCustomError:
    """What is wrong with a field, for an error that names it."""
    return PydanticCustomError("refused", "{reason}", {"reason": reason, "field": field})


def _without_nulls(value: Any, depth: int = 0) -> Any:
    """A body without the keys whose value is null, which clients send for what they leave out."""
    if depth > _LEVELS:
        raise _fault("", f"the body has more than {_LEVELS} levels")
    if isinstance(value, list):
        return [_without_nulls(item, depth + 1) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: item if key in _SCHEMAS else _without_nulls(item, depth + 1)
        for key, item in value.items()
        if item is not None
    }


# OpenAI's seeds have a sign, and numpy's none.
_SEEDS = 2**63


class StreamOptions(BaseModel):
    """`stream_options`. Chunks are not padded, whatever `include_obfuscation` says."""

    model_config = ConfigDict(extra="forbid")
    include_usage: bool = False
    include_obfuscation: bool = False


class Body(BaseModel):
    """What both kinds of completion take."""

    model_config = ConfigDict(extra="forbid")
    model: str
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=0)
    min_p: float | None = Field(default=None, ge=0, le=1)
    seed: int | None = None
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    logit_bias: dict[int, Annotated[float, Field(ge=-100, le=100)]] | None = Field(
        default=None, max_length=1024
    )
    n: int = Field(default=1, ge=1, le=_MOST_CHOICES)
    ignore_eos: bool = False
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
        for name, value in _without_nulls(body).items():
            if name in _IGNORED or (name in _ONLY and value == _ONLY[name]):
                continue
            if name in _OLDER and value in _OLDER[name]:
                continue
            if name in _OLDER:
                raise _fault(name, "this server takes tools and tool_choice in its place")
            if name in _ONLY:
                raise _fault(name, f"this server takes {json.dumps(_ONLY[name])} only")
            kept[name] = value
        if isinstance(kept.get("stop"), str):
            kept["stop"] = [kept["stop"]]
        return kept

    def turns(self, turn: Turn) -> list[Turn]:
        """The turn for each choice: with a seed, choices have seeds of their own."""
        sampling = turn.sampling
        if sampling is None or sampling.seed is None:
            return [turn] * self.n
        seeds = [(sampling.seed + i) % _SEEDS for i in range(self.n)]
        return [replace(turn, sampling=replace(sampling, seed=seed)) for seed in seeds]

    @property
    def sampling(self) -> Sampling | None:
        """None leaves it to the model's genai_config.json."""
        names = {
            "temperature", "top_p", "top_k", "min_p", "seed", "frequency_penalty",
            "presence_penalty",
        }  # fmt: skip
        given: dict[str, Any] = self.model_dump(include=names, exclude_none=True)
        if "seed" in given:
            given["seed"] %= _SEEDS
        if self.logit_bias:
            given["bias"] = self.logit_bias
        return sampling_of(given)


class Part(BaseModel):
    """A part of a message."""

    type: Literal["text"]
    text: str


class CalledFunction(BaseModel):
    """`function` of a call: the arguments are JSON, as text."""

    name: str
    arguments: str = "{}"


class Call(BaseModel):
    """A call of a tool, in an earlier answer."""

    model_config = ConfigDict(extra="ignore")
    id: str = ""
    type: Literal["function"] = "function"
    function: CalledFunction


class Message(BaseModel):
    """A message."""

    model_config = ConfigDict(extra="forbid")
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Part] | None = None
    reasoning_content: str | None = None
    tool_calls: list[Call] = Field(default_factory=list)
    tool_call_id: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _plain(cls, message: Any) -> Any:
        """Without what is ignored."""
        if not isinstance(message, dict):
            return message
        if message.get("role") == "function" or message.get("function_call"):
            raise _fault("role", "this server takes tool_calls and the role tool in its place")
        ignored = {*_IGNORED_OF_MESSAGES, "function_call"}
        return {name: value for name, value in message.items() if name not in ignored}

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.tool_calls and self.role != "assistant":
            raise _fault("tool_calls", "a message of the role assistant alone has them")
        if (self.tool_call_id is None) == (self.role == "tool"):
            raise _fault("tool_call_id", "a message of the role tool, and no other, has it")
        if self.content is None and not (self.role == "assistant" and self.tool_calls):
            raise _fault("content", "only an assistant's message with tool_calls is without it")
        return self

    def plain(self) -> dict[str, Any]:
        """The message for a chat template."""
        content = self.content
        if isinstance(content, list):
            content = "".join(part.text for part in content)
        role = "system" if self.role == "developer" else self.role
        message: dict[str, Any] = {"role": role, "content": content or ""}
        if self.reasoning_content:
            message["reasoning_content"] = self.reasoning_content
        if self.tool_calls:
            message["tool_calls"] = [call.model_dump() for call in self.tool_calls]
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        return message


class Function(BaseModel):
    """`function` of a tool. Calls follow `parameters`, and `strict` refuses what cannot be held."""

    model_config = ConfigDict(extra="forbid")
    name: str = Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")
    description: str = ""
    parameters: dict[str, Any] = Field(default_factory=dict)
    strict: bool = False

    @model_validator(mode="after")
    def _small(self) -> Self:
        if reason := why_too_large(self.parameters):
            raise _fault("parameters", reason)
        return self


class Tool(BaseModel):
    """A tool that the model may call."""

    model_config = ConfigDict(extra="forbid")
    type: Literal["function"]
    function: Function

    def plain(self) -> dict[str, Any]:
        """The tool for a turn."""
        return self.model_dump()


class NamedFunction(BaseModel):
    """`function` of a choice."""

    model_config = ConfigDict(extra="forbid")
    name: str


class NamedTool(BaseModel):
    """The tool that is to be called."""

    model_config = ConfigDict(extra="forbid")
    type: Literal["function"]
    function: NamedFunction


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
    tools: list[Tool] = Field(default_factory=list, max_length=_MOST_TOOLS)
    tool_choice: Literal["none", "auto", "required"] | NamedTool = "auto"
    parallel_tool_calls: bool = True
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    logprobs: bool = False
    top_logprobs: int = Field(default=0, ge=0, le=20)

    @model_validator(mode="after")
    def _agree(self) -> Self:
        names = [tool.function.name for tool in self.tools]
        if len({*names}) < len(names):
            raise _fault("tools", "two tools have one name")
        if isinstance(self.tool_choice, NamedTool):
            if (name := self.tool_choice.function.name) not in names:
                raise _fault("tool_choice", f"there is no tool {name!r}")
        elif self.tool_choice == "required" and not names:
            raise _fault("tool_choice", "there are no tools to call")
        if self.top_logprobs and not self.logprobs:
            raise _fault("top_logprobs", "give logprobs too")
        if len(json.dumps(self.chat_template_kwargs)) > _MOST_OPTIONS:
            raise _fault("chat_template_kwargs", f"they have more than {_MOST_OPTIONS} bytes")
        return self

    @property
    def _choice(self) -> str:
        if not self.tools:
            return "none"
        choice = self.tool_choice
        return choice.function.name if isinstance(choice, NamedTool) else choice

    @property
    def _schema(self) -> str:
        return self.response_format.schema_text if self.response_format else ""

    def turn(self, most: int | None) -> Turn:
        """What is asked for, with at most `most` new tokens."""
        limits = [n for n in (self.max_completion_tokens, self.max_tokens, most) if n is not None]
        options = dict(self.chat_template_kwargs)
        if self.reasoning_effort is not None:
            options.setdefault("reasoning_effort", self.reasoning_effort)
        return Turn(
            messages=[message.plain() for message in self.messages],
            tools=[tool.plain() for tool in self.tools],
            tool_choice=self._choice,
            parallel_calls=self.parallel_tool_calls,
            template_options=options,
            max_tokens=min(limits, default=None),
            sampling=self.sampling,
            stop=tuple(self.stop),
            schema=self._schema,
            logprobs=self.top_logprobs if self.logprobs else None,
            ignore_end=self.ignore_eos,
        )


class Completion(Body):
    """The body of /v1/completions."""

    prompt: str | list[int]
    logprobs: int | None = Field(default=None, ge=0, le=5)

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
        return Turn(
            self.prompt,
            max_tokens=count,
            sampling=self.sampling,
            stop=tuple(self.stop),
            logprobs=self.logprobs,
            ignore_end=self.ignore_eos,
        )
