"""A turn, made ready for the loop: its prompt as tokens, and what follows the new ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ort_aie_ep.errors import AieError, FieldError
from ort_aie_ep.running.answers import AnswerReader, Tool, plain_names
from ort_aie_ep.running.guidance import Guide, Guides
from ort_aie_ep.running.prompts import Prompts
from ort_aie_ep.running.text import TextStream
from ort_aie_ep.running.turns import Turn


@dataclass(frozen=True)
class Asked:
    """What a text begins with.

    Attributes:
        tokens: the prompt's.
        stream: turns new tokens into text, special ones too.
        reader: takes that text apart.
        guide: which tokens may come, or None for all.
    """

    tokens: list[int]
    stream: TextStream
    reader: AnswerReader
    guide: Guide | None


class Asking:
    """What a model's turns need: tokenizer, template, the form of its answers, grammars.

    Attributes:
        prompts: the tokenizer and the template.
    """

    def __init__(self, prompts: Prompts, vocabulary: int) -> None:
        """`vocabulary` is the width of the model's logits."""
        self.prompts, self._vocabulary = prompts, vocabulary
        self._guides: Guides | None = None  # which few turns need, and which take a second

    def __call__(self, turn: Turn) -> Asked:
        """The turn, ready.

        Raises:
            AieError: the prompt is empty or no text, the template or a grammar refuses it, or the
                model cannot call tools.
        """
        prompts, shown = self.prompts, _tools(turn.tools)
        if not turn.messages or (turn.prompt and not prompts.chat):
            return self._of_text(turn)
        barred = turn.tool_choice == "none"
        if barred and not prompts.format.tools:
            shown = []
        tools = [] if barred else shown
        continues = turn.continues and _is_the_assistants(turn.messages[-1])
        held = {"response_format": turn.schema, "tool_choice": turn.tool_choice}
        for field, value in held.items() if continues else ():
            if value not in ("", "auto", "none"):
                raise FieldError(
                    field,
                    "an answer that continues a last message of the assistant cannot be held to a "
                    "form: end with a message of the user",
                )
        # Shown though it may call none, so that the prompt begins as where it may.
        tokens = prompts.of_messages(turn.messages, shown, turn.template_options, continues)
        tail = prompts.tail(tokens)
        guide = self._guide(turn, tools, tail, continues, barred and bool(shown))
        forced = bool(tools) and turn.tool_choice != "auto"
        reader = prompts.format.reader(tools, tail, continues, forced)
        return Asked(tokens, self._stream(tokens), reader, guide)

    def _guide(
        self, turn: Turn, tools: Sequence[Tool], tail: str, continues: bool, barred: bool
    ) -> Guide | None:
        """What holds an answer to its tools and schema. Of tools that are not strict, what a
        grammar cannot hold calls to is left out."""
        named = turn.tool_choice not in ("none", "auto", "required")

        def grammar(tools: Sequence[Tool]) -> str:
            return self.prompts.format.grammar(
                [tool for tool in tools if not named or tool.asked == turn.tool_choice],
                required=bool(tools) and turn.tool_choice != "auto",
                parallel=turn.parallel_calls and not named,
                schema=turn.schema,
                prompt_tail=tail,
                continues=continues,
                barred=barred,
            )

        if not (wanted := grammar(tools)):
            return None
        guides = self._made()
        try:
            return guides.of_lark(wanted, lambda: self._loosened(grammar, tools))
        except AieError as error:
            raise FieldError("tools" if tools else "response_format", str(error)) from error

    def _loosened(
        self, grammar: Callable[[Sequence[Tool]], str], tools: Sequence[Tool]
    ) -> Iterator[str]:
        """Grammars in place of one that is refused: without the schemas of those tools that are to
        blame alone, then without those of all."""
        guides = self._made()
        fair = [
            tool if tool.strict or not (one := grammar([tool])) or guides.takes(one)
            else tool.without_schema for tool in tools
        ]  # fmt: skip
        yield grammar(fair)
        yield grammar([t if t.strict else t.without_schema for t in tools])

    def _of_text(self, turn: Turn) -> Asked:
        prompts = self.prompts
        given = turn.prompt
        tokens = prompts.of_text(given) if isinstance(given, str) else prompts.checked(given)
        # A text that is continued shows what the model writes, thoughts and calls too.
        plain = replace(prompts.format, form=None, thought=None)
        guide = self._made().of_schema(turn.schema) if turn.schema else None
        return Asked(tokens, self._stream(tokens), plain.reader(), guide)

    def _stream(self, tokens: Sequence[int]) -> TextStream:
        return self.prompts.stream(tokens, special=True)

    def _made(self) -> Guides:
        if self._guides is None:
            self._guides = Guides(self.prompts.folder, self.prompts.ends, self._vocabulary)
        return self._guides


def _is_the_assistants(message: object) -> bool:
    return isinstance(message, Mapping) and message.get("role") == "assistant"


def _tools(given: Sequence[dict[str, Any]]) -> list[Tool]:
    """Tools in OpenAI's form."""
    functions = [tool["function"] for tool in given]
    names = plain_names([about["name"] for about in functions])
    return [
        Tool(
            names[about["name"]],
            about.get("description") or "",
            about.get("parameters") or {},
            bool(about.get("strict")),
            about["name"],
        )
        for about in functions
    ]
