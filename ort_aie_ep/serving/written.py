"""What a text has so far, as all interfaces show it: a row of thoughts, texts and calls."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from ort_aie_ep.running.turns import Accepted, Logprob, Piece, Sampling, Usage

Event = Accepted | Piece | Usage
Kind = Literal["thought", "text", "call"]


@dataclass
class Block:
    """A thought, a text or a call.

    Attributes:
        index: its place in the answer.
        text: what was written; of a call, its arguments in JSON.
        id, name: of a call.
    """

    kind: Kind
    index: int
    text: str = ""
    id: str = ""
    name: str = ""


# That a block begins, what is added to it, or that it ends.
Step = tuple[Literal["begin", "add", "end"], Block, str]


@dataclass
class Written:
    """One text.

    Attributes:
        blocks: what it has.
        usage: how it ended; None until then.
        sampling: how its tokens are chosen.
        prompt_tokens, tokens, thought_tokens: how many there are so far, of thoughts about.
    """

    blocks: list[Block] = field(default_factory=list)
    logprobs: list[Logprob] = field(default_factory=list)
    usage: Usage | None = None
    sampling: Sampling = field(default_factory=Sampling)
    prompt_tokens: int = 0
    tokens: int = 0
    thought_tokens: int = 0

    def add(self, event: Event) -> list[Step]:
        """Takes what came: what that does to the blocks."""
        steps: list[Step] = []
        if isinstance(event, Accepted):
            self.prompt_tokens, self.sampling = event.prompt_tokens, event.sampling
        elif isinstance(event, Usage):
            self.usage, self.tokens = event, event.completion_tokens
            steps += [("end", block, "") for block in self.blocks[-1:]]
        else:
            if event.delta.reasoning:
                self.thought_tokens += event.completion_tokens - self.tokens
            self.tokens = event.completion_tokens
            self.logprobs += event.logprobs
            steps += self._more("thought", event.delta.reasoning)
            steps += self._more("text", event.delta.content)
            for call in event.delta.calls:
                steps += self._begin("call", call.id, call.name) if call.id else []
                steps += self._more("call", call.arguments)
        return steps

    def _begin(self, kind: Kind, number: str = "", name: str = "") -> list[Step]:
        before: list[Step] = [("end", last, "") for last in self.blocks[-1:]]
        block = Block(kind, len(self.blocks), id=number, name=name)
        self.blocks.append(block)
        return [*before, ("begin", replace(block), "")]

    def _more(self, kind: Kind, text: str) -> list[Step]:
        if not text:
            return []
        begun = self._begin(kind) if not self.blocks or self.blocks[-1].kind != kind else []
        self.blocks[-1].text += text
        return [*begun, ("add", self.blocks[-1], text)]

    def text(self, kind: Kind) -> str:
        """All text of its thoughts, or of its texts."""
        return "".join(block.text for block in self.blocks if block.kind == kind)

    @property
    def calls(self) -> list[Block]:
        """Its calls."""
        return [block for block in self.blocks if block.kind == "call"]

    @property
    def cached_tokens(self) -> int:
        """Tokens of the prompt that were not read again."""
        return self.usage.cached_tokens if self.usage else 0
