"""A grammar that holds an answer to its form, and its calls to the schemas of their tools."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ort_aie_ep.running.answers.braces import braces_rule
from ort_aie_ep.running.answers.forms import HARMONY, CallForm, Tool
from ort_aie_ep.running.answers.rules import Rules, quoted
from ort_aie_ep.running.answers.tags import tags_rule

if TYPE_CHECKING:
    from ort_aie_ep.running.answers.formats import AnswerFormat


def answer_grammar(
    form: AnswerFormat,
    tools: Sequence[Tool],
    required: bool,
    parallel: bool,
    schema: str,
    prompt_tail: str,
    continues: bool,
) -> str:
    """The grammar of `AnswerFormat.grammar`."""
    # gpt-oss ends a message before it calls.
    if (not tools and not schema) or (continues and form.form is HARMONY):
        return ""
    rules = Rules(form)
    text = rules.json(json.loads(schema), {}) if schema else "TEXT"
    if form.form is HARMONY:
        start = _channels(rules, tools, required, text)
    else:
        choices = [text]
        if tools:
            assert form.form is not None
            calls = _calls(rules, form.form, tools, parallel and form.form.many)
            opens = rules.literal(form.form.marker)
            if form.form.alone and not schema:
                # A text must not begin like a call.
                first = form.form.marker[0]
                choices = [rules.named("OTHER", rf"/\s*([^\s{first}](.|\n)*)?/")]
            elif not required and not schema:
                opens = rules.up_to(form.form.marker)
            if form.form.may_open in form.markers:
                opens = f"{rules.literal(form.form.may_open)}? {opens}"
            choices = [f"{opens} {calls}"] if required else [*choices, f"{opens} {calls}"]
        thought = "" if continues else _thought(rules, form, prompt_tail)
        start = f"{thought} ({' | '.join(choices)})"
    rules.named("start", start)
    return rules.text


def _thought(rules: Rules, form: AnswerFormat, prompt_tail: str) -> str:
    """The thought before an answer, or nothing."""
    thinks = form.thinks(prompt_tail)
    if form.thought is None or thinks is False:
        return ""
    opens, closes = (mark.strip() for mark in form.thought)
    gap = rules.named("GAP", r"/\s{1,4}/")
    inside = f"{rules.up_to(closes)} {gap}?"
    return inside if thinks else f"({gap}? {rules.literal(opens)} {inside})?"


def _calls(rules: Rules, form: CallForm, tools: Sequence[Tool], many: bool) -> str:
    """Calls, after the marker of the first."""
    number = ""
    if form.id_mark:
        number = f"{rules.literal(form.id_mark)} /[A-Za-z0-9]{{{form.id_length}}}/"
    middle, after = rules.literal(form.middle), rules.literal(form.after)
    call = rules.rule(
        " | ".join(
            f"{quoted(tool.name)} {number} {middle} {_arguments(rules, form, tool)} {after}"
            for tool in tools
        )
    )
    first = rules.literal((form.opens + form.before).removeprefix(form.marker))
    more = f"({rules.literal(form.between + form.before)} {call})*" if many else ""
    return f"{first} {call} {more} {rules.literal(form.closes)}"


def _arguments(rules: Rules, form: CallForm, tool: Tool) -> str:
    """What is between `middle` and `after`."""
    if form.arguments == "tags":
        return tags_rule(rules, tool, _as_written(tool))
    if form.arguments == "braces":
        return braces_rule(rules, tool, form.quote)
    return rules.json(tool.schema, _as_written(tool))


def _channels(rules: Rules, tools: Sequence[Tool], required: bool, text: str) -> str:
    """gpt-oss's messages, after "<|start|>assistant"."""
    channel = rules.literal("<|channel|>")
    message, end = rules.literal("<|message|>"), rules.literal("<|end|><|start|>assistant")
    last = [] if required else [f'{channel} "final" {message} {text}']
    kind = f'" "? {rules.literal("<|constrain|>")}? " "? "json"'
    for tool in tools:
        to = quoted(f" to=functions.{tool.name}")
        arguments = rules.json(tool.schema, _as_written(tool))
        # Both orders occur.
        header = f'({to} {channel} "commentary" | {channel} "commentary" {to})'
        last.append(f"{header} {kind} {message} {arguments}")
    # Thoughts, and what it says before it calls.
    before = f'{channel} ("analysis" | "commentary") {message} TEXT {end}'
    return f"({before})* ({' | '.join(last)})"


def _as_written(tool: Tool) -> dict[str, Any]:
    """How a tool's arguments become JSON: as Python writes it, and so chat templates. A model saw
    that when it was trained, and a call that comes back in a later prompt has the same tokens."""
    return {"item_separator": ", ", "key_separator": ": ", "lenient": not tool.strict}
