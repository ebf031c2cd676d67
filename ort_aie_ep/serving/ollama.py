"""ollama's interface: /api/chat, /api/generate, and what its clients ask about models.

Fields that are not known are ignored, as ollama does: clients send some that it does not have.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from ort_aie_ep.errors import AieError
from ort_aie_ep.running.answers.messages import arguments_of
from ort_aie_ep.running.turns import Accepted, Logprob, Turn, Usage
from ort_aie_ep.serving.answers import Answer, told_in_chat
from ort_aie_ep.serving.errors import OLLAMA, error_of
from ort_aie_ep.serving.models import Held
from ort_aie_ep.serving.offers import Offer
from ort_aie_ep.serving.requests import (
    MOST_TOOLS,
    Fields,
    Part,
    Sampled,
    Stops,
    Tool,
    call,
    check_tools,
    fault,
    message,
    refuse_pictures,
    result,
    text_of,
    thinking,
    why_refused,
)
from ort_aie_ep.serving.written import Block, Event, Step

# Of ollama's interface: clients refuse a server that is older than what they use of it.
VERSION = "0.12.11"
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)")
# Longer than any server runs; what ollama's clients take for ever.
_EVER = 10 * 365 * 86400.0
_END_OF_TIME = "9999-12-31T23:59:59Z"


def _seconds(given: Any) -> float | None:
    """A duration as Go writes it, or seconds: None for one without an end."""
    if isinstance(given, str):
        sign, parts = (-1.0 if given.startswith("-") else 1.0), _DURATION.findall(given)
        if parts and "".join(number + unit for number, unit in parts) == given.lstrip("+-"):
            given = sign * sum(float(number) * _UNITS[unit] for number, unit in parts)
        elif re.fullmatch(r"-?\d{1,9}", given):
            given = float(given)
    if not isinstance(given, int | float) or isinstance(given, bool):
        raise ValueError("a duration is a number of seconds, or as in 5m and 1h30m")
    return float(given) if 0 <= given <= _EVER else None


Keep = Annotated[float | None, BeforeValidator(_seconds)]


class Options(Sampled):
    """`options`. The context is the server's, whatever `num_ctx` says."""

    model_config = ConfigDict(extra="ignore")
    only: ClassVar = {"mirostat": (0,), "tfs_z": (1,), "typical_p": (1,)}
    seed: int | None = None
    top_k: int | None = Field(default=None, ge=-1)
    min_p: float | None = Field(default=None, ge=0, le=1)
    repetition_penalty: float | None = Field(default=None, gt=0, le=10, alias="repeat_penalty")
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    num_predict: int = -1
    stop: Stops = Field(default_factory=list, max_length=16)

    @property
    def sampling(self) -> dict[str, Any]:
        """Without a seed below 0, which asks for any."""
        given = super().sampling
        if self.seed is not None and self.seed < 0:
            del given["seed"]
        return given


class _Asked(Fields):
    """What both kinds of request have."""

    model_config = ConfigDict(extra="ignore")
    model: str = ""
    stream: bool = True
    options: Options = Field(default_factory=Options)
    format: Literal["", "json"] | dict[str, Any] = ""
    keep_alive: Keep = None
    think: bool | str | None = None
    logprobs: bool = False
    top_logprobs: int = Field(default=0, ge=0, le=20)

    @model_validator(mode="after")
    def _small(self) -> Self:
        if isinstance(self.format, dict) and (reason := why_refused(self.format)):
            raise fault("format", reason)
        return self

    def _turn(self, most: int | None, **asked: Any) -> Turn:
        limits = [n for n in (self.options.num_predict, most) if n is not None and n > 0]
        form = {"type": "object"} if self.format == "json" else self.format
        effort = self.think if isinstance(self.think, str) else None
        return Turn(
            max_tokens=min(limits, default=None),
            sampling=self.options.sampling,
            stop=tuple(self.options.stop),
            schema=json.dumps(form) if form != "" else "",
            template_options=thinking(effort, True if effort else self.think),  # type: ignore[arg-type]
            logprobs=self.top_logprobs if self.logprobs else None,
            **asked,
        )


class _Function(BaseModel):
    """`function` of a call."""

    name: str
    arguments: Any = Field(default_factory=dict)


class _Call(BaseModel):
    """A call of a tool, in an earlier answer."""

    id: str = ""
    function: _Function


