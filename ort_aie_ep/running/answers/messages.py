"""Messages with calls of tools and their results, as chat templates want them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from ort_aie_ep.errors import AieError
from ort_aie_ep.running.answers.forms import HARMONY, CallForm, Tool, plain_names

# Where a template finds the tools: a variable, a text in one, a field of the system's message.
# Where it finds none but shows calls, the text of that message is "system".
OFFERS = ("tools", "xml_tools", "functions", "message.tools")
# What Phi-4-mini's model card begins with, where there is no other system message.
_SYSTEM = "You are a helpful assistant with some tools."


def offered(
    offer: str, messages: list[dict[str, Any]], tools: list[dict[str, Any]], example: str = ""
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, Any]]:
    """Messages, tools and variables of a template that finds the tools where `offer` says."""
    if not tools or offer == "tools":
        return messages, tools, {}
    if offer == "xml_tools":
        return messages, [], {offer: tools}
    text = json.dumps([tool["function"] for tool in tools], ensure_ascii=False)
    if offer == "functions":
        return messages, [], {offer: text, "datetime": datetime.now().strftime("%Y-%m-%d")}
    if messages[0]["role"] != "system":
        messages = [{"role": "system", "content": _SYSTEM}, *messages]
    first, others = messages[0], messages[1:]
    if offer == "system":
        told = f"{first['content']}\n\nTools: {text}\n\nTo call one, write as here: {example}"
        return [{**first, "content": told}, *others], [], {}
    return [{**first, "tools": text}, *others], [], {}


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
        made.append(_shown(message, form) if form else message)
    return made


def _shown(message: dict[str, Any], form: CallForm) -> dict[str, Any]:
    """A message with its calls as the template shows them, or in its content if it shows none."""
    if message["role"] == "tool" and form.offered == "message.tools":
        return {**message, "role": "tool_response"}  # Phi-4-mini's
    functions = [call["function"] for call in message.get("tool_calls", ())]
    if not functions:
        return message
    if form.in_content:
        del message["tool_calls"]
        message["content"] += form.written([(one["name"], one["arguments"]) for one in functions])
    for one in functions if form.as_text else ():
        one["arguments"] = json.dumps(one["arguments"], ensure_ascii=False)
    if form.no_content:
        message["content"] = message["content"] or None
    return message


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
