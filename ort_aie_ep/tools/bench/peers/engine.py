"""What every engine is to the runner."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable


@dataclass(frozen=True)
class Model:
    """What an engine opens.

    Attributes:
        path: its own file or folder.
        bits: mean bits of a weight in that format, scales included.
        weight_bytes: what a decoded token reads: all matrices, the lm_head once.
        file_bytes: of the files that hold weights.
    """

    path: Path
    bits: float
    weight_bytes: int
    file_bytes: int


@dataclass(frozen=True)
class Settings:
    """How to open it.

    Attributes:
        threads: of computation.
        capacity: tokens of context to make room for.
        options: what only some engine knows, such as numerics.
        without: the feature that an engine is tried without after it failed (`Kind.without`).
    """

    threads: int
    capacity: int
    options: dict[str, str] = field(default_factory=dict)
    without: str = ""


@dataclass(frozen=True)
class Run:
    """A prompt and what follows it.

    Attributes:
        tokens: the likeliest ones: that after the prompt, then one for each decoding step.
        prefill_seconds: until the first of them is known.
        decode_seconds: for all others.
    """

    tokens: list[int]
    prefill_seconds: float
    decode_seconds: float


class Engine(Protocol):
    """An open model."""

    def describe(self) -> dict[str, str]:
        """Version, build flags, threads, KV type: what a reader needs to repeat it."""
        ...

    def run(self, prompt: Sequence[int], new_tokens: int) -> Run:
        """Forgets what was before, prefills, and decodes `new_tokens` times, always greedily."""
        ...


@runtime_checkable
class Skipping(Protocol):
    """An engine that can decode in the middle of a sequence that it has not seen."""

    def decode_at(self, total: int, count: int) -> float:
        """Seconds for `count` tokens, each the last of a sequence of `total` tokens."""
        ...


@runtime_checkable
class Batching(Protocol):
    """An engine that can take several sequences, or several tokens of one, in a call."""

    def batch_at(self, length: int, sequences: int, tokens: int, count: int) -> float:
        """Seconds for `count` calls after one that is not counted.

        Each gives `tokens` tokens to each of `sequences` sequences that have about `length`, and
        gets the logits of every one of them.
        """
        ...


class StepEngine(ABC):
    """An engine that is driven token by token."""

    @abstractmethod
    def reset(self) -> None:
        """Forgets the sequence."""

    @abstractmethod
    def forward(self, tokens: Sequence[int]) -> int:
        """Runs the tokens that come next; the likeliest one after the last of them."""

    def run(self, prompt: Sequence[int], new_tokens: int) -> Run:
        """See `Engine`."""
        self.reset()
        start = time.perf_counter()
        tokens = [self.forward(prompt)]
        prefilled = time.perf_counter()
        for _ in range(new_tokens):
            tokens.append(self.forward(tokens[-1:]))
        return Run(tokens, prefilled - start, time.perf_counter() - prefilled)
