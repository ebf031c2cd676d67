"""Values that are not JSON: in braces, with bare keys and texts between tokens of their own, or as
Python writes them.

    city:<escape>Paris<escape>,days:3,where:{x:1.5},tags:[<escape>a<escape>]}
    {'city': 'Paris', 'days': 3, 'where': {'x': 1.5}, 'tags': ['a']}
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from ort_aie_ep.running.answers.pieces import Pieces, Steps, Write, nowhere
from ort_aie_ep.running.answers.rules import Rules, quoted
from ort_aie_ep.running.answers.schemas import definition

_INTEGER = "-?(0|[1-9][0-9]*)"
_SCALARS = {
    "integer": f"/{_INTEGER}/", "number": rf"/{_INTEGER}(\.[0-9]+)?([eE][+-]?[0-9]+)?/",
    "boolean": '("true" | "false" | "True" | "False")', "null": '("null" | "None")',
}  # fmt: skip
_ENDS = (",", "}", "]")
# Python's words, and texts in either quotes.
_WORDS = {"True": "true", "False": "false", "None": "null"}
_PYTHON_TEXT = r"""'([^'\\]|\\(.|\n))*'|"([^"\\]|\\(.|\n))*\""""
_PYTHON = re.compile(rf"{_PYTHON_TEXT}|\b(True|False|None)\b")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0", "\n": ""}
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|((?s:.)))")


class Values:
    """The rules for the values of one schema, in braces with `quote` around texts or, if that is
    empty, as Python has them. Of a schema types, choices, and what is required count, and not the
    limits of numbers, lengths and patterns."""

    def __init__(self, rules: Rules, root: Mapping[str, Any], quote: str = "") -> None:
        self._rules = rules
        self._root = root
        self._quote = quote
        self._mark = rules.literal(quote)
        self._comma, self._any_rule = (",", "any") if quote else (", ", "python")
        self._definitions: dict[str, str] = {}
        self._todo: list[str] = []

    def whole(self) -> str:
        """The rule for an object of the schema."""
        return self._rest(f'"{{" {self._pairs(self._root)} "}}"')

    def of(self, schema: Any) -> str:
        """The rule for a value, whose definitions are those of the whole schema."""
        return self._rest(self._value(schema))

    def _rest(self, body: str) -> str:
        rule = self._rules.rule(body)
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
            return self._rules.rule(f'"[" ({item} ({quoted(self._comma)} {item})*)? "]"')
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
        return chained(
            self._rules, quoted(self._comma),
            [(f"{self._key(name)} {self._value(properties[name])}", name in required)
             for name in (sorted(properties) if self._quote else properties)],
        )  # fmt: skip

    def _key(self, name: str) -> str:
        if self._quote:
            return quoted(f"{name}:")
        return f'({quoted(repr(name))} | {quoted(json.dumps(name, ensure_ascii=False))}) ": "'

    def _one(self, value: object) -> str:
        if isinstance(value, str) and self._quote:
            return f"{self._mark} {quoted(value)} {self._mark}"
        as_json, as_python = json.dumps(value, ensure_ascii=False), repr(value)
        return f"({quoted(as_json)} | {quoted(as_python)})"

    def _text(self) -> str:
        if self._quote:
            return f"{self._mark} {self._rules.up_to(self._quote)}"
        return self._rules.named("PYTHON_TEXT", f"/{_PYTHON_TEXT}/")

    def _any(self) -> str:
        name = self._any_rule
        if not self._rules.has(name):
            self._rules.named(name, '""')  # it refers to itself
            scalars = " | ".join(_SCALARS.values())
            body = f'{self._text()} | {scalars} | "{{" {self._any_pairs()} "}}"'
            self._rules.named(name, f'{body} | "[" ({name} ({quoted(self._comma)} {name})*)? "]"')
        return name

    def _any_pairs(self) -> str:
        name = f"{self._any_rule}_pairs"
        if not self._rules.has(name):
            self._rules.named(name, '""')
            key = r'/[^<>:,{}\[\]\s]+/ ":"' if self._quote else f'{self._text()} ": "'
            pair = f"{key} {self._any()}"
            self._rules.named(name, f"({pair} ({quoted(self._comma)} {pair})*)?")
        return name


def chained(rules: Rules, comma: str, parts: Iterable[tuple[str, bool]]) -> str:
    """The rule for parts in their order, with a comma between two; each is with whether it is
    required."""
    # What may come next where a part was before, and where none was; from the last one on.
    after = first = '""'
    for body, required in reversed(list(parts)):
        part = rules.rule(body)
        if required:
            first, after = f"{part} {after}", f"{comma} {part} {after}"
        else:
            first, after = f"{part} {after} | {first}", f"({comma} {part})? {after}"
        first, after = rules.rule(first), rules.rule(after)
    return first


def as_json(text: str) -> str:
    """A value that may be as Python writes it, as JSON; what is neither stays as it is."""
    try:
        json.loads(text)
    except (RecursionError, ValueError):
        return _PYTHON.sub(_word, text)
    return text


def _word(found: re.Match[str]) -> str:
    text = found[0]
    return _WORDS[text] if text in _WORDS else quoted(_ESCAPE.sub(_character, text[1:-1]))


def _character(found: re.Match[str]) -> str:
    number = found[1] or found[2] or found[3]
    if not number:
        return _ESCAPES.get(found[4], found[4])
    return chr(int(number, 16)) if int(number, 16) < 0x110000 else found[0]


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
        word = "".join(bare)
        write(f"{before}{_WORDS.get(word, word)}" if bare else "")
        return mark
    write(before)
    if mark != quote:
        return mark
    write('"')
    if not (yield from pieces.until((quote,), lambda piece: write(quoted(piece)[1:-1]))):
        return ""
    write('"')
    return (yield from pieces.until(_ENDS, nowhere))
