"""Families of models: a small chat template in each one's manner, and what the model then writes.

The calls are those of the sources in docs/tools.md, with other names and values.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from ort_aie_ep.models.folder import ModelFolder
from ort_aie_ep.running.answers import Tool
from ort_aie_ep.running.guidance import Guide, Guides

WEATHER = Tool(
    "get_weather",
    "The weather in a city.",
    {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "unit": {"enum": ["C", "F"]},
        },
        "required": ["city"],
        "additionalProperties": False,
    },
)
SUM = Tool(
    "add",
    "A sum.",
    {
        "type": "object",
        "properties": {
            "at": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]},
            "terms": {"type": "array", "items": {"type": "number"}},
        },
        "required": ["at", "terms"],
        "additionalProperties": False,
    },
)
CITY = {"city": 'Köln "am" Rhein\n'}
ADD = {"at": {"x": 1.5}, "terms": [1, -2]}
END = "<|end_of_text|>"


@dataclass(frozen=True)
class Family:
    """A family.

    Attributes:
        template: a chat template.
        calls: calls of get_weather with CITY, and then of add with ADD if `many`.
        tokens: special tokens, besides END.
        plain: added tokens that are not special.
        many: whether an answer may have several calls.
    """

    template: str
    calls: str
    tokens: tuple[str, ...] = ()
    plain: tuple[str, ...] = ()
    many: bool = True


def _chat(body: str, calls: str) -> str:
    """A template whose assistant messages are a content and `calls`, and whose prompt ends with
    "<assistant>"."""
    return (
        "{% if tools %}{{ tools | tojson }} " + body + "{% endif %}"
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}"
        "{% if m.tool_calls %}" + calls + "{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )


def _each(call: str, between: str = "") -> str:
    comma = "{% if not loop.last %}" + between + "{% endif %}" if between else ""
    return "{% for c in m.tool_calls %}" + call + comma + "{% endfor %}"


_NAME, _ARGUMENTS = "{{ c.function.name }}", "{{ c.function.arguments | tojson }}"
_OBJECT = '{"name": "' + _NAME + '", "arguments": ' + _ARGUMENTS + "}"
_TEXT = json.dumps(CITY, ensure_ascii=False)
_OBJECTS = (
    '{"name": "get_weather", "arguments": ' + _TEXT + "}, "
    '{"name": "add", "arguments": {"at": {"x": 1.5}, "terms": [1, -2]}}'
)
_BRACES = (
    "{% macro value(v) %}{% if v is string %}QUOTE{{ v }}QUOTE{% elif v is mapping %}"
    "{{ '{' }}{{ pairs(v) }}{{ '}' }}{% elif v is sequence %}[{% for i in v %}{{ value(i) }}"
    "{% if not loop.last %},{% endif %}{% endfor %}]{% else %}{{ v }}{% endif %}{% endmacro %}"
    "{% macro pairs(v) %}{% for k, i in v | dictsort %}{{ k }}:{{ value(i) }}"
    "{% if not loop.last %},{% endif %}{% endfor %}{% endmacro %}"
)


def _gemma(opens: str, closes: str, quote: str, ends: str) -> Family:
    call = opens + "call:" + _NAME + "{{ '{' }}{{ pairs(c.function.arguments) }}{{ '}' }}" + closes
    return Family(
        _BRACES.replace("QUOTE", quote) + _chat("", _each(call)),
        f"{opens}call:get_weather{{city:{quote}{CITY['city']}{quote}}}{closes}"
        f"{opens}call:add{{at:{{x:1.5}},terms:[1,-2]}}{closes}",
        (opens, closes, quote, ends),
    )


FAMILIES = {
    "hermes": Family(
        _chat(
            '<tool_call>\n{"name": <function-name>, "arguments": <args>}\n</tool_call>',
            _each("<tool_call>\n" + _OBJECT + "\n</tool_call>", "{{ '\\n' }}"),
        ),
        '<tool_call>\n{"name": "get_weather", "arguments": ' + _TEXT + "}\n</tool_call>\n"
        '<tool_call>\n{"name": "add", "arguments": {"at": {"x": 1.5}, "terms": [1, -2]}}\n'
        "</tool_call>",
        plain=("<tool_call>", "</tool_call>"),
    ),
    "qwen-xml": Family(
        _chat(
            "<tool_call>\n<function=example>\n<parameter=p>\nvalue\n</parameter>\n</function>",
            _each(
                "<tool_call>\n<function=" + _NAME + ">\n"
                "{% for k, v in c.function.arguments | items %}<parameter={{ k }}>\n"
                "{{ v if v is string else v | tojson }}\n</parameter>\n{% endfor %}"
                "</function>\n</tool_call>",
                "{{ '\\n' }}",
            ),
        ),
        "<tool_call>\n<function=get_weather>\n<parameter=city>\n" + CITY["city"] + "\n"
        "</parameter>\n</function>\n</tool_call>\n"
        '<tool_call>\n<function=add>\n<parameter=at>\n{"x": 1.5}\n</parameter>\n'
        "<parameter=terms>\n[1, -2]\n</parameter>\n</function>\n</tool_call>",
        plain=("<tool_call>", "</tool_call>"),
    ),
    "mistral": Family(
        _chat("", "[TOOL_CALLS] [" + _each(_OBJECT, ", ") + "]"),
        "[TOOL_CALLS] [" + _OBJECTS + "]",
        ("[TOOL_CALLS]",),
    ),
    "mistral-v11": Family(
        _chat(
            "", _each("[TOOL_CALLS]" + _NAME + "{{ '[CALL_ID]' + c.id + '[ARGS]' }}" + _ARGUMENTS)
        ),
        "[TOOL_CALLS]get_weather[CALL_ID]VvvODy9mT[ARGS]" + _TEXT + "[TOOL_CALLS]add[CALL_ID]"
        'abcDEF123[ARGS]{"at": {"x": 1.5}, "terms": [1, -2]}',
        ("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"),
    ),
    "mistral-v13": Family(
        _chat("", _each("[TOOL_CALLS]" + _NAME + "[ARGS]" + _ARGUMENTS)),
        "[TOOL_CALLS]get_weather[ARGS]" + _TEXT + '[TOOL_CALLS]add[ARGS]{"at": {"x": 1.5}, '
        '"terms": [1, -2]}',
        ("[TOOL_CALLS]", "[ARGS]"),
    ),
    "phi4": Family(
        "{% for message in messages %}{% if message['role'] == 'system' and message['tools'] %}"
        "<system>{{ message['content'] }}<|tool|>{{ message['tools'] }}<|/tool|>{% else %}"
        "<{{ message['role'] }}>{{ message['content'] }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}",
        "<|tool_call|>[" + _OBJECTS + "]<|/tool_call|>",
        plain=("<|tool_call|>", "<|/tool_call|>", "<|tool|>", "<|/tool|>"),
    ),
    "functools": Family(
        _chat("functools[...]", "functools[" + _each(_OBJECT, ", ") + "]"),
        "functools[" + _OBJECTS + "]",
    ),
    "functiongemma": _gemma(
        "<start_function_call>", "<end_function_call>", "<escape>", "<start_function_response>"
    ),
    "gemma4": _gemma("<|tool_call>", "<tool_call|>", '<|"|>', "<|tool_response>"),
    "llama3": Family(
        _chat(
            "",
            _each('{"name": "' + _NAME + '", "parameters": ' + _ARGUMENTS + "}"),
        ),
        '{"name": "get_weather", "parameters": ' + _TEXT + "}",
        ("<|python_tag|>", "<|eom_id|>"),
        many=False,
    ),
    "harmony": Family(
        "{% if tools %}{{ tools | tojson }}{% endif %}"
        "{% for m in messages %}{% if m.tool_calls %}{% if m.thinking %}"
        "<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>{% endif %}"
        "{% for c in m.tool_calls %}<|start|>assistant to=functions.{{ c.function.name }}"
        "<|channel|>commentary json<|message|>{{ c.function.arguments | tojson }}<|call|>"
        "{% endfor %}{% else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}"
        "{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}",
        " to=functions.get_weather<|channel|>commentary json<|message|>" + _TEXT,
        (
            "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>",
            "<|return|>",
        ),
        many=False,
    ),
}  # fmt: skip


@cache
def make_tokenizer(tokens: tuple[str, ...] = (), plain: tuple[str, ...] = ()) -> Tokenizer:
    """Bytes, and some tokens of several, learned from the families' calls."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )  # fmt: skip
    tokenizer.train_from_iterator([family.calls for family in FAMILIES.values()], trainer)
    tokenizer.add_special_tokens([END, *tokens])
    tokenizer.add_tokens([AddedToken(text, special=False) for text in plain])
    return tokenizer


