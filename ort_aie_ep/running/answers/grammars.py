"""A grammar that holds an answer to its form, and its calls to the schemas of their tools."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ort_aie_ep.running.answers.forms import (
    HARMONY,
    ID,
    MAY_OPEN,
    CallForm,
    Json,
    Pairs,
    Tool,
)
from ort_aie_ep.running.answers.pairs import pairs_rule
from ort_aie_ep.running.answers.rules import Rules, pattern, quoted
from ort_aie_ep.running.answers.values import Values

if TYPE_CHECKING:
    from ort_aie_ep.running.answers.formats import AnswerFormat

# Between what a template indents: at most this.
_LOOSE = {
    "whitespace_flexible": True, "whitespace_pattern": r"\n? {0,64}", "item_separator": ",",
    "key_separator": ":",
}  # fmt: skip


def answer_grammar(
    form: AnswerFormat,
    tools: Sequence[Tool],
    required: bool,
    parallel: bool,
    schema: str,
    prompt_tail: str,
    continues: bool,
    barred: bool,
) -> str:
    """The grammar of `AnswerFormat.grammar`."""
    # A text in a message of its own ends before calls.
    in_message = form.form is HARMONY or form.says[0]
    if (not tools and not schema and not barred) or (continues and in_message):
        return ""
    rules = Rules(form)
    text = rules.json(json.loads(schema), {}) if schema else "TEXT"
    if form.form is HARMONY:
        start = _channels(rules, tools, required, text)
    else:
        choices = [] if required else [_text(rules, form.form, text, barred)]
        if tools:
            assert form.form is not None
            choices += _answers(rules, form, form.form, tools, required or bool(schema), parallel)
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


def _text(rules: Rules, form: CallForm | None, text: str, barred: bool) -> str:
    """An answer that is a text, without a call where calls are `barred`."""
    if form is None:
        return text
    opens, closes = form.says
    if opens:
        return f"{rules.literal(opens)} {text} {f'({rules.literal(closes)})?' if closes else ''}"
    if text == "TEXT" and form.alone:
        # It must not begin like a call.
        return rules.named("OTHER", r"/\s*([^\s{](.|\n)*)?/")
    if text == "TEXT" and barred and rules.literal(form.marker) == quoted(form.marker):
        return rules.named("OTHER", rf"/(.|\n)*/ & ~/(.|\n)*{pattern(form.marker)}(.|\n)*/")
    return text


def _answers(
    rules: Rules, answer: AnswerFormat, form: CallForm, tools: Sequence[Tool], only: bool,
    parallel: bool,
) -> list[str]:  # fmt: skip
    """Answers with calls: those, after a text if they are not to be `only`."""
    call = rules.rule(
        " | ".join(
            f"{quoted(tool.name)} {rules.form(form.middle, tool.name, form.id_length)} "
            f"{_arguments(rules, form, tool)}"
            for tool in tools
        )
    )
    another, last = (_after(rules, form, text) for text in (form.next, form.last))
    more = f"({another} {call})*" if parallel and form.many else ""
    calls = f"{call} {more} {last}"
    opens, closes = form.says
    first = rules.form(form.first, id_length=form.id_length)
    if MAY_OPEN in answer.markers and form.alone:
        first = f"({rules.literal(MAY_OPEN)})? {first}"
    lead = f"({quoted(form.lead)})?" if form.lead else ""
    if only or form.alone or (opens and not closes):
        return [f"{lead} {first} {calls}"]
    if opens:
        before = f"{rules.literal(opens)} TEXT {rules.literal(closes)}"
        return [f"({before})? {lead} {first} {calls}"]
    rest = rules.form(form.first.removeprefix(form.marker), id_length=form.id_length)
    return [f"{rules.up_to(form.marker)} {rest} {calls}"]


def _after(rules: Rules, form: CallForm, text: str) -> str:
    """What follows arguments; an id there may be left out."""
    if not form.late_id:
        return rules.form(text, id_length=form.id_length)
    before, number, after = text.partition(ID)
    optional = rules.form(f"{before}{number}{after[:1]}", id_length=form.id_length)
    return f"({optional})? {rules.form(after[1:], id_length=form.id_length)}"


def _arguments(rules: Rules, form: CallForm, tool: Tool) -> str:
    """What is between `middle` and what follows the arguments."""
    how = _as_written(tool)
    if isinstance(form.arguments, Json) and form.arguments.ascii:
        return Values(rules, tool.schema).whole()
    if isinstance(form.arguments, Json):
        return rules.json(tool.schema, {**how, **_LOOSE} if form.arguments.loose else how)
    if isinstance(form.arguments, Pairs):
        return pairs_rule(rules, form.arguments, tool, how)
    return Values(rules, tool.schema, form.arguments.quote).whole()


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
