"""Text that comes in pieces, for parsers that wait for more.

A parser is a generator that waits, by `yield`, until more was added. What it needs to tell a marker
from text stays here until then.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ort_aie_ep.running.answers.formats import AnswerFormat

# A part of a parser, with what it found in the end; and what takes pieces of text.
Steps = Generator[None, None, str]
Write = Callable[[str], object]


class Pieces:
    """Text that was not read yet.

    A token that is a marker of the format is one character here, half of a surrogate pair, which no
    decoded text has. So a text that only spells a marker is not one.

    Attributes:
        over: nothing more comes.
        place: characters of the text that were handed over or taken; a marker counts as its name.
        end: characters of the text so far.
    """

    def __init__(self, form: AnswerFormat) -> None:
        self.over = False
        self.place = self.end = 0
        self._text = ""
        self._format = form
        self._names = {number: name for name, number in form.markers.items()}
        self._characters = {number: chr(0xD800 + at) for at, number in enumerate(self._names)}
        self._plain = {ord(self._characters[n]): name for n, name in self._names.items()}

    def add(self, token: int, text: str) -> str:
        """Adds what a token adds to the decoded text: that, without a token that is left out."""
        name = self._names.get(token) or self._format.hidden.get(token, "")
        text = text.removesuffix(name) + self._characters.get(token, "")
        self._text += text
        shown = self._shown(text)
        self.end += len(shown)
        return shown

    def until(self, marks: tuple[str, ...], write: Write) -> Steps:
        """Hands over the text before the first of `marks`, and takes that: which, or nothing.

        What may begin a mark is not handed over at the end either: `until((), write)` does that.
        """
        coded = {self._coded(mark): mark for mark in marks}
        while True:
            kept = max((_overlap(self._text, mark) for mark in coded), default=0)
            open_end = len(self._text) - kept
            places = [(at, mark) for mark in coded if (at := self._text.find(mark)) >= 0]
            if places and (min(places)[0] <= open_end or self.over):
                at, mark = min(places)
                self._hand(at, write)
                self._hand(len(mark), nowhere)
                return coded[mark]
            self._hand(open_end, write)
            if self.over:
                return ""
            yield

    def starts(self, mark: str) -> Steps:
        """Takes a mark that the text starts with, after white space: the mark, or nothing."""
        coded = self._coded(mark)
        while True:
            text = self._text.lstrip()
            if text.startswith(coded):
                self._hand(len(self._text) - len(text) + len(coded), nowhere)
                return mark
            if self.over or not coded.startswith(text):
                return ""
            yield

    def begins(self, mark: str) -> bool:
        """Whether the text ends, after white space, within a mark that it starts with."""
        text = self._text.lstrip()
        return self.over and bool(text) and self._coded(mark).startswith(text)

    def outside(self, marks: tuple[str, ...], write: Write) -> Steps:
        """As `until`, with the first of `marks` that is outside of brackets and quotes."""
        coded = {self._coded(mark): mark for mark in marks}
        at, depth, quote = 0, 0, ""
        while True:
            while at < len(self._text):
                char = self._text[at]
                if quote:
                    if char == "\\" and at + 1 == len(self._text):
                        break  # what it escapes is yet to come
                    at += char == "\\"
                    quote = "" if char == quote else quote
                elif depth == 0 and any(mark.startswith(self._text[at:]) for mark in coded):
                    break  # one may begin here
                elif depth == 0 and (found := [m for m in coded if self._text.startswith(m, at)]):
                    self._hand(at, write)
                    self._hand(len(found[0]), nowhere)
                    return coded[found[0]]
                elif char in "'\"":
                    quote = char
                else:
                    depth += (char in "([{") - (char in ")]}")
                at += 1
            if self.over:
                return ""
            yield

    def object(self, write: Write) -> Steps:
        """Hands over an object in JSON: its end, or nothing."""
        depth, inside, escaped = 0, False, False
        while True:
            for at, char in enumerate(self._text):
                if inside:
                    inside = escaped or char != '"'
                    escaped = char == "\\" and not escaped
                elif char == '"':
                    inside = True
                elif char in "{[":
                    depth += 1
                elif char in "}]":
                    depth -= 1
                    if depth <= 0:
                        self._hand(at + 1, write)
                        return "}"
            self._hand(len(self._text), write)
            if self.over:
                return ""
            yield

    def _hand(self, count: int, write: Write) -> None:
        if count:
            shown = self._shown(self._text[:count])
            self._text = self._text[count:]
            self.place += len(shown)
            write(shown)

    def _shown(self, text: str) -> str:
        """A text with the names of its markers."""
        return text.translate(self._plain)

    def _coded(self, text: str) -> str:
        """A text of the format, with the characters of its markers."""
        parts = self._format.parts(text)
        return "".join(p if isinstance(p, str) else self._characters[p] for p in parts)


class Lines:
    """Text without the ends of lines before it and, if something may follow it, after it.

    Attributes:
        held: ends of lines that wait for what follows them.
    """

    def __init__(self, write: Write, begun: bool = False, last: bool = False) -> None:
        """`begun` if nothing is left out before the text, and `last` if nothing may follow."""
        self._write = write
        self._begun, self._last = begun, last
        self.held = ""

    def write(self, text: str) -> None:
        """Takes a piece."""
        text = self.held + text
        if not self._begun:
            text = text.lstrip("\n")
        shown = text if self._last else text.rstrip("\n")
        self.held = text[len(shown) :]
        if shown:
            self._begun = True
            self._write(shown)

    def end(self) -> None:
        """The text ends here, with what is held."""
        held, self.held = self.held, ""
        if held:
            self._write(held)


def nowhere(_: str) -> None:
    """Takes what nobody reads."""


def _overlap(text: str, mark: str) -> int:
    """How many characters at the end of a text may begin a mark."""
    most = min(len(text), len(mark) - 1)
    return next((n for n in range(most, 0, -1) if text.endswith(mark[:n])), 0)
