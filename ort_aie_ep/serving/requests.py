"""What the routes take: bodies in OpenAI's form, and the turns that they ask for.

A field of the body that is not known is an error, as it may ask for something. Of messages, tools
and their parts, what is not known is ignored: clients put back what other servers gave them.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from ort_aie_ep.running.answers.schemas import why_circular, why_too_large
from ort_aie_ep.running.turns import Turn

# Fields of OpenAI's interface, and of llama.cpp's, that change nothing about the text: they are
# accepted and ignored.
_IGNORED = {
    "cache_prompt", "metadata", "prediction", "prompt_cache_key", "prompt_cache_options",
    "prompt_cache_retention", "safety_identifier", "service_tier", "store", "user", "verbosity",
}  # fmt: skip
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


def _without_nulls(value: Any, path: tuple[str, ...] = (), in_schema: bool = False) -> Any:
    """A body without the keys whose value is null, which clients send for what they leave out.

    JSON can have half of a surrogate pair, which no text has and no tokenizer takes.
    """
    if len(path) > _LEVELS:
        raise _fault("", f"the body has more than {_LEVELS} levels")
    if isinstance(value, str):
        if not value.isascii() and any("\ud800" <= one <= "\udfff" for one in value):
            raise _fault(".".join(path), "the text is not Unicode: half of a surrogate pair")
        return value
    if isinstance(value, list):
        return [_without_nulls(item, (*path, str(at)), in_schema) for at, item in enumerate(value)]
    if not isinstance(value, dict):
        return value
    return {
        _without_nulls(key, path): _without_nulls(item, (*path, key), in_schema or key in _SCHEMAS)
        for key, item in value.items()
        if in_schema or item is not None
    }


# OpenAI's seeds have a sign, and numpy's none.
_SEEDS = 2**63


class StreamOptions(BaseModel):
    """`stream_options`. Chunks are not padded, whatever `include_obfuscation` says."""

    model_config = ConfigDict(extra="forbid")
    include_usage: bool = False
    include_obfuscation: bool = False
    continuous_usage_stats: bool = False


class Body(BaseModel):
    """What both kinds of completion take."""

    model_config = ConfigDict(extra="forbid")
    model: str
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1)
    min_p: float | None = Field(default=None, ge=0, le=1)
    seed: int | None = None
    repetition_penalty: float | None = Field(default=None, gt=0, le=10)
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
    min_tokens: int = Field(default=0, ge=0)

    @model_validator(mode="before")
    @classmethod
    def _plain(cls, body: Any) -> Any:
        """The body without nulls, ignored fields, and fields with their only accepted value."""
        if not isinstance(body, dict):
            return body
        kept = {}
        asked = {name: value for name, value in body.items() if name not in _IGNORED}
        for name, value in _without_nulls(asked).items():
            if name in _ONLY and value == _ONLY[name]:
                continue
            if name in _OLDER and value in _OLDER[name]:
                continue
            if name in _OLDER:
                raise _fault(name, "use tools and tool_choice instead")
            if name in _ONLY:
                raise _fault(name, f"only {json.dumps(_ONLY[name])} is supported")
            kept[name] = value
        if isinstance(kept.get("stop"), str):
            kept["stop"] = [kept["stop"]]
        return kept

    def turns(self, turn: Turn) -> list[Turn]:
        """The turn for each choice: with a seed, choices have seeds of their own."""
        if self.seed is None:
            return [turn] * self.n
        seeds = [(self.seed + i) % _SEEDS for i in range(self.n)]
        return [replace(turn, sampling={**turn.sampling, "seed": seed}) for seed in seeds]

    @property
    def sampling(self) -> dict[str, Any]:
        """What is asked for in place of what the model's genai_config.json says."""
        names = {
            "temperature", "top_p", "top_k", "min_p", "seed", "frequency_penalty",
            "presence_penalty", "repetition_penalty",
        }  # fmt: skip
        given: dict[str, Any] = self.model_dump(include=names, exclude_none=True)
        if "seed" in given:
            given["seed"] %= _SEEDS
        if "top_k" in given:
            given["top_k"] = max(0, given["top_k"])  # some clients say -1 for all tokens
        if self.logit_bias:
            given["bias"] = self.logit_bias
        return given


class Part(BaseModel):
    """A part of a message."""

    type: Literal["text"]
    text: str


class CalledFunction(BaseModel):
    """`function` of a call: the arguments are JSON, as text, unless the call was cut or the model
    got them wrong."""

    name: str
    arguments: Any = "{}"


class Call(BaseModel):
    """A call of a tool, in an earlier answer."""

    id: str = ""
    type: Literal["function"] = "function"
    function: CalledFunction


