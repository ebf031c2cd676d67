"""How models write calls and thoughts: what a form says, and the forms that no template shows."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from ort_aie_ep.errors import AieError
from ort_aie_ep.running.answers.schemas import (
    loosened,
    why_circular,
    why_too_large,
    without_descriptions,
)

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def plain_names(names: Iterable[str]) -> dict[str, str]:
    """Names as models were trained to write them, each different: letters, digits, _ and -, at most
    64. Names of tools may have more, such as those of MCP: calendar.list."""
    found: dict[str, str] = {}
    taken = {name for name in names if _NAME.fullmatch(name)}
    for name in names:
        if name in taken:
            found[name] = name
        elif name not in found:
            plain = re.sub(r"[^A-Za-z0-9_-]", "_", name)[:64]
            if plain in taken or not plain:
                plain = f"{plain[:55]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"
            found[name] = plain
            taken.add(plain)
    return found


@dataclass(frozen=True)
class Tool:
    """A function that a model may ask for.

    Attributes:
        name: letters, digits, _ and -, at most 64.
        description: what it does, for the model.
        parameters: a JSON schema of its arguments, which are an object.
        strict: whether to refuse what the grammar cannot hold a call to, instead of leaving it out.
        asked: what those who offer it call it; empty if that is `name`.

    Raises:
        AieError: the name is not one, the arguments would not be an object, or a strict tool's
            schema is not one, or is too large.
    """

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    strict: bool = False
    asked: str = ""

    def __post_init__(self) -> None:
        if not self.asked:
            object.__setattr__(self, "asked", self.name)
        if not _NAME.fullmatch(self.name):
            raise AieError(f"a tool's name has up to 64 of A-Z a-z 0-9 _ -, got {self.name!r:.80}")
        if (kind := self.parameters.get("type", "object")) != "object":
            raise AieError(f"the parameters of {self.name} must be an object, not {kind!r:.80}")
        whole = {"type": "object", **self.parameters}
        why = (why_too_large(whole) or why_circular(whole)) if self.strict else ""
        if why:
            raise AieError(f"the parameters of {self.name}: {why}")

    @cached_property
    def schema(self) -> dict[str, Any]:
        """What calls are held to. Without parameters, a tool has no arguments."""
        none = {"properties": {}, "additionalProperties": False}
        whole = {"type": "object", **(self.parameters or none)}
        return without_descriptions(whole) if self.strict else loosened(whole)

    @property
    def without_schema(self) -> Tool:
        """The same with any arguments."""
        return replace(self, parameters={"type": "object"})

    @property
    def shown(self) -> dict[str, Any]:
        """The tool for a chat template, with the fields that all templates may rely on."""
        parameters = {"type": "object", "properties": {}, **self.parameters}
        about = {"name": self.name, "description": self.description, "parameters": parameters}
        return {"type": "function", "function": about}


# In what a form has around names and arguments: the tool's name once more, the call's id, and what
# counts calls. They are of Unicode's private use area, which no template has.
NAME, ID, COUNT = "\U0010fce8", "\U0010fce9", "\U0010fcea"
HOLES = re.compile(f"([{NAME}{ID}{COUNT}])")


@dataclass(frozen=True)
class Json:
    """Arguments are an object in JSON.

    Attributes:
        loose: whether there are ends of lines and indents in it.
        ascii: whether other characters are escaped.
    """

    loose: bool = False
    ascii: bool = False

    @property
    def texts(self) -> tuple[str, ...]:
        """What it writes around names and values."""
        return ()


@dataclass(frozen=True)
class Braces:
    """Arguments in braces with bare keys, sorted, and `quote` around texts; nested alike."""

    quote: str

    @property
    def texts(self) -> tuple[str, ...]:
        """What it writes around names and values."""
        return (self.quote,)


@dataclass(frozen=True)
class Pairs:
    """Arguments one by one: `before`, a name, what leads to its value, the value, and `after`.

    Texts are bare and other values JSON, but for what the attributes say.

    Attributes:
        leads: what leads to a value, by JSON's names of types.
        between: comes between two arguments, besides.
        quotes: what is around a text, which is bare otherwise.
        bare: whether a text may also be without its quotes.
        python: whether values other than texts may be as Python writes them.
        literals: whether texts are so too, with escapes.
    """

    leads: Mapping[str, str]
    before: str = ""
    after: str = ""
    between: str = ""
    quotes: tuple[str, str] = ("", "")
    bare: bool = False
    python: bool = False
    literals: bool = False

    @property
    def told_apart(self) -> bool:
        """Whether texts have a lead of their own."""
        return self.leads["string"] != self.leads["number"]

    @property
    def texts(self) -> tuple[str, ...]:
        """What it writes around names and values."""
        return (*self.leads.values(), self.before, self.after, self.between, *self.quotes)


@dataclass(frozen=True)
class CallForm:
    """How a model writes calls: `first`, a tool's name, `middle`, its arguments, and so on with
    `next` in place of `first`; `last` ends them. Each may have `NAME`, `ID` and `COUNT`.

    Attributes:
        next: empty if an answer may have only one call.
        arguments: how they are written.
        says: what is around a text that is no call.
        lead: white space before the first call, where nothing else is.
        id_length: characters of an id, if the template takes no others; 0 for any.
        as_text: whether the template wants arguments as JSON in a text.
        no_content: whether it shows calls only where there is no content.
        in_content: whether it shows none, so that they are put into the content.
        offered: where it finds the tools, as in `messages.offered`.
    """

    first: str
    middle: str
    last: str
    next: str = ""
    arguments: Json | Pairs | Braces = Json()
    says: tuple[str, str] = ("", "")
    lead: str = ""
    id_length: int = 0
    as_text: bool = False
    no_content: bool = False
    in_content: bool = False
    offered: str = "tools"

    @property
    def marker(self) -> str:
        """What a text comes to that goes on with calls: the tag that begins them."""
        tag = re.match(r"<[^<>\s]+>|\[[A-Z_]+\]", self.first)
        return tag[0] if tag else HOLES.split(self.first)[0]

    @property
    def alone(self) -> bool:
        """Whether calls are the whole answer, because what begins them is JSON, or nothing."""
        return self.first[:1] in ("", "{")

    @property
    def late_id(self) -> bool:
        """Whether a call's id comes after its arguments. A model may leave it out."""
        return ID in self.last

    @property
    def many(self) -> bool:
        """Whether an answer may have several calls."""
        return bool(self.next)

    @property
    def ends(self) -> str:
        """What follows the arguments of any call."""
        return common(self.next, self.last) if self.next else self.last

    @property
    def texts(self) -> tuple[str, ...]:
        """What it writes around names and arguments."""
        own = (self.first, self.middle, self.last, self.next, *self.says)
        return (*own, *self.arguments.texts)

    def written(self, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
        """Calls as a text; arguments in braces may be texts alone."""
        opens = [self.first] + [self.next] * (len(calls) - 1)
        text = "".join(
            f"{before}{name}{self.middle.replace(NAME, name)}{self._shown(arguments)}"
            for before, (name, arguments) in zip(opens, calls, strict=True)
        )
        return f"{text}{self.last if calls else ''}".replace(COUNT, "0").replace(ID, "id")

    def _shown(self, arguments: Mapping[str, Any]) -> str:
        how = self.arguments
        if isinstance(how, Json):
            return json.dumps(arguments, ensure_ascii=False)
        if isinstance(how, Braces):
            texts = (f"{name}:{how.quote}{text}{how.quote}" for name, text in arguments.items())
            return f"{{{','.join(texts)}}}"
        return how.between.join(
            how.before + name + how.leads["string" if isinstance(value, str) else "number"]
            + (repr(value) if how.literals else value.join(how.quotes) if isinstance(value, str)
               else json.dumps(value, ensure_ascii=False)) + how.after
            for name, value in arguments.items()
        )  # fmt: skip


def common(one: str, other: str) -> str:
    """What two texts begin with, tag by tag and else character by character."""
    parts = zip(re.findall(ATOMS, one), re.findall(ATOMS, other), strict=False)
    return "".join(a for a, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], parts))


