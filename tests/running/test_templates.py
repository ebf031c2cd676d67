"""Prompts with tools: what is offered, what comes back, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from families import CITY, END, FAMILIES, SUM, WEATHER, make_folder, make_tokenizer

from ort_aie_ep.errors import AieError
from ort_aie_ep.models.folder import ModelFolder
from ort_aie_ep.running.answers.forms import HARMONY, CallForm
from ort_aie_ep.running.answers.messages import prepared
from ort_aie_ep.running.prompts import Prompts
from ort_aie_ep.running.templates import ChatTemplate, find_template

USER = {"role": "user", "content": "Weather?"}


def call(arguments: Any = "{}", number: str = "call_1") -> dict[str, Any]:
    function = {"name": "get_weather", "arguments": arguments}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": number, "type": "function", "function": function}],
    }


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Prompts:
    family = FAMILIES["functiongemma"]
    template = family.template + "{{ '!' if loud else '' }}"
    tokenizer = make_tokenizer(family.tokens)
    return Prompts(make_folder(tmp_path_factory.mktemp("prompts") / "m", tokenizer, template))


def test_a_prompt_has_tools_calls_results_and_options(prompts: Prompts) -> None:
    result = {"role": "tool", "tool_call_id": "call_1", "content": "22 C"}
    messages = [USER, call(json.dumps(CITY)), result]
    tokens = prompts.of_messages(messages, [WEATHER, SUM], {"loud": True})
    text = prompts.tail(tokens)
    assert text.endswith("22 C<assistant>!")
    assert len(text) < len(prompts.tail(tokens + tokens)) + 1  # the end alone
    assert not prompts.tail(prompts.of_messages(messages)).endswith("!")
    one = prepared(prompts.format.form, messages, [])
    assert one[1]["content"] == ""
    assert one[1]["tool_calls"][0]["function"]["arguments"] == CITY
    assert one[2]["name"] == "get_weather"
    ends = {prompts._tokenizer.token_to_id(text) for text in (END, "<start_function_response>")}
    assert prompts.ends == ends


def test_what_is_wrong_with_calls_tools_and_options_is_named(
    prompts: Prompts, tmp_path: Path
) -> None:
    for calls in ({}, [3], [{"function": {}}]):
        with pytest.raises(AieError, match=r"messages\.0\.tool_calls"):
            prompts.of_messages([{"role": "assistant", "tool_calls": calls}])
    for options, why in (
        ([1], "must be an object"),
        ({"tools": []}, "cannot set tools"),
        ({"x": "y" * 5000}, "has 50.. bytes"),
        ({"x": {1}}, "cannot be written as JSON"),
    ):
        with pytest.raises(AieError, match=f"chat_template_kwargs {why}"):
            prompts.of_messages([USER], (), options)
    plain = make_folder(tmp_path / "plain", make_tokenizer(), "{{ messages[0].content }}")
    with pytest.raises(AieError, match="tools: "):
        Prompts(plain).of_messages([USER], [WEATHER])


def test_ids_and_thoughts_are_as_a_family_wants_them() -> None:
    nine = CallForm("[TOOL_CALLS]", "[ARGS]", "", "[TOOL_CALLS]", id_length=9)
    thought = {**call(), "reasoning_content": "Hm."}
    result = {"role": "tool", "tool_call_id": "call_1", "content": ""}
    _, one, two = prepared(nine, [USER, thought, result], [])
    number = one["tool_calls"][0]["id"]
    assert number.isalnum()
    assert len(number) == 9
    assert two["tool_call_id"] == number
    assert prepared(nine, [call(number="VvvODy9mT")], [])[0]["tool_calls"][0][
        "id"
    ] == "VvvODy9mT"  # fmt: skip
    assert prepared(HARMONY, [thought], [])[0]["thinking"] == "Hm."
    assert prepared(CallForm("", "", ""), [thought], [])[0]["reasoning_content"] == "Hm."


def test_a_template_shows_json_and_tools_as_they_are(tmp_path: Path) -> None:
    safe = ChatTemplate("""{{ '"' + ({'a': '<'} | tojson | safe) + '"' }}""", {})
    assert safe.render([]) == '"{"a": "<"}"'
    template = ChatTemplate("{{ messages | length }} {{ tools }}", {}, "with {{ tools }}")
    assert template.render([]) == "0 None"
    assert template.render([], ["t"]) == "with ['t']"


CALL = {
    "hermes": '<tool_call>\n{"name": "name", "arguments": {"argument": "value"}}\n</tool_call>',
    "glm": "<tool_call>name\n<arg_key>argument</arg_key>\n<arg_value>value</arg_value>\n",
    "kimi": '<|tool_calls_begin|><|call|>functions.name:0<|args|>{"argument": "value"}',
    "functiongemma": "<start_function_call>call:name{argument:<escape>value<escape>}",
    "muse": 'to=name<|message|><call name="name">\n<p name="argument">value</p>\n</call>',
}


@pytest.mark.parametrize("family", CALL)
def test_a_template_that_shows_calls_alone_gets_tools_in_the_system_message(
    tmp_path: Path, family: str
) -> None:
    other = FAMILIES[family].template.replace("tools", "unheard_tools")
    tokenizer = make_tokenizer()
    prompts = Prompts(make_folder(tmp_path / "m", tokenizer, other))
    text = tokenizer.decode(prompts.of_messages([USER], [WEATHER, SUM]))
    system, _, rest = text.partition("<user>")
    assert "The weather in a city." in system
    assert f"To call one, write as here: {CALL[family]}" in system
    assert rest == "Weather?<assistant>"


def test_phi4_gets_tools_in_its_system_message(tmp_path: Path) -> None:
    family = FAMILIES["phi4"]
    tokenizer = make_tokenizer(family.tokens, family.plain)
    prompts = Prompts(make_folder(tmp_path / "m", tokenizer, family.template))
    for system in ([], [{"role": "system", "content": "Be brief."}]):
        text = tokenizer.decode(
            prompts.of_messages([*system, USER, call()], [WEATHER]), skip_special_tokens=False
        )
        assert text.startswith(
            f"<system>{'Be brief.' if system else 'You are a helpful assistant with some tools.'}"
            '<|tool|>[{"name": "get_weather", "description": "The weather in a city.", '
        )
        assert text.endswith(
            '<assistant><|tool_call|>[{"name": "get_weather", "arguments": {}}]<|/tool_call|>'
            "<assistant>"
        )


# What a tokenizer of transformers has as its templates.
SAVED: dict[str, str | dict[str, str]] = {
    "one": FAMILIES["hermes"].template,
    "two": {
        "default": "{{ bos_token }}{% for m in messages %}{{ m.content }}\n{% endfor %}",
        "tool_use": FAMILIES["hermes"].template,
        "rag": "{{ documents }}",
    },
}


@pytest.mark.parametrize("jinja", [True, False], ids=["jinja", "json"])
@pytest.mark.parametrize("templates", SAVED.values(), ids=SAVED)
def test_prompts_of_what_transformers_saved_are_those_of_transformers(
    templates: str | dict[str, str], jinja: bool, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=make_tokenizer(), bos_token="<s>", eos_token=END, chat_template=templates
    )
    tokenizer.save_pretrained(tmp_path, save_jinja_files=jinja)
    template = find_template(ModelFolder(tmp_path, tmp_path / "model.onnx", None))
    assert template is not None
    messages = [USER, {"role": "assistant", "content": "Köln?"}, USER]
    for tools in ([], [{"type": "function", "function": {"name": "f", "parameters": {}}}]):
        wanted = tokenizer.apply_chat_template(
            messages, tools or None, tokenize=False, add_generation_prompt=True
        )
        assert template.render(messages, tools) == wanted


def test_a_template_for_tools_stands_beside_any_default(tmp_path: Path) -> None:
    folder = ModelFolder(tmp_path, tmp_path / "model.onnx", None)
    more = tmp_path / "additional_chat_templates"
    more.mkdir()
    assert find_template(folder) is None
    (more / "tool_use.jinja").write_text("tools")
    with pytest.raises(AieError, match='none of the chat templates is named "default": tool_use'):
        find_template(folder)
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": [{"name": "default", "template": "plain"},
                                      {"name": "tool_use", "template": "older"}]})
    )  # fmt: skip
    found = find_template(folder)
    assert found is not None
    assert (found.text, found.for_tools) == ("plain", "tools")
    (more / "tool_use.jinja").write_bytes(b"\xff")
    with pytest.raises(AieError, match=r"tool_use\.jinja is not UTF-8"):
        find_template(folder)
