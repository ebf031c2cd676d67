"""The rules of a grammar, in llguidance's variant of Lark.

A rule has lower case, a terminal (which is matched as a whole) upper case; `<[7]>` is the token 7,
`%json` a JSON schema, and a rule with [lazy] ends at the first place where it can.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ort_aie_ep.running.answers.forms import COUNT, HOLES, ID, NAME

if TYPE_CHECKING:
    from ort_aie_ep.running.answers.formats import AnswerFormat


class Rules:
    """Rules that refer to one another; `start` is the whole.

    Methods return what stands for a rule in another one.
    """

    def __init__(self, form: AnswerFormat) -> None:
        self._format = form
        self._lines = {"%llguidance": "{}"}
        self.named("TEXT", r"/(.|\n)*/")

    @property
    def text(self) -> str:
        """The grammar."""
        colons = (f"{name} {body}" for name, body in self._lines.items())
        return "\n".join(colons)

    def rule(self, body: str, how: str = "") -> str:
        """A new rule, with a name of its own."""
        name = f"r{len(self._lines)}"
        self._lines[f"{name}{how}:"] = body
        return name

    def named(self, name: str, body: str) -> str:
        """A rule that is there once."""
        self._lines[f"{name}:"] = body
        return name

    def has(self, name: str) -> bool:
        """Whether there is a rule of this name."""
        return f"{name}:" in self._lines

    def literal(self, text: str) -> str:
        """This text."""
        return " ".join(
            quoted(part) if isinstance(part, str) else f"<[{part}]>"
            for part in self._format.parts(text)
        )

    def form(self, text: str, name: str = "", id_length: int = 0) -> str:
        """A text of a form, with the name of a tool, any id and any number for its holes."""
        ids = f"{{{id_length}}}" if id_length else "{1,64}"
        holes = {NAME: quoted(name), COUNT: "/[0-9]{1,4}/", ID: f"/[A-Za-z0-9_-]{ids}/"}
        return " ".join(holes.get(part) or self.literal(part) for part in HOLES.split(text) if part)

    def up_to(self, marker: str) -> str:
        """Any text up to a marker, which it takes."""
        first, *others = self._format.parts(marker)
        if isinstance(first, str) and not others:
            return self.rule(f"TEXT {quoted(marker)}", "[lazy]")
        if isinstance(first, int):  # a token that no text has
            return f"TEXT {self.literal(marker)}"
        ending = self.rule(f"/(.|\\n)*{pattern(first)}/")
        return f"{ending} {self.literal(marker.removeprefix(first))}"

    def json(self, schema: Any, how: Mapping[str, Any]) -> str:
        """JSON that follows a schema; `how` are options of llguidance."""
        schema = schema if isinstance(schema, dict) else {"anyOf": [schema]}
        options = {"whitespace_flexible": False, **how}
        return self.rule(f"%json {json.dumps({**schema, 'x-guidance': options})}")


def quoted(text: str) -> str:
    """A text in quotes, for a grammar and for JSON."""
    return json.dumps(text, ensure_ascii=False)


def pattern(text: str) -> str:
    """A text in a regular expression."""
    return re.escape(text).replace("/", r"\/").replace("\n", "n")
