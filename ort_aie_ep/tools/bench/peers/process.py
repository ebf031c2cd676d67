"""An engine in its own process, and how to communicate with it."""

from __future__ import annotations

import json
import select
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

import numpy as np

from ort_aie_ep.errors import AieError
from ort_aie_ep.tools.bench.peers.engines import Model, Settings

FIRST_PROMPT = 64
"""Tokens of the first prompt that a process answers."""

LIMIT_SECONDS = 300.0
"""Seconds for an answer; the slowest one, a long prompt on a slow peer, takes a tenth of it."""

# Threads of the engine that has just answered may keep spinning for a while.
_SETTLE_SECONDS = 0.1
# Time for a process to end after its pipe is closed.
_END_SECONDS = 10


class EngineError(AieError):
    """An engine cannot continue; `reason` is one line that continues the engine's name."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name} {reason}")
        self.reason = reason


@dataclass(frozen=True)
class Setup:
    """The input of every process of a run: models by engine's name, ort_aie_ep first; the settings
    of all; the number of token ids, from which prompts are drawn; and by engine's name the feature
    to leave out."""

    models: dict[str, Model]
    settings: Settings
    vocabulary: int
    without: dict[str, str] = field(default_factory=dict)


class Worker:
    """A process with one engine, which has `limit` seconds for an answer.

    Methods that ask it raise EngineError if it fails, ends, or takes longer.
    """

    def __init__(self, name: str, limit: float = LIMIT_SECONDS) -> None:
        self.name, self.limit = name, limit
        self._tokens: list[int] = []
        # The output of the engine's libraries, for the message of a failure; __exit__ closes it.
        self._log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        self._started = time.perf_counter()
        self._process = subprocess.Popen(
            # -P: do not import a checkout in the working directory instead of the package.
            [sys.executable, "-P", "-m", "ort_aie_ep.tools.bench.peers.worker"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True,
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the process; a second time does nothing."""
        if not self._log.closed:
            self._process.kill()
            self._process.communicate()
            self._log.close()

    def seconds(self) -> float:
        """Seconds since the process was started."""
        return time.perf_counter() - self._started

    def open(self, setup: Setup) -> dict[str, Any]:
        """Opens the engine's model: {"load_seconds": float, "settings": {name: value}}; a process
        that cannot has ended."""
        model, settings = setup.models[self.name], setup.settings
        settings = replace(settings, without=setup.without.get(self.name, ""))
        generator = np.random.default_rng(0)
        self._tokens = generator.integers(0, setup.vocabulary, settings.capacity).tolist()
        of_model = asdict(model) | {"path": str(model.path)}
        try:
            return self._ask("open", engine=self.name, model=of_model, settings=asdict(settings))
        except EngineError:
            self.close()
            raise

    def run(self, length: int, new_tokens: int) -> dict[str, Any]:
        """Prefills random tokens and decodes: {"prefill_seconds", "decode_seconds", "memory"}."""
        return self._ask("run", prompt=self._tokens[:length], new_tokens=new_tokens)

    def decode_at(self, total: int, count: int) -> float:
        """Seconds for a token, the mean of `count`; see `Engine`."""
        return float(self._ask("decode_at", total=total, count=count)["seconds"]) / count

    def batch_at(self, length: int, sequences: int, tokens: int, count: int) -> float:
        """Seconds for a call, the mean of `count`; see `Engine`."""
        sizes = {"length": length, "sequences": sequences, "tokens": tokens, "count": count}
        return float(self._ask("batch_at", **sizes)["seconds"]) / count

    def _ask(self, method: str, **given: Any) -> dict[str, Any]:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin
        assert stdout
        try:
            stdin.write(json.dumps([method, given]) + "\n")
            stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None
        # An answer is one line, so that no part of the next one is ever buffered.
        if not select.select([stdout], [], [], self.limit)[0]:
            self._process.kill()
            raise EngineError(self.name, f"did not answer within {self.limit:.0f} s")
        line = stdout.readline()
        if not line:
            raise self._ended()
        answer = json.loads(line)
        assert isinstance(answer, dict)
        if "error" in answer:
            raise EngineError(self.name, f"failed: {_one_line(answer['error'])}")
        return answer

    def _ended(self) -> EngineError:
        """How the process ended, and the last line it printed."""
        try:
            code = self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            return EngineError(self.name, "closed its output without ending")
        how = f"exit code {code}" if code >= 0 else f"signal {-code} ({signal.Signals(-code).name})"
        self._log.seek(0)
        lines = (line.strip() for line in self._log.read().splitlines())
        words = [line for line in lines if any(map(str.isalpha, line))]  # skips bars of dots
        last = words[-1] if words else "it printed nothing"
        return EngineError(self.name, f"ended with {how}: {_one_line(last)}")


def _one_line(text: str, most: int = 300) -> str:
    """The text as one line that fits in a table."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[:most]} ..."


def settle() -> None:
    """Waits until the engine that has just answered is quiet."""
    time.sleep(_SETTLE_SECONDS)
