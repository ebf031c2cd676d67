"""JSON schemas, as far as a grammar is made of them: names, types and what limits values.

A grammar grows with each count of a schema, so that 300 bytes could fill a machine's memory.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

# Bytes of the text of a schema without what only describes it, its levels, and the sum of all its
# counts.
MAX_TEXT, MAX_DEPTH, MAX_COUNT = 2**16, 64, 4096
_COUNTS = {
    "maxItems", "maxLength", "maxProperties", "minItems", "minLength", "minProperties",
}  # fmt: skip
# Where a schema has others: by names of their writer's, in a list, alone.
_MAPS = {"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"}
_LISTS = {"allOf", "anyOf", "oneOf", "prefixItems"}
_ONES = {"additionalProperties", "items"}
_VALUES = {"const", "enum"}
# What only describes.
_ABOUT = {
    "$comment", "$schema", "default", "deprecated", "description", "examples", "readOnly", "title",
    "writeOnly",
}  # fmt: skip
_NUMBERS = {"exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum", "multipleOf"}
_TYPES = {"array", "boolean", "integer", "null", "number", "object", "string"}
_NOTHING = object()
# Of regular expressions, what llguidance's do not have: looking around, and references back.
_UNKNOWN_PATTERN = re.compile(r"\(\?<?[=!]|\\[1-9]|\\k<|\(\?P=")


def why_too_large(schema: Any) -> str:
    """Why a schema is not taken; empty if it is."""
    total, todo = 0.0, [(schema, 1, True)]
    while todo:
        node, depth, keywords = todo.pop()
        if depth > MAX_DEPTH:
            return f"the schema has more than {MAX_DEPTH} levels, the most that are taken"
        if isinstance(node, list):
            todo += [(item, depth + 1, True) for item in node]
            continue
        if not isinstance(node, dict):
            continue
        for key, value in node.items():
            if keywords and key in _VALUES | _ABOUT:
                continue
            if keywords:
                total += _count(key, value)
            if total > MAX_COUNT:
                return (
                    f"{key}: the counts of the schema come to more than {MAX_COUNT}, the most that "
                    "are taken in minItems, maxItems, minLength, maxLength, minProperties, "
                    "maxProperties and the repeats of patterns together"
                )
            todo.append((value, depth + 1, not (keywords and key in _MAPS)))
    if (size := len(json.dumps(without_descriptions(schema)))) > MAX_TEXT:
        return f"the schema has {size} bytes: {MAX_TEXT} are taken"
    return ""


def _count(key: str, value: object) -> float:
    """What a keyword adds to the counts of a schema."""
    if key in _COUNTS:
        return max(0, value) if isinstance(value, int | float) else 0
    patterns = [value] if key == "pattern" else []
    if key == "patternProperties" and isinstance(value, dict):
        patterns += value
    return sum(_repeats(pattern) for pattern in patterns if isinstance(pattern, str))


def _repeats(pattern: str) -> int:
    """How many copies a pattern's {n,m} make, at most: they multiply where they are nested."""
    product = 1
    for low, high in re.findall(r"\{(\d{1,30})(?:,(\d{0,30}))?\}", pattern):
        product *= max(1, int(low), int(high or 0))
    return product


def without_descriptions(schema: Any) -> Any:
    """A schema without what only describes."""
    if not isinstance(schema, dict):
        return schema
    found = {}
    for key, value in schema.items():
        if key in _ABOUT:
            continue
        if key in _MAPS and isinstance(value, dict):
            value = {name: without_descriptions(one) for name, one in value.items()}
        elif key in _LISTS and isinstance(value, list):
            value = [without_descriptions(one) for one in value]
        elif key not in _VALUES:
            value = without_descriptions(value)
        found[key] = value
    return found


def why_circular(schema: Mapping[str, Any]) -> str:
    """Which reference of a schema leads to itself and to nothing else; empty if none does."""
    todo: list[Any] = [schema]
    while todo:
        node = todo.pop()
        todo += node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
        path = node.get("$ref") if isinstance(node, dict) else None
        if isinstance(path, str) and _leads_nowhere(schema, path):
            return f"its $ref {path!r} leads to itself"
    return ""


def _leads_nowhere(root: Mapping[str, Any], path: str) -> bool:
    seen: set[str] = set()
    while path not in seen:
        seen.add(path)
        target = definition(root, path)
        if not isinstance(target, dict) or not isinstance(target.get("$ref"), str):
            return False
        path = target["$ref"]
    return True


def loosened(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema that allows what `schema` does, without what a grammar cannot hold, or would be too
    large for: keywords that are unknown or malformed, counts beyond `MAX_COUNT`, patterns that look
    around, references that lead nowhere."""
    return _Loosened(schema).whole


class _Loosened:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root, self._room = root, float(MAX_COUNT)
        self.whole: dict[str, Any] = self._of(root, 1)

    def _of(self, schema: Any, depth: int) -> Any:
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, Mapping) or depth > MAX_DEPTH:
            return {}
        found: dict[str, Any] = {}
        for key, value in schema.items():
            kept = self._keyword(key, value, depth)
            if kept is not _NOTHING:
                # "One of" would have to be shown to be true of one alone.
                found["anyOf" if key == "oneOf" and "anyOf" not in schema else key] = kept
        found.pop("oneOf", None)
        patterns = found.get("patternProperties", ())
        if not all(self._counted("pattern", name) is not _NOTHING for name in patterns):
            del found["patternProperties"]  # what they allow is in no other keyword
            found.pop("additionalProperties", None)
        return found

    def _keyword(self, key: str, value: Any, depth: int) -> Any:
        """The value of a keyword, or nothing to leave it out."""
        if key in _MAPS:
            if not isinstance(value, Mapping):
                return _NOTHING
            return {name: self._of(one, depth + 1) for name, one in value.items()}
        if key in _LISTS:
            if not isinstance(value, list) or not value:
                return _NOTHING
            return [self._of(one, depth + 1) for one in value]
        if key in _ONES:
            return self._of(value, depth + 1)
        if key in _COUNTS or key == "pattern":
            return self._counted(key, value)
        legal = {
            "$ref": isinstance(value, str) and self._leads(value),
            "const": True,
            "enum": isinstance(value, list) and bool(value),
            "format": isinstance(value, str),
            "required": isinstance(value, list) and all(isinstance(one, str) for one in value),
            "type": isinstance(value, str | list)
            and bool(value)
            and all(one in _TYPES for one in ([value] if isinstance(value, str) else value)),
        }
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return value if legal.get(key, key in _NUMBERS and is_number) else _NOTHING

    def _counted(self, key: str, value: Any) -> Any:
        if key == "pattern":
            if not isinstance(value, str) or _UNKNOWN_PATTERN.search(value):
                return _NOTHING
        elif type(value) is not int or value < 0:
            return _NOTHING
        if (count := _count(key, value)) > self._room:
            return _NOTHING
        self._room -= count
        return value

    def _leads(self, path: str) -> bool:
        """Whether a reference leads to something, within the schema."""
        if not path.startswith("#") or _leads_nowhere(self._root, path):
            return False
        return isinstance(definition(self._root, path), dict | bool)


def definition(schema: Mapping[str, Any], path: str) -> Any:
    """What a "$ref" such as "#/$defs/Name" refers to, None if there is no such thing."""
    at: Any = schema
    for part in path.removeprefix("#").removeprefix("/").split("/") if path != "#" else ():
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(at, list) and name.isdecimal() and int(name) < len(at):
            at = at[int(name)]
        else:
            at = at.get(name) if isinstance(at, Mapping) else None
    return at
