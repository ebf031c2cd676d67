"""Messages with calls of tools and their results, as chat templates want them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ort_aie_ep.errors import AieError
from ort_aie_ep.running.answers.forms import HARMONY, CallForm, Tool, plain_names

# What Phi-4-mini's model card begins with, where there is no other system message.
_SYSTEM = "You are a helpful assistant with some tools."


def prepared(
    form: CallForm | None, messages: list[dict[str, Any]], tools: Sequence[Tool]
) -> list[dict[str, Any]]:
    """The messages of OpenAI's interface as templates of a family have them.

    Each has a content, arguments are objects, and a result has the name of its tool.

    Raises:
        AieError: a call is not one.
    """
    names: dict[str, str] = {}
    plain = {tool.asked: tool.name for tool in tools}
    made = []
    for at, message in enumerate(messages):
        message = {**message, "content": message.get("content") or ""}
        if message.get("tool_calls") == []:
            del message["tool_calls"]
        if "tool_calls" in message:
            calls = message["tool_calls"]
            if not isinstance(calls, list):
                raise AieError(
                    f"messages.{at}.tool_calls must be a list of calls, got {calls!r:.80}"
                )
            message["tool_calls"] = [
                _call(call, f"messages.{at}.tool_calls.{number}", form, plain)
                for number, call in enumerate(calls)
            ]
            names |= {call["id"]: call["function"]["name"] for call in message["tool_calls"]}
        if message["role"] == "tool":
            message["tool_call_id"] = number = _id(str(message.get("tool_call_id", "")), form)
            name = message.get("name")
            message["name"] = _plain(name, plain) if name else names.get(number, "")
        if form is HARMONY and "reasoning_content" in message and not message["content"]:
            message["thinking"] = message["reasoning_content"]
        made.append(message)
    return _phi4(made, tools) if form is not None and form.family == "phi4" else made


def _call(
    call: object, where: str, form: CallForm | None, plain: Mapping[str, str]
) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise AieError(f"{where}.function must have a name and arguments, got {call!r:.80}")
    assert isinstance(call, dict)
    return {
        "id": _id(str(call.get("id", "")), form),
        "type": "function",
        "function": {
            "name": _plain(function["name"], plain),
            "arguments": arguments_of(function.get("arguments")),
        },
    }


def arguments_of(given: object) -> dict[str, Any]:
    """The arguments of an earlier call as an object. A call that was cut, or that a model got
    wrong, comes back as it was, and the model is to see that."""
    if isinstance(given, str):
        try:
            given = json.loads(given or "{}")
        except (RecursionError, ValueError):
            return {"arguments": given}
    if isinstance(given, dict):
        return given
    return {"arguments": given} if given else {}


def _plain(name: str, plain: Mapping[str, str]) -> str:
    """The name of a tool as the model is to see it."""
    return plain.get(name) or plain_names([name])[name]


def _id(given: str, form: CallForm | None) -> str:
    """An id as the family's templates take it: Mistral's want exactly nine letters and digits."""
    length = form.id_length if form else 0
    if not length or re.fullmatch(rf"[A-Za-z0-9]{{{length}}}", given):
        return given
    return hashlib.sha256(given.encode()).hexdigest()[:length]


def _phi4(messages: list[dict[str, Any]], tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """Phi-4-mini's template knows only texts: it has tools in the system message, and no calls."""
    made = []
    for message in messages:
        role, content = message["role"], message["content"]
        if calls := message.get("tool_calls"):
            shown = json.dumps([call["function"] for call in calls], ensure_ascii=False)
            content = f"{content}<|tool_call|>{shown}<|/tool_call|>"
        made.append({"role": "tool_response" if role == "tool" else role, "content": content})
    if tools:
        if made[0]["role"] != "system":
            made.insert(0, {"role": "system", "content": _SYSTEM})
        shown = json.dumps([tool.shown["function"] for tool in tools], ensure_ascii=False)
        made[0]["tools"] = shown
    return made
