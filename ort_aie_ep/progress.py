"""How a long-running function reports its progress."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Progress = Callable[[int, int, str], None]
"""Called with (amount done, amount in all, what is being done).

The amount is in the unit that the function names: bytes, tokens, runs. If the amount done falls,
another stage with its own total has begun.
"""


@dataclass
class Count:
    """Counts what is done, and reports it to `progress`, which may be None."""

    progress: Progress | None
    total: int
    done: int = 0
    what: str = ""

    def begin(self, what: str) -> None:
        """Reports that `what` is being done."""
        self.what = what
        if self.progress is not None:
            self.progress(self.done, self.total, what)

    def step(self, amount: int = 1) -> None:
        """Reports that `amount` more is done."""
        self.done += amount
        self.begin(self.what)


def within(progress: Progress | None, before: int, total: int) -> Progress | None:
    """`progress` for a part of the work: of `total`, `before` is done when the part begins."""
    if progress is None:
        return None
    return lambda done, _, what: progress(before + done, total, what)
