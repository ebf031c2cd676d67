"""Turns of conversations in onnxruntime-genai: what a prompt continues is in a cache.

genai's Generator has one seed, temperature and top-p for its whole life, and no stop strings. Here
a turn has its own: tokens are chosen from the generator's logits, so one cache serves all turns.
With a JSON schema genai chooses the tokens itself, in a generator that lives for that turn.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ort_aie_ep.errors import AieError
from ort_aie_ep.models.folder import ModelFolder, section
from ort_aie_ep.models.interface import context_length
from ort_aie_ep.running.bounded import TooMuchError, bounded, resident
from ort_aie_ep.running.genai import least_length, module, open_model, refusal
from ort_aie_ep.running.prompts import Prompts
from ort_aie_ep.runtime.sessions import Options

# Tokens of a prompt that run at once: other turns wait for them.
PROMPT_CHUNK = 256
# Caches are allocated whole, and the context of many models would fill a machine's memory.
CONTEXT = 4096
# Bytes that a grammar may take: genai keeps the last 64 grammars.
GRAMMAR = 8 * 2**20


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen.

    Attributes:
        temperature: divides the logits; 0 takes the likeliest token.
        top_p: the likeliest tokens whose probabilities reach this sum are candidates.
        top_k: so many likeliest tokens are candidates; 0 for all.
        seed: makes the choices repeatable, or None.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None


@dataclass(frozen=True)
class Turn:
    """What to write.

    Attributes:
        prompt: text, or token ids.
        messages: {"role", "content"} each, for the model's chat template, in place of a prompt.
        max_tokens: largest number of new tokens, or None for as many as the context has room for.
        sampling: how they are chosen, or None for what genai_config.json says.
        stop: the text ends before any of these.
        schema: a JSON schema that the text follows, as JSON, or empty.
    """

    prompt: str | Sequence[int] = ""
    messages: Sequence[dict[str, str]] = ()
    max_tokens: int | None = None
    sampling: Sampling | None = None
    stop: tuple[str, ...] = ()
    schema: str = ""


@dataclass(frozen=True)
class Usage:
    """How a turn ended, and what it took.

    Attributes:
        finish_reason: "stop" for the end of the text or a stop string, "length" for max_tokens or
            the end of the context.
        prompt_tokens: tokens of the prompt.
        cached_tokens: how many of them an earlier turn had left in the cache.
        completion_tokens: new tokens, without the one that ends a text.
    """

    finish_reason: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


class PromptTooLongError(AieError):
    """A prompt does not fit in the context."""


@dataclass(eq=False)
class _Cache:
    """A generator, and the tokens that its cache holds."""

    generator: Any
    tokens: list[int] = field(default_factory=list)
    busy: bool = True

    def common(self, tokens: list[int]) -> int:
        """How many tokens at the start are the same."""
        both = min(len(self.tokens), len(tokens))
        return next((i for i in range(both) if self.tokens[i] != tokens[i]), both)

    def append(self, tokens: list[int]) -> None:
        self.generator.append_tokens(np.array(tokens, np.int32))
        self.tokens += tokens


class Conversations:
    """A model, and the caches of its latest conversations.

    Not for several threads: turns that run at the same time are advanced one after the other.

    Attributes:
        context: tokens of a conversation.
        chat: whether the model has a chat template.
    """

    def __init__(
        self, folder: ModelFolder, options: Options, caches: int = 1, context: int | None = None
    ) -> None:
        """Opens a model that keeps up to `caches` conversations of up to `context` tokens each.

        Raises:
            AieError: genai is not installed, or refuses the folder; `context` exceeds the model's.
        """
        longest = context_length(folder)
        if context is not None and context > longest:
            raise AieError(f"a context of {context} tokens: the model's has {longest}")
        self.context = context or min(longest, CONTEXT)
        self._least = least_length(folder)
        self._limit = caches
        self._caches: list[_Cache] = []  # the one that was used last is last
        self._sampling = Sampling()
        search = section(folder, "search")
        if search.get("do_sample"):
            given = {
                name: search[name] for name in ("temperature", "top_p", "top_k") if name in search
            }
            self._sampling = Sampling(**{"temperature": 1.0, **given})
        self._genai = module()
        try:
            self._model = open_model(folder, options)
            self._prompts = Prompts(folder)
        except RuntimeError as error:
            raise refusal(error) from error
        self.chat = self._prompts.chat

    def run(self, turn: Turn) -> Generator[str, None, Usage]:
        """The new text in pieces, some of them empty; between two, other turns may run.

        Raises:
            PromptTooLongError: the context has no room for the prompt and one token.
            AieError: the prompt is empty, the model has no chat template, or genai refuses.
        """
        try:
            tokens = self._tokens(turn)
            room = self.context - len(tokens)
            if room < 1:
                raise PromptTooLongError(
                    f"the prompt has {len(tokens)} tokens and the context {self.context}"
                )
            count = room if turn.max_tokens is None else min(room, turn.max_tokens)
            cache, kept = self._take(tokens, turn)
        except RuntimeError as error:
            raise refusal(error) from error
        try:
            written, ended = yield from self._write(turn, cache, tokens[kept:], count)
        except Exception as error:
            self._caches.remove(cache)  # whatever it holds now
            if isinstance(error, RuntimeError):
                raise refusal(error) from error
            raise
        finally:
            cache.busy = False
            if turn.schema and cache in self._caches:
                self._caches.remove(cache)  # its grammar is that of this turn
        return Usage("stop" if ended else "length", len(tokens), kept, written)

    def _tokens(self, turn: Turn) -> list[int]:
        if turn.messages:
            return self._prompts.of_messages(turn.messages)
        if isinstance(turn.prompt, str):
            return self._prompts.of_text(turn.prompt)
        return self._prompts.checked(turn.prompt)

    def _take(self, tokens: list[int], turn: Turn) -> tuple[_Cache, int]:
        """A cache for a prompt, and how many of the prompt's tokens it holds.

        It is the idle cache with the longest common prefix, if this is at least half of the prompt
        or half of what the cache holds; otherwise a new one, or, if there are as many as allowed,
        the idle one that was used longest ago. With a schema it is always a new one. The last token
        always runs, for its logits.
        """
        idle = [cache for cache in self._caches if not cache.busy]
        full = len(self._caches) >= self._limit
        if turn.schema:
            if full and idle:
                self._caches.remove(idle[0])
            return self._new(turn), 0
        best = max(idle, key=lambda cache: cache.common(tokens), default=None)
        if best is None or 2 * best.common(tokens) < min(len(best.tokens), len(tokens)):
            best = idle[0] if full and idle else None
        if best is not None:
            self._caches.remove(best)
            kept = min(best.common(tokens), len(tokens) - 1)
            try:
                if kept < len(best.tokens):
                    best.generator.rewind_to(kept)
                    del best.tokens[kept:]
            except RuntimeError:  # some models cannot: docs/hosts/genai.md
                return self._new(turn), 0
            best.busy = True
            self._caches.append(best)
            return best, kept
        return self._new(turn), 0

    def _new(self, turn: Turn) -> _Cache:
        if turn.schema:
            self._try_grammar(turn)
        cache = _Cache(self._generator(turn, max(self.context, self._least)))
        self._caches.append(cache)
        return cache

    def _generator(self, turn: Turn, length: int) -> Any:
        parameters = self._genai.GeneratorParams(self._model)
        search: dict[str, Any] = {"max_length": length, "do_sample": False}
        if turn.schema:
            sampling = turn.sampling or self._sampling
            if sampling.temperature > 0:
                search |= {"do_sample": True, "temperature": sampling.temperature}
                search |= {
                    "top_p": sampling.top_p,
                    "top_k": min(sampling.top_k, self._prompts.vocabulary),
                }
                search |= {} if sampling.seed is None else {"random_seed": sampling.seed}
            parameters.set_guidance("json_schema", turn.schema)
        parameters.set_search_options(**search)
        return self._genai.Generator(self._model, parameters)

    def _try_grammar(self, turn: Turn) -> None:
        """Raises TooMuchError if making the grammar takes too long, or takes too much memory."""
        length = max(self._least, 2)

        def work() -> str:
            # The first grammar also allocates what all others share, which must not count.
            first = self._generator(Turn(schema='{"type": "null"}'), length)
            before = resident()
            second = self._generator(turn, length)
            grown = resident() - before
            del first, second
            return str(grown)

        if int(bounded(work, "the grammar of the JSON schema")) > GRAMMAR:
            raise TooMuchError(
                f"the grammar of the JSON schema takes more than {GRAMMAR >> 20} MiB, "
                "the most that it may: use fewer or simpler properties"
            )

    def _write(
        self, turn: Turn, cache: _Cache, prompt: list[int], count: int
    ) -> Generator[str, None, tuple[int, bool]]:
        """Up to `count` tokens after `prompt`: how many, and whether the text ended by itself."""
        for start in range(0, len(prompt), PROMPT_CHUNK):
            cache.append(prompt[start : start + PROMPT_CHUNK])
            yield ""
        stream, stops = self._prompts.stream(cache.tokens), _Stops(turn.stop)
        next_token = self._chooser(turn, cache)
        written, ended = 0, False
        while written < count and not ended:
            token = next_token()
            if ended := token in self._prompts.ends:
                break
            written += 1
            text, ended = stops.push(stream.push(token))
            yield text
            if not turn.schema and written < count and not ended:
                cache.append([token])
        text, stopped = stops.push(stream.finish())
        yield text + stops.rest()
        return written, ended or stopped

    def _chooser(self, turn: Turn, cache: _Cache) -> Callable[[], int]:
        """What gives the next token."""
        generator = cache.generator
        if turn.schema:

            def guided() -> int:
                generator.generate_next_token()
                return int(generator.get_next_tokens()[0])

            return guided
        sampling = turn.sampling or self._sampling
        random = np.random.default_rng(sampling.seed)
        return lambda: choose(generator.get_logits()[0, -1], sampling, random)


def choose(logits: npt.NDArray[Any], sampling: Sampling, random: np.random.Generator) -> int:
    """A token by its logits (vocabulary), float: the likeliest, or a random one."""
    if sampling.temperature == 0:
        return int(np.argmax(logits))
    weights = np.exp((logits.astype(np.float64) - logits.max()) / sampling.temperature)
    if not np.isfinite(weights).all():
        raise AieError("the model's logits are not numbers")
    if 0 < sampling.top_k < len(weights):
        weights[np.argpartition(-weights, sampling.top_k - 1)[sampling.top_k :]] = 0
    if sampling.top_p < 1:
        weights /= weights.sum()
        # Tokens below this have less than 1 - top_p together, so none is a candidate. Without them
        # there are few to sort; sorting a whole vocabulary takes long.
        tokens = np.flatnonzero(weights >= (1 - sampling.top_p) / len(weights))
        tokens = tokens[np.argsort(-weights[tokens], kind="stable")]
        sums = np.cumsum(weights[tokens])
        kept = tokens[: np.searchsorted(sums, sampling.top_p) + 1]
        others = np.ones(len(weights), bool)
        others[kept] = False
        weights[others] = 0
    # Each token has a random exponential variable, and the largest weight / variable wins. So with
    # the same seed, logits that are rounded otherwise give another token only if two are almost
    # equal, however many tokens are likely.
    return int(np.argmax(weights / np.maximum(random.standard_exponential(len(weights)), 1e-300)))


class _Stops:
    """Holds back text that may be the beginning of a stop string."""

    def __init__(self, strings: tuple[str, ...]) -> None:
        self._strings = strings
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """The text that is safe to show, and whether a stop string ended it."""
        text = self._held + text
        found = [at for string in self._strings if (at := text.find(string)) >= 0]
        if found:
            self._held = ""
            return text[: min(found)], True
        starts = (s[:n] for s in self._strings for n in range(min(len(s), len(text) + 1)))
        held = max((len(start) for start in starts if text.endswith(start)), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held], False

    def rest(self) -> str:
        """What is held back when the text is over."""
        return self._held
