"""A turn, made ready for the loop: its prompt as tokens, and what follows the new ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ort_aie_ep.running.answers import AnswerReader, Tool
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
        if not turn.messages:
            return self._of_text(turn)
        tools = [] if turn.tool_choice == "none" else [_tool(tool) for tool in turn.tools]
        prompts = self.prompts
        tokens = prompts.of_messages(turn.messages, tools, turn.template_options)
        tail = prompts.tail(tokens)
        named = turn.tool_choice not in ("none", "auto", "required")
        grammar = prompts.format.grammar(
            [tool for tool in tools if not named or tool.name == turn.tool_choice],
            required=bool(tools) and turn.tool_choice != "auto",
            parallel=turn.parallel_calls and not named,
            schema=turn.schema,
            prompt_tail=tail,
        )
        guide = self._made().of_lark(grammar) if grammar else None
        return Asked(tokens, self._stream(tokens), prompts.format.reader(tools, tail), guide)

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


def _tool(tool: dict[str, Any]) -> Tool:
    """A tool in OpenAI's form."""
    about = tool["function"]
    parameters = about.get("parameters") or {}
    return Tool(
        about["name"], about.get("description") or "", parameters, bool(about.get("strict"))
    )
