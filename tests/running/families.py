"""Families of models: a small chat template in each one's manner, and what the model then writes.

The calls are written by hand as the templates of those models have them.
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
        says: what is around a text that is no call; such a form has none before its calls.
        raw: whether texts are bare, so that chance hardly ever ends one.
    """

    template: str
    calls: str
    tokens: tuple[str, ...] = ()
    plain: tuple[str, ...] = ()
    many: bool = True
    says: tuple[str, str] = ("", "")
    raw: bool = False


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


def _calls(first: str, middle: str, arguments: str, following: str, last: str) -> str:
    """A part of a template: calls, of which the first begins with `first`. An "@" in `middle` is
    the name once more."""
    return (
        "{% for c in m.tool_calls %}{% if loop.first %}" + _text(first) + "{% else %}"
        + _text(following) + "{% endif %}" + _NAME
        + _text(middle).replace("}}", '| replace("@", c.function.name) }}') + arguments
        + "{% endfor %}" + _text(last)
    )  # fmt: skip


def _text(text: str) -> str:
    """A part of a template: a text, whose ends of lines stay."""
    return "{{ " + json.dumps(text, ensure_ascii=False) + " }}"


def _args(pair: str, between: str = "") -> str:
    """A part of a template: arguments one by one."""
    return (
        "{% for k, v in c.function.arguments | items %}" + pair
        + "{% if not loop.last %}" + between + "{% endif %}{% endfor %}"
    )  # fmt: skip


_VALUE = "{{ v if v is string else v | tojson }}"
_ADD_TEXT = json.dumps(ADD)


def _pairs(
    first: str, middle: str, pair: str, following: str, last: str, between: str = "",
    strings: tuple[str, str] = ("", ""), others: tuple[str, str] = ('{"x": 1.5}', "[1, -2]"),
    **how: Any,
) -> Family:  # fmt: skip
    """A family with arguments one by one: `pair` has a K and a V."""
    city = pair.replace("K", "city").replace("V", CITY["city"].join(strings))
    add = between.join(
        pair.replace("K", k).replace("V", v) for k, v in zip(("at", "terms"), others, strict=True)
    )
    shown = how.pop("shown", _VALUE)
    calls = _calls(
        first,
        middle,
        _args(pair.replace("V", shown).replace("K", "{{ k }}"), between),
        following,
        last,
    )
    return Family(
        _chat("", calls),
        f"{first}get_weather{middle.replace('@', 'get_weather')}{city}{following}add"
        f"{middle.replace('@', 'add')}{add}{last}",
        raw=True, **how,
    )  # fmt: skip


