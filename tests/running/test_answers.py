"""Thoughts and calls in the forms of each family: held by grammars, read, and written again."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from families import (
    ADD,
    CITY,
    END,
    FAMILIES,
    SUM,
    WEATHER,
    _chat,
    _each,
    follow,
    make_guides,
    make_tokenizer,
)  # fmt: skip
from hypothesis import given, settings
from hypothesis import strategies as st

from ort_aie_ep.errors import AieError
from ort_aie_ep.running.answers import AnswerFormat, Delta, Tool, find_format
from ort_aie_ep.running.answers.messages import offered, prepared
from ort_aie_ep.running.templates import ChatTemplate

TOOLS = (WEATHER, SUM)
# Whose calls have no text before them, and whose texts end with what chance hardly ever writes.
ALONE = {"llama3", *(name for name, family in FAMILIES.items() if family.says[0])}
ENDLESS = {"qwen-xml", "harmony", *(name for name, family in FAMILIES.items() if family.raw)}


@cache
def format_of(name: str, tokens: bool = True) -> AnswerFormat:
    """The format of a family; without `tokens`, its markers are ordinary text."""
    family = FAMILIES[name]
    tokenizer = make_tokenizer(family.tokens, family.plain) if tokens else make_tokenizer()
    found = find_format(ChatTemplate(family.template, {}), tokenizer)
    assert found.tools, found.why_not
    return found


def read(
    form: AnswerFormat, text: str, cuts: Sequence[int] = (), tools: Sequence[Tool] = TOOLS,
    prompt_tail: str = "",
) -> list[Delta]:  # fmt: skip
    """The deltas of a text whose tokens are its markers, and its pieces between `cuts`."""
    reader, at, deltas = form.reader(tools, prompt_tail), 0, []
    for part in form.parts(text):
        if isinstance(part, int):
            (name,) = (name for name, number in form.markers.items() if number == part)
            deltas.append(reader.push(part, name))
            at += len(name)
            continue
        places = [at, *sorted({cut for cut in cuts if at < cut < at + len(part)}), at + len(part)]
        deltas += [reader.push(-1, text[one:two]) for one, two in pairwise(places)]
        at += len(part)
    deltas.append(reader.finish())
    assert reader.called == any(delta.calls for delta in deltas)
    return deltas


def summed(deltas: Sequence[Delta]) -> tuple[str, str, list[dict[str, str]]]:
    """Content, reasoning and calls. A name and an id are whole, and there before arguments."""
    calls: list[dict[str, str]] = []
    for call in (call for delta in deltas for call in delta.calls):
        if call.index == len(calls):
            calls.append({"id": call.id, "name": call.name, "arguments": call.arguments})
            assert call.id
            assert call.name
        else:
            assert call.index == len(calls) - 1
            assert (call.id, call.name) == ("", "")
            calls[-1]["arguments"] += call.arguments
    content = "".join(delta.content for delta in deltas)
    return content, "".join(delta.reasoning for delta in deltas), calls


def expected(name: str) -> list[tuple[str, dict[str, Any]]]:
    both = [("get_weather", CITY), ("add", ADD)]
    return both if FAMILIES[name].many else both[:1]


@pytest.mark.parametrize("tokens", [True, False], ids=["tokens", "text"])
@pytest.mark.parametrize("name", FAMILIES)
def test_calls_are_held_to_their_tools(name: str, tokens: bool) -> None:
    family, form = FAMILIES[name], format_of(name, tokens)
    tokenizer = make_tokenizer(family.tokens, family.plain) if tokens else make_tokenizer()
    guides = make_guides(tokenizer, form.ends)
    text = "No.".join(family.says)
    calls = family.calls
    wrong = {
        "name": calls.replace("get_weather", "get_whether"),
        "argument": calls.replace("city", "days"),
        "end": calls[:-1] if name != "harmony" else calls.removesuffix("}"),
        "text": calls + "?",
    }
    for required in (False, True):
        grammar = form.grammar(TOOLS, required=required)
        assert follow(guides.of_lark(grammar), tokenizer, calls) == len(calls)
        for why, other in wrong.items():
            assert follow(guides.of_lark(grammar), tokenizer, other) < len(other), why
        assert (follow(guides.of_lark(grammar), tokenizer, text) == len(text)) != required
    grammar = form.grammar(TOOLS, schema='{"type": "array"}')
    held = text.replace("No.", "[]")
    assert follow(guides.of_lark(grammar), tokenizer, calls) == len(calls)
    assert follow(guides.of_lark(grammar), tokenizer, held) == len(held)
    assert follow(guides.of_lark(grammar), tokenizer, text) < len(text)
    if name not in ALONE:
        grammar = form.grammar(TOOLS)
        assert follow(guides.of_lark(grammar), tokenizer, "Let me see.\n" + calls) > len(calls)
    grammar = form.grammar(TOOLS, required=True, parallel=False)
    assert (follow(guides.of_lark(grammar), tokenizer, calls) == len(calls)) != family.many
    grammar = form.grammar([SUM], required=True)  # the choice of one
    assert follow(guides.of_lark(grammar), tokenizer, calls) < len(calls)
    assert form.grammar() == ""


@pytest.mark.parametrize("tokens", [True, False], ids=["tokens", "text"])
@pytest.mark.parametrize("name", FAMILIES)
@given(data=st.data())
@settings(max_examples=8)
def test_calls_are_read_however_the_text_is_cut(
    name: str, tokens: bool, data: st.DataObject
) -> None:
    form, said = format_of(name, tokens), "" if name in ALONE else "Let me [see] <it>.\n\nNow"
    text = said + ("\n" if said else "") + FAMILIES[name].calls
    cuts = data.draw(st.sets(st.integers(1, len(text) - 1)))
    content, reasoning, calls = summed(read(form, text, cuts))
    assert (content, reasoning) == (said, "")
    assert [(call["name"], json.loads(call["arguments"])) for call in calls] == expected(name)
    assert len({call["id"] for call in calls}) == len(calls)
    # The answer may end after any token: what was written is the beginning of the whole.
    names, ends = {number: marker for marker, number in form.markers.items()}, [0]
    for part in form.parts(text):
        steps = [1] * len(part) if isinstance(part, str) else [len(names[part])]
        ends += (ends[-1] + np.cumsum(steps)).tolist()
    early = data.draw(st.sampled_from(ends))
    content, _, begun = summed(read(form, text[:early], cuts))
    assert text.startswith(content)
    for one, whole in zip(begun, calls, strict=False):
        assert one["name"] == whole["name"]
        assert whole["arguments"].startswith(one["arguments"])


@pytest.mark.parametrize("tokens", [True, False], ids=["tokens", "text"])
@pytest.mark.parametrize("name", FAMILIES)
def test_calls_that_must_come_are_no_text_where_they_are_cut(name: str, tokens: bool) -> None:
    form, text = format_of(name, tokens), FAMILIES[name].calls
    names, cut = {number: marker for marker, number in form.markers.items()}, 0
    reader = form.reader(TOOLS, forced=True)
    for part in form.parts(text):
        pieces = [(-1, one) for one in part] if isinstance(part, str) else [(part, names[part])]
        for token, piece in pieces:
            assert not reader.push(token, piece).content
            cut += len(piece)
            again = form.reader(TOOLS, forced=True)
            for before in form.parts(text[:cut]):
                is_text = isinstance(before, str)
                again.push(-1 if is_text else before, before if is_text else names[before])
            assert not again.finish().content, text[:cut]


@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in ALONE])
def test_calls_of_strict_tools_are_no_text_where_they_are_cut(name: str) -> None:
    form, text = format_of(name, tokens=False), "So" + FAMILIES[name].calls
    strict = [dataclasses.replace(tool, strict=True) for tool in TOOLS]
    for cut in range(2, len(text)):
        assert summed(read(form, text[:cut], tools=strict))[0] == "So"


@pytest.mark.parametrize("tokens", [True, False], ids=["tokens", "text"])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_model_that_sees_tools_may_be_kept_from_calling_them(name: str, tokens: bool) -> None:
    family, form = FAMILIES[name], format_of(name, tokens)
    tokenizer = make_tokenizer(family.tokens, family.plain) if tokens else make_tokenizer()
    guides = make_guides(tokenizer, form.ends)
    grammar = form.grammar(barred=True)
    text = "Let me [see] <it>.\n\nNow".join(family.says)
    assert follow(guides.of_lark(grammar), tokenizer, text) == len(text)
    for called in (family.calls, *(() if name in ALONE else (text + family.calls,))):
        assert follow(guides.of_lark(grammar), tokenizer, called) < len(called)


@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in ENDLESS])
def test_what_a_guide_allows_is_read_as_the_tools_take_it(name: str) -> None:
    """Walks through the grammar at random, which ends texts early."""
    family, form = FAMILIES[name], format_of(name)
    tokenizer, random = make_tokenizer(family.tokens, family.plain), np.random.default_rng(1)
    guides, end = make_guides(tokenizer, form.ends), tokenizer.token_to_id(END)
    texts = [tokenizer.decode([i], skip_special_tokens=False) for i in range(512)]
    closing = ('"', "}", "]", "</", "\n</parameter>\n", "get_weather", *form.markers)
    likely = np.array([20.0 if t in closing else 0.1 * ("\ufffd" not in t) for t in texts])
    for _ in range(6):
        guide, reader = guides.of_lark(form.grammar(TOOLS, required=True)), form.reader(TOOLS)
        mask, deltas = np.zeros(16, np.uint32), []
        for _ in range(1000):
            guide.mask(mask)
            weights = likely * np.unpackbits(mask.view(np.uint8), bitorder="little")
            if mask[end // 32] >> (end % 32) & 1:
                break
            token = int(random.choice(512, p=weights / weights.sum()))
            guide.take(token)
            deltas.append(reader.push(token, texts[token]))
        calls = summed([*deltas, reader.finish()])[2]
        assert calls
        for call in calls:
            given, tool = json.loads(call["arguments"]), {t.name: t for t in TOOLS}[call["name"]]
            assert (
                {*tool.parameters["required"]} <= given.keys() <= {*tool.parameters["properties"]}
            )


@pytest.mark.parametrize("name", FAMILIES)
def test_calls_come_back_in_the_next_prompt_as_the_model_wrote_them(name: str) -> None:
    """So the tokens of the conversation stay the same, and their rows in the cache."""
    family, form = FAMILIES[name], format_of(name)
    content, _, calls = summed(read(form, family.calls))
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "?"},
        {
            "role": "assistant",
            "content": content,
            "tool_calls": [
                {"id": call.pop("id"), "type": "function", "function": call} for call in calls
            ],
        },
    ]
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": f"result {at}"}
        for at, call in enumerate(messages[1]["tool_calls"])
    ]
    shown = prepared(form.form, messages + results, TOOLS)
    assert form.form is not None
    case = offered(form.form.offered, shown, [tool.shown for tool in TOOLS], "an example")
    text = ChatTemplate(family.template, {}).render(*case)
    assert family.calls in text
    assert all(name in text for name in ("get_weather", "add", "The weather in a city."))
    assert all(result["content"] in text for result in results)
    if form.form.id_length:
        ids = [call["id"] for call in shown[1]["tool_calls"]]
        assert ids == [result["tool_call_id"] for result in results]


def test_a_family_without_arguments_in_json_takes_any_schema() -> None:
    node = {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]},
        },
        "required": ["name"],
    }
    properties = {
        "any": {},
        "kind": {"$ref": "#/$defs/Kind"},
        "maybe": {"type": ["number", "null"]},
        "node": {"$ref": "#/$defs/Node"},
        "one": {"const": 1},
        "open": {"type": "object"},
        "yes": {"type": "boolean"},
    }
    defs = {"Kind": {"enum": ["a", "b"]}, "Node": node}
    tool = Tool("f", "", {"type": "object", "properties": properties, "$defs": defs})
    values = {
        "any": {"x": [1, {"y": "z"}, None]},
        "kind": "b",
        "maybe": None,
        "node": {"name": "n", "next": {"name": "m"}},
        "one": 1,
        "open": {"k": "v"},
        "yes": True,
    }
    texts = {
        "functiongemma": "<start_function_call>call:f{any:{x:[1,{y:'z'},null]},kind:'b',maybe:null,"
        "node:{name:'n',next:{name:'m'}},one:1,open:{k:'v'},yes:true}<end_function_call>".replace(
            "'", "<escape>"
        ),
        "qwen-xml": "<tool_call>\n<function=f>\n"
        + "".join(
            f"<parameter={name}>\n{value}\n</parameter>\n"
            for name, value in [
                ("any", '{"x": [1, {"y": "z"}, null]}'),
                ("kind", "b"),
                ("maybe", "null"),
                ("node", '{"name": "n", "next": {"name": "m"}}'),
                ("one", "1"),
                ("open", '{"k": "v"}'),
                ("yes", "true"),
            ]
        )
        + "</function>\n</tool_call>",
    }
    for name, text in texts.items():
        family, form = FAMILIES[name], format_of(name)
        tokenizer = make_tokenizer(family.tokens, family.plain)
        guides = make_guides(tokenizer, form.ends)
        grammar = form.grammar([tool], required=True)
        assert follow(guides.of_lark(grammar), tokenizer, text) == len(text)
        for wrong in (text.replace("true", "maybe"), text.replace("b\n", "c\n"), text[:-1]):
            assert wrong == text or follow(guides.of_lark(grammar), tokenizer, wrong) < len(wrong)
        ((_, _, (call,)),) = (summed(read(form, text, tools=[tool])),)
        found = json.loads(call["arguments"])
        if name == "qwen-xml":  # a text, unless the schema says otherwise
            found["any"] = json.loads(found["any"])
        assert found == values
        empty = form.grammar([Tool("g")], required=True)
        nothing = text[: text.index("f{" if "{a" in text else "f>")]
        nothing += "g{}<end_function_call>" if "{a" in text else "g>\n</function>\n</tool_call>"
        assert follow(guides.of_lark(empty), tokenizer, nothing) == len(nothing)
        assert summed(read(form, nothing, tools=[Tool("g")]))[2][0]["arguments"] == "{}"
        for schema in ({"properties": 3}, {"properties": {"a": {"enum": 3}}}):
            guides.of_lark(form.grammar([Tool("f", "", schema)]))
            with pytest.raises(AieError, match="a schema of f is not a JSON schema"):
                form.grammar([Tool("f", "", schema, strict=True)])


def test_arguments_in_braces_may_nest_as_deep_as_a_text_is_long() -> None:
    form = format_of("gemma4")
    deep = "{a:" * 3000 + '[[1,{}],<|"|>b<|"|>,{c:true,d:[]}]' + "}" * 3000
    ((_, _, (call,)),) = (summed(read(form, f"<|tool_call>call:add{deep}<tool_call|>")),)
    inner = '[[1, {}], "b", {"c": true, "d": []}]'
    assert call["arguments"] == '{"a": ' * 3000 + inner + "}" * 3000
    cut = deep[:5000]
    ((_, _, (call,)),) = (summed(read(form, f"<|tool_call>call:add{cut}")),)
    assert call["arguments"].startswith('{"a": {"a": ')


THINKING = ChatTemplate(FAMILIES["hermes"].template + "{# <think> </think> #}", {})


@pytest.mark.parametrize("tokens", [True, False], ids=["tokens", "text"])
@pytest.mark.parametrize(
    ("prompt_tail", "thought"),
    [("<assistant>", "<think>\nHm.\n</think>\n\n"), ("<assistant>", ""),
     ("<assistant><think>\n", "Hm.\n</think>\n\n"),
     ("<assistant><think>\n\n</think>\n\n", "")],
)  # fmt: skip
def test_thoughts_are_told_from_answers(prompt_tail: str, thought: str, tokens: bool) -> None:
    plain = ("<think>", "</think>", "<tool_call>", "</tool_call>") if tokens else ()
    tokenizer = make_tokenizer(plain=plain)
    form, guides = find_format(THINKING, tokenizer), make_guides(tokenizer)
    calls = FAMILIES["hermes"].calls
    for answer, how in (
        (calls, {"tools": TOOLS}),
        (calls, {"tools": TOOLS, "required": True}),
        ("Yes.", {"tools": TOOLS}),
        ('{"a":1}', {"schema": '{"properties": {"a": {"type": "integer"}}, "required": ["a"]}'}),
    ):
        text = thought + answer
        grammar = form.grammar(**how, prompt_tail=prompt_tail)
        assert follow(guides.of_lark(grammar), tokenizer, text) == len(text)
        for cuts in ((), range(1, len(text))):
            content, reasoning, found = summed(read(form, text, cuts, prompt_tail=prompt_tail))
            assert reasoning == ("Hm." if thought else "")
            assert content == ("" if answer == calls else answer)
            assert len(found) == (2 if answer == calls else 0)
    grammar = form.grammar(schema='{"type": "object"}', prompt_tail=prompt_tail)
    assert follow(guides.of_lark(grammar), tokenizer, thought + "No.") < len(thought + "No.")
    assert summed(read(form, thought, prompt_tail=prompt_tail))[0].strip() == ""
    if thought and not tokens:  # that is cut within its end, it is a thought all the same
        at = thought.index("</think>")
        for cut in range(at, at + 8):
            content, reasoning, _ = summed(read(form, thought[:cut], prompt_tail=prompt_tail))
            assert (content, reasoning.replace("\n", "")) == ("", "Hm." + thought[at:cut])


def test_a_thought_may_end_with_the_beginning_of_a_message() -> None:
    """As Solar's do: its prompts end with that too."""
    template = FAMILIES["solar"].template + "{# <|end|><|begin|>assistant #}"
    form = find_format(ChatTemplate(template, {}), make_tokenizer(FAMILIES["solar"].tokens))
    thought = "<|think|>Hm.<|end|><|begin|>assistant"
    for tail, thinks in (
        ("?<|end|><|begin|>assistant", None),
        (thought, False),
        ("<|think|>", True),
    ):
        assert form.thinks(tail) is thinks
    text, tail = thought + FAMILIES["solar"].calls, "?<|end|><|begin|>assistant"
    content, reasoning, calls = summed(read(form, text, prompt_tail=tail))
    assert (content, reasoning, len(calls)) == ("", "Hm.", 2)