class _Message(BaseModel):
    """A message."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    thinking: str = ""
    images: list[Any] = Field(default_factory=list)
    tool_calls: list[_Call] = Field(default_factory=list)
    tool_name: str = ""
    tool_call_id: str = ""

    @property
    def parts(self) -> list[Part]:
        """The text, and that there are pictures."""
        return [Part(type="text", text=self.content), *(Part(type="image") for _ in self.images)]


class Chat(_Asked):
    """The body of /api/chat."""

    messages: list[_Message] = Field(default_factory=list)
    tools: list[Tool] = Field(default_factory=list, max_length=MOST_TOOLS)

    @model_validator(mode="after")
    def _agree(self) -> Self:
        check_tools([tool.function for tool in self.tools], "auto")
        users = [(at, one) for at, one in enumerate(self.messages) if one.role == "user"]
        refuse_pictures([(f"messages.{at}.images", one.parts) for at, one in users])
        return self

    @property
    def asks(self) -> bool:
        """Whether it asks for a text; else the model is loaded or unloaded."""
        return bool(self.messages)

    def turn(self, most: int | None) -> Turn:
        """What is asked for, with at most `most` new tokens."""
        tools = [tool.function.plain() for tool in self.tools]
        return self._turn(most, messages=_plain(self.messages), tools=tools)


def _plain(messages: Sequence[_Message]) -> list[dict[str, Any]]:
    """Messages for a chat template. A result without an id is that of the first call that has none
    yet, if it names no tool, or of the first one of that tool."""
    made: list[dict[str, Any]] = []
    waiting: list[tuple[str, str]] = []  # calls without results: their ids, and their tools
    for at, one in enumerate(messages):
        text = text_of(one.parts)
        if one.role == "tool":
            number = one.tool_call_id or next(
                (number for number, name in waiting if one.tool_name in ("", name)), ""
            )
            waiting = [each for each in waiting if each[0] != number]
            named = {"name": one.tool_name} if one.tool_name else {}
            made.append({**result(number, text), **named})
            continue
        ids = [each.id or f"call_{at}_{i}" for i, each in enumerate(one.tool_calls)]
        names = [each.function.name for each in one.tool_calls]
        waiting += zip(ids, names, strict=True)
        calls = [
            call(number, each.function.name, each.function.arguments)
            for number, each in zip(ids, one.tool_calls, strict=True)
        ]
        made.append(message(one.role, text, one.thinking, calls))
    return made


class Generate(_Asked):
    """The body of /api/generate."""

    only: ClassVar = {"images": ([],), "suffix": ("",), "template": ("",)}
    refused: ClassVar = {
        "context": "use /api/chat, with the whole conversation",
        "images": "this model only reads text, no pictures",
    }
    prompt: str = ""
    system: str = ""
    raw: bool = False

    @property
    def asks(self) -> bool:
        """Whether it asks for a text; else the model is loaded or unloaded."""
        return bool(self.prompt)

    def turn(self, most: int | None) -> Turn:
        """What is asked for: an answer, or of a model without a chat template, what follows."""
        if self.raw:
            return self._turn(most, prompt=self.prompt)
        asked = [message("system", self.system)] if self.system else []
        text = f"{self.system}\n\n{self.prompt}" if self.system else self.prompt
        return self._turn(most, prompt=text, messages=[*asked, message("user", self.prompt)])


class OllamaAnswer(Answer):
    """The answer of both."""

    media_type = "application/x-ndjson"

    def __init__(self, body: Chat | Generate) -> None:
        super().__init__()
        self._model, self._chat, self._asks = body.model, isinstance(body, Chat), body.asks
        # When it was asked for, when it was accepted, when the first token came, and the end.
        self._times = [time.perf_counter_ns()]

    def add(self, number: int, event: Event) -> list[Step]:
        """Takes what came, and when."""
        if isinstance(event, Usage) or len(self._times) < 3:
            self._times.append(time.perf_counter_ns())
        return super().add(number, event)

    def body(self) -> dict[str, Any]:
        """The whole answer."""
        text = self.texts[0]
        said = self._said(text.text("text"), text.text("thought"), text.calls, text.logprobs)
        return {**said, **self._end()}

    def take(self, number: int, event: Event) -> list[dict[str, Any]]:
        """A line for each piece, and one for the end. Calls are whole."""
        steps = self.add(number, event)
        if isinstance(event, Accepted):
            return []
        texts = {"text": "", "thought": ""}
        for what, block, added in steps:
            if what == "add" and block.kind in texts:
                texts[block.kind] += added
        calls = [block for what, block, _ in steps if what == "end" and block.kind == "call"]
        logprobs = () if isinstance(event, Usage) else event.logprobs
        lines = []
        if any((*texts.values(), calls, logprobs)):
            lines.append(self._said(texts["text"], texts["thought"], calls, logprobs))
        if isinstance(event, Usage):
            lines.append({**self._said(""), **self._end()})
        return lines

    def failed(self, error: AieError) -> dict[str, Any]:
        """The error as the body that it would be."""
        return error_of(OLLAMA, error)[1]

    def line(self, content: dict[str, Any]) -> str:
        """A line."""
        return json.dumps(content) + "\n"

    def quiet(self, progress: str) -> str:
        """A piece without a text, as lines have no comments."""
        return self.line(self._said(""))

    def loaded(self, reason: str) -> dict[str, Any]:
        """What is said of a request without a text: that the model was loaded, or unloaded."""
        return {**self._said(""), "done": True, "done_reason": reason}

    def _said(
        self, text: str, thought: str = "", calls: Sequence[Block] = (),
        logprobs: Sequence[Logprob] = (),
    ) -> dict[str, Any]:  # fmt: skip
        said: dict[str, Any] = {"model": self._model, "created_at": _time(datetime.now(UTC))}
        thoughts = {"thinking": thought} if thought else {}
        if self._chat:
            whole = [self._call(block) for block in calls if not self._is_cut(block)]
            made = {"tool_calls": whole} if whole else {}
            said["message"] = {"role": "assistant", "content": text, **thoughts, **made}
        else:
            said |= {"response": text, **thoughts}
        told = {"logprobs": told_in_chat(logprobs)["content"]} if logprobs else {}
        return {**said, "done": False, **told}

    def _is_cut(self, block: Block) -> bool:
        """Whether a limit cut a call, which nobody is to run then."""
        usage = self.texts[0].usage
        if usage is None or usage.finish_reason != "length":
            return False
        try:
            json.loads(block.text)
        except ValueError:
            return True
        return False

    def _call(self, block: Block) -> dict[str, Any]:
        at = self.texts[0].calls.index(block)
        function = {"index": at, "name": block.name, "arguments": arguments_of(block.text)}
        return {"id": block.id, "function": function}

    def _end(self) -> dict[str, Any]:
        text = self.texts[0]
        if not self._asks:
            return {"done": True, "done_reason": "load"}
        assert text.usage is not None
        begun, accepted, first, end = *self._times[:3], self._times[-1]
        return {
            "done": True,
            "done_reason": "length" if text.usage.finish_reason == "length" else "stop",
            "total_duration": end - begun,
            "load_duration": accepted - begun,
            "prompt_eval_count": text.prompt_tokens,
            "prompt_eval_duration": first - accepted,
            "eval_count": text.tokens,
            "eval_duration": end - first,
        }


class Show(Fields):
    """The body of /api/show."""

    model_config = ConfigDict(extra="ignore")
    model: str = Field(default="", validation_alias=AliasChoices("model", "name"))


def listed(offer: Offer) -> dict[str, Any]:
    """A model of /api/tags."""
    written = datetime.fromtimestamp(offer.modified, UTC)
    return {**_about(offer), "modified_at": _time(written)}


def loaded(held: Held) -> dict[str, Any]:
    """A model of /api/ps."""
    until = _END_OF_TIME
    if held.keep is not None:
        until = _time(datetime.now(UTC) + timedelta(seconds=held.keep))
    length = {"context_length": held.engine.facts.context}
    return {**_about(held.offer), "expires_at": until, "size_vram": 0, **length}


def shown(offer: Offer) -> dict[str, Any]:
    """What /api/show says."""
    about = listed(offer)
    kept = {name: about[name] for name in ("details", "modified_at")}
    return {"license": "", "modelfile": "", "template": "", **kept, **offer.details()}


def _about(offer: Offer) -> dict[str, Any]:
    family = offer.family
    details = {
        "parent_model": "", "format": "onnx", "family": family,
        "families": [family] if family else [], "parameter_size": "", "quantization_level": "",
    }  # fmt: skip
    named = {"name": offer.name, "model": offer.name}
    return {**named, "size": offer.size, "digest": offer.digest, "details": details}


def _time(when: datetime) -> str:
    return when.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
