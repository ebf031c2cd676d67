"""A model that completes prompts, several at a time."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ort_aie_ep.errors import AieError
from ort_aie_ep.models.folder import find_model
from ort_aie_ep.models.interface import context_length
from ort_aie_ep.running.loop import Text, open_loop
from ort_aie_ep.running.prompts import checked_messages, checked_text
from ort_aie_ep.running.turns import Piece, Turn
from ort_aie_ep.runtime.sessions import Options

_SEEDS = 2**31


@dataclass(frozen=True)
class Settings:
    """What a completion depends on, besides its prompt and the model.

    Attributes:
        max_tokens: largest number of new tokens.
        temperature: divides the logits before a token is drawn; 0 takes the likeliest token.
        top_p: a token is drawn from the likeliest ones whose probabilities reach this sum.
        seed: of the draws; a prompt's own seed is a hash of this one and of its id.
        batch_size: prompts that are decoded together, or, in models whose caches grow or that have
            states (LFM2, Qwen3.5), by turns.

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
    """A model, opened once.

    A Ray Data pipeline makes one for each actor and calls it with batches. Without Ray, `complete`
    does the same for a list. The completion of a prompt does not depend on the worker, nor on the
    prompts beside it (docs/serve.md says how far).
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
            AieError: there is no model, or an option is out of range.
        """
        self._settings = Settings(max_tokens, temperature, top_p, seed, batch_size)
        self._folder, self._options = find_model(Path(model)), Options(threads=threads)
        self._loop = open_loop(self._folder, self._options, batch_size)

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
        self._make_room(requests)
        found: dict[int, Completion] = {}
        texts: dict[Text, int] = {}
        pieces: dict[int, list[str]] = {}
        for index, request in enumerate(requests):
            try:
                texts[self._loop.add(self._turn(request))] = index
                pieces[index] = []
            except AieError as error:
                found[index] = Completion(error=str(error))
        try:
            while len(found) < len(requests):
                for text, event in self._loop.step():
                    index = texts[text]
                    if isinstance(event, AieError):
                        raise event
                    if isinstance(event, Piece):
                        pieces[index].append(event.delta.content)
                    else:
                        found[index] = Completion(
                            "".join(pieces[index]),
                            event.prompt_tokens,
                            event.completion_tokens,
                            event.finish_reason,
                        )
        finally:
            for text in texts:
                self._loop.drop(text)
        return [found[index] for index in range(len(requests))]

    def _make_room(self, requests: Sequence[Request]) -> None:
        """Opens the model for longer texts, if it has a context for them."""
        longest = 0
        for request in requests:
            with suppress(AieError):  # `complete` says why
                longest = max(longest, len(self._loop.asking(self._turn(request)).tokens))
        wanted = min(longest + self._settings.max_tokens, context_length(self._folder))
        if wanted > self._loop.context:
            del self._loop  # two would need the memory of both
            self._loop = open_loop(self._folder, self._options, self._settings.batch_size, wanted)

    def _turn(self, request: Request) -> Turn:
        if request.error:
            raise AieError(request.error)
        check(request)
        asked = self._settings
        sampling = {
            "temperature": asked.temperature,
            "top_p": asked.top_p,
            "seed": _seed(asked.seed, request.id),
        }
        whole = Turn(max_tokens=asked.max_tokens, sampling=sampling)
        if request.messages is not None:
            return replace(whole, messages=request.messages)
        return replace(whole, prompt=request.prompt)


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
