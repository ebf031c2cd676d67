"""Arguments in braces, as Gemma's models write them: bare keys, in their order, and texts between
tokens of their own.

    city:<escape>Paris<escape>,days:3,where:{x:1.5},tags:[<escape>a<escape>]}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ort_aie_ep.running.answers.forms import Tool
from ort_aie_ep.running.answers.pieces import Pieces, Steps, Write, nowhere
from ort_aie_ep.running.answers.rules import Rules, quoted
from ort_aie_ep.running.answers.schemas import definition

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
    """Reads an object after its "{", as JSON: its end, or nothing.

    Objects and arrays may be in one another as deep as a text is long, so they are on a stack.
    """
    closes, empty = ["}"], True  # what ends those that are open; whether the last has nothing yet
    write("{")
    while closes:
        if closes[-1] == "}":
            key: list[str] = []
            mark = yield from pieces.until((":", "}"), key.append)
            if mark == ":":
                write(f"{'' if empty else ', '}{quoted(''.join(key))}: ")
                mark = yield from _read_scalar(pieces, quote, write)
        else:
            mark = yield from _read_scalar(pieces, quote, write, "" if empty else ", ")
        while mark in ("}", "]"):
            write(closes.pop())
            if not closes:
                return mark
            mark = yield from pieces.until(_ENDS, nowhere)
        if not mark:
            return ""
        empty = mark != ","
        if empty:
            write(mark)
            closes.append("}" if mark == "{" else "]")
    return ""


def _read_scalar(pieces: Pieces, quote: str, write: Write, before: str = "") -> Steps:
    """Reads a value, as JSON, with `before` before it: what came after it, or nothing; or what
    opens an object or array, which is the value."""
    bare: list[str] = []
    mark = yield from pieces.until((quote, "{", "[", *_ENDS), bare.append)
    if mark in _ENDS:
        write(f"{before}{''.join(bare)}" if bare else "")
        return mark
    write(before)
    if mark != quote:
        return mark
    write('"')
    if not (yield from pieces.until((quote,), lambda piece: write(quoted(piece)[1:-1]))):
        return ""
    write('"')
    return (yield from pieces.until(_ENDS, nowhere))
