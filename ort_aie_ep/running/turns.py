"""What a text is asked for, and what becomes of it: the words that a server, a batch and a command
share with the loop (`running.loop`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ort_aie_ep.errors import AieError
from ort_aie_ep.running.answers import Delta


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen.

    Attributes:
        temperature: divides the logits; 0 takes the likeliest token.
        top_p: the likeliest tokens whose probabilities reach this sum are candidates.
        top_k: so many likeliest tokens are candidates; 0 for all.
        min_p: tokens with less than this share of the likeliest one's probability are none.
        seed: makes the choices repeatable, or None.
        frequency_penalty, presence_penalty: what is taken from the logit of a token that was
            written, each time and once.
        repetition_penalty: divides the logit of a token of the prompt or the text if it is
            positive, else multiplies it (CTRL, Keskar et al. 2019, section 4.1).
        bias: token → what is added to its logit.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    bias: Mapping[int, float] = field(default_factory=dict)

    def with_fields(self, given: Mapping[str, Any]) -> Sampling:
        """The same, but for the fields that are `given`.

        Where tokens are not sampled, a top-p, top-k, min-p or seed that changes something asks for
        sampling, with temperature 1; what clients send as defaults does not.
        """
        asked = replace(self, **given)
        plain = Sampling()
        drawn = any(
            name in given and given[name] != getattr(plain, name)
            for name in ("top_p", "top_k", "min_p", "seed")
        )
        if drawn and "temperature" not in given and asked.temperature == 0:
            return replace(asked, temperature=1.0)
        return asked


@dataclass(frozen=True)
class Turn:
    """What to write.

    Attributes:
        prompt: text, or token ids.
        messages: for the model's chat template, in place of a prompt: {"role", "content"} and what
            the template knows besides, such as tool_calls. With both, the prompt is for a model
            without a template.
        tools: {"type": "function", "function": {...}} each, which the model may call.
        tool_choice: "none", "auto", "required", or the name of the tool to call.
        parallel_calls: whether it may call several.
        template_options: further variables of the chat template.
        continues: whether a last message of the assistant is continued, or another one begins.
        max_tokens: largest number of new tokens, or None for as many as the context has room for;
            for 0, a server only counts the prompt's.
        min_tokens: no token that ends a text comes before so many new ones.
        sampling: fields of `Sampling` in place of what genai_config.json says.
        stop: the text ends before any of these.
        schema: a JSON schema that the text follows, as JSON, or empty.
        logprobs: how many of the likeliest tokens are told with each new one, or None for none.
        ignore_end: tokens that end a text do not end this one.
    """

    prompt: str | Sequence[int] = ""
    messages: Sequence[dict[str, Any]] = ()
    tools: Sequence[dict[str, Any]] = ()
    tool_choice: str = "auto"
    parallel_calls: bool = True
    template_options: Mapping[str, Any] = field(default_factory=dict)
    continues: bool = True
    max_tokens: int | None = None
    min_tokens: int = 0
    sampling: Mapping[str, Any] = field(default_factory=dict)
    stop: tuple[str, ...] = ()
    schema: str = ""
    logprobs: int | None = None
    ignore_end: bool = False


@dataclass(frozen=True)
class Logprob:
    """A new token with its logarithmic probability, before temperature, penalties and grammars.

    Attributes:
        token: its id.
        bytes: what it adds to the UTF-8 of the text.
        logprob: of this token.
        text: the characters that it completes; empty for one of `top`.
        top: the likeliest tokens in its place, likewise, without further ones.
    """

    token: int
    bytes: bytes
    logprob: float
    text: str = ""
    top: tuple[Logprob, ...] = ()


@dataclass(frozen=True)
class Accepted:
    """A turn will be written, when its time comes.

    Attributes:
        prompt_tokens: tokens of its prompt.
        sampling: how its tokens are chosen.
    """

    prompt_tokens: int
    sampling: Sampling = Sampling()


@dataclass(frozen=True)
class Piece:
    """New tokens of a text: mostly one.

    Attributes:
        delta: what they add.
        logprobs: those of the tokens whose text `delta.content` has.
        completion_tokens: new tokens so far.
    """

    delta: Delta
    logprobs: tuple[Logprob, ...] = ()
    completion_tokens: int = 0


@dataclass(frozen=True)
class Usage:
    """How a turn ended, and what it took.

    Attributes:
        finish_reason: "stop" for the end of the text or a stop string, "length" for max_tokens or
            the end of the context, "tool_calls" if tools were called.
        prompt_tokens: tokens of the prompt.
        cached_tokens: how many of them an earlier turn had left in a cache.
        completion_tokens: new tokens, without the one that ends a text.
        stopped: the stop string that ended it, or empty.
    """

    finish_reason: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    stopped: str = ""


class PromptTooLongError(AieError):
    """A prompt does not fit in the context.

    Attributes:
        tokens: of the prompt.
        context: the most that a prompt and a text may have.
    """

    def __init__(self, tokens: int, context: int) -> None:
        super().__init__(f"the prompt has {tokens} tokens and the context {context}")
        self.tokens, self.context = tokens, context

    def __reduce__(self) -> tuple[type[PromptTooLongError], tuple[int, int]]:
        """Errors go from process to process."""
        return type(self), (self.tokens, self.context)
