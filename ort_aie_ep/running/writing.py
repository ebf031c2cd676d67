"""One text that a loop writes alone: its pieces as they come, and what it took."""

from __future__ import annotations

import time
from collections.abc import Generator
from dataclasses import dataclass

from ort_aie_ep.errors import AieError
from ort_aie_ep.progress import Count, Progress
from ort_aie_ep.running.answers import Delta
from ort_aie_ep.running.loop import Loop
from ort_aie_ep.running.turns import Turn, Usage


@dataclass(frozen=True)
class Timing:
    """The time of one text, as a user sees it: including choosing and printing tokens.

    Attributes:
        prompt_tokens, new_tokens: how many.
        prefill_seconds: from the prompt to the first new token.
        decode_seconds: for all further tokens.
        drafted: (how many drafted tokens were right, how many there were).
        cached_tokens: how many of the prompt's an earlier text had left in the cache.
    """

    prompt_tokens: int
    new_tokens: int
    prefill_seconds: float
    decode_seconds: float
    drafted: tuple[int, int] | None = None
    cached_tokens: int = 0

    @property
    def prefill_speed(self) -> float:
        """Prompt tokens per second, of those that were read."""
        return (self.prompt_tokens - self.cached_tokens) / self.prefill_seconds

    @property
    def decode_speed(self) -> float | None:
        """Further tokens per second; None if there were none."""
        return (self.new_tokens - 1) / self.decode_seconds if self.new_tokens > 1 else None


class Writing:
    """A text of a loop that writes no other, to iterate over once.

    Attributes:
        text: what is written.
        usage: how it ended; None until then, and if the caller has left it.
    """

    def __init__(self, loop: Loop, turn: Turn, progress: Progress | None = None) -> None:
        """`progress` counts tokens of the prompt that are to be read.

        Raises:
            AieError: as for `Loop.add`.
        """
        self._loop, self.text = loop, loop.add(turn)
        self.usage: Usage | None = None
        self._reading = Count(progress, self.text.prompt)
        self._start = self._first = self._shown = self._last = 0.0

    def __iter__(self) -> Generator[Delta]:
        """What each step of the loop adds, even if that is nothing: a caller may leave after any,
        which ends the text.

        Raises:
            AieError: the model fails.
        """
        text, reading = self.text, self._reading
        read: int | None = None
        begun = False
        reading.begin("")  # before the clock starts: what shows it takes time
        self._start = self._last = time.perf_counter()
        try:
            while self.usage is None:
                deltas = []
                for _, event in self._loop.step():
                    if isinstance(event, AieError):
                        raise event
                    if isinstance(event, Usage):
                        self.usage = event
                    else:
                        deltas.append(event.delta)
                self._last = time.perf_counter()
                if read is None:
                    read = text.cached
                    reading.total -= read
                if text.read > read:
                    reading.step(text.read - read)
                    read = text.read
                yield from deltas or [Delta()]
                if not begun and text.written:  # the first piece also ended the progress bar
                    begun, self._first, self._shown = True, self._last, time.perf_counter()
        finally:
            self._loop.drop(text)

    @property
    def timing(self) -> Timing:
        """What it took so far."""
        text, drafting = self.text, self.text.drafting
        # Without new tokens, all the time went into the prompt.
        return Timing(
            text.prompt,
            text.written,
            (self._first or self._last) - self._start,
            max(0.0, self._last - self._shown) if self._first else 0.0,
            None if drafting is None else (drafting.taken, drafting.drafted),
            text.cached,
        )