def _json(first: str, middle: str, following: str, last: str, **how: Any) -> Family:
    """A family with arguments in JSON."""
    template = _chat("", _calls(first, middle, _ARGUMENTS, following, last))
    calls = f"{first}get_weather{middle}{_TEXT}{following}add{middle}{_ADD_TEXT}{last}"
    return Family(how.pop("template", template), calls, **how)


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
    # A name as the key of its arguments.
    "apertus": _json('<|tools_prefix|>[{"', '": ', '}, {"', "}]<|tools_suffix|>"),
    # What counts the calls, before and after their names.
    "cohere": Family(
        _chat(
            "",
            "<|START_ACTION|>[\n"
            '{% for c in m.tool_calls %}    {"tool_call_id": "{{ loop.index0 }}", "tool_name": "'
            + _NAME + '", "parameters": ' + _ARGUMENTS
            + "}{% if not loop.last %},{% endif %}{{ '\\n' }}"
            "{% endfor %}]<|END_ACTION|>",
        ).replace(
            "{{ m.content }}",
            "{% if m.role != 'assistant' or m.tool_calls %}{{ m.content }}{% else %}<|START_TEXT|>"
            "{{ m.content }}<|END_TEXT|>{% endif %}",
        ),
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "get_weather", "parameters": '
        + _TEXT + '},\n    {"tool_call_id": "1", "tool_name": "add", "parameters": ' + _ADD_TEXT
        + "}\n]<|END_ACTION|>",
        ("<|START_ACTION|>", "<|END_ACTION|>", "<|START_TEXT|>", "<|END_TEXT|>"),
        says=("<|START_TEXT|>", "<|END_TEXT|>"),
    ),
    "kimi": Family(
        _chat(
            "",
            "<|tool_calls_begin|>"
            + _each(
                "<|call|>functions." + _NAME + ":{{ loop.index0 }}<|args|>" + _ARGUMENTS
                + "<|tool_call_end|>"
            ) + "<|tool_calls_end|>",
        ),
        "<|tool_calls_begin|><|call|>functions.get_weather:0<|args|>" + _TEXT + "<|tool_call_end|>"
        "<|call|>functions.add:1<|args|>" + _ADD_TEXT + "<|tool_call_end|><|tool_calls_end|>",
        ("<|tool_calls_begin|>", "<|tool_calls_end|>", "<|args|>", "<|tool_call_end|>"),
    ),
    # A call's id before its name, and after its arguments.
    "solar": Family(
        _chat(
            "",
            "<|tool_calls|>" + _each("<|begin|>{{ c.id }}<|name|>" + _NAME + "<|args|>" + _ARGUMENTS
            + "<|tool_end|>") + "<|calls|>",
        ),
        "<|tool_calls|><|begin|>VvvODy9mT<|name|>get_weather<|args|>" + _TEXT + "<|tool_end|>"
        "<|begin|>call_2-b<|name|>add<|args|>" + _ADD_TEXT + "<|tool_end|>",
        ("<|tool_calls|>", "<|calls|>", "<|begin|>", "<|name|>", "<|args|>", "<|tool_end|>"),
    ),
    "mistral-nemo": Family(
        _chat(
            "",
            "[TOOL_CALLS][" + _each(_OBJECT[:-1] + "{% if c.id | length != 9 %}"
            "{{ raise_exception('nine!') }}{% endif %}" + ', "id": "{{ c.id }}"}', ", ") + "]",
        ),
        "[TOOL_CALLS][" + _OBJECTS.replace("}, {", ', "id": "VvvODy9mT"}, {')[:-1]
        + ', "id": "abcDEF123"}]',
        ("[TOOL_CALLS]",),
    ),
    # The name once more.
    "muse": _pairs(
        "to=", "<|message|><call name=\"@\">\n", '<p name="K">V</p>\n',
        "</call><|eom|><|start|>assistant to=", "</call>",
        tokens=("<|message|>", "<|eom|>", "<|start|>"),
    ),
    # The prompt ends with what comes before any answer.
    "functionary": Family(
        "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<{{ m.role }}>"
        "{% if m.role == 'assistant' and not m.tool_calls %}>>>all\n{% endif %}{{ m.content }}"
        "{% for c in m.tool_calls %}{{ '>>>' + c.function.name + '\n' + c.function.arguments }}"
        "{% endfor %}{% endfor %}{% if add_generation_prompt %}<assistant>>>>{% endif %}",
        "get_weather\n" + _TEXT + ">>>add\n" + _ADD_TEXT, says=("all\n", ""),
    ),
    "glm": _pairs(
        "<tool_call>", "\n", "<arg_key>K</arg_key>\n<arg_value>V</arg_value>\n",
        "</tool_call>\n<tool_call>", "</tool_call>",
        plain=("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>",
               "</arg_value>"),
    ),
    # Values as Python writes them.
    "seed": _pairs(
        "<seed:tool_call>\n<function=", ">\n", "<parameter=K>V</parameter>\n",
        "</function>\n</seed:tool_call>\n<seed:tool_call>\n<function=",
        "</function>\n</seed:tool_call>", others=("{'x': 1.5}", "[1, -2]"), shown="{{ v }}",
        tokens=("<seed:tool_call>", "</seed:tool_call>"),
    ),
    "minicpm": _pairs(
        '<function name="', '">', '<param name="K">V</param>', '</function>\n<function name="',
        "</function>", strings=("<![CDATA[", "]]>"), others=("{'x': 1.5}", "[1, -2]"),
        shown="{% if v is string and '\n' in v %}<![CDATA[{{ v }}]]>{% else %}{{ v }}{% endif %}",
    ),
    "lfm2.5": _pairs(
        "<|tool_call_start|>[", "(", "K=V", "), ", ")]<|tool_call_end|>", between=", ",
        strings=("'", "'"),
        shown="{% if v is string %}'{{ v }}'{% else %}{{ v | tojson if v is mapping else v }}"
        "{% endif %}",
        tokens=("<|tool_call_start|>", "<|tool_call_end|>"),
    ),
    # Texts with a lead of their own, and each type with one.
    "deepseek-v3.2": Family(
        _chat(
            "",
            _calls(
                '<calls>\n<invoke name="', '">\n',
                _args('<parameter name="{{ k }}" string="{{ "true" if v is string else "false" }}">'
                      + _VALUE + "</parameter>\n"),
                '</invoke>\n<invoke name="', "</invoke>\n</calls>",
            ),
        ),
        '<calls>\n<invoke name="get_weather">\n<parameter name="city" string="true">'
        + CITY["city"] + '</parameter>\n</invoke>\n<invoke name="add">\n'
        '<parameter name="at" string="false">{"x": 1.5}</parameter>\n'
        '<parameter name="terms" string="false">[1, -2]</parameter>\n</invoke>\n</calls>',
        plain=("<calls>", "</calls>"), raw=True,
    ),
    # Arguments that the template wants as JSON in a text, of messages without a content; it does
    # not show tools.
    "deepseek-r1": Family(
        "{% for m in messages %}<{{ m.role }}>{% if m.content is none %}<calls>"
        + _calls("<call>", "\n```json\n", "{{ '' + c.function.arguments }}",
                 "\n```</call>\n<call>", "\n```</call></calls>")
        + "{% else %}{{ m.content }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}",
        "<calls><call>get_weather\n```json\n" + _TEXT + "\n```</call>\n<call>add\n```json\n"
        + _ADD_TEXT + "\n```</call></calls>",
        ("<calls>", "</calls>", "<call>", "</call>"),
    ),
    # JSON with indents, and with escapes.
    "command-r": Family(
        _chat(
            "",
            "Action:\n```json\n[\n" + _each('    {\n        "tool_name": "' + _NAME
            + '",\n        "parameters": ' + _ARGUMENTS.replace("tojson", "tojson(indent=4)")
            + "\n    }", ",\n") + "{{ '\\n' }}]```",
        ),
        'Action:\n```json\n[\n    {\n        "tool_name": "get_weather",\n        "parameters": '
        + json.dumps(CITY, ensure_ascii=False, indent=4)
        + '\n    },\n    {\n        "tool_name": "add",\n        "parameters": '
        + json.dumps(ADD, indent=4) + "\n    }\n]```",
    ),
    "reka": Family(
        _chat("", _each("<tool_call>\n" + _OBJECT.replace("tojson", "tojson(ensure_ascii=True)")
              + "\n</tool_call>")),
        '<tool_call>\n{"name": "get_weather", "arguments": ' + json.dumps(CITY) + "}\n</tool_call>"
        '<tool_call>\n{"name": "add", "arguments": ' + _ADD_TEXT + "}\n</tool_call>",
    ),
    # Templates that do not show calls.
    "granite3": Family(
        _chat("<|tool_call|> followed by a JSON list", ""), '<|tool_call|>[' + _OBJECTS + "]",
        ("<|tool_call|>",),
    ),
    "lfm2": Family(
        _chat("", "").replace("{{ tools", '{{ "List of tools: " }}{{ tools'),
        "<|tool_call_start|>[get_weather(city=" + repr(CITY["city"]) + "), "
        "add(at={'x': 1.5}, terms=[1, -2])]<|tool_call_end|>",
        ("<|tool_call_start|>", "<|tool_call_end|>"),
    ),
    "smollm3": Family(
        _chat('<tool_call>\n{"name": <name>, "arguments": <args>}\n</tool_call>', "")
        .replace("tools", "xml_tools"),
        '<tool_call>\n{"name": "get_weather", "arguments": ' + _TEXT + "}\n</tool_call>\n"
        '<tool_call>\n{"name": "add", "arguments": ' + _ADD_TEXT + "}\n</tool_call>",
    ),
    "firefunction": Family(
        "{{ 'functools[...' + functions + datetime }}"
        + _chat("", "functools[" + _each(_OBJECT, ", ") + "]"),
        "functools[" + _OBJECTS + "]",
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
        many=False, says=("<|channel|>final<|message|>", ""),
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
