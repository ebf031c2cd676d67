"""The engines of a run: one that fails is left out with its reason, and the others continue."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ort_aie_ep.tools.bench.peers.engine import Model
from ort_aie_ep.tools.bench.peers.engines import OURS, Source, kind
from ort_aie_ep.tools.bench.peers.process import EngineError, Progress, Setup


class Team:
    """The engines that still take part.

    Attributes:
        setup: the input of their processes.
        left_out: by engine's name, why it does not take part.
        retried: by engine's name, what it runs without, and why.
        partly: by engine's name, where it failed, if the rest of its numbers is valid.
    """

    def __init__(self, setup: Setup, left_out: dict[str, str], progress: Progress) -> None:
        self.setup = setup
        self.left_out = left_out
        self.retried: dict[str, str] = {}
        self.partly: dict[str, str] = {}
        self._progress = progress

    @property
    def names(self) -> list[str]:
        """Names of the engines that have not failed, ort_aie_ep first."""
        return [name for name in self.setup.models if name not in self.left_out]

    @contextmanager
    def excused(self, name: str, where: str, *, partly: bool = False) -> Iterator[None]:
        """A block whose failure leaves the engine out, or without this part of its numbers.

        Raises:
            EngineError: ort_aie_ep fails: without it, there is nothing to compare.
        """
        try:
            yield
        except EngineError as error:
            if name == OURS:
                raise
            excuses = self.partly if partly else self.left_out
            excuses[name] = f"{error.reason} ({where})"
            self._progress.note(f"{name} {excuses[name]}; the others go on")

    def retry(self, name: str, error: EngineError) -> bool:
        """Whether the engine has a feature that may be at fault; if so, it now runs without it."""
        without = kind(name).without
        if not without or name in self.retried:
            return False
        self.setup.without[name] = without
        self.retried[name] = f"{without}, after it {error.reason}"
        self._progress.note(f"{name} {error.reason}; it is tried once more without {without}")
        return True


def written(name: str, make: Callable[[Source], Model], source: Source) -> Model:
    """A model for an engine.

    Raises:
        EngineError: a peer's library fails, in any way.
        Exception: ort_aie_ep fails; its exception is passed on.
    """
    try:
        return make(source)
    except Exception as error:
        if kind(name).library == OURS:
            raise
        raise EngineError(name, f"failed: {type(error).__name__}: {error}") from error
