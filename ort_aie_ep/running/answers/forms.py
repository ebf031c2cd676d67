"""How families of models write thoughts and calls; docs/tools.md says what each is held against."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

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


@dataclass(frozen=True)
class CallForm:
    """How a family writes calls: `opens`, the calls with `between` between them, and `closes`.

    A call is `before`, the tool's name, `middle`, its arguments, and `after`.

    Attributes:
        family: its name.
        marks: a chat template with all of these is of this family; the first row that fits decides.
        marker: begins `opens` or, if that is empty, `before`. A text that comes to it goes on with
            calls.
        arguments: their syntax: JSON as Python writes it; a tag for each parameter; or braces with
            bare keys and `quote` around texts.
        alone: whether calls are the whole answer, because the marker is ordinary text.
        may_open: what may come before `opens`.
        many: whether an answer may have several calls.
        id_mark: comes after the name, with the call's id after it.
        id_length: characters of an id; 0 for this server's own ids.
        ends: tokens that end an answer, whatever genai_config.json says.
    """

    family: str
    marks: tuple[str, ...]
    marker: str
    before: str
    middle: str
    after: str = ""
    opens: str = ""
    between: str = ""
    closes: str = ""
    arguments: Literal["json", "tags", "braces"] = "json"
    quote: str = ""
    alone: bool = False
    may_open: str = ""
    many: bool = True
    id_mark: str = ""
    id_length: int = 0
    ends: tuple[str, ...] = ()

    @property
    def texts(self) -> tuple[str, ...]:
        """What it writes around names and arguments."""
        return (
            self.opens, self.before, self.middle, self.after, self.between, self.closes,
            self.marker, self.quote, self.may_open, self.id_mark, *self.ends,
        )  # fmt: skip


# gpt-oss: an answer is several messages, each on a channel. Here are only its tokens.
HARMONY = CallForm(
    "harmony", ("<|channel|>", "<|start|>assistant"), "<|channel|>", "<|message|>",
    "<|constrain|>", "<|end|>", "<|start|>", many=False, ends=("<|return|>", "<|call|>"),
)  # fmt: skip

# `before`, `middle` and `after` of calls that are objects in JSON.
_OBJECT = ('{"name": "', '", "arguments": ', "}")
_MISTRAL = "[TOOL_CALLS]"

FORMS = (
    HARMONY,
    CallForm(
        "qwen-xml", ("<tool_call>", "<function="), "<tool_call>", "<tool_call>\n<function=", ">\n",
        "</function>\n</tool_call>", between="\n", arguments="tags",
    ),
    CallForm(
        "hermes", ("<tool_call>", '{"name": ', '"arguments": '), "<tool_call>",
        '<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>", between="\n",
    ),
    CallForm(
        "mistral-v11", (_MISTRAL, "[CALL_ID]", "[ARGS]"), _MISTRAL, _MISTRAL, "[ARGS]",
        id_mark="[CALL_ID]", id_length=9,
    ),
    CallForm("mistral-v13", (_MISTRAL, "[ARGS]"), _MISTRAL, _MISTRAL, "[ARGS]", id_length=9),
    # Where the tokenizer puts a space after each token like the marker, and where it does not.
    CallForm(
        "mistral", ("[TOOL_CALLS] [",), _MISTRAL, *_OBJECT, opens="[TOOL_CALLS] [", between=", ",
        closes="]", id_length=9,
    ),
    CallForm(
        "mistral", ("[TOOL_CALLS][",), _MISTRAL, *_OBJECT, opens="[TOOL_CALLS][", between=", ",
        closes="]", id_length=9,
    ),
    CallForm(
        "phi4", ("<|tool|>", "message['tools']"), "<|tool_call|>", *_OBJECT,
        opens="<|tool_call|>[", between=", ", closes="]<|/tool_call|>",
    ),
    CallForm(
        "functools", ("functools[",), "functools", *_OBJECT, opens="functools[", between=", ",
        closes="]",
    ),
    CallForm(
        "functiongemma", ("<start_function_call>call:",), "<start_function_call>",
        "<start_function_call>call:", "{", "<end_function_call>", arguments="braces",
        quote="<escape>", ends=("<start_function_response>",),
    ),
    CallForm(
        "gemma4", ("<|tool_call>call:",), "<|tool_call>", "<|tool_call>call:", "{", "<tool_call|>",
        arguments="braces", quote='<|"|>', ends=("<|tool_response>",),
    ),
    CallForm(
        "llama3", ('{"name": ', '"parameters": '), '{"name": "', '{"name": "',
        '", "parameters": ', "}", alone=True, may_open="<|python_tag|>", many=False,
        ends=("<|eom_id|>",),
    ),
)  # fmt: skip

# What opens and closes a thought.
THOUGHTS = (
    ("<think>", "</think>"), ("[THINK]", "[/THINK]"), ("<|channel>thought\n", "<channel|>"),
)  # fmt: skip
