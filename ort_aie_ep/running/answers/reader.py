"""Takes an answer apart as its tokens come: text, thoughts, and calls."""

from __future__ import annotations

import re
import secrets
import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ort_aie_ep.running.answers.forms import (
    HARMONY,
    HOLES,
    ID,
    MAY_OPEN,
    Braces,
    CallForm,
    Pairs,
    Tool,
)
from ort_aie_ep.running.answers.pairs import read_pairs
from ort_aie_ep.running.answers.pieces import Lines, Pieces, Steps, Write, nowhere
from ort_aie_ep.running.answers.values import read_braces

if TYPE_CHECKING:
    from ort_aie_ep.running.answers.formats import AnswerFormat

_ID = string.ascii_letters + string.digits
_RECIPIENT = re.compile(r"to=functions\.([A-Za-z0-9_-]+)")


@dataclass(frozen=True)
class CallDelta:
    """What was added to a call. Its id and name come first, and whole.

    Attributes:
        index: which call of the answer, from 0 on.
        id: the call's id, or empty.
        name: the tool's name, or empty.
        arguments: a piece of the arguments in JSON.
    """

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(frozen=True)
class Delta:
    """What was added to an answer.

    Attributes:
        content: a piece of its text.
        reasoning: a piece of a thought.
        calls: what was added to calls.
    """

    content: str = ""
    reasoning: str = ""
    calls: tuple[CallDelta, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.content or self.reasoning or self.calls)


