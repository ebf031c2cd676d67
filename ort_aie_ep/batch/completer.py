"""A model that completes prompts in onnxruntime-genai, several at a time."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ort_aie_ep.errors import AieError
from ort_aie_ep.models.folder import find_model
from ort_aie_ep.models.interface import context_length, read_file_interface
from ort_aie_ep.running import genai
from ort_aie_ep.running.prompts import Prompts, checked_messages, checked_text
from ort_aie_ep.running.text import TextStream
from ort_aie_ep.runtime.sessions import Options

# genai's seeds are 32-bit integers with a sign.
_SEEDS = 2**31


@dataclass(frozen=True)
class Settings:
    """What a completion depends on, besides its prompt and the model.

    Attributes:
        max_tokens: largest number of new tokens.
        temperature: divides the logits before a token is drawn; 0 takes the likeliest token.
        top_p: a token is drawn from the likeliest ones whose probabilities reach this sum.
        seed: of the draws; a prompt's own seed is a hash of this one and of its id.
        batch_size: prompts that are decoded together. They are decoded one by one if tokens are
            drawn, because all rows of a genai generator share a seed, and in models with recurrent
            states (LFM2, Qwen3.5), which would read a shorter prompt's padding.

    Raises:
        AieError: a number is out of range.
    """

    max_tokens: int = 128
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    batch_size: int = 4

    def __post_init__(self) -> None:
        for name, legal, wanted in (
            ("max_tokens", self.max_tokens >= 1, "at least 1"),
            ("temperature", 0 <= self.temperature < float("inf"), "a number from 0 on"),
            ("top_p", 0 < self.top_p <= 1, "above 0 and at most 1"),
            ("batch_size", self.batch_size >= 1, "at least 1"),
        ):
            if not legal:
                raise AieError(f"{name} must be {wanted}, got {getattr(self, name)}")


@dataclass(frozen=True)
class Request:
    """A prompt to complete.

    Attributes:
        id: what tells it from the others.
        prompt: its text.
        messages: {"role", "content"} each, for the model's chat template, in place of a text.
        error: why it cannot be completed; empty if nothing is known against it.
    """

    id: str | int
    prompt: Any = None
    messages: Any = None
    error: str = ""


@dataclass(frozen=True)
class Completion:
    """What a model wrote after a prompt.

    Attributes:
        completion: the text.
        prompt_tokens: tokens of the prompt.
        completion_tokens: new tokens, without the one that ends a text.
        finish_reason: "stop" for the end of the text, "length" for max_tokens or the end of the
            context, "error" if there is no completion.
        error: what is wrong with the prompt, or None.
    """

    completion: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    finish_reason: str = "error"
    error: str | None = None


class Completer:
    """A model of a folder with genai_config.json, opened once.

    A Ray Data pipeline makes one for each actor and calls it with batches. Without Ray, `complete`
    does the same for a list. The completion of a prompt does not depend on the worker. Logits of
    prompts that are decoded together may differ in their last bits from those of one alone, which
    decides between tokens that are almost as likely; so prompts that come in the same batch again
    have the same completions.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        max_tokens: int = Settings.max_tokens,
        temperature: float = Settings.temperature,
        top_p: float = Settings.top_p,
        seed: int = Settings.seed,
        batch_size: int = Settings.batch_size,
        threads: int | None = None,
    ) -> None:
        """Opens the model: `Settings` has the options, and `threads` are the session's.

        Raises:
            AieError: there is no model that genai opens, or an option is out of range.
        """
        self._settings = Settings(max_tokens, temperature, top_p, seed, batch_size)
        folder = find_model(Path(model))
        try:
            self._model = genai.open_model(folder, Options(threads=threads))
            self._prompts = Prompts(folder)
        except RuntimeError as error:
            raise genai.refusal(error) from error
        self._context, self._least = context_length(folder), genai.least_length(folder)
        alone = temperature > 0 or bool(read_file_interface(folder).states)
        self._together = 1 if alone else batch_size

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """The batch of Ray Data with a column for each attribute of `Completion`.

        It has a column `prompt` (text) or `messages`, or both: then a row's messages, if it has
        any, are what is completed. A column `id`, if there is one, seeds the draws; else the prompt
        does.
        """
        count = len(next(iter(batch.values()), ()))
        nothing = [None] * count
        requests = [
            Request(
                str(prompt if messages is None else messages) if id is None else _plain(id),
                _plain(prompt),
                _plain(messages),
            )
            for id, prompt, messages in zip(
                *(batch.get(name, nothing) for name in ("id", "prompt", "messages")), strict=True
            )
        ]
        done = self.complete(requests)
        columns = {name: [getattr(one, name) for one in done] for name in vars(Completion())}
        return {**batch, **columns}

    def complete(self, requests: Sequence[Request]) -> list[Completion]:
        """A completion for each request; one that is not a prompt for this model says why.

        Raises:
            AieError: the model fails, which is not a prompt's fault.
        """
        found: dict[int, Completion] = {}
        rows: list[_Row] = []
        for index, request in enumerate(requests):
            try:
                rows.append(self._row(index, request))
            except AieError as error:
                found[index] = Completion(error=str(error))
        for group in self._groups(rows):
            found |= self._generated(group)
        return [found[index] for index in range(len(requests))]

    def _row(self, index: int, request: Request) -> _Row:
        tokens = self._tokens(request)
        room = self._context - len(tokens)
        if room < 1:
            raise AieError(
                f"the prompt has {len(tokens)} tokens and the model's context only {self._context}"
            )
        return _Row(
            index,
            tokens,
            min(self._settings.max_tokens, room),
            _seed(self._settings.seed, request.id),
            self._prompts.stream(tokens),
        )

    def _tokens(self, request: Request) -> list[int]:
        if request.error:
            raise AieError(request.error)
        check(request)
        if request.messages is not None:
            return self._prompts.of_messages(request.messages)
        return self._prompts.of_text(request.prompt)

    def _groups(self, rows: list[_Row]) -> Iterator[list[_Row]]:
        """Rows that are decoded together: of similar lengths, because genai pads the shorter ones.

        A row is decoded alone if it might lack room after the padding to a longer prompt, or if its
        last token is the one that pads.
        """
        fit: list[_Row] = []
        alone: list[_Row] = []
        for row in rows:
            roomy = len(row.tokens) + self._settings.max_tokens <= self._context
            (fit if roomy and row.tokens[-1] != self._prompts.pad else alone).append(row)
        fit.sort(key=lambda row: len(row.tokens))
        for start in range(0, len(fit), self._together):
            yield fit[start : start + self._together]
        for row in alone:
            yield [row]

    def _generated(self, rows: list[_Row]) -> dict[int, Completion]:
        try:
            self._generate(rows)
        except RuntimeError as error:  # genai raises it for everything
            if len(rows) == 1:
                raise genai.refusal(error) from error
            fresh = [row.again(self._prompts.stream(row.tokens)) for row in rows]
            return {key: one for row in fresh for key, one in self._generated([row]).items()}
        return {row.index: row.completion() for row in rows}

    def _generate(self, rows: list[_Row]) -> None:
        longest = max(len(row.tokens) for row in rows)
        prompts = np.full((len(rows), longest), self._prompts.pad, np.int32)
        for row, prompt in zip(rows, prompts, strict=True):
            prompt[: len(row.tokens)] = row.tokens
        parameters = genai.module().GeneratorParams(self._model)
        search: dict[str, Any] = {
            "batch_size": len(rows),
            "max_length": max(longest + max(row.limit for row in rows), self._least),
            "do_sample": False,
        }
        if self._settings.temperature > 0:
            search |= {
                "do_sample": True,
                "temperature": self._settings.temperature,
                "top_p": self._settings.top_p,
                "random_seed": rows[0].seed,
            }
        parameters.set_search_options(**search)
        generator = genai.module().Generator(self._model, parameters)
        generator.append_tokens(prompts)
        while not generator.is_done() and not all(row.finish for row in rows):
            generator.generate_next_token()
            for row, token in zip(rows, generator.get_next_tokens(), strict=True):
                row.take(int(token), self._prompts.ends)


