"""Bodies for a server as clients might send them, right and wrong, from a seed.

A body is plain JSON with a path to post it to. It has the fields that OpenAI's package declares for
the request, with values of their declared types; what other clients put beside them; and, in half
of the bodies, a few values that are of no use. `content` writes a body, in which texts may have
halves of surrogate pairs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from copy import deepcopy
from random import Random
from types import NoneType, UnionType
from typing import Any, Literal, Required, Union, get_args, get_origin, get_type_hints

from openai.types.chat import completion_create_params as chat
from openai.types.completion_create_params import CompletionCreateParamsNonStreaming
from typing_extensions import is_typeddict  # OpenAI's are those of typing_extensions

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
# Texts that are hard to encode, to cut, or to tell from a template's own.
TEXTS = (
    "", " ", "\n", "import os", "\0", "\U0001f468\u200d\U0001f469", "e\u0301", "\ufeff", "\u202e",
    "\u2028", "<|endoftext|>", "<tool_call>", "</think>", "<think>", "{{ 1/0 }}", "{% raw %}",
    "[" * 300, "\u00df" * 99, '"', "\\", "</s>", "NaN", "data: [DONE]\n\n",
)  # fmt: skip
SURROGATES = ("\ud800", "a\udfffb")
NUMBERS = (
    0, 1, -1, 2, 0.5, -0.0, 1e-9, 1e308, float("inf"), float("nan"), 2**31, 2**53 + 1, 2**63,
    -(2**63) - 1, 10**40, True,
)  # fmt: skip
JUNK = (None, [], {}, [[]], [None], {"": {}}, {"\ud800": 1}, [{}], "1", "auto", "null")
# What keeps a body quick to answer: these stay as they are.
BOUND = {"max_completion_tokens": 6}
# Fields of OpenAI's that a server of texts refuses, mostly: few bodies have them.
SELDOM = {
    "audio", "best_of", "echo", "function_call", "functions", "logit_bias", "modalities",
    "moderation", "suffix", "web_search_options",
}  # fmt: skip
CACHE = {"type": "ephemeral"}
# Fields of clients and of other servers, beside OpenAI's.
OF_CLIENTS: dict[str, tuple[Any, ...]] = {
    "cache_prompt": (True, False),
    "chat_template_kwargs": ({"enable_thinking": False}, {"x": [1]}),
    "enable_thinking": (True, False),
    "extra_body": ({"x": 1},),
    "format": ("json",),
    "id_slot": (-1, 0),
    "ignore_eos": (True, False),
    "include_reasoning": (True,),
    "keep_alive": ("5m", -1),
    "max_tokens": (1, 3, 32000),
    "min_p": (0.1, 0),
    "options": ({"num_ctx": 4096},),
    "provider": ({"order": []},),
    "reasoning": ({"effort": "high", "enabled": False}, {"summary": "auto"}),
    "repeat_penalty": (1.0,),
    "repetition_penalty": (1.1,),
    "session_id": ("s",),
    "stop_token_ids": ([1, 2],),
    "thinking": ({"type": "enabled", "budget_tokens": 5}, {"type": "disabled"}),
    "timings_per_token": (True,),
    "top_k": (0, 1, 40),
    "transforms": (["middle-out"],),
    "usage": ({"include": True},),
}
OF_MESSAGES: dict[str, tuple[Any, ...]] = {
    "annotations": ([],),
    "audio": (None,),
    "cache_control": (CACHE,),
    "created_at": (1,),
    "function_call": (None,),
    "id": ("m1",),
    "images": ([],),
    "name": ("me",),
    "partial": (True,),
    "provider_specific_fields": (None, {"citations": []}),
    "reasoning": ("Hm.",),
    "reasoning_content": ("Hm.", ""),
    "reasoning_details": ([{"type": "reasoning.text", "text": "Hm."}],),
    "refusal": (None,),
    "thinking": ("Hm.",),
    "thinking_blocks": ([{"type": "thinking", "thinking": "", "signature": ""}],),
    "tool_calls": ([],),
}
# Schemas of values: what is usual, and what is odd, large or wrong.
SCALARS: tuple[dict[str, Any], ...] = (
    {"type": "string"}, {"type": "integer", "minimum": -3, "maximum": 2**53}, {"type": "number"},
    {"type": "boolean"}, {"type": "null"}, {"enum": ["a", "\u00e9", 1, None]}, {"const": "c"},
    {"type": "string", "pattern": "^[a-z]{2,4}$"}, {"type": ["string", "null"]}, {},
    {"type": "string", "format": "date-time"},
)  # fmt: skip
ODD: tuple[dict[str, Any], ...] = (
    {"type": "string", "maxLength": 524288}, {"type": "any"}, {"not": {}}, {"multipleOf": 0},
    {"$ref": "#/$defs/x"}, {"$ref": "#"}, {"type": "string", "pattern": "(a+)+$"},
    {"type": "string", "minLength": 2, "nullable": True, "default": "\ud800"},
)  # fmt: skip


def bodies(seed: int, count: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Paths and bodies: body `i` of a seed is `body(Random(f"{seed} {i}"))`."""
    for i in range(count):
        yield body(Random(f"{seed} {i}"))