class AnswerReader:
    """One answer.

    Attributes:
        added: what the last token adds, without tokens that texts leave out.
        end: characters of the text so far.
        spans: where the content of the last delta is in the text: (first character, end) each.
    """

    def __init__(
        self, form: AnswerFormat, tools: Sequence[Tool], prompt_tail: str, continues: bool,
        forced: bool = False,
    ) -> None:  # fmt: skip
        self._format, self._forced = form, forced
        self._exact = forced or any(tool.strict for tool in tools)
        self._tools = {tool.name: tool for tool in tools}
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[CallDelta] = []
        self._count = 0
        self.added = ""
        self.spans: list[tuple[int, int]] = []
        self._found: list[tuple[int, int]] = []
        self._lines: Lines | None = None
        self._pieces = Pieces(form)
        self._parser = self._answer(False if continues else form.thinks(prompt_tail), continues)
        next(self._parser, None)

    @property
    def end(self) -> int:  # noqa: D102
        return self._pieces.end

    @property
    def held(self) -> str:
        """Ends of lines that wait for what follows them: content, unless that is a call."""
        return self._lines.held if self._lines else ""

    @property
    def called(self) -> bool:
        """Whether the answer has calls."""
        return self._count > 0

    def push(self, token: int, text: str) -> Delta:
        """What a token adds.

        `text` is what it adds to the decoded text, special tokens included; it may be empty.
        """
        self.added = self._pieces.add(token, text)
        next(self._parser, None)
        return self._delta()

    def finish(self) -> Delta:
        """What was held back, at the end of the answer. A call that has no end stays as it is."""
        self.added = ""
        self._pieces.over = True
        for _ in self._parser:
            pass
        return self._delta()

    def _delta(self) -> Delta:
        delta = Delta("".join(self._content), "".join(self._reasoning), tuple(self._calls))
        for written in (self._content, self._reasoning, self._calls):
            written.clear()
        self.spans, self._found = self._found, []
        return delta

    def _say(self, text: str) -> None:
        """Adds to the content what was just read."""
        end = self._pieces.place - len(self.held)
        self._found.append((end - len(text), end))
        self._content.append(text)

    def _answer(self, thinks: bool | None, continues: bool) -> Steps:
        """Reads all; what parts of it find means nothing in the end."""
        form, pieces = self._format.form, self._pieces
        if form is HARMONY:
            return (yield from self._channels(continues))
        thought = yield from self._thought(thinks)
        opens, closes = self._format.says
        if opens and (continues or (yield from pieces.starts(opens))):
            yield from self._message((closes,) if closes else (), self._say)
            thought = opens
        if form is None or not self._tools:
            self._lines = Lines(self._say, begun=not thought, last=True)
            yield from pieces.until((), self._lines.write)
        elif (yield from self._until_calls(form, not thought)):
            yield from self._read_calls(form)
        return ""

    def _thought(self, thinks: bool | None) -> Steps:
        """Reads the thought that begins an answer: what closed it, or nothing."""
        if thinks is False or self._format.thought is None:
            return ""
        opens, closes = self._format.thought
        if thinks is None and not (yield from self._pieces.starts(opens.strip())):
            return ""
        lines = Lines(self._reasoning.append)
        closed = yield from self._pieces.until((closes,), lines.write)
        if not closed:  # what began like the marker is a part of the thought
            yield from self._pieces.until((), lines.write)
        return closed

    def _until_calls(self, form: CallForm, begun: bool) -> Steps:
        """Reads text up to the calls: what opens the first, or nothing."""
        opens, pieces = HOLES.split(form.first)[0], self._pieces
        if form.alone:
            yield from pieces.starts(MAY_OPEN)
            if not opens:
                return form.middle
        if (yield from pieces.starts(opens)):
            return opens
        if form.alone and pieces.begins(opens):
            return ""
        content = self._lines = Lines(nowhere if self._forced else self._say, begun)
        mark = yield from pieces.until(() if form.alone else (opens,), content.write)
        if not mark:
            # What only began like calls, where it was cut.
            yield from pieces.until((), nowhere if self._exact else content.write)
            content.end()
        self._lines = None
        return mark

    def _read_calls(self, form: CallForm) -> Steps:
        """Reads calls, after what opens the first. Between them, and after them, is no text."""
        pieces, arguments = self._pieces, form.arguments
        # What may come after `middle`, and what is left of `next` after the arguments.
        after: tuple[str, ...] = ("{" if isinstance(arguments, Braces) else "",)
        following = form.next
        if isinstance(arguments, Pairs):
            after, following = (arguments.before, form.ends), form.next.removeprefix(form.ends)
        opens = HOLES.split(form.first)[0]
        ids: list[str] = []
        another = yield from self._through(form.first.removeprefix(opens), ids)
        while another:
            name: list[str] = []
            mark = yield from self._through(form.middle, ids, after, name.append)
            if not mark:
                break  # before the arguments: there is no call
            called, held = "".join(name), list[str]()
            write = held.append if form.late_id else self._begin(called, ids, form.id_length)
            if isinstance(arguments, Pairs):
                tool = self._tools.get(called)
                yield from read_pairs(pieces, form, tool, not mark.endswith(form.ends), write)
            elif isinstance(arguments, Braces):
                yield from read_braces(pieces, arguments.quote, write)
            else:
                yield from pieces.object(write)
            ids = []
            if form.late_id:
                tail: list[str] = []
                another = yield from pieces.until((form.next.rpartition(ID)[2][1:],), tail.append)
                late = re.findall(r'"([A-Za-z0-9_-]+)$', "".join(tail).rstrip('"}] '))
                self._begin(called, late, form.id_length)("".join(held))
            else:
                another = following and (yield from self._through(following, ids))
        return ""

    def _through(
        self, text: str, ids: list[str], after: tuple[str, ...] = ("",), write: Write = nowhere
    ) -> Steps:
        """Reads up to a text with holes and one of those `after` it, and that: its end, or
        nothing. `write` takes what is before it."""
        found, parts = "all", HOLES.split(text)
        for at in range(0, len(parts), 2):
            into: list[str] = []
            ends = after if at == len(parts) - 1 else ("",)
            if marks := tuple(parts[at] + end for end in ends if parts[at] + end):
                found = yield from self._pieces.until(marks, into.append if at else write)
            if not found:
                return ""
            if at and parts[at - 1] == ID:
                ids.append("".join(into))
        return found

    def _begin(self, name: str, ids: list[str], length: int) -> Write:
        """Begins a call: what takes its arguments."""
        number = ids[0] if ids else ""
        if not number:
            number = "".join(secrets.choice(_ID) for _ in range(length or 24))
            number = number if length else f"call_{number}"
        at, self._count = self._count, self._count + 1
        tool = self._tools.get(name)
        self._calls.append(CallDelta(at, number, tool.asked if tool else name))

        def write(text: str) -> None:
            last = self._calls.pop() if self._calls else CallDelta(at)
            self._calls.append(CallDelta(at, last.id, last.name, last.arguments + text))

        return write

    def _channels(self, continues: bool) -> Steps:
        """gpt-oss's messages: a header with a channel, and perhaps a recipient, before each; not
        before one that `continues`."""
        ends = "<|end|>", "<|call|>", "<|return|>"
        if continues:
            yield from self._message(ends, self._say)
        while True:
            header: list[str] = []
            if not (yield from self._pieces.until(("<|message|>",), header.append)):
                return ""
            about = "".join(header)
            write: Write = self._say
            if (to := _RECIPIENT.search(about)) and self._tools:
                write = self._begin(to[1], [], 0)
            elif to or "analysis" in about:
                write = self._reasoning.append
            yield from self._message(ends, write)

    def _message(self, ends: tuple[str, ...], write: Write) -> Steps:
        """Reads a message, with what only began like its end."""
        if not (end := (yield from self._pieces.until(ends, write))):
            yield from self._pieces.until((), write)
        return end
