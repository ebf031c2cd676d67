"""Prompts of what clients put back: cut calls, names of MCP's tools, an answer to continue, system
messages in the middle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers
from families import CITY, END, FAMILIES, make_folder, make_tokenizer
from scripted import Scripted

from ort_aie_ep.errors import AieError, FieldError
from ort_aie_ep.running.answers.messages import prepared
from ort_aie_ep.running.prompts import Prompts
from ort_aie_ep.running.turns import Turn

USER = {"role": "user", "content": "Weather?"}
# In the manner of Llama's, Gemma's and Mistral's: the last two raise.
ROLES = "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}{{ END }}\n{% endfor %}"
ALTERNATE = (
    "{% if messages[0].role == 'system' %}{{ messages[0].content }}|{% set rest = messages[1:] %}"
    "{% else %}{% set rest = messages %}{% endif %}{% for m in rest %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate user/assistant') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}\n{% endfor %}"
)
PROMPT_END = "{% if add_generation_prompt %}<assistant>{% endif %}"


def prompts_of(path: Path, template: str, family: str = "hermes") -> Prompts:
    path.mkdir(exist_ok=True)
    return Prompts(make_folder(path / "m", make_tokenizer(FAMILIES[family].tokens), template))


def text_of(prompts: Prompts, messages: list[Any], **how: Any) -> str:
    tokens = prompts.of_messages(messages, **how)
    return str(prompts._tokenizer.decode(tokens, skip_special_tokens=False))


def call(arguments: Any, name: str = "get_weather") -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"role": "assistant", "tool_calls": [{"id": "call_1", "function": function}]}


ARGUMENTS: list[tuple[Any, dict[str, Any]]] = [
    ('{"city": "Kö', {"arguments": '{"city": "Kö'}),
    ("null", {}), ("[]", {}), ("", {}), (None, {}), ("[1]", {"arguments": [1]}),
    ("3", {"arguments": 3}), ("[" * 10**5, {"arguments": "[" * 10**5}),
    (json.dumps(CITY), CITY), (CITY, CITY),
]  # fmt: skip


@pytest.mark.parametrize("family", ["hermes", "qwen-xml", "functiongemma", "phi4", "harmony"])
def test_a_call_comes_back_as_it_was(tmp_path: Path, family: str) -> None:
    prompts = prompts_of(tmp_path, FAMILIES[family].template, family)
    result = {"role": "tool", "tool_call_id": "call_1", "content": "22 C"}
    messages = [USER]
    for arguments, _ in ARGUMENTS:
        messages += [call(arguments), result]
    messages += [{"role": "assistant", "tool_calls": []}, USER]
    if family != "phi4":  # which has calls as text
        calls = [m["tool_calls"] for m in prepared(prompts.format.form, messages, []) if
                 "tool_calls" in m]  # fmt: skip
        found = [one["function"]["arguments"] for (one,) in calls]
        assert found == [shown for _, shown in ARGUMENTS]
    assert text_of(prompts, messages).count("22 C") == len(ARGUMENTS)


TEMPLATES = {
    "trimmed": ROLES.replace("{{ END }}", END) + PROMPT_END,
    "chat": FAMILIES["hermes"].template,
    "alternate": ALTERNATE + PROMPT_END,
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_an_answer_is_continued_as_transformers_does_it(tmp_path: Path, name: str) -> None:
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=make_tokenizer(), eos_token=END, chat_template=TEMPLATES[name]
    )
    prompts = prompts_of(tmp_path, TEMPLATES[name])
    for begun in ("def f(", "  def", "It is ", "a\n\n", "é"):
        messages = [USER, {"role": "assistant", "content": begun}]
        wanted = tokenizer.apply_chat_template(
            messages, tokenize=False, continue_final_message=True
        )
        found = text_of(prompts, messages, continues=True)
        if name == "trimmed":  # transformers cuts the spaces that the template would have; a client
            assert found.rstrip() == wanted.rstrip()  # who wrote them means them
            assert found.endswith(begun.lstrip())
        else:
            assert found == wanted


def test_an_answer_goes_on_where_the_message_ends(tmp_path: Path) -> None:
    tokenizer = make_tokenizer((), ("<think>", "</think>"))
    template = FAMILIES["hermes"].template + "{# <think> </think> #}"
    one = Scripted(tmp_path / "m", tokenizer, template)
    messages = [USER, {"role": "assistant", "content": "a = "}]
    tokens = [*tokenizer.encode("\n<think>1").ids, tokenizer.token_to_id(END)]
    deltas, _, usage = one.write(Turn(messages=messages), tokens)
    # Within a text no thought begins, and its ends of lines are its own.
    assert "".join(delta.content for delta in deltas) == "\n<think>1"
    assert usage.finish_reason == "stop"
    continued = one.loop.add(Turn(messages=messages))
    begun_anew = one.loop.add(Turn(messages=messages, continues=False))
    texts = [tokenizer.decode(text.tokens) for text in (continued, begun_anew)]
    assert [
        text.endswith(end) for text, end in zip(texts, ("a = ", "a = <assistant>"), strict=True)
    ]
    for held in ({"schema": "{}"}, {"tools": [{"function": {"name": "f"}}], "tool_choice": "f"}):
        with pytest.raises(FieldError, match="cannot be held to a form"):
            one.loop.add(Turn(messages=messages, **held))
    with pytest.raises(FieldError, match=r"messages\.1: the assistant has called a tool"):
        one.loop.add(Turn(messages=[USER, call("{}")]))
    users = prompts_of(
        tmp_path / "x", "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}"
    )
    with pytest.raises(FieldError, match="does not show a last message of the assistant"):
        users.of_messages(messages, continues=True)


def test_gpt_oss_goes_on_in_its_message(tmp_path: Path) -> None:
    family = FAMILIES["harmony"]
    tokenizer = make_tokenizer(family.tokens)
    template = family.template.replace(
        "<|start|>{{ m.role }}<|message|>", "<|start|>{{ m.role }}<|channel|>final<|message|>"
    )
    one = Scripted(tmp_path / "m", tokenizer, template)
    messages = [USER, {"role": "assistant", "content": "It is"}]
    tools = [{"type": "function", "function": {"name": "f"}}]
    for offered in ([], tools):
        tokens = tokenizer.encode(" 22 C<|return|>").ids
        deltas, _, _ = one.write(Turn(messages=messages, tools=offered), tokens)
        assert "".join(delta.content for delta in deltas) == " 22 C"


@pytest.mark.parametrize(
    ("template", "shown"),
    [
        (TEMPLATES["trimmed"], f"<system>A.{END}\n<user>Weather?{END}\n<system>B.{END}\n<user>"),
        (TEMPLATES["alternate"], "A.|<user>Weather?\n\nB.\n<assistant>22 C\n<user>"),
        # Leaves a later one out, without a word.
        ("{{ messages[0].content }}{% for m in messages[1:] if m.role != 'system' %}"
         "<{{ m.role }}>{{ m.content }}{% endfor %}", "A.<user>Weather?\n\nB.\n\nWeather?"),
    ],
    ids=["shows", "raises", "leaves-out"],
)  # fmt: skip
def test_a_later_system_message_is_the_users_where_it_stands(
    tmp_path: Path, template: str, shown: str
) -> None:
    systems = [{"role": "system", "content": text} for text in ("A.", "B.")]
    answer = {"role": "assistant", "content": "22 C"}
    messages = [systems[0], USER, systems[1]]
    if "alternate" not in template:
        messages += [USER]
    else:
        messages += [answer, USER, USER]
    assert text_of(prompts_of(tmp_path, template), messages).startswith(shown)
    with pytest.raises(AieError, match="must alternate"):
        prompts_of(tmp_path / "x", TEMPLATES["alternate"]).of_messages([answer, USER])


def test_names_of_mcp_are_renamed_for_the_model_and_back(tmp_path: Path) -> None:
    long = "server." + "x" * 100
    names = ["calendar.list", "calendar_list", "a/b", long, long + "y", "Wörter", "plain"]
    tools = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in names]
    family = FAMILIES["hermes"]
    tokenizer = make_tokenizer(family.tokens, family.plain)
    one = Scripted(tmp_path / "m", tokenizer, family.template)
    earlier = [USER, call("{}", "calendar.list"), {"role": "tool", "tool_call_id": "call_1"}, USER]
    for name in names:
        turn = Turn(messages=earlier, tools=tools, tool_choice=name)
        text = one.loop.add(turn)
        (plain,) = {t.name for t in text.reader._tools.values() if t.asked == name}
        assert plain.isascii()
        assert len(plain) <= 64
        assert name not in ("calendar_list", "plain") or plain == name
        shown = tokenizer.decode(text.tokens, skip_special_tokens=False)
        assert f'"name": "{plain}"' in shown
        one.loop.drop(text)
        written = f'<tool_call>\n{{"name": "{plain}", "arguments": {{}}}}\n</tool_call>'
        tokens = [*tokenizer.encode(written).ids, tokenizer.token_to_id(END)]
        deltas, _, usage = one.write(turn, tokens)
        assert [c.name for delta in deltas for c in delta.calls if c.name] == [name]
        assert usage.finish_reason == "tool_calls"
    assert '{"name": "calendar.list"' not in shown


def test_a_prompt_is_the_same_whether_tools_may_be_called_or_not(tmp_path: Path) -> None:
    """So a turn that may not call any goes on in the cache."""
    family = FAMILIES["hermes"]
    tokenizer = make_tokenizer(family.tokens, family.plain)
    one = Scripted(tmp_path / "m", tokenizer, family.template)
    tools = [{"type": "function", "function": {"name": "get_weather", "parameters": {}}}]
    prompts = []
    for choice in ("auto", "none", "required", "get_weather"):
        text = one.loop.add(Turn(messages=[USER], tools=tools, tool_choice=choice))
        prompts.append(list(text.tokens))
        one.loop.drop(text)
    assert prompts == prompts[:1] * 4
    tokens = [*tokenizer.encode(family.calls).ids, tokenizer.token_to_id(END)]
    turn = Turn(messages=[USER], tools=tools, tool_choice="none", max_tokens=5)
    deltas, _, usage = one.write(turn, tokens)
    assert usage.finish_reason != "tool_calls"
    assert "<tool_call>" not in "".join(delta.content for delta in deltas)
    other = Scripted(
        tmp_path / "x", tokenizer, "{% for m in messages %}{{ m.content }}{% endfor %}"
    )
    other.loop.add(Turn(messages=[USER], tools=tools, tool_choice="none"))  # it shows no tools
