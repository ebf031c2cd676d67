"""What the routes take, and the turns that they ask for: what all interfaces share, and the bodies
of Chat Completions and Completions. `responses` and `messages` have the others.

A field of the body that is not known is an error, as it may ask for something. Of messages, tools
and their parts, what is not known is ignored: clients put back what other servers gave them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from ort_aie_ep.running.answers.schemas import why_circular, why_too_large
from ort_aie_ep.running.turns import Turn

# Where null is a value of its own: in a JSON schema and, below the body, in arguments of a call.
_SCHEMAS, _ARGUMENTS = {"input_schema", "parameters", "schema"}, {"arguments", "input"}
_LEVELS = 100
# Choices of a request, tools, and bytes of the template's options.
_MOST_CHOICES, MOST_TOOLS, _MOST_OPTIONS = 8, 128, 4096
# In place of a picture of an earlier message, for a model that is not shown it.
_PICTURE = "[a picture, which was left out: this model only reads text]"


def fault(field: str, reason: str) -> PydanticCustomError:
    """What is wrong with a field, for an error that names it."""
    return PydanticCustomError("refused", "{reason}", {"reason": reason, "field": field})


def _without_nulls(value: Any, path: tuple[str, ...] = (), kept: bool = False) -> Any:
    """A body without the keys whose value is null, which clients send for what they leave out.

    JSON can have half of a surrogate pair, which no text has and no tokenizer takes.
    """
    if len(path) > _LEVELS:
        raise fault("", f"the body has more than {_LEVELS} levels")
    if isinstance(value, str):
        if not value.isascii() and any("\ud800" <= one <= "\udfff" for one in value):
            raise fault(".".join(path), "the text is not Unicode: half of a surrogate pair")
        return value
    if isinstance(value, list):
        return [_without_nulls(item, (*path, str(at)), kept) for at, item in enumerate(value)]
    if not isinstance(value, dict):
        return value
    return {
        _without_nulls(key, path): _without_nulls(
            item, (*path, key), kept or key in (_SCHEMAS | (_ARGUMENTS if path else {"format"}))
        )
        for key, item in value.items()
        if kept or item is not None
    }


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Stop = Annotated[str, Field(min_length=1, max_length=1000)]
Stops = Annotated[list[Stop], BeforeValidator(_listed)]
# OpenAI's seeds have a sign, and numpy's none.
_SEEDS = 2**63


class StreamOptions(BaseModel):
    """`stream_options`. Chunks are not padded, whatever `include_obfuscation` says."""

    model_config = ConfigDict(extra="forbid")
    include_usage: bool = False
    include_obfuscation: bool = False
    continuous_usage_stats: bool = False


class Fields(BaseModel):
    """A body, or a part of one with fields that ask for something.

    Attributes:
        ignored: fields that change nothing about the text.
        only: fields of which these values alone are taken.
        refused: fields that are not taken, each with what to do.
    """

    model_config = ConfigDict(extra="forbid")
    ignored: ClassVar[frozenset[str]] = frozenset()
    only: ClassVar[Mapping[str, Sequence[Any]]] = {}
    refused: ClassVar[Mapping[str, str]] = {}

    @model_validator(mode="before")
    @classmethod
    def _plain(cls, body: Any) -> Any:
        """The body without nulls, ignored fields, and fields with their only accepted values."""
        if not isinstance(body, dict):
            return body
        kept = {}
        asked = {name: value for name, value in body.items() if name not in cls.ignored}
        for name, value in _without_nulls(asked).items():
            if name in cls.only and value in cls.only[name]:
                continue
            if name in cls.refused:
                raise fault(name, cls.refused[name])
            if name in cls.only:
                raise fault(name, f"only {json.dumps(cls.only[name][0])} is supported")
            kept[name] = value
        return kept


class Sampled(Fields):
    """How tokens are chosen, by names that all interfaces have."""

    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)

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
        return given


class Asked(Sampled):
    """What the bodies of OpenAI's and Anthropic's interfaces have.

    Attributes:
        model: its name; empty for the server's own.
    """

    model: str = ""
    stream: bool = False


class Body(Asked):
    """What both kinds of completion take."""

    # Of OpenAI's interface, and of llama.cpp's.
    ignored = frozenset({
        "cache_prompt", "metadata", "prediction", "prompt_cache_key", "prompt_cache_options",
        "prompt_cache_retention", "safety_identifier", "service_tier", "store", "user", "verbosity",
    })  # fmt: skip
    only = {
        "best_of": (1,), "echo": (False,), "modalities": (["text"],), "suffix": ("",),
        # The older names of tools, with the values that offer none.
        "function_call": ("none", "auto"), "functions": ([],),
    }  # fmt: skip
    refused = dict.fromkeys(("function_call", "functions"), "use tools and tool_choice instead")
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
    stop: Stops = Field(default_factory=list, max_length=16)
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    min_tokens: int = Field(default=0, ge=0)

    def turns(self, turn: Turn) -> list[Turn]:
        """The turn for each choice: with a seed, choices have seeds of their own."""
        if self.seed is None:
            return [turn] * self.n
        seeds = [(self.seed + i) % _SEEDS for i in range(self.n)]
        return [replace(turn, sampling={**turn.sampling, "seed": seed}) for seed in seeds]

    @property
    def sampling(self) -> dict[str, Any]:
        """With the bias."""
        return super().sampling | ({"bias": self.logit_bias} if self.logit_bias else {})


class Part(BaseModel):
    """A part of a message or a thought, by the names of all interfaces: a text or a picture."""

    type: Literal[
        "text", "input_text", "output_text", "reasoning_text", "summary_text",
        "image", "image_url", "input_image",
    ]  # fmt: skip
    text: str = ""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.type.endswith("text") and "text" not in self.model_fields_set:
            raise fault("text", "Field required")
        return self


def parts(content: Any) -> Any:
    """A text as the list of parts that it stands for."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