def make_folder(path: Path, tokenizer: Tokenizer, template: str) -> ModelFolder:
    """A folder with what prompts need of a model."""
    path.mkdir()
    tokenizer.save(str(path / "tokenizer.json"))
    (path / "chat_template.jinja").write_text(template, "utf-8")
    model: dict[str, Any] = {"eos_token_id": tokenizer.token_to_id(END), "vocab_size": 512}
    return ModelFolder(path, path / "model.onnx", {"model": model})


def make_guides(tokenizer: Tokenizer, ends: frozenset[int] = frozenset()) -> Guides:
    """Guides for a model with 512 logits."""
    with tempfile.TemporaryDirectory() as folder:
        made = make_folder(Path(folder) / "model", tokenizer, "")
        return Guides(made, {tokenizer.token_to_id(END), *ends}, 512)


def follow(guide: Guide, tokenizer: Tokenizer, text: str) -> int:
    """How many characters of a text a guide allows; one less if the text may not end there."""
    allowed = np.zeros(16, np.uint32)

    def may_come(token: int) -> bool:
        guide.mask(allowed)
        return bool(allowed[token // 32] >> (token % 32) & 1)

    encoding = tokenizer.encode(text)
    for token, (start, _) in zip(encoding.ids, encoding.offsets, strict=True):
        if not may_come(token):
            return int(start)
        guide.take(token)
    return len(text) if may_come(tokenizer.token_to_id(END)) else len(text) - 1