class Message(BaseModel):
    """A message."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Part] | None = None
    reasoning_content: str | None = None
    tool_calls: list[Call] = Field(default_factory=list)
    tool_call_id: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _plain(cls, message: Any) -> Any:
        """With thoughts by one name."""
        if not isinstance(message, dict):
            return message
        if message.get("role") == "function" or message.get("function_call"):
            raise _fault("role", "use tool_calls and the role tool instead")
        if isinstance(thought := message.get("reasoning"), str):
            return {"reasoning_content": thought, **message}
        return message

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.tool_calls and self.role != "assistant":
            raise _fault("tool_calls", "only messages of the role assistant may have them")
        if self.role == "tool" and self.tool_call_id is None:
            raise _fault("tool_call_id", "a message of the role tool must name its call")
        if self.content is None and self.role not in ("assistant", "tool"):
            raise _fault("content", "only messages of the roles assistant and tool may omit it")
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
        if self.role == "tool":
            message["tool_call_id"] = self.tool_call_id
        return message


class Function(BaseModel):
    """`function` of a tool. Calls follow `parameters`, and `strict` refuses what cannot be held."""

    name: str = Field(min_length=1, max_length=256)
    description: str = ""
    parameters: dict[str, Any] = Field(default_factory=dict)
    strict: bool = False

    @model_validator(mode="after")
    def _small(self) -> Self:
        if reason := self.strict and _why_refused(self.parameters):
            raise _fault("parameters", reason)
        return self


def _why_refused(schema: dict[str, Any]) -> str:
    return why_too_large(schema) or why_circular(schema)


class Tool(BaseModel):
    """A tool that the model may call."""

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

    json_schema: dict[str, Any] | None = Field(default=None, alias="schema")


class ResponseFormat(JsonSchema):
    """`response_format`. The text follows a schema, whatever `strict` says. The schema may be in
    `json_schema`, as OpenAI has it, or beside the type, as llama.cpp does."""

    type: Literal["text", "json_object", "json_schema"]
    named: JsonSchema = Field(default_factory=lambda: JsonSchema(), alias="json_schema")

    @model_validator(mode="after")
    def _small(self) -> Self:
        for place, schema in (
            ("json_schema.schema", self.named.json_schema), ("schema", self.json_schema),
        ):  # fmt: skip
            if reason := schema is not None and _why_refused(schema):
                raise _fault(place, reason)
        return self

    @property
    def schema_text(self) -> str:
        """The schema as JSON; empty for any text."""
        if self.type == "text":
            return ""
        own = self.named.json_schema if self.type == "json_schema" else None
        schema = own if own is not None else self.json_schema
        return json.dumps({"type": "object"} if schema is None else schema)


class Reasoning(BaseModel):
    """`reasoning`, as OpenRouter has it: how long to think, and whether."""

    effort: str | None = None
    enabled: bool | None = None


class Thinking(BaseModel):
    """`thinking`, as DeepSeek and Anthropic have it."""

    type: Literal["adaptive", "auto", "disabled", "enabled"]


class Chat(Body):
    """The body of /v1/chat/completions."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    response_format: ResponseFormat | None = None
    tools: list[Tool] = Field(default_factory=list, max_length=_MOST_TOOLS)
    tool_choice: Literal["none", "auto", "required"] | NamedTool = "auto"
    parallel_tool_calls: bool = True
    reasoning_effort: str | None = None
    reasoning: Reasoning = Field(default_factory=Reasoning)
    thinking: Thinking | None = None
    enable_thinking: bool | None = None
    add_generation_prompt: bool = False
    continue_final_message: bool = True
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

    @property
    def _thinking(self) -> dict[str, Any]:
        """Whether and how long to think, by the names that templates have for it."""
        asked: dict[str, Any] = {}
        effort = self.reasoning_effort or self.reasoning.effort
        thinks = [self.enable_thinking, self.reasoning.enabled]
        thinks += [self.thinking.type != "disabled"] if self.thinking else []
        thinks += [False] if effort == "none" else []
        if effort is not None:
            asked["reasoning_effort"] = effort
        for said in thinks:
            if said is not None:
                return asked | {"enable_thinking": said, "thinking": said}
        return asked

    def turn(self, most: int | None) -> Turn:
        """What is asked for, with at most `most` new tokens."""
        limits = [n for n in (self.max_completion_tokens, self.max_tokens, most) if n is not None]
        return Turn(
            messages=[message.plain() for message in self.messages],
            tools=[tool.plain() for tool in self.tools],
            tool_choice=self._choice,
            parallel_calls=self.parallel_tool_calls,
            template_options=self._thinking | self.chat_template_kwargs,
            continues=self.continue_final_message and not self.add_generation_prompt,
            max_tokens=min(limits, default=None),
            min_tokens=self.min_tokens,
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
                    raise ValueError("prompt: a request may have only one prompt")
                return {**body, "prompt": prompt[0]}
        return body

    def turn(self, most: int | None) -> Turn:
        """What is asked for, with at most `most` new tokens; 16 unless the body says more."""
        count = self.max_tokens or 16
        count = count if most is None else min(count, most)
        return Turn(
            self.prompt,
            max_tokens=count,
            min_tokens=self.min_tokens,
            sampling=self.sampling,
            stop=tuple(self.stop),
            logprobs=self.logprobs,
            ignore_end=self.ignore_eos,
        )