# What a message says: a text, or parts.
Content = Annotated[list[Part], BeforeValidator(parts)]


def text_of(parts: Sequence[Part] | None) -> str:
    """Parts as one text, which says of pictures that they are not there."""
    return "".join(_PICTURE if "image" in part.type else part.text for part in parts or ())


def refuse_pictures(asked: Sequence[tuple[str, Sequence[Part] | None]]) -> None:
    """Refuses pictures in the newest of the user's messages, with the place of each; earlier ones
    are of a conversation that goes on."""
    for place, parts in asked[-1:]:
        for at, part in enumerate(parts or ()):
            if "image" in part.type:
                raise fault(f"{place}.{at}", "this model only reads text, no pictures")


def message(
    role: str, text: str, thought: str | None = None, calls: Sequence[dict[str, Any]] = ()
) -> dict[str, Any]:
    """A message for a turn; that of a developer is the system's."""
    made: dict[str, Any] = {"role": "system" if role == "developer" else role, "content": text}
    if thought:
        made["reasoning_content"] = thought
    if calls:
        made["tool_calls"] = [*calls]
    return made


def call(number: str, name: str, arguments: Any) -> dict[str, Any]:
    """An earlier call for a turn, with arguments as JSON or what came in place of it."""
    function = {"name": name, "arguments": arguments}
    return {"id": number, "type": "function", "function": function}


def result(number: str, text: str) -> dict[str, Any]:
    """The result of a call for a turn."""
    return {**message("tool", text), "tool_call_id": number}


def thinking(effort: str | None, *asked: bool | None) -> dict[str, Any]:
    """How long to think, and whether, by what was asked first, for a template: by the names that
    templates have for it."""
    options: dict[str, Any] = {} if effort is None else {"reasoning_effort": effort}
    for thinks in (*asked, False if effort == "none" else None):
        if thinks is not None:
            return options | {"enable_thinking": thinks, "thinking": thinks}
    return options


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
    content: Content | None = None
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
            raise fault("role", "use tool_calls and the role tool instead")
        if isinstance(thought := message.get("reasoning"), str):
            return {"reasoning_content": thought, **message}
        return message

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.tool_calls and self.role != "assistant":
            raise fault("tool_calls", "only messages of the role assistant may have them")
        if self.role == "tool" and self.tool_call_id is None:
            raise fault("tool_call_id", "a message of the role tool must name its call")
        if self.content is None and self.role not in ("assistant", "tool"):
            raise fault("content", "only messages of the roles assistant and tool may omit it")
        return self

    def plain(self) -> dict[str, Any]:
        """The message for a chat template."""
        text = text_of(self.content)
        if self.role == "tool":
            return result(self.tool_call_id or "", text)
        calls = [call(c.id, c.function.name, c.function.arguments) for c in self.tool_calls]
        return message(self.role, text, self.reasoning_content, calls)


