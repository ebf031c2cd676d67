"""Schemas of tools: what a grammar cannot hold is left out, and what they allow stays allowed."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from families import FAMILIES, follow, make_guides, make_tokenizer

from ort_aie_ep.errors import AieError
from ort_aie_ep.running.answers import Tool, find_format
from ort_aie_ep.running.answers.schemas import loosened, why_circular, why_too_large
from ort_aie_ep.running.templates import ChatTemplate

# The schema of a parameter, and what it allows. All but the last are of tools that clients send.
TAKEN: list[tuple[Any, Any]] = [
    ({"type": "string", "maxLength": 524_288, "pattern": "^wf_[a-z0-9-]{6,}$"}, "wf_abc-123"),
    ({"type": "array", "maxItems": 256, "items": {"type": "string", "maxLength": 256}}, ["a", "b"]),
    ({"type": "string", "minLength": 1, "maxLength": 10_000}, "text"),
    ({"type": "integer", "minimum": -9007199254740991, "maximum": 9007199254740991}, 7),
    ({"type": "string", "pattern": "^(?!x)[ab]+$"}, "ab"),
    ({"type": "string", "pattern": "(a)\\1"}, "aa"),
    ({"type": "string", "pattern": "[a-z]+(?<=b)"}, "ab"),
    ({"type": "string", "format": "uri"}, "http://example.org/"),
    ({"type": "string", "format": "unheard-of"}, "x"),
    ({"$ref": "https://example.org/a.json"}, {"any": [1]}),
    ({"$ref": "#/$defs/none"}, 1),
    ({"$ref": "#/properties/a"}, "leads to itself"),
    ({"oneOf": [{"type": "string"}, {"type": "string", "minLength": 2}]}, "a"),
    ({"anyOf": [{"type": "null"}], "oneOf": [{"type": "null"}]}, None),
    ({"not": {"type": "string"}}, 3),
    ({"type": "array", "uniqueItems": True, "contains": {"type": "integer"}}, [1, 2]),
    ({"type": ["string", "null"], "default": None}, None),
    ({"const": None}, None),
    ({"type": "object", "properties": {"description": {"type": "string"}}}, {"description": "d"}),
    ({"type": "object", "patternProperties": {"^(?=a)": {}}}, {"ab": 1}),
    ({"type": "object", "patternProperties": {"^(?=a)": {}}, "additionalProperties": False},
     {"ab": 1}),
    ({"type": "object", "propertyNames": {"pattern": "^a"}, "additionalProperties": {}}, {"a": 1}),
    (True, 3), ({}, "x"),
    ({"title": "T", "examples": [1], "$comment": "c", "readOnly": True, "type": "integer"}, 1),
    ({"patternProperties": 5, "required": "a", "enum": 3, "type": "nonsense", "items": 3}, "any"),
]  # fmt: skip


def schema_of(parameter: Any) -> dict[str, Any]:
    return {
        "type": "object", "properties": {"a": parameter}, "required": ["a"],
        "additionalProperties": False, "$defs": {"unused": {}},
    }  # fmt: skip


@pytest.mark.parametrize("family", ["hermes", "qwen-xml", "gemma4"])
def test_what_a_schema_allows_its_tool_may_be_called_with(family: str) -> None:
    """In the forms whose arguments are JSON, tags and braces, all tools in one request."""
    one = FAMILIES[family]
    tokenizer = make_tokenizer(one.tokens, one.plain)
    form = find_format(ChatTemplate(one.template, {}), tokenizer)
    guides = make_guides(tokenizer, form.ends)
    tools = [Tool(f"t{at}", "", schema_of(parameter)) for at, (parameter, _) in enumerate(TAKEN)]
    grammar = form.grammar(tools, required=True)
    for tool, (parameter, value) in zip(tools, TAKEN, strict=True):
        with_unknown = any(word in json.dumps(parameter) for word in ("$ref", "nonsense"))
        if not with_unknown:  # which jsonschema refuses
            jsonschema.validate({"a": value}, schema_of(parameter))
        text = ChatTemplate(one.template, {}).render(
            [{"role": "x", "content": "", "tool_calls": [
                {"function": {"name": tool.name, "arguments": {"a": value}}}]}]
        ).removeprefix("<x>").removesuffix("<assistant>")  # fmt: skip
        if family == "gemma4":  # the template of the tests writes Python's words
            text = text.replace("None", "null")
        assert follow(guides.of_lark(grammar), tokenizer, text) == len(text), tool.name


def test_a_strict_tool_is_refused_with_the_reason() -> None:
    guides = make_guides(make_tokenizer())
    form = find_format(ChatTemplate(FAMILIES["hermes"].template, {}), make_tokenizer())
    for parameter, why in (
        ({"type": "string", "pattern": "(?=a)b"}, "look-around"),
        ({"type": "string", "format": "unheard-of"}, "Unknown format"),
        ({"type": "string", "maxLength": 524_288}, "maxLength: the counts"),
        ({"$ref": "https://example.org/a.json"}, "not present"),
        ({"$ref": "#/properties/a"}, "leads to itself"),
    ):
        with pytest.raises(AieError, match=why) as error:
            guides.of_lark(form.grammar([Tool("f", "", schema_of(parameter), strict=True)]))
        assert "%llguidance" not in str(error.value)


def test_descriptions_do_not_count() -> None:
    """A grammar has names and types alone: it is made again only if these change."""
    guides = make_guides(make_tokenizer())
    form = find_format(ChatTemplate(FAMILIES["hermes"].template, {}), make_tokenizer())

    def tools(text: str) -> list[Tool]:
        schema = schema_of({"type": "string", "description": text})
        return [Tool(f"t{at}", text, schema | {"title": text}) for at in range(40)]

    grammar = form.grammar(tools("x" * 2**16))
    assert grammar == form.grammar(tools(""))
    assert len(grammar) < 2**14
    assert guides.takes(grammar)
    described = schema_of({"type": "string", "description": "x" * 2**17})
    assert not why_too_large(described)
    assert why_too_large(schema_of({"enum": ["x" * 2**17]}))


def test_counts_are_kept_as_long_as_there_is_room() -> None:
    parameters = {str(at): {"type": "string", "maxLength": 2000} for at in range(50)}
    found = loosened({"type": "object", "properties": parameters})["properties"]
    assert ["maxLength" in found[str(at)] for at in range(3)] == [True, True, False]
    assert found["49"] == {"type": "string"}
    assert not why_too_large(loosened({"properties": parameters}))


def test_malformed_schemas_are_looked_at_without_a_fault() -> None:
    for value in (5, "x", None, [], [5], {}, True, 1e400):
        for key in (
            "$defs", "$ref", "anyOf", "const", "enum", "format", "items", "maxLength", "minimum",
            "pattern", "patternProperties", "properties", "required", "type",
        ):  # fmt: skip
            schema = {"type": "object", key: value}
            assert isinstance(why_too_large(schema), str)
            assert isinstance(why_circular(schema), str)
            assert isinstance(loosened(schema), dict)
