"""Probabilities of new tokens, told together with the text that the tokens make.

What is shown of a text is not all that was written: marks of thoughts and calls are left out, and a
stop string cuts. And a token may be a part of a character. So the bytes of the tokens that are told
are those of the content, and join to it.
"""

from __future__ import annotations

import codecs
import json
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ort_aie_ep.running.turns import Logprob

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class TokenBytes:
    """The bytes of single tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        # Not of tokenizer.to_str(), which writes the whole vocabulary.
        decoder = json.loads(tokenizer.decoder.__getstate__()) if tokenizer.decoder else {}
        kinds = [one.get("type") for one in (decoder, *decoder.get("decoders", ()))]
        self._of_bytes = _byte_characters() if "ByteLevel" in kinds else None
        self._of_spaces = "ByteFallback" in kinds or "Metaspace" in kinds
        self._added = tokenizer.get_added_tokens_decoder()

    def __call__(self, token: int) -> bytes:
        """The bytes of a token; those of its text alone where its tokenizer is of another kind."""
        text = self._tokenizer.id_to_token(token)
        if text is None:  # a row of the logits without a token
            return b""
        if token in self._added:
            return self._added[token].content.encode()
        if self._of_bytes is not None and all(one in self._of_bytes for one in text):
            return bytes(self._of_bytes[one] for one in text)
        if self._of_spaces:
            if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
                return bytes.fromhex(text[3:5])
            return text.replace("\u2581", " ").encode()
        return str(self._tokenizer.decode([token], skip_special_tokens=False)).encode()


def _byte_characters() -> dict[str, int]:
    """The character that stands for each byte in byte-level tokenizers: itself if it is printable
    in Latin-1, else one from U+0100 on (GPT-2's table)."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {
        chr(0x100 + at): byte for at, byte in enumerate(others)
    }


@dataclass
class _Group:
    """Tokens that make whole characters together: [start, end) of the text that was written, of
    which [shown, until) are content."""

    start: int
    end: int
    text: str
    tokens: list[Logprob]
    shown: int = -1
    until: int = -1

    def told(self) -> list[Logprob]:
        """Its tokens, without what is no content."""
        own, whole = b"".join(token.bytes for token in self.tokens), self.text.encode()
        cut = (self.shown, self.until) != (self.start, self.end)
        # A decoder made something else of them, or it cannot be said whose bytes are cut.
        if own.decode("utf-8", "replace") != self.text or (cut and own != whole):
            first, *others = self.tokens
            self.tokens = [replace(first, bytes=whole), *(replace(t, bytes=b"") for t in others)]
        return _completed(self._inside() if cut else self.tokens)

    def _inside(self) -> list[Logprob]:
        first = len(self.text[: self.shown - self.start].encode())
        last = len(self.text[: self.until - self.start].encode())
        inside, at = [], 0
        for token in self.tokens:
            kept = token.bytes[max(0, first - at) : max(0, last - at)]
            at += len(token.bytes)
            if kept:
                inside.append(replace(token, bytes=kept))
        return inside


def _completed(tokens: Sequence[Logprob]) -> list[Logprob]:
    """The tokens with the characters that each completes."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    texts = [decoder.decode(token.bytes) for token in tokens]
    if texts:
        texts[-1] += decoder.decode(b"", True)
    return [replace(token, text=text) for token, text in zip(tokens, texts, strict=True)]


@dataclass
class Telling:
    """What is to be told of one text's tokens."""

    _groups: deque[_Group] = field(default_factory=deque)
    _content: deque[tuple[int, int]] = field(default_factory=deque)
    _end: int = 0

    def written(
        self, token: Logprob | None, end: int, text: str, spans: Sequence[tuple[int, int]]
    ) -> None:
        """A token was written that adds `text` up to character `end`, of which `spans` are content;
        or, with None, what was left of the last ones, or a token that is left out."""
        groups = self._groups
        if not groups or groups[-1].text:
            groups.append(_Group(self._end, end, "", []))
        last = groups[-1]
        if token is not None:
            last.tokens.append(token)
        if text:
            last.end, last.text = end, text
            if not last.tokens:
                groups.pop()
        self._end = end
        self._content.extend(spans)

    def shown(self, count: int) -> tuple[Logprob, ...]:
        """The tokens of the next `count` characters of the content, as far as they are whole."""
        told: list[Logprob] = []
        while count > 0 and self._content:
            start, end = self._content.popleft()
            if end - start > count:
                self._content.appendleft((start + count, end))
                end = start + count
            count -= end - start
            told += self._take(start, end)
        return tuple(told)

    def rest(self) -> tuple[Logprob, ...]:
        """The tokens of which a part was shown."""
        return tuple(token for g in self._groups if g.shown >= 0 for token in g.told())

    def _take(self, start: int, end: int) -> list[Logprob]:
        """What of groups is in [start, end), which is content: those that end there."""
        told: list[Logprob] = []
        while self._groups and self._groups[0].text:
            group = self._groups[0]
            if group.start >= end:
                break
            if group.end > start:
                group.shown = max(group.start, start) if group.shown < 0 else group.shown
                group.until = min(group.end, end)
                if group.end > end:
                    break
            self._groups.popleft()
            told += group.told() if group.shown >= 0 else ()
        return told