def why_refused(schema: dict[str, Any]) -> str:
    """Why a schema that is to be followed is not taken; empty if it is."""
    return why_too_large(schema) or why_circular(schema)


class Function(BaseModel):
    """`function` of a tool. Calls follow `parameters`, and `strict` refuses what cannot be held."""

    name: str = Field(min_length=1, max_length=256)
    description: str = ""
    parameters: dict[str, Any] = Field(default_factory=dict)
    strict: bool = False

    @model_validator(mode="after")
    def _small(self) -> Self:
        if reason := self.strict and why_refused(self.parameters):
            raise fault("parameters", reason)
        return self

    def plain(self) -> dict[str, Any]:
        """The tool for a turn."""
        names = {"name", "description", "parameters", "strict"}
        return {"type": "function", "function": self.model_dump(include=names)}


def check_tools(tools: Sequence[Function], choice: str) -> None:
    """Refuses two tools with one name, and a choice of what is not there."""
    names = [tool.name for tool in tools]
    if len({*names}) < len(names):
        raise fault("tools", "two tools have one name")
    if choice == "required" and not names:
        raise fault("tool_choice", "there are no tools to call")
    if choice not in ("none", "auto", "required", *names):
        raise fault("tool_choice", f"there is no tool {choice!r}")


class Tool(BaseModel):
    """A tool that the model may call."""

    type: Literal["function"]
    function: Function


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
    """A schema; the name and description beside it are not used."""

    json_schema: dict[str, Any] | None = Field(default=None, alias="schema")

    @model_validator(mode="after")
    def _small(self) -> Self:
        if reason := self.json_schema is not None and why_refused(self.json_schema):
            raise fault("schema", reason)
        return self


class Format(JsonSchema):
    """The form of a text. It follows a schema, whatever `strict` says."""

    type: Literal["text", "json_object", "json_schema"] = "text"

    @property
    def schema_text(self) -> str:
        """The schema as JSON; empty for any text."""
        if self.type == "text":
            return ""
        return json.dumps({"type": "object"} if self.json_schema is None else self.json_schema)


class ResponseFormat(Format):
    """`response_format`. The schema may be in `json_schema`, as OpenAI has it, or beside the type,
    as llama.cpp does."""

    type: Literal["text", "json_object", "json_schema"]
    named: JsonSchema = Field(default_factory=lambda: JsonSchema(), alias="json_schema")

    @model_validator(mode="after")
    def _one(self) -> Self:
        if self.type == "json_schema" and self.named.json_schema is not None:
            self.json_schema = self.named.json_schema
        return self


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
    tools: list[Tool] = Field(default_factory=list, max_length=MOST_TOOLS)
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
        check_tools([tool.function for tool in self.tools], self._asked)
        refuse_pictures([
            (f"messages.{at}.content", one.content)
            for at, one in enumerate(self.messages) if one.role == "user"
        ])  # fmt: skip
        if self.top_logprobs and not self.logprobs:
            raise fault("top_logprobs", "give logprobs too")
        if len(json.dumps(self.chat_template_kwargs)) > _MOST_OPTIONS:
            raise fault("chat_template_kwargs", f"they have more than {_MOST_OPTIONS} bytes")
        return self

    @property
    def _asked(self) -> str:
        choice = self.tool_choice
        return choice.function.name if isinstance(choice, NamedTool) else choice

    @property
    def _schema(self) -> str:
        return self.response_format.schema_text if self.response_format else ""

    @property
    def _thinking(self) -> dict[str, Any]:
        return thinking(
            self.reasoning_effort or self.reasoning.effort,
            self.enable_thinking,
            self.reasoning.enabled,
            self.thinking.type != "disabled" if self.thinking else None,
        )

    def turn(self, most: int | None) -> Turn:
        """What is asked for, with at most `most` new tokens."""
        limits = [n for n in (self.max_completion_tokens, self.max_tokens, most) if n is not None]
        return Turn(
            messages=[one.plain() for one in self.messages],
            tools=[tool.function.plain() for tool in self.tools],
            tool_choice=self._asked,
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