def body(random: Random) -> tuple[str, dict[str, Any]]:
    """A path, and a body for it: a third as OpenAI's package declares it, a third with what other
    clients put beside that, a third spoiled."""
    kind = random.choice(["declared", "of clients", "spoiled"])
    path = CHAT if random.random() < 0.8 else COMPLETIONS
    of_clients = kind != "declared"
    made: dict[str, Any] = {"model": "demo"}
    if path == CHAT:
        declared: Any = chat.CompletionCreateParamsNonStreaming
        made |= {"messages": _messages(random, of_clients), **BOUND, **_tools(random)}
        if random.random() < 0.2:
            plain = [{"type": "json_object"}, {"type": "text"}]
            made["response_format"] = random.choice([*plain, _format(random)])
        for name in ("messages", "tools"):  # pictures, sounds, tools of other kinds
            if random.random() < 0.1:
                made[name] = _of(get_type_hints(declared)[name], random)
    else:
        declared = CompletionCreateParamsNonStreaming
        made |= {"prompt": random.choice([_text(random), [5, 6, 7], "import os"]), "max_tokens": 6}
    hints = get_type_hints(declared)
    for name in _some(random, sorted(hints.keys() - made.keys() - {"max_tokens"}), most=4):
        if name not in SELDOM or random.random() < 0.1:
            made[name] = _of(hints[name], random)
    if made.get("top_logprobs") is not None:
        made["logprobs"] = True
    if of_clients:
        for name in _some(random, [*OF_CLIENTS], most=2):
            made.setdefault(name, random.choice(OF_CLIENTS[name]))
    if random.random() < 0.3:
        made["stream"] = True
    made = deepcopy(made)  # parts of it are constants
    if kind == "spoiled":
        for _ in range(random.randint(1, 3)):
            _spoil(made, random)
    return path, made


def content(made: Mapping[str, Any]) -> bytes:
    """A body as it is sent."""
    return json.dumps(made).encode()


def _some(random: Random, names: list[str], most: int = 3) -> list[str]:
    return random.sample(names, random.randint(0, min(most, len(names))))


def _text(random: Random) -> str:
    texts = SURROGATES if random.random() < 0.01 else TEXTS
    return "".join(random.choice(texts) for _ in range(random.randint(0, 3)))


# --- what a conversation has ---


def _messages(random: Random, of_clients: bool) -> list[dict[str, Any]]:
    """A conversation, in which answers, calls and results were put back."""
    messages = []
    if random.random() < 0.5:
        messages.append({"role": random.choice(["system", "developer"]), "content": _text(random)})
    for turn in range(random.randint(1, 3)):
        messages.append({"role": "user", "content": _parts(random)})
        if turn and random.random() < 0.5:
            calls = [_call(random, f"call_{turn}_{i}") for i in range(random.randint(1, 2))]
            messages.append({"role": "assistant", "content": None, "tool_calls": calls})
            for call in calls:
                result = {"role": "tool", "tool_call_id": call["id"], "content": _parts(random)}
                messages.append(result)
        elif random.random() < 0.5:
            messages.append({"role": "assistant", "content": _parts(random)})
    for message in messages:
        if of_clients and random.random() < 0.3:
            for name in _some(random, [*OF_MESSAGES], most=2):
                message.setdefault(name, random.choice(OF_MESSAGES[name]))
    return messages


def _parts(random: Random) -> str | list[dict[str, Any]]:
    """Content: a text, or parts."""
    if random.random() < 0.7:
        return _text(random)
    parts: list[dict[str, Any]] = []
    for _ in range(random.randint(0, 3)):
        parts.append({"type": "text", "text": _text(random)})
        if random.random() < 0.2:
            parts[-1]["cache_control"] = CACHE
    return parts


