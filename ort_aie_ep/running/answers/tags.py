"""Arguments with a tag each, as Qwen3-Coder writes them: texts are bare, other values are JSON.

A tag and its end are lines of their own: <parameter=city>, Paris, </parameter>.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ort_aie_ep.running.answers.forms import Tool
from ort_aie_ep.running.answers.pieces import Pieces, Steps, Write, nowhere
from ort_aie_ep.running.answers.rules import Rules, quoted
from ort_aie_ep.running.answers.schemas import definition

_OPENS, _CLOSES = "<parameter=", "\n</parameter>\n"


def tags_rule(rules: Rules, tool: Tool, how: Mapping[str, Any]) -> str:
    """The arguments of a tool, in the order of its schema; `how` is for JSON."""
    tags = []
    root = tool.schema
    if not root.get("properties") and root.get("additionalProperties") is not False:
        return rules.rule(
            rf"({quoted(_OPENS)} /[^>\n]+/ {quoted('>' + chr(10))} {rules.up_to(_CLOSES)})*"
        )
    for name, schema in _properties(tool).items():
        if not _is_text(schema):
            # What the schema refers to stays at its root.
            kept = {key: root[key] for key in ("$defs", "definitions") if key in root}
            value = f"{rules.json({**kept, **schema}, how)} {quoted(_CLOSES)}"
        elif isinstance(schema, dict) and (values := schema.get("enum")):
            shown = (value if isinstance(value, str) else json.dumps(value) for value in values)
            value = f"({' | '.join(map(quoted, shown))}) {quoted(_CLOSES)}"
        else:
            value = rules.up_to(_CLOSES)
        opens = f"{_OPENS}{name}>\n"
        tag = f"{quoted(opens)} {value}"
        tags.append(tag if name in root.get("required", ()) else f"({tag})?")
    return rules.rule(" ".join(tags))


def read_tags(pieces: Pieces, tool: Tool | None, ends: str, write: Write) -> Steps:
    """Reads tags up to `ends`, as JSON. Which of them are texts, only the tool knows."""
    properties = _properties(tool) if tool else {}
    comma = "{"
    mark = yield from pieces.until((_OPENS, ends), nowhere)
    while mark == _OPENS:
        name: list[str] = []
        if not (yield from pieces.until((">\n",), name.append)):
            return ""
        key = "".join(name)
        write(f"{comma}{quoted(key)}: ")
        comma = ", "
        if not _is_text(properties.get(key)):
            end = yield from pieces.until((_CLOSES,), write)
        else:
            write('"')
            end = yield from pieces.until((_CLOSES,), lambda piece: write(quoted(piece)[1:-1]))
            write('"' if end else "")
        mark = end and (yield from pieces.until((_OPENS, ends), nowhere))
    if mark:
        write("{}" if comma == "{" else "}")
    return mark


def _properties(tool: Tool) -> dict[str, Any]:
    """The schema of each argument."""
    root = tool.schema
    return {
        name: definition(root, one["$ref"]) if isinstance(one, dict) and "$ref" in one else one
        for name, one in root.get("properties", {}).items()
    }


def _is_text(schema: object) -> bool:
    """Whether a value may be a text; then it is one."""
    if not isinstance(schema, dict):
        return True
    if (kinds := schema.get("type")) is not None:
        return "string" in ([kinds] if isinstance(kinds, str) else kinds)
    if values := schema.get("enum", [schema["const"]] if "const" in schema else []):
        return any(isinstance(value, str) for value in values)
    either = [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
    return any(map(_is_text, either)) if either else "$ref" not in schema
