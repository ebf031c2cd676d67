"""One engine in a process of its own, and how to talk to it."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, Protocol, Self

from ort_aie_ep.errors import AieError
from ort_aie_ep.tools.bench.peers.engine import Model, Settings

FIRST_PROMPT = 64
"""Tokens of the prompt that a process answers first."""

# Threads of the engine that has just answered may spin on for a while.
_SETTLE_SECONDS = 0.1


class Progress(Protocol):
    """What a long measurement tells of itself."""

    def total(self, steps: int) -> None:
        """Says how many steps there will be."""
        ...

    def step(self, what: str) -> None:
        """One step is done."""
        ...

    def note(self, text: str) -> None:
        """Something worth knowing before the end."""
        ...


@dataclass(frozen=True)
class Setup:
    """What every process of a run is given.

    Attributes:
        models: by engine's name, ours first.
        settings: of each of them.
        vocabulary: prompts are random tokens below it.
    """

    models: dict[str, Model]
    settings: Settings
    vocabulary: int


class Worker:
    """A process with one engine."""

    def __init__(self, name: str) -> None:
        self.name = name
        # What the engine's libraries print, for the message of a failure; __exit__ closes it.
        self._log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        self._started = time.perf_counter()
        self._process = subprocess.Popen(
            # -P: a checkout in the working directory is not the installed package.
            [sys.executable, "-P", "-m", "ort_aie_ep.tools.bench.peers.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()
        self._log.close()

    def seconds(self) -> float:
        """Since the process was started."""
        return time.perf_counter() - self._started

    def open(self, setup: Setup) -> dict[str, Any]:
        """Opens the engine's model: {"load_seconds": float, "settings": {name: value}}.

        Raises:
            AieError: as `ask`.
        """
        model = setup.models[self.name]
        return self.ask(
            engine=self.name,
            model=asdict(model) | {"path": str(model.path)},
            settings=asdict(setup.settings),
            vocabulary=setup.vocabulary,
        )

    def run(self, length: int, new_tokens: int) -> dict[str, Any]:
        """Prefills and decodes: {"prefill_seconds", "decode_seconds", "memory"}.

        Raises:
            AieError: as `ask`.
        """
        return self.ask(length=length, new_tokens=new_tokens)

    def decode_at(self, total: int, count: int) -> float:
        """Seconds for a token at a total length, prompt not prefilled: the mean of `count`.

        Raises:
            AieError: as `ask`.
        """
        return float(self.ask(total=total, count=count)["decode_seconds"]) / count

    def ask(self, **request: Any) -> dict[str, Any]:
        """The answer to a request.

        Raises:
            AieError: the engine failed, or its process ended.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            stdin.write(json.dumps(request) + "\n")
            stdin.flush()
            line = stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise AieError(f"{self.name}: its process ended\n{self._last_words()}")
        answer = json.loads(line)
        assert isinstance(answer, dict)
        if "error" in answer:
            raise AieError(f"{self.name}: {answer['error']}")
        return answer

    def _last_words(self) -> str:
        self._log.seek(0)
        return self._log.read()[-2000:].strip()


def settle() -> None:
    """Waits until the engine that has just answered is quiet."""
    time.sleep(_SETTLE_SECONDS)
