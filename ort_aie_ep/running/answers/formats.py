"""The form in which a model answers, found by what its chat template and tokenizer have."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ort_aie_ep.errors import AieError
from ort_aie_ep.running.answers.forms import ENDS, FORMS, HARMONY, MAY_OPEN, CallForm, Tool
from ort_aie_ep.running.answers.grammars import answer_grammar
from ort_aie_ep.running.answers.probes import PROBES, Probed, probe, thought_in
from ort_aie_ep.running.answers.reader import AnswerReader

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from ort_aie_ep.running.templates import ChatTemplate


@dataclass(frozen=True)
class AnswerFormat:
    """How a model thinks and calls tools.

    Attributes:
        form: how it writes calls, or None if that is not known.
        why_not: why it cannot call tools; empty if it can.
        thought: what opens and closes a thought, or None if it shows none.
        says: what is around a text that is no thought and no call, or nothing.
        markers: text and id of each token in those forms that is no part of ordinary text.
        hidden: id and text of each token that texts leave out.
        ends: ids of tokens that end an answer, besides those in genai_config.json.
    """

    form: CallForm | None = None
    why_not: str = "the model has no chat template"
    thought: tuple[str, str] | None = None
    says: tuple[str, str] = ("", "")
    markers: Mapping[str, int] = field(default_factory=dict)
    hidden: Mapping[int, str] = field(default_factory=dict)
    ends: frozenset[int] = frozenset()

    @property
    def tools(self) -> bool:
        """Whether the model can call tools."""
        return not self.why_not

    def grammar(
        self,
        tools: Sequence[Tool] = (),
        *,
        required: bool = False,
        parallel: bool = True,
        schema: str = "",
        prompt_tail: str = "",
        continues: bool = False,
        barred: bool = False,
    ) -> str:
        """A grammar for `Guides.of_lark`; empty if an answer may be any text.

        Args:
            tools: those that may be called; a choice of one leaves out the others.
            required: the answer is calls, not text.
            parallel: it may be several calls, if the model can write several.
            schema: a JSON schema, as JSON, that a text follows.
            prompt_tail: the end of the prompt; it may have opened a thought.
            continues: the answer goes on within a text of the prompt.
            barred: it is a text, though the model was shown tools.
        """
        how = required, parallel, schema, prompt_tail, continues, barred
        try:
            return answer_grammar(self, tools, *how)
        except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            # Of strict tools and of a text: the schemas of other tools are well-formed by now.
            names = ", ".join(tool.name for tool in tools) or "the text"
            raise AieError(f"a schema of {names} is not a JSON schema: {error}") from error

    def reader(
        self, tools: Sequence[Tool] = (), prompt_tail: str = "", continues: bool = False,
        forced: bool = False,
    ) -> AnswerReader:  # fmt: skip
        """What takes an answer apart. Without tools, what looks like a call is text. What
        `continues` a text is one from its first token on. Where calls are `forced`, nothing is;
        with them, or a strict tool, what is cut within the mark of a call is no text either."""
        return AnswerReader(self, tools, prompt_tail, continues, forced)

    def thinks(self, prompt_tail: str) -> bool | None:
        """Whether an answer begins within a thought; None if it may begin with one."""
        if self.thought is None:
            return False
        opens, closes = (mark.strip() for mark in self.thought)
        tail = prompt_tail.rstrip()
        # What closes a thought and begins a message may also stand where no thought was.
        if tail.endswith(closes) and (opens in tail or closes.count("<") < 2):
            return False
        return tail.endswith(opens) or None

    def parts(self, text: str) -> list[str | int]:
        """A text, divided into ids of tokens that are no ordinary text, and ordinary text."""
        names = "|".join(re.escape(name) for name in sorted(self.markers, key=len, reverse=True))
        pieces = re.split(f"({names})", text) if names else [text]
        return [self.markers.get(piece, piece) for piece in pieces if piece]


def find_format(template: ChatTemplate | None, tokenizer: Tokenizer) -> AnswerFormat:
    """The format of the model that has a chat template and a tokenizer."""
    added = tokenizer.get_added_tokens_decoder()
    hidden = {number: token.content for number, token in added.items() if token.special}
    if template is None:
        return AnswerFormat(hidden=hidden)
    known = next(
        (form for marks, form in FORMS if all(mark in template.for_tools for mark in marks)), None
    )
    try:
        found = Probed(HARMONY, offer="tools") if known is HARMONY else probe(template)
    except AieError as error:
        known, found = None, Probed(None, str(error), "tools", thought_in(template.for_tools))
    form, why_not = found.form, found.why_not
    if form is None and not found.offer:
        why_not = "the model's chat template does not name tools"
    elif form is None and known:
        form, why_not = replace(known, offered=found.offer), ""
    elif form and found.sample and not _reads(form, found.sample):
        form, why_not = None, "calls of tools cannot be read back from the model's chat template"
    texts = (*(form.texts if form else ()), *(found.thought or ()), *found.says, MAY_OPEN)
    markers = {
        token.content: number
        for number, token in added.items()
        # llguidance's rule for tokens that no ordinary text has.
        if (token.special or (token.content.startswith("<") and token.content.endswith(">")))
        and any(token.content in text for text in texts)
    }
    ends = frozenset(number for number, token in added.items() if token.content in ENDS)
    return AnswerFormat(form, why_not, found.thought, found.says, markers, hidden, ends)


def _reads(form: CallForm, sample: str) -> bool:
    """Whether the calls of a sample come out of a reader."""
    types = {str: "string", int: "integer", float: "number", bool: "boolean", list: "array"}
    tools = [
        Tool(name, "", {"properties": {k: {"type": types.get(type(v), "object")}
                                       for k, v in given.items()}})
        for name, given in PROBES
    ]  # fmt: skip
    reader = AnswerFormat(form, "", says=form.says).reader(tools)
    calls: list[list[str]] = []
    for call in (*reader.push(-1, sample).calls, *reader.finish().calls):
        calls += [[call.name, ""]] if call.name else []
        calls[-1][1] += call.arguments
    try:
        found = [(name, json.loads(arguments)) for name, arguments in calls]
    except ValueError:
        return False
    return found == list(PROBES)[: 1 + form.many]