@pytest.mark.parametrize(
    "shown",
    ["{{ '{' * 99999 }}", "{{ '1' * 99999 }}", "{{ c.function.arguments.keys() | list }}",
     "{{ c.function.arguments | length }}", "{{ '<' * 99999 }}", "{{ c.function.name * 999 }}",
     "<probe_string={{ c.function.arguments is string }}"],
)  # fmt: skip
def test_a_template_may_write_anything_around_names(shown: str) -> None:
    call = f"{{{{ c.function.name }}}}{shown}"
    form = find_format(ChatTemplate(_chat("", _each(call)), {}), make_tokenizer())
    assert "not known" in form.why_not


def test_a_template_that_takes_too_long_has_thoughts_and_no_tools(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ort_aie_ep.running.bounded.SECONDS", 1)
    template = THINKING.text + "{% for i in range(9999) %}{% for j in range(99999) %}{% endfor %}"
    form = find_format(ChatTemplate(template + "{% endfor %}", {}), make_tokenizer())
    assert "more than" in form.why_not
    assert form.thought == ("<think>", "</think>")


def test_channels_are_told_from_one_another() -> None:
    family, form = FAMILIES["harmony"], format_of("harmony")
    tokenizer = make_tokenizer(family.tokens)
    guides = make_guides(tokenizer, form.ends)
    before = (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
        "<|channel|>commentary<|message|>I ask.<|end|><|start|>assistant"
    )
    # The first is the example of openai/harmony's format; models leave out some of it.
    for kind in (" <|constrain|>json", "<|constrain|>json", " json"):
        header = f"<|channel|>commentary to=functions.get_weather{kind}<|message|>"
        text = before + header + json.dumps(CITY, ensure_ascii=False)
        grammar = form.grammar(TOOLS, required=True)
        assert follow(guides.of_lark(grammar), tokenizer, text) == len(text)
        for cuts in ((), range(1, len(text))):
            content, reasoning, (call,) = summed(read(form, text + "<|call|>", cuts))
            assert (content, reasoning, call["name"]) == ("I ask.", "Hm.", "get_weather")
            assert json.loads(call["arguments"]) == CITY
    final = before + "<|channel|>final<|message|>"
    assert summed(read(form, final + "Yes<|return|>"))[:2] == ("I ask.Yes", "Hm.")
    assert not summed(read(form, "<|channel|>commentary to=functions.get_wea"))[2]
    assert form.ends == {tokenizer.token_to_id("<|call|>"), tokenizer.token_to_id("<|return|>")}


@pytest.mark.parametrize("name", ["cohere", "functionary"])
def test_a_text_is_told_from_what_is_around_it(name: str) -> None:
    form, (opens, closes) = format_of(name), FAMILIES[name].says
    assert form.says == (opens, closes)
    for tools in ((), TOOLS):
        for text in (f"{opens}It is {closes}", f"{opens}It is "):
            assert summed(read(form, text, tools=tools)) == ("It is ", "", [])
        reader = form.reader(tools, continues=True)
        deltas = [reader.push(-1, "22 C")]
        deltas += [reader.push(form.markers[closes], closes)] if closes else []
        assert summed([*deltas, reader.finish()])[0] == "22 C"
        assert not form.grammar(tools, continues=True, barred=True)


def test_what_only_spells_a_marker_is_text() -> None:
    form = format_of("hermes")
    assert form.reader(TOOLS).push(-1, "<tool_call>").content == "<tool_call>"
    text = "Write <tool_call> and {"
    assert summed(read(form, text, tools=()))[0] == text  # nothing can be called
    llama = format_of("llama3")
    assert summed(read(llama, '{"name": "x"}', tools=()))[0] == '{"name": "x"}'
    text = '<|python_tag|>{"name": "get_weather", "parameters": {"city": "x"}}'
    assert summed(read(llama, text))[2][0]["name"] == "get_weather"
    hidden = form.hidden
    assert list(hidden.values()) == [END]
    assert form.reader().push(min(hidden), "a" + END).content == "a"


def test_a_template_without_a_known_form_of_calls_is_refused_by_name() -> None:
    tokenizer = make_tokenizer()
    for template, why in (
        (None, "has no chat template"),
        (ChatTemplate("{{ messages[0].content }}", {}), "does not name tools"),
        (ChatTemplate("{{ tools }}<|tool_call_start|>[f(a=1)]", {}), "does not show calls"),
        (
            ChatTemplate(
                "{{ tools }}{% for m in messages %}{{ m.content or m.tool_calls }}{% endfor %}", {}
            ),
            "form that is not known",
        ),
    ):
        form = find_format(template, tokenizer)
        assert not form.tools
        assert why in form.why_not
        assert form.form is None
        assert summed(read(form, '<tool_call>\n{"name": "f"', tools=()))[0]
    two = ChatTemplate("{{ messages[0].content }}", {}, FAMILIES["hermes"].template)
    assert find_format(two, tokenizer).tools
    for name in ("", "a b", 'a"', "x" * 65):
        with pytest.raises(AieError, match=r"name .*64"):
            Tool(name)