def _call(random: Random, number: str) -> dict[str, Any]:
    odd = ['{"a": [1, {"b": "\\ud800"}]}', '{"a": "cut', "", "[1]", "{" * 9]
    arguments = random.choice(odd if random.random() < 0.2 else ["{}", '{"a": "b"}'])
    function = {"name": random.choice(["f", "gone"]), "arguments": arguments}
    return {"id": number, "type": "function", "function": function}


def _named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def _tools(random: Random) -> dict[str, Any]:
    """Tools, and which of them to call; or nothing."""
    names = random.choice([[], ["f"], ["f", "g-1", "h_2"]])
    if not names:
        return {}
    choice = random.choice(["auto", "auto", "none", "required", _named("f")])
    return {"tools": [_tool(random, name) for name in names], "tool_choice": choice}


def _tool(random: Random, name: str) -> dict[str, Any]:
    function: dict[str, Any] = {"name": name, "description": _text(random)}
    if random.random() < 0.9:
        function["parameters"] = _object(random, 3)
    if random.random() < 0.2:
        function["strict"] = random.choice([True, False, None])
    tool: dict[str, Any] = {"type": "function", "function": function}
    if random.random() < 0.1:
        tool["cache_control"] = CACHE
    return tool


def _format(random: Random) -> dict[str, Any]:
    return {
        "type": "json_schema",
        "json_schema": {"name": "n", "strict": True, "schema": _object(random, 3)},
    }


def _object(random: Random, depth: int) -> dict[str, Any]:
    properties = {
        name: _schema(random, depth - 1) for name in _some(random, ["a", "b\u00e9", "$c", ""])
    }
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if random.random() < 0.6:
        schema["required"] = random.choice([[*properties], [*properties][:1], ["gone"]])
    if random.random() < 0.4:
        schema["additionalProperties"] = random.choice([False, True, {"type": "string"}])
    if random.random() < 0.2:
        schema["$defs"] = {"x": _schema(random, depth - 1)}
        schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return schema


def _schema(random: Random, depth: int) -> dict[str, Any]:
    kind = random.randrange(8) if depth > 0 else 0
    if kind == 1:
        return _object(random, depth)
    if kind == 2:
        return {"type": "array", "items": _schema(random, depth - 1), "maxItems": 256}
    if kind == 3:
        several = [_schema(random, depth - 1) for _ in range(random.randint(0, 3))]
        return {random.choice(["anyOf", "oneOf", "allOf", "prefixItems"]): several}
    return dict(random.choice(ODD if random.random() < 0.1 else SCALARS))


# --- values of declared types, and of none ---


def _of(hint: Any, random: Random, depth: int = 4) -> Any:
    """A value of a type, as OpenAI's package declares it."""
    origin, given = get_origin(hint), get_args(hint)
    if origin is Literal:
        return random.choice(given)
    if origin in (Union, UnionType):
        return _of(random.choice(given), random, depth)
    if is_typeddict(hint):
        # Not __required_keys__, which misses those whose annotations are texts.
        fields = get_type_hints(hint, include_extras=True)
        required = {name for name, field in fields.items() if get_origin(field) is Required}
        names = sorted({*required, *_some(random, [*fields])}) if depth > 0 else []
        return {name: _of(fields[name], random, depth - 1) for name in names}
    if origin is Required:
        return _of(given[0], random, depth)
    if origin is dict:
        return {_text(random): _of(given[1], random, depth - 1)} if depth > 0 else {}
    if given:  # an iterable
        return [_of(given[0], random, depth - 1) for _ in range(random.randint(0, 2 * (depth > 0)))]
    if hint in (int, float):
        return random.choice([0, 1, 0.5]) if hint is float else random.randint(1, 2)
    simple = {str: _text(random), bool: random.random() < 0.5, NoneType: None}
    return simple.get(hint, {})


def _spoil(made: dict[str, Any], random: Random) -> None:
    """Puts something of no use in the place of a value, or removes it."""
    places = [
        place for place in _places(made) if place[1] not in BOUND and place[1] != "max_tokens"
    ]
    if not places:
        return
    where, key = random.choice(places)
    kind = random.randrange(5)
    if kind == 0:
        del where[key]
    elif kind == 1:
        where[key] = random.choice(NUMBERS)
    elif kind == 2:
        where[key] = random.choice(JUNK)
    elif kind == 3:
        where[key] = _text(random)
    else:
        deep: Any = where[key]
        for _ in range(random.choice([1, 2, 90, 150])):
            deep = random.choice([[deep], {"a": deep}])
        where[key] = deep


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Containers and keys of all values inside one."""
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, item in [*items]:
        yield value, key
        yield from _places(item)
