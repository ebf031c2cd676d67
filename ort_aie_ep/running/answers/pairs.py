"""Arguments one by one, such as a tag each: texts are mostly bare, and other values JSON.

<parameter=city>      <arg_key>city</arg_key>         f(city='Paris')
Paris                 <arg_value>Paris</arg_value>
</parameter>
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ort_aie_ep.running.answers.forms import TYPES, CallForm, Pairs, Tool
from ort_aie_ep.running.answers.pieces import Pieces, Steps, Write
from ort_aie_ep.running.answers.rules import Rules, quoted
from ort_aie_ep.running.answers.schemas import definition
from ort_aie_ep.running.answers.values import Values, as_json, chained

# References that are followed for the types of an argument.
_DEPTH = 8


def pairs_rule(rules: Rules, pairs: Pairs, tool: Tool, how: Mapping[str, Any]) -> str:
    """The arguments of a tool, in the order of its schema; `how` is for JSON."""
    root = tool.schema
    properties = root.get("properties")
    between = rules.literal(pairs.between)
    if not properties:
        if root.get("additionalProperties") is False:
            return ""
        name = r"/[^<>=\s\"']+/"
        one = rules.rule(_pair(rules, pairs, name, {}, root, how))
        return rules.rule(f"({one} ({between} {one})*)?")
    return chained(
        rules, between or '""',
        [(_pair(rules, pairs, quoted(name), schema, root, how), name in root.get("required", ()))
         for name, schema in properties.items()],
    )  # fmt: skip


def _pair(
    rules: Rules, pairs: Pairs, name: str, schema: Any, root: Mapping[str, Any],
    how: Mapping[str, Any],
) -> str:  # fmt: skip
    """An argument. Where texts look like other values, what may be a text is one."""
    after = rules.literal(pairs.after)
    before = f"{rules.literal(pairs.before)} {name}"
    kinds = list(_kinds(schema, root))
    apart = pairs.told_apart or bool(pairs.quotes[0]) or pairs.literals
    if not apart and any(kind == "string" for kind, _ in kinds):
        kinds = [one for one in kinds if one[0] == "string"]
    choices = []
    for kind, one in kinds:
        lead = rules.literal(pairs.leads[kind])
        if kind == "string" and not pairs.literals:
            choices.append(f"{lead} {_text(rules, pairs, one)}")
            continue
        kept = {key: root[key] for key in ("$defs", "definitions") if key in root}
        value = rules.json({**kept, **one}, how) if not pairs.literals else ""
        if pairs.python:
            written = Values(rules, root).of(one)
            value = f"({value} | {written})" if value else written
        choices.append(f"{lead} {value} {after}")
    return f"{before} ({' | '.join(dict.fromkeys(choices))})"


def _text(rules: Rules, pairs: Pairs, schema: Mapping[str, Any]) -> str:
    """A text, with what is around it and `after`."""
    opens, closes = pairs.quotes
    if values := schema.get("enum"):
        one = " | ".join(map(quoted, values))
        return f"{rules.literal(opens)} ({one}) {rules.literal(closes + pairs.after)}"
    if opens and not pairs.after:
        # A quote within a text is one that no end of it follows.
        return rf"/{opens}([^{closes}]|{closes}[^,)\]])*{closes}/"
    if not opens:
        return rules.up_to(pairs.after)
    quoted_text = f"{rules.literal(opens)} {rules.up_to(closes + pairs.after)}"
    return f"({quoted_text} | /[^<&\\n]*/ {rules.literal(pairs.after)})"


def _kinds(schema: Any, root: Mapping[str, Any], depth: int = 0) -> Iterator[tuple[str, Any]]:
    """The types that a schema allows, and for each a schema of values of that type."""
    if not isinstance(schema, dict) or depth > _DEPTH:
        yield from ((kind, {"type": kind}) for kind in TYPES)
    elif "$ref" in schema:
        yield from _kinds(definition(root, schema["$ref"]), root, depth + 1)
    elif values := schema.get("enum", [schema["const"]] if "const" in schema else []):
        for kind in TYPES:
            if some := [value for value in values if _kind(value) == kind]:
                yield kind, {"enum": some}
    elif either := [*schema.get("anyOf", ()), *schema.get("oneOf", ())]:
        for one in either:
            yield from _kinds(one, root, depth + 1)
    else:
        given = schema.get("type", TYPES)
        for kind in [given] if isinstance(given, str) else given:
            yield kind, {**schema, "type": kind}


def _kind(value: object) -> str:
    """JSON's name of a value's type."""
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}
    return "null" if value is None else names.get(type(value), "object")


def read_pairs(
    pieces: Pieces, form: CallForm, tool: Tool | None, begun: bool, write: Write
) -> Steps:
    """Reads arguments, of which the first has `begun`, up to the end of the call, as JSON. Which of
    them are texts, mostly only the tool knows."""
    pairs, properties = form.arguments, tool.schema.get("properties", {}) if tool else {}
    assert isinstance(pairs, Pairs)
    ends = pairs.after + form.ends
    stops = pairs.after + pairs.between + pairs.before, ends
    leads = tuple(dict.fromkeys(pairs.leads.values()))
    comma, mark = "{", "" if begun else ends
    while mark != ends:
        name: list[str] = []
        # Where nothing begins an argument, there may be none.
        nothing = () if pairs.before or comma != "{" else (form.ends,)
        lead = yield from pieces.until((*leads, *nothing), name.append)
        if not lead:
            return ""
        if lead in nothing:
            break
        key = "".join(name)
        write(f"{comma}{quoted(key)}: ")
        comma = ", "
        opens, closes = pairs.quotes
        if opens and not (yield from pieces.starts(opens)):
            opens = closes = ""
        if pairs.told_apart:
            is_text = lead == pairs.leads["string"]
        elif opens or pairs.literals or (pairs.quotes[0] and not pairs.bare):
            is_text = bool(opens)
        else:
            is_text = _is_text(properties.get(key), tool.schema if tool else {})
        if is_text:
            write('"')
            within = tuple(closes + stop for stop in stops)
            mark = yield from pieces.until(within, lambda piece: write(quoted(piece)[1:-1]))
            mark = mark.removeprefix(closes)
            write('"' if mark else "")
        else:
            value: list[str] = []
            read = pieces.until if pairs.after else pieces.outside
            mark = yield from read(stops, value.append)
            write(as_json("".join(value)) if mark else "")
        if not mark:
            return ""
    write("{}" if comma == "{" else "}")
    return ends


def _is_text(schema: object, root: Mapping[str, Any]) -> bool:
    """Whether a value may be a text; then it is one."""
    return any(kind == "string" for kind, _ in _kinds(schema, root))
