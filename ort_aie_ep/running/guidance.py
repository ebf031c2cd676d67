"""Grammars that a text must follow, as masks of the tokens that may come next, by llguidance.

A grammar comes from a request and can be made to take any time and memory. llguidance's own limits,
set here to what ordinary schemas need, end both its making and its steps.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ort_aie_ep.errors import AieError
from ort_aie_ep.models.folder import ModelFolder
from ort_aie_ep.models.tokenizer import tokenizer_file
from ort_aie_ep.requirements import require

if TYPE_CHECKING:
    from llguidance import LLMatcher

# Grammars that are kept, for the next request with the same tools or schema.
KEPT = 16
# Characters of a grammar, and the references in one of its schemas: llguidance follows a chain of
# them on the stack, and 1,000 end the process.
MAX_TEXT, MAX_REFERENCES = 2**18, 128
# llguidance's limits, a fifth of its defaults. The worst schemas of 64 KiB that were found take
# 1.2 s, 0.3 s for a mask, and 30 MB; four times as much room is left to 250 optional properties.
LIMITS = {
    "initial_lexer_fuel": 200_000, "max_grammar_size": 100_000, "max_lexer_states": 20_000,
    "step_lexer_fuel": 100_000,
}  # fmt: skip


class Guides:
    """A model's tokens as llguidance sees them, and the grammars that were used last.

    Not for several threads.
    """

    def __init__(self, folder: ModelFolder, ends: Iterable[int], vocabulary: int) -> None:
        """Reads the folder's tokenizer.json, which takes about a second for a large vocabulary.

        `ends` are the tokens that end a text, and `vocabulary` the width of the model's logits:
        tokens that the tokenizer does not have are never allowed.

        Raises:
            AieError: llguidance is not installed, or cannot use this tokenizer; no token ends a
                text.
        """
        require("a JSON schema or a tool", ("llguidance",))
        from llguidance import LLParserLimits, LLTokenizer

        if not (ending := sorted(ends)):
            raise AieError("the model names no token that ends a text, which grammars need")
        text = tokenizer_file(folder).read_text("utf-8")
        try:
            try:
                self._tokenizer = LLTokenizer(text, n_vocab=vocabulary, eos_token=ending)
            except ValueError:  # some tokenizers have more tokens than their model: Gemma 3
                self._tokenizer = LLTokenizer(text, eos_token=ending)
        except ValueError as error:
            raise AieError(f"grammars cannot use {tokenizer_file(folder)}: {error}") from error
        self._limits = LLParserLimits(**LIMITS, verbose_errors=False)
        self._kept: dict[str, LLMatcher] = {}  # the one that was used last is last

    def of_schema(self, schema: str) -> Guide:
        """A guide to compact JSON that follows a schema, given as JSON.

        Raises:
            AieError: llguidance refuses the schema, or it is too large for a grammar.
        """
        from llguidance import LLMatcher

        try:
            # With white space, a small model may write some to the end of the context.
            grammar = LLMatcher.grammar_from_json_schema(
                schema, overrides={"whitespace_flexible": False}
            )
        except ValueError as error:
            raise AieError(f"the JSON schema is refused: {error}") from error
        return self._guide(grammar, "the JSON schema")

    def of_lark(self, grammar: str, instead: Callable[[], Iterable[str]] = tuple) -> Guide:
        """A guide to a grammar in llguidance's variant of Lark, or, if that is refused, to the
        first of those `instead` that is not.

        Raises:
            AieError: llguidance refuses the last grammar, or it is too large.
        """
        try:
            return self._guide(grammar, "the grammar")
        except AieError as error:
            refused = error
        for other in instead():
            try:
                guide = self._guide(other, "the grammar")
            except AieError as error:
                refused = error
            else:
                self._kept[grammar] = self._kept[other]
                return guide
        raise refused

    def takes(self, grammar: str) -> bool:
        """Whether a grammar in Lark is not refused."""
        try:
            self._guide(grammar, "the grammar")
        except AieError:
            return False
        return True

    def _guide(self, grammar: str, what: str) -> Guide:
        from llguidance import LLMatcher

        matcher = self._kept.pop(grammar, None)
        if matcher is None:
            references = max(line.count('"$ref"') for line in grammar.split("\n"))
            for count, most, unit in (
                (len(grammar), MAX_TEXT, "characters"),
                (references, MAX_REFERENCES, "references in a schema"),
            ):
                if count > most:
                    raise AieError(f"{what} has {count} {unit}: {most} are the most")
            matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=self._limits)
            if matcher.is_error():
                raise AieError(f"{what} is refused: {_reason(matcher)}")
        self._kept[grammar] = matcher
        while len(self._kept) > KEPT:
            del self._kept[next(iter(self._kept))]
        return Guide(matcher.deep_copy(), self._tokenizer.vocab_size)


class Guide:
    """Where one text is in its grammar."""

    def __init__(self, matcher: LLMatcher, vocabulary: int) -> None:
        self._matcher = matcher
        self._words = np.empty((vocabulary + 31) // 32, np.uint32)

    def mask(self, into: npt.NDArray[np.uint32]) -> None:
        """Writes a bit for each token, the lowest of a word first: 1 for those that may come.

        `into` is (vocabulary / 32, rounded up) uint32 or shorter.

        Raises:
            AieError: the grammar takes too much time here.
        """
        self._matcher.unsafe_compute_mask_ptr(self._words.ctypes.data, self._words.nbytes)
        self._check()
        into[:] = self._words[: len(into)]

    def take(self, token: int) -> None:
        """Goes on after a token.

        Raises:
            AieError: the grammar does not allow it.
        """
        self._matcher.consume_token(token)
        self._check()

    @property
    def ended(self) -> bool:
        """Whether nothing may follow but a token that ends the text."""
        return bool(self._matcher.is_stopped())

    def _check(self) -> None:
        if self._matcher.is_error():
            raise AieError(f"the grammar cannot go on: {_reason(self._matcher)}")


def _reason(matcher: LLMatcher) -> str:
    """What llguidance says, in one line, without the grammar that it shows with it."""
    said = " ".join(str(matcher.get_error()).removesuffix("<non-verbose/>").split())
    said = re.sub(r"^at \d+\(\d+\): (failed to compile JSON schema: )?", "", said)
    return re.sub(r" \d+ \| (%llguidance |\w+(\[lazy\])?: ).*", "", said)[:500]
