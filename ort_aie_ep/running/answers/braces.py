"""Arguments in braces, as Gemma's models write them: bare keys, in their order, and texts between
tokens of their own.

    city:<escape>Paris<escape>,days:3,where:{x:1.5},tags:[<escape>a<escape>]}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ort_aie_ep.running.answers.forms import Tool, definition
from ort_aie_ep.running.answers.pieces import Pieces, Steps, Write, nowhere
from ort_aie_ep.running.answers.rules import Rules, quoted

_INTEGER = "-?(0|[1-9][0-9]*)"
_SCALARS = {
    "integer": f"/{_INTEGER}/", "number": rf"/{_INTEGER}(\.[0-9]+)?([eE][+-]?[0-9]+)?/",
    "boolean": '("true" | "false")', "null": '"null"',
}  # fmt: skip
_ENDS = (",", "}", "]")


def braces_rule(rules: Rules, tool: Tool, quote: str) -> str:
    """The arguments of a tool, after the "{"; of their schema types, choices, and what is required
    count, and not the limits of numbers, lengths and patterns."""
    return _Braces(rules, tool.schema, quote).whole()


class _Braces:
    """The rules for one schema."""

    def __init__(self, rules: Rules, root: Mapping[str, Any], quote: str) -> None:
        self._rules = rules
        self._root = root
        self._quote = quote
        self._mark = rules.literal(quote)
        self._definitions: dict[str, str] = {}
        self._todo: list[str] = []

    def whole(self) -> str:
        rule = self._rules.rule(f'{self._pairs(self._root)} "}}"')
        while self._todo:
            path = self._todo.pop()
            one = self._value(definition(self._root, path))
            self._rules.named(self._definitions[path], one)
        return rule

    def _value(self, schema: Any) -> str:
        if not isinstance(schema, dict):
            return self._any()
        if (path := schema.get("$ref")) is not None:
            return self._definition(path)
        if values := schema.get("enum", [schema["const"]] if "const" in schema else []):
            return f"({' | '.join(map(self._one, values))})"
        if either := [*schema.get("anyOf", ()), *schema.get("oneOf", ())]:
            return f"({' | '.join(map(self._value, either))})"
        kind = schema.get("type")
        if isinstance(kind, list):
            each = (self._value({**schema, "type": one}) for one in kind)
            return f"({' | '.join(each)})"
        if kind == "string":
            return self._text()
        if kind == "array":
            item = self._value(schema.get("items"))
            return self._rules.rule(f'"[" ({item} ("," {item})*)? "]"')
        if kind == "object":
            return f'"{{" {self._pairs(schema)} "}}"'
        return _SCALARS.get(str(kind)) or self._any()

    def _definition(self, path: str) -> str:
        """The rule of a definition, which may refer to others and to itself."""
        if path not in self._definitions:
            self._definitions[path] = self._rules.rule('""')  # until its turn comes
            self._todo.append(path)
        return self._definitions[path]

    def _pairs(self, schema: Mapping[str, Any]) -> str:
        properties, required = schema.get("properties"), schema.get("required", ())
        if not properties:
            return "" if schema.get("additionalProperties") is False else self._any_pairs()
        # What may come next where a pair was before, and where none was; from the last key on.
        after = first = '""'
        for name in sorted(properties, reverse=True):
            pair = self._rules.rule(f"{quoted(name + ':')} {self._value(properties[name])}")
            if name in required:
                first, after = f"{pair} {after}", f'"," {pair} {after}'
            else:
                first, after = f"{pair} {after} | {first}", f'("," {pair})? {after}'
            first, after = self._rules.rule(first), self._rules.rule(after)
        return first

    def _one(self, value: object) -> str:
        if isinstance(value, str):
            return f"{self._mark} {quoted(value)} {self._mark}"
        return quoted(json.dumps(value))

    def _text(self) -> str:
        return f"{self._mark} {self._rules.up_to(self._quote)}"

    def _any(self) -> str:
        if not self._rules.has("any"):
            self._rules.named("any", '""')  # it refers to itself
            scalars = " | ".join(_SCALARS.values())
            body = f'{self._text()} | {scalars} | "{{" {self._any_pairs()} "}}"'
            self._rules.named("any", f'{body} | "[" (any ("," any)*)? "]"')
        return "any"

    def _any_pairs(self) -> str:
        if not self._rules.has("pairs"):
            self._rules.named("pairs", '""')
            pair = rf'/[^<>:,{{}}\[\]\s]+/ ":" {self._any()}'
            self._rules.named("pairs", f'({pair} ("," {pair})*)?')
        return "pairs"


def read_braces(pieces: Pieces, quote: str, write: Write) -> Steps:
    """Reads an object after its "{", as JSON: its end, or nothing."""
    comma = "{"
    while True:
        key: list[str] = []
        mark = yield from pieces.until((":", "}"), key.append)
        if mark == ":":
            write(f"{comma}{quoted(''.join(key))}: ")
            comma, mark = ", ", (yield from _read_value(pieces, quote, write))
        if mark != ",":
            break
    if mark:
        write("{}" if comma == "{" else "}")
    return mark


def _read_array(pieces: Pieces, quote: str, write: Write) -> Steps:
    write("[")
    while (mark := (yield from _read_value(pieces, quote, write))) == ",":
        write(", ")
    write("]" if mark else "")
    return mark


def _read_value(pieces: Pieces, quote: str, write: Write) -> Steps:
    """Reads a value, as JSON: what came after it, or nothing."""
    bare: list[str] = []
    mark = yield from pieces.until((quote, "{", "[", *_ENDS), bare.append)
    if mark in _ENDS:
        write("".join(bare))
        return mark
    if mark == quote:
        write('"')
        mark = yield from pieces.until((quote,), lambda piece: write(quoted(piece)[1:-1]))
        write('"' if mark else "")
    elif mark == "{":
        mark = yield from read_braces(pieces, quote, write)
    elif mark:
        mark = yield from _read_array(pieces, quote, write)
    return (yield from pieces.until(_ENDS, nowhere)) if mark else ""