@dataclass
class _Row:
    """A prompt while it is being completed: at most `limit` new tokens."""

    index: int
    tokens: list[int]
    limit: int
    seed: int
    stream: TextStream
    count: int = 0
    finish: str = ""
    pieces: list[str] = field(default_factory=list)

    def again(self, stream: TextStream) -> _Row:
        return _Row(self.index, self.tokens, self.limit, self.seed, stream)

    def take(self, token: int, ends: frozenset[int]) -> None:
        if self.finish:
            return
        if token in ends:
            self.finish = "stop"
            return
        self.count += 1
        self.pieces.append(self.stream.push(token))
        if self.count == self.limit:
            self.finish = "length"

    def completion(self) -> Completion:
        text, finish = "".join(self.pieces) + self.stream.finish(), self.finish or "length"
        return Completion(text, len(self.tokens), self.count, finish)


def check(request: Request) -> None:
    """Checks that a request is one, as far as that is known without the model.

    Raises:
        AieError: it is not.
    """
    if request.messages is not None:
        checked_messages(request.messages)
    elif request.prompt is not None:
        checked_text(request.prompt)
    else:
        raise AieError("there is neither a prompt nor messages")


def _plain(value: Any) -> Any:
    """A value of a batch without numpy's types, which JSON does not know."""
    if isinstance(value, np.generic | np.ndarray):
        return _plain(value.tolist())
    return value


def _seed(seed: int, id: str | int) -> int:
    digest = hashlib.sha256(json.dumps([seed, id]).encode()).digest()
    return int.from_bytes(digest[:4], "little") % _SEEDS
