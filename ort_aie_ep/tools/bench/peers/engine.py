"""The runner's view of an engine."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Model:
    """The model that an engine opens.

    Attributes:
        path: its file or folder.
        bits: mean bits of a weight in that format, including scales.
        weight_bytes: bytes that a decoded token reads: all matrices, the lm_head once.
        file_bytes: size of the files that hold weights.
    """

    path: Path
    bits: float
    weight_bytes: int
    file_bytes: int


@dataclass(frozen=True)
class Settings:
    """How to open it.

    Attributes:
        threads: threads that compute.
        capacity: tokens of context to make room for.
        options: options of particular engines, such as numerics.
        without: the feature to leave out after the engine failed with it (`Kind.without`).
    """

    threads: int
    capacity: int
    options: dict[str, str] = field(default_factory=dict)
    without: str = ""


@dataclass(frozen=True)
class Run:
    """The results of a prompt and the decoding after it.

    Attributes:
        tokens: the likeliest tokens: one after the prompt, then one for each decoding step.
        prefill_seconds: seconds until the first of them is known.
        decode_seconds: seconds for all others.
    """

    tokens: list[int]
    prefill_seconds: float
    decode_seconds: float


class Engine(Protocol):
    """An open model."""

    def describe(self) -> dict[str, str]:
        """Version, build flags, threads, KV type: the settings needed to repeat a run."""
        ...

    def run(self, prompt: Sequence[int], new_tokens: int) -> Run:
        """Forgets earlier tokens, prefills, and decodes `new_tokens` times, always greedily."""
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

        Each call adds `tokens` tokens to each of `sequences` sequences of about `length` tokens,
        and returns the logits of all added tokens. They are `different_tokens`.
        """
        ...


def different_tokens(sequences: int, tokens: int) -> npt.NDArray[np.int64]:
    """(sequences, tokens) of a call with several rows.

    They differ, because equal tokens would choose the same experts and read fewer weights.
    """
    return np.arange(1, sequences * tokens + 1, dtype=np.int64).reshape(sequences, tokens)


class StepEngine(ABC):
    """An engine that is driven token by token."""

    @abstractmethod
    def reset(self) -> None:
        """Forgets the sequence."""

    @abstractmethod
    def forward(self, tokens: Sequence[int]) -> int:
        """Runs the next tokens; returns the likeliest one after the last of them."""

    def run(self, prompt: Sequence[int], new_tokens: int) -> Run:
        """See `Engine`."""
        self.reset()
        start = time.perf_counter()
        tokens = [self.forward(prompt)]
        prefilled = time.perf_counter()
        for _ in range(new_tokens):
            tokens.append(self.forward(tokens[-1:]))
        return Run(tokens, prefilled - start, time.perf_counter() - prefilled)