# Tags, of which Kimi K3's have three parts, and characters.
ATOMS = r"(?s)<\|(?:open|close)\|>[^<\n]*<\|sep\|>|<[^<>\n]*>|."

# gpt-oss: an answer is several messages, each on a channel. Here are only its tokens.
HARMONY = CallForm("<|channel|><|start|>", "<|message|><|constrain|>", "<|end|><|return|><|call|>")

_OBJECTS = ('", "arguments": ', '}, {"name": "')
TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")
# Forms of templates that show no calls, each with what those have. The first that fits is it.
FORMS: tuple[tuple[tuple[str, ...], CallForm], ...] = (
    (("<|channel|>", "<|start|>assistant"), HARMONY),
    # Phi-4-mini
    (
        ("<|tool|>", "message['tools']"),
        CallForm('<|tool_call|>[{"name": "', _OBJECTS[0], "}]<|/tool_call|>", _OBJECTS[1],
                 in_content=True, offered="message.tools"),
    ),
    # Granite 3
    (
        ("<|tool_call|> followed by a JSON list",),
        CallForm('<|tool_call|>[{"name": "', _OBJECTS[0], "}]", _OBJECTS[1], in_content=True),
    ),
    # LFM2
    (
        ('"List of tools: ',),
        CallForm("<|tool_call_start|>[", "(", ")]<|tool_call_end|>", "), ",
                 Pairs(dict.fromkeys(TYPES, "="), between=", ", python=True, literals=True),
                 in_content=True),
    ),
    # SmolLM3
    (
        ("<tool_call>", '{"name": ', '"arguments": '),
        CallForm('<tool_call>\n{"name": "', _OBJECTS[0], "}\n</tool_call>",
                 '}\n</tool_call>\n<tool_call>\n{"name": "', in_content=True),
    ),
)  # fmt: skip

# Tokens that end an answer after its calls, whatever genai_config.json says.
ENDS = (
    "<|eom_id|>", "<|call|>", "<|return|>", "<|calls|>", "<|tool_response>",
    "<start_function_response>",
)  # fmt: skip
# May come before calls that are JSON alone.
MAY_OPEN = "<|python_tag|>"

# What opens and closes a thought.
THOUGHTS = (
    ("<think>", "</think>"), ("[THINK]", "[/THINK]"), ("<|channel>thought\n", "<channel|>"),
    ("<mm:think>", "</mm:think>"), ("<seed:think>", "</seed:think>"),
    ("<think:opensource>", "</think:opensource>"), ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
    ("<|think|>", "<|end|><|begin|>assistant"),
    (" to=self<|message|>", "<|eom|><|start|>assistant"),
    ("Here are my reasoning steps:\n", "[BEGIN FINAL RESPONSE]"),
)  # fmt: skip
